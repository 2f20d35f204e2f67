"""Wrong answers: what a call returns that the law says is corrupt, made from what the function has really returned.

An answer is looked at as JSON is (texts, numbers, lists, mappings), and so are dataclasses, models of pydantic, tuples
and what an MCP server answers. What is changed is a copy. Which kind of wrong it is, and where, follows from the draws.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from resilisim.schema_check import TooSlowError, schema_problem
from resilisim.simulator.law import CORRUPTIONS, OVERSIZED

Path = tuple[Any, ...]  # keys, places or names, from the whole to a part

_MOST_PARTS: Final = 2_000  # of an answer that are looked at
_MOST_TRIES: Final = 20  # places at which one kind of wrong is tried
_MOST_EARLIER: Final = 20  # answers of a tool that are kept to be given again
_LARGE: Final = 2**20  # characters of a text that is too large, and about as many bytes of a list
_ATOMS: Final = (str, bytes, int, float, bool, complex, type(None), type)
_NUMBER_IN_TEXT: Final = re.compile(r"\d+")


class WrongAnswers:
    """The answers of an episode's calls: keeps them as earlier ones, and makes wrong ones.

    Args:
        kinds: The ways in which answers are wrong, of `CORRUPTIONS` and "oversized"; others where none of them can be.
    """

    def __init__(self, kinds: Sequence[str] | None = None) -> None:
        self._kinds = tuple(kinds or CORRUPTIONS)
        self._earlier: dict[str, deque[Any]] = {}

    def keep(self, tool: str, answer: Any) -> None:
        """Keep an answer that was right, to give it again as a stale one."""
        try:
            kept = copy.deepcopy(answer)
        except Exception:  # a thing that there is only one of
            kept = answer
        self._earlier.setdefault(tool, deque(maxlen=_MOST_EARLIER)).append(kept)

    def wrong(
        self, tool: str, answer: Any, bits: int, schema: Any = None, kind: str | None = None
    ) -> tuple[Any, str | None]:
        """Return a wrong answer in place of a right one, and in which way it is wrong.

        Args:
            tool: Who answers.
            answer: The right answer.
            bits: Which of the ways, and where, as drawn.
            schema: JSON Schema that the wrong answer has to satisfy; None if there is none.
            kind: The way, if it is said beforehand.

        Returns:
            The answer itself and None if it cannot be wrong: there is nothing in it.
        """
        first = bits % len(self._kinds)
        order = [*([kind] if kind else []), *self._kinds[first:], *self._kinds[:first], *CORRUPTIONS]
        for each in dict.fromkeys(order):
            for place, candidate in enumerate(self._candidates(each, tool, answer, bits // len(self._kinds))):
                if place == _MOST_TRIES:
                    break
                if _differ(candidate, answer) and _fits(schema, candidate):
                    return candidate, each
        return answer, None

    def wrong_result(
        self, tool: str, result: Mapping[str, Any], bits: int, schema: Any = None, kind: str | None = None
    ) -> tuple[dict[str, Any], str | None]:
        """Return the result of an MCP call made wrong, as `wrong` does: its structured content, and what its text says.

        Args:
            tool: Who answers.
            result: What the server has answered, with `content` and perhaps `structuredContent`.
            bits: As in `wrong`.
            schema: The tool's `outputSchema`.
            kind: As in `wrong`.
        """
        structured, blocks = result.get("structuredContent"), result.get("content")
        texts = [
            number
            for number, block in enumerate(blocks if isinstance(blocks, list) else [])
            if isinstance(block, Mapping) and isinstance(block.get("text"), str)
        ]
        changed: dict[str, Any] = {**result}
        new = list(blocks) if isinstance(blocks, list) else []
        if isinstance(structured, Mapping):
            value, way = self.wrong(tool, dict(structured), bits, schema, kind)
            changed["structuredContent"] = value
            for number in texts:
                new[number] = {**new[number], "text": _said_anew(new[number]["text"], structured, value)}
        elif texts:
            number = texts[bits // 7 % len(texts)]
            text, way = self._wrong_text(tool, new[number]["text"], bits, kind)
            new[number] = {**new[number], "text": text}
        else:
            way = "empty" if new else None
            new = []
        changed["content"] = new
        return changed, way

    def keep_result(self, tool: str, result: Mapping[str, Any]) -> None:
        """Keep the result of an MCP call, as `keep` does."""
        structured = result.get("structuredContent")
        if isinstance(structured, Mapping):
            self.keep(tool, dict(structured))
            return
        for block in result.get("content") or ():
            if isinstance(block, Mapping) and isinstance(block.get("text"), str):
                self.keep(tool, _read(block["text"]))

    def _wrong_text(self, tool: str, text: str, bits: int, kind: str | None) -> tuple[str, str | None]:
        """Return a text made wrong; one that is JSON stays JSON, unless it is cut off."""
        value = _read(text)
        if isinstance(value, str) or (kind or self._kinds[bits % len(self._kinds)]) == "truncated":
            kind, value = kind if isinstance(value, str) else "truncated", text
        wrong, way = self.wrong(tool, value, bits, None, kind)
        return _written(wrong, text), way

    def _candidates(self, kind: str, tool: str, answer: Any, bits: int) -> Iterator[Any]:
        if kind == "stale":
            earlier = list(self._earlier.get(tool, ()))
            yield from _from(earlier, bits)
            return
        if kind == "empty" and type(answer) is not bool and not isinstance(answer, int | float):
            yield _empty_of(answer)
        change = _CHANGES[kind]
        parts = _parts(answer)
        for path, part in _from(parts, bits):
            changed = change(part, bits // len(parts), path)
            if changed is not _UNCHANGED:
                yield _with(answer, path, changed)


_UNCHANGED: Final = object()  # what cannot be changed in a way
_GONE: Final = object()  # what is left out of a mapping


def _truncated(part: Any, bits: int, path: Path) -> Any:
    if isinstance(part, str | bytes | list | tuple) and not hasattr(part, "_fields") and len(part) > 1:
        length = 1 + (len(part) - 1) * (1 + bits % 3) // 4
        return part[:length] if length < len(part) else part[:-1]
    return _UNCHANGED


def _missing(part: Any, bits: int, path: Path) -> Any:
    return _GONE if path and isinstance(path[-1], _Key) else _UNCHANGED


def _changed_number(part: Any, bits: int, path: Path) -> Any:
    if isinstance(part, bool):
        return not part
    if isinstance(part, int):
        return part + (1 + bits % 9) * 10 ** max(len(str(abs(part))) - 2, 0)
    if isinstance(part, float):
        return part * (1.1 + bits % 9 / 10.0) if part else 1.0 + bits % 9
    if isinstance(part, str) and (found := list(_NUMBER_IN_TEXT.finditer(part))):
        match = found[bits % len(found)]
        changed = str(int(match[0]) + 1 + bits % 9).zfill(len(match[0]))
        return part[: match.start()] + changed[-max(len(match[0]), 1) :] + part[match.end() :]
    return _UNCHANGED


def _emptied(part: Any, bits: int, path: Path) -> Any:
    return type(part)() if type(part) in (list, tuple, dict) and part else _UNCHANGED


def _oversized(part: Any, bits: int, path: Path) -> Any:
    if isinstance(part, str | bytes) and part:
        return part * (_LARGE // len(part) + 1)
    if type(part) is list and part:
        return part * (_LARGE // (len(part) * max(len(repr(part[0])), 1)) + 2)
    return _UNCHANGED


_CHANGES: Final[Mapping[str, Callable[[Any, int, Path], Any]]] = {
    "truncated": _truncated,
    "missing_field": _missing,
    "changed_number": _changed_number,
    "empty": _emptied,
    OVERSIZED: _oversized,
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Key:
    """A key of a mapping."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """A place in a list or tuple."""

    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """A field of an object."""

    value: str


def _parts(answer: Any) -> list[tuple[Path, Any]]:
    """Return the parts of an answer, itself first, with where each stands; what is deep or much is not looked into."""
    parts: list[tuple[Path, Any]] = []
    waiting: deque[tuple[Path, Any]] = deque([((), answer)])
    while waiting and len(parts) < _MOST_PARTS:
        path, part = waiting.popleft()
        parts.append((path, part))
        inner: list[tuple[Any, Any]] = []
        if isinstance(part, Mapping):
            inner = [(_Key(key), value) for key, value in part.items()]
        elif isinstance(part, list | tuple):
            inner = [(_Place(place), value) for place, value in enumerate(part[:_MOST_PARTS])]
        elif not isinstance(part, _ATOMS):
            inner = [(_Field(name), getattr(part, name)) for name in _fields(part)]
        waiting.extend(((*path, step), value) for step, value in inner)
    return parts


def _fields(part: Any) -> list[str]:
    if dataclasses.is_dataclass(part):
        return [field.name for field in dataclasses.fields(part) if hasattr(part, field.name)]
    return list(getattr(type(part), "__pydantic_fields__", ()))


def _with(value: Any, path: Path, part: Any) -> Any:
    """Return a copy of a value in which another part stands at a place, or none."""
    if not path:
        return part
    step, rest = path[0], path[1:]
    if isinstance(step, _Field):
        changed = copy.copy(value)
        object.__setattr__(changed, step.value, _with(getattr(value, step.value), rest, part))
        return changed
    if isinstance(step, _Place):
        items = list(value)
        items[step.value] = _with(items[step.value], rest, part)
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    entries = dict(value)
    if part is _GONE and not rest:
        del entries[step.value]
    else:
        entries[step.value] = _with(entries[step.value], rest, part)
    return entries


def _empty_of(answer: Any) -> Any:
    return type(answer)() if type(answer) in (str, bytes, list, tuple, dict, set) else None


def _from(items: Sequence[Any], bits: int) -> Iterator[Any]:
    """Yield items, beginning with the one that bits say."""
    first = bits % len(items) if items else 0
    yield from items[first:]
    yield from items[:first]


def _differ(one: Any, other: Any) -> bool:
    try:
        return type(one) is not type(other) or bool(one != other)
    except Exception:  # arrays, and what cannot be compared
        return one is not other


def _fits(schema: Any, candidate: Any) -> bool:
    if schema is None:
        return True
    try:
        return schema_problem(schema, candidate) is None
    except (TooSlowError, TypeError, ValueError):
        return False


def _read(text: str) -> Any:
    """Return the mapping or list that a text says as JSON, else the text."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _written(value: Any, like: str) -> str:
    """Return a value as JSON, spread over lines if another text is."""
    if isinstance(value, str):
        return value
    indent = 2 if "\n" in like.strip() else None
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


def _said_anew(text: str, before: Mapping[str, Any], after: Any) -> str:
    """Return what a text says of changed values; one that says something else stays."""
    value = _read(text)
    if not isinstance(value, str) and value == before:
        return _written(after, text)
    was = before.get("result")  # what servers put around a value that is no object
    now = after.get("result") if isinstance(after, Mapping) else None
    if set(before) == {"result"}:
        if text == (was if isinstance(was, str) else str(was)) or text == json.dumps(was):
            return now if isinstance(now, str) else json.dumps(now, ensure_ascii=False, default=str)
        if not isinstance(value, str) and value == was:
            return _written(now, text)
    return text
