"""Finding the JSON object in what a model wrote: bare, fenced, or with prose around it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

LONGEST_ANSWER = 200_000  # characters; whoever asks for an object needs no more
_MOST_ATTEMPTS = 64  # opening braces at which an object is looked for

_THOUGHT = re.compile(r"\A.*</think>|<think>.*\Z", re.DOTALL | re.IGNORECASE)  # some models leave the first tag out
_FENCE = re.compile(r"```[\w-]*[^\S\n]*\n(.*?)```", re.DOTALL)


def refuse_constant(name: str) -> float:
    """Refuse NaN and the infinities, which Python reads and JSON does not know."""
    raise ValueError(f"{name} is no JSON value")


def finite(number: str) -> float:
    """Read a number; one that is too large for a float is refused."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is not finite")
    return value


# Line ends within strings are no JSON; models write them all the same, and what is meant is clear.
LENIENT_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant, parse_float=finite)


def json_object_in(text: str, keys: Sequence[str]) -> dict[str, Any] | str:
    """Find the object that an answer gives.

    Args:
        text: What a model wrote; its thoughts (`<think>`) are passed over.
        keys: Names that the object must have.

    Returns:
        The first object that has them, fenced blocks looked at before the rest; or else what is wrong, in a few words.
    """
    if len(text) > LONGEST_ANSWER:
        return f"the answer has {len(text):,} characters; expected at most {LONGEST_ANSWER:,}"
    visible = _THOUGHT.sub("", text)
    if not visible.strip():
        return "the answer is empty"
    found: dict[str, Any] | None = None
    for value in _objects(visible):
        if all(key in value for key in keys):
            return value
        found = value if found is None else found
    if found is None:
        return "the answer holds no JSON object"
    missing = ", ".join(repr(key) for key in keys if key not in found)
    return f"the JSON object lacks {missing}"


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for fenced in _FENCE.finditer(text):
        yield from _decoded(fenced.group(1))
    yield from _decoded(text)


def _decoded(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects that begin at an opening brace, none of them part of another."""
    position = text.find("{")
    for _ in range(_MOST_ATTEMPTS):
        if position < 0:
            return
        try:
            value, end = LENIENT_DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            yield value
        position = text.find("{", end)
