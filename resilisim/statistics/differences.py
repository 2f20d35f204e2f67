"""The difference between two success rates on the same episodes, by four methods, each with interval and p-value.

The luck of a call is a function of task, seed, tool and attempt, so two policies on the same task and seed meet the
same luck. Pairing removes what is common to both (the difficulty of the task, and luck as far as both called the same
tools); the control variate removes what luck is left (`adjusted_terms`), which makes the luck-adjusted paired
difference the sharpest of the four.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from resilisim.statistics.estimates import (
    CONFIDENCE_LEVEL,
    ROUNDING,
    Estimate,
    FloatArray,
    IntArray,
    clustered_mean,
    clustered_proportion,
    finite_or_none,
)
from resilisim.statistics.luck import NUM_FOLDS, fold_of

INDEPENDENT = "independent"
PAIRED = "paired"
PAIRED_LUCK_ADJUSTED = "paired_luck_adjusted"
MCNEMAR = "mcnemar"
METHODS = (INDEPENDENT, PAIRED, PAIRED_LUCK_ADJUSTED, MCNEMAR)

NO_EPISODE_DIFFERS = (
    "no episode came out differently: the interval is that of differences too rare to turn up in that many tasks"
)
TOO_FEW_TASKS = "one task says nothing about others: at least two are needed for an interval"
NO_LUCK = "an agent that tries again in fresh episodes has no luck to be adjusted for"

PRIOR_BETA = 1.0
PRIOR_PAIRS = 20.0  # from trials with 5 to 100 tasks: fewer are noisy below 20 tasks, more are slow to learn
MANY_PAIRS = 50
_NOTHING = 1e-15  # means of squares below this are zero


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


@dataclass(frozen=True, slots=True)
class Difference:
    """Success rate of A minus success rate of B, as one method sees it.

    Attributes:
        method: One of `METHODS`.
        difference: A - B, as a share of episodes (0.03 is 3 points).
        standard_error: Its standard error; NaN with fewer than two tasks.
        interval: 95% interval; NaN where the standard error is.
        p_value: Two-sided, against no difference.
        episodes: Pairs of episodes behind it.
        num_tasks: Tasks behind it.
        note: What has to be known about these numbers, or why there are none; None if nothing.
    """

    method: str
    difference: float
    standard_error: float
    interval: tuple[float, float]
    p_value: float
    episodes: int
    num_tasks: int
    note: str | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values; NaN becomes None, an interval without ends is None."""
        low, high = self.interval
        return {
            "difference": finite_or_none(self.difference),
            "interval": None if math.isnan(low) or math.isnan(high) else [low, high],
            "p_value": finite_or_none(self.p_value),
            "episodes": self.episodes,
            "standard_error": finite_or_none(self.standard_error),
            "num_tasks": self.num_tasks,
            "note": self.note,
        }


def not_offered(method: str, episodes: int, num_tasks: int, note: str) -> Difference:
    """Return a difference without numbers, and why there are none."""
    return Difference(method, math.nan, math.nan, (math.nan, math.nan), math.nan, episodes, num_tasks, note)


def independent_difference(pairs: Pairs, level: float = CONFIDENCE_LEVEL) -> Difference:
    """Compare as if nothing were shared: two samples of tasks, each with luck of its own.

    The squared standard error is the sum of both clustered ones (Miller 2024, section on unpaired comparisons). That is
    what two error bars in a table of results amount to. Tasks count as a random sample, as they do in the other
    methods. It is right for two runs on different tasks; for two runs on the same tasks with independent luck it is
    too wide where the two policies find the same tasks hard, and far too wide where luck is shared as well.

    The interval puts those of the two rates together (Zou and Donner 2008): it equals the t interval where both rates
    have one, and stays honest where a rate is 0 or 1 in the sample. The p-value is that of t with one degree of
    freedom less than tasks.

    """
    counts = pairs.task_counts
    a = clustered_proportion(pairs.task_sums(pairs.outcome_a), counts, level)
    b = clustered_proportion(pairs.task_sums(pairs.outcome_b), counts, level)
    difference = a.value - b.value
    if pairs.num_tasks < 2:
        return replace(not_offered(INDEPENDENT, len(pairs), pairs.num_tasks, TOO_FEW_TASKS), difference=difference)
    error = math.hypot(a.standard_error, b.standard_error)
    interval = (
        difference - math.hypot(a.value - a.low, b.high - b.value),
        difference + math.hypot(a.high - a.value, b.value - b.low),
    )
    if error <= ROUNDING:
        p_value = without_variation(difference, pairs.num_tasks, level)[1]
    else:
        p_value = t_p_value(difference / error, pairs.num_tasks)
    return Difference(INDEPENDENT, difference, error, interval, p_value, len(pairs), pairs.num_tasks)


