"""Cutting a long output into pieces that an extractor can read, without losing a character."""

from __future__ import annotations

from collections.abc import Iterator

from resilisim.chat.estimates import BYTES_PER_TOKEN, estimated_tokens


def chunks_of(text: str, max_tokens: int) -> tuple[str, ...]:
    """Return a text in pieces of at most about `max_tokens`; put together again they are the text.

    Tokens are estimated as everywhere. Cuts are made behind line ends where possible, else behind spaces, else anywhere
    between two characters. An empty text is one empty piece.

    Args:
        text: The text.
        max_tokens: At least 1.
    """
    if estimated_tokens(text) <= max_tokens:
        return (text,)
    return tuple(_pieces(text, max_tokens * BYTES_PER_TOKEN))


def _pieces(text: str, max_bytes: int) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = _end_within(text, start, max_bytes)
        if end < len(text):
            end = _boundary(text, start, end)
        yield text[start:end]
        start = end


def _end_within(text: str, start: int, max_bytes: int) -> int:
    """Return where a piece from `start` ends that has as many characters as fit; at least one."""
    window = text[start : start + max_bytes]  # a character has at least one byte
    encoded = window.encode("utf-8", "replace")
    if len(encoded) > max_bytes:
        window = encoded[:max_bytes].decode("utf-8", "ignore")
    return start + max(1, len(window))


def _boundary(text: str, start: int, end: int) -> int:
    """Return the last good place to cut in the second half of a piece, or its end."""
    middle = start + (end - start) // 2
    for mark in ("\n", " "):
        place = text.rfind(mark, middle, end)
        if place >= 0:
            return place + 1
    return end
