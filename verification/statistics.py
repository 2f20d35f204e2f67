"""The tests that the checks use; their p-values are pinned to other ways to compute them in tests/verification."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FloatArray = NDArray[np.float64]

MIN_EXPECTED = 5.0  # the customary smallest expected count for the chi-square approximation


@dataclass(frozen=True, slots=True)
class TestResult:
    """A statistic and its p-value.

    Attributes:
        text: The statistic, as it is shown.
        p_value: How likely one at least as extreme is under the hypothesis.
    """

    __test__ = False  # the name must not make pytest collect it

    text: str
    p_value: float


def chi_square_of_groups(observed: Any, probabilities: Any) -> TestResult:
    """Test counts of outcomes in groups against known probabilities.

    Every group contributes the quadratic form of its differences under the multinomial covariance. Groups in which an
    outcome (other than an impossible one) is expected fewer than MIN_EXPECTED times are added up to one group first,
    outcome by outcome, each with its own probabilities.

    Args:
        observed: (num_groups, num_outcomes) counts.
        probabilities: (num_groups, num_outcomes) probabilities, each row summing to 1.

    Returns:
        The chi-square test; p is 0 if something impossible was observed.
    """
    counts = np.asarray(observed, dtype=np.float64)
    chances = np.asarray(probabilities, dtype=np.float64)
    expected = counts.sum(axis=1, keepdims=True) * chances
    if np.any(counts[chances <= 0.0] > 0):
        return TestResult("an impossible outcome was observed", 0.0)
    small = np.any((chances > 0.0) & (expected < MIN_EXPECTED), axis=1)
    statistic, degrees = 0.0, 0
    pooled_difference = np.zeros(counts.shape[1])
    pooled_covariance = np.zeros((counts.shape[1], counts.shape[1]))
    pooled_expected = np.zeros(counts.shape[1])
    for row, is_small in enumerate(small):
        difference = counts[row] - expected[row]
        if is_small:
            total = counts[row].sum()
            pooled_difference += difference
            pooled_covariance += total * (np.diag(chances[row]) - np.outer(chances[row], chances[row]))
            pooled_expected += expected[row]
            continue
        possible = chances[row] > 0.0
        # For one multinomial the quadratic form is Pearson's sum.
        statistic += float(np.sum(difference[possible] ** 2 / expected[row][possible]))
        degrees += int(possible.sum()) - 1
    if np.all(pooled_expected[pooled_expected > 0.0] >= MIN_EXPECTED) and pooled_expected.any():
        statistic += float(pooled_difference @ np.linalg.pinv(pooled_covariance, hermitian=True) @ pooled_difference)
        degrees += int(np.linalg.matrix_rank(pooled_covariance, hermitian=True))
    return _chi_square(statistic, degrees)


def chi_square_of_table(observed: Any) -> TestResult:
    """Test a table of counts of any shape against equal probabilities for all its cells."""
    counts = np.asarray(observed, dtype=np.float64).ravel()
    expected = counts.sum() / counts.size
    if expected < MIN_EXPECTED:
        raise ValueError(f"{expected:.2f} counts are expected in each cell: at least {MIN_EXPECTED} are needed")
    result = stats.chisquare(counts)
    return TestResult(f"chi2({counts.size - 1}) = {result.statistic:.1f}", float(result.pvalue))


def chi_square_of_rows(observed: Any) -> TestResult:
    """Test counts (num_rows, num_bins) against equal probabilities for the bins of each row."""
    counts = np.asarray(observed, dtype=np.float64)
    uniform = np.full(counts.shape, 1.0 / counts.shape[1])
    return chi_square_of_groups(counts, uniform)


def chi_square_of_scores(scores: Any) -> TestResult:
    """Test numbers that are standard normal and independent under the hypothesis, by the sum of their squares."""
    values = np.asarray(scores, dtype=np.float64).ravel()
    return _chi_square(float(values @ values), values.size)


def worst_cell(successes: Any, trials: Any, probabilities: Any) -> TestResult:
    """Test binomial counts by the most extreme one: its exact two-sided p-value times the number of cells.

    An omnibus chi-square over many cells can miss one that is wrong; this cannot.
    """
    counts, totals = np.asarray(successes), np.asarray(trials)
    chances = np.asarray(probabilities, dtype=np.float64)
    lower = stats.binom.cdf(counts, totals, chances)
    upper = stats.binom.sf(counts - 1, totals, chances)
    p_values = np.minimum(1.0, 2.0 * np.minimum(lower, upper))
    return TestResult(f"worst of {p_values.size} cells", min(1.0, float(p_values.min()) * p_values.size))


def uniform_correlation(one: Any, other: Any) -> TestResult:
    """Test two samples of uniforms on [0, 1) for correlation, with the known mean and variance of a uniform."""
    x, y = np.asarray(one, dtype=np.float64).ravel(), np.asarray(other, dtype=np.float64).ravel()
    score = 12.0 * float((x - 0.5) @ (y - 0.5)) / math.sqrt(x.size)
    return normal_score(score)


def normal_score(score: float) -> TestResult:
    """Test a number that is standard normal under the hypothesis, both sides."""
    return TestResult(f"z = {score:+.2f}", 2.0 * float(stats.norm.sf(abs(score))))


def not_below(score: float) -> TestResult:
    """Test that a mean is not below its bound, given its standard score; only low scores count against it."""
    return TestResult(f"z = {score:+.2f} (one-sided)", float(stats.norm.cdf(score)))


def at_least_rate(count: int, trials: int, rate: float) -> TestResult:
    """Test that a rate is not below its bound, by the binomial distribution; only low counts count against it."""
    return TestResult(f"{100.0 * count / trials:.1f}%", stats.binomtest(count, trials, rate, "less").pvalue)


def at_most_rate(count: int, trials: int, rate: float) -> TestResult:
    """Test that a rate is not above its bound; only high counts count against it."""
    return TestResult(f"{100.0 * count / trials:.1f}%", stats.binomtest(count, trials, rate, "greater").pvalue)


def within_rates(count: int, trials: int, low: float, high: float) -> TestResult:
    """Test that a rate is not below one bound and not above another, by the binomial distribution at each."""
    least, most = at_least_rate(count, trials, low), at_most_rate(count, trials, high)
    return TestResult(least.text, min(1.0, 2.0 * min(least.p_value, most.p_value)))


def worst_of(results: Mapping[str, TestResult]) -> TestResult:
    """Return the most extreme of several tests by name, its p-value times their number (Bonferroni)."""
    name = min(results, key=lambda one: results[one].p_value)
    worst = results[name]
    text = f"worst of {len(results)}: {worst.text} ({name})" if len(results) > 1 else f"{worst.text} ({name})"
    return TestResult(text, min(1.0, worst.p_value * len(results)))


def too_many(count: int, expected: float) -> TestResult:
    """Test a count of rare coincidences against its Poisson expectation; only high counts count against it."""
    return TestResult(f"{count}, expected {expected:.2g}", float(stats.poisson.sf(count - 1, expected)))


def clustered_mean_is(values: Any, expected: Any = 0.0) -> TestResult:
    """Test the mean of equally many episodes of each cluster, by Student's t over clusters.

    Args:
        values: (num_clusters, num_episodes) numbers.
        expected: What the mean should be: a number, or (num_clusters,) one for each cluster.
    """
    sample = np.asarray(values, dtype=np.float64)
    means = sample.mean(axis=1) - np.asarray(expected, dtype=np.float64)
    error = float(means.std(ddof=1)) / math.sqrt(means.size)
    mean = float(means.mean())
    if error < 1e-12:  # nothing is left to chance
        return TestResult(f"off by {mean:.1e} without noise", 1.0 if abs(mean) < 1e-9 else 0.0)
    result = stats.ttest_1samp(means, 0.0)
    return TestResult(f"t = {result.statistic:+.2f}, off by {mean:+.5f}", float(result.pvalue))


def binomial_groups(successes: Sequence[int], trials: Sequence[int], probabilities: Sequence[float]) -> TestResult:
    """Test binomial counts against known probabilities (chi-square; sparse groups are pooled)."""
    won, total = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    chances = np.asarray(probabilities, dtype=np.float64)
    return chi_square_of_groups(np.stack([won, total - won], axis=1), np.stack([chances, 1.0 - chances], axis=1))


def _chi_square(statistic: float, degrees: int) -> TestResult:
    if degrees < 1:
        raise ValueError("no group is large enough to be tested: simulate more")
    p_value = float(stats.chi2.sf(statistic, degrees))
    return TestResult(f"chi2({degrees}) = {statistic:.1f}", p_value)
