"""The statistics of the verification, pinned to other ways to compute them, and able to reject."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from verification.statistics import (
    TestResult,
    at_least_rate,
    binomial_groups,
    chi_square_of_groups,
    chi_square_of_rows,
    chi_square_of_scores,
    chi_square_of_table,
    clustered_mean_is,
    normal_score,
    not_below,
    too_many,
    uniform_correlation,
    worst_cell,
    worst_of,
)

RANDOM = np.random.Generator(np.random.Philox(1))
TABLE = RANDOM.integers(80, 120, (4, 5))
VALUES, REFERENCES = RANDOM.normal(0.1, 1.0, (30, 12)), RANDOM.normal(0.0, 1.0, 30)
GROUPS, CHANCES = [[30, 70], [55, 45], [21, 79]], [[0.3, 0.7], [0.5, 0.5], [0.25, 0.75]]
OF_GROUPS = sum(
    stats.chisquare(row, 100 * np.array(chance)).statistic for row, chance in zip(GROUPS, CHANCES, strict=True)
)
OF_ROWS = sum(stats.chisquare(row).statistic for row in TABLE)
SCORE = normal_score((70 - 100 * 0.6) / math.sqrt(100 * 0.6 * 0.4))
SPARSE = normal_score((12 - 4 * 3 * 0.9 - 4 * 3 * 0.2) / math.sqrt(12 * 0.09 + 12 * 0.16))

# A test, and its p-value by another way.
PINNED = {
    "groups add up": (chi_square_of_groups(GROUPS, CHANCES), stats.chi2.sf(OF_GROUPS, 3)),
    "two outcomes are the squared normal score": (chi_square_of_groups([[70, 30]], [[0.6, 0.4]]), SCORE.p_value),
    "a binomial group likewise": (binomial_groups([70], [100], [0.6]), SCORE.p_value),
    "sparse groups are pooled with their own variances": (
        chi_square_of_groups([[2, 1]] * 4 + [[1, 2]] * 4, [[0.9, 0.1]] * 4 + [[0.2, 0.8]] * 4),
        SPARSE.p_value,
    ),
    "impossible outcomes are rejected": (chi_square_of_groups([[50, 49, 1]], [[0.5, 0.5, 0.0]]), 0.0),
    "rows": (chi_square_of_rows(TABLE), stats.chi2.sf(OF_ROWS, 16)),
    "scores": (chi_square_of_scores([1.0, 2.0]), stats.chi2.sf(5.0, 2)),
    "two-sided": (normal_score(-1.959964), 0.05),
    "one-sided": (not_below(-3.0), stats.norm.sf(3.0)),
    "the worst cell is an exact binomial test times the number of cells": (
        worst_cell([9, 50], [10, 100], [0.2, 0.5]),
        2 * 2 * stats.binom.sf(8, 10, 0.2),
    ),
    "no worse than expected": (worst_cell([5], [10], [0.5]), 1.0),
    "no coincidence": (too_many(0, 0.1), 1.0),
    "two coincidences": (too_many(2, 0.001), 5e-7),
    "clusters without noise": (clustered_mean_is([[0.5, 0.5], [0.7, 0.7]], [0.5, 0.7]), 1.0),
    "other clusters without noise": (clustered_mean_is([[0.5, 0.5], [0.7, 0.7]], [0.4, 0.6]), 0.0),
    "the worst of several pays for their number": (
        worst_of({"a": TestResult("x", 0.5), "b": TestResult("y", 0.01), "c": TestResult("z", 0.9)}),
        0.03,
    ),
    "no chance is above one": (worst_of({"a": TestResult("x", 0.9), "b": TestResult("y", 0.8)}), 1.0),
}


@pytest.mark.parametrize("name", PINNED)
def test_p_values_are_those_of_another_way(name):
    found, expected = PINNED[name]
    assert found.p_value == pytest.approx(expected, rel=1e-2 if name == "two coincidences" else 1e-6)


def test_texts_say_what_was_tested():
    assert chi_square_of_groups([[50, 50, 0]], [[0.5, 0.5, 0.0]]).text.startswith("chi2(1)")
    assert at_least_rate(90, 100, 0.95).text == "90.0%"
    assert PINNED["the worst of several pays for their number"][0].text == "worst of 3: y (b)"
    assert worst_of({"a": TestResult("x", 0.5)}) == TestResult("x (a)", 0.5)


def test_nothing_to_test_is_an_error():
    with pytest.raises(ValueError, match="simulate more"):
        chi_square_of_groups([[1, 0]], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="at least"):
        chi_square_of_table([1, 2, 3])


def test_one_wrong_cell_among_many_does_not_drown_and_correlation_sees_dependence():
    successes, trials, chances = [50] * 400, [100] * 400, [0.5] * 400
    successes[7] = 78
    assert worst_cell(successes, trials, chances).p_value < 1e-4
    one, other = RANDOM.random(20_000), RANDOM.random(20_000)
    assert uniform_correlation(one, 0.9 * other + 0.1 * one).p_value < 1e-6


@pytest.mark.parametrize(
    "test",
    [
        lambda: chi_square_of_groups(
            RANDOM.binomial(200, [[0.3], [0.8]]) * [[1, -1]] + [[0, 200]], [[0.3, 0.7], [0.8, 0.2]]
        ),
        lambda: chi_square_of_table(RANDOM.multinomial(2000, [0.05] * 20)),
        lambda: chi_square_of_groups(RANDOM.multinomial(3, [0.5, 0.3, 0.2], 50), [[0.5, 0.3, 0.2]] * 50),
        lambda: clustered_mean_is(RANDOM.normal(0, 1, (20, 3))),
        lambda: uniform_correlation(RANDOM.random(300), RANDOM.random(300)),
    ],
    ids=["groups", "table", "pooled groups", "clusters", "correlation"],
)
def test_p_values_are_uniform_where_the_hypothesis_holds(test):
    p_values = [test().p_value for _ in range(800)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
