"""Two policies compared on matched episodes, and what the noise of the difference is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from resilisim.statistics.differences import (
    INDEPENDENT,
    MCNEMAR,
    NO_LUCK,
    PAIRED,
    PAIRED_LUCK_ADJUSTED,
    Difference,
    Pairs,
    adjusted_terms,
    clustered_difference,
    independent_difference,
    mcnemar_difference,
    no_surer,
    not_offered,
    paired_difference,
)
from resilisim.statistics.estimates import (
    CONFIDENCE_LEVEL,
    Estimate,
    FloatArray,
    clustered_mean,
    clustered_proportion,
    finite_or_none,
)
from resilisim.statistics.luck import FoldSums, fit_beta

# The usual practice: both policies on the same tasks, each with luck of its own. No method of analysis, a way to play.
SAME_TASKS = "same_tasks_independent_luck"


@dataclass(frozen=True)
class Comparison:
    """What two groups of episodes say about the difference between them.

    Attributes:
        label_a: What A is called.
        label_b: What B is called.
        prompt: Prompt type of both, or both with an arrow if they differ.
        privileged: Whether A and B saw the state.
        pairs: The matched episodes.
        terms: (num_pairs,) luck-adjusted difference of each pair, or None where either may try again in fresh episodes.
        beta_a: Mean of the betas that took off A's luck; NaN without luck adjustment.
        beta_b: The same of B.
        level: Confidence level of the intervals.
    """

    label_a: str
    label_b: str
    prompt: str
    privileged: tuple[bool, bool]
    pairs: Pairs = field(repr=False, compare=False)
    terms: FloatArray | None = field(repr=False, compare=False)
    beta_a: float
    beta_b: float
    level: float = CONFIDENCE_LEVEL

    @property
    def episodes(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    @property
    def num_without_partner(self) -> tuple[int, int]:
        """Episodes of A and of B that have no partner and do not count."""
        return self.pairs.num_without_partner

    @cached_property
    def differences(self) -> Mapping[str, Difference]:
        """One `Difference` for each of `METHODS`, by name."""
        pairs, level = self.pairs, self.level
        paired = paired_difference(pairs, level)
        if self.terms is None:
            adjusted = not_offered(PAIRED_LUCK_ADJUSTED, len(pairs), pairs.num_tasks, NO_LUCK)
        else:
            adjusted = no_surer(clustered_difference(PAIRED_LUCK_ADJUSTED, pairs, self.terms, level), paired)
        return {
            INDEPENDENT: independent_difference(pairs, level),
            PAIRED: paired,
            PAIRED_LUCK_ADJUSTED: adjusted,
            MCNEMAR: mcnemar_difference(pairs, level),
        }

    @property
    def best(self) -> Difference:
        """The difference to believe: the luck-adjusted one where there is one, else the paired one."""
        adjusted = self.differences[PAIRED_LUCK_ADJUSTED]
        return self.differences[PAIRED] if math.isnan(adjusted.difference) else adjusted

    @cached_property
    def success_a(self) -> Estimate:
        """Success rate of A in the matched episodes."""
        return clustered_proportion(self.pairs.task_sums(self.pairs.outcome_a), self.pairs.task_counts, self.level)

    @cached_property
    def success_b(self) -> Estimate:
        """Success rate of B."""
        return clustered_proportion(self.pairs.task_sums(self.pairs.outcome_b), self.pairs.task_counts, self.level)

    @cached_property
    def optimum(self) -> Estimate:
        """Mean V* of the matched episodes; NaN if either may try again in fresh episodes."""
        return self._mean(self.pairs.optimum)

    @cached_property
    def ceiling_a(self) -> Estimate:
        """Mean of the ceilings that fit what A was told; NaN likewise."""
        return self._mean(self.pairs.ceiling_a)

    @cached_property
    def ceiling_b(self) -> Estimate:
        """The same of B."""
        return self._mean(self.pairs.ceiling_b)

    def _mean(self, values: FloatArray) -> Estimate:
        if self.terms is None:
            return Estimate.nothing(self.pairs.num_tasks, len(self.pairs))
        return clustered_mean(self.pairs.task_sums(values), self.pairs.task_counts, self.level)

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        return {
            "a": self.label_a,
            "b": self.label_b,
            "prompt": self.prompt,
            "episodes": self.episodes,
            "num_tasks": self.pairs.num_tasks,
            "success_a": self.success_a.to_mapping(),
            "success_b": self.success_b.to_mapping(),
            "optimum": self.optimum.to_mapping(),
            "ceiling_a": self.ceiling_a.to_mapping(),
            "ceiling_b": self.ceiling_b.to_mapping(),
            "beta_a": finite_or_none(self.beta_a),
            "beta_b": finite_or_none(self.beta_b),
            "privileged": list(self.privileged),
            "episodes_without_partner": list(self.num_without_partner),
            "best": self.best.method,
            **{method: difference.to_mapping() for method, difference in self.differences.items()},
        }


def compare_pairs(
    pairs: Pairs,
    label_a: str,
    label_b: str,
    prompt: str,
    privileged: tuple[bool, bool] = (False, False),
    level: float = CONFIDENCE_LEVEL,
) -> Comparison:
    """Compare the two sides of matched episodes; the arguments are the fields of `Comparison`."""
    if pairs.tries_again:
        return Comparison(label_a, label_b, prompt, privileged, pairs, None, math.nan, math.nan, level)
    terms, betas = adjusted_terms(pairs)
    beta_a, beta_b = betas.mean(axis=0)
    return Comparison(label_a, label_b, prompt, privileged, pairs, terms, float(beta_a), float(beta_b), level)


_JOINED = ("seed", "outcome_a", "outcome_b", "luck_a", "luck_b", "optimum", "ceiling_a", "ceiling_b")


def pool_comparisons(
    comparisons: Sequence[Comparison], label_a: str, label_b: str, level: float = CONFIDENCE_LEVEL
) -> Comparison:
    """Put comparisons together: all their pairs count, clustered by task; luck is taken off in each of them apart.

    Args:
        comparisons: At least one.
        label_a: What A is called.
        label_b: What B is called.
        level: Confidence level of the intervals.
    """
    if len(comparisons) == 1:
        return replace(comparisons[0], label_a=label_a, label_b=label_b, level=level)
    parts = [comparison.pairs for comparison in comparisons]
    tasks = sorted({task for part in parts for task in part.tasks})
    places = {task: place for place, task in enumerate(tasks)}
    numbers = [np.array([places[task] for task in part.tasks], dtype=np.int64)[part.task] for part in parts]
    without_a, without_b = zip(*(part.num_without_partner for part in parts), strict=True)
    pooled = Pairs(
        tasks=tuple(tasks),
        task=np.concatenate(numbers),
        tries_again=any(part.tries_again for part in parts),
        num_without_partner=(sum(without_a), sum(without_b)),
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _JOINED},
    )
    each = [comparison.terms for comparison in comparisons if comparison.terms is not None]
    weights = np.array([len(part) for part in parts], dtype=np.float64) / len(pooled)
    betas = np.array([(comparison.beta_a, comparison.beta_b) for comparison in comparisons])
    beta_a, beta_b = weights @ betas
    privileged_a, privileged_b = zip(*(comparison.privileged for comparison in comparisons), strict=True)
    return Comparison(
        label_a,
        label_b,
        ", ".join(dict.fromkeys(comparison.prompt for comparison in comparisons)),
        (any(privileged_a), any(privileged_b)),
        pooled,
        np.concatenate(each) if len(each) == len(comparisons) else None,
        float(beta_a),
        float(beta_b),
        level,
    )


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Variance of what one pair of episodes adds to a difference: tasks that differ, and luck within a task.

    More tasks make both parts smaller, more seeds only the second. The parts are those of a one-way analysis of
    variance with random tasks (Searle, Casella and McCulloch 1992), for any number of episodes per task.

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
