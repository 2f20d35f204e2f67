"""Comparisons on common luck against their definitions over single episodes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from resilisim.errors import InvalidInputError
from resilisim.evaluation.table.comparing import compare_tables, match_episodes
from resilisim.evaluation.table.episodes import GroupFacts, table_of
from resilisim.statistics.comparison import (
    COMPARISON_METHODS,
    MANY_PAIRS,
    PRIOR_BETA,
    PRIOR_PAIRS,
    Comparison,
    adjusted_terms,
    pool_comparisons,
    without_variation,
)
from resilisim.statistics.estimates import clustered_mean, with_unseen
from resilisim.statistics.luck_adjustment import NUM_FOLDS, NUM_MORE, fold_of
from tests.evaluation.table.tables import Pair, pair_lists, record, shuffled, tables_of, with_tries
from tests.statistics.test_estimates import naive_clustered


def compare(pairs: list[Pair]) -> Comparison:
    return compare_tables(*tables_of(pairs))


@settings(deadline=None)
@given(pair_lists)
def test_paired_is_the_clustered_mean_of_the_single_differences(pairs):
    tasks = [pair[0] for pair in pairs]
    assume(len(set(tasks)) > 1)
    found = compare(pairs).differences["paired"]
    mean, error = naive_clustered([float(pair[1] - pair[2]) for pair in pairs], tasks)
    assert found.difference == pytest.approx(mean, abs=1e-12)
    assert found.standard_error == pytest.approx(error, abs=1e-7)
    assert (found.episodes, found.num_tasks) == (len(pairs), len(set(tasks)))
    if error > 1e-6:
        assert found.note is None
        freedom = len(set(tasks)) - 1
        assert found.p_value == pytest.approx(2 * stats.t.sf(abs(mean / error), freedom))
        half_width = stats.t.ppf(0.975, freedom) * error
        assert found.interval == pytest.approx((max(mean - half_width, -1), min(mean + half_width, 1)))


@settings(deadline=None)
@given(pair_lists)
def test_independent_adds_the_squares_of_both_errors(pairs):
    tasks = [pair[0] for pair in pairs]
    assume(len(set(tasks)) > 1)
    found = compare(pairs).differences["independent"]
    mean_a, error_a = naive_clustered([float(pair[1]) for pair in pairs], tasks)
    mean_b, error_b = naive_clustered([float(pair[2]) for pair in pairs], tasks)
    assert found.difference == pytest.approx(mean_a - mean_b, abs=1e-12)
    assert found.standard_error == pytest.approx(math.hypot(error_a, error_b), abs=1e-7)
    assert found.interval[0] <= found.difference <= found.interval[1]
    assert found.interval[0] >= -1.0 - 1e-12
    assert found.interval[1] <= 1.0 + 1e-12


@settings(deadline=None)
@given(pair_lists)
def test_mcnemar_is_the_binomial_test_of_the_pairs_that_differ(pairs):
    only_a = sum(pair[1] > pair[2] for pair in pairs)
    only_b = sum(pair[2] > pair[1] for pair in pairs)
    found = compare(pairs).differences["mcnemar"]
    assert found.difference == pytest.approx((only_a - only_b) / len(pairs))
    expected = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert found.p_value == pytest.approx(expected)
    assert f"{only_a} episodes only A solved, {only_b} only B" in (found.note or "")
    assert found.interval[0] < found.difference < found.interval[1] or abs(found.difference) == 1.0


def naive_terms(pairs: list[Pair]) -> list[float]:
    """Luck-adjusted difference of each pair: for each fold anew the ridge regression over all pairs of other folds."""
    names = {pair[0]: f"task_{pair[0]:08x}" for pair in pairs}
    terms = []
    folds = [(fold_of(names[pair[0]]) + seed) % NUM_FOLDS for seed, pair in enumerate(pairs)]
    for fold, (_, outcome_a, outcome_b, luck_a, luck_b) in zip(folds, pairs, strict=True):
        others = [pair for other, pair in zip(folds, pairs, strict=True) if other != fold]
        betas = naive_betas(others)
        terms.append(outcome_a - outcome_b - (betas[0] * luck_a - betas[1] * luck_b))
    return terms


def naive_betas(pairs: list[Pair]) -> np.ndarray:
    design = np.array([[pair[3], -pair[4]] for pair in pairs]).reshape(-1, 2)
    target = np.array([pair[1] - pair[2] for pair in pairs], dtype=float)
    if not np.any(np.abs(design) > 1e-7):
        return np.full(2, PRIOR_BETA)
    if len(pairs) >= MANY_PAIRS and np.ptp(target) == 0.0 and np.any(design.sum(axis=1) != 0.0):
        return np.zeros(2)
    # Ridge regression as least squares with more rows: pairs of ordinary luck that say that beta is 1.
    weight = math.sqrt(PRIOR_PAIRS * float(np.mean(design**2)))
    rows = np.vstack([design, weight * np.eye(2)])
    values = np.concatenate([target - target.mean(), np.full(2, weight * PRIOR_BETA)])
    return np.linalg.lstsq(rows, values, rcond=None)[0]


@given(pair_lists)
def test_luck_is_taken_off_by_betas_of_the_other_folds(pairs):
    matched = match_episodes(*tables_of(pairs))
    terms, betas = adjusted_terms(matched)
    assert betas.shape == (len(pairs), 2 * (1 + NUM_MORE))
    assert not betas[:, 2:].any()  # these records have no draws beside their luck
    expected = naive_terms(pairs)
    assert terms == pytest.approx([expected[seed] for seed in matched.seed], abs=1e-6)
    tasks = [pair[0] for pair in pairs]
    assume(len(set(tasks)) > 1)
    mean, error = naive_clustered(expected, tasks)
    found = compare(pairs).differences["paired_luck_adjusted"]
    assert found.difference == pytest.approx(mean, abs=1e-6)
    assert found.standard_error == pytest.approx(error, abs=1e-6)


@settings(deadline=None)
@given(pair_lists)
def test_swapping_the_sides_turns_every_sign(pairs):
    a, b = tables_of(pairs)
    one, other = compare_tables(a, b), compare_tables(b, a)
    for method in COMPARISON_METHODS:
        left, right = one.differences[method], other.differences[method]
        assert left.difference == pytest.approx(-right.difference, abs=1e-9, nan_ok=True)
        assert left.p_value == pytest.approx(right.p_value, abs=1e-6, nan_ok=True)
        assert left.interval == pytest.approx((-right.interval[1], -right.interval[0]), abs=1e-6, nan_ok=True)


@settings(deadline=None)
@given(pair_lists, st.integers(0, 10))
def test_the_order_of_episodes_changes_nothing(pairs, seed):
    a, b = tables_of(pairs)
    again = compare_tables(shuffled(a, seed), shuffled(b, seed + 1))
    assert again.to_mapping() == compare_tables(a, b).to_mapping()


@pytest.mark.parametrize(
    ("luck_a", "luck_b"),
    [
        (lambda task: 0.2, lambda task: 0.2),
        (lambda task: 0.1 + 0.001 * (task % 3), lambda task: 0.1),  # the adjusted terms vary by less than a point
        (lambda task: 0.1 * (task % 5), lambda task: -0.1 * (task % 3)),
    ],
)
def test_where_no_outcome_ever_differs_there_is_no_difference_and_luck_makes_nobody_surer(luck_a, luck_b):
    found = compare([(task, task % 2, task % 2, luck_a(task), luck_b(task)) for task in range(80)]).differences
    for method, difference in found.items():
        assert abs(difference.difference) < 1e-3
        assert difference.interval[0] < 0.0 < difference.interval[1], method
        assert difference.p_value == 1.0
    assert found["paired_luck_adjusted"].interval == found["paired"].interval


def test_what_never_varies_is_judged_by_the_number_of_tasks():
    interval, p_value = without_variation(0.0, 10)
    assert (*interval, p_value) == pytest.approx((-(1 - 0.025**0.1), 1 - 0.025**0.1, 1.0))
    interval, p_value = without_variation(1.0, 10)  # the sign test
    assert (*interval, p_value) == pytest.approx((2 * 0.025**0.1 - 1, 1.0, stats.binomtest(10, 10).pvalue))
    for value, count in ((0.5, 6), (-0.25, 9)):  # the p-value is the level whose interval just reaches 0
        edges = without_variation(value, count, 1 - without_variation(value, count)[1])[0]
        assert min(abs(edges[0]), abs(edges[1])) == pytest.approx(0.0, abs=1e-12)


def test_one_pair_has_a_difference_and_nothing_else():
    found = compare([(0, 1, 0, 0.1, 0.0)]).differences
    for method in ("independent", "paired", "paired_luck_adjusted"):
        assert not math.isnan(found[method].difference)
        mapping = found[method].to_mapping()
        assert (mapping["interval"], mapping["p_value"], mapping["standard_error"]) == (None, None, None)
        assert "at least two" in mapping["note"]
    assert found["paired"].difference == 1.0


def test_on_one_task_seeds_are_the_units():
    pairs = [(0, int(seed % 3 > 0), int(seed % 4 == 0), 0.01 * seed, 0.0) for seed in range(24)]
    found = compare(pairs).differences["paired"]
    values = [float(pair[1] - pair[2]) for pair in pairs]
    expected = with_unseen(clustered_mean(values, [1.0] * len(values)), -1.0, 1.0)
    assert (found.difference, found.standard_error) == pytest.approx((expected.value, expected.standard_error))
    assert found.interval == pytest.approx((expected.low, expected.high))
    assert "on this task" in (found.note or "")


def test_on_one_task_nothing_that_luck_explains_makes_an_interval_a_point():
    exact = compare([(0, seed % 2, 0, seed % 2 - 0.5, 0.0) for seed in range(20)]).differences
    low, high = exact["paired_luck_adjusted"].interval
    assert high - low >= 2.0 * (1.0 - 0.05 ** (1 / 20))


def test_agents_that_try_again_get_no_luck_adjustment_and_the_reason():
    a, b = tables_of([(task, 1, task % 2, 0.1, 0.0) for task in range(8)])
    comparison = compare_tables(a, with_tries(b))
    adjusted = comparison.differences["paired_luck_adjusted"].to_mapping()
    assert (adjusted["difference"], adjusted["interval"], adjusted["p_value"]) == (None, None, None)
    assert "tries again" in adjusted["note"]
    assert comparison.best.method == "paired"
    assert comparison.to_mapping()["optimum"]["value"] is None
    assert math.isnan(comparison.beta_a)
    assert pool_comparisons([comparison, compare_tables(a, b)], "x", "y").best.method == "paired"


def test_only_common_episodes_are_paired():
    a = table_of([record("a", task, seed, 1, 0.0) for task in (0, 1, 2) for seed in (0, 5)], {})
    b = table_of([record("b", task, seed, 0, 0.0) for task in (2, 1, 9) for seed in (5, 7)], {})
    pairs = match_episodes(a, b)
    assert pairs.tasks == ("task_00000001", "task_00000002")
    assert pairs.seed.tolist() == [5, 5]
    assert pairs.num_without_partner == (4, 4)
    assert (pairs.outcome_a.tolist(), pairs.outcome_b.tolist()) == ([1.0, 1.0], [0.0, 0.0])


def test_what_cannot_be_paired_is_refused_in_one_line():
    a = table_of([record("a", 0, 0, 1, 0.0)], {})
    both = table_of([record("a", 0, 0, 1, 0.0), record("c", 0, 0, 1, 0.0)], {})
    b = record("b", 0, 0, 1, 0.0)
    for other, text in (
        ([record("b", 1, 0, 1, 0.0)], "no episode in common"),
        ([], "B holds no episode"),
        ([{**b, "optimum": 0.5}], r"V\* of task_00000000 .* one law"),
        ([{**b, "required_tools": ["utility_logger"]}], r"task task_00000000 is not the same in both, .*utility_l"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            compare_tables(a, table_of(other, {}))
    with pytest.raises(InvalidInputError, match="A holds a under optimal, c under optimal"):
        compare_tables(both, a)
    with pytest.raises(InvalidInputError, match="seed 0 of task_00000000 stands twice"):
        match_episodes(both, a)


def test_pooling_counts_all_pairs_and_takes_luck_off_in_each_part():
    one = compare([(task, 1, task % 2, 0.1, -0.1) for task in range(10)])
    two = compare([(task, task % 3 == 0, 0, 0.2, 0.3) for task in range(5, 20)])
    pooled = pool_comparisons([one, two], "x", "y")
    assert pooled.episodes == 25
    assert pooled.pairs.num_tasks == 20
    assert one.terms is not None
    assert two.terms is not None
    assert pooled.best.difference == pytest.approx(np.concatenate([one.terms, two.terms]).mean())
    values = np.concatenate([part.pairs.outcome_a - part.pairs.outcome_b for part in (one, two)])
    tasks = [part.pairs.tasks[place] for part in (one, two) for place in part.pairs.task]
    mean, error = naive_clustered(list(values), tasks)
    assert pooled.differences["paired"].difference == pytest.approx(mean)
    assert pooled.differences["paired"].standard_error == pytest.approx(error)
    alone = pool_comparisons([one], "x", "y")
    assert alone.to_mapping() == {**one.to_mapping(), "a": "x", "b": "y"}


def test_different_prompts_of_one_policy_can_be_compared():
    a, b = tables_of([(task, 1, 0, 0.1, 0.0) for task in range(4)])
    facts = {("b", "flawed"): GroupFacts("b", "flawed", None)}
    flawed = dataclasses.replace(b, prompts=("flawed",), facts=facts)
    assert compare_tables(a, flawed).prompt == "optimal → flawed"
