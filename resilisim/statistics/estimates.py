"""Means, ratios, rates and pass@k, knowing that episodes of one task resemble each other.

Everything is computed from sums per task (the cluster), so memory depends on the number of tasks and not of episodes.
The tests pin each function to its naive definition over the single episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError, check_integer

CONFIDENCE_LEVEL = 0.95
NORMAL_95 = 1.959964  # two-sided 95% quantile of the normal distribution
ROUNDING = 1e-12  # a standard error, or a mean of squares, below it is 0

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Numbers = Sequence[int] | Sequence[float] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its uncertainty.

    Attributes:
        value: The estimate; NaN when there is nothing to estimate from.
        standard_error: Its clustered standard error; NaN with fewer than two clusters.
        low: Lower end of the 95% interval; NaN where the standard error is.
        high: Upper end.
        num_clusters: Number of units that vary behind it: tasks, or with a single one seeds (`EpisodeTable.units`).
        num_episodes: Number of episodes behind it.

    Example:
        >>> from resilisim.statistics import Estimate
        >>> Estimate(0.5, 0.1, 0.3, 0.7, num_clusters=20, num_episodes=60).to_mapping()["value"]
        0.5
    """

    value: float
    standard_error: float
    low: float
    high: float
    num_clusters: int
    num_episodes: int

    @classmethod
    def nothing(cls, num_clusters: int = 0, num_episodes: int = 0, value: float = math.nan) -> Estimate:
        """Return an estimate without an interval, and without a value where none is given."""
        return cls(value, math.nan, math.nan, math.nan, num_clusters, num_episodes)

    def cut(self, least: float = 0.0, most: float = math.inf) -> Estimate:
        """Cut off what the interval has where the quantity cannot be, but never the value itself.

        An adjusted value may lie outside by luck; then the interval ends there.
        """
        if math.isnan(self.low):
            return self
        low, high = min(max(self.low, least), self.value), max(min(self.high, most), self.value)
        return replace(self, low=low, high=high)

    def to_mapping(self) -> dict[str, float | int | None]:
        """Return the fields as JSON values; NaN becomes None."""
        return {name: finite_or_none(number) for name, number in asdict(self).items()}


def finite_or_none(number: float) -> float | None:
    """Return a number as a JSON value: None for NaN and infinities."""
    return number if math.isfinite(number) else None


def to_json(value: Any) -> Any:
    """Return results as JSON values: of dataclasses their `to_mapping` or else their fields, numbers finite or None."""
    if isinstance(value, float):
        return finite_or_none(value)
    if hasattr(value, "to_mapping"):
        return value.to_mapping()
    if is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, tuple | list) else value


