"""Which episodes stay when not all have room: failures first, the costliest first."""

from __future__ import annotations

import heapq
from typing import Generic, NamedTuple, TypeVar

from resilisim.evaluation.episode.record import EpisodeRecord

Kept = TypeVar("Kept")


class Rank(NamedTuple):
    """How much there is to see in an episode; the highest rank comes first.

    Attributes:
        failed: Whether it missed full success.
        regret: What its calls cost, rounded so that sums that differ in the last bit count as equal.
        earliness: Minus its index: of equals the earlier one comes first, whatever order they arrived in.
    """

    failed: bool
    regret: float
    earliness: int


def rank_of(record: EpisodeRecord) -> Rank:
    """Return the rank of an episode."""
    return Rank(not record["outcome"], round(record["regret"], 9), -record["index"])


class Shortlist(Generic[Kept]):
    """Keeps what ranks highest, as much as fits; everything above the highest rank that had to go is there.

    Args:
        most_bytes: How much may be kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._heap: list[tuple[Rank, int, Kept]] = []
        self._refused: Rank | None = None

    def accepts(self, rank: Rank) -> bool:
        """Return whether something of this rank can still be kept."""
        return self._refused is None or rank > self._refused

    def add(self, rank: Rank, size: int, kept: Kept) -> None:
        """Keep something, at the cost of what ranks lower. No two may have one rank."""
        if not self.accepts(rank):
            return
        heapq.heappush(self._heap, (rank, size, kept))
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._refused, size, _ = heapq.heappop(self._heap)
            self._bytes -= size

    def in_order(self) -> list[Kept]:
        """Return what was kept, the highest rank first."""
        return [kept for _, _, kept in sorted(self._heap, key=lambda entry: entry[0], reverse=True)]
