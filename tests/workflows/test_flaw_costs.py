"""The table of what flaws cost: its means are those of the single plans."""

from __future__ import annotations

import math
import statistics

import pytest

from resilisim import benchmark_tasks
from resilisim.workflows import ExactPlanner
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.plan_value import SOUND, CostCalculator, costs_of_tasks, flaw_cost_table

TASKS = benchmark_tasks()[::250]


def test_a_row_is_the_mean_over_the_tasks_that_carry_the_flaw():
    done: list[int] = []
    rows = flaw_cost_table(TASKS, seed=5, progress=done.append)
    assert sum(done) == len(TASKS)
    assert len(rows) == 1 + sum(len(methods) for methods in FLAW_METHODS.values()) * len(SEVERITIES)
    planner, perturber, calculator = ExactPlanner(), Perturber(), CostCalculator()
    for row in rows[1::7]:
        obey, coverage, price, edits = [], [], [], []
        for task in TASKS:
            sound = planner.plan(task)
            flawed = perturber.perturb(sound, task.required_tools, row.flaw, row.severity, row.method, 5)
            if isinstance(flawed, FlawedWorkflow):
                costs = calculator.costs(task.required_tools, flawed.workflow.steps)
                obey.append(costs.obey)
                coverage.append(costs.obey_coverage)
                price.append(costs.price_of_obedience)
                edits.append(len(flawed.edits))
        assert row.num_tasks == len(obey)
        assert row.num_tasks + row.num_refused == len(TASKS)
        assert row.obey == pytest.approx(statistics.fmean(obey), abs=1e-12)
        assert row.obey_coverage == pytest.approx(statistics.fmean(coverage), abs=1e-12)
        assert row.price == pytest.approx(statistics.fmean(price), abs=1e-12)
        assert row.edits == pytest.approx(statistics.fmean(edits))
        error = statistics.stdev(coverage) / math.sqrt(len(coverage))
        assert row.coverage_interval == pytest.approx(1.959964 * error)


def test_the_first_row_is_the_sound_plans():
    sound = flaw_cost_table(TASKS)[0]
    assert (sound.flaw, sound.method, sound.severity) == SOUND
    assert sound.num_tasks == len(TASKS)
    assert sound.harmless == 1.0
    assert sound.edits == 0.0
    assert sound.obey == pytest.approx(sound.sound_obey)
    assert 0.0 < sound.obey < sound.deviate


def test_a_mean_over_one_task_has_no_interval_and_over_none_no_value():
    single = next(task for task in benchmark_tasks() if len(task.required_tools) == 1)
    rows = {(row.flaw, row.method, row.severity): row for row in flaw_cost_table([single])}
    assert math.isnan(rows[SOUND].obey_interval)
    refused = rows["missing_step", "middle_step_removal", "light"]
    assert (refused.num_tasks, refused.num_refused) == (0, 1)
    assert math.isnan(refused.obey)
    assert math.isnan(refused.harmless)


def test_several_processes_give_the_same_costs_in_the_same_order():
    tasks = benchmark_tasks()[:45]
    assert list(costs_of_tasks(tasks, workers=2)) == list(costs_of_tasks(tasks))
