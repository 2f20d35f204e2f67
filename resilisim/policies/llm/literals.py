"""Values as models write them: JSON, Python's notation where it differs, and lists of named values.

Work is linear in the text, depth and length are bounded, and what is read is always JSON: finite numbers, text that can
be encoded.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final

from resilisim.chat.json_answers import LENIENT_DECODER

LONGEST_READ: Final = 200_000  # characters of a reply that are looked at
DEEPEST: Final = 60  # levels of nesting
_LONGEST_LITERAL = 20_000  # Python's own parser is asked about no more

_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_TOKEN = re.compile(rf"({_STRING})|([\[{{(])|([\]}})])|[^'\"\[\]{{}}()]+", re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None}
_WORD = re.compile(r"True\b|False\b|None\b")
_KEY = re.compile(r"\s*([A-Za-z_]\w{0,199})\s*[=:]\s*")
_SPACE = re.compile(r"\s*")


class NotALiteral(ValueError):
    """A text is no value; the error's words say why."""


def without_surrogates(text: str) -> str:
    """Return a text that can be encoded: halves of characters become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def texts_in(value: Any) -> Iterator[tuple[str, bool]]:
    """Yield every text in a JSON value, and whether it is a name of an object."""
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name, True
            yield from texts_in(item)


def json_value_at(text: str, position: int) -> tuple[Any, int]:
    """Read the JSON value that begins at a position.

    Returns:
        The value, and where it ends.

    Raises:
        NotALiteral: There is none, it is nested too deeply, or a number is out of range.
    """
    try:
        value, end = LENIENT_DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise NotALiteral(f"{error.msg} at character {error.pos - position}") from None
    except RecursionError:
        raise NotALiteral("nested too deeply") from None
    except ValueError as error:
        raise NotALiteral(str(error)[:100]) from None
    return _checked(value), end


def object_at(text: str, position: int) -> tuple[dict[str, Any], int]:
    """Read the object that begins at a position, in JSON or in Python's notation.

    Returns:
        The object, and where it ends.

    Raises:
        NotALiteral: There is none.
    """
    try:
        value, end = json_value_at(text, position)
    except NotALiteral as as_json:
        try:
            value, end = _python_value_at(text, position)
        except NotALiteral:
            raise as_json from None  # most models mean JSON, so its error helps them more
    if not isinstance(value, dict):
        raise NotALiteral(f"expected a JSON object, found {_kind(value)}")
    return value, end


def listed_values(text: str, position: int, closing: str) -> tuple[list[tuple[Any, str]], dict[str, Any]]:
    """Read values between brackets, such as the inside of `(1, name="x")`, from a position to the closing bracket.

    Returns:
        Values without a name, each with its own words, and values by name.

    Raises:
        NotALiteral: It is no such list.
    """
    positional: list[tuple[Any, str]] = []
    named: dict[str, Any] = {}
    position = _skip(text, position)
    while not text.startswith(closing, position):
        key = _KEY.match(text, position)
        start = key.end() if key is not None else position
        value, end = _value_at(text, start)
        if key is not None:
            named[key.group(1)] = value
        else:
            positional.append((value, text[start:end]))
        position = _skip(text, end)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
        elif not text.startswith(closing, position):
            raise NotALiteral(f"expected ',' or {closing!r} after a value")
    return positional, named


def _value_at(text: str, position: int) -> tuple[Any, int]:
    word = _WORD.match(text, position)
    if word is not None:
        return _WORDS[word.group()], word.end()
    quoted = _SINGLE_QUOTED.match(text, position)
    if quoted is not None:
        return _evaluated(quoted.group()), quoted.end()
    if text[position : position + 1] in ("{", "["):
        try:
            return json_value_at(text, position)
        except NotALiteral:
            return _python_value_at(text, position)
    return json_value_at(text, position)


def _python_value_at(text: str, position: int) -> tuple[Any, int]:
    """Read a bracketed value in Python's notation: single quotes, True, False, None."""
    depth = 0
    end = position
    limit = position + _LONGEST_LITERAL
    while True:
        token = _TOKEN.match(text, end)
        if token is None or token.end() > limit:
            raise NotALiteral("no closing bracket was found")
        end = token.end()
        depth += 1 if token.group(2) else -1 if token.group(3) else 0
        if depth > DEEPEST:
            raise NotALiteral("nested too deeply")
        if depth <= 0:
            return _evaluated(text[position:end]), end


def _evaluated(literal: str) -> Any:
    """Return the value of a Python literal as a JSON value."""
    if len(literal) > _LONGEST_LITERAL:
        raise NotALiteral(f"more than {_LONGEST_LITERAL:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown escapes are the model's doing
            value = ast.literal_eval(literal)
        return _checked(json.loads(json.dumps(value, allow_nan=False)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise NotALiteral("no value in Python's notation either") from None


def _checked(value: Any) -> Any:
    """Return a value that is not too deep, its texts fit to be encoded."""
    depth, level = 0, [value]
    broken = False
    while level:
        depth += 1
        if depth > DEEPEST:
            raise NotALiteral("nested too deeply")
        inner: list[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                inner += [*entry.keys(), *entry.values()]
            elif isinstance(entry, list):
                inner += entry
            elif isinstance(entry, str) and not entry.isascii():
                broken = broken or without_surrogates(entry) != entry
        level = inner
    return json.loads(without_surrogates(json.dumps(value, ensure_ascii=False))) if broken else value


def _skip(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return position if space is None else space.end()


def _kind(value: object) -> str:
    return {list: "an array", str: "a string", bool: "a truth value", type(None): "null"}.get(type(value), "a number")
