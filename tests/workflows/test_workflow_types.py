"""Workflow values: equal after a round trip, refused with a clear line when wrong."""

from __future__ import annotations

import json

import pytest

from resilisim.errors import InvalidInputError
from resilisim.workflows import Step, Workflow

STEP = Step(
    "write", {"destination": "a.csv"}, "last", ("merge",), ("save", "send"), "success", 0.8, -0.25, "policy", 2, 7
)
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
        (
            {"steps": [{"tool": "read", "semantic_match": 1.01}]},
            "of step 'read' is 1.01: expected a number from -1 to 1",
        ),
        ({"steps": [{"tool": "read", "semantic_match": True}]}, "of step 'read' is True: expected a number from -1 to"),
        ({"steps": [{"tool": "read", "chosen_by": "polcy"}]}, "of step 'read': did you mean 'policy'?"),
        ({"steps": [{"tool": "read", "chosen_by": None}]}, "expected one of semantics, policy"),
        ({"steps": [{"tool": "read", "reason": ["x" * 10_000] * 99}]}, "field 'reason' of step 'read' is ['xxx"),
        (
            {"steps": [{"tool": "read", "max_tries": 0}]},
            "of step 'read' is 0: expected an integer from 1 to 999,999,999",
        ),
        ({"steps": [{"tool": "read", "skip_from": True}]}, "of step 'read' is True: expected an integer from 1 to"),
        ({"planner": 3}, "field 'planner' of workflow of 'task_1' is 3: expected a text"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(InvalidInputError) as error:
        Workflow.from_mapping({**WORKFLOW.to_mapping(), **change})
    assert message in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_step_says_nothing_that_it_was_not_told():
    step = Step.from_mapping({"tool": "read"})
    assert step == Step("read")
    assert (step.semantic_match, step.chosen_by) == (None, "semantics")
    assert (step.max_tries, step.skip_from) == (None, None)


def test_a_missing_field_is_named():
    mapping = WORKFLOW.to_mapping()
    del mapping["planner"]
    with pytest.raises(InvalidInputError, match="a workflow has no field 'planner'"):
        Workflow.from_mapping(mapping)
