"""What the noise of a difference is made of, and how many episodes it takes to see one, from a pilot."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from resilisim.errors import InvalidInputError, check_number, count_of
from resilisim.statistics.comparison import (
    INDEPENDENT,
    NO_LUCK_LEFT,
    PAIRED,
    PAIRED_LUCK_ADJUSTED,
    Comparison,
    Pairs,
)
from resilisim.statistics.estimates import ROUNDING, FloatArray, finite_or_none, t_quantile
from resilisim.statistics.luck_adjustment import fit_beta, moments_of

# The usual practice: both policies on the same tasks, each with luck of its own. No method of analysis, a way to play.
SAME_TASKS = "same_tasks_independent_luck"

SEEDS = (1, 2, 4, 8)  # seeds per task for which sample sizes are given
MOST_TASKS = 2**30
MOST_SPREAD = 2.0  # upper end of the episodes needed by their lower end, from which on a pilot is called small
_PLAIN_T = 2_000  # with more tasks the normal distribution gives the same to three digits


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Variance of what one pair of episodes adds to a difference: tasks that differ, and luck within a task.

    More tasks make both parts smaller, more seeds only the second. The parts are those of a one-way analysis of
    variance with random tasks (Searle, Casella and McCulloch 1992), for any number of episodes per task.
    """

    between: float  # part by which tasks differ; NaN if every task of the pilot has one pair only
    within: float  # part by which episodes of one task differ; NaN likewise
    total: float  # both together: the variance with one seed per task
    # Standard error of the variance of a task's mean, divided by that variance; NaN below two tasks
    relative_error: float
    num_tasks: int  # tasks of the pilot

    def of_task_mean(self, num_seeds: float) -> float:
        """Return the variance of the mean over that many seeds of a task; NaN where the parts cannot be told apart."""
        return self.total if num_seeds == 1 else self.between + self.within / num_seeds

    def scaled(self, factor: float) -> VarianceParts:
        """Return the parts times a factor."""
        return replace(self, between=self.between * factor, within=self.within * factor, total=self.total * factor)


def parts_of(values: FloatArray, pairs: Pairs) -> VarianceParts:
    """Split the variance of one number per pair, shape (num_pairs,)."""
    counts = pairs.task_counts  # (num_tasks,)
    num_pairs, num_tasks = len(pairs), pairs.num_tasks
    if num_tasks < 2:
        return VarianceParts(math.nan, math.nan, math.nan, math.nan, num_tasks)
    means = pairs.task_sums(values) / counts
    around = means - float(values.mean())
    among = float(counts @ around**2)
    spread = _relative_error(means)
    if num_pairs == num_tasks:
        return VarianceParts(math.nan, math.nan, among / (num_tasks - 1), spread, num_tasks)
    inside = float(np.sum((values - means[pairs.task]) ** 2))
    mean_among, mean_inside = among / (num_tasks - 1), inside / (num_pairs - num_tasks)
    usual = (num_pairs - float(counts @ counts) / num_pairs) / (num_tasks - 1)  # pairs of a task, were all alike
    between, within = (mean_among - mean_inside) / usual, mean_inside
    if between < 0.0:  # tasks differ less than luck alone would make them: then luck is all there is
        between, within = 0.0, (among + inside) / (num_pairs - 1)
    return VarianceParts(between, within, between + within, spread, num_tasks)


def variance_parts(comparison: Comparison) -> dict[str, VarianceParts]:
    """Return the parts under each method, and under the usual practice (`SAME_TASKS`), of which no record exists."""
    pairs = comparison.pairs
    a, b = parts_of(pairs.outcome_a, pairs), parts_of(pairs.outcome_b, pairs)
    paired = parts_of(pairs.outcome_a - pairs.outcome_b, pairs)
    error = max(a.relative_error, b.relative_error)  # cautious: as if both were off to the same side
    apart = VarianceParts(a.between + b.between, a.within + b.within, a.total + b.total, error, a.num_tasks)
    parts = {INDEPENDENT: apart, SAME_TASKS: _same_tasks(comparison, apart, paired), PAIRED: paired}
    if comparison.terms is not None:
        parts[PAIRED_LUCK_ADJUSTED] = parts_of(comparison.terms, pairs)
    return parts


def independent_luck_episodes(comparison: Comparison) -> float:
    """Estimate how many pairs on independent luck, with as many seeds per task, would give as short an interval.

    As short as the best method's; NaN where it cannot be told, or where both were explored.
    """
    best, pairs = comparison.best, comparison.pairs
    if pairs.is_exact:
        return math.nan
    if not (best.standard_error > 0.0 and comparison.differences[PAIRED].standard_error > 0.0):
        return math.nan  # the interval does not come from the standard error then
    num_seeds = len(pairs) / pairs.num_tasks
    needed = variance_parts(comparison)[SAME_TASKS].of_task_mean(num_seeds)
    return needed / best.standard_error**2 * num_seeds


