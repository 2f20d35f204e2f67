"""Each statistic against its naive definition over single episodes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.seeding import Draws
from resilisim.statistics import (
    FoldSums,
    clopper_pearson,
    clustered_mean,
    clustered_proportion,
    clustered_ratio,
    cross_fitted_betas,
    fit_beta,
    fold_of,
    luck_adjusted_mean,
    share_kept,
    t_quantile,
)
from resilisim.statistics.luck import PRIOR_EPISODES

# Episodes as (task, outcome): few tasks, so that clusters have several episodes.
episode_lists = st.lists(st.tuples(st.integers(0, 4), st.floats(-2, 2)), min_size=1, max_size=40)


def naive_clustered_mean(episodes: list[tuple[int, float]]) -> tuple[float, float]:
    """The mean over episodes, and the cluster-robust error from the single residuals."""
    mean = sum(value for _, value in episodes) / len(episodes)
    tasks = sorted({task for task, _ in episodes})
    if len(tasks) < 2:
        return mean, math.nan
    total = 0.0
    for task in tasks:
        for first_task, first in episodes:
            for second_task, second in episodes:
                if first_task == second_task == task:
                    total += (first - mean) * (second - mean)
    return mean, math.sqrt(max(0.0, len(tasks) / (len(tasks) - 1) * total)) / len(episodes)


@settings(deadline=None)
@given(episode_lists)
def test_clustered_mean_is_its_naive_definition(episodes: list[tuple[int, float]]) -> None:
    tasks = sorted({task for task, _ in episodes})
    sums = [sum(value for task, value in episodes if task == name) for name in tasks]
    counts = [float(sum(task == name for task, _ in episodes)) for name in tasks]
    estimate = clustered_mean(sums, counts)
    mean, error = naive_clustered_mean(episodes)
    assert estimate.value == pytest.approx(mean, abs=1e-12)
    assert estimate.standard_error == pytest.approx(error, abs=1e-7, nan_ok=True)
    assert (estimate.num_clusters, estimate.num_episodes) == (len(tasks), len(episodes))


def test_one_episode_per_task_is_the_textbook_t_interval() -> None:
    estimate = clustered_mean([1.0, 2.0, 3.0, 6.0], [1.0] * 4)
    error = np.std([1, 2, 3, 6], ddof=1) / 2
    assert estimate.value == 3.0
    assert estimate.standard_error == pytest.approx(error)
    assert estimate.high - estimate.value == pytest.approx(3.182446305284263 * error)  # t table, 3 degrees of freedom
    assert estimate.value - estimate.low == pytest.approx(3.182446305284263 * error)


def test_t_quantiles_are_those_of_the_tables() -> None:
    assert t_quantile(2) == pytest.approx(12.706204736432095)
    assert t_quantile(11) == pytest.approx(2.2281388519649385)
    assert t_quantile(100_001) == pytest.approx(1.96, abs=1e-3)
    assert math.isnan(t_quantile(1))


def test_one_cluster_has_no_standard_error() -> None:
    estimate = clustered_mean([3.0], [6.0])
    assert estimate.value == 0.5
    assert all(math.isnan(number) for number in (estimate.standard_error, estimate.low, estimate.high))
    assert estimate.to_mapping()["standard_error"] is None


def test_nothing_estimates_nothing() -> None:
    for estimate in (clustered_mean([], []), clustered_proportion([], []), clustered_ratio([0.0], [0.0], 3)):
        assert math.isnan(estimate.value)


def test_ratio_is_one_with_no_error_where_the_parts_are_equal() -> None:
    estimate = clustered_ratio([0.5, 1.5, 1.0], [0.5, 1.5, 1.0], 6)
    assert (estimate.value, estimate.standard_error) == (1.0, 0.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 5)), min_size=2, max_size=10))
def test_ratio_is_its_naive_definition(pairs: list[tuple[float, float]]) -> None:
    y, x = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratio = sum(y) / sum(x)
    variance = (
        len(pairs) / (len(pairs) - 1) * sum((b - ratio * a) ** 2 for a, b in zip(x, y, strict=True)) / sum(x) ** 2
    )
    estimate = clustered_ratio(y, x, 10)
    assert estimate.value == pytest.approx(ratio)
    assert estimate.standard_error == pytest.approx(math.sqrt(variance), abs=1e-12)


def test_no_success_at_all_still_has_an_interval() -> None:
    none = clustered_proportion([0.0] * 40, [5.0] * 40)
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 40))  # Clopper-Pearson for 0 of 40
    every = clustered_proportion([5.0] * 40, [5.0] * 40)
    assert (every.value, every.high) == (1.0, 1.0)
    assert every.low == pytest.approx(0.025 ** (1 / 40))
    assert clustered_proportion([1.0], [1.0]).low == pytest.approx(0.025)
    assert math.isnan(clustered_proportion([1.0], [2.0]).low)


def test_tasks_of_one_rate_are_no_certainty() -> None:
    half = clustered_proportion([1.0, 2.0] * 5, [2.0, 4.0] * 5)  # each task succeeds in half of its episodes
    assert (half.value, half.standard_error) == (0.5, pytest.approx(0.0, abs=1e-12))
    assert (half.low, half.high) == pytest.approx(clopper_pearson(5, 10))


def test_a_rate_in_the_middle_has_the_t_interval() -> None:
    successes, counts = [3.0, 1.0, 2.0, 4.0, 0.0, 3.0], [4.0] * 6
    assert clustered_proportion(successes, counts) == clustered_mean(successes, counts)


def test_a_rate_near_the_edge_has_korn_and_graubards_interval() -> None:
    successes, counts = [0.0] * 39 + [1.0], [3.0] * 40
    plain, estimate = clustered_mean(successes, counts), clustered_proportion(successes, counts)
    assert plain.low < 0.0
    assert (estimate.value, estimate.standard_error) == (plain.value, plain.standard_error)
    rate = 1 / 120
    few_tasks = t_quantile(120) / t_quantile(40)
    independent = min(rate * (1 - rate) / plain.standard_error**2, 120) * few_tasks**2
    assert (estimate.low, estimate.high) == clopper_pearson(rate * independent, independent)
    assert 0.0 < estimate.low < rate < estimate.high


def test_clopper_pearson_is_the_textbook_interval() -> None:
    low, high = clopper_pearson(8, 20)  # 0.1912, 0.6395 in the tables
    assert (round(low, 4), round(high, 4)) == (0.1912, 0.6395)
    # By definition each end leaves 2.5% in its tail of the binomial distribution.
    assert sum(math.comb(20, k) * low**k * (1 - low) ** (20 - k) for k in range(8, 21)) == pytest.approx(0.025)
    assert sum(math.comb(20, k) * high**k * (1 - high) ** (20 - k) for k in range(9)) == pytest.approx(0.025)
    assert clopper_pearson(0, 40)[0] == 0.0
    assert clopper_pearson(40, 40)[1] == 1.0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=2, max_size=12))
def test_a_proportion_stays_within_0_and_1_around_its_value(pairs: list[tuple[int, int]]) -> None:
    successes = [float(min(success, count)) for success, count in pairs]
    estimate = clustered_proportion(successes, [float(count) for _, count in pairs])
    assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0
    assert estimate.low < estimate.high


def fold_sums(episodes: list[tuple[float, float]]) -> FoldSums:
    """Sums over (gap, luck) pairs, from the definition."""
    return FoldSums(
        len(episodes),
        sum(gap for gap, _ in episodes),
        sum(luck for _, luck in episodes),
        sum(gap * luck for gap, luck in episodes),
        sum(luck * luck for _, luck in episodes),
    )


def naive_beta(episodes: list[tuple[float, float, float]]) -> float:
    """The ridge regression of outcome on luck beside V*, from single (outcome, V*, luck); one more row is the guess."""
    outcome, optimum, luck = np.array(episodes).T
    kept = min(max(1.0 - np.mean(optimum - outcome + luck) / np.mean(optimum), 0.0), 1.0)
    if outcome.min() == 1.0:
        return float(kept)
    if outcome.max() == 0.0:
        return 0.0
    weight = math.sqrt(PRIOR_EPISODES * np.mean(luck**2))
    design = np.column_stack([luck, optimum, np.ones(len(luck))])
    design = np.vstack([design, [weight, 0.0, 0.0]])
    slope = np.linalg.lstsq(design, np.append(outcome, weight * kept), rcond=None)[0][0]
    return float(min(max(slope, 0.0), 2.0))


def test_beta_is_the_least_squares_slope_on_the_other_folds() -> None:
    draws = Draws("beta")
    folds = [[(draws.uniform(), draws.uniform() - 0.5) for _ in range(7)] for _ in range(4)]
    for _, fold in enumerate(folds):
        fold[:] = [(0.6 * luck + 0.1 * noise, luck) for noise, luck in fold]
    betas = cross_fitted_betas([fold_sums(fold) for fold in folds])
    for held_out, beta in enumerate(betas):
        others = [pair for number, fold in enumerate(folds) if number != held_out for pair in fold]
        gap, luck = np.array(others).T
        centred, weight = luck - luck.mean(), PRIOR_EPISODES * np.mean(luck**2)
        assert beta == pytest.approx((centred @ gap + weight) / (centred @ centred + weight))


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5, 0.9, 1.0])
def test_beta_with_the_optimum_is_the_slope_of_a_regression_on_both(rate: float) -> None:
    draws = Draws("beta and optimum")
    episodes = [(float(draws.uniform() < rate), draws.uniform(), draws.uniform() - 0.5) for _ in range(30)]
    episodes = [(outcome, optimum, luck + 0.3 * outcome) for outcome, optimum, luck in episodes]
    sums = FoldSums()
    for episode in episodes:
        sums = sums + FoldSums.of(*episode)
    outcome, optimum, luck = np.array(episodes).T
    assert fit_beta(sums) == pytest.approx(naive_beta(episodes))
    at_once = FoldSums.of_episodes(outcome, optimum, luck)
    for name in FoldSums.__dataclass_fields__:
        assert getattr(at_once, name) == pytest.approx(getattr(sums, name))


def test_the_luck_of_a_policy_that_never_succeeds_is_left_alone() -> None:
    draws = Draws("never")
    sums = FoldSums()
    for _ in range(12):
        sums = sums + FoldSums.of(0.0, draws.uniform(), draws.uniform() - 0.6)
    assert share_kept(sums) > 0.0
    assert fit_beta(sums) == 0.0


def test_the_luck_of_an_agent_that_lost_nothing_is_taken_out_where_it_never_succeeds() -> None:
    sums = FoldSums.of(0.0, 0.8, -0.8) + FoldSums.of(0.0, 0.7, -0.7)
    assert fit_beta(sums) == pytest.approx(1.0)


def test_few_episodes_are_adjusted_by_the_share_that_was_kept() -> None:
    """Three lucky episodes that all succeed have the slope 0, because they all succeed; they lost next to nothing."""
    sums = FoldSums()
    for optimum, regret in ((0.7, 0.0), (0.8, 0.1), (0.75, 0.02)):
        sums = sums + FoldSums.of(1.0, optimum, 1.0 - optimum + regret)
    assert share_kept(sums) == pytest.approx(1.0 - 0.12 / 2.25)
    assert fit_beta(sums) == share_kept(sums)


def test_many_episodes_have_the_slope_that_they_show() -> None:
    draws = Draws("many")
    episodes = []
    for _ in range(20_000):
        luck = 2.0 * draws.uniform() - 1.0
        episodes.append((float(draws.uniform() < 0.5 + 0.3 * luck), 0.6, luck))
    sums = FoldSums.of_episodes(*np.array(episodes).T)
    assert share_kept(sums) > 0.8
    assert fit_beta(sums) == pytest.approx(0.3, abs=0.02)


def test_share_kept_is_one_without_regret_and_within_its_range() -> None:
    assert share_kept(FoldSums()) == 1.0
    assert share_kept(FoldSums.of(0.0, 0.8, -0.8)) == pytest.approx(1.0)  # unlucky, and nothing lost
    assert share_kept(FoldSums.of(0.0, 0.8, 0.1)) == 0.0  # lost more than it began with
    assert share_kept(FoldSums.of(1.0, 0.8, 0.1)) == 1.0  # no record is like this: regret would be negative


def test_beta_never_sees_the_fold_that_it_is_used_on() -> None:
    draws = Draws("leak")
    folds = [fold_sums([(draws.uniform(), draws.uniform()) for _ in range(5)]) for _ in range(3)]
    before = cross_fitted_betas(folds)[1]
    folds[1] = fold_sums([(100.0, -3.0), (7.0, 9.0)])
    assert cross_fitted_betas(folds)[1] == before


def test_beta_is_1_where_nothing_can_be_fitted() -> None:
    assert fit_beta(FoldSums()) == 1.0
    assert fit_beta(fold_sums([(0.3, 0.1)])) == 1.0
    assert fit_beta(fold_sums([(0.3, 0.1), (0.5, 0.1), (0.9, 0.1)])) == pytest.approx(1.0)
    assert fit_beta(fold_sums([(0.3, 0.0), (0.5, 0.0)])) == 1.0
    assert fit_beta(fold_sums([(5.0, 0.0), (0.0, 1.0)] * 50)) == 0.0  # a slope near -5, held to the range


def test_beta_is_1_for_an_agent_without_regret() -> None:
    draws = Draws("no regret")
    luck = [draws.uniform() - 0.5 for _ in range(20)]
    assert fit_beta(fold_sums([(value, value) for value in luck])) == pytest.approx(1.0)


def test_folds_depend_on_the_id_alone_and_are_even() -> None:
    folds = [fold_of(f"task_{number:08x}") for number in range(2000)]
    assert folds == [fold_of(f"task_{number:08x}") for number in range(2000)]
    assert all(150 < folds.count(fold) < 250 for fold in range(10))


def test_luck_adjustment_is_unbiased_and_narrower_than_the_raw_mean() -> None:
    """Agents of known success rate 0.6 whose outcome is 0.6 plus mean-zero luck: the adjusted mean is 0.6 exactly."""
    draws = Draws("adjust")
    outcomes = [1.0 if draws.uniform() < 0.6 else 0.0 for _ in range(200)]
    luck = [outcome - 0.6 for outcome in outcomes]
    adjusted = luck_adjusted_mean(outcomes, luck, [1.0] * 200, 1.0)
    assert adjusted.value == pytest.approx(0.6)
    assert adjusted.standard_error < 1e-9
    raw = luck_adjusted_mean(outcomes, luck, [1.0] * 200, 0.0)
    assert raw.value == pytest.approx(sum(outcomes) / 200)
    assert raw.standard_error > 0.03
