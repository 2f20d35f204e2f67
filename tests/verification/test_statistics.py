"""The statistics of the verification, pinned to other ways to compute them, and able to reject."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from verification.statistics import (
    TestResult,
    at_least_rate,
    at_most_rate,
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


def test_two_outcomes_are_the_squared_normal_score():
    score = (70 - 100 * 0.6) / math.sqrt(100 * 0.6 * 0.4)
    assert chi_square_of_groups([[70, 30]], [[0.6, 0.4]]).p_value == pytest.approx(normal_score(score).p_value)
    assert binomial_groups([70], [100], [0.6]).p_value == pytest.approx(normal_score(score).p_value)


def test_groups_add_up():
    observed = [[30, 70], [55, 45], [21, 79]]
    chances = [[0.3, 0.7], [0.5, 0.5], [0.25, 0.75]]
    statistic = sum(
        stats.chisquare(row, 100 * np.array(chance)).statistic for row, chance in zip(observed, chances, strict=True)
    )
    assert chi_square_of_groups(observed, chances).p_value == pytest.approx(stats.chi2.sf(statistic, 3))


def test_sparse_groups_are_pooled_with_their_own_variances():
    observed = [[2, 1]] * 4 + [[1, 2]] * 4
    chances = [[0.9, 0.1]] * 4 + [[0.2, 0.8]] * 4
    score = (12 - 4 * 3 * 0.9 - 4 * 3 * 0.2) / math.sqrt(12 * 0.09 + 12 * 0.16)
    assert chi_square_of_groups(observed, chances).p_value == pytest.approx(normal_score(score).p_value)


def test_impossible_outcomes_are_rejected_and_do_not_count_as_degrees():
    assert chi_square_of_groups([[50, 50, 0]], [[0.5, 0.5, 0.0]]).text.startswith("chi2(1)")
    assert chi_square_of_groups([[50, 49, 1]], [[0.5, 0.5, 0.0]]).p_value == 0.0


def test_nothing_to_test_is_an_error():
    with pytest.raises(ValueError, match="simulate more"):
        chi_square_of_groups([[1, 0]], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="at least"):
        chi_square_of_table([1, 2, 3])


def test_tables_and_rows_equal_pearsons_test():
    table = RANDOM.integers(80, 120, (4, 5))
    assert chi_square_of_table(table).p_value == pytest.approx(stats.chisquare(table.ravel()).pvalue)
    statistic = sum(stats.chisquare(row).statistic for row in table)
    assert chi_square_of_rows(table).p_value == pytest.approx(stats.chi2.sf(statistic, 16))


def test_scores():
    assert chi_square_of_scores([1.0, 2.0]).p_value == pytest.approx(stats.chi2.sf(5.0, 2))
    assert normal_score(-1.959964).p_value == pytest.approx(0.05, abs=1e-6)
    assert not_below(3.0).p_value > 0.99
    assert not_below(-3.0).p_value == pytest.approx(stats.norm.sf(3.0))


def test_the_worst_cell_is_an_exact_binomial_test_times_the_number_of_cells():
    result = worst_cell([9, 50], [10, 100], [0.2, 0.5])
    assert result.p_value == pytest.approx(2 * 2 * stats.binom.sf(8, 10, 0.2))
    assert worst_cell([5], [10], [0.5]).p_value == 1.0
    # One wrong cell among many drowns in the omnibus test, but not here.
    successes, trials, chances = [50] * 400, [100] * 400, [0.5] * 400
    successes[7] = 78
    assert worst_cell(successes, trials, chances).p_value < 1e-4


def test_coincidences():
    assert too_many(0, 0.1).p_value == 1.0
    assert too_many(2, 0.001).p_value == pytest.approx(5e-7, rel=1e-2)


def test_clustered_mean_equals_students_t_over_clusters():
    values = RANDOM.normal(0.1, 1.0, (30, 12))
    expected = stats.ttest_1samp(values.mean(axis=1), 0.0)
    assert clustered_mean_is(values).p_value == pytest.approx(expected.pvalue)
    references = RANDOM.normal(0.0, 1.0, 30)
    expected = stats.ttest_1samp(values.mean(axis=1) - references, 0.0)
    assert clustered_mean_is(values, references).p_value == pytest.approx(expected.pvalue)


def test_correlation_sees_dependence_and_only_that():
    one, other = RANDOM.random(20_000), RANDOM.random(20_000)
    assert uniform_correlation(one, other).p_value > 0.001
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


def test_rates_are_tested_on_the_side_that_counts():
    assert at_least_rate(90, 100, 0.95).p_value == pytest.approx(
        stats.binomtest(90, 100, 0.95, alternative="less").pvalue
    )
    assert at_most_rate(10, 100, 0.05).p_value == pytest.approx(
        stats.binomtest(10, 100, 0.05, alternative="greater").pvalue
    )
    assert at_least_rate(100, 100, 0.95).p_value == at_most_rate(0, 100, 0.05).p_value == 1.0
    assert at_least_rate(90, 100, 0.95).text == "90.0%"


def test_the_worst_of_several_pays_for_their_number():
    found = worst_of({"a": TestResult("x", 0.5), "b": TestResult("y", 0.01), "c": TestResult("z", 0.9)})
    assert found.p_value == pytest.approx(0.03)
    assert found.text == "worst of 3: y (b)"
    assert worst_of({"a": TestResult("x", 0.5)}) == TestResult("x (a)", 0.5)
    assert worst_of({"a": TestResult("x", 0.9), "b": TestResult("y", 0.8)}).p_value == 1.0