def clustered_difference(
    method: str, pairs: Pairs, terms: FloatArray, level: float = CONFIDENCE_LEVEL, note: str | None = None
) -> Difference:
    """Estimate the mean of one term per pair, clustered by task, with a t interval and its p-value.

    If the terms of all tasks agree, their standard error of 0 would claim a certainty that nobody has;
    `without_variation` gives the interval then.

    Args:
        method: Name of the method.
        pairs: The episodes.
        terms: (num_pairs,) what is averaged, for example the difference of outcomes.
        level: Confidence level of the interval.
        note: Goes into the result.
    """
    estimate = clustered_mean(pairs.task_sums(terms), pairs.task_counts, level)
    return from_estimate(method, estimate, level, note)


def from_estimate(
    method: str, estimate: Estimate, level: float = CONFIDENCE_LEVEL, note: str | None = None
) -> Difference:
    """Turn an estimated difference into one with a p-value, with an honest interval where nothing varied."""
    value, error, tasks = estimate.value, estimate.standard_error, estimate.num_clusters
    if tasks < 2:
        return replace(not_offered(method, estimate.num_episodes, tasks, TOO_FEW_TASKS), difference=value)
    if error > ROUNDING:
        interval = (min(max(estimate.low, -1.0), value), max(min(estimate.high, 1.0), value))  # no rates differ by more
        p_value = t_p_value(value / error, tasks)
    else:
        value = 0.0 if abs(value) <= ROUNDING else value
        interval, p_value = without_variation(value, tasks, level)
        note = note or "no task differs from the others: the interval says what that many tasks can rule out"
    return Difference(method, value, error, interval, p_value, estimate.num_episodes, tasks, note)


def without_variation(
    value: float, num_tasks: int, level: float = CONFIDENCE_LEVEL
) -> tuple[tuple[float, float], float]:
    """Return interval and p-value of a mean over tasks that all have the same difference.

    All that is known is that a task which differs from the others did not turn up in `num_tasks` draws, so at most a
    share of 1 - (tail)^(1 / num_tasks) of all tasks does (Clopper and Pearson 1934). What those tasks have can be
    anything from -1 to 1. The p-value is the smallest error rate whose interval leaves 0 out; with a difference of 1
    everywhere it is that of the sign test.

    Args:
        value: The difference that every task has, -1 to 1.
        num_tasks: How many tasks there are.
        level: Confidence level of the interval.
    """
    value = min(max(value, -1.0), 1.0)
    share = 1.0 - (0.5 - level / 2.0) ** (1.0 / num_tasks)
    interval = (value - share * (1.0 + value), value + share * (1.0 - value))
    return interval, min(1.0, 2.0 * (1.0 + abs(value)) ** -num_tasks)


def paired_difference(pairs: Pairs, level: float = CONFIDENCE_LEVEL) -> Difference:
    """Compare episode by episode: the mean of A's outcome minus B's on the same task and luck, clustered by task."""
    terms = pairs.outcome_a - pairs.outcome_b
    return clustered_difference(PAIRED, pairs, terms, level, None if terms.any() else NO_EPISODE_DIFFERS)


def no_surer(adjusted: Difference, paired: Difference) -> Difference:
    """Widen a luck-adjusted interval to the paired one where no task differs from the others in its outcomes.

    Then the episodes in which the two policies part ways have not turned up yet, and what is left after luck is taken
    off hardly varies: its standard error would claim a certainty that nobody has.
    """
    if math.isnan(adjusted.difference) or not paired.standard_error <= ROUNDING:
        return adjusted
    interval = (min(adjusted.interval[0], paired.interval[0]), max(adjusted.interval[1], paired.interval[1]))
    return replace(adjusted, interval=interval, p_value=max(adjusted.p_value, paired.p_value), note=paired.note)


def mcnemar_difference(pairs: Pairs, level: float = CONFIDENCE_LEVEL) -> Difference:
    """Compare by the pairs in which only one of both succeeded: McNemar's test in its exact form (McNemar 1947).

    Without a difference each such pair is a fair coin, so the p-value is binomial. The interval is Agresti and Min's
    (2005): half a pair is added to each of the four cells, which keeps it honest where few pairs differ. It takes all
    pairs as independent; episodes of one task are not, so with several seeds it claims too much. It is a plain check.

    """
    from scipy.special import bdtr, ndtri  # a quarter of a second, which only a comparison should pay

    count = len(pairs)
    only_a = int(np.count_nonzero(pairs.outcome_a > pairs.outcome_b))
    only_b = int(np.count_nonzero(pairs.outcome_b > pairs.outcome_a))
    if count < 2:
        return not_offered(MCNEMAR, count, pairs.num_tasks, "one pair of episodes says nothing about others")
    discordant = only_a + only_b
    p_value = 1.0 if discordant == 0 else min(1.0, 2.0 * float(bdtr(min(only_a, only_b), discordant, 0.5)))
    centre = (only_a - only_b) / (count + 2.0)
    error = math.sqrt(discordant + 1.0 - (only_a - only_b) ** 2 / (count + 2.0)) / (count + 2.0)
    half_width = float(ndtri(0.5 + level / 2.0)) * error
    note = f"{only_a:,} episodes only A solved, {only_b:,} only B; takes all episodes as independent"
    interval = (max(centre - half_width, -1.0), min(centre + half_width, 1.0))
    return Difference(MCNEMAR, (only_a - only_b) / count, error, interval, p_value, count, pairs.num_tasks, note)


