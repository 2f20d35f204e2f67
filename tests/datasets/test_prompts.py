"""The prompt records: what is in them can be checked from the records alone."""

import json

import pytest

from resilisim import benchmark_tasks, default_library
from resilisim.datasets.prompt_records import PROMPT_SCHEMA, PromptSpec
from resilisim.datasets.schema import check_record
from resilisim.envs.settings import EnvironmentSettings
from resilisim.provenance import canonical_json
from resilisim.simulator.exact import bound
from resilisim.workflows import Step, parse_plan
from resilisim.workflows.flaws import FLAW_METHODS, FLAW_TYPES, SEVERITIES
from resilisim.workflows.flaws.flaw import STRESSORS
from resilisim.workflows.plan_value import CostCalculator
from resilisim.workflows.prompts import PROMPT_TYPES, parse_steps

LIBRARY = default_library()
TASKS = benchmark_tasks()[:12]
LONG = next(task for task in TASKS if len(task.required_tools) == 5)


def records(task, **options):
    return list(PromptSpec(**options).make(LIBRARY).records(task))


def test_a_task_gets_three_unflawed_types_and_one_prompt_for_each_flaw():
    found = records(LONG)
    assert [record["prompt_type"] for record in found] == [*PROMPT_TYPES[:3], *["flawed"] * 7]
    assert [record["flaw"]["type"] for record in found[3:]] == list(FLAW_TYPES)
    assert {record["flaw"]["severity"] for record in found[3:]} == {"moderate"}
    assert all(record["flaw"]["method"] in FLAW_METHODS[record["flaw"]["type"]] for record in found[3:])
    assert all(record["flaw"] is None and record["seed"] is None for record in found[:3])
    assert PromptSpec().records_per_task() == 10


@pytest.mark.parametrize(
    "options", [{}, {"plan_format": "xml"}, {"environment": EnvironmentSettings(protocol="native")}]
)
def test_records_fit_the_schema_and_the_text_holds_the_plan(options):
    source = PromptSpec(**options).make(LIBRARY)
    for task in TASKS[:4]:
        for record in source.records(task):
            assert check_record(PROMPT_SCHEMA, record) is None
            planned = record["prompt_type"] in ("optimal", "flawed")
            assert parse_plan(record["text"]) == (record["workflow"] if planned else [])
            if planned:
                steps = parse_steps(record["text"])
                shown = [dict(step.parameters or {}) for step in steps]
                assert shown == [json.loads(parameters) for parameters in record["parameters"]]
            assert (record["plan_format"] is None) == (not planned)


def test_costs_can_be_computed_again_from_the_record_alone():
    calculator = CostCalculator()
    source = PromptSpec(flaws=tuple(STRESSORS), severities=SEVERITIES, methods=("all",)).make(LIBRARY)
    number = 0
    for task in TASKS[:5]:
        for record in source.records(task):
            columns = [record[name] for name in ("workflow", "parameters", "max_tries", "skip_from")]
            steps = [
                Step(tool, json.loads(parameters), max_tries=max_tries, skip_from=skip_from)
                for tool, parameters, max_tries, skip_from in zip(*columns, strict=True)
            ]
            assert calculator.costs(record["required_tools"], steps).to_mapping() == record["costs"]
            number += 1
    assert number > 150


def test_the_exact_plan_predicts_what_following_it_brings_and_its_path_the_ceiling():
    ceiling = bound(LONG.required_tools, clairvoyant_seeds=0)["optimum"]
    for planner, predicted in (("exact", "obey"), ("exact-path", "deviate")):
        environment = EnvironmentSettings(planner=planner)
        for record in records(LONG, types=("baseline", "optimal"), environment=environment):
            costs = record["costs"]
            assert record["predicted_success_probability"] == pytest.approx(costs[predicted], abs=1e-12)
            assert 0.0 < costs["obey"] <= costs["deviate"] == ceiling
            assert record["planner"] == planner
            assert any(record["skip_from"]) == (planner == "exact")


def test_another_seed_makes_other_flaws_alone():
    first, other = ([record["text"] for record in records(LONG, seed=seed)] for seed in (3, 4))
    assert first[:3] == other[:3]
    assert first[3:] != other[3:]


def test_a_flaw_that_a_plan_cannot_carry_leaves_no_record():
    short = next(task for task in benchmark_tasks() if len(task.required_tools) == 1)
    found = records(short, types=("flawed",), severities=("light",))
    assert "missing_step" not in [record["flaw"]["type"] for record in found]
    assert 0 < len(found) < 7


def test_arguments_decide_the_bytes_and_hold_the_templates(tmp_path):
    (tmp_path / "chain_of_thought.text.md").write_text("Think first. Begin with Reasoning:\n", encoding="utf-8")
    spec = PromptSpec(types=("chain_of_thought",), templates=str(tmp_path))
    assert "Think first." in canonical_json(spec.arguments())
    assert "Think first." in next(spec.make(LIBRARY).records(LONG))["text"]
    assert "salt" not in spec.arguments()["environment"]
    assert json.loads(canonical_json(spec.arguments())) == spec.arguments()
