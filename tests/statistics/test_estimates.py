"""Rates, means, pass@k and corrected p-values, each against its naive definition over single episodes."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from resilisim.errors import InvalidInputError
from resilisim.statistics import pass_at_k, pass_hat_k
from resilisim.statistics.comparison import holm
from resilisim.statistics.estimates import (
    Estimate,
    clopper_pearson,
    clustered_mean,
    clustered_proportion,
    clustered_ratio,
    t_quantile,
    with_unseen,
)

# Episodes as (task, outcome): few tasks, so that clusters have several episodes.
episode_lists = st.lists(st.tuples(st.integers(0, 4), st.floats(-2, 2)), min_size=1, max_size=40)


def naive_clustered(values: list[float], tasks: list[int]) -> tuple[float, float]:
    """The mean over episodes, and the cluster-robust error from all products of residuals of one task."""
    mean, count = sum(values) / len(values), len(set(tasks))
    if count < 2:
        return mean, math.nan
    residuals = [value - mean for value in values]
    places = range(len(values))
    total = sum(residuals[i] * residuals[j] for i in places for j in places if tasks[i] == tasks[j])
    return mean, math.sqrt(max(count / (count - 1) * total, 0.0)) / len(values)


@settings(deadline=None)
@given(episode_lists)
def test_clustered_mean_is_its_naive_definition_with_a_t_interval(episodes):
    tasks, values = [task for task, _ in episodes], [value for _, value in episodes]
    names = sorted(set(tasks))
    sums = [sum(value for task, value in episodes if task == name) for name in names]
    estimate = clustered_mean(sums, [float(tasks.count(name)) for name in names])
    mean, error = naive_clustered(values, tasks)
    assert estimate.value == pytest.approx(mean, abs=1e-12)
    assert estimate.standard_error == pytest.approx(error, abs=1e-7, nan_ok=True)
    assert (estimate.num_clusters, estimate.num_episodes) == (len(names), len(episodes))
    half_width = stats.t.ppf(0.975, len(names) - 1) * error if len(names) > 1 else math.nan
    assert (estimate.low, estimate.high) == pytest.approx((mean - half_width, mean + half_width), abs=1e-5, nan_ok=True)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 5)), min_size=2, max_size=10))
def test_ratio_is_its_naive_definition(pairs):
    y, x = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratio = sum(y) / sum(x)
    squares = sum((b - ratio * a) ** 2 for a, b in zip(x, y, strict=True))
    estimate = clustered_ratio(y, x, 10)
    assert estimate.value == pytest.approx(ratio)
    error = math.sqrt(len(pairs) / (len(pairs) - 1) * squares / sum(x) ** 2)
    assert estimate.standard_error == pytest.approx(error, abs=1e-12)


def test_one_cluster_has_no_error_and_nothing_estimates_nothing():
    estimate = clustered_mean([3.0], [6.0])
    assert estimate.to_mapping() == {
        "value": 0.5,
        "standard_error": None,
        "low": None,
        "high": None,
        "num_clusters": 1,
        "num_episodes": 6,
    }
    for nothing in (clustered_mean([], []), clustered_proportion([], []), clustered_ratio([0.0], [0.0], 3)):
        assert math.isnan(nothing.value)


def test_a_rate_that_does_not_vary_has_the_exact_interval_over_tasks():
    none, every = (clustered_proportion([count] * 40, [5.0] * 40) for count in (0.0, 5.0))
    assert (none.value, none.low, every.value, every.high) == (0.0, 0.0, 1.0, 1.0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 40))  # Clopper-Pearson for 0 of 40
    assert every.low == pytest.approx(0.025 ** (1 / 40))
    half = clustered_proportion([1.0, 2.0] * 5, [2.0, 4.0] * 5)  # each task succeeds in half of its episodes
    assert (half.value, half.standard_error) == (0.5, pytest.approx(0.0, abs=1e-12))
    assert (half.low, half.high) == pytest.approx(clopper_pearson(5, 10))
    assert clustered_proportion([1.0], [1.0]).low == pytest.approx(0.025)
    assert math.isnan(clustered_proportion([1.0], [2.0]).low)


def test_a_rate_has_the_t_interval_in_the_middle_and_korn_and_graubards_near_the_edge():
    middle = ([3.0, 1.0, 2.0, 4.0, 0.0, 3.0], [4.0] * 6)
    assert clustered_proportion(*middle) == clustered_mean(*middle)
    successes, counts = [0.0] * 39 + [1.0], [3.0] * 40
    plain, estimate = clustered_mean(successes, counts), clustered_proportion(successes, counts)
    assert plain.low < 0.0
    assert (estimate.value, estimate.standard_error) == (plain.value, plain.standard_error)
    rate = 1 / 120
    few_tasks = t_quantile(120) / t_quantile(40)
    independent = min(rate * (1 - rate) / plain.standard_error**2, 120) * few_tasks**2
    assert (estimate.low, estimate.high) == clopper_pearson(rate * independent, independent)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=2, max_size=12))
def test_a_proportion_stays_within_0_and_1_around_its_value(pairs):
    successes = [float(min(success, count)) for success, count in pairs]
    estimate = clustered_proportion(successes, [float(count) for _, count in pairs])
    assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0
    assert estimate.low < estimate.high


@pytest.mark.parametrize("count", [10, 30, 60, 100, 300])
@pytest.mark.parametrize("usual", [1.0, 0.9, 0.5, 0.1, 0.0])
def test_intervals_with_room_for_the_unseen_hold_the_truth_however_rare_losses_are(count: int, usual: float) -> None:
    """Episodes come out as usual but for rare ones, of 0 or of 1: coverage by the binomial distribution, exactly."""
    off = 0.0 if usual >= 0.5 else 1.0
    samples = [np.where(np.arange(count) < rare, off, usual) for rare in range(count + 1)]
    plain = [clustered_mean(sample, np.ones(count)) for sample in samples]

    def coverage(estimates: list[Estimate], chance: float) -> float:
        truth = usual + chance * (off - usual)
        holds = [each.low - 1e-12 <= truth <= each.high + 1e-12 for each in estimates]
        return float(stats.binom.pmf(np.arange(count + 1), count, chance) @ holds)

    roomy, chances = [with_unseen(each) for each in plain], np.linspace(0.001, 0.3, 600)
    assert 0.93 <= min(coverage(roomy, chance) for chance in chances) <= 0.97
    assert coverage(plain, 0.5 / count) < 0.5  # most samples have met none


def test_room_for_the_unseen_is_what_as_many_episodes_can_have_missed() -> None:
    alike = clustered_mean(np.full(60, 0.9), np.ones(60))
    estimate, share = with_unseen(alike), 1.0 - 0.05 ** (1.0 / 60.0)
    assert (estimate.low, estimate.high) == pytest.approx((0.9 - share * 0.9, 0.9 + share * 0.1))
    assert 2.0 * t_quantile(60) * estimate.standard_error == pytest.approx(share)  # of a t interval as wide
    assert with_unseen(alike, most=1.25).high == pytest.approx(0.9 + share * 0.35)
    few = clustered_mean([1.0], [1.0])
    assert math.isnan(with_unseen(few).low)


def test_clopper_pearson_leaves_its_tails_to_the_binomial_distribution():
    low, high = clopper_pearson(8, 20)
    assert (round(low, 4), round(high, 4)) == (0.1912, 0.6395)  # in the tables
    assert stats.binom.sf(7, 20, low) == pytest.approx(0.025)
    assert stats.binom.cdf(8, 20, high) == pytest.approx(0.025)
    assert (clopper_pearson(0, 40)[0], clopper_pearson(40, 40)[1]) == (0.0, 1.0)


# (successes, episodes) of a task.
task_lists = st.lists(
    st.integers(0, 7).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=8
)


def naive_pass(successes: int, episodes: int, k: int) -> tuple[float, float]:
    """Shares of all choices of k episodes in which any, and in which all succeed."""
    choices = list(combinations([1] * successes + [0] * (episodes - successes), k))
    return sum(map(any, choices)) / len(choices), sum(map(all, choices)) / len(choices)


@settings(deadline=None)
@given(task_lists, st.integers(1, 5))
def test_pass_at_k_is_the_mean_share_of_all_choices_over_tasks_with_enough_episodes(counts, k):
    won, tried = zip(*counts, strict=True)
    usable = [pair for pair in counts if pair[1] >= k]
    expected = np.mean([naive_pass(*pair, k) for pair in usable], axis=0) if usable else (math.nan, math.nan)
    for estimate, value in zip((pass_at_k(won, tried, k), pass_hat_k(won, tried, k)), expected, strict=True):
        assert estimate.value == pytest.approx(value, nan_ok=True)
        assert estimate.num_clusters == len(usable)
        assert estimate.num_episodes == sum(episodes for _, episodes in usable)
        if k == 1 and len({episodes for _, episodes in usable}) == 1:
            rate = clustered_proportion(*zip(*usable, strict=True))
            assert estimate.standard_error == pytest.approx(rate.standard_error, nan_ok=True, abs=1e-9)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_its_definition(p_values):
    """The largest, over the hypothesis and all with smaller p-values, of p times the number of those not smaller."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    expected = dict.fromkeys(order, 0.0)
    for rank, place in enumerate(order):
        expected[place] = min(1.0, max((len(order) - i) * p_values[order[i]] for i in range(rank + 1)))
    assert holm(p_values) == pytest.approx([expected[place] for place in range(len(p_values))])
    no_test = [math.nan, *p_values]  # a p-value that does not exist does not count
    assert holm(no_test) == pytest.approx([math.nan, *holm(p_values)], nan_ok=True)


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (lambda: pass_at_k([1], [2], 0), "k is 0"),
        (lambda: pass_hat_k([3], [2], 1), "3 successes in 2 episodes"),
        (lambda: holm([1.5]), r"p-value 1\.5"),
    ],
)
def test_numbers_that_cannot_be_are_refused(refused, text):
    with pytest.raises(InvalidInputError, match=text):
        refused()
