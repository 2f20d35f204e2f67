"""YAML as models write it, read into plain JSON values, and JSON values written as YAML for prompts.

It is read as all YAML from outside (`resilisim.yaml_text`), without aliases.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml
from pydantic import ValidationError

from resilisim.yaml_text import UnreadableYamlError, typed, yaml_tree

MAX_CHARACTERS: Final = 50_000
_MAX_BLOCKS: Final = 20  # fenced blocks that are looked at
_FENCED = re.compile(r"^[^\S\n]*(?:```|~~~)[\w-]*[^\S\n]*\n(.*?)(?=^[^\S\n]*(?:```|~~~)|\Z)", re.MULTILINE | re.DOTALL)
_FENCE_LINE = re.compile(r"^[^\S\n]*(?:```|~~~)", re.MULTILINE)
_ODD_BREAK = re.compile("[\r\x85\u2028\u2029\ufeff]")  # only double quotes keep these apart from other breaks
# A line `name: value`, also as the first of a list's entry.
_ENTRY = re.compile(r"(?P<head>[^\S\n]*(?:-[^\S\n]+)*(?P<name>[\w-]{1,100})[^\S\n]*:[^\S\n]+)(?P<value>\S.*)\Z")
_BLOCK_STYLE = re.compile(r"[|>][+-]?[0-9]?[+-]?(?:\s+#.*)?\Z")
_QUOTED = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*')(?:\s+#.*)?\Z")

# What is wrong with a field, by pydantic's name for it.
_PROBLEMS: Final = {
    "missing": "is missing",
    "string_type": "has to be a text",
    "string_too_short": "is empty",
    "string_pattern_mismatch": "has to be of letters, digits and underscores",
    "bool_parsing": "has to be true or false",
    "bool_type": "has to be true or false",
    "dict_type": "has to be a mapping",
    "model_type": "has to be a mapping",
    "tuple_type": "has to be a list",
}


class UnreadableReplyError(ValueError):
    """What a model wrote is not what it was asked for; the text says why, in words that a model can act on."""


def read_yaml(text: str) -> Any:
    """Return the value of a YAML document.

    Raises:
        UnreadableReplyError: It is no YAML, holds aliases, tags or several documents, is too long or nested too deeply.
    """
    return typed(_tree_of(text))


def yaml_with(text: str, key: str, beside: tuple[str, ...] = ()) -> dict[str, Any]:
    """Find the YAML mapping that a reply gives, among prose and fences.

    It has `key` at its top, and the names `beside` may stand before that. Plain numbers and truth values are `Plain`.

    Raises:
        UnreadableReplyError: There is none, it cannot be read, or there are several that differ.
    """
    if not text.strip():
        raise UnreadableReplyError("the reply is empty")
    _check_length(text)
    mappings: list[dict[str, Any]] = []
    problem: UnreadableReplyError | None = None
    for candidate in itertools.islice(_candidates(text, (key, *beside)), _MAX_BLOCKS):
        try:
            tree = _lenient_tree_of(candidate)
        except UnreadableReplyError as error:
            problem = problem or error
            continue
        if isinstance(tree, dict) and key in tree and tree not in mappings:
            mappings.append(tree)
    if len(mappings) == 1:
        return mappings[0]
    if mappings:
        raise UnreadableReplyError(f"the reply holds {len(mappings)} different blocks with {key!r}; write exactly one")
    raise problem or UnreadableReplyError(f"the reply holds no YAML with {key!r} at its top")


def field_problems(error: ValidationError) -> list[str]:
    """Return what is wrong with the fields of a mapping, such as "dependencies number 1 has to be a text"."""
    problems = []
    for details in error.errors(include_url=False):
        place = " ".join(f"number {part + 1}" if isinstance(part, int) else part for part in details["loc"])
        is_ours = details["type"] == "value_error"
        words = details["ctx"]["error"] if is_ours else _PROBLEMS.get(details["type"], details["msg"])
        problems.append(f"{place} {words}")
    return problems


def dump_yaml(value: Any) -> str:
    """Return a JSON value as YAML for a prompt."""
    text: str = yaml.dump(
        value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


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


def _check_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise UnreadableReplyError(f"the reply has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")


def _candidates(text: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield what may be the YAML: in each fenced block, or else in the whole, what begins at a line with a name."""
    pattern = "|".join(re.escape(name) for name in names)
    line = re.compile(rf"^(?P<indent>[^\S\n]*)[\"']?(?:{pattern})[\"']?[^\S\n]*:", re.MULTILINE)

    def is_json(block: str) -> bool:
        return block.lstrip().startswith("{")  # which is YAML, too

    for block in [block for block in _FENCED.findall(text) if is_json(block) or line.search(block)] or [text]:
        start = line.search(block)
        if is_json(block):
            yield block.strip()
        elif start is not None:
            end = _FENCE_LINE.search(block, start.start())
            body = block[start.start() : end.start() if end is not None else None]
            yield "\n".join(row.removeprefix(start["indent"]) for row in body.split("\n"))


def _lenient_tree_of(text: str) -> Any:
    """Return the value of a document; if it cannot be read, of the same with quotes where its values need them."""
    try:
        return _tree_of(text)
    except UnreadableReplyError as problem:
        try:
            return _tree_of(_with_quotes(text))
        except UnreadableReplyError:
            raise problem from None


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


def _tree_of(text: str) -> Any:
    """Return the value of a document, its plain numbers and truth values as `Plain`."""
    _check_length(text)
    try:
        return yaml_tree(text, "the reply", aliases=False, may_be_empty=False)
    except UnreadableYamlError as error:
        raise UnreadableReplyError(str(error)) from None
