"""Workflow values: equal after a round trip, refused with a clear line when wrong."""

from __future__ import annotations

import json

import pytest

from resilisim.errors import InvalidInputError
from resilisim.workflows import Step, Workflow

STEP = Step("write", {"destination": "a.csv"}, "last", ("merge",), ("save", "send"), "success", 0.8)
WORKFLOW = Workflow("task_1", (Step("merge"), STEP), "exact", 0.75)


def test_a_workflow_survives_json():
    assert Workflow.from_mapping(json.loads(json.dumps(WORKFLOW.to_mapping()))) == WORKFLOW


def test_tools_are_in_step_order():
    assert WORKFLOW.tools == ("merge", "write")


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        STEP.tool = "read"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "merge"}, "field 'steps' of workflow of 'task_1': expected a list of objects"),
        ({"planer": "exact"}, "unknown field 'planer' in a workflow: did you mean 'planner'?"),
        ({"predicted_success_probability": 1.5}, "is 1.5: expected a number from 0 to 1"),
        ({"steps": [{"tool": "read", "reqires": []}]}, "did you mean 'requires'?"),
        ({"steps": [{"reason": "because"}]}, "a workflow step has no field 'tool'"),
        ({"steps": [{"tool": "read", "parameters": [1]}]}, "field 'parameters' of step 'read' is [1]: expected an"),
        ({"steps": [{"tool": "read", "requires": "parse"}]}, "expected a list of tool names"),
        ({"planner": 3}, "field 'planner' of workflow of 'task_1' is 3: expected a text"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(InvalidInputError) as error:
        Workflow.from_mapping({**WORKFLOW.to_mapping(), **change})
    assert message in str(error.value)


def test_a_missing_field_is_named():
    mapping = WORKFLOW.to_mapping()
    del mapping["planner"]
    with pytest.raises(InvalidInputError, match="a workflow has no field 'planner'"):
        Workflow.from_mapping(mapping)
