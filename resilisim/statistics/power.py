"""How many episodes it takes to see a difference, under each method, from a pilot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.statistics.comparison import Comparison, VarianceParts, variance_parts
from resilisim.statistics.differences import PAIRED, PAIRED_LUCK_ADJUSTED
from resilisim.statistics.estimates import ROUNDING, finite_or_none, t_quantile

SEEDS = (1, 2, 4, 8)  # seeds per task for which sample sizes are given
MOST_TASKS = 10**9
_PLAIN_T = 2_000  # with more tasks the normal distribution gives the same to three digits


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How many episodes of each policy one method needs.

    Attributes:
        method: The method.
        num_seeds: Seeds per task.
        num_tasks: Tasks; None where the pilot cannot say.
        episodes: Episodes of each policy: tasks times seeds.
        low: Episodes if the pilot's variance was as much too large as its own 95% interval allows; None if unknown.
        high: Episodes if it was as much too small.
    """

    method: str
    num_seeds: int
    num_tasks: int | None
    episodes: int | None
    low: int | None
    high: int | None

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
    """Sample sizes for a difference.

    Attributes:
        difference: The difference to be seen, as a share of episodes.
        power: Chance to see it.
        level: Chance to see one where there is none.
        parts: Variance of a pair's term under each method.
        sizes: Sample sizes, by method and number of seeds.
        pilot: The comparison they rest on.
        note: What to know about the pilot, or None.
    """

    difference: float
    power: float
    level: float
    parts: dict[str, VarianceParts]
    sizes: tuple[SampleSize, ...]
    pilot: Comparison
    note: str | None = None

    def size(self, method: str, num_seeds: int) -> SampleSize:
        """Return the sample size under one method with that many seeds per task."""
        return next(size for size in self.sizes if (size.method, size.num_seeds) == (method, num_seeds))

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        methods = {}
        for method, parts in self.parts.items():
            methods[method] = {
                "variance_between_tasks": finite_or_none(parts.between),
                "variance_within_tasks": finite_or_none(parts.within),
                "variance": finite_or_none(parts.total),
                "sizes": [size.to_mapping() for size in self.sizes if size.method == method],
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
    pilot: Comparison,
    difference: float,
    power: float = 0.8,
    level: float = 0.05,
    seeds: Sequence[int] = SEEDS,
) -> PowerPlan:
    """Return how many episodes each method needs to see a difference, from the variances in a pilot.

    Args:
        pilot: A comparison of two policies like those to be compared.
        difference: The difference to be seen, as a share of episodes (0.03 is 3 points).
        power: The chance to see it.
        level: The chance to see one where there is none.
        seeds: Numbers of seeds per task to plan for.

    Raises:
        InvalidInputError: A number is out of range, or the pilot has fewer than two tasks.
    """
    for name, value in (("difference", difference), ("power", power), ("level", level)):
        if not 0.0 < value < 1.0:
            raise InvalidInputError(f"{name} is {value:g}: expected a number above 0 and below 1")
    if power <= level:
        raise InvalidInputError(f"power is {power:g}: expected more than the level, {level:g}")
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
    note = None
    if factor > 1.0:
        note = (
            f"the pilot's policies are more alike than policies {100.0 * difference:g} points apart can be: the "
            f"variances of both paired methods were multiplied by {factor:.1f}, a rough guess"
        )
    return PowerPlan(difference, power, level, parts, sizes, pilot, note)


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
    low, high = 1, 2
    while high < MOST_TASKS and power_of_test(difference, variance, high, level) < power:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if power_of_test(difference, variance, middle, level) < power:
            low = middle
        else:
            high = middle
    return high


def _alike(paired: VarianceParts, difference: float) -> float:
    """Return by what factor pairs must vary more than in the pilot, at least 1; 0 where that cannot be told.

    Outcomes whose rates are d apart differ in at least a share d of all pairs, so their variance is d - d^2 or more. If
    the pilot's is smaller, its policies act alike too often, and luck adjustment is taken to save the same share. If no
    task differs from the others in its outcomes, the pairs that will differ have not turned up, and the little that
    the lucks leave says nothing of them.
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
