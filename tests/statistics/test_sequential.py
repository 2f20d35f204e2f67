"""Bounds of a mean hold at whatever pass one looks, also where tasks differ, and are pinned to their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resilisim.statistics.sequential import LARGEST_LEAD, STAKES, Measure, leads_of, mean_bounds, terms_until_told


def won(terms: np.ndarray, mean: float, reach: float) -> float:
    """Return what is won against a mean, written out: one bet after the other, with each stake."""
    shares = []
    for stake in STAKES:
        money = 1.0
        for term in terms:
            money *= 1.0 + stake * (term - mean) / (reach + mean)
        shares.append(money)
    return float(np.mean(shares))


def test_bounds_are_where_the_bets_have_won_enough() -> None:
    terms = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], size=60, p=[0.4, 0.5, 0.1])
    low, high = mean_bounds([Measure(terms, 1.0)], np.arange(60), np.zeros(60, int), alpha=0.1)
    assert won(terms, low, 1.0) == pytest.approx(20.0, rel=1e-3)
    assert won(-terms, -high, 1.0) == pytest.approx(20.0, rel=1e-3)
    assert low < terms.mean() < high


def test_measures_share_the_money() -> None:
    noisy = np.random.default_rng(1).choice([-1.0, 1.0], size=400, p=[0.52, 0.48])
    quiet = np.full(400, -0.04)
    both = mean_bounds([Measure(noisy, 1.0), Measure(quiet, 2.0)], np.arange(400), np.zeros(400, int))
    alone = [
        mean_bounds([each], np.arange(400), np.zeros(400, int)) for each in (Measure(noisy, 1.0), Measure(quiet, 2.0))
    ]
    assert alone[1][1] <= both[1] < alone[0][1]
    assert both[1] < 0.0 < alone[0][1]


def test_what_differs_between_tasks_is_no_noise_once_each_was_played() -> None:
    means = np.where(np.arange(20) < 10, -1.0, 1.0)
    task, turn = np.tile(np.arange(20), 12), np.repeat(np.arange(12), 20)
    terms = np.tile(means, 12) * (np.random.default_rng(0).random(240) < 0.9)
    starts = np.arange(0, 240, 20)
    leads = leads_of(terms, task, starts)
    assert np.abs(np.add.reduceat(leads, starts)).max() < 1e-9
    assert np.abs(leads).max() <= 2.0 * LARGEST_LEAD
    assert not leads[:20].any()
    with_leads = mean_bounds([Measure(terms, 1.0)], task, turn)
    without = mean_bounds([Measure(terms, 1.0)], np.arange(240), np.zeros(240, int))
    assert with_leads[1] - with_leads[0] < 0.9 * (without[1] - without[0])


@pytest.mark.parametrize("kind", ["coins", "tasks", "rare"])
def test_the_mean_leaves_its_bounds_in_at_most_alpha_of_all_looks(kind: str) -> None:
    generator = np.random.default_rng(5)
    num_tasks, passes, alpha, left = 12, 6, 0.2, 0
    task, turn = np.tile(np.arange(num_tasks), passes), np.repeat(np.arange(passes), num_tasks)
    means = np.linspace(-0.8, 0.8, num_tasks)
    for _ in range(40):
        uniform = generator.random((passes, num_tasks))
        if kind == "coins":
            terms = np.where(uniform < 0.5, -1.0, 1.0)
        elif kind == "tasks":
            terms = np.sign(means) * (uniform < np.abs(means))
        else:
            terms = np.where(uniform < 0.02, 0.98, -0.02)
        for end in range(1, passes + 1):
            count = end * num_tasks
            low, high = mean_bounds([Measure(terms.ravel()[:count], 1.0)], task[:count], turn[:count], alpha)
            if not low <= 0.0 <= high:
                left += 1
                break
    # Of 40, 8 are expected at most; 18 or more have a chance below 0.001 then.
    assert left < 18


def test_drawn_gates_tell_what_bounds_say() -> None:
    terms = np.array([-1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    generator = np.random.default_rng(2)
    count = terms_until_told([Measure(terms, 1.0)], 0.0, 0.05, 5_000, generator)
    again = np.random.default_rng(2)
    drawn = terms[again.integers(10, size=5_000)]
    assert count is not None
    for number, is_told in ((count, True), (count - 1, False)):
        total = won(-drawn[:number], 0.0, 1.0)
        assert (total >= 2.0 / 0.05) == is_told
    assert terms_until_told([Measure(np.zeros(5), 1.0)], 0.0, 0.05, 500, generator) is None


def test_one_term_says_next_to_nothing() -> None:
    low, high = mean_bounds([Measure(np.array([-1.0]), 1.0)], np.zeros(1, int), np.zeros(1, int))
    assert low == pytest.approx(-1.0, abs=1e-5)
    assert high > 0.9
    assert not math.isnan(high)
