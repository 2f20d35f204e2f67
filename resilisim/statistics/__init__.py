"""Statistics of episodes: clustered rates, luck-adjusted scores, paired differences, sample sizes.

They take plain arrays, so that every floor can use them. The unit that varies is the task: episodes of one task
resemble each other, and all sums are by task.
"""

from __future__ import annotations

from resilisim.statistics.comparison import Pairs, compare_pairs
from resilisim.statistics.estimates import Estimate, pass_at_k, pass_hat_k

__all__ = ["Estimate", "Pairs", "compare_pairs", "pass_at_k", "pass_hat_k"]
