"""Names of tools: taken as they come, and the form that they get where only letters, digits, '_' and '-' are allowed.

This is the only place that says what a name may be. Draws, errors and records always use the name itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final
from unicodedata import category

from resilisim.errors import InvalidInputError
from resilisim.inputs import shown

NAME_RULE: Final = "1 to 128 characters without line breaks or control characters, neither blank first nor last"
PLAIN_RULE: Final = "1 to 128 letters, digits, '_', '-' or '.', the first a letter or digit"
LONGEST_NAME: Final = 128
LONGEST_FUNCTION_NAME: Final = 64  # what OpenAI-compatible endpoints take
# What the environment itself calls functions: no tool is one of these where both stand side by side.
RESERVED_FUNCTIONS: Final = ("tool_search", "tool_info", "tool_call", "finish", "wait")

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_FUNCTION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENDS: Final = re.compile(r"[\s{(:*`\"']")
_NOT_IN_FUNCTIONS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NOT_IN_NAMES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})  # control and half characters, ends of lines and paragraphs
_DIGEST_LENGTH: Final = 10


def is_name(text: str) -> bool:
    r"""Return whether a text can be the name of a tool."""
    if is_plain(text):
        return True
    return 0 < len(text) <= LONGEST_NAME and text.strip() == text and _NOT_IN_NAMES.isdisjoint(map(category, text))


def is_plain(text: str) -> bool:
    """Return whether a name is made of ASCII letters, digits, '_', '-' and '.' alone, a letter or digit first."""
    return _PLAIN.fullmatch(text) is not None


def has_end_of_name(name: str) -> bool:
    """Return whether a name holds a character that ends a name in a text: a blank, a bracket, a quote, a colon."""
    return _ENDS.search(name) is not None


def checked_name(text: str) -> str:
    """Return a text that can be the name or the alias of a tool.

    Raises:
        InvalidInputError: It cannot.
    """
    if not is_name(text):
        raise InvalidInputError(f"{shown(text)} is not a name; expected {NAME_RULE}")
    return text


def checked_code(text: str) -> str:
    """Return a text that can be the code of an error.

    Raises:
        InvalidInputError: It cannot.
    """
    if not is_plain(text):
        raise InvalidInputError(f"{shown(text)} is not a code; expected {PLAIN_RULE}")
    return text


def given_name(text: str, taken: Iterable[str] = ()) -> str:
    r"""Return the name under which something of another's goes whose own name cannot be one.

    It depends on that name alone: what can stand in a name, and a digest of the rest. A name that can be one is kept.
    """
    if is_name(text):
        return text
    kept = "".join("_" if category(letter) in _NOT_IN_NAMES else letter for letter in text).strip()
    return _with_digest(kept, text, LONGEST_NAME, taken)


def function_name(name: str, taken: Iterable[str] = ()) -> str:
    """Return the name of a tool where a function has one: at most 64 ASCII letters, digits, '_' and '-'.

    A name of that form is kept, unless it is one of `RESERVED_FUNCTIONS`. Any other gets a digest of itself, so that no
    two have the same form.
    """
    if _FUNCTION.fullmatch(name) is not None and name not in RESERVED_FUNCTIONS:
        return name
    return _with_digest(_NOT_IN_FUNCTIONS.sub("_", name).strip("_"), name, LONGEST_FUNCTION_NAME, taken)


def _with_digest(kept: str, name: str, length: int, taken: Iterable[str]) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    names = set(taken)
    for size in range(_DIGEST_LENGTH, length - 1):  # the first, unless somebody has chosen a name that looks like it
        shortened = f"{kept[: length - size - 1] or 'tool'}_{digest[:size]}"
        if shortened not in names and len(shortened) <= length:
            return shortened
    raise InvalidInputError(f"{shown(name)} has no form of its own; expected another name")
