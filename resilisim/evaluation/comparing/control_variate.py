"""The control variate of a difference: how much of each policy's luck to take off, fitted on other tasks.

Both lucks have mean zero on every task, so mean(D - beta_a L_a + beta_b L_b), D being the difference of outcomes, has
the mean of D for all betas that do not look at the same luck. The best betas are those of the regression of D on both
lucks together: where two policies act alike their lucks cancel in D, and the betas of each alone would not see it.

A regression on a few tasks can give any slope, and a wrong slope adds noise. Two things keep it from that:
- it is drawn to beta = 1, which is right for agents whose regret does not depend on their luck, with the weight of
  `PRIOR_PAIRS` pairs of ordinary luck (ridge regression, Hoerl and Kennard 1970); with nothing to fit it is 1;
- where many other pairs always have the same difference of outcomes (both policies always fail, say) though their lucks
  differ, luck explains nothing, and the betas are 0.
Neither looks at the tasks that are scored, so neither can bias the difference.
"""

from __future__ import annotations

import numpy as np

from resilisim.evaluation.comparing.episode_table import IntArray
from resilisim.evaluation.comparing.pairing import Pairs
from resilisim.evaluation.statistics import NUM_FOLDS, FloatArray

PRIOR_BETA = 1.0
PRIOR_PAIRS = 20.0  # from trials with 5 to 100 tasks: fewer are noisy below 20 tasks, more are slow to learn
MANY_PAIRS = 50
_NOTHING = 1e-15  # means of squares below this are zero


def adjusted_terms(pairs: Pairs) -> tuple[FloatArray, FloatArray]:
    """Return the luck-adjusted difference of every pair, and the betas that were used.

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