def fields_to_json(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values."""
    return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}


def t_quantile(num_clusters: int, level: float = CONFIDENCE_LEVEL) -> float:
    """Return the two-sided quantile of Student's t with one degree of freedom less than clusters; NaN below two."""
    if num_clusters < 2:
        return math.nan
    from scipy.special import stdtrit  # a quarter of a second, which only a finished run should pay

    return float(stdtrit(num_clusters - 1, 0.5 + level / 2.0))


def clustered_ratio(
    numerators: Numbers, denominators: Numbers, num_episodes: int, level: float = CONFIDENCE_LEVEL
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
        return Estimate.nothing(count, num_episodes)
    ratio = float(y.sum()) / total
    if count < 2:
        return Estimate.nothing(count, num_episodes, ratio)
    residuals = y - ratio * x
    error = math.sqrt(count / (count - 1) * float(residuals @ residuals)) / abs(total)
    half_width = t_quantile(count, level) * error
    return Estimate(ratio, error, ratio - half_width, ratio + half_width, count, num_episodes)


def clustered_mean(sums: Numbers, counts: Numbers, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Estimate the mean over episodes from one sum and one count per cluster, with a clustered t interval."""
    weights = np.asarray(counts, dtype=np.float64)
    return clustered_ratio(sums, weights, int(weights.sum()), level)


def with_unseen(estimate: Estimate, least: float = 0.0, most: float = 1.0, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Return a mean with room for deviations that are too rare to have turned up, between `least` and `most`.

    Where nearly nothing is left of the noise, what is left are rare and large deviations, an agent's own mistakes say,
    and the standard error of episodes that have met none knows nothing of them. Among n clusters without one (tasks, or
    the seeds of a single one), up to 1 - (1 - level)^(1 / n) of all can be off (Clopper and Pearson 1934, on one side),
    by as much as an outcome can be: down to `least`, or up to `most`. Each end of the interval is as far off as this
    and what it was before together, their squares added up, and the standard error is that of a t interval as wide.

    Of an agent whose episodes are alike but for rare ones that lose everything, 93 to 95% of the intervals of 95% hold
    the truth, however rare these are; of the difference of two such agents, at least 93%. Those of agents without such
    losses are as wide, since no sample tells the one from the other, and more of them hold it, up to all where nothing
    is left of the noise.
    """
    if math.isnan(estimate.standard_error):
        return estimate
    quantile, value = t_quantile(estimate.num_clusters, level), min(max(estimate.value, least), most)
    share = 1.0 - (1.0 - level) ** (1.0 / estimate.num_clusters)
    down = math.hypot(estimate.value - estimate.low, share * (value - least))
    up = math.hypot(estimate.high - estimate.value, share * (most - value))
    error = (down + up) / (2.0 * quantile)
    return replace(estimate, standard_error=error, low=estimate.value - down, high=estimate.value + up)


def clustered_proportion(successes: Numbers, counts: Numbers, level: float = CONFIDENCE_LEVEL) -> Estimate:
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


def clopper_pearson(successes: float, trials: float, level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
    """Return the exact interval of a success rate (Clopper and Pearson 1934); both numbers may be fractions."""
    from scipy.special import betaincinv  # see t_quantile

    tail, failures = 0.5 - level / 2.0, trials - successes
    low = 0.0 if successes <= 0.0 else float(betaincinv(successes, failures + 1.0, tail))
    high = 1.0 if failures <= 0.0 else float(betaincinv(successes + 1.0, failures, 1.0 - tail))
    return low, high


def pass_at_k(successes: Numbers, episodes: Numbers, k: int, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Estimate pass@k: the mean over tasks of the chance that at least one of k episodes succeeds.

    A try is an episode of the task with another seed. With c successes in n episodes of a task, the share of all
    choices of k episodes without a success is C(n - c, k) / C(n, k) (Chen et al. 2021), that of choices with nothing
    but successes is C(c, k) / C(n, k) (Yao et al. 2024, `pass_hat_k`). Both are unbiased for any n >= k, which
    (c / n)^k and 1 - (1 - c / n)^k are not.

    Tasks with fewer than k episodes say nothing about it and are left out; `num_clusters` and `num_episodes` of the
    result count the others. The interval is that of `clustered_proportion` over tasks, and NaN with fewer than two of
    them unless all agree.

    Args:
        successes: c, full successes per task; shape (num_tasks,).
        episodes: n, episodes per task; shape (num_tasks,).
        k: Number of tries.
        level: Confidence level of the interval.

    Raises:
        InvalidInputError: k is below 1, or a task has more successes than episodes.

    Example:
        >>> from resilisim.statistics import pass_at_k
        >>> pass_at_k([1, 2], [2, 2], k=2).value
        1.0
    """
    won, tried = _counts(successes, episodes, k)
    return _mean_over_tasks(1.0 - _share_of_choices(tried - won, tried, k), tried, k, level)


def pass_hat_k(successes: Numbers, episodes: Numbers, k: int, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Estimate pass^k: the mean over tasks of the chance that all of k episodes succeed; otherwise as `pass_at_k`.

    Example:
        >>> from resilisim.statistics import pass_hat_k
        >>> pass_hat_k([1, 2], [2, 2], k=2).value
        0.5
    """
    won, tried = _counts(successes, episodes, k)
    return _mean_over_tasks(_share_of_choices(won, tried, k), tried, k, level)


def _counts(successes: Numbers, episodes: Numbers, k: int) -> tuple[FloatArray, FloatArray]:
    check_integer("k", k, 1)
    won, tried = np.asarray(successes, dtype=np.float64), np.asarray(episodes, dtype=np.float64)
    wrong = (won < 0) | (won > tried)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise InvalidInputError(
            f"{won[place]:g} successes in {tried[place]:g} episodes: expected 0 to {tried[place]:g}"
        )
    return won, tried


def _share_of_choices(good: FloatArray, total: FloatArray, k: int) -> FloatArray:
    """Return C(good, k) / C(total, k) by task, as a product that cannot overflow; without meaning where total < k."""
    shares = np.ones_like(total)
    for drawn in range(k):
        left = np.maximum(total - drawn, 1.0)
        shares *= np.maximum(good - drawn, 0.0) / left
    return shares


def _mean_over_tasks(by_task: FloatArray, episodes: FloatArray, k: int, level: float) -> Estimate:
    known = episodes >= k
    values = by_task[known]
    estimate = clustered_proportion(values, np.ones_like(values), level)
    return replace(estimate, num_episodes=int(episodes[known].sum()))
