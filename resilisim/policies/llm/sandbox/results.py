"""What a block of code came to, as an agent reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NO_OUTPUT = "(no output)"
RESTARTED = "The sandbox was stopped. All variables and functions of earlier blocks are gone; a new namespace starts."

_SHOWN_OF_ERROR = 1_500  # characters of a traceback; the rest of a deep one repeats itself
_HEAD_OF_ERROR = 500


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What one block came to.

    Attributes:
        output: What it printed, or the value of its last expression if it printed nothing; cut, with a mark.
        error: A short traceback, or None.
        restarted: Whether the sandbox was stopped, so that the namespace is a new one.
        calls: How many functions of the host were called.
        kept: Variables of the host that are there again after a restart.
    """

    output: str
    error: str | None = None
    restarted: bool = False
    calls: int = 0
    kept: tuple[str, ...] = ()

    @property
    def observation(self) -> str:
        """All of it as one text, never empty."""
        parts = [self.output.rstrip("\n")] if self.output.strip() else []
        if self.error is not None:
            parts.append(self.error)
        if self.restarted:
            kept = f" Put in again: {', '.join(self.kept)}." if self.kept else ""
            parts.append(RESTARTED + kept)
        return "\n".join(parts) or NO_OUTPUT


def cut_output(text: str, most: int) -> str:
    """Return the beginning of a text, with a mark that says how much is left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[output cut: the first {most:,} of {len(text):,} characters]"


def cut_error(text: str) -> str:
    """Return a traceback's beginning and end, with a mark in place of a long middle."""
    if len(text) <= _SHOWN_OF_ERROR:
        return text
    left_out = len(text) - _SHOWN_OF_ERROR
    tail = text[-(_SHOWN_OF_ERROR - _HEAD_OF_ERROR) :]
    return f"{text[:_HEAD_OF_ERROR]}\n[{left_out:,} characters left out]\n{tail}"


def shown_value(value: Any) -> str:
    """Return how a prompt would show the value of an expression; nothing for None."""
    if value is None:
        return ""
    try:
        return repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a value nested too deep
        return f"<a value of type {type(value).__name__} that is too large to be shown>"
