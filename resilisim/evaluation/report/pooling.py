"""Several groups of a run counted as one, and differences and means of rates over the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.evaluation.table.summary import GroupSummary, summarise_group
from resilisim.statistics import (
    Estimate,
    FloatArray,
    clustered_proportion,
    cross_fitted_betas,
    t_quantile,
    without_variation,
)

PROMPT_SEPARATOR = ":"  # between a prompt type and the flaw that its plan was given


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
        group: Their table of sums.
        summary: What these come to.
        success: Full successes per task.
        adjusted: The same with the luck taken out, as `luck_adjusted` does it; NaN for policies that try again.
    """

    group: EpisodeTable
    summary: GroupSummary
    success: Rate
    adjusted: Rate


def base_prompt(prompt_type: str) -> str:
    """Return the prompt type without the flaw that its plan was given."""
    return prompt_type.partition(PROMPT_SEPARATOR)[0]


def pool(group: EpisodeTable, prompt_type: str) -> Pool:
    """Count the episodes of one policy as one group.

    Args:
        group: Their table of sums (`EpisodeTable.group`, `EpisodeTable.flawed`).
        prompt_type: What their prompts are called together.
    """
    count, outcome = group.by_task(group.count), group.by_task(group.outcome)
    betas = np.array(cross_fitted_betas(group.folds))[group.task_folds]  # (num_tasks,)
    none = math.nan if group.tries_again.any() else 0.0
    adjusted = outcome - betas * group.by_task(group.luck) + none
    summary = summarise_group(group, prompt_type=prompt_type)
    return Pool(group, summary, Rate(outcome, count), Rate(adjusted, count))


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


def level_rates(group: EpisodeTable) -> tuple[Rate, Rate, Rate]:
    """Return the rates of full, partial and no success of a group."""
    count, full, partial = (group.by_task(values) for values in (group.count, group.outcome, group.partial))
    return Rate(full, count), Rate(partial, count), Rate(count - full - partial, count)
