"""Changes, areas and shares of a profile, each against its definition over single episodes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.evaluation.robustness.analysis import (
    TaskScores,
    mean_of_changes,
    recovered_share,
    share_of_area,
    task_scores,
    trapezoid_weights,
)
from resilisim.evaluation.table.episodes import sums_of
from resilisim.evaluation.table.summary import summarise
from resilisim.statistics.estimates import clustered_mean, t_quantile
from tests.evaluation.synthetic import synthetic_run
from tests.statistics.test_estimates import naive_clustered


def scores(outcomes: list[list[int]], lucks: list[list[float]] | None = None) -> TaskScores:
    """Return the scores of tasks with the given outcomes of episodes; the luck is taken out as it is (beta = 1)."""
    lucks = lucks if lucks is not None else [[0.0] * len(task) for task in outcomes]
    count = np.array([float(len(task)) for task in outcomes])
    outcome = np.array([float(sum(task)) for task in outcomes])
    adjusted = outcome - np.array([sum(task) for task in lucks])
    return TaskScores(count, outcome, adjusted)


EVERY = np.ones(4, dtype=np.bool_)


def test_a_change_is_the_clustered_mean_of_the_differences_of_single_episodes() -> None:
    here, there = [[1, 0], [0, 0], [1, 1], [0, 1]], [[1, 1], [0, 1], [1, 1], [1, 0]]
    found = mean_of_changes([(scores(here), scores(there), EVERY)]).raw
    differences = [a - b for task, other in zip(here, there, strict=True) for a, b in zip(task, other, strict=True)]
    mean, error = naive_clustered(differences, [0, 0, 1, 1, 2, 2, 3, 3])
    assert (found.value, found.standard_error) == pytest.approx((mean, error))
    assert found.high - found.value == pytest.approx(t_quantile(4) * error)
    assert (found.num_clusters, found.num_episodes) == (4, 8)


def test_tasks_that_are_not_finished_in_both_settings_or_not_chosen_do_not_count() -> None:
    here, there = scores([[1, 1], [0, 0], [1, 0], [0]]), scores([[0, 0], [1, 1], [1, 0], [1, 1]])
    found = mean_of_changes([(here, there, np.array([True, False, True, True]))]).raw
    assert found.value == pytest.approx((2 + 0) / 4)
    assert found.num_clusters == 2
    for settings in ([], [(here, there, ~EVERY)]):
        assert math.isnan(mean_of_changes(settings).better.value)


def test_where_nothing_differs_the_interval_is_that_of_a_rate_of_zero() -> None:
    same = scores([[1, 0]] * 20)
    found = mean_of_changes([(same, same, np.ones(20, dtype=np.bool_))]).raw
    reach = 1.0 - 0.025 ** (1 / 20)  # of Clopper and Pearson, with as many units as there are tasks
    assert (found.value, found.low, found.high) == pytest.approx((0.0, -reach, reach))


def test_one_task_has_no_interval_and_no_interval_leaves_minus_one_to_one() -> None:
    one = mean_of_changes([(scores([[1, 1]]), scores([[0, 1]]), EVERY[:1])]).raw
    assert one.value == 0.5
    assert math.isnan(one.low)
    wide = mean_of_changes([(scores([[1], [1], [0]]), scores([[0], [0], [0]]), EVERY[:3])]).raw
    assert (wide.value, wide.high) == (pytest.approx(2 / 3), 1.0)


@given(st.lists(st.floats(0.1, 20.0), min_size=1, max_size=6, unique=True), st.data())
def test_trapezoid_weights_integrate(values: list[float], data: st.DataObject) -> None:
    values = sorted(values)
    curve = data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(values), max_size=len(values)))
    weights = trapezoid_weights(values)
    assert weights.sum() == pytest.approx(1.0)
    assert weights.min() >= 0.0
    if len(values) > 1:
        area = sum((b - a) * (p + q) / 2 for a, b, p, q in zip(values, values[1:], curve, curve[1:], strict=False))
        assert float(weights @ np.array(curve)) == pytest.approx(area / (values[-1] - values[0]))


def test_the_share_of_an_area_is_the_ratio_of_two_integrals() -> None:
    low, high = scores([[1, 0], [0, 0], [1, 1]]), scores([[1, 1], [1, 0], [1, 1]])
    optima = [np.array([0.6, 0.4, 0.8]), np.array([0.9, 0.9, 1.0])]
    found = share_of_area([low, high], optima, [0.5, 1.0])
    mean, ceiling = (0.5 + 5 / 6) / 2, (0.6 + 2.8 / 3) / 2
    assert found.raw.value == pytest.approx(mean / ceiling)
    assert found.raw.num_episodes == 12


def test_an_agent_that_never_succeeds_has_an_area_of_zero_and_an_interval_above() -> None:
    never = scores([[0, 0]] * 10)
    area = share_of_area([never, never], [np.full(10, 0.5)] * 2, [4.0, 8.0]).better
    assert area.value == 0.0
    assert area.low == 0.0
    assert area.high == pytest.approx((1.0 - 0.025 ** (1 / 10)) / 0.5)


def test_obeying_recovers_nothing_and_the_optimum_everything() -> None:
    obey, deviate = np.array([0.0, 0.25, 0.5]), np.array([0.75, 0.75, 1.0])
    count = np.full(3, 4.0)
    for reached, expected in ((obey, 0.0), (deviate, 1.0)):
        done = TaskScores(count, count * reached, count * reached)
        found = recovered_share([(done, obey, deviate, EVERY[:3])])
        assert found.raw.value == pytest.approx(expected)
        assert found.raw.num_episodes == 12


def test_scores_of_a_run_are_those_of_its_summary() -> None:
    sums = sums_of(synthetic_run(num_tasks=17))
    place_of = {task.instance_id: 40 - place for place, task in enumerate(sums.tasks)}  # in another order, with gaps
    place_of |= {f"other {place}": place for place in range(24)}
    for row in summarise(sums):
        found = task_scores(sums.group(row.policy, row.prompt_type), place_of)
        played = found.count > 0
        assert int(played.sum()) == 17
        raw = clustered_mean(found.outcome[played], found.count[played])
        adjusted = clustered_mean(found.adjusted[played], found.count[played])
        assert raw.value == pytest.approx(row.success.value)
        assert adjusted.value == pytest.approx(row.luck_adjusted.value)
        assert adjusted.standard_error == pytest.approx(row.luck_adjusted.standard_error)


def test_an_agent_that_tries_again_has_raw_numbers_only() -> None:
    sums = sums_of(synthetic_run(num_tasks=5))
    group = sums.group("random", "optimal")
    found = task_scores(
        replace(group, tries_again=group.count), {task.instance_id: place for place, task in enumerate(sums.tasks)}
    )
    area = share_of_area([found], [np.full(5, 0.5)], [0.8])
    assert math.isnan(area.adjusted.value)
    assert area.better == area.raw
