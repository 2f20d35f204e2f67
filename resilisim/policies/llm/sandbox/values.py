"""What may pass between a sandbox and its host: JSON values and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

JsonValue = None | bool | int | float | str | list[Any] | dict[str, Any]

_MOST_BITS = 1024  # of an integer; more digits than that are an attack and no argument
_DEEPEST = 64


class NotJsonError(ValueError):
    """A value has no form in JSON; the text says which and where."""


def json_value(value: Any, where: str = "value", depth: int = 0) -> JsonValue:
    """Return a value as JSON has it: tuples become lists, mappings dicts.

    Args:
        value: Any Python value.
        where: What errors call it.
        depth: How deep it is nested.

    Raises:
        NotJsonError: It holds something that JSON has no form for, is nested too deep or holds itself.
    """
    if depth > _DEEPEST:
        raise NotJsonError(f"{where} is nested deeper than {_DEEPEST} levels")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int) and value.bit_length() <= _MOST_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple)):
        return [json_value(item, f"{where}[{place}]", depth + 1) for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, where): json_value(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    raise NotJsonError(f"{where} is {_described(value)}, which is no JSON value")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise NotJsonError(f"a key of {where} is {_described(key)}; expected a string")
    return key


def _described(value: Any) -> str:
    if isinstance(value, int):
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, float):
        return f"the number {value}"
    return f"of type {type(value).__name__}"
