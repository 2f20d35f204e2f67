"""What a plan passes to a tool: inputs where they fit, references where data flows, never a refused value."""

from __future__ import annotations

import pytest

from resilisim.tool_library import Parameter, Tool
from resilisim.workflows.steps import UNSTATED_TEXT, step_parameters

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


def test_first_step_without_inputs():
    assert step_parameters(TOOL, {}, None) == {
        "source": UNSTATED_TEXT,
        "data": {},
        "schema": {},
        "mode": "fast",
        "level": 4,
        "format": UNSTATED_TEXT,
        "rows": [],
        "ratio": 1,
    }


def test_results_flow_from_the_step_before():
    values = step_parameters(TOOL, {}, "fetch")
    assert values["source"] == "result of fetch"
    assert values["data"] == {"result_of": "fetch"}
    assert values["schema"] == {}
    assert values["format"] == UNSTATED_TEXT


def test_inputs_of_the_task_come_first_also_for_optional_parameters():
    inputs = {"source": "a.csv", "mode": "slow", "options": {"x": 1}, "unknown": 3}
    values = step_parameters(TOOL, inputs, "fetch")
    assert values["source"] == "a.csv"
    assert values["mode"] == "slow"
    assert values["options"] == {"x": 1}
    assert "unknown" not in values


def test_inputs_that_the_schema_refuses_are_replaced():
    values = step_parameters(TOOL, {"source": 5, "mode": "medium", "options": "none"}, None)
    assert values["source"] == UNSTATED_TEXT
    assert values["mode"] == "fast"
    assert "options" not in values


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
