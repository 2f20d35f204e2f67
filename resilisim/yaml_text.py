"""YAML from outside, read into plain JSON values: laws, settings, and what models write.

Values are built from the events of PyYAML's safe parser, not by its loader: a document of a few bytes must not unfold
into gigabytes, a plain scalar must not turn into what JSON does not have (dates, sets, base-60 numbers), a name that
stands twice must not silently win, and nesting must not exhaust the stack. Scalars follow YAML 1.2: `1e-3` and `1e300`
are numbers, `true` and `false` are the only truth values (`yes`, `on` and `no` are texts), names are texts.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from resilisim.errors import InvalidInputError

MAX_CHARACTERS: Final = 1_000_000
MAX_DEPTH: Final = 20
MAX_VALUES: Final = 100_000  # those that aliases repeat included
_MAX_PROBLEM: Final = 200  # characters of the parser's words that a message repeats

# The compiled parser, which every wheel of PyYAML has, is thirty times as fast. The other one reads the same, but for
# tabs between tokens, which it refuses.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\Z")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][-+]?[0-9]{1,4})?\Z")
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_TRUTH_VALUES: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")
_COLLECTION_TAGS = (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class UnreadableYamlError(ValueError):
    """A text is no YAML that is taken; the error says why and where."""


class Plain(str):
    """A number or truth value without quotes: the text that was written, and in `value` what it stands for."""

    value: bool | int | float

    def __new__(cls, text: str, value: bool | int | float) -> Plain:
        """Return the text with its value."""
        plain = super().__new__(cls, text)
        plain.value = value
        return plain


def typed(tree: Any) -> Any:
    """Return JSON values with the values of plain scalars in place of their texts."""
    if isinstance(tree, Plain):
        return tree.value
    if isinstance(tree, dict):
        return {name: typed(item) for name, item in tree.items()}
    return [typed(item) for item in tree] if isinstance(tree, list) else tree


def read_yaml(
    text: str,
    where: str,
    *,
    max_characters: int = MAX_CHARACTERS,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
) -> Any:
    r"""Return the value of a YAML document; None of an empty one.

    Args:
        text: The document.
        where: What it is called in a refusal.
        max_characters: How long it may be.
        max_depth: How deep it may go.
        max_values: How many values it may hold, those that aliases repeat included.

    Raises:
        InvalidInputError: It is no YAML, holds tags or several documents, is too long or nested too deeply, or unfolds
            into too much.
    """
    try:
        return typed(yaml_tree(text, "it", max_characters=max_characters, max_depth=max_depth, max_values=max_values))
    except UnreadableYamlError as error:
        raise InvalidInputError(f"{where}: {error}") from None


def yaml_tree(
    text: str,
    what: str,
    *,
    aliases: bool = True,
    may_be_empty: bool = True,
    max_characters: int = MAX_CHARACTERS,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
) -> Any:
    """Return the value of a document, its plain numbers and truth values as `Plain`; refusals call it `what`.

    Raises:
        UnreadableYamlError: As `read_yaml`.
    """
    if len(text) > max_characters:
        raise UnreadableYamlError(f"{what} has {len(text):,} characters; at most {max_characters:,} are read")
    events = yaml.parse(text.replace("\ufeff", ""), Loader=_LOADER)
    try:
        next(events)  # the stream's beginning
        if not isinstance(next(events), yaml.DocumentStartEvent):
            if may_be_empty:
                return None
            raise UnreadableYamlError(f"{what} is empty")
        tree = _Builder(events, aliases, max_depth, max_values).tree(next(events), 0)
        next(events)  # the document's end
        if not isinstance(next(events), yaml.StreamEndEvent):
            raise UnreadableYamlError(f"{what} holds several YAML documents; write exactly one")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise UnreadableYamlError(f"not valid YAML: {place}{str(error.problem)[:_MAX_PROBLEM]}") from None
    except UnreadableYamlError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        # The scanner converts escapes such as "\UFFFFFFFF" without a check of its own.
        raise UnreadableYamlError(f"not valid YAML: {' '.join(str(error).split())[:_MAX_PROBLEM]}") from None
    return tree


class _Builder:
    """Builds the value of a document from its events, and counts what it holds."""

    def __init__(self, events: Iterator[Any], aliases: bool, max_depth: int, max_values: int) -> None:
        self._events, self._aliases = events, aliases
        self._max_depth, self._max_values = max_depth, max_values
        self._count = 0
        self._anchors: dict[str, tuple[Any, int, int]] = {}  # name -> value, how many values it holds, how deep it is

    def tree(self, event: Any, depth: int) -> Any:
        """Return the value that begins with an event."""
        return self._built(event, depth)[0]

    def _built(self, event: Any, depth: int) -> tuple[Any, int]:
        """Return the value that begins with an event, and how deep it is."""
        place = f"line {event.start_mark.line + 1}: "
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, place, depth)
        before = self._count
        self._add(1, place)
        is_scalar = isinstance(event, yaml.ScalarEvent)
        if event.tag not in (_TEXT_TAGS if is_scalar else _COLLECTION_TAGS):
            raise UnreadableYamlError(f"{place}the tag {event.tag[:50]!r} is not allowed")
        value, height = (_scalar(event), 0) if is_scalar else self._collection(event, place, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._count - before, height)
        return value, height

    def _alias(self, event: Any, place: str, depth: int) -> tuple[Any, int]:
        if not self._aliases:
            raise UnreadableYamlError(f"{place}aliases such as *{event.anchor:.50} are not allowed; write it out")
        if event.anchor not in self._anchors:
            raise UnreadableYamlError(f"{place}the alias *{event.anchor:.50} names nothing that stands before it")
        value, count, height = self._anchors[event.anchor]
        self._add(count, place)
        if depth + height > self._max_depth:
            raise UnreadableYamlError(f"{place}the YAML is nested more than {self._max_depth} deep")
        return value, height

    def _add(self, count: int, place: str) -> None:
        self._count += count
        if self._count > self._max_values:
            raise UnreadableYamlError(f"{place}the YAML unfolds into more than {self._max_values:,} values")

    def _collection(self, event: Any, place: str, depth: int) -> tuple[Any, int]:
        if depth == self._max_depth:
            raise UnreadableYamlError(f"{place}the YAML is nested more than {self._max_depth} deep")
        inner = itertools.takewhile(lambda one: not isinstance(one, yaml.CollectionEndEvent), self._events)
        height = 0
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            for item in inner:
                value, deep = self._built(item, depth + 1)
                items.append(value)
                height = max(height, deep)
            return items, height + 1
        mapping: dict[str, Any] = {}
        for name in inner:
            place = f"line {name.start_mark.line + 1}: "
            if not isinstance(name, yaml.ScalarEvent):
                raise UnreadableYamlError(f"{place}a name has to be a plain text")
            if self._aliases and name.value == "<<" and name.implicit[0]:
                raise UnreadableYamlError(f"{place}<< is not taken; write out what is to be merged")
            if name.value in mapping:
                raise UnreadableYamlError(f"{place}the name {name.value[:50]!r} stands twice in one mapping")
            mapping[name.value], deep = self._built(next(self._events), depth + 1)
            height = max(height, deep)
        return mapping, height + 1


def _scalar(event: Any) -> str | None:
    text: str = event.value
    is_plain = event.implicit[0] and event.tag is None
    if not is_plain:
        return text
    if text in _NULLS:
        return None
    if text in _TRUTH_VALUES:
        return Plain(text, _TRUTH_VALUES[text])
    if _INTEGER.match(text):
        return Plain(text, int(text))
    if _DECIMAL.match(text) and ("." in text or "e" in text.lower()) and math.isfinite(float(text)):
        return Plain(text, float(text))
    return text
