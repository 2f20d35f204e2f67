"""Two policies compared on matched episodes: the difference by four methods, each with interval and p-value.

The luck of a call is a function of task, seed, tool and attempt, so two policies on the same task and seed meet the
same luck. Pairing removes what is common to both (the difficulty of the task, and luck as far as both called the same
tools); the control variate removes what luck is left (`adjusted_terms`), which makes the luck-adjusted paired
difference the sharpest of the four.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from resilisim.errors import InvalidInputError
from resilisim.statistics.estimates import (
    CONFIDENCE_LEVEL,
    ROUNDING,
    Estimate,
    FloatArray,
    IntArray,
    Numbers,
    clustered_mean,
    clustered_proportion,
    finite_or_none,
    t_quantile,
    with_unseen,
)
from resilisim.statistics.luck_adjustment import NUM_FOLDS, cross_fitted, fold_of, fold_of_episodes

INDEPENDENT = "independent"
PAIRED = "paired"
PAIRED_LUCK_ADJUSTED = "paired_luck_adjusted"
MCNEMAR = "mcnemar"
COMPARISON_METHODS = (INDEPENDENT, PAIRED, PAIRED_LUCK_ADJUSTED, MCNEMAR)
# What each is called in a table, in the order in which they are shown.
METHOD_NAMES: Mapping[str, str] = {
    INDEPENDENT: "independent samples",
    MCNEMAR: "McNemar, exact",
    PAIRED: "paired",
    PAIRED_LUCK_ADJUSTED: "paired, luck-adjusted",
}

NO_EPISODE_DIFFERS = (
    "no episode came out differently: the interval is that of differences too rare to turn up in that many tasks"
)
TOO_FEW = "one pair of episodes says nothing about others: at least two are needed for an interval"
ON_THIS_TASK = "on this task: the interval is over its seeds, and says nothing about other tasks"
NO_LUCK = "an agent that tries again in fresh episodes has no luck to be adjusted for"
NO_LUCK_LEFT = "both were explored: no luck is in their difference"
NO_COUNTS = "an agent that was explored has a rate on each task, no outcomes that could be counted"
EXACT_ON_TASK = "exact on this task, which says nothing about others"

PRIOR_BETA = 1.0
PRIOR_PAIRS = 20.0  # from trials with 5 to 100 tasks: fewer are noisy below 20 tasks, more are slow to learn
MANY_PAIRS = 50
_ZERO = 1e-15  # means of squares below this are zero


@dataclass(frozen=True)
class Pairs:
    """Episodes of A and B with one task and one seed each, so on the same luck; `match_episodes` makes them of runs.

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
        tries_again: Whether either may try again in fresh episodes, or nobody knows V*, so that luck means nothing.
        num_without_partner: Episodes of A and of B that the other has not played.
        ends: For each of both, if it was explored, the least and the most that its rate can be, by what was not
            played, shape (2, num_pairs); its outcomes are then rates, and it has no luck. None if it was sampled.
        more: Other sums with mean zero of A and of B (`luck_adjustment`), shape (num_pairs, num_more) each; None takes
            luck alone off.

    Example:
        >>> import numpy as np
        >>> from resilisim.statistics import Pairs
        >>> a, b, zero = np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0]), np.zeros(3)
        >>> task, seed = np.array([0, 0, 1]), np.array([0, 1, 0])
        >>> pairs = Pairs(("first", "second"), task, seed, a, b, zero, zero, zero + 0.9, zero + 0.9, zero + 0.9)
        >>> len(pairs), pairs.num_tasks
        (3, 2)
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
    tries_again: bool = False
    num_without_partner: tuple[int, int] = (0, 0)
    ends: tuple[FloatArray | None, FloatArray | None] = field(default=(None, None), repr=False)
    more: tuple[FloatArray, FloatArray] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.task)

    @property
    def num_tasks(self) -> int:
        """Number of tasks with pairs."""
        return len(self.tasks)

    @property
    def explored(self) -> tuple[bool, bool]:
        """Whether A and B were explored: then an outcome is the rate on a task."""
        return self.ends[0] is not None, self.ends[1] is not None

    @property
    def is_exact(self) -> bool:
        """Whether no luck is in any outcome."""
        return all(self.explored)

    @property
    def difference_ends(self) -> tuple[FloatArray, FloatArray]:
        """The least and the most that the difference of each pair can be by what was not played; (num_pairs,) each."""
        outcomes = (self.outcome_a, self.outcome_b)
        (low_a, high_a), (low_b, high_b) = (
            (outcome, outcome) if ends is None else (ends[0], ends[1])
            for outcome, ends in zip(outcomes, self.ends, strict=True)
        )
        return low_a - high_b, high_a - low_b

    @property
    def folds(self) -> IntArray:
        """Fold of each pair in the cross-fitting of luck; shape (num_pairs,)."""
        by_task = np.array([fold_of(task) for task in self.tasks], dtype=np.int64)
        return fold_of_episodes(by_task[self.task], self.seed)

    @cached_property
    def unit(self) -> IntArray:
        """Number of the unit of each pair: what varies is the task, or with a single one the seed; (num_pairs,)."""
        if self.num_tasks > 1:
            return self.task
        return np.unique(self.seed, return_inverse=True)[1].astype(np.int64)

    @property
    def num_units(self) -> int:
        """Number of units."""
        return int(self.unit.max()) + 1 if len(self) else 0

    def unit_sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of one number per pair over the pairs of each unit; shape (num_units,)."""
        return np.bincount(self.unit, weights=values).astype(np.float64)

    def task_sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of one number per pair over the pairs of each task; shape (num_tasks,)."""
        return np.bincount(self.task, weights=values, minlength=self.num_tasks).astype(np.float64)

    @property
    def task_counts(self) -> FloatArray:
        """Return the number of pairs of each task; shape (num_tasks,)."""
        return np.bincount(self.task, minlength=self.num_tasks).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Difference:
    """Success rate of A minus success rate of B, as one method sees it."""

    method: str  # one of `COMPARISON_METHODS`
    difference: float  # A - B, as a share of episodes (0.03 is 3 points)
    standard_error: float  # its standard error; NaN with fewer than two tasks
    interval: tuple[float, float]  # interval at the level of the comparison; NaN where the standard error is
    p_value: float  # two-sided, against no difference
    episodes: int  # pairs of episodes behind it
    num_tasks: int  # tasks behind it
    note: str | None = None  # what has to be known about these numbers, or why there are none; None if nothing

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


