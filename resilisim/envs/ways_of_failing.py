"""How failures come to a caller other than by an answer: there is none for a while, or the connection is cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from resilisim.errors import InvalidInputError, unknown_name

HANG_SECONDS: Final = 60.0
_MOST_HANG: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Manner:
    """How failures come to the caller other than by an answer.

    Attributes:
        hang_seconds: How long there is no answer at all, unless the caller gives up before.
        is_cut: Whether the connection is cut.
    """

    hang_seconds: float = 0.0
    is_cut: bool = False


ANSWERED: Final = Manner()


def manner_of(text: str, where: str, or_what: str = "") -> Manner:
    """Return what "hang", "hang:SECONDS" or "cut" says.

    Raises:
        InvalidInputError: It says something else; the line begins with `where` and gives these three, and `or_what`.
    """
    word, colon, seconds = text.partition(":")
    if word == "cut" and not colon:
        return Manner(is_cut=True)
    if word == "hang":
        try:
            number = float(seconds) if colon else HANG_SECONDS
        except ValueError:
            number = 0.0
        if 0.0 < number <= _MOST_HANG:
            return Manner(hang_seconds=number)
    raise InvalidInputError(f"{where} is {text!r:.80}: expected {or_what}'hang', 'hang:SECONDS' or 'cut'")


def ways_by_code(texts: Iterable[str], where: str) -> dict[str | None, str]:
    """Return by code what texts like "hang" and "TIMEOUT=cut" say; None stands for every code.

    Raises:
        InvalidInputError: One says no way, or there is one for every code and others beside it.
    """
    ways: dict[str | None, str] = {}
    for text in texts:
        code, _, way = text.rpartition("=")
        manner_of(way, where)
        ways[code or None] = way
    if None in ways and len(ways) > 1:
        raise InvalidInputError(f"{where} says how every failure comes, and how one code does: expected one of them")
    return ways


def check_codes(codes: Iterable[str], drawn: Iterable[str], where: str) -> None:
    """Refuse a code that is not among those that a law draws (`feedback.codes_of`).

    Raises:
        InvalidInputError: The line gives the nearest one.
    """
    known = sorted(drawn)
    for code in codes:
        if code not in known:
            raise unknown_name("code", code, known, where)
