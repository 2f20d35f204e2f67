"""JSON read with care: one-line refusals that give the value, what was expected, and where it stands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from resilisim.errors import InvalidInputError, nearest_name
from resilisim.tool_library.names import NAME_RULE, is_name

T = TypeVar("T")


def shown(value: Any, length: int = 60) -> str:
    """Return a value as short JSON on one line, for messages."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= length else text[: length - 3] + "..."


def read_json(text: str, source: str) -> Any:
    """Parse JSON, refusing doubled keys, numbers that JSON does not have, and text that is not Unicode.

    Raises:
        InvalidInputError: The text is not JSON; the message gives source, line and column.
    """

    def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            doubled = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise InvalidInputError(f"{source}: key {doubled!r} stands twice in one JSON object; names must be unique")
        return result

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise InvalidInputError(f"{source}: {number} is not a finite number; expected one")
        return value

    try:
        value = json.loads(text, object_pairs_hook=without_doubles, parse_constant=finite, parse_float=finite)
        if "\\u" in text:  # an escape can smuggle in half a surrogate pair, which no file can hold
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except InvalidInputError:
        raise
    except json.JSONDecodeError as error:
        message = f"{source}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise InvalidInputError(message) from None
    except (RecursionError, UnicodeEncodeError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInputError(f"{source}: JSON cannot be used: {reason}") from None
    return value


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

    def name(self, field: str) -> str:
        """Return a required string that can be the name of a tool."""
        return self.check_name(field, self.text(field, required=True))

    def check_name(self, field: str, value: str) -> str:
        """Return the value if it can be the name of a tool."""
        if not is_name(value):
            self.fail(field, f"{shown(value)} is not a name", NAME_RULE)
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


def unique(fields: Fields, field: str, values: tuple[T, ...], key: Callable[[T], str]) -> tuple[T, ...]:
    """Return the values of a field, refusing two with the same key."""
    seen: set[str] = set()
    for value in values:
        if key(value) in seen:
            fields.fail(field, f"{key(value)!r} stands there twice", "each name once")
        seen.add(key(value))
    return values


def object_fields(value: Any, where: str, known: Sequence[str]) -> Fields:
    """Return the fields of a value that must be an object with known fields only."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{where}: expected an object with {', '.join(known)}, got {shown(value)}")
    fields = Fields(value, where, known)
    fields.refuse_unknown()
    return fields
