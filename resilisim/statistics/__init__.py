"""Statistics of episodes: clustered rates, luck-adjusted scores, paired differences, sample sizes.

They take plain arrays, so that every floor can use them. The unit that varies is the task: episodes of one task
resemble each other, and all sums are by task.
"""

from __future__ import annotations

from resilisim.statistics.comparison import METHODS, Pairs, compare_pairs
from resilisim.statistics.estimates import (
    Estimate,
    clopper_pearson,
    clustered_mean,
    clustered_proportion,
    clustered_ratio,
    holm,
    pass_at_k,
    pass_hat_k,
)
from resilisim.statistics.luck import FoldSums, cross_fitted_betas, fold_of, luck_adjusted_mean
from resilisim.statistics.power import plan_sample, power_of_test, tasks_needed
from resilisim.statistics.product_rates import Bounded, ProductRates, fit_product_rates

__all__ = [
    "METHODS",
    "Bounded",
    "Estimate",
    "FoldSums",
    "Pairs",
    "ProductRates",
    "clopper_pearson",
    "clustered_mean",
    "clustered_proportion",
    "clustered_ratio",
    "compare_pairs",
    "cross_fitted_betas",
    "fit_product_rates",
    "fold_of",
    "holm",
    "luck_adjusted_mean",
    "pass_at_k",
    "pass_hat_k",
    "plan_sample",
    "power_of_test",
    "tasks_needed",
]