def _same_tasks(comparison: Comparison, apart: VarianceParts, paired: VarianceParts) -> VarianceParts:
    """Return the parts where tasks differ as they do in pairs, while the lucks of both policies add up.

    With one seed per task the parts are unknown, and how much the common luck has taken away is estimated by the lucks:
    2 Cov(A, B) within a task, the covariance being E[y_A beta_B L_B] and E[y_B beta_A L_A].
    """
    if not math.isnan(paired.between):
        total = paired.between + apart.within
        return VarianceParts(paired.between, apart.within, total, apart.relative_error, apart.num_tasks)
    total = math.nan
    if not comparison.pairs.tries_again:
        total = min(max(paired.total + 2.0 * _common_luck(comparison.pairs), paired.total), apart.total)
    return VarianceParts(math.nan, math.nan, total, apart.relative_error, apart.num_tasks)


def _common_luck(pairs: Pairs) -> float:
    """Return the covariance of both outcomes within a task, by how each goes with the other's luck."""

    def beta(outcome: FloatArray, luck: FloatArray) -> float:
        return fit_beta(moments_of(outcome, pairs.optimum, luck))

    with_b = beta(pairs.outcome_b, pairs.luck_b) * float(pairs.outcome_a @ pairs.luck_b)
    with_a = beta(pairs.outcome_a, pairs.luck_a) * float(pairs.outcome_b @ pairs.luck_a)
    return (with_a + with_b) / (2.0 * len(pairs))


