"""Differences of two agents on one task: what their intervals promise, by the multinomial distribution, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from resilisim.statistics.comparison import (
    PAIRED,
    Difference,
    Pairs,
    clustered_difference,
    mean_difference,
    without_variation,
)
from resilisim.statistics.estimates import CONFIDENCE_LEVEL, FloatArray, clustered_mean, t_quantile

MOST_RARE = 24  # more rare losses of one agent in a sample are not looked at
LOSSES = (0.2, 0.5, 1.0, 1.5, 2.0, 2.5, 2.9, 3.1, 3.6, 3.8, 4.5, 6.0, 8.0)  # of one agent, that are expected


def on_one_task(terms: FloatArray) -> Difference:
    nothing = np.zeros(len(terms))
    task, seed = np.zeros(len(terms), dtype=np.int64), np.arange(len(terms))
    pairs = Pairs(("task",), task, seed, nothing, nothing, nothing, nothing, nothing, nothing, nothing)
    return clustered_difference(PAIRED, pairs, terms, CONFIDENCE_LEVEL)


@pytest.mark.parametrize("count", [10, 30, 60, 100, 300])
@pytest.mark.parametrize("worth", [1.0, 0.8, 0.5])
def test_intervals_on_one_task_hold_the_truth_however_rare_the_losses_of_two_agents_are(
    count: int, worth: float
) -> None:
    """Luck explains everything but rare losses of each agent, which cost what the episode was worth."""
    most = min(MOST_RARE, count)
    rare = [(a, b) for a in range(most + 1) for b in range(most + 1 - a)]
    samples = [worth * np.repeat([-1.0, 1.0, 0.0], [a, b, count - a - b]) for a, b in rare]
    roomy = np.array([on_one_task(sample).interval for sample in samples])
    plain = [clustered_mean(sample, np.ones(count)) for sample in samples]
    narrow = np.array([(each.low, each.high) for each in plain])
    counts = np.array([(a, b, count - a - b) for a, b in rare])

    def coverage(intervals: FloatArray, a: float, b: float) -> float:
        """Return how often the difference is held of agents that lose in these shares of their episodes."""
        truth = worth * (b - a)
        holds = (intervals[:, 0] - 1e-12 <= truth) & (truth <= intervals[:, 1] + 1e-12)
        return float(stats.multinomial.pmf(counts, count, [a, b, 1.0 - a - b]) @ holds)

    chances = [losses / count for losses in LOSSES if losses < 0.4 * count]
    assert min(coverage(roomy, a, share * a) for a in chances for share in (0.0, 0.2, 0.5, 1.0)) >= 0.93
    assert coverage(narrow, 0.5 / count, 0.0) < 0.5  # most samples have met none


def test_a_difference_on_one_task_has_room_down_to_minus_one_and_up_to_one() -> None:
    terms = np.array([0.8, 0.2] * 15)
    found, plain, share = on_one_task(terms), clustered_mean(terms, np.ones(30)), 1.0 - 0.05 ** (1.0 / 30.0)
    half = t_quantile(30) * plain.standard_error
    assert found.interval == pytest.approx((0.5 - np.hypot(half, 1.5 * share), 0.5 + np.hypot(half, 0.5 * share)))


@pytest.mark.parametrize("count", [5, 10, 30])
@pytest.mark.parametrize("step", [0.02, 0.2, 0.9])
def test_the_p_value_on_one_task_is_below_five_percent_where_the_interval_leaves_zero_out(
    count: int, step: float
) -> None:
    for mean in np.linspace(-1.0 + step, 1.0 - step, 41):
        found = on_one_task(mean + step * np.where(np.arange(count) % 2, 1.0, -1.0))
        low, high = found.interval
        assert (found.p_value < 0.05) == (low > 0.0 or high < 0.0), mean


def test_differences_that_all_agree_have_the_interval_that_as_many_tasks_can_rule_out() -> None:
    same = mean_difference([0.0] * 10, [4.0] * 10)
    assert (same.value, (same.low, same.high)) == (0.0, without_variation(0.0, 10)[0])
    varied = mean_difference([1.0, -1.0, 2.0, 0.0], [4.0] * 4)
    assert varied == clustered_mean([1.0, -1.0, 2.0, 0.0], [4.0] * 4)
    assert mean_difference([1.0, 0.0, 0.0], [1.0] * 3).high == 1.0  # no rates differ by more
