"""Showing text that is not ours (tasks, tools) inside a prompt so that it cannot pass for the prompt itself.

Two things could: a protocol tag, and a line that looks like a heading or like a step of a plan. Both are escaped in a
way that a reader still understands (an entity, a Markdown backslash) and that `unescape_text` undoes exactly.
"""

from __future__ import annotations

import json
import re
from typing import Any

# Tags that mean something to the environment or to a plan; other markup in a text is left as it is.
PROTOCOL_TAGS = ("tool_search", "tool_info", "tool_call", "finish", "think", "mcp_task")

# Spaces within a line; `\s` would run over line ends.
_SPACE = r"[^\S\n]"
_TAG = re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(PROTOCOL_TAGS)})\b)", re.IGNORECASE)
_ENTITY = re.compile(r"&(?=(?:lt|amp);)")
_ESCAPED_ENTITY = re.compile(r"&(lt|amp);")
_HEADING = re.compile(rf"^({_SPACE}*)(\\*#)", re.MULTILINE)
_ESCAPED_HEADING = re.compile(rf"^({_SPACE}*)\\(\\*#)", re.MULTILINE)
_STEP = re.compile(rf"^({_SPACE}*\d+)(\\*\.{_SPACE}+Execute\b)", re.MULTILINE | re.IGNORECASE)
_ESCAPED_STEP = re.compile(rf"^({_SPACE}*\d+)\\(\\*\.{_SPACE}+Execute\b)", re.MULTILINE | re.IGNORECASE)


def escape_text(text: str) -> str:
    """Return a text in which nothing is a protocol tag, a heading, or a step of a plan."""
    # Looking for one character is far quicker than a pattern, and most texts have none of them.
    if "&" in text:
        text = _ENTITY.sub("&amp;", text)
    if "<" in text:
        text = _TAG.sub("&lt;", text)
    if "#" in text:
        text = _HEADING.sub(r"\1\\\2", text)
    return _STEP.sub(r"\1\\\2", text)


def escape_line(text: str) -> str:
    """Return a text as one line in which nothing is a protocol tag, for use behind a label."""
    return escape_text(" ".join(text.split()))


# Made once: `json.dumps` with an option makes one for every call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def inline_json(value: Any) -> str:
    """Return a value as JSON on one line that holds no protocol tag; it reads back as the same value."""
    text = _ENCODER.encode(value)
    return _TAG.sub(r"\\u003c", text) if "<" in text else text


def unescape_text(text: str) -> str:
    """Return the text that `escape_text` was given."""
    text = _ESCAPED_STEP.sub(r"\1\2", text)
    text = _ESCAPED_HEADING.sub(r"\1\2", text)
    return _ESCAPED_ENTITY.sub(lambda match: "<" if match.group(1) == "lt" else "&", text)
