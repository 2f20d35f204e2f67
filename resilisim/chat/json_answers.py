"""What models write, read with distrust, in linear time: thoughts, JSON, Python's notation, lists of named values."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

from resilisim.inputs import finite_number
from resilisim.provenance import without_surrogates

LONGEST_READ: Final = 200_000  # characters of an answer that are looked at; whoever asks for an object needs no more
_DEEPEST: Final = 60  # levels of nesting
_LONGEST_LITERAL = 20_000  # Python's own parser is asked about no more
_MOST_ATTEMPTS = 64  # opening braces at which an object is looked for

# Marks of thoughts, an opening one and, in the group, a closing one; all models' alike.
_THOUGHT_MARK = re.compile(
    r"<(?:seed:)?think(?:ing)?>|\[THINK\]|◁think▷|<\|START_THINKING\|>"
    r"|(</(?:seed:)?think(?:ing)?>|\[/THINK\]|◁/think▷|<\|END_THINKING\|>)",
    re.IGNORECASE,
)
# gpt-oss thinks in a channel of its own, and answers in another; where special tokens are left out, words remain.
_ANALYSIS = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>(.*?)"
    r"(?:<\|end\|>|(?=<\|start\|>|<\|channel\|>)|\Z)"
    r"|\Aanalysis(?=[A-Z])(.*?)assistant(?:final|(?=commentary to=functions\.))",
    re.DOTALL,
)
_CHANNEL = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)\s?(?:<\|constrain\|>\w*)?<\|message\|>"
    r"|<\|(?:return|end)\|>"
)
# What a thought that is never closed may end with: a call, an object, a block of code, a labelled part.
_STRUCTURE = re.compile(
    r"(?:[*_]{0,3}thought\b[^\n:]{0,20}:[^\n]*\n)?(?:<|\{|\[[\w{\[]|```|functools\[|commentary to="
    r"|(?:[*_]{2}|\#{1,6} )?(?:action|final answer|tasks|[a-z]+(?:_[a-z]+)+)\b[^\n:]{0,20}:)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"```[\w-]*[^\S\n]*\n(.*?)```", re.DOTALL)
_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_TOKEN = re.compile(rf"({_STRING})|([\[{{(])|([\]}})])|[^'\"\[\]{{}}()]+", re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None}
_WORD = re.compile(r"True\b|False\b|None\b")
_KEY = re.compile(r"\s*([A-Za-z_]\w{0,199})\s*[=:]\s*")
_SPACE = re.compile(r"\s*")
_KINDS = {list: "an array", str: "a string", bool: "a truth value", type(None): "null"}


class NotALiteral(ValueError):
    """A text is no value; the error's words say why."""


def without_thoughts(text: str, *, blanks: bool = False) -> str:
    """Return what stands outside of thoughts (`split_thoughts`).

    With `blanks` the text keeps its length, thoughts become blanks, and what is never closed is no thought.
    """
    return _blanked(text) if blanks else split_thoughts(text)[1]


def split_thoughts(text: str) -> tuple[list[str], str]:
    """Return the thoughts of a reply, and what stands outside of them.

    The first may lack its opening mark. One that is never closed goes to the end, but for a call, an object or a block
    of code that is its last paragraph: some models forget to close their thoughts before they act.
    """
    thoughts: list[str] = []
    if "analysis" in text:
        thoughts += [match.group(1) or match.group(2) or "" for match in _ANALYSIS.finditer(text)]
        text = _ANALYSIS.sub("", text)
    if "<|channel|>" in text:
        text = _CHANNEL.sub("", text)
    parts: list[str] = []
    end = 0
    begun: re.Match[str] | None = None
    for place, mark in enumerate(_THOUGHT_MARK.finditer(text)):
        if not mark.group(1):
            begun = mark if begun is None else begun
        elif begun is not None or place == 0:
            start, inner = (0, 0) if begun is None else (begun.start(), begun.end())
            parts.append(text[end:start])
            thoughts.append(text[inner : mark.start()])
            begun, end = None, mark.end()
    if begun is None:
        return thoughts, "".join([*parts, text[end:]])
    thought, last = _open_thought(text[begun.end() :])
    return [*thoughts, thought], "".join([*parts, text[end : begun.start()], last])


def _open_thought(text: str) -> tuple[str, str]:
    """Return a thought that is never closed, and what its last paragraph says outside of it, if that is no prose."""
    shown = text.rstrip()
    start = shown.rfind("```", 0, -3) if shown.endswith("```") else -1
    start = shown.rfind("\n", 0, start) if start >= 0 else max(shown.rfind("\n\n"), -1)
    last = shown[start + 1 :].lstrip()
    if start < 0 or _STRUCTURE.match(last) is None:
        return text, ""
    return text[: start + 1], last