def t_p_value(score: float, num_tasks: int) -> float:
    """Return the two-sided p-value of Student's t with one degree of freedom less than tasks; NaN below two."""
    if num_tasks < 2 or math.isnan(score):
        return math.nan
    from scipy.special import stdtr

    return 2.0 * float(stdtr(num_tasks - 1, -abs(score)))


def adjusted_terms(pairs: Pairs) -> tuple[FloatArray, FloatArray]:
    """Return the luck-adjusted difference of every pair, and the betas that were used.

    Both lucks have mean zero on every task, so mean(D - beta_a L_a + beta_b L_b), D being the difference of outcomes,
    has the mean of D for all betas that do not look at the same luck. The best betas are those of the regression of D
    on both lucks together: where two policies act alike their lucks cancel in D, and the betas of each alone would not
    see it.

    A regression on a few tasks can give any slope, and a wrong slope adds noise. Two things keep it from that:
    - it is drawn to beta = 1, which is right for agents whose regret does not depend on their luck, with the weight of
      `PRIOR_PAIRS` pairs of ordinary luck (ridge regression, Hoerl and Kennard 1970); with nothing to fit it is 1;
    - where many other pairs always have the same difference of outcomes (both policies always fail, say) though their
      lucks differ, luck explains nothing, and the betas are 0.
    Neither looks at the tasks that are scored, so neither can bias the difference.

    Returns:
        terms: (num_pairs,) D - (beta_a L_a - beta_b L_b), with the betas of the pair's fold.
        betas: (num_pairs, 2) beta_a and beta_b of every pair.
    """
    folds = pairs.folds
    lucks = np.stack([pairs.luck_a, -pairs.luck_b], axis=1)  # (num_pairs, 2)
    difference = pairs.outcome_a - pairs.outcome_b
    betas = joint_betas(difference, lucks, folds)[folds]
    return difference - np.einsum("ij,ij->i", betas, lucks), betas


def joint_betas(difference: FloatArray, lucks: FloatArray, folds: IntArray) -> FloatArray:
    """Return the betas of each fold, fitted on all pairs of the other folds; shape (NUM_FOLDS, 2).

    Args:
        difference: (num_pairs,) D.
        lucks: (num_pairs, 2) L_a and -L_b.
        folds: (num_pairs,) fold of the task.
    """
    numbers = np.column_stack([np.ones_like(difference), difference, lucks])  # (num_pairs, 4)
    moments = np.zeros((NUM_FOLDS, 4, 4))  # by fold, sums of all products of 1, D, L_a, -L_b
    for fold in range(NUM_FOLDS):
        own = numbers[folds == fold]
        moments[fold] = own.T @ own
    # Added up anew for each fold: a total minus the fold's own sums would keep their rounding, and a look at them.
    return np.array([fit(np.delete(moments, fold, axis=0).sum(axis=0)) for fold in range(NUM_FOLDS)])


def fit(moments: FloatArray) -> FloatArray:
    """Return beta_a and beta_b from sums over pairs.

    Args:
        moments: (4, 4) sums of the products of 1, D, L_a and -L_b.
    """
    count, squares = float(moments[0, 0]), moments[2:, 2:]
    size = float(np.trace(squares))
    if size <= _NOTHING * count:
        return np.full(2, PRIOR_BETA)
    luck_of_difference = float(squares.sum())  # of L_a - L_b
    spread = float(moments[1, 1] - moments[0, 1] ** 2 / count)  # of D around its mean
    if count >= MANY_PAIRS and spread <= _NOTHING * count < luck_of_difference:
        return np.zeros(2)
    products = moments[1, 2:] - moments[0, 1] / count * moments[0, 2:]  # of D - mean(D) with both lucks
    weight = PRIOR_PAIRS * size / (2.0 * count)
    return np.linalg.solve(squares + weight * np.eye(2), products + weight * PRIOR_BETA)
