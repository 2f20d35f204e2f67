"""Two groups of episodes on common luck, matched by task and seed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError
from resilisim.evaluation.comparing.episode_table import EpisodeTable, IntArray
from resilisim.evaluation.statistics import FloatArray, fold_of

OPTIMUM_TOLERANCE = 1e-9  # V* is stored with all its digits, so only other machines' rounding may differ
NO_LUCK = "an agent that tries again in fresh episodes has no luck to be adjusted for"


@dataclass(frozen=True)
class Pairs:
    """Episodes of A and B with one task and one seed each, so on the same luck.

    Attributes:
        tasks: Ids of the tasks that have pairs.
        task: (num_pairs,) place of the task in `tasks`.
        seed: (num_pairs,) episode seed.
        outcome_a: (num_pairs,) 1.0 where A succeeded, else 0.0.
        outcome_b: (num_pairs,) the same of B.
        luck_a: (num_pairs,) luck of A.
        luck_b: (num_pairs,) luck of B.
        optimum: (num_pairs,) V* of the start, which is the same for both.
        ceiling_a: (num_pairs,) the ceiling that fits what A was told.
        ceiling_b: (num_pairs,) the same of B.
        tries_again: Whether either may try again in fresh episodes, so that luck means nothing.
        num_without_partner: Episodes of A and of B that the other has not played.
    """

    tasks: tuple[str, ...] = field(repr=False)
    task: IntArray = field(repr=False)
    seed: IntArray = field(repr=False)
    outcome_a: FloatArray = field(repr=False)
    outcome_b: FloatArray = field(repr=False)
    luck_a: FloatArray = field(repr=False)
    luck_b: FloatArray = field(repr=False)
    optimum: FloatArray = field(repr=False)
    ceiling_a: FloatArray = field(repr=False)
    ceiling_b: FloatArray = field(repr=False)
    tries_again: bool
    num_without_partner: tuple[int, int]

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.task)

    @property
    def num_tasks(self) -> int:
        """Number of tasks with pairs."""
        return len(self.tasks)

    @property
    def folds(self) -> IntArray:
        """Fold of each pair's task; shape (num_pairs,)."""
        by_task = np.array([fold_of(task) for task in self.tasks], dtype=np.int64)
        return by_task[self.task]

    def task_sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of one number per pair over the pairs of each task; shape (num_tasks,)."""
        return np.bincount(self.task, weights=values, minlength=self.num_tasks).astype(np.float64)

    @property
    def task_counts(self) -> FloatArray:
        """Return the number of pairs of each task; shape (num_tasks,)."""
        return np.bincount(self.task, minlength=self.num_tasks).astype(np.float64)


def match_episodes(a: EpisodeTable, b: EpisodeTable) -> Pairs:
    """Match the episodes of two groups by task and seed, in the order of task id and seed.

    Args:
        a: Episodes of one policy under one prompt type.
        b: Episodes of another policy, or of the same one under another prompt type, or of another run.

    Raises:
        InvalidInputError: They have no episode in common, a group holds an episode twice (several policies or prompt
            types in one table), tasks of one id are different tasks, or V* of a common episode differs, so that they
            were not played under one law.
    """
    names = sorted(set(a.tasks) & set(b.tasks))
    _refuse_other_tasks(a, b, names)
    places = {name: place for place, name in enumerate(names)}
    seeds = np.union1d(a.seed, b.seed)
    rows_a, keys_a = _keys(a, places, seeds)
    rows_b, keys_b = _keys(b, places, seeds)
    keys, first, second = np.intersect1d(keys_a, keys_b, assume_unique=True, return_indices=True)
    if len(keys) == 0:
        raise InvalidInputError("the two have no episode in common: expected at least one task with the same seed")
    rows_a, rows_b = rows_a[first], rows_b[second]
    task, seed = np.divmod(keys, len(seeds))
    apart = np.abs(a.optimum[rows_a] - b.optimum[rows_b]) > OPTIMUM_TOLERANCE
    if apart.any():
        place = int(np.argmax(apart))
        raise InvalidInputError(
            f"V* of {names[int(task[place])]} is {a.optimum[rows_a[place]]:.6f} in one and "
            f"{b.optimum[rows_b[place]]:.6f} in the other: they were not played under one law"
        )
    present, task = np.unique(task, return_inverse=True)
    return Pairs(
        tasks=tuple(names[place] for place in present),
        task=task.astype(np.int64),
        seed=seeds[seed],
        outcome_a=a.outcome[rows_a].astype(np.float64),
        outcome_b=b.outcome[rows_b].astype(np.float64),
        luck_a=a.luck[rows_a],
        luck_b=b.luck[rows_b],
        optimum=a.optimum[rows_a],
        ceiling_a=a.ceiling[rows_a],
        ceiling_b=b.ceiling[rows_b],
        tries_again=bool(a.tries_again[rows_a].any() or b.tries_again[rows_b].any()),
        num_without_partner=(len(a) - len(keys), len(b) - len(keys)),
    )


def _refuse_other_tasks(a: EpisodeTable, b: EpisodeTable, names: list[str]) -> None:
    meant_a, meant_b = (dict(zip(table.tasks, table.required_tools, strict=True)) for table in (a, b))
    for name in names:
        if meant_a[name] != meant_b[name]:
            told = " and ".join(", ".join(meant[name]) or "nothing" for meant in (meant_a, meant_b))
            raise InvalidInputError(
                f"task {name} is not the same in both, it requires {told}: expected tasks of one file"
            )


def _keys(table: EpisodeTable, places: dict[str, int], seeds: NDArray[np.int64]) -> tuple[IntArray, IntArray]:
    """Return the rows whose task is common, and one number for each row's task and seed."""
    numbers = np.array([places.get(name, -1) for name in table.tasks], dtype=np.int64)
    if len(table) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    task = numbers[table.task]
    rows = np.flatnonzero(task >= 0)
    keys = task[rows] * len(seeds) + np.searchsorted(seeds, table.seed[rows])
    values, counts = np.unique(keys, return_counts=True)
    if np.any(counts > 1):
        task_place, seed_place = divmod(int(values[np.argmax(counts > 1)]), len(seeds))
        name = next(name for name, place in places.items() if place == task_place)
        raise InvalidInputError(
            f"seed {seeds[seed_place]} of {name} stands twice on one side: expected one policy under one prompt type"
        )
    return rows, keys
