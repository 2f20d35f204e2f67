"""Workflow values: equal after a round trip, refused clearly when wrong; and what a plan passes to its tools."""

import json

import pytest

from resilisim.errors import InvalidInputError
from resilisim.tool_library import Parameter, Tool
from resilisim.workflows import Step, Workflow
from resilisim.workflows.steps import UNSTATED_TEXT, step_parameters
from resilisim.workflows.workflow import critical_tools, mean_semantic_match, share_chosen_by

STEP = Step(
    "write", {"destination": "a.csv"}, "last", ("merge",), ("save", "send"), "success", 0.8, -0.25, "policy", 2, 7
)
WORKFLOW = Workflow("task_1", (Step("merge"), STEP), "exact", 0.75)


def test_a_workflow_survives_json():
    assert Workflow.from_mapping(json.loads(json.dumps(WORKFLOW.to_mapping()))) == WORKFLOW
    assert Step.from_mapping({"tool": "read"}) == Step("read")


LIMIT = "expected a whole number, at least 1 and at most 999,999,999 or null"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "merge"}, "workflow, field 'steps': got \"merge\"; expected an array of objects"),
        ({"planer": "exact"}, "workflow: unknown field 'planer': did you mean 'planner'?"),
        ({"planner": 3}, "workflow, field 'planner': got 3; expected a string"),
        ({"predicted_success_probability": 1.5}, "got 1.5; expected a number, at least 0 and at most 1"),
        ({"steps": [{"tool": "read", "reqires": []}]}, "field 'steps', item 1: unknown field 'reqires'"),
        ({"steps": [{"reason": "because"}]}, "item 1, field 'tool': is missing; expected a string"),
        ({"steps": [{"tool": "read", "parameters": [1]}]}, "field 'parameters': got [1]; expected an object"),
        ({"steps": [{"tool": "read", "requires": "parse"}]}, 'got "parse"; expected an array of strings'),
        ({"steps": [{"tool": "read", "semantic_match": True}]}, "field 'semantic_match': got true; expected a number"),
        ({"steps": [{"tool": "read", "chosen_by": "polcy"}]}, "got \"polcy\"; did you mean 'policy'?"),
        ({"steps": [{"tool": "read", "reason": ["x" * 10_000] * 99}]}, "field 'reason': got [\"xxx"),
        ({"steps": [{"tool": "read", "max_tries": 0}]}, f"field 'max_tries': got 0; {LIMIT}"),
        ({"steps": [{"tool": "read", "skip_from": True}]}, f"field 'skip_from': got true; {LIMIT}"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(InvalidInputError) as error:
        Workflow.from_mapping({**WORKFLOW.to_mapping(), **change})
    assert message in str(error.value)
    assert len(str(error.value)) < 1000


def test_what_a_plan_says_as_a_whole():
    steps = (
        Step("read", semantic_match=0.5),
        Step("parse", requires=("read",), semantic_match=0.25, chosen_by="policy"),
        Step("write", requires=("parse", "elsewhere")),
    )
    assert critical_tools(steps) == ("read", "parse")
    # A flawed plan that puts a step before what it depends on claims the same as the sound one.
    assert critical_tools(steps[::-1]) == ("parse", "read")
    assert mean_semantic_match(steps) == 0.375
    assert share_chosen_by(steps, "policy") == pytest.approx(1 / 3)
    assert (critical_tools(()), mean_semantic_match(()), share_chosen_by((), "policy")) == ((), None, None)


TOOL = Tool(
    "load",
    "Loads.",
    parameters=(
        Parameter("source"),
        Parameter("data", "object"),
        Parameter("schema", "object"),
        Parameter("mode", constraints={"enum": ["fast", "slow"]}),
        Parameter("level", "integer", default=4),
        Parameter("format"),
        Parameter("rows", "array"),
        Parameter("ratio", "number"),
        Parameter("options", "object", required=False),
    ),
)


UNSTATED = {
    "source": UNSTATED_TEXT,
    "data": {},
    "schema": {},
    "mode": "fast",
    "level": 4,
    "format": UNSTATED_TEXT,
    "rows": [],
    "ratio": 1,
}
FLOWING = {**UNSTATED, "source": "result of fetch", "data": {"result_of": "fetch"}}
FITTING = {"source": "a.csv", "mode": "slow", "options": {"x": 1}}


@pytest.mark.parametrize(
    ("inputs", "before", "expected"),
    [
        ({}, None, UNSTATED),
        ({}, "fetch", FLOWING),
        ({**FITTING, "unknown": 3}, "fetch", {**FLOWING, **FITTING}),  # inputs come first, also for optional ones
        ({"source": 5, "mode": "medium", "options": "none"}, None, UNSTATED),  # what the schema refuses is replaced
    ],
)
def test_what_a_step_passes(inputs, before, expected):
    assert step_parameters(TOOL, inputs, before) == expected


@pytest.mark.parametrize(
    "parameter",
    [
        Parameter("count", "integer", constraints={"minimum": 10}),
        Parameter("code", constraints={"pattern": "^[0-9]+$"}),
    ],
)
def test_what_no_value_is_known_for_is_left_out(parameter):
    assert step_parameters(Tool("odd", "Odd.", parameters=(parameter, Parameter("source"))), {}, None) == {
        "source": UNSTATED_TEXT
    }


def test_what_is_worked_out_once_belongs_to_each_step_alone():
    for _ in range(2):
        values = step_parameters(TOOL, {}, "fetch")
        assert values["data"] == {"result_of": "fetch"}
        assert values["rows"] == []
        values["data"]["more"] = 1
        values["rows"].append(1)
        values["source"] = "changed"
