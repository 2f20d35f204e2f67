"""Means, ratios and luck-adjusted scores with intervals that know that episodes of one task resemble each other.

Everything is computed from sums per task (the cluster), so memory depends on the number of tasks and not of episodes.
The tests pin each function to its naive definition over the single episodes.

Luck-adjusted score. The luck of an episode, L = sum over its messages of V*(s_{t+1}) - Q*(s_t, a_t), has mean zero
for every policy that does not see the draws, so outcome - beta L has the mean of the outcome for every beta that does
not depend on the same luck. Beta is fitted for each fold of tasks on the other folds: the tasks' luck is independent,
so the score stays unbiased, and the noise that luck explains is gone. Where few episodes can tell beta, it stays near a
guess (`fit_beta`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

CONFIDENCE_LEVEL = 0.95
NUM_FOLDS = 10
# A slope fitted on a handful of episodes can be anything. No guess and no bound can bias the score, because they do not
# look at the tasks that are scored.
BETA_RANGE = (0.0, 2.0)
PRIOR_EPISODES = 20.0  # from trials with 8 to 100 tasks; 10 to 40 hardly differ
FOLD_SALT = "resilisim/folds"
ROUNDING = 1e-12  # a standard error, or a mean of squares, below it is 0

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its uncertainty.

    Attributes:
        value: The estimate; NaN when there is nothing to estimate from.
        standard_error: Its clustered standard error; NaN with fewer than two clusters.
        low: Lower end of the 95% interval; NaN where the standard error is.
        high: Upper end.
        num_clusters: Number of tasks behind it.
        num_episodes: Number of episodes behind it.
    """

    value: float
    standard_error: float
    low: float
    high: float
    num_clusters: int
    num_episodes: int

    def to_mapping(self) -> dict[str, float | int | None]:
        """Return the fields as JSON values; NaN becomes None."""
        numbers = {
            "value": self.value,
            "standard_error": self.standard_error,
            "low": self.low,
            "high": self.high,
        }
        mapping: dict[str, float | int | None] = {
            name: (None if math.isnan(number) else number) for name, number in numbers.items()
        }
        mapping["num_clusters"] = self.num_clusters
        mapping["num_episodes"] = self.num_episodes
        return mapping


@dataclass(frozen=True, slots=True)
class FoldSums:
    """Sums over the episodes of one fold of tasks, enough to fit beta on any union of folds.

    Attributes:
        count: Number of episodes.
        gap: Sum of d = outcome - V* (the ceiling is taken off, so that easy and hard tasks do not add noise).
        luck: Sum of L.
        gap_luck: Sum of d L.
        luck_squared: Sum of L squared.
        optimum: Sum of V*. With this and the next three the slope on V* is fitted, too; without them it is 1.
        optimum_squared: Sum of V* squared.
        gap_optimum: Sum of d V*.
        luck_optimum: Sum of L V*.
    """

    count: float = 0.0
    gap: float = 0.0
    luck: float = 0.0
    gap_luck: float = 0.0
    luck_squared: float = 0.0
    optimum: float = 0.0
    optimum_squared: float = 0.0
    gap_optimum: float = 0.0
    luck_optimum: float = 0.0

    @classmethod
    def of(cls, outcome: float, optimum: float, luck: float) -> FoldSums:
        """Return the sums of one episode."""
        gap = outcome - optimum
        return cls(1.0, gap, luck, gap * luck, luck * luck, optimum, optimum * optimum, gap * optimum, luck * optimum)

    @classmethod
    def of_episodes(cls, outcome: FloatArray, optimum: FloatArray, luck: FloatArray) -> FoldSums:
        """Return the sums of episodes, given as arrays of shape (num_episodes,)."""
        gap = outcome - optimum
        return cls(
            float(len(gap)),
            float(gap.sum()),
            float(luck.sum()),
            float(gap @ luck),
            float(luck @ luck),
            float(optimum.sum()),
            float(optimum @ optimum),
            float(gap @ optimum),
            float(luck @ optimum),
        )

    def __add__(self, other: FoldSums) -> FoldSums:
        """Return the sums over both."""
        return FoldSums(
            self.count + other.count,
            self.gap + other.gap,
            self.luck + other.luck,
            self.gap_luck + other.gap_luck,
            self.luck_squared + other.luck_squared,
            self.optimum + other.optimum,
            self.optimum_squared + other.optimum_squared,
            self.gap_optimum + other.gap_optimum,
            self.luck_optimum + other.luck_optimum,
        )


def t_quantile(num_clusters: int, level: float = CONFIDENCE_LEVEL) -> float:
    """Return the two-sided quantile of Student's t with one degree of freedom less than clusters; NaN below two."""
    if num_clusters < 2:
        return math.nan
    from scipy.special import stdtrit  # a quarter of a second, which only a finished run should pay

    return float(stdtrit(num_clusters - 1, 0.5 + level / 2.0))


