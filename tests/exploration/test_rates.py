"""Estimates from branches and from what was drawn beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from resilisim.exploration.exploring import ExploredRow
from resilisim.exploration.frontier import Unplayed
from resilisim.exploration.rates import Played, Rest, drawn_by_weight, is_worth_playing, rate_of
from resilisim.seeding import Draws


def played(*episodes: tuple[float, int, float]) -> Played:
    """Return sums over episodes: weight, outcome, luck."""
    sums = Played()
    for weight, outcome, luck in episodes:
        sums.enter(weight, outcome, luck, {})
    return sums


def test_what_can_succeed_of_the_rest_bounds_the_rate() -> None:
    some = played((0.5, 1, 0.2), (0.2, 0, -0.3))
    rate = rate_of(some, Rest(0.3, 0.1, None), Played())
    assert (rate.low, rate.high) == pytest.approx((0.5, 0.6))
    assert rate.interval == (rate.low, rate.high)
    assert rate.estimate == pytest.approx(0.55)
    known = rate_of(some, Rest(0.0, 0.0, None), Played())
    assert known.low == known.high == known.estimate == pytest.approx(0.5)


def test_episodes_that_were_drawn_stand_for_the_rest_and_stay_in_the_bracket() -> None:
    some, half = played((0.7, 1, 0.0)), played(*[(0.006, number % 2, 0.0) for number in range(50)])
    rate = rate_of(some, Rest(0.3, 0.3, None), half)
    assert rate.estimate == pytest.approx(0.7 + 0.3 * 0.5)
    assert 0.7 < rate.interval[0] < rate.estimate < rate.interval[1] < 1.0
    assert rate_of(some, Rest(0.3, 0.05, None), half).estimate == pytest.approx(0.75)


def test_luck_that_explains_everything_leaves_a_sharp_value_and_no_point_for_an_interval() -> None:
    # Outcome = 0.6 + luck, always: an agent that loses nothing.
    some = played(*[(0.03, int(number < 12), 0.4 if number < 12 else -0.6) for number in range(20)])
    drawn = played(*[(0.01, int(number % 2), 0.4 if number % 2 else -0.6) for number in range(40)])
    rate = rate_of(some, Rest(0.4, 0.3, 0.0), drawn)
    assert rate.estimate == pytest.approx(0.36 - some.luck + 0.4 * 0.6)
    assert rate.interval[0] < rate.estimate < rate.interval[1]


def test_branches_are_drawn_as_often_as_they_weigh() -> None:
    branches = [Unplayed(weight) for weight in (0.4, 0.05, 0.05)]
    counts = Counter(id(branch) for branch in drawn_by_weight(branches, 100, Draws("test")))
    assert [counts[id(branch)] for branch in branches] == pytest.approx([80, 10, 10], abs=1)


def test_branches_are_played_while_they_tell_more_than_draws() -> None:
    assert is_worth_playing([], 1.0, 1)
    assert is_worth_playing([0.01], 0.5, 30)
    assert not is_worth_playing([0.001], 0.5, 30)


def test_sets_of_replies_that_agree_leave_an_interval_that_so_few_allow() -> None:
    row = ExploredRow(
        "agent", "task", "optimal", 1.0, 1.0, 1.0, (1.0, 1.0), plays=3, drawn=0, unplayed=0.0, optimum=1.0
    )
    together = ExploredRow.of_dice([row] * 4)
    assert together.interval == pytest.approx((0.025**0.25, 1.0))
    assert (together.estimate, together.dice, together.plays) == (1.0, 4, 12)
    other = replace(row, low=0.5, high=0.5, estimate=0.5)
    low, high = ExploredRow.of_dice([row, other, row, other]).interval
    assert 0.0 < low < 0.75 < high <= 1.0
