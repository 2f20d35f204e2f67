"""What the noise of a difference is made of: tasks that differ from each other, and luck within a task.

More tasks make both parts smaller, more seeds only the second. The parts are those of a one-way analysis of variance
with random tasks (Searle, Casella and McCulloch 1992), for any number of episodes per task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from resilisim.evaluation.comparing.comparison import Comparison
from resilisim.evaluation.comparing.differences import INDEPENDENT, PAIRED, PAIRED_LUCK_ADJUSTED
from resilisim.evaluation.comparing.pairing import Pairs
from resilisim.evaluation.statistics import FloatArray, FoldSums, fit_beta

# The usual practice: both policies on the same tasks, each with luck of its own. No method of analysis, a way to play.
SAME_TASKS = "same_tasks_independent_luck"


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Variance of what one pair of episodes adds to a difference.

    Attributes:
        between: Part by which tasks differ; NaN if every task of the pilot has one pair only.
        within: Part by which episodes of one task differ; NaN likewise.
        total: Both together: the variance with one seed per task.
        relative_error: Standard error of the variance of a task's mean, divided by that variance; NaN below two tasks.
        num_tasks: Tasks of the pilot.
    """

    between: float
    within: float
    total: float
    relative_error: float
    num_tasks: int

    def of_task_mean(self, num_seeds: float) -> float:
        """Return the variance of the mean over that many seeds of a task; NaN where the parts cannot be told apart."""
        return self.total if num_seeds == 1 else self.between + self.within / num_seeds

    def scaled(self, factor: float) -> VarianceParts:
        """Return the parts times a factor."""
        return replace(self, between=self.between * factor, within=self.within * factor, total=self.total * factor)


def parts_of(values: FloatArray, pairs: Pairs) -> VarianceParts:
    """Split the variance of one number per pair.

    Args:
        values: (num_pairs,) the numbers.
        pairs: The pairs they belong to.
    """
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
    """Return the parts under each method, and under the usual practice (`SAME_TASKS`), of which no record exists.

    For the usual practice tasks differ as they do in pairs, while the lucks of both policies add up: the within part is
    that of A plus that of B. With one seed per task the parts are unknown, and how much the common luck has taken away
    is estimated by the lucks: 2 Cov(A, B) within a task, the covariance being E[y_A beta_B L_B] and E[y_B beta_A L_A].

    Args:
        comparison: A comparison of a pilot.
    """
    pairs = comparison.pairs
    a, b = parts_of(pairs.outcome_a, pairs), parts_of(pairs.outcome_b, pairs)
    paired = parts_of(pairs.outcome_a - pairs.outcome_b, pairs)
    apart = _sum(a, b)
    parts = {INDEPENDENT: apart, SAME_TASKS: _same_tasks(comparison, apart, paired), PAIRED: paired}
    if comparison.terms is not None:
        parts[PAIRED_LUCK_ADJUSTED] = parts_of(comparison.terms, pairs)
    return parts


def independent_luck_episodes(comparison: Comparison) -> float:
    """Estimate how many pairs of episodes on independent luck would give as short an interval as the best method has.

    They would be on the same number of seeds per task, and on as many tasks as it takes. NaN where it cannot be told.
    """
    best, pairs = comparison.best, comparison.pairs
    if not (best.standard_error > 0.0 and comparison.differences[PAIRED].standard_error > 0.0):
        return math.nan  # the interval does not come from the standard error then
    num_seeds = len(pairs) / pairs.num_tasks
    needed = variance_parts(comparison)[SAME_TASKS].of_task_mean(num_seeds)
    return needed / best.standard_error**2 * num_seeds


def _sum(a: VarianceParts, b: VarianceParts) -> VarianceParts:
    return VarianceParts(
        a.between + b.between,
        a.within + b.within,
        a.total + b.total,
        max(a.relative_error, b.relative_error),  # cautious: as if both were off to the same side
        a.num_tasks,
    )


def _same_tasks(comparison: Comparison, apart: VarianceParts, paired: VarianceParts) -> VarianceParts:
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
        return fit_beta(FoldSums.of_episodes(outcome, pairs.optimum, luck))

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
