"""Luck-adjusted scores: how much of the luck of episodes to take off their outcomes.

The law is known, so any function g of the state has a sum with mean zero, that of g(s_{t+1}) - E[g(s_{t+1}) | s_t, a_t]
over the messages of an episode, for every policy that does not see the draws. With g = V* it is the luck L. Such sums
are control variates: outcome - w c has the mean of the outcome for all weights w that do not depend on the same draws.
The weights are fitted for each fold of episodes on the other folds, whose draws are independent, so the score stays
unbiased, and the noise that the sums explain is gone.

For agents near the optimum L alone explains nearly everything; one that gives up early, say, is better explained by the
draws of the tools that it needs. So the slope on L, drawn to what an agent like this should have (`fit_beta`), is left
for one of several ridge regressions on L and others together, drawn to the first (Hoerl and Kennard 1970): the one that
foretells other folds best, as far as that is sure. Few episodes cannot tell: below `FEWEST_EPISODES` there is L alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from resilisim.statistics.estimates import ROUNDING, FloatArray, IntArray

NUM_FOLDS = 10
# A slope fitted on a handful of episodes can be anything. No guess and no bound can bias the score, because they do not
# look at the episodes that are scored.
BETA_RANGE = (0.0, 2.0)
PRIOR_EPISODES = 20.0  # from trials with 8 to 100 tasks; 10 to 40 hardly differ
FOLD_SALT = "resilisim/folds"

# What moments are of: sums of all products of these numbers of an episode, shape (NUM_NUMBERS, NUM_NUMBERS).
ONE, OPTIMUM, OUTCOME, LUCK = 0, 1, 2, 3
NUM_MORE: Final = 14  # sums with mean zero beside the luck
NUM_NUMBERS: Final = LUCK + 1 + NUM_MORE

# Which of them are weighted luck, and which are draws of required tools before any failure (`table.controls`).
WEIGHTED_LUCK, FIRST_DRAWS, ALL = slice(0, 4), slice(4, 9), slice(0, NUM_MORE)
# What is fitted beside luck, and how strongly it is drawn to the fit on luck alone, in episodes of ordinary size: few
# episodes tell few weights. From trials with one task and 20 to 300 seeds, and with 30 and 60 tasks.
CHOICES: Final = ((FIRST_DRAWS, 3.0), (WEIGHTED_LUCK, 3.0), (ALL, 10.0))
# Of other folds, for more than the slope on luck, of each policy: fewer hold so few of the rarer outcome that a fit on
# more can foretell all of them and still be far off. This must not hang on how many there are: whether luck alone is
# taken off would then depend on the rate that is estimated, and that costs more than it saves.
FEWEST_EPISODES: Final = 45
FEWEST_OF_EACH: Final = 3  # of them that succeeded, and that did not
LEAST_GAIN: Final = 0.3  # by which share a fit on more has to foretell better
LEAST_SCORE: Final = 2.0  # and by how many standard errors

Fit = Callable[[FloatArray], FloatArray]


def moments_of(
    outcome: FloatArray, optimum: FloatArray, luck: FloatArray, more: FloatArray | None = None
) -> FloatArray:
    """Return the moments of episodes.

    Args:
        outcome: Their outcomes; shape (num_episodes,).
        optimum: Their V*; shape (num_episodes,).
        luck: Their luck; shape (num_episodes,).
        more: Other sums with mean zero, shape (num_episodes, NUM_MORE); zeros if omitted.
    """
    more = np.zeros((len(outcome), NUM_MORE)) if more is None else more
    numbers = np.column_stack([np.ones_like(outcome), optimum, outcome, luck, more])
    moments: FloatArray = numbers.T @ numbers
    return moments


def fold_of(instance_id: str) -> int:
    """Return the fold of a task, 0 to NUM_FOLDS - 1: a function of its id alone."""
    digest = hashlib.sha256(f"{FOLD_SALT}/{instance_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % NUM_FOLDS


def fold_of_episodes(task_fold: NDArray[np.int64] | int, seed: NDArray[np.int64] | int) -> IntArray:
    """Return the fold of episodes: draws under other seeds are independent, so those of one task have several."""
    return np.asarray((np.asarray(task_fold) + np.asarray(seed) % NUM_FOLDS) % NUM_FOLDS, dtype=np.int64)


def share_kept(moments: FloatArray) -> float:
    """Return what share of its chances an agent has kept, 0 to 1: 1 - (mean regret) / (mean V*); 1 without V*.

    By the identity outcome - V* = luck - regret it needs no sums of its own. It is exactly 1 for an agent without
    regret, whatever its luck was, and near 0 for one that hardly ever succeeds.
    """
    optimum, outcome, luck = map(float, moments[ONE, [OPTIMUM, OUTCOME, LUCK]])
    if optimum <= 0.0:
        return 1.0
    return min(max(1.0 - (luck - (outcome - optimum)) / optimum, 0.0), 1.0)


def fit_beta(moments: FloatArray) -> float:
    """Return the slope of the outcome on luck beside V*, drawn to the share of its chances that the agent has kept.

    An agent that keeps the same share of every chance that luck gives it has that share as its slope, 1 if it loses
    nothing. So `share_kept` is the guess, held against the episodes with the weight of `PRIOR_EPISODES` of ordinary
    luck. How much the outcome follows V* is fitted as well; else the spread of V* would be noise in beta.

    Where every episode succeeded, the guess is all there is: an outcome that is always 1 has the slope 0, but only
    because luck decided which few episodes these are. Where none did, the slope is 0 (but for an agent that lost
    nothing): what seems to be kept then is only the luck that was bad.
    """
    count, successes = float(moments[ONE, ONE]), float(moments[ONE, OUTCOME])
    if count == 0.0:
        return 1.0
    prior = share_kept(moments)
    if abs(successes) <= ROUNDING * count and prior < 1.0 - ROUNDING:
        return 0.0
    if moments[LUCK, LUCK] <= ROUNDING * count or abs(successes - count) <= ROUNDING * count:
        return prior
    _, optimum, _, luck = map(float, moments[ONE, : LUCK + 1])
    _, optimum_squared, outcome_optimum, luck_optimum = map(float, moments[OPTIMUM, : LUCK + 1])
    _, _, outcome_luck, luck_squared = map(float, moments[LUCK, : LUCK + 1])
    covariance = outcome_luck - successes * luck / count
    variance = luck_squared - luck * luck / count
    spread = optimum_squared - optimum * optimum / count
    if spread > ROUNDING * count:  # V* is taken out of both sides (Frisch and Waugh 1933)
        shared = luck_optimum - luck * optimum / count
        covariance -= (outcome_optimum - successes * optimum / count) * shared / spread
        variance -= shared * shared / spread
    weight = PRIOR_EPISODES * luck_squared / count  # of ordinary luck, whose mean is known to be 0
    return min(max((covariance + weight * prior) / (max(variance, 0.0) + weight), BETA_RANGE[0]), BETA_RANGE[1])


def _residual_slopes(moments: FloatArray, target: int) -> FloatArray:
    """Return the slopes of the target and of all behind it on what is before it; (..., target, 1 + num_controls)."""
    before = np.linalg.pinv(moments[..., :target, :target], rcond=ROUNDING, hermitian=True)
    slopes: FloatArray = before @ moments[..., :target, target:]
    return slopes


def ridge(
    moments: FloatArray, target: int, guess: FloatArray, strength: float, chosen: NDArray[np.bool_]
) -> FloatArray:
    """Return the weights of the numbers behind a target in a regression of it on them and on those before it.

    What stands before the target is taken out of both sides (Frisch and Waugh 1933).

    Args:
        moments: Sums of products of the numbers, the first of which is 1; shape (..., num_numbers, num_numbers).
        target: Place of the target.
        guess: What weights are drawn to; shape (..., num_controls), num_controls = num_numbers - target - 1.
        strength: How strongly, in episodes of ordinary size (mean square: their means are known to be 0).
        chosen: Which of the controls there are, shape (num_controls,); the others have the weight 0.
    """
    slopes = _residual_slopes(moments, target)
    partial = moments[..., target:, target:] - moments[..., target:, :target] @ slopes
    size = np.diagonal(moments, axis1=-2, axis2=-1)[..., target + 1 :] / np.maximum(moments[..., :1, 0], 1.0)
    used = (size > ROUNDING) & chosen
    pull = strength * size
    squares = np.where(used[..., None] & used[..., None, :], partial[..., 1:, 1:], 0.0)
    squares = squares + np.where(used, pull, 1.0)[..., None] * np.eye(squares.shape[-1])
    products = np.where(used, partial[..., 1:, 0] + pull * guess, 0.0)
    weights: FloatArray = np.linalg.solve(squares, products[..., None])[..., 0]
    return weights


def unexplained(moments: FloatArray, fitted_on: FloatArray, target: int, weights: FloatArray) -> FloatArray:
    """Return the sum of squares of what weights leave of the target; shape (...,).

    What stands before the target is fitted elsewhere. Shapes: (..., num_numbers, num_numbers) twice, and
    (..., num_controls).
    """
    left = np.concatenate([np.ones((*weights.shape[:-1], 1)), -weights], axis=-1)  # of the target and what is behind it
    slopes = np.einsum("...ij,...j->...i", _residual_slopes(fitted_on, target), left)
    residual = np.concatenate([-slopes, left], axis=-1)
    squares: FloatArray = np.einsum("...i,...ij,...j->...", residual, moments, residual)
    return squares


def fit_controls(folds: FloatArray, target: int, first: Fit, num_sides: int = 1) -> FloatArray:
    """Return the weights of control variates, fitted on some folds: by a first fit, or where it is better by ridge.

    Which fit is better is told by how well each foretells every fold from the others. One on more than luck must be
    better by more than folds differ in that, and is gone to as far as it is: by 1 - (LEAST_SCORE noise / gain)^2 of the
    way from the first, which is 0 where the gain could be noise and near 1 where it is far from that (the shrinkage of
    James and Stein 1961).

    Args:
        folds: Moments of each fold; shape (num_folds, num_numbers, num_numbers).
        target: Place of the target among the numbers; the controls stand behind it: the luck of each side, then the
            other sums of each.
        first: The first fit: takes moments and returns weights, shape (num_numbers - target - 1,).
        num_sides: How many policies the controls are of.
    """
    folds = folds[folds[:, 0, 0] > 0.0]
    total = folds.sum(axis=0) if len(folds) else np.zeros(folds.shape[1:])
    plain, count = first(total), float(total[0, 0])
    spread = float(total[target, target]) - float(total[0, target]) ** 2 / max(count, 1.0)
    has_more = len(plain) == num_sides * (1 + NUM_MORE)
    enough = len(folds) > 1 and count >= FEWEST_EPISODES * num_sides
    enough = enough and spread >= FEWEST_OF_EACH * (1.0 - FEWEST_OF_EACH / count)
    if not has_more or not enough:
        return plain
    others = total - folds
    guesses = np.array([first(one) for one in others])
    left = unexplained(folds, others, target, guesses)  # (num_folds,)
    if float(left.sum()) <= ROUNDING * count:
        return plain  # luck explains everything
    best, most = plain, 0.0
    for which, strength in CHOICES:
        of_side = np.zeros(NUM_MORE, dtype=np.bool_)
        of_side[which] = True
        chosen = np.concatenate([np.ones(num_sides, dtype=np.bool_), *[of_side] * num_sides])
        if np.diagonal(total)[target + 1 :][chosen][num_sides:].max() <= ROUNDING * count:
            continue  # nothing but luck
        fits = ridge(others, target, guesses, strength, chosen)
        gains = left - unexplained(folds, others, target, fits)  # (num_folds,)
        gain, noise = float(gains.sum()), float(gains.std(ddof=1)) * len(folds) ** 0.5
        if gain <= max(LEAST_GAIN * float(left.sum()), LEAST_SCORE * noise):
            continue
        share = 1.0 - (LEAST_SCORE * noise / gain) ** 2
        if share * gain > most:
            best, most = plain + share * (ridge(total, target, plain, strength, chosen) - plain), share * gain
    return best


def cross_fitted(folds: FloatArray, target: int, first: Fit, num_sides: int = 1) -> FloatArray:
    """Return for each fold the weights that are fitted on all others (`fit_controls`); shape (num_folds, num_controls).

    Folds are added up anew for each: a total minus the fold's own sums would keep their rounding, and a look at them.
    """
    others = (np.delete(folds, fold, axis=0) for fold in range(len(folds)))
    return np.array([fit_controls(rest, target, first, num_sides) for rest in others])


def cross_fitted_weights(folds: FloatArray) -> FloatArray:
    """Return for each fold the weights of luck and of the other sums; shape (NUM_FOLDS, 1 + NUM_MORE).

    Args:
        folds: Moments of each fold; shape (NUM_FOLDS, NUM_NUMBERS, NUM_NUMBERS).
    """

    def first(moments: FloatArray) -> FloatArray:
        return np.array([fit_beta(moments), *[0.0] * NUM_MORE])

    return cross_fitted(folds, OUTCOME, first)