def _blanked(text: str) -> str:
    parts: list[str] = []
    end = 0
    begun: int | None = None
    for place, mark in enumerate(_THOUGHT_MARK.finditer(text)):
        if not mark.group(1):
            begun = mark.start() if begun is None else begun
        elif begun is not None or place == 0:
            parts += [text[end : begun or 0], " " * (mark.end() - (begun or 0))]
            begun, end = None, mark.end()
    return "".join([*parts, text[end:]])


def json_object_in(text: str, keys: Sequence[str]) -> dict[str, Any] | str:
    """Find the first object that has some keys, fenced blocks looked at before the rest, or say what is wrong."""
    if len(text) > LONGEST_READ:
        return f"the answer has {len(text):,} characters; expected at most {LONGEST_READ:,}"
    visible = without_thoughts(text)
    if not visible.strip():
        return "the answer is empty"
    first: dict[str, Any] | None = None
    for part in (*(fenced.group(1) for fenced in _FENCE.finditer(visible)), visible):
        for value in _objects_in(part):
            if all(key in value for key in keys):
                return value
            first = value if first is None else first
    if first is None:
        return "the answer holds no JSON object"
    missing = ", ".join(repr(key) for key in keys if key not in first)
    return f"the JSON object lacks {missing}"


def _objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects that begin at an opening brace, none of them part of another, their texts as they stand."""
    position = text.find("{")
    for _ in range(_MOST_ATTEMPTS):
        if position < 0:
            return
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            yield value
        position = text.find("{", end)


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
    """Return the JSON value that begins at a position, and where it ends; `NotALiteral` if there is none to be used."""
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise NotALiteral(f"{error.msg} at character {error.pos - position}") from None
    except RecursionError:
        raise NotALiteral("nested too deeply") from None
    except ValueError as error:
        raise NotALiteral(str(error)[:100]) from None
    return _checked(value), end


def object_at(text: str, position: int) -> tuple[dict[str, Any], int]:
    """Return the object that begins at a position, in JSON or in Python's notation, and where it ends."""
    try:
        value, end = json_value_at(text, position)
    except NotALiteral as as_json:
        try:
            value, end = _python_value_at(text, position)
        except NotALiteral:
            raise as_json from None  # most models mean JSON, so its error helps them more
    if not isinstance(value, dict):
        raise NotALiteral(f"expected a JSON object, found {kind_of(value)}")
    return value, end


def kind_of(value: object) -> str:
    """Return what a JSON value is that is no object, in words."""
    return _KINDS.get(type(value), "a number")


def listed_values(text: str, position: int, closing: str) -> tuple[list[tuple[Any, str]], dict[str, Any], int]:
    """Read values between brackets, such as the inside of `(1, name="x")`, from a position to the closing bracket.

    Returned are the values without a name, each with its own words, those by name, and where the text goes on.
    """
    positional: list[tuple[Any, str]] = []
    named: dict[str, Any] = {}
    position = _skip(text, position)
    while not text.startswith(closing, position):
        key = _KEY.match(text, position)
        start = key.end() if key is not None else position
        value, end = value_at(text, start)
        if key is not None:
            named[key.group(1)] = value
        else:
            positional.append((value, text[start:end]))
        position = _skip(text, end)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
        elif not text.startswith(closing, position):
            raise NotALiteral(f"expected ',' or {closing!r} after a value")
    return positional, named, position + len(closing)


def _skip(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return position if space is None else space.end()


def value_at(text: str, position: int) -> tuple[Any, int]:
    """Return the value that begins at a position, in JSON or in Python's notation, and where it ends."""
    word = _WORD.match(text, position)
    if word is not None:
        return _WORDS[word.group()], word.end()
    quoted = _SINGLE_QUOTED.match(text, position)
    if quoted is not None:
        return _evaluated(quoted.group()), quoted.end()
    try:
        return json_value_at(text, position)
    except NotALiteral:
        if not text.startswith(("{", "["), position):
            raise
        return _python_value_at(text, position)


def _python_value_at(text: str, position: int) -> tuple[Any, int]:
    """Read a bracketed value in Python's notation: single quotes, True, False, None."""
    depth, end = 0, position
    while True:
        token = _TOKEN.match(text, end)
        if token is None or token.end() > position + _LONGEST_LITERAL:
            raise NotALiteral("no closing bracket was found")
        end = token.end()
        depth += 1 if token.group(2) else -1 if token.group(3) else 0
        if depth > _DEEPEST:
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
    level, is_broken = [value], False
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                inner += [*entry.keys(), *entry.values()]
            elif isinstance(entry, list):
                inner += entry
            elif isinstance(entry, str):
                is_broken = is_broken or without_surrogates(entry) != entry
        if not inner:
            return json.loads(without_surrogates(json.dumps(value, ensure_ascii=False))) if is_broken else value
        level = inner
    raise NotALiteral("nested too deeply")


# Line ends within strings are no JSON; models write them all the same, and what is meant is clear.
_DECODER = json.JSONDecoder(strict=False, parse_constant=finite_number, parse_float=finite_number)
