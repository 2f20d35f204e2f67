"""References of a plan: `<JSON_PATH>task.entity</JSON_PATH>`, found and replaced wherever a value holds them.

One pass: what memory puts in is never looked at again, so an output that happens to hold tags stays what it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

# No path holds a "<", so a tag without its partner is found out without looking further than the next one.
_TAG = re.compile(r"<JSON_PATH>([^<]*)</JSON_PATH>", re.IGNORECASE)
_HALF_TAG = re.compile(r"</?\s*JSON_PATH\b", re.IGNORECASE)
_PATH = re.compile(r"\s*(?:\$\.)?(?P<task>[\w-]+)\.(?P<entity>[\w-]+)(?P<all>\[\*\])?\s*\Z")
_MAX_EXCERPT: Final = 200


@dataclass(frozen=True, slots=True)
class Reference:
    """What stands between the tags.

    Attributes:
        task_id: The task that found the entity.
        entity: The entity.
        is_array: Whether the path ends in `[*]`: all elements of an array.
    """

    task_id: str
    entity: str
    is_array: bool = False

    def __str__(self) -> str:
        return f"{self.task_id}.{self.entity}{'[*]' if self.is_array else ''}"


@dataclass(frozen=True, slots=True)
class Found:
    """A value that a reference stands for; an empty one is a value as well."""

    value: Any = field(hash=False)


@dataclass(frozen=True, slots=True)
class NotFound:
    """Why a reference stands for nothing; the text names the task."""

    problem: str


Lookup = Callable[[Reference], Found | NotFound]


@dataclass(frozen=True, slots=True)
class Resolution:
    """A value with its references replaced.

    Attributes:
        value: The value; None, and of no use, if there are problems.
        problems: What could not be resolved, a line each.
        interpolated: References that were put into a longer text, as they were written.
    """

    value: Any = field(hash=False)
    problems: tuple[str, ...] = ()
    interpolated: tuple[str, ...] = ()


def has_references(value: Any) -> bool:
    """Return whether tags, whole or half, stand anywhere in a value."""
    return any(_HALF_TAG.search(text) for text, _ in _texts(value))


def references_in(value: Any) -> tuple[list[Reference], list[str]]:
    """Return every reference in a value, and what is wrong with those that cannot be read.

    Args:
        value: JSON value; texts nested in arrays and dicts are looked at, too.
    """
    references: list[Reference] = []
    problems: list[str] = []
    for text, is_name in _texts(value):
        if is_name and _HALF_TAG.search(text):
            problems.append(f"{excerpt(text)} is a name: references can only stand in values")
            continue
        for path in _TAG.findall(text):
            reference = read_path(path)
            if isinstance(reference, Reference):
                references.append(reference)
            else:
                problems.append(reference)
        if _HALF_TAG.search(_TAG.sub("", text)):
            problems.append(f"{excerpt(text)} holds an opening or closing tag without its partner")
    return references, problems


def is_interpolated(value: Any) -> bool:
    """Return whether a reference stands within a longer text anywhere in a value."""
    return any(_TAG.search(text) and _whole_path(text) is None for text, _ in _texts(value))


def read_path(path: str) -> Reference | str:
    """Return the reference that a path is, or what is wrong with it."""
    match = _PATH.match(path)
    if match is None:
        return f"the path {excerpt(path)} cannot be read: expected task_id.entity_name, or task_id.entity_name[*]"
    return Reference(match["task"], match["entity"], match["all"] is not None)


def resolve(value: Any, lookup: Lookup) -> Resolution:
    """Return a value with every reference in it replaced.

    A text that is one reference becomes the entity in its own type; one within a longer text is written into it, which
    only texts, numbers and booleans can be.

    Args:
        value: JSON value.
        lookup: Says what a reference stands for.
    """
    _, problems = references_in(value)
    interpolated: list[str] = []
    resolved = _resolved(value, lookup, problems, interpolated)
    if problems:
        return Resolution(None, tuple(dict.fromkeys(problems)), tuple(interpolated))
    return Resolution(resolved, (), tuple(interpolated))


def excerpt(text: str) -> str:
    """Return the beginning of a text in quotes."""
    return repr(text if len(text) <= _MAX_EXCERPT else text[:_MAX_EXCERPT] + "...")


def _resolved(value: Any, lookup: Lookup, problems: list[str], interpolated: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: _resolved(item, lookup, problems, interpolated) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, lookup, problems, interpolated) for item in value]
    if not isinstance(value, str) or not _TAG.search(value):
        return value
    path = _whole_path(value)
    if path is not None:
        return _looked_up(path, lookup, problems)

    def written(match: re.Match[str]) -> str:
        found = _looked_up(match[1], lookup, problems)
        if isinstance(found, dict | list):
            problems.append(f"{match[1].strip()} is no single value and cannot be written into a text")
        interpolated.append(match[1].strip())
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    return _TAG.sub(written, value)


def _whole_path(text: str) -> str | None:
    """Return the path of a text that is one reference and nothing else."""
    match = _TAG.fullmatch(text.strip())
    return match[1] if match is not None else None


def _looked_up(path: str, lookup: Lookup, problems: list[str]) -> Any:
    reference = read_path(path)
    if isinstance(reference, str):
        return None  # `references_in` has said so
    found = lookup(reference)
    if isinstance(found, NotFound):
        problems.append(found.problem)
        return None
    if reference.is_array and not isinstance(found.value, list):
        problems.append(f"{reference} asks for the elements of an array, and {reference.task_id} found no array there")
        return None
    return found.value


def _texts(value: Any) -> Iterator[tuple[str, bool]]:
    """Yield every text in a value and whether it is a name of a dict."""
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name, True
            yield from _texts(item)
