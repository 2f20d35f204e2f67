"""What obeying the flawed plans of a run brings: the exact chances of the plans that its agents were shown."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilisim.evaluation import evaluate
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.reporting.flaws import flaw_costs
from resilisim.tasks.benchmark import benchmark_tasks, find_task
from resilisim.tasks.sources import sample_tasks
from resilisim.tool_library import default_library
from resilisim.workflows import ExactPlanner
from resilisim.workflows.flaws import FlawedWorkflow, Perturber
from resilisim.workflows.plan_value import CostCalculator
from tests.evaluation.synthetic import synthetic_run
from tests.reporting.pages import facts_of

PROMPTS = ["optimal", "flawed:redundant_operation:light", "flawed:parameter_error:severe", "flawed:sequential_order"]
LIBRARY = default_library().content_hash


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of a policy that obeys its plan, where parameters are checked strictly."""
    path = tmp_path_factory.mktemp("obedience") / "run"
    tasks = [task for task in sample_tasks(benchmark_tasks(), 14) if len(task.required_tools) > 1]
    evaluate(["plan-follower"], tasks, PROMPTS, 1, out=path, parameters="strict", progress=False)
    return path


@pytest.fixture(scope="module")
def facts(folder: Path) -> RunFacts:
    return read_facts(folder)


def test_obey_is_the_mean_cost_of_the_plans_that_were_shown(folder: Path, facts: RunFacts) -> None:
    costs = flaw_costs(facts)
    planner, perturber, calculator = ExactPlanner(), Perturber(default_library()), CostCalculator()
    expected: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for record in read_records(folder):
        flaw = record["flaw"]
        if flaw is None:
            continue
        task = find_task(record["instance_id"])
        names = (flaw["type"], flaw["severity"], flaw["method"])
        flawed = perturber.perturb(planner.plan(task), task.required_tools, *names)
        assert isinstance(flawed, FlawedWorkflow)
        assert flawed.flaw_mapping()["edits"] == flaw["edits"]  # the plan that the agent saw, not another one
        found = calculator.costs(task.required_tools, flawed.workflow.steps)
        expected[names[:2]].append((found.obey, found.deviate))
    assert len(expected) == 3
    for key, values in expected.items():
        obey, deviate = map(statistics.fmean, zip(*values, strict=True))
        assert (costs.obey(key).value, costs.deviate(key).value) == pytest.approx((obey, deviate))
        assert costs.obey(key).num_clusters == len(values)


def test_parameters_are_checked_as_in_the_run(facts: RunFacts) -> None:
    arguments = facts.manifest["arguments"]
    ignoring = {**arguments, "environment": {**arguments["environment"], "parameters": "ignore"}}
    other = replace(facts, table=replace(facts.table, manifest={**facts.manifest, "arguments": ignoring}))
    assert flaw_costs(facts).obey(("parameter_error", "severe")).value == 0.0
    assert flaw_costs(other).obey(("parameter_error", "severe")).value > 0.3
    assert "(ignore)" in flaw_costs(other).notes[0]


def test_too_many_plans_are_thinned_out_and_that_is_said(facts: RunFacts) -> None:
    every, some = flaw_costs(facts), flaw_costs(facts, most_plans=12)
    assert 3 <= len(some.obediences) < len(every.obediences)
    assert some.obediences.items() <= every.obediences.items()
    assert some.deviations == every.deviations
    assert f"for {len(some.obediences)} of the {len(every.obediences)} flawed plans" in some.notes[-1]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, "tool library of its own"),
        ({"library": LIBRARY}, "not by the exact planner"),
        ({"library": LIBRARY, "environment": {"planner": "auto"}}, "not all of its tasks are the benchmark's"),
    ],
)
def test_plans_that_cannot_be_made_again_are_said(tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    flaw = {"type": "tool_misuse", "severity": "light", "method": "category_mismatch", "edits": []}
    records = [{**record, "flaw": flaw} for record in synthetic_run(("random",), ("flawed",), 4, 1)]
    costs = flaw_costs(facts_of(tmp_path, records, **more))
    assert not costs.obediences
    assert reason in costs.notes[0]
    optima = [record["optimum"] for record in records]
    assert costs.deviate(("tool_misuse", "light")).value == pytest.approx(statistics.fmean(optima))
