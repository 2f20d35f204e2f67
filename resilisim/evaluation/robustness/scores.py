"""Scores per task of the runs of a profile, and what is estimated from two or more of them.

All runs of a profile have the same tasks, seeds and luck: the uniform of an execution is a function of its episode,
tool and count, whatever the reliability, the turns or the prompt. So two settings are compared task by task, and what
their episodes share cancels out. Tasks are the units that vary (`statistics.clustered_ratio`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.statistics import (
    CONFIDENCE_LEVEL,
    ROUNDING,
    Estimate,
    FloatArray,
    clopper_pearson,
    clustered_ratio,
    cross_fitted_betas,
)


@dataclass(frozen=True, slots=True, eq=False)
class TaskScores:
    """Sums over the episodes of one policy under one prompt in one run, for each task of the profile.

    Attributes:
        count: Episodes; shape (num_tasks,), as all others.
        outcome: Full successes.
        adjusted: Sum of outcome - beta luck, beta cross-fitted over folds of tasks; NaN for agents that try again in
            fresh episodes, whose last try was not drawn like a first one.
    """

    count: FloatArray
    outcome: FloatArray
    adjusted: FloatArray

    @property
    def is_adjusted(self) -> bool:
        """Whether there are luck-adjusted scores."""
        return not bool(np.isnan(self.adjusted).any())


@dataclass(frozen=True, slots=True)
class Twofold:
    """One quantity estimated from raw outcomes, and from outcomes with the luck of the draws taken out."""

    raw: Estimate
    adjusted: Estimate

    @property
    def better(self) -> Estimate:
        """The luck-adjusted estimate where there is one, else the raw one."""
        return self.raw if math.isnan(self.adjusted.value) else self.adjusted

    def to_mapping(self) -> dict[str, Any]:
        """Return both as JSON values."""
        return {"raw": self.raw.to_mapping(), "luck_adjusted": self.adjusted.to_mapping()}


def task_scores(group: EpisodeTable, place_of: Mapping[str, int]) -> TaskScores:
    """Return the scores of one policy under one prompt in one run (`EpisodeTable.group`).

    Args:
        group: Its table of sums.
        place_of: Place of each task of the profile, by its id.
    """
    places = np.array([place_of[task.instance_id] for task in group.tasks], dtype=np.int64)  # (num_tasks,) of the run
    betas = np.array(cross_fitted_betas(group.folds))[group.task_folds]
    count, outcome, luck = (group.by_task(values) for values in (group.count, group.outcome, group.luck))
    adjusted = np.full(len(places), np.nan) if group.tries_again.any() else outcome - betas * luck

    def at_places(values: FloatArray) -> FloatArray:
        result = np.zeros(len(place_of))
        result[places] = values
        return result

    return TaskScores(at_places(count), at_places(outcome), at_places(adjusted))


def mean_of_changes(pairs: Sequence[tuple[TaskScores, TaskScores]], chosen: Sequence[NDArray[np.bool_]]) -> Twofold:
    """Estimate the mean difference over the episodes of several pairs of settings.

    Args:
        pairs: Scores here and under the standard setting.
        chosen: For each pair which tasks count, shape (num_tasks,).
    """
    raw, adjusted, count = (np.zeros(len(chosen[0])) for _ in range(3))
    for (here, standard), tasks in zip(pairs, chosen, strict=True):
        common = tasks & finished_in_both(here, standard)
        raw += np.where(common, here.outcome - standard.outcome, 0.0)
        adjusted += np.where(common, here.adjusted - standard.adjusted, 0.0)
        count += np.where(common, here.count, 0.0)
    change = twofold_ratio(raw, adjusted, count, int(count.sum()))
    return Twofold(_within(change.raw, -1.0, 1.0), _within(change.adjusted, -1.0, 1.0))


def finished_in_both(here: TaskScores, standard: TaskScores) -> NDArray[np.bool_]:
    """Return which tasks have the same number of episodes in both, shape (num_tasks,)."""
    common: NDArray[np.bool_] = (here.count > 0) & (here.count == standard.count)
    return common


def twofold_ratio(
    raw: FloatArray, adjusted: FloatArray, weights: FloatArray, num_episodes: int, scale: float = 1.0
) -> Twofold:
    """Estimate sum(raw) / sum(weights) and the same of the adjusted scores, tasks being the units that vary.

    Where the raw ratio does not vary at all (no episode succeeded, none differs), its error is 0 and tells nothing;
    both intervals then reach at least as far as that of a rate of 0 among as many units as there are tasks.

    Args:
        raw: Numerator of each task, shape (num_tasks,).
        adjusted: The same from luck-adjusted scores; NaN anywhere that counts gives NaN.
        weights: Denominator of each task; those with 0 do not count.
        num_episodes: Episodes behind it.
        scale: What a success rate of 1 is in the units of the ratio.
    """
    present = weights != 0.0
    plain = clustered_ratio(raw[present], weights[present], num_episodes)
    fair = clustered_ratio(adjusted[present], weights[present], num_episodes)
    if plain.standard_error <= ROUNDING:
        reach = clopper_pearson(0.0, float(plain.num_clusters), CONFIDENCE_LEVEL)[1] * scale
        plain, fair = _reaching(plain, reach), _reaching(fair, reach)
    return Twofold(plain, fair)


def _reaching(estimate: Estimate, reach: float) -> Estimate:
    low, high = estimate.value - reach, estimate.value + reach
    return replace(estimate, low=min(estimate.low, low), high=max(estimate.high, high))


def trapezoid_weights(values: Sequence[float]) -> FloatArray:
    """Return the weights of the trapezoid rule over ascending places, shape (num_values,), with the sum 1."""
    if len(values) == 1:
        return np.ones(1)
    widths = np.diff(np.asarray(values, dtype=np.float64))
    weights: FloatArray = np.zeros(len(values))
    weights[:-1] += widths / 2.0
    weights[1:] += widths / 2.0
    weights /= weights.sum()
    return weights


def share_of_area(scores: Sequence[TaskScores], ceilings: Sequence[FloatArray], values: Sequence[float]) -> Twofold:
    """Estimate the mean success along an axis as a share of the mean ceiling along it (trapezoid rule).

    Every task that is finished at all points counts once, however many episodes it has.

    Args:
        scores: Scores at each point.
        ceilings: Ceiling of each task at each point, shape (num_tasks,) each.
        values: The points, ascending.
    """
    finished = np.logical_and.reduce([here.count > 0 for here in scores])
    weights = trapezoid_weights(values)
    raw, adjusted, area = (np.zeros(len(finished)) for _ in range(3))
    for here, ceiling, weight in zip(scores, ceilings, weights, strict=True):
        count = np.maximum(here.count, 1.0)
        raw += weight * here.outcome / count
        adjusted += weight * here.adjusted / count
        area += weight * ceiling
    raw, adjusted, area = (np.where(finished, part, 0.0) for part in (raw, adjusted, area))
    episodes = int(sum(here.count[finished].sum() for here in scores))
    total = float(area.sum())
    scale = int(finished.sum()) / total if total else math.nan
    share = twofold_ratio(raw, adjusted, area, episodes, scale)
    return Twofold(_within(share.raw, 0.0, math.inf), _within(share.adjusted, 0.0, math.inf))


def recovered_share(
    here: TaskScores, obey: FloatArray, deviate: FloatArray, chosen: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the parts of how much a policy gets back of what obeying a flawed plan gives away.

    The share is sum(outcome - obey) / sum(deviate - obey): 0 for an agent that obeys, 1 for the optimum; below 0 it
    does worse than by obeying.

    Args:
        here: Its scores.
        obey: Chance of success by obeying; shape (num_tasks,), as all others.
        deviate: V*.
        chosen: Which tasks count.

    Returns:
        Raw numerators, luck-adjusted numerators and denominators, shape (num_tasks,) each.
    """
    expected, price = here.count * obey, here.count * (deviate - obey)
    parts = (here.outcome - expected, here.adjusted - expected, price)
    raw, adjusted, weights = (np.where(chosen, part, 0.0) for part in parts)
    return raw, adjusted, weights


def _within(estimate: Estimate, least: float, most: float) -> Estimate:
    """Cut off what an interval has where the quantity cannot be, but never the value itself."""
    if math.isnan(estimate.low):
        return estimate
    low = min(max(estimate.low, least), estimate.value)
    return replace(estimate, low=low, high=max(min(estimate.high, most), estimate.value))
