"""What a plan passes to a tool: inputs where they fit, references where data flows, never a refused value."""

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
