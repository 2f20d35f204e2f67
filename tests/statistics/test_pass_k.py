"""pass@k and pass^k against all choices of k episodes, corrected p-values against their definition."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.statistics import clustered_proportion, holm, pass_at_k, pass_hat_k
from resilisim.statistics.estimates import pass_at_k_by_task, pass_hat_k_by_task

# (successes, episodes) of a task.
tasks = st.integers(0, 7).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
task_lists = st.lists(tasks, min_size=1, max_size=8)


def naive(successes: int, episodes: int, k: int) -> tuple[float, float]:
    """Go through all choices of k episodes."""
    outcomes = [1] * successes + [0] * (episodes - successes)
    choices = list(combinations(outcomes, k))
    if not choices:
        return math.nan, math.nan
    return sum(map(any, choices)) / len(choices), sum(map(all, choices)) / len(choices)


@given(task_lists, st.integers(1, 5))
def test_both_are_shares_of_all_choices(counts, k):
    won, tried = zip(*counts, strict=True)
    expected = [naive(successes, episodes, k) for successes, episodes in counts]
    assert pass_at_k_by_task(won, tried, k) == pytest.approx([pair[0] for pair in expected], nan_ok=True)
    assert pass_hat_k_by_task(won, tried, k) == pytest.approx([pair[1] for pair in expected], nan_ok=True)


@settings(deadline=None)
@given(task_lists, st.integers(1, 5))
def test_the_mean_leaves_out_tasks_with_too_few_episodes_and_says_so(counts, k):
    won, tried = zip(*counts, strict=True)
    usable = [pair for pair in counts if pair[1] >= k]
    some, every = pass_at_k(won, tried, k), pass_hat_k(won, tried, k)
    for estimate in (some, every):
        assert estimate.num_clusters == len(usable)
        assert estimate.num_episodes == sum(episodes for _, episodes in usable)
    if not usable:
        assert math.isnan(some.value)
        assert math.isnan(every.low)
        return
    assert every.value <= some.value + 1e-12
    assert some.value == pytest.approx(np.mean([naive(*pair, k)[0] for pair in usable]))


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_one_try_is_the_success_rate(successes):
    episodes = [4] * len(successes)
    rate = clustered_proportion(successes, episodes)
    for estimate in (pass_at_k(successes, episodes, 1), pass_hat_k(successes, episodes, 1)):
        assert estimate.value == pytest.approx(rate.value)
        assert estimate.standard_error == pytest.approx(rate.standard_error, nan_ok=True)


def test_estimates_are_unbiased_where_powers_of_the_rate_are_not():
    # The mean over all results of 4 tries with chance 0.3, weighted by their probability.
    chance, n, k = 0.3, 4, 2
    weights = np.array([math.comb(n, c) * chance**c * (1 - chance) ** (n - c) for c in range(n + 1)])
    successes, episodes = np.arange(n + 1), np.full(n + 1, n)
    assert weights @ pass_hat_k_by_task(successes, episodes, k) == pytest.approx(chance**k)
    assert weights @ pass_at_k_by_task(successes, episodes, k) == pytest.approx(1 - (1 - chance) ** k)
    assert weights @ (successes / n) ** k != pytest.approx(chance**k)


def test_numbers_that_cannot_be_are_refused():
    with pytest.raises(InvalidInputError, match="k is 0"):
        pass_at_k([1], [2], 0)
    with pytest.raises(InvalidInputError, match="3 successes in 2 episodes"):
        pass_hat_k([3], [2], 1)


def naive_holm(p_values: list[float]) -> list[float]:
    """For each hypothesis: the largest, over it and all with smaller p-values, of p times those not smaller than p."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    rank = {place: number for number, place in enumerate(order)}
    return [
        min(
            1.0,
            max((len(p_values) - rank[other]) * p_values[other] for other in order if rank[other] <= rank[place]),
        )
        for place in range(len(p_values))
    ]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_its_definition_and_never_below_the_raw_value(p_values):
    adjusted = holm(p_values)
    assert adjusted == pytest.approx(naive_holm(p_values))
    assert all(after >= before for after, before in zip(adjusted, p_values, strict=True))


def test_p_values_of_a_textbook_and_none_and_nonsense():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    adjusted = holm([math.nan, 0.01, 0.02])
    assert math.isnan(adjusted[0])
    assert adjusted[1:] == holm([0.01, 0.02])
    assert holm([]) == []
    with pytest.raises(InvalidInputError, match=r"p-value 1\.5"):
        holm([1.5])