def clustered_ratio(
    numerators: Sequence[float] | FloatArray,
    denominators: Sequence[float] | FloatArray,
    num_episodes: int,
    level: float = CONFIDENCE_LEVEL,
) -> Estimate:
    """Estimate sum(numerators) / sum(denominators) with clusters as the units that vary.

    The standard error is the linearised one: with r the ratio and e_g = y_g - r x_g for cluster g of G, its square is
    G / (G - 1) x sum e_g^2 / (sum x)^2. With x_g the number of episodes it is the cluster-robust error of a mean.

    Args:
        numerators: y_g, one sum per cluster; shape (num_clusters,).
        denominators: x_g, one sum per cluster; shape (num_clusters,).
        num_episodes: How many episodes lie behind the sums; only reported.
        level: Confidence level of the interval.
    """
    y = np.asarray(numerators, dtype=np.float64)  # (num_clusters,)
    x = np.asarray(denominators, dtype=np.float64)  # (num_clusters,)
    total = float(x.sum())
    count = len(x)
    if count == 0 or total == 0.0:
        return Estimate(math.nan, math.nan, math.nan, math.nan, count, num_episodes)
    ratio = float(y.sum()) / total
    if count < 2:
        return Estimate(ratio, math.nan, math.nan, math.nan, count, num_episodes)
    residuals = y - ratio * x
    error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / abs(total)
    half_width = t_quantile(count, level) * error
    return Estimate(ratio, error, ratio - half_width, ratio + half_width, count, num_episodes)


def clustered_mean(
    sums: Sequence[float] | FloatArray, counts: Sequence[float] | FloatArray, level: float = CONFIDENCE_LEVEL
) -> Estimate:
    """Estimate the mean over episodes from one sum and one count per cluster, with a clustered t interval."""
    weights = np.asarray(counts, dtype=np.float64)
    return clustered_ratio(sums, weights, int(weights.sum()), level)


def clustered_proportion(
    successes: Sequence[float] | FloatArray, counts: Sequence[float] | FloatArray, level: float = CONFIDENCE_LEVEL
) -> Estimate:
    """Estimate a success rate; like `clustered_mean`, with an interval that stays within 0 and 1 and is never a point.

    Where the t interval would leave the range, the rate is too close to its edge for it, and Korn and Graubard's takes
    its place: the exact interval of Clopper and Pearson for as many independent episodes as would have this standard
    error. If all tasks have the same rate, as where all episodes succeed or none does, the error is 0 and tells
    nothing; then the tasks are what is counted, which is on the safe side and, at the edges, also holds for a single
    task.
    """
    plain = clustered_mean(successes, counts, level)
    rate, clusters = plain.value, plain.num_clusters
    if clusters > 0 and (rate in (0.0, 1.0) or plain.standard_error <= ROUNDING):
        low, high = clopper_pearson(rate * clusters, float(clusters), level)
        return replace(plain, low=low, high=high)
    return within_range(plain, plain.num_episodes, level)


