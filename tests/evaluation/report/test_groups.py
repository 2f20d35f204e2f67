"""Means and differences of rates over shared tasks, against the naive forms over single episodes."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.evaluation.report.groups import (
    Rate,
    base_prompt,
    combination,
    difference,
    mean_of,
    pool,
)
from resilisim.evaluation.table.episodes import sums_of
from resilisim.evaluation.table.summary import summarise_group
from resilisim.statistics import clustered_mean
from tests.evaluation.synthetic import synthetic_run

counts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12)


@given(counts)
def test_a_difference_is_the_clustered_mean_of_the_pairs(successes: list[tuple[int, int]]) -> None:
    first, second = (np.array(side, dtype=float) for side in zip(*successes, strict=True))
    episodes = np.full(len(first), 4.0)
    found = difference(Rate(first, episodes), Rate(second, episodes))
    naive = clustered_mean(first - second, episodes)
    assert found.value == pytest.approx(naive.value)
    assert found.standard_error == pytest.approx(naive.standard_error, abs=1e-12)
    if naive.standard_error > 1e-9:
        assert (found.low, found.high) == pytest.approx((naive.low, naive.high))
    else:  # where no task differs, the interval is not a point
        assert found.low < found.value < found.high or abs(found.value) == 1.0


def test_a_difference_takes_only_tasks_that_both_have() -> None:
    first = Rate(np.array([1.0, 0.0, 2.0]), np.array([2.0, 0.0, 2.0]))
    second = Rate(np.array([0.0, 2.0, 1.0]), np.array([2.0, 2.0, 2.0]))
    found = difference(first, second)
    assert found.value == pytest.approx(3 / 4 - 1 / 4)
    assert found.num_clusters == 2
    assert found.num_episodes == 8


def test_a_mean_gives_every_rate_the_same_weight() -> None:
    few = Rate(np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    many = Rate(np.array([0.0, 3.0]), np.array([10.0, 10.0]))
    found = mean_of([few, many])
    assert found.value == pytest.approx((1.0 + 0.15) / 2)
    # By hand: task g contributes the mean of both residuals over the sum of episodes.
    shares = [0.5 * (0.0 - 0.15 * 10) / 20, 0.5 * (3.0 - 0.15 * 10) / 20]
    assert found.standard_error == pytest.approx(math.sqrt(2 * (shares[0] ** 2 + shares[1] ** 2)))


def test_one_task_gives_no_interval_and_none_gives_no_number() -> None:
    one = Rate(np.array([1.0]), np.array([2.0]))
    assert math.isnan(mean_of([one]).low)
    assert mean_of([one]).value == 0.5
    none = Rate(np.array([0.0]), np.array([0.0]))
    assert math.isnan(combination([(1.0, one), (-1.0, none)]).value)


def test_groups_counted_as_one_are_what_one_group_of_all_episodes_would_be() -> None:
    parts = list(synthetic_run(("random",), ("flawed:a", "flawed:b"), num_tasks=9, num_seeds=3))
    together = sums_of({**record, "prompt_type": "flawed"} for record in parts)
    apart = sums_of(parts)
    found = pool(apart.group("random", "flawed:a", "flawed:b"), "flawed")
    expected = summarise_group(together.group("random", "flawed"))
    for name in (
        "success",
        "partial_success",
        "optimum",
        "luck_adjusted",
        "share_of_ceiling",
        "luck",
        "regret",
        "turns",
    ):
        mine, other = getattr(found.summary, name), getattr(expected, name)
        assert astuple(mine) == pytest.approx(astuple(other)), name
    assert found.summary.losses.keys() == expected.losses.keys()
    assert found.summary.ended_by == pytest.approx(expected.ended_by)
    count = found.success.denominators.sum()
    assert found.success.numerators.sum() / count == pytest.approx(found.summary.success.value)
    assert found.adjusted.value == pytest.approx(found.summary.luck_adjusted.value)
    assert sum(rate.value for rate in found.levels) == pytest.approx(1.0)


def test_a_flaw_is_no_part_of_the_prompt_type() -> None:
    assert base_prompt("flawed:tool_misuse:severe") == "flawed"
    assert base_prompt("optimal") == "optimal"
