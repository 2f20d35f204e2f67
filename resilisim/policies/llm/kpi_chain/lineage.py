"""How often a task may be planned anew: ids change with every continuation, so attempts are counted by lineage."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# T3a, T3b, T3_retry and T3a2 all descend from T3; T31 does not.
_NUMBERED = re.compile(r"([A-Za-z_-]*?[0-9]+)(?![0-9]).*\Z")
_SEPARATED = re.compile(r"[_-]")


def lineage_of(task_id: str, earlier_ids: Iterable[str] = ()) -> str:
    """Return what a task descends from; a task of the first plan descends from itself.

    Args:
        task_id: Its id. With a number: letters and number are the lineage. Without one (`find_film_again`): the
            shortest earlier id that it extends by a word, or else itself.
        earlier_ids: Ids of tasks of earlier plans.
    """
    numbered = _NUMBERED.match(task_id)
    if numbered is not None:
        return numbered[1]
    extended = [earlier for earlier in earlier_ids if _extends(task_id, earlier)]
    return min(extended, key=len, default=task_id)


def _extends(task_id: str, earlier: str) -> bool:
    rest = task_id.removeprefix(earlier)
    return bool(earlier) and rest != task_id and _SEPARATED.match(rest) is not None


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
        """Take up the tasks of a plan or a continuation."""
        known = tuple(self._lineages)
        for task_id in task_ids:
            self._lineages.setdefault(task_id, lineage_of(task_id, known))

    @property
    def used_ids(self) -> frozenset[str]:
        """Every id of any plan so far."""
        return frozenset(self._lineages)

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
