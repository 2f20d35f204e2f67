"""Replicated experiments: many samples of tasks and seeds from a small world whose truth is known exactly.

A world is a contest, taken as all there is: its tasks are all tasks, and its seeds all luck. An experiment draws tasks
from it, and seeds for each of them, always with replacement; so its tasks are independent, and what the estimators
should find, the mean over the world, is known without error. Luck is taken relative to its mean over the seeds of the
same task, which makes it mean zero in the world as it is in the benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.evaluation.table.episodes import COLUMNS, NO_FLAW, EpisodeTable, GroupFacts, TaskFacts
from resilisim.evaluation.table.summary import GroupSummary, summarise_group
from resilisim.statistics import Pairs, compare_pairs
from resilisim.statistics.comparison import Comparison
from resilisim.statistics.luck_adjustment import NUM_FOLDS, NUM_MORE, fold_of, fold_of_episodes, moments_of
from verification.contest import Contest

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class World:
    """All tasks and all luck.

    Attributes:
        outcome: (num_contestants, num_tasks, num_seeds) 1 for a full success, else 0.
        luck: Same shape, with mean zero on each task.
        more: (num_contestants, num_tasks, num_seeds, NUM_MORE) other sums with mean zero on each task.
        optimum: (num_tasks,) V* of the start.
    """

    outcome: FloatArray
    luck: FloatArray
    more: FloatArray
    optimum: FloatArray

    def success(self, contestant: int) -> float:
        """Return the true success rate of a contestant."""
        return float(self.outcome[contestant].mean())


def world_of(contest: Contest) -> World:
    """Return the world that a contest is."""
    luck = contest.luck - contest.luck.mean(axis=2, keepdims=True)
    return World(contest.outcome, luck[..., 0], luck[..., 1:], contest.optimum)


@dataclass(frozen=True, slots=True)
class Sample:
    """The episodes of an experiment.

    Attributes:
        task: (num_tasks, num_seeds) place of each episode's task in the world, the same within a row.
        seed: (num_tasks, num_seeds) place of its seed.
    """

    task: IntArray
    seed: IntArray


class Experiments:
    """Draws experiments of one size from a world.

    Args:
        world: The world.
        num_tasks: Tasks of an experiment.
        num_seeds: Episodes of each contestant on each task.
        generator: Where chance comes from.
    """

    def __init__(self, world: World, num_tasks: int, num_seeds: int, generator: np.random.Generator) -> None:
        self.world = world
        self.generator = generator
        self._shape = (num_tasks, num_seeds)
        # Tasks and seeds that are drawn twice are two to the estimators, so all get names and numbers of their own: a
        # seed that counted as one with its double would make intervals over seeds too wide.
        self.seeds = np.tile(np.arange(num_seeds, dtype=np.int64), (num_tasks, 1))
        self._names = tuple(f"task {place}" for place in range(num_tasks))
        by_task = np.array([fold_of(name) for name in self._names], dtype=np.int64)
        self.folds = fold_of_episodes(by_task[:, None], self.seeds)  # (num_tasks, num_seeds)
        self._tasks = tuple(TaskFacts(name, "any", "any", (), fold_of(name)) for name in self._names)
        self._places = np.repeat(np.arange(num_tasks), num_seeds)

    def sample(self) -> Sample:
        """Return tasks and seeds of a new experiment."""
        _, all_tasks, all_seeds = self.world.outcome.shape
        task = np.repeat(self.generator.integers(all_tasks, size=(self._shape[0], 1)), self._shape[1], axis=1)
        return Sample(task, self.generator.integers(all_seeds, size=self._shape))

    def pairs(self, a: int, b: int, sample: Sample, sample_b: Sample | None = None) -> Pairs:
        """Return the episodes of two contestants.

        Args:
            a: Place of the one in the world.
            b: Place of the other.
            sample: Tasks and seeds.
            sample_b: Those of B; the same, and so the same luck, if omitted.
        """
        of_b = sample if sample_b is None else sample_b
        (outcome_a, luck_a), (outcome_b, luck_b) = self.episodes(a, sample), self.episodes(b, of_b)
        more = tuple(self.world.more[c, s.task, s.seed].reshape(-1, NUM_MORE) for c, s in ((a, sample), (b, of_b)))
        optimum = self.world.optimum[sample.task].ravel()
        return Pairs(
            tasks=self._names,
            task=self._places,
            seed=self.seeds.ravel(),
            outcome_a=outcome_a.ravel(),
            outcome_b=outcome_b.ravel(),
            luck_a=luck_a.ravel(),
            luck_b=luck_b.ravel(),
            optimum=optimum,
            ceiling_a=optimum,
            ceiling_b=optimum,
            tries_again=False,
            num_without_partner=(0, 0),
            more=(more[0], more[1]),
        )

    def swapped(self, pairs: Pairs, by_task: bool) -> Pairs:
        """Return pairs in which A and B changed places wherever a coin says so; then neither is better.

        Args:
            pairs: The episodes.
            by_task: Whether there is one coin for each task, not one for each episode: then each task has a better one.
        """
        num_tasks, num_seeds = self._shape
        coins = self.generator.integers(2, size=(num_tasks, 1 if by_task else num_seeds)).astype(bool)
        coin = np.broadcast_to(coins, self._shape).ravel()
        return replace(
            pairs,
            outcome_a=np.where(coin, pairs.outcome_b, pairs.outcome_a),
            outcome_b=np.where(coin, pairs.outcome_a, pairs.outcome_b),
            luck_a=np.where(coin, pairs.luck_b, pairs.luck_a),
            luck_b=np.where(coin, pairs.luck_a, pairs.luck_b),
            more=None if pairs.more is None else _swapped(*pairs.more, coin),
        )

    def episodes(self, contestant: int, sample: Sample) -> tuple[FloatArray, FloatArray]:
        """Return outcome and luck of a contestant; each of shape (num_tasks, num_seeds)."""
        outcome, luck = self.world.outcome[contestant], self.world.luck[contestant]
        return outcome[sample.task, sample.seed], luck[sample.task, sample.seed]

    def summary(self, contestant: int, sample: Sample, only: int | None = None) -> GroupSummary:
        """Return what the summary of a run says about a contestant.

        Args:
            contestant: Its place in the world.
            sample: Tasks and seeds.
            only: Place in the sample of the one task that the summary is of; what is taken off is fitted on all.
        """
        outcome, luck = self.episodes(contestant, sample)
        optimum, more = self.world.optimum[sample.task], self.world.more[contestant, sample.task, sample.seed]
        names, size = ("contestant", "any"), outcome.size
        columns: dict[str, Any] = dict.fromkeys(COLUMNS, np.zeros(size, dtype=np.int64))
        columns |= {"task": self._places, "seed": self.seeds.ravel(), "more": more.reshape(size, NUM_MORE)}
        columns |= dict.fromkeys(("count", "plays"), np.ones(size))
        columns |= {"outcome": outcome.ravel(), "luck": luck.ravel()}
        columns |= dict.fromkeys(("optimum", "ceiling"), optimum.ravel())
        return summarise_group(
            EpisodeTable(
                manifest={},
                policies=names[:1],
                prompts=names[1:],
                flaws=(NO_FLAW,),
                tasks=self._tasks,
                facts={names: GroupFacts(*names, planner=None)},
                moments={names: moments_of_folds(outcome, luck, optimum, self.folds, more)},
                losses={},
                ended_by={},
                **columns,
            ),
            None if only is None else np.arange(self._shape[0]) == only,
        )


def _swapped(a: FloatArray, b: FloatArray, coin: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    return np.where(coin[:, None], b, a), np.where(coin[:, None], a, b)


def compared(pairs: Pairs) -> Comparison:
    """Compare both sides by all methods."""
    return compare_pairs(pairs, "A", "B", "any")


def moments_of_folds(
    outcome: FloatArray, luck: FloatArray, optimum: FloatArray, folds: IntArray, more: FloatArray
) -> FloatArray:
    """Return the moments that weights are fitted on, one matrix for each fold.

    Args:
        outcome: (num_tasks, num_seeds) 1 for a full success, else 0.
        luck: Same shape, the sum of luck.
        optimum: Same shape, V* of the start.
        folds: Same shape, fold of each episode.
        more: (num_tasks, num_seeds, NUM_MORE) other sums with mean zero.
    """
    own = [folds == fold for fold in range(NUM_FOLDS)]
    return np.array([moments_of(outcome[here], optimum[here], luck[here], more[here]) for here in own])
