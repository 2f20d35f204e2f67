"""How often a task may be planned anew: ids change with every continuation, so attempts are counted by lineage."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

# Letters and number at the beginning of an id: T3 in T3a, T3b, T3_retry and T3a2, but not in T31.
_NUMBERED = re.compile(r"([A-Za-z_-]*?[0-9]+)(?![0-9]).*\Z")
_SEPARATED = re.compile(r"[_-]")


def lineage_of(task_id: str, earlier: Mapping[str, str]) -> str:
    """Return what a task of a continuation descends from.

    It inherits from the longest earlier id that its own extends: `T3a` from `T3`, `T1_2_retry` from `T1_2`,
    `find_film_again` from `find_film`. If it extends none, letters and number at its beginning are the lineage, or
    without a number the whole id.

    Args:
        task_id: Its id.
        earlier: Ids of tasks of earlier plans -> their lineages.
    """
    if task_id in earlier:
        return earlier[task_id]
    extended = [known for known in earlier if _extends(task_id, known)]
    if extended:
        return earlier[max(extended, key=len)]
    numbered = _NUMBERED.match(task_id)
    return task_id if numbered is None else numbered[1]


def _extends(task_id: str, earlier: str) -> bool:
    rest = task_id.removeprefix(earlier)
    if not earlier or not rest or rest == task_id:
        return False
    if _NUMBERED.match(earlier) is None:  # of words, only a whole word more is an extension
        return _SEPARATED.match(rest) is not None
    return not (earlier[-1].isdigit() and rest[0].isdigit())


class ReplanCounts:
    """How often each lineage was planned anew.

    Args:
        limit: How often one may be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()
        self._lineages: dict[str, str] = {}

    def register(self, task_ids: Iterable[str]) -> None:
        """Take up the tasks of the first plan, which descend from themselves, or those of a continuation."""
        earlier = dict(self._lineages)
        for task_id in task_ids:
            self._lineages[task_id] = lineage_of(task_id, earlier) if earlier else task_id

    @property
    def used_ids(self) -> tuple[str, ...]:
        """Every id of any plan so far, in the order in which they came."""
        return tuple(self._lineages)

    def lineage(self, task_id: str) -> str:
        """Return what a registered task descends from."""
        return self._lineages[task_id]

    def left(self, task_id: str) -> int:
        """Return how often the task's lineage may still be planned anew."""
        return max(0, self._limit - self._counts[self.lineage(task_id)])

    def spend(self, task_id: str) -> None:
        """Count one more plan for the task's lineage."""
        self._counts[self.lineage(task_id)] += 1

    def to_mapping(self) -> dict[str, int]:
        """Return lineage -> replans, those that had any."""
        return dict(self._counts)
