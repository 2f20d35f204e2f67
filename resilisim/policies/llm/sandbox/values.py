"""What may pass between a sandbox and its host: JSON values and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from resilisim.policies.llm.literals import without_surrogates

JsonValue = None | bool | int | float | str | list[Any] | dict[str, Any]

_MOST_BITS = 1024  # of an integer; more digits than that are an attack and no argument
_DEEPEST = 64
_MOST_ITEMS = 50_000  # of all lists and objects together; whoever waits for the host waits for the walk through them


class NotJsonError(ValueError):
    """A value has no form in JSON; the text says which and where."""


def json_value(value: Any, where: str = "value") -> JsonValue:
    """Return a value as JSON has it: tuples become lists, mappings dicts.

    Args:
        value: Any Python value.
        where: What errors call it.

    Raises:
        NotJsonError: It holds something that JSON has no form for, is too large, nested too deep or holds itself.
    """
    return _Walk(where).converted(value, where, 0)


class _Walk:
    def __init__(self, whole: str) -> None:
        self._whole = whole
        self._items = 0

    def converted(self, value: Any, where: str, depth: int) -> JsonValue:
        if depth > _DEEPEST:
            raise NotJsonError(f"{self._whole} is nested deeper than {_DEEPEST} levels")
        if isinstance(value, str):
            return without_surrogates(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value.bit_length() <= _MOST_BITS:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if isinstance(value, (list, tuple)):
            self._count(len(value))
            return [self.converted(item, f"{where}[{place}]", depth + 1) for place, item in enumerate(value)]
        if isinstance(value, Mapping):
            self._count(len(value))
            return {_key(key, where): self.converted(item, where, depth + 1) for key, item in value.items()}
        raise NotJsonError(f"{where} is {_described(value)}, which is no JSON value")

    def _count(self, items: int) -> None:
        self._items += items
        if self._items > _MOST_ITEMS:
            raise NotJsonError(f"{self._whole} holds more than {_MOST_ITEMS:,} items")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise NotJsonError(f"a key of {where} is {_described(key)}; expected a string")
    return without_surrogates(key)


def _described(value: Any) -> str:
    if isinstance(value, int):
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, float):
        return f"the number {value}"
    return f"of type {type(value).__name__}"