def _nothing(method: str, pairs: Pairs, note: str, difference: float = math.nan) -> Difference:
    return Difference(method, difference, math.nan, (math.nan, math.nan), math.nan, len(pairs), pairs.num_tasks, note)


def independent_difference(pairs: Pairs, level: float) -> Difference:
    """Compare as if nothing were shared: two samples of tasks, each with luck of its own.

    The squared standard error is the sum of both clustered ones (Miller 2024, section on unpaired comparisons), as two
    error bars in a table amount to: too wide for two runs on the same tasks, and far too wide where luck is shared.
    The interval puts those of the two rates together (Zou and Donner 2008): it equals the t interval where both rates
    have one, and stays honest where a rate is 0 or 1 in the sample.
    """
    counts = pairs.unit_sums(np.ones(len(pairs)))
    a = clustered_proportion(pairs.unit_sums(pairs.outcome_a), counts, level)
    b = clustered_proportion(pairs.unit_sums(pairs.outcome_b), counts, level)
    difference = a.value - b.value
    if pairs.num_units < 2:
        return _nothing(INDEPENDENT, pairs, TOO_FEW, difference)
    error = math.hypot(a.standard_error, b.standard_error)
    interval = (
        difference - math.hypot(a.value - a.low, b.high - b.value),
        difference + math.hypot(a.high - a.value, b.value - b.low),
    )
    if error <= ROUNDING:
        p_value = without_variation(difference, pairs.num_units, level)[1]
    else:
        p_value = t_p_value(difference / error, pairs.num_units)
    note = None if pairs.num_tasks > 1 else ON_THIS_TASK
    return Difference(INDEPENDENT, difference, error, interval, p_value, len(pairs), pairs.num_tasks, note)


def clustered_difference(
    method: str, pairs: Pairs, terms: FloatArray, level: float, note: str | None = None
) -> Difference:
    """Estimate the mean of one term per pair, shape (num_pairs,), clustered by task, with a t interval.

    On a single task it has room for what no seed has shown (`with_unseen`): two agents that differ in rare episodes
    have often met none of them. The p-value is that of a t interval whose end towards 0 is as far off.
    """
    counts = pairs.unit_sums(np.ones(len(pairs)))
    estimate = clustered_mean(pairs.unit_sums(terms), counts, level)
    if pairs.num_units < 2:
        return _nothing(method, pairs, TOO_FEW, estimate.value)
    unit = "task" if pairs.num_tasks > 1 else "seed"
    value, error = estimate.value, estimate.standard_error
    if error > ROUNDING:
        if unit == "seed":
            estimate = with_unseen(estimate, -1.0, 1.0, level)
        to_zero = value - estimate.low if value > 0.0 else estimate.high - value
        p_value = t_p_value(value * t_quantile(pairs.num_units, level) / to_zero, pairs.num_units)
        estimate = estimate.cut(-1.0, 1.0)  # no rates differ by more than 1
        error, interval = estimate.standard_error, (estimate.low, estimate.high)
    else:  # all units agree: a standard error of 0 would claim a certainty that nobody has
        value = 0.0 if abs(value) <= ROUNDING else value
        interval, p_value = without_variation(value, pairs.num_units, level)
        note = note or f"no {unit} differs from the others: the interval says what that many {unit}s can rule out"
    if unit == "seed":
        note = f"{ON_THIS_TASK}; {note}" if note else ON_THIS_TASK
    return Difference(method, value, error, interval, p_value, len(pairs), pairs.num_tasks, note)


