"""Variance parts and sample sizes against simulation and plain definitions."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.evaluation.table.comparing import compare_tables, match_episodes
from resilisim.statistics.comparison import Comparison
from resilisim.statistics.power import (
    SAME_TASKS,
    independent_luck_episodes,
    parts_of,
    plan_sample,
    power_of_test,
    tasks_needed,
    variance_parts,
)
from tests.evaluation.table.tables import pair_lists, tables_of, with_tries


def pilot(num_tasks: int = 60, num_seeds: int = 3) -> Comparison:
    """A and B share a part of their luck; B is worse on every third task."""
    generator = np.random.default_rng(5)
    pairs = []
    for task in range(num_tasks):
        for _ in range(num_seeds):
            common, own = generator.uniform(size=2)
            a = int(common < 0.7)
            b = int((common if own < 0.8 else own) < (0.5 if task % 3 == 0 else 0.7))
            pairs.append((task, a, b, 0.4 * (a - 0.7), 0.4 * (b - 0.65)))
    return compare_tables(*tables_of(pairs))


@settings(deadline=None)
@given(pair_lists)
def test_with_the_same_number_of_seeds_the_parts_are_those_of_the_textbook(pairs):
    # The same three episodes for each of the tasks, whatever was drawn.
    values = [(task, *pairs[(3 * task + seed) % len(pairs)][1:]) for task in range(5) for seed in range(3)]
    matched = match_episodes(*tables_of(values))
    table = matched.outcome_a.reshape(5, 3)
    parts = parts_of(matched.outcome_a, matched)
    among = 3 * table.mean(axis=1).var(ddof=1)
    inside = float(table.var(axis=1, ddof=1).mean())
    if among >= inside:
        assert parts.within == pytest.approx(inside)
        assert parts.between == pytest.approx((among - inside) / 3)
        # With the pilot's own numbers the parts give back the clustered error.
        assert parts.of_task_mean(3) == pytest.approx(table.mean(axis=1).var(ddof=1))
    else:
        assert parts.between == 0.0
        assert parts.within == pytest.approx(table.var(ddof=1))
    assert parts.total == pytest.approx(parts.between + parts.within)


@pytest.mark.long
def test_the_parts_of_unequal_tasks_are_unbiased():
    generator = np.random.default_rng(3)
    sizes = [1, 2, 5, 3, 2, 8, 1, 4]
    found = []
    for _ in range(400):
        tasks = [task for task, size in enumerate(sizes) for _ in range(size)]
        matched = match_episodes(*tables_of([(task, 1, 0, 0.0, 0.0) for task in tasks]))
        effects = generator.normal(0, 2.0, len(sizes))
        values = effects[matched.task] + generator.normal(0, 1.0, len(tasks))
        parts = parts_of(values, matched)
        found.append((parts.between, parts.within))
    between, within = np.mean(found, axis=0)
    assert between == pytest.approx(4.0, abs=0.4)
    assert within == pytest.approx(1.0, abs=0.1)


def test_one_seed_cannot_be_split():
    parts = variance_parts(pilot(num_seeds=1))
    for part in parts.values():
        assert math.isnan(part.between)
        assert math.isnan(part.of_task_mean(2))
        assert part.total > 0.0
    assert parts["paired"].total <= parts[SAME_TASKS].total <= parts["independent"].total


def test_independent_luck_costs_both_policies_their_own():
    comparison = pilot(num_seeds=4)
    parts = variance_parts(comparison)
    outcomes = (
        parts_of(comparison.pairs.outcome_a, comparison.pairs),
        parts_of(comparison.pairs.outcome_b, comparison.pairs),
    )
    assert parts[SAME_TASKS].within == pytest.approx(outcomes[0].within + outcomes[1].within)
    assert parts[SAME_TASKS].between == parts["paired"].between
    assert parts["paired_luck_adjusted"].total < parts["paired"].total < parts[SAME_TASKS].total
    needed = independent_luck_episodes(comparison)
    per_task = parts[SAME_TASKS].of_task_mean(4)
    assert math.sqrt(per_task / (needed / 4)) == pytest.approx(comparison.best.standard_error)
    assert needed > comparison.episodes


def test_agents_that_try_again_are_planned_without_luck():
    a, b = tables_of([(task, task % 2, task % 3 == 0, 0.1, 0.0) for task in range(20)])
    comparison = compare_tables(a, with_tries(b))
    parts = variance_parts(comparison)
    assert "paired_luck_adjusted" not in parts
    assert math.isnan(parts[SAME_TASKS].total)
    assert math.isnan(independent_luck_episodes(comparison))
    assert plan_sample(comparison, 0.2).size(SAME_TASKS, 1).episodes is None


@pytest.mark.parametrize(("difference", "variance", "num_tasks"), [(0.3, 0.5, 20), (0.1, 0.2, 120), (1.0, 1.0, 5)])
def test_power_is_how_often_the_test_rejects(difference, variance, num_tasks):
    from scipy import stats

    generator = np.random.default_rng(11)
    samples = generator.normal(difference, math.sqrt(variance), (20_000, num_tasks))
    share = float(np.mean(stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05))
    assert power_of_test(difference, variance, num_tasks) == pytest.approx(share, abs=0.012)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.05, 0.9), st.floats(0.01, 0.5), st.sampled_from([0.5, 0.8, 0.95]), st.sampled_from([0.05, 0.01]))
def test_the_number_of_tasks_is_the_smallest_that_does(difference, variance, power, level):
    count = tasks_needed(difference, variance, power, level)
    assume(count < 400)
    smallest = next(n for n in range(2, 400) if power_of_test(difference, variance, n, level) >= power)
    assert count == smallest


def test_more_seeds_need_fewer_tasks_and_more_episodes():
    plan = plan_sample(pilot(), 0.1)
    for method in plan.parts:
        sizes = [plan.size(method, seeds) for seeds in (1, 2, 4, 8)]
        assert all(size.num_tasks is not None and size.episodes is not None for size in sizes)
        tasks = [size.num_tasks or 0 for size in sizes]
        assert tasks == sorted(tasks, reverse=True)
        for size in sizes:
            assert size.episodes == size.num_seeds * (size.num_tasks or 0)
            assert (size.low or 0) <= (size.episodes or 0) <= (size.high or 0)
    assert plan.size("paired_luck_adjusted", 1).episodes < plan.size("independent", 1).episodes


def test_a_small_pilot_says_how_little_it_knows():
    assert "a pilot of 10 tasks leaves 120 to 411 episodes possible" in (plan_sample(pilot(10, 1), 0.05).note or "")
    assert plan_sample(pilot(2000, 1), 0.05).note is None


def test_a_pilot_of_twins_is_not_taken_at_its_word():
    pairs = [(task, task % 2, (task % 2) if task else 1 - task % 2, 0.1, 0.1) for task in range(100)]
    plan = plan_sample(compare_tables(*tables_of(pairs)), 0.2)
    assert plan.parts["paired"].total == pytest.approx(0.2 * 0.8)
    assert plan.note is not None
    same = [(task, 1, 1, 0.1, 0.1) for task in range(10)]
    assert plan_sample(compare_tables(*tables_of(same)), 0.2).size("paired", 1).to_mapping()["episodes"] is None


def test_a_pilot_in_which_no_pair_differed_says_nothing_about_paired_methods():
    generator = np.random.default_rng(6)
    lucks = generator.normal(0.0, 0.01, size=(40, 2))
    pairs = [(task, task % 2, task % 2, *(0.3 * (task % 2) + lucks[task])) for task in range(40)]
    plan = plan_sample(compare_tables(*tables_of(pairs)), 0.03)
    assert plan.size("independent", 1).episodes is not None
    for method in ("paired", "paired_luck_adjusted"):
        assert plan.size(method, 1).episodes is None, method
        assert plan.to_mapping()["methods"][method]["variance"] == 0.0


def test_bad_numbers_are_refused():
    comparison = pilot(10, 1)
    for name, values in (("difference", (0.0, 0.8, 0.05)), ("power", (0.1, 1.0, 0.05)), ("level", (0.1, 0.8, 0.0))):
        with pytest.raises(InvalidInputError, match=f"{name} is"):
            plan_sample(comparison, *values)
    with pytest.raises(InvalidInputError, match="expected more than the level"):
        plan_sample(comparison, 0.1, 0.05, 0.1)
    one = dataclasses.replace(comparison, pairs=match_episodes(*tables_of([(0, 1, 0, 0.0, 0.0), (0, 1, 1, 0.0, 0.0)])))
    with pytest.raises(InvalidInputError, match="one task"):
        plan_sample(one, 0.1)