def _relative_error(means: FloatArray) -> float:
    """Return the standard error of the variance of numbers divided by it, from their fourth moment."""
    around = means - means.mean()
    variance, fourth = float(np.mean(around**2)), float(np.mean(around**4))
    if variance <= 0.0:
        return math.nan
    return math.sqrt(max(fourth / variance**2 - 1.0, 0.0) / len(means))


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How many episodes of each policy one method needs."""

    method: str
    num_seeds: int
    num_tasks: int | None  # tasks; None where the pilot cannot say
    episodes: int | None  # episodes of each policy: tasks times seeds
    # Episodes if the pilot's variance was as much too large as its own 95% interval allows; None if unknown
    low: int | None
    high: int | None  # episodes if it was as much too small

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "num_seeds": self.num_seeds,
            "num_tasks": self.num_tasks,
            "episodes": self.episodes,
            "episodes_interval": None if self.low is None or self.high is None else [self.low, self.high],
        }


@dataclass(frozen=True, slots=True)
class PowerPlan:
    """Sample sizes for a difference."""

    difference: float  # the difference to be seen, as a share of episodes
    power: float  # chance to see it
    level: float  # chance to see one where there is none
    parts: dict[str, VarianceParts]  # variance of a pair's term under each method
    sizes: tuple[SampleSize, ...]  # sample sizes, by method and number of seeds
    pilot: Comparison  # the comparison they rest on
    note: str | None = None  # what to know about the pilot, or None

    def size(self, method: str, num_seeds: int) -> SampleSize:
        """Return the sample size under one method with that many seeds per task."""
        return next(size for size in self.sizes if (size.method, size.num_seeds) == (method, num_seeds))

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        methods = {
            method: {
                "variance_between_tasks": finite_or_none(parts.between),
                "variance_within_tasks": finite_or_none(parts.within),
                "variance": finite_or_none(parts.total),
                "sizes": [size.to_mapping() for size in self.sizes if size.method == method],
            }
            for method, parts in self.parts.items()
        }
        return {
            "difference": self.difference,
            "power": self.power,
            "level": self.level,
            "pilot": {
                "a": self.pilot.label_a,
                "b": self.pilot.label_b,
                "prompt": self.pilot.prompt,
                "episodes": self.pilot.episodes,
                "num_tasks": self.pilot.pairs.num_tasks,
            },
            "note": self.note,
            "methods": methods,
        }


def plan_sample(
    pilot: Comparison, difference: float, power: float = 0.8, level: float = 0.05, seeds: Sequence[int] = SEEDS
) -> PowerPlan:
    """Return how many episodes each method needs to see a difference, from the variances in a pilot.

    Args:
        pilot: A comparison of two policies like those to be compared.
        difference: The difference to be seen, as a share of episodes (0.03 is 3 points).
        power: The chance to see it.
        level: The chance to see one where there is none.
        seeds: Numbers of seeds per task to plan for.

    Raises:
        InvalidInputError: A number is out of range, the pilot has fewer than two tasks, or both policies were explored.
    """
    for name, value in (("difference", difference), ("power", power), ("level", level)):
        check_number(name, value, above=0.0, below=1.0)
    if power <= level:
        raise InvalidInputError(f"power is {power:g}: expected more than the level, {level:g}")
    if pilot.pairs.is_exact:
        raise InvalidInputError(f"{NO_LUCK_LEFT}, and no number of episodes would make it surer; explore more tasks")
    if pilot.pairs.num_tasks < 2:
        raise InvalidInputError("the pilot has one task: expected at least two, of which variances can be told")
    parts = variance_parts(pilot)
    factor = _alike(parts[PAIRED], difference)
    for method in (PAIRED, PAIRED_LUCK_ADJUSTED):
        if method in parts:
            parts[method] = parts[method].scaled(factor)
    sizes = tuple(
        _size(method, part, num_seeds, difference, power, level)
        for method, part in parts.items()
        for num_seeds in seeds
    )
    notes = []
    if factor > 1.0:
        notes.append(
            f"the pilot's policies are more alike than policies {100.0 * difference:g} points apart can be: the "
            f"variances of both paired methods were multiplied by {factor:.1f}, a rough guess"
        )
    best = next(size for size in reversed(sizes) if size.num_seeds == seeds[0])
    if best.low is not None and best.high is not None and best.high > MOST_SPREAD * best.low:
        notes.append(
            f"a pilot of {count_of(pilot.pairs.num_tasks, 'task')} leaves {best.low:,} to {best.high:,} episodes "
            "possible where the best method is used: plan for the upper end, or play a larger pilot"
        )
    return PowerPlan(difference, power, level, parts, sizes, pilot, "; ".join(notes) or None)


def power_of_test(difference: float, variance: float, num_tasks: int, level: float = 0.05) -> float:
    """Return the chance that a t test over tasks finds a difference.

    Args:
        difference: The true difference.
        variance: Variance of a task's mean term.
        num_tasks: Number of tasks, at least two.
        level: Level of the two-sided test.
    """
    from scipy.special import nctdtr, ndtr

    centre = difference / math.sqrt(variance / num_tasks)
    bound = t_quantile(num_tasks, 1.0 - level)
    if num_tasks > _PLAIN_T:
        return float(ndtr(centre - bound) + ndtr(-centre - bound))
    chance = float(1.0 - nctdtr(num_tasks - 1, centre, bound) + nctdtr(num_tasks - 1, centre, -bound))
    return chance if chance == chance else float(ndtr(centre - bound) + ndtr(-centre - bound))  # far out it gives NaN


def tasks_needed(difference: float, variance: float, power: float = 0.8, level: float = 0.05) -> int:
    """Return the smallest number of tasks with which a t test over tasks has that power.

    Args:
        difference: The true difference.
        variance: Variance of a task's mean term, above 0.
        power: The chance to find it.
        level: Level of the two-sided test.
    """
    return 2 + bisect.bisect_left(
        range(2, MOST_TASKS), power, key=lambda num_tasks: power_of_test(difference, variance, num_tasks, level)
    )


def _alike(paired: VarianceParts, difference: float) -> float:
    """Return by what factor pairs must vary more than in the pilot, at least 1; 0 where no task differs from others.

    Outcomes whose rates are d apart differ in at least a share d of all pairs, so their variance is d - d^2 or more. If
    the pilot's is smaller, its policies act alike too often, and luck adjustment is taken to save the same share.
    """
    least = difference * (1.0 - difference)
    return max(least / paired.total, 1.0) if paired.total > ROUNDING else 0.0


def _size(
    method: str, parts: VarianceParts, num_seeds: int, difference: float, power: float, level: float
) -> SampleSize:
    variance = parts.of_task_mean(num_seeds)
    if not variance > ROUNDING:  # unknown, or a pilot in which nothing varied: it cannot say how much would
        return SampleSize(method, num_seeds, None, None, None, None)
    num_tasks = tasks_needed(difference, variance, power, level)
    ends: list[int | None] = [None, None]
    if not math.isnan(parts.relative_error):
        factor = math.exp(t_quantile(parts.num_tasks) * parts.relative_error)
        ends = [num_seeds * tasks_needed(difference, v, power, level) for v in (variance / factor, variance * factor)]
    return SampleSize(method, num_seeds, num_tasks, num_tasks * num_seeds, ends[0], ends[1])