def _as_far_as_known(difference: Difference, pairs: Pairs, level: float) -> Difference:
    """Widen an interval to what was not played leaves open; on one task that is all that is not known."""
    if not any(pairs.explored):
        return difference
    ends = pairs.difference_ends
    low, high = (clustered_difference(difference.method, pairs, end, level) for end in ends)
    if pairs.num_tasks > 1:
        interval = (min(difference.interval[0], low.interval[0]), max(difference.interval[1], high.interval[1]))
        return replace(difference, interval=interval)
    if not pairs.is_exact:
        return difference
    is_open = low.difference < high.difference
    interval = (low.difference, high.difference) if is_open else difference.interval
    return replace(difference, interval=interval, note=EXACT_ON_TASK)


def mean_difference(sums: Numbers, counts: Numbers, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Return the mean of differences between two rates, from one sum and one count per task.

    Where all tasks agree the interval says what so many can rule out (`without_variation`), as that of a comparison.
    """
    estimate = clustered_mean(sums, counts, level)
    if estimate.standard_error <= ROUNDING:
        low, high = without_variation(estimate.value, estimate.num_clusters, level)[0]
        estimate = replace(estimate, low=low, high=high)
    return estimate.cut(-1.0, 1.0)


def without_variation(
    value: float, num_tasks: int, level: float = CONFIDENCE_LEVEL
) -> tuple[tuple[float, float], float]:
    """Return interval and p-value of a mean over tasks (or seeds of one task) that all have the same difference.

    A task which differs did not turn up in `num_tasks` draws, so at most a share of 1 - (tail)^(1 / num_tasks) of all
    tasks does (Clopper and Pearson 1934), by anything from -1 to 1. The p-value is the smallest error rate whose
    interval leaves 0 out; with a difference of 1 everywhere it is that of the sign test.
    """
    value = min(max(value, -1.0), 1.0)
    share = 1.0 - (0.5 - level / 2.0) ** (1.0 / num_tasks)
    interval = (value - share * (1.0 + value), value + share * (1.0 - value))
    return interval, min(1.0, 2.0 * (1.0 + abs(value)) ** -num_tasks)


def _no_surer(adjusted: Difference, paired: Difference) -> Difference:
    """Widen a luck-adjusted interval to the paired one where no task differs from the others in its outcomes.

    Then the episodes in which the two policies part ways have not turned up yet, and what is left after luck is taken
    off hardly varies: its standard error would claim a certainty that nobody has.
    """
    if math.isnan(adjusted.difference) or not paired.standard_error <= ROUNDING:
        return adjusted
    interval = (min(adjusted.interval[0], paired.interval[0]), max(adjusted.interval[1], paired.interval[1]))
    return replace(adjusted, interval=interval, p_value=max(adjusted.p_value, paired.p_value), note=paired.note)


def mcnemar_difference(pairs: Pairs, level: float) -> Difference:
    """Compare by the pairs in which only one of both succeeded: McNemar's test in its exact form (McNemar 1947).

    The interval is Agresti and Min's (2005): half a pair is added to each of the four cells, which keeps it honest
    where few pairs differ. It takes all pairs as independent, so with several seeds it claims too much: a plain check.
    """
    from scipy.special import bdtr, ndtri  # a quarter of a second, which only a comparison should pay

    if any(pairs.explored):
        return _nothing(MCNEMAR, pairs, NO_COUNTS)
    count = len(pairs)
    only_a = int(np.count_nonzero(pairs.outcome_a > pairs.outcome_b))
    only_b = int(np.count_nonzero(pairs.outcome_b > pairs.outcome_a))
    if count < 2:
        return _nothing(MCNEMAR, pairs, "one pair of episodes says nothing about others")
    discordant = only_a + only_b
    p_value = 1.0 if discordant == 0 else min(1.0, 2.0 * float(bdtr(min(only_a, only_b), discordant, 0.5)))
    centre = (only_a - only_b) / (count + 2.0)
    error = math.sqrt(discordant + 1.0 - (only_a - only_b) ** 2 / (count + 2.0)) / (count + 2.0)
    half_width = float(ndtri(0.5 + level / 2.0)) * error
    note = f"{only_a:,} episodes only A solved, {only_b:,} only B; takes all episodes as independent"
    interval = (max(centre - half_width, -1.0), min(centre + half_width, 1.0))
    return Difference(MCNEMAR, (only_a - only_b) / count, error, interval, p_value, count, pairs.num_tasks, note)


def t_p_value(score: float, num_tasks: int) -> float:
    """Return the two-sided p-value of Student's t with one degree of freedom less than tasks."""
    from scipy.special import stdtr

    return 2.0 * float(stdtr(num_tasks - 1, -abs(score)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that keep the chance of any false discovery at the level, whatever their dependence.

    Holm (1979): the smallest of m is multiplied by m, the next by m - 1, and so on, never below its forerunner. NaN
    stays NaN and does not count as a test.

    Raises:
        InvalidInputError: One is not between 0 and 1.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    for value in raw:
        if not (math.isnan(value) or 0.0 <= value <= 1.0):
            raise InvalidInputError(f"p-value {value:g}: expected 0 to 1")
    tests = np.flatnonzero(~np.isnan(raw))
    order = tests[np.argsort(raw[tests], kind="stable")]
    result = np.full(len(raw), math.nan)
    result[order] = np.minimum(np.maximum.accumulate(raw[order] * np.arange(len(order), 0, -1)), 1.0)
    return [float(value) for value in result]


def adjusted_terms(pairs: Pairs) -> tuple[FloatArray, FloatArray]:
    """Return the luck-adjusted difference of every pair, and the weights of all that was taken off.

    Both lucks have mean zero on every task, so mean(D - beta_a L_a + beta_b L_b), D being the difference of outcomes,
    has the mean of D for all betas that do not look at the same luck. The best betas are those of the regression of D
    on both lucks together: where two policies act alike their lucks cancel in D, and the betas of each alone would not
    see it. The other sums with mean zero of both (`Pairs.more`) are taken off with them where that foretells other
    pairs better (`fit_controls`).

    A regression on a few tasks can give any slope, and a wrong slope adds noise. Two things keep it from that:
    - it is drawn to beta = 1, which is right for agents whose regret does not depend on their luck, with the weight of
      `PRIOR_PAIRS` pairs of ordinary luck (ridge regression, Hoerl and Kennard 1970); with nothing to fit it is 1;
    - where many other pairs always have the same difference of outcomes (both policies always fail, say) though their
      lucks differ, luck explains nothing, and the betas are 0.
    Neither looks at the episodes that are scored, so neither can bias the difference. Shapes: (num_pairs,) and
    (num_pairs, num_controls), of which the first two are beta_a and beta_b.
    """
    controls = np.column_stack([pairs.luck_a, -pairs.luck_b, *([pairs.more[0], -pairs.more[1]] if pairs.more else [])])
    difference, folds = pairs.outcome_a - pairs.outcome_b, pairs.folds
    numbers = np.column_stack([np.ones_like(difference), difference, controls])
    by_fold = [numbers[folds == fold] for fold in range(NUM_FOLDS)]
    weights = cross_fitted(np.array([own.T @ own for own in by_fold]), 1, _joint_betas, num_sides=2)[folds]
    return difference - np.einsum("ij,ij->i", weights, controls), weights


def _joint_betas(moments: FloatArray) -> FloatArray:
    """Return the weights of luck alone from sums of the products of 1, D, L_a, -L_b and other controls."""
    weights = np.zeros(len(moments) - 2)
    count, squares = float(moments[0, 0]), moments[2:4, 2:4]
    size = float(np.trace(squares))
    weights[:2] = PRIOR_BETA
    if size <= _ZERO * count:
        return weights
    luck_of_difference = float(squares.sum())  # of L_a - L_b
    spread = float(moments[1, 1] - moments[0, 1] ** 2 / count)  # of D around its mean
    if count >= MANY_PAIRS and spread <= _ZERO * count < luck_of_difference:
        return np.zeros_like(weights)
    products = moments[1, 2:4] - moments[0, 1] / count * moments[0, 2:4]  # of D - mean(D) with both lucks
    pull = PRIOR_PAIRS * size / (2.0 * count)
    weights[:2] = np.linalg.solve(squares + pull * np.eye(2), products + pull * PRIOR_BETA)
    return weights


@dataclass(frozen=True)
class Comparison:
    """What two groups of episodes say about the difference between them; `compare_pairs` makes one."""

    label_a: str  # what A is called
    label_b: str  # what B is called
    prompt: str  # prompt type of both, or both with an arrow if they differ
    privileged: tuple[bool, bool]  # whether A and B saw the state
    pairs: Pairs = field(repr=False, compare=False)  # the matched episodes
    # (num_pairs,) luck-adjusted difference of each pair, or None where either may try again in fresh episodes, or both
    # were explored
    terms: FloatArray | None = field(repr=False, compare=False)
    beta_a: float  # mean of the betas that took off A's luck; NaN without luck adjustment, and where more was taken off
    beta_b: float  # the same of B
    level: float = CONFIDENCE_LEVEL  # confidence level of the intervals

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
        """One `Difference` for each of `COMPARISON_METHODS`, by name."""
        pairs, level = self.pairs, self.level
        outcomes = pairs.outcome_a - pairs.outcome_b
        note = None if outcomes.any() else NO_EPISODE_DIFFERS
        paired = _as_far_as_known(clustered_difference(PAIRED, pairs, outcomes, level, note), pairs, level)
        if self.terms is None:
            adjusted = _nothing(PAIRED_LUCK_ADJUSTED, pairs, NO_LUCK_LEFT if pairs.is_exact else NO_LUCK)
        else:
            adjusted = clustered_difference(PAIRED_LUCK_ADJUSTED, pairs, self.terms, level)
            adjusted = _no_surer(_as_far_as_known(adjusted, pairs, level), paired)
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
        return self._rate(self.pairs.outcome_a)

    @cached_property
    def success_b(self) -> Estimate:
        """Success rate of B."""
        return self._rate(self.pairs.outcome_b)

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

    def _rate(self, outcomes: FloatArray) -> Estimate:
        return clustered_proportion(self.pairs.unit_sums(outcomes), self._counts, self.level)

    @property
    def _counts(self) -> FloatArray:
        return self.pairs.unit_sums(np.ones(len(self.pairs)))

    def _mean(self, values: FloatArray) -> Estimate:
        if self.pairs.tries_again:
            return Estimate.nothing(self.pairs.num_tasks, len(self.pairs))
        return clustered_mean(self.pairs.unit_sums(values), self._counts, self.level)

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
            "explored": list(self.pairs.explored),
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
    """Compare the two sides of matched episodes; the arguments are the fields of `Comparison`.

    Example:
        >>> import numpy as np
        >>> from resilisim.statistics import Pairs, compare_pairs
        >>> a, b, zero = np.array([1.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0]), np.zeros(3)
        >>> places = np.arange(3)
        >>> pairs = Pairs(("x", "y", "z"), places, places, a, b, zero, zero, zero + 0.9, zero + 0.9, zero + 0.9)
        >>> round(compare_pairs(pairs, "mine", "yours", "optimal").best.difference, 3)
        0.333
    """
    if pairs.tries_again or pairs.is_exact:
        return Comparison(label_a, label_b, prompt, privileged, pairs, None, math.nan, math.nan, level)
    terms, weights = adjusted_terms(pairs)
    beta_a, beta_b = (math.nan, math.nan) if weights[:, 2:].any() else weights[:, :2].mean(axis=0)
    return Comparison(label_a, label_b, prompt, privileged, pairs, terms, float(beta_a), float(beta_b), level)


_JOINED = ("seed", "outcome_a", "outcome_b", "luck_a", "luck_b", "optimum", "ceiling_a", "ceiling_b")


def pool_comparisons(
    comparisons: Sequence[Comparison], label_a: str, label_b: str, level: float = CONFIDENCE_LEVEL
) -> Comparison:
    """Put comparisons, at least one, together: all their pairs count; luck is taken off in each of them apart."""
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
        ends=(_joined_ends(parts, 0), _joined_ends(parts, 1)),
        more=_joined_more(parts),
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


def _joined_ends(parts: Sequence[Pairs], side: int) -> FloatArray | None:
    """Return the ends of one side in all parts; None if it was sampled in all of them."""
    if not any(part.explored[side] for part in parts):
        return None
    outcomes = [(part.outcome_a, part.outcome_b)[side] for part in parts]
    ends = [part.ends[side] for part in parts]
    return np.concatenate([np.stack([o, o]) if e is None else e for o, e in zip(outcomes, ends, strict=True)], axis=1)


def _joined_more(parts: Sequence[Pairs]) -> tuple[FloatArray, FloatArray] | None:
    held = [part.more for part in parts if part.more is not None]
    if len(held) < len(parts):
        return None
    return np.concatenate([more_a for more_a, _ in held]), np.concatenate([more_b for _, more_b in held])
