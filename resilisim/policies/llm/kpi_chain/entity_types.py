"""Types of entities: one canonical name for each of the words that models use, and the test of a value."""

from __future__ import annotations

import re
from typing import Any, Final

from resilisim.policies.llm.kpi_chain.yaml_text import UnreadableReplyError, read_yaml

STRING: Final = "string"
NUMBER: Final = "number"
BOOLEAN: Final = "boolean"
ARRAY: Final = "array"
DICT: Final = "dict"
ANY: Final = "any"

_ALIASES: Final[dict[str, tuple[str, ...]]] = {
    STRING: ("string", "str", "text", "char", "date", "datetime", "time", "url", "email", "enum"),
    NUMBER: ("number", "int", "integer", "float", "double", "decimal", "numeric", "num"),
    BOOLEAN: ("boolean", "bool"),
    ARRAY: ("array", "list", "sequence", "tuple", "set"),
    DICT: ("dict", "dictionary", "object", "map", "mapping", "json"),
    ANY: ("any",),
}
_CANONICAL: Final = {alias: kind for kind, aliases in _ALIASES.items() for alias in aliases}
# "array of strings", "list[str]", "array<string>", "string (optional)": the first word says what it is.
_FIRST_WORD = re.compile(r"\s*([A-Za-z]+)\s*(?:[\[<(,|].*|of\b.*)?\Z", re.DOTALL)
_MISSING_WORDS = frozenset({"null", "none"})


def canonical_type(name: str) -> str | None:
    """Return the canonical name of a type, or None if the word is unknown.

    The types of the elements of arrays and of the values of dicts are not kept.
    """
    match = _FIRST_WORD.match(name)
    return _CANONICAL.get(match[1].lower()) if match else None


def type_of(value: Any) -> str:
    """Return the canonical type of a JSON value, "null" for None."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int | float):
        return NUMBER
    if isinstance(value, str):
        return STRING
    return ARRAY if isinstance(value, list) else DICT


def fits(value: Any, kind: str) -> bool:
    """Return whether a value is of a canonical type."""
    return kind == ANY or type_of(value) == kind


def is_missing(value: Any) -> bool:
    """Return whether a value says that there is none: null, or the word for it in quotes."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _MISSING_WORDS)


def as_written(value: Any, text: Any, kind: str) -> Any:
    """Return a value of YAML in the type that is wanted where notation alone hides it.

    A year without quotes reads as a number; for an entity that is a string, it is the text that was written.

    Args:
        value: The value with plain scalars typed.
        text: The same with plain scalars as text.
        kind: Canonical type that is wanted.
    """
    if kind == STRING and isinstance(text, str) and isinstance(value, int | float):
        return text
    return value


def literal(value: Any, text: Any, kind: str | None) -> Any:
    """Return the literal of an input parameter in the type that the plan states, if it can be read so.

    Plans write literals in blocks of text, in which a number is a text as well.

    Args:
        value: The value with plain scalars typed.
        text: The same with plain scalars as text.
        kind: Canonical type, or None if the plan states none.
    """
    if kind is None:
        return value
    value = as_written(value, text, kind)
    if not isinstance(value, str) or kind in (STRING, ANY):
        return value
    try:
        read = read_yaml(value)
    except UnreadableReplyError:
        return value
    return read if fits(read, kind) else value
