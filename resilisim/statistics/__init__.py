"""Statistics of episodes: clustered rates, luck-adjusted scores, paired differences, sample sizes.

They take plain arrays, so that every floor can use them. The unit that varies is the task: episodes of one task
resemble each other, and all sums are by task.

Example:
    >>> clustered_proportion([3, 1, 0, 2], [3, 3, 3, 3]).value
    0.5
"""

from __future__ import annotations

from resilisim.statistics.comparison import (
    SAME_TASKS,
    Comparison,
    VarianceParts,
    compare_pairs,
    independent_luck_episodes,
    pool_comparisons,
    variance_parts,
)
from resilisim.statistics.differences import (
    INDEPENDENT,
    MCNEMAR,
    METHODS,
    NO_EPISODE_DIFFERS,
    NO_LUCK,
    PAIRED,
    PAIRED_LUCK_ADJUSTED,
    Difference,
    Pairs,
    adjusted_terms,
    without_variation,
)
from resilisim.statistics.estimates import (
    CONFIDENCE_LEVEL,
    NORMAL_95,
    ROUNDING,
    Estimate,
    FloatArray,
    IntArray,
    clopper_pearson,
    clustered_mean,
    clustered_proportion,
    clustered_ratio,
    fields_to_json,
    finite_or_none,
    holm,
    pass_at_k,
    pass_hat_k,
    t_quantile,
    to_json,
    within_range,
)
from resilisim.statistics.luck import (
    NUM_FOLDS,
    FoldSums,
    cross_fitted_betas,
    fit_beta,
    fold_of,
    luck_adjusted_mean,
    moments_of,
    share_kept,
)
from resilisim.statistics.power import SEEDS, PowerPlan, SampleSize, plan_sample, power_of_test, tasks_needed

__all__ = [
    "CONFIDENCE_LEVEL",
    "INDEPENDENT",
    "MCNEMAR",
    "METHODS",
    "NORMAL_95",
    "NO_EPISODE_DIFFERS",
    "NO_LUCK",
    "NUM_FOLDS",
    "PAIRED",
    "PAIRED_LUCK_ADJUSTED",
    "ROUNDING",
    "SAME_TASKS",
    "SEEDS",
    "Comparison",
    "Difference",
    "Estimate",
    "FloatArray",
    "FoldSums",
    "IntArray",
    "Pairs",
    "PowerPlan",
    "SampleSize",
    "VarianceParts",
    "adjusted_terms",
    "clopper_pearson",
    "clustered_mean",
    "clustered_proportion",
    "clustered_ratio",
    "compare_pairs",
    "cross_fitted_betas",
    "fields_to_json",
    "finite_or_none",
    "fit_beta",
    "fold_of",
    "holm",
    "independent_luck_episodes",
    "luck_adjusted_mean",
    "moments_of",
    "pass_at_k",
    "pass_hat_k",
    "plan_sample",
    "pool_comparisons",
    "power_of_test",
    "share_kept",
    "t_quantile",
    "tasks_needed",
    "to_json",
    "variance_parts",
    "within_range",
    "without_variation",
]
