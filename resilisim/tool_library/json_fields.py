"""Fields of JSON objects read by hand, for readers that are not pydantic models yet (`resilisim.inputs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from resilisim.errors import InvalidInputError, nearest_name
from resilisim.inputs import shown

T = TypeVar("T")


class Fields:
    """The fields of one JSON object, read by kind; every refusal says where the object stands.

    Args:
        values: The object.
        where: Its place, as messages should give it.
        known: Names of the fields that it may have.
    """

    def __init__(self, values: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
        self.values = values
        self.where = where
        self.known = known

    def fail(self, field: str, problem: str, expected: str) -> NoReturn:
        """Refuse a field: what is wrong with it, and what was expected."""
        raise InvalidInputError(f"{self.where}, field {field!r}: {problem}; expected {expected}")

    def refuse_unknown(self) -> None:
        """Refuse fields that are not known, with the nearest known one."""
        for field in self.values:
            if field not in self.known:
                near = nearest_name(str(field), self.known)
                hint = f"did you mean {near!r}?" if near else "expected one of " + ", ".join(self.known)
                raise InvalidInputError(f"{self.where}: unknown field {field!r}: {hint}")

    def text(self, field: str, *, default: str = "", required: bool = False) -> str:
        """Return a string; one that is required must be there and say something."""
        if field not in self.values:
            if required:
                self.fail(field, "is missing", "a string")
            return default
        value = self.values[field]
        if not isinstance(value, str):
            self.fail(field, f"got {shown(value)}", "a string")
        if required and not value.strip():
            self.fail(field, "is empty", "a text that says something")
        return value

    def boolean(self, field: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(field, default)
        if not isinstance(value, bool):
            self.fail(field, f"got {shown(value)}", "true or false")
        return value

    def mapping(self, field: str) -> Mapping[str, Any]:
        """Return an object, empty if it is missing."""
        value = self.values.get(field, {})
        if not isinstance(value, Mapping):
            self.fail(field, f"got {shown(value)}", "an object")
        return value

    def array(self, field: str) -> Sequence[Any]:
        """Return an array, empty if it is missing."""
        value = self.values.get(field, ())
        if not isinstance(value, (list, tuple)):
            self.fail(field, f"got {shown(value)}", "an array")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        """Return an array of strings."""
        values = self.array(field)
        for value in values:
            if not isinstance(value, str):
                self.fail(field, f"got {shown(value)} among its items", "an array of strings")
        return tuple(values)

    def items(self, field: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        """Return what `read` makes of each item of an array; it is told the place of the item."""
        return tuple(
            read(value, f"{self.where}, field '{field}', item {place + 1}")
            for place, value in enumerate(self.array(field))
        )


def object_fields(value: Any, where: str, known: Sequence[str]) -> Fields:
    """Return the fields of a value that must be an object with known fields only."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{where}: expected an object with {', '.join(known)}, got {shown(value)}")
    fields = Fields(value, where, known)
    fields.refuse_unknown()
    return fields
