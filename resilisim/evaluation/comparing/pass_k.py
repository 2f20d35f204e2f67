"""pass@k (some of k tries succeeds) and pass^k (all k tries succeed), without bias, clustered by task.

A try is an episode of the task with another seed. With c successes in n episodes of a task, the share of all choices of
k episodes without a success is C(n - c, k) / C(n, k) (Chen et al. 2021), that of choices with nothing but successes is
C(c, k) / C(n, k) (Yao et al. 2024). Both are unbiased for any n >= k, which (c / n)^k and 1 - (1 - c / n)^k are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError
from resilisim.evaluation.comparing.episode_table import EpisodeTable
from resilisim.evaluation.statistics import CONFIDENCE_LEVEL, Estimate, FloatArray, clustered_proportion

Counts = Sequence[int] | Sequence[float] | NDArray[Any]


def pass_at_k_by_task(successes: Counts, episodes: Counts, k: int) -> FloatArray:
    """Return for each task the chance that at least one of k episodes succeeds; NaN with fewer than k episodes.

    Args:
        successes: c, full successes per task; shape (num_tasks,).
        episodes: n, episodes per task; shape (num_tasks,).
        k: Number of tries.

    Raises:
        InvalidInputError: k is below 1, or a task has more successes than episodes.
    """
    won, tried = _counts(successes, episodes, k)
    return 1.0 - _share_of_choices(tried - won, tried, k)


def pass_hat_k_by_task(successes: Counts, episodes: Counts, k: int) -> FloatArray:
    """Return for each task the chance that all of k episodes succeed; NaN with fewer than k episodes.

    Args:
        successes: c, full successes per task; shape (num_tasks,).
        episodes: n, episodes per task; shape (num_tasks,).
        k: Number of tries.

    Raises:
        InvalidInputError: k is below 1, or a task has more successes than episodes.
    """
    won, tried = _counts(successes, episodes, k)
    return _share_of_choices(won, tried, k)


def pass_at_k(successes: Counts, episodes: Counts, k: int, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Estimate pass@k: the mean over tasks of the chance that at least one of k episodes succeeds.

    Tasks with fewer than k episodes say nothing about it and are left out; `num_clusters` and `num_episodes` of the
    result count the others. The interval is that of `clustered_proportion` over tasks, and NaN with fewer than two of
    them unless all agree.

    Args:
        successes: Full successes per task; shape (num_tasks,).
        episodes: Episodes per task; shape (num_tasks,).
        k: Number of tries.
        level: Confidence level of the interval.

    Raises:
        InvalidInputError: k is below 1, or a task has more successes than episodes.
    """
    return _mean_over_tasks(pass_at_k_by_task(successes, episodes, k), episodes, level)


def pass_hat_k(successes: Counts, episodes: Counts, k: int, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Estimate pass^k: the mean over tasks of the chance that all of k episodes succeed; see `pass_at_k`.

    Args:
        successes: Full successes per task; shape (num_tasks,).
        episodes: Episodes per task; shape (num_tasks,).
        k: Number of tries.
        level: Confidence level of the interval.

    Raises:
        InvalidInputError: k is below 1, or a task has more successes than episodes.
    """
    return _mean_over_tasks(pass_hat_k_by_task(successes, episodes, k), episodes, level)


def task_counts(table: EpisodeTable) -> tuple[FloatArray, FloatArray]:
    """Return successes and episodes of each task of a table that has any; shapes (num_tasks,)."""
    episodes = np.bincount(table.task, minlength=len(table.tasks)).astype(np.float64)
    successes = np.bincount(table.task, weights=table.outcome, minlength=len(table.tasks)).astype(np.float64)
    present = episodes > 0
    return successes[present], episodes[present]


def _counts(successes: Counts, episodes: Counts, k: int) -> tuple[FloatArray, FloatArray]:
    if k < 1:
        raise InvalidInputError(f"k is {k}: expected at least 1")
    won, tried = np.asarray(successes, dtype=np.float64), np.asarray(episodes, dtype=np.float64)
    wrong = (won < 0) | (won > tried)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise InvalidInputError(
            f"{won[place]:g} successes in {tried[place]:g} episodes: expected 0 to {tried[place]:g}"
        )
    return won, tried


def _share_of_choices(good: FloatArray, total: FloatArray, k: int) -> FloatArray:
    """Return C(good, k) / C(total, k) by task, as a product that cannot overflow; NaN where total < k."""
    shares = np.ones_like(total)
    for drawn in range(k):
        left = np.maximum(total - drawn, 1.0)
        shares *= np.maximum(good - drawn, 0.0) / left
    return np.where(total >= k, shares, math.nan)


def _mean_over_tasks(by_task: FloatArray, episodes: Counts, level: float) -> Estimate:
    known = ~np.isnan(by_task)
    num_episodes = int(np.asarray(episodes, dtype=np.float64)[known].sum())
    values = by_task[known]
    if len(values) == 0:
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0, num_episodes)
    estimate = clustered_proportion(values, np.ones_like(values), level)
    return Estimate(
        estimate.value, estimate.standard_error, estimate.low, estimate.high, estimate.num_clusters, num_episodes
    )
