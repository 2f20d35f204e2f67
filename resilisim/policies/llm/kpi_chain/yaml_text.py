"""YAML as models write it, read into plain JSON values, and JSON values written as YAML for prompts.

Values are built from the parser's events instead of by a loader, for these reasons: a document of a few bytes must not
unfold into gigabytes (aliases are refused), a plain scalar must not turn into what JSON does not have (dates, sets,
base-60 numbers, `no` as False), a name that stands twice must not silently win, and nesting must not exhaust the stack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from resilisim.errors import MissingExtraError

try:
    import yaml
except ImportError as error:
    raise MissingExtraError(f"kpi-chain needs 'yaml' ({error}): pip install 'resilisim[llm]'") from error

MAX_CHARACTERS: Final = 50_000
MAX_DEPTH: Final = 20
_MAX_BLOCKS: Final = 20  # fenced blocks that are looked at
_MAX_PROBLEM: Final = 200  # characters of the parser's words that a message repeats

# The compiled parser, which every wheel of PyYAML has, is thirty times as fast. The other one reads the same, but for
# tabs between tokens, which it refuses.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\Z")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][-+]?[0-9]{1,4})?\Z")
_WORDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")
_COLLECTION_TAGS = (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_FENCED = re.compile(r"^[^\S\n]*(?:```|~~~)[\w-]*[^\S\n]*\n(.*?)(?=^[^\S\n]*(?:```|~~~)|\Z)", re.MULTILINE | re.DOTALL)
_ODD_BREAK = re.compile("[\r\x85\u2028\u2029\ufeff]")  # only double quotes keep these apart from other breaks
# A line `name: value`, also as the first of a list's entry.
_ENTRY = re.compile(r"(?P<head>[^\S\n]*(?:-[^\S\n]+)*(?P<name>[\w-]{1,100})[^\S\n]*:[^\S\n]+)(?P<value>\S.*)\Z")
_BLOCK_STYLE = re.compile(r"[|>][+-]?[0-9]?[+-]?(?:\s+#.*)?\Z")
_QUOTED = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*')(?:\s+#.*)?\Z")
_FENCE_LINE = re.compile(r"^[^\S\n]*(?:```|~~~)", re.MULTILINE)


class UnreadableReplyError(ValueError):
    """What a model wrote is not what it was asked for; the text says why, in words that a model can act on."""


def read_yaml(text: str) -> Any:
    """Return the value of a YAML document.

    Raises:
        UnreadableReplyError: It is no YAML, holds aliases, tags or several documents, is too long or nested too deeply.
    """
    return _value_of(_events_of(text), typed=True)


def yaml_with(text: str, key: str, beside: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find the YAML mapping that a reply gives, among prose and fences.

    Args:
        text: The visible part of a reply.
        key: A name that the mapping must have at its top.
        beside: Names that may stand beside it, also before it.

    Returns:
        The mapping, and the same with plain scalars as the texts that were written (`1945`, not the number).

    Raises:
        UnreadableReplyError: There is none, it cannot be read, or there are several that differ.
    """
    if not text.strip():
        raise UnreadableReplyError("the reply is empty")
    if len(text) > MAX_CHARACTERS:
        raise UnreadableReplyError(f"the reply has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    problem: UnreadableReplyError | None = None
    for candidate in islice(_candidates(text, (key, *beside)), _MAX_BLOCKS):
        try:
            events = _lenient_events_of(candidate)
            pair = _value_of(events, typed=True), _value_of(events, typed=False)
        except UnreadableReplyError as error:
            problem = problem or error
            continue
        if isinstance(pair[0], dict) and key in pair[0] and pair not in found:
            found.append(pair)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnreadableReplyError(f"the reply holds {len(found)} different blocks with {key!r}; write exactly one")
    raise problem or UnreadableReplyError(f"the reply holds no YAML with {key!r} at its top")


def dump_yaml(value: Any) -> str:
    """Return a JSON value as YAML for a prompt."""
    text: str = yaml.dump(
        value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _candidates(text: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield what may be the YAML: in each fenced block, or else in the whole, what begins at a line with a name."""
    pattern = "|".join(re.escape(name) for name in names)
    line = re.compile(rf"^(?P<indent>[^\S\n]*)[\"']?(?:{pattern})[\"']?[^\S\n]*:", re.MULTILINE)
    for block in [block for block in _FENCED.findall(text) if _may_hold(block, line)] or [text]:
        start = line.search(block)
        if block.lstrip().startswith("{"):  # JSON is YAML, too
            yield block.strip()
        elif start is not None:
            body = block[start.start() :]
            end = _FENCE_LINE.search(body)
            yield _outdented(body if end is None else body[: end.start()], start["indent"])


def _may_hold(block: str, line: re.Pattern[str]) -> bool:
    return block.lstrip().startswith("{") or line.search(block) is not None


def _outdented(body: str, indent: str) -> str:
    lines = body.split("\n")
    return "\n".join(row.removeprefix(indent) for row in lines) if indent else body


def _dumper() -> Any:
    """Return a dumper that writes values out wherever they stand, and texts of several lines as blocks."""

    def text_of(dumper: Any, value: str) -> Any:
        is_block = "\n" in value and not value.endswith("\n")
        style = '"' if _ODD_BREAK.search(value) else "|" if is_block else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    dumper: Any = type("_PromptDumper", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
    dumper.add_representer(str, text_of)
    return dumper


_DUMPER: Final = _dumper()


def _events_of(text: str) -> list[Any]:
    """Return the parser's events of one document, from its first node on."""
    if len(text) > MAX_CHARACTERS:
        raise UnreadableReplyError(f"the reply has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    nodes: list[Any] = []
    documents = depth = 0
    try:
        for event in yaml.parse(text.replace("\ufeff", ""), Loader=_LOADER):
            documents += isinstance(event, yaml.DocumentStartEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if documents > 1:
                raise UnreadableReplyError("the reply holds several YAML documents; write exactly one")
            if depth > MAX_DEPTH:
                raise UnreadableReplyError(f"{_place(event)}the YAML is nested more than {MAX_DEPTH} deep")
            if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                nodes.append(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise UnreadableReplyError(f"no valid YAML: {place}{str(error.problem)[:_MAX_PROBLEM]}") from None
    except yaml.YAMLError as error:
        raise UnreadableReplyError(f"no valid YAML: {' '.join(str(error).split())[:_MAX_PROBLEM]}") from None
    except UnreadableReplyError:
        raise
    except (RecursionError, ValueError, OverflowError) as error:
        # The scanner converts escapes such as "\UFFFFFFFF" without a check of its own.
        raise UnreadableReplyError(f"no valid YAML: {str(error)[:_MAX_PROBLEM]}") from None
    if not nodes:
        raise UnreadableReplyError("the reply is empty")
    return nodes


def _lenient_events_of(text: str) -> list[Any]:
    """Return the events of a document; if it is none, of the same with its values in quotes where they need them."""
    try:
        return _events_of(text)
    except UnreadableReplyError:
        quoted = _with_quotes(text)
        if quoted == text:
            raise
        try:
            return _events_of(quoted)
        except UnreadableReplyError:
            pass
        raise


def _with_quotes(text: str) -> str:
    """Return a document whose values on one line are in quotes if they hold what YAML takes for structure.

    That is a colon (`value: Report: the third`), a sign that no value begins with, or quotes around a part. Blocks of
    text are left alone.
    """
    lines: list[str] = []
    block: int | None = None  # column of the name whose block of text this is
    for line in text.split("\n"):
        entry = _ENTRY.match(line)
        column = len(line) - len(line.lstrip())
        if block is not None and (not line.strip() or column > block):
            lines.append(line)
            continue
        block = None
        if entry is not None:
            value = entry["value"].rstrip()
            if _BLOCK_STYLE.match(value):
                block = entry.start("name")
            elif _needs_quotes(value):
                line = entry["head"] + json.dumps(value, ensure_ascii=False)
        lines.append(line)
    return "\n".join(lines)


def _needs_quotes(value: str) -> bool:
    if value[0] in "\"'":
        return value.count(value[0]) > 1 and _QUOTED.match(value) is None
    has_colon = ": " in value or value.endswith(":")
    return value[0] in "@`%" or (has_colon and value[0] not in "[{&*!|>")


def _value_of(nodes: list[Any], typed: bool) -> Any:
    events = iter(nodes)
    return _value(next(events), events, typed)


def _value(event: Any, events: Iterator[Any], typed: bool) -> Any:
    if isinstance(event, yaml.AliasEvent):
        raise UnreadableReplyError(f"{_place(event)}aliases such as *{event.anchor:.50} are not allowed; write it out")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event, typed)
    if event.tag not in _COLLECTION_TAGS:
        raise UnreadableReplyError(f"{_place(event)}the tag {event.tag[:50]!r} is not allowed")
    if isinstance(event, yaml.SequenceStartEvent):
        return list(_items(events, typed))
    return _mapping(events, typed)


def _items(events: Iterator[Any], typed: bool) -> Iterator[Any]:
    while not isinstance(event := next(events), yaml.SequenceEndEvent):
        yield _value(event, events, typed)


def _mapping(events: Iterator[Any], typed: bool) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent):
            raise UnreadableReplyError(f"{_place(event)}a name has to be a plain text")
        name = event.value
        if name in mapping:
            raise UnreadableReplyError(f"{_place(event)}the name {name[:50]!r} stands twice in one mapping")
        mapping[name] = _value(next(events), events, typed)
    return mapping


def _scalar(event: Any, typed: bool) -> Any:
    if event.tag not in _TEXT_TAGS:
        raise UnreadableReplyError(f"{_place(event)}the tag {event.tag[:50]!r} is not allowed")
    text: str = event.value
    is_plain = event.implicit[0] and event.tag is None
    if not is_plain or not typed:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        return int(text)
    if _DECIMAL.match(text) and ("." in text or "e" in text.lower()):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def _place(event: Any) -> str:
    return f"line {event.start_mark.line + 1}: "