def within_range(plain: Estimate, most: float = math.inf, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Return a rate with Korn and Graubard's interval (1998) where that of Student's t would leave 0 to 1.

    The t interval there is too short on the side of the middle, and cutting it off at 0 or 1 would leave it so.

    Args:
        plain: A rate above 0 and below 1 with a t interval; anything else is returned as it is.
        most: How many independent episodes it can be worth at most; adjusted rates can be worth more than they have.
        level: Confidence level of the interval.
    """
    rate, error = plain.value, plain.standard_error
    if not (error > ROUNDING and 0.0 < rate < 1.0) or (plain.low >= 0.0 and plain.high <= 1.0):
        return plain
    few_tasks = t_quantile(plain.num_episodes, level) / t_quantile(plain.num_clusters, level)
    independent = min(rate * (1.0 - rate) / error**2, most) * few_tasks**2
    low, high = clopper_pearson(rate * independent, independent, level)
    return replace(plain, low=low, high=high)


def wilson(successes: float, trials: float, level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
    """Return Wilson's score interval of the success rate of independent trials; NaN without trials.

    It holds its level better than the t interval where the rate is near 0 or 1, and is shorter than the exact interval
    (Wilson 1927; Brown, Cai and DasGupta 2001). It knows nothing of clusters: only for episodes of different tasks.

    Args:
        successes: Number of successes.
        trials: Number of trials.
        level: Confidence level of the interval.
    """
    if trials <= 0.0:
        return math.nan, math.nan
    from scipy.special import ndtri  # see t_quantile

    z_squared, rate = float(ndtri(0.5 + level / 2.0)) ** 2, successes / trials
    centre = (successes + z_squared / 2.0) / (trials + z_squared)
    spread = rate * (1.0 - rate) * trials + z_squared / 4.0
    half_width = math.sqrt(z_squared * spread) / (trials + z_squared)
    low = 0.0 if successes <= 0.0 else max(centre - half_width, 0.0)
    high = 1.0 if successes >= trials else min(centre + half_width, 1.0)
    return low, high


def clopper_pearson(successes: float, trials: float, level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
    """Return the exact interval of a success rate (Clopper and Pearson 1934); both numbers may be fractions."""
    from scipy.special import betaincinv  # see t_quantile

    tail, failures = 0.5 - level / 2.0, trials - successes
    low = 0.0 if successes <= 0.0 else float(betaincinv(successes, failures + 1.0, tail))
    high = 1.0 if failures <= 0.0 else float(betaincinv(successes + 1.0, failures, 1.0 - tail))
    return low, high


def fold_of(instance_id: str, num_folds: int = NUM_FOLDS) -> int:
    """Return the fold of a task, 0 to num_folds - 1: a function of its id alone."""
    digest = hashlib.sha256(f"{FOLD_SALT}/{instance_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % num_folds


def share_kept(sums: FoldSums) -> float:
    """Return what share of its chances an agent has kept, 0 to 1: 1 - (mean regret) / (mean V*); 1 without V*.

    By the identity outcome - V* = luck - regret it needs no sums of its own. It is exactly 1 for an agent without
    regret, whatever its luck was, and near 0 for one that hardly ever succeeds.
    """
    if sums.optimum <= 0.0:
        return 1.0
    return min(max(1.0 - (sums.luck - sums.gap) / sums.optimum, 0.0), 1.0)


def fit_beta(sums: FoldSums) -> float:
    """Return the slope of the outcome on luck beside V*, drawn to the share of its chances that the agent has kept.

    By the identity outcome - V* = luck - regret the slope is 1 - (slope of regret on luck). An agent that keeps the
    same share of every chance that luck gives it has that share as its slope, 1 if it loses nothing. So `share_kept` is
    the guess, which is held against the episodes with the weight of `PRIOR_EPISODES` of ordinary luck (ridge
    regression, Hoerl and Kennard 1970): small groups are adjusted by about that share, large ones by what they show.

    The outcome of a policy that fails everywhere does not follow V*, so how much it does is fitted as well (V* is taken
    out of both sides, Frisch and Waugh 1933); else the spread of V* would be noise in beta.

    Where every episode succeeded, the guess is all there is. An outcome that is always 1 has the slope 0, but only
    because luck decided which few episodes these are. Where none did, the slope is 0 (but for an agent that lost
    nothing): what seems to be kept then is only the luck that was bad.
    """
    if sums.count == 0.0:
        return 1.0
    prior, successes = share_kept(sums), sums.gap + sums.optimum
    if abs(successes) <= ROUNDING * sums.count and prior < 1.0 - ROUNDING:
        return 0.0
    ordinary = sums.luck_squared / sums.count  # the mean of luck is known to be 0
    if ordinary <= ROUNDING or abs(successes - sums.count) <= ROUNDING * sums.count:
        return prior
    covariance = sums.gap_luck - sums.gap * sums.luck / sums.count
    variance = sums.luck_squared - sums.luck * sums.luck / sums.count
    spread = sums.optimum_squared - sums.optimum * sums.optimum / sums.count
    if spread > ROUNDING * sums.count:
        shared = sums.luck_optimum - sums.luck * sums.optimum / sums.count
        covariance -= (sums.gap_optimum - sums.gap * sums.optimum / sums.count) * shared / spread
        variance -= shared * shared / spread
    weight = PRIOR_EPISODES * ordinary
    return min(max((covariance + weight * prior) / (max(variance, 0.0) + weight), BETA_RANGE[0]), BETA_RANGE[1])


def cross_fitted_betas(folds: Sequence[FoldSums]) -> list[float]:
    """Return for each fold the beta that is fitted on all other folds."""
    betas = []
    for held_out in range(len(folds)):
        others = FoldSums()
        for fold, sums in enumerate(folds):
            if fold != held_out:
                others = others + sums
        betas.append(fit_beta(others))
    return betas


def luck_adjusted_mean(
    outcome_sums: Sequence[float] | FloatArray,
    luck_sums: Sequence[float] | FloatArray,
    counts: Sequence[float] | FloatArray,
    betas: Sequence[float] | FloatArray | float,
    level: float = CONFIDENCE_LEVEL,
) -> Estimate:
    """Estimate mean(outcome - beta L) with a clustered t interval.

    Args:
        outcome_sums: Sum of outcomes per task; shape (num_tasks,).
        luck_sums: Sum of L per task; shape (num_tasks,).
        counts: Episodes per task; shape (num_tasks,).
        betas: The beta of each task's fold, shape (num_tasks,), or one number for all.
        level: Confidence level of the interval.
    """
    outcomes = np.asarray(outcome_sums, dtype=np.float64)
    luck = np.asarray(luck_sums, dtype=np.float64)
    return clustered_mean(outcomes - np.asarray(betas, dtype=np.float64) * luck, counts, level)
