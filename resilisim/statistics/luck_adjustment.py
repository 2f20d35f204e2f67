"""Luck-adjusted scores: how much of the luck of episodes to take off their outcomes.

The luck of an episode, L = sum over its messages of V*(s_{t+1}) - Q*(s_t, a_t), has mean zero for every policy that
does not see the draws, so outcome - beta L has the mean of the outcome for every beta that does not depend on the same
luck. Beta is fitted for each fold of tasks on the other folds: the tasks' luck is independent, so the score stays
unbiased, and the noise that luck explains is gone. Where few episodes can tell beta, it stays near a guess
(`fit_beta`).
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np

from resilisim.statistics.estimates import CONFIDENCE_LEVEL, ROUNDING, Estimate, FloatArray, Numbers, clustered_mean

NUM_FOLDS = 10
# A slope fitted on a handful of episodes can be anything. No guess and no bound can bias the score, because they do not
# look at the tasks that are scored.
BETA_RANGE = (0.0, 2.0)
PRIOR_EPISODES = 20.0  # from trials with 8 to 100 tasks; 10 to 40 hardly differ
FOLD_SALT = "resilisim/folds"


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
    def of_episodes(cls, outcome: FloatArray, optimum: FloatArray, luck: FloatArray) -> FoldSums:
        """Return the sums of episodes, given as arrays of shape (num_episodes,)."""
        gap = outcome - optimum
        products = (gap @ luck, luck @ luck, optimum.sum(), optimum @ optimum, gap @ optimum, luck @ optimum)
        return cls(float(len(gap)), float(gap.sum()), float(luck.sum()), *map(float, products))

    def __add__(self, other: FoldSums) -> FoldSums:
        """Return the sums over both."""
        return FoldSums(*map(operator.add, astuple(self), astuple(other)))


NUM_MOMENTS = len(fields(FoldSums))


def moments_of(outcome: float, optimum: float, luck: float) -> tuple[float, ...]:
    """Return what one episode adds to each of `FoldSums`, in their order."""
    gap = outcome - optimum
    return (1.0, gap, luck, gap * luck, luck * luck, optimum, optimum * optimum, gap * optimum, luck * optimum)


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

    An agent that keeps the same share of every chance that luck gives it has that share as its slope, 1 if it loses
    nothing. So `share_kept` is the guess, held against the episodes with the weight of `PRIOR_EPISODES` of ordinary
    luck (ridge regression, Hoerl and Kennard 1970). How much the outcome follows V* is fitted as well (V* is taken out
    of both sides, Frisch and Waugh 1933); else the spread of V* would be noise in beta.

    Where every episode succeeded, the guess is all there is: an outcome that is always 1 has the slope 0, but only
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
    # Added up anew for each fold: a total minus the fold's own sums would keep their rounding, and a look at them.
    return [fit_beta(sum((*folds[:place], *folds[place + 1 :]), FoldSums())) for place in range(len(folds))]


def luck_adjusted_mean(
    outcome_sums: Numbers, luck_sums: Numbers, counts: Numbers, betas: Numbers | float, level: float = CONFIDENCE_LEVEL
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
