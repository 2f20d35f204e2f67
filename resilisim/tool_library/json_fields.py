"""JSON read with care: one-line refusals that give the value, what was expected, and where it stands."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from resilisim.errors import InvalidInputError, nearest_name
from resilisim.tool_library.names import NAME_RULE, is_name

T = TypeVar("T")

MAX_NESTING = 64  # objects and arrays within each other; far below what recursion over them can bear
MAX_DIGITS = 300  # of a whole number; about as far as floats reach
_TOO_LARGE = 10**MAX_DIGITS


def shown(value: Any, length: int = 60) -> str:
    """Return a value as short JSON on one line, for messages."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, TypeError, ValueError):
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= length else text[: length - 3] + "..."


def json_problem(value: Any) -> str | None:
    """Say why JSON values cannot be used although each has a form in JSON, or return None.

    Nesting that recursion cannot follow, text that is not Unicode (half a surrogate pair, which an escape can smuggle
    in and no file can hold), and whole numbers of absurd length are problems; other kinds of values are not looked at.
    """
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError as error:
                return f"{shown(item, 40)} is not Unicode text ({error.reason})"
        elif isinstance(item, (dict, list, tuple, Mapping)):
            if depth > MAX_NESTING:
                return f"nested too deeply; expected at most {MAX_NESTING} levels"
            parts = [*item, *item.values()] if isinstance(item, Mapping) else item
            waiting.extend((part, depth + 1) for part in parts)
        elif isinstance(item, int) and abs(item) >= _TOO_LARGE:
            return f"a whole number of too many digits; expected at most {MAX_DIGITS} digits"
    return None


def read_json(text: str, source: str) -> Any:
    """Parse JSON, refusing doubled keys, numbers that JSON does not have, and what `json_problem` finds.

    Raises:
        InvalidInputError: The text is not JSON; the message gives source, line (where there are several) and column.
    """

    def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            doubled = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
            raise InvalidInputError(f"{source}: key {doubled!r} stands twice in one JSON object; names must be unique")
        return result

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise InvalidInputError(f"{source}: {number} is not a finite number; expected one")
        return value

    def whole(number: str) -> int:
        if len(number) > MAX_DIGITS + 1:  # a sign may stand before them
            digits = f"a whole number of {len(number)} digits; expected at most {MAX_DIGITS}"
            raise InvalidInputError(f"{source}: JSON cannot be used: {digits}")
        return int(number)

    try:
        value = json.loads(
            text, object_pairs_hook=without_doubles, parse_constant=finite, parse_float=finite, parse_int=whole
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise InvalidInputError(f"{source}: not valid JSON at {line}column {error.colno}: {error.msg}") from None
    except RecursionError:
        problem: str | None = f"nested too deeply; expected at most {MAX_NESTING} levels"
    else:
        problem = json_problem(value)
    if problem is not None:
        raise InvalidInputError(f"{source}: JSON cannot be used: {problem}")
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
