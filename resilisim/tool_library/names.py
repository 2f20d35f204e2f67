"""Names of tools: what can be one, and what a name says about its tool."""

from __future__ import annotations

import re

DEFAULT_CATEGORY = "general"

# A name must survive inside a tag of the text protocol, a shell argument, and an MCP definition.
NAME_RULE = "1 to 128 letters, digits, '_', '-' or '.', the first a letter or digit"
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def is_name(text: str) -> bool:
    """Say whether a text can be the name or the alias of a tool (see `NAME_RULE`)."""
    return _NAME_PATTERN.fullmatch(text) is not None


def name_parts(name: str) -> tuple[str, str]:
    """Return the category and the operation that a tool's name suggests: all but its last word, and its last word."""
    stem = name.rstrip("_.-")
    cut = max(stem.rfind(separator) for separator in "_.-")
    return stem[: max(cut, 0)].rstrip("_.-") or DEFAULT_CATEGORY, stem[cut + 1 :]
