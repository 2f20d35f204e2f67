"""Several groups of a run counted as one, and differences and means of rates over the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from resilisim.evaluation.accumulate import GroupSums, RunSums, TaskVector
from resilisim.evaluation.summary import GroupSummary, summarise_group
from resilisim.statistics import (
    Estimate,
    FloatArray,
    clustered_proportion,
    cross_fitted_betas,
    t_quantile,
    without_variation,
)

PROMPT_SEPARATOR = ":"  # between a prompt type and the flaw that its plan was given
_VECTORS = ("count", "outcome", "partial", "optimum", "ceiling", "luck", "turns")


@dataclass(frozen=True, slots=True)
class Rate:
    """Sums per task whose ratio is a rate: successes and episodes, for instance.

    Attributes:
        numerators: Shape (num_tasks,).
        denominators: Shape (num_tasks,); 0 where a task has no episodes.
    """

    numerators: FloatArray
    denominators: FloatArray

    @property
    def value(self) -> float:
        """The rate, or NaN without episodes."""
        total = float(self.denominators.sum())
        return float(self.numerators.sum()) / total if total else math.nan


@dataclass(frozen=True, slots=True)
class Pool:
    """Groups counted as one.

    Attributes:
        group: Their sums together.
        summary: What these come to.
        success: Full successes per task.
        adjusted: The same with the luck taken out, as `luck_adjusted` does it; NaN for policies that try again.
    """

    group: GroupSums
    summary: GroupSummary
    success: Rate
    adjusted: Rate


def base_prompt(prompt_type: str) -> str:
    """Return the prompt type without the flaw that its plan was given."""
    return prompt_type.partition(PROMPT_SEPARATOR)[0]


def pool(sums: RunSums, groups: Sequence[GroupSums], prompt_type: str) -> Pool:
    """Count groups of one policy as one.

    Args:
        sums: The run's sums, which know the tasks.
        groups: At least one group.
        prompt_type: What the prompts of the groups are called together.
    """
    num_tasks = len(sums.tasks)
    merged = _merged(groups, prompt_type, num_tasks)
    count, outcome = merged.count.to_array(num_tasks), merged.outcome.to_array(num_tasks)
    folds = np.array([task.fold for task in sums.tasks], dtype=np.int64)
    betas = np.array(cross_fitted_betas(merged.folds))[folds]  # (num_tasks,)
    none = math.nan if merged.tries_again else 0.0
    adjusted = outcome - betas * merged.luck.to_array(num_tasks) + none
    return Pool(merged, summarise_group(sums, merged), Rate(outcome, count), Rate(adjusted, count))


def combination(parts: Sequence[tuple[float, Rate]]) -> Estimate:
    """Estimate a sum of weighted rates over the same tasks, with tasks as the units that vary.

    With weights 1 and -1 it is a difference: what two rates have in common, the tasks and their luck, drops out of its
    error. The error is the linearised one: task g contributes the sum over parts of
    weight x (numerator_g - rate x denominator_g) / sum of denominators.

    Args:
        parts: Weights with rates, whose arrays are over the same tasks.

    Returns:
        The estimate; without a task all numbers are NaN, with one the interval is. Where nothing varies, because all
        tasks are alike, an error of 0 would claim a certainty that nobody has; then the interval says what so many
        tasks can rule out (`differences.without_variation`).
    """
    present = np.logical_or.reduce([rate.denominators > 0 for _, rate in parts])  # (num_tasks,)
    num_tasks = int(present.sum())
    num_episodes = int(sum(float(rate.denominators.sum()) for _, rate in parts))
    values = [rate.value for _, rate in parts]
    value = math.fsum(weight * rate for (weight, _), rate in zip(parts, values, strict=True))
    nothing = Estimate(value, math.nan, math.nan, math.nan, num_tasks, num_episodes)
    if num_tasks < 2 or math.isnan(value):
        return nothing
    shares = np.zeros(num_tasks, dtype=np.float64)
    for (weight, rate), own in zip(parts, values, strict=True):
        numerators, denominators = rate.numerators[present], rate.denominators[present]
        shares += weight * (numerators - own * denominators) / float(denominators.sum())
    error = math.sqrt(num_tasks / (num_tasks - 1) * float(shares @ shares))
    if error < 1e-12:
        low, high = without_variation(value, num_tasks)[0]
        return Estimate(value, error, low, high, num_tasks, num_episodes)
    half_width = t_quantile(num_tasks) * error
    return Estimate(value, error, value - half_width, value + half_width, num_tasks, num_episodes)


def mean_of(rates: Sequence[Rate]) -> Estimate:
    """Return the plain mean of rates over the same tasks, each counting the same."""
    estimate = combination([(1.0 / len(rates), rate) for rate in rates])
    if math.isnan(estimate.low):
        return estimate
    return replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, 1.0))


def difference(first: Rate, second: Rate) -> Estimate:
    """Return the first rate minus the second, over the tasks that have episodes in both."""
    common = (first.denominators > 0) & (second.denominators > 0)
    parts = [
        Rate(np.where(common, rate.numerators, 0.0), np.where(common, rate.denominators, 0.0))
        for rate in (first, second)
    ]
    return combination([(1.0, parts[0]), (-1.0, parts[1])])


def proportion(rate: Rate) -> Estimate:
    """Return a rate of episodes with its interval, over the tasks that have any."""
    present = rate.denominators > 0
    return clustered_proportion(rate.numerators[present], rate.denominators[present])


def level_rates(group: GroupSums, num_tasks: int) -> tuple[Rate, Rate, Rate]:
    """Return the rates of full, partial and no success of a group."""
    count = group.count.to_array(num_tasks)
    full, partial = group.outcome.to_array(num_tasks), group.partial.to_array(num_tasks)
    return Rate(full, count), Rate(partial, count), Rate(count - full - partial, count)


def _merged(groups: Sequence[GroupSums], prompt_type: str, num_tasks: int) -> GroupSums:
    first = groups[0]
    merged = GroupSums(first.policy, prompt_type, False, first.planner)
    merged.architecture, merged.model = first.architecture, first.model
    for group in groups:
        for name in _VECTORS:
            _add(getattr(merged, name), getattr(group, name), num_tasks)
        for label, vector in group.losses.items():
            _add(merged.losses.setdefault(label, TaskVector()), vector, num_tasks)
        merged.folds = [mine + its for mine, its in zip(merged.folds, group.folds, strict=True)]
        merged.ended_by.update(group.ended_by)
        merged.privileged = merged.privileged or group.privileged
        merged.tries_again = merged.tries_again or group.tries_again
        merged.optimum_gap = max(merged.optimum_gap, group.optimum_gap)
        merged.num_after_search += group.num_after_search
        merged.num_without_ceiling += group.num_without_ceiling
    return merged


def _add(total: TaskVector, vector: TaskVector, num_tasks: int) -> None:
    values = vector.to_array(num_tasks)
    for task in np.flatnonzero(values).tolist():
        total.add(task, float(values[task]))
