"""What a call may carry, in the three modes; MCP definitions, judged by the official package."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from mcp.types import Tool as McpTool

from resilisim.errors import InvalidInputError
from resilisim.tool_library import Parameter, Tool, default_library
from resilisim.tool_library import parameters as parameters_module
from resilisim.tool_library.parameters import (
    PARAMETER_MODES,
    accepts,
    check_parameters,
    defaults,
    parameter_schema,
)
from resilisim.tool_library.tool_formats import mcp_definition
from tests.guards import no_endless_wait

LIBRARY = default_library()
FETCHER = LIBRARY["network_fetcher"]
WRONG = {"source": 5, "timout": 1, "retry_count": 11, "zzz": None, "options": []}
WHY_WRONG = [
    "parameter 'options' of tool 'network_fetcher': expected object, got array []",
    "parameter 'retry_count' of tool 'network_fetcher': value 11 does not meet maximum 10",
    "parameter 'source' of tool 'network_fetcher': expected string, got integer 5",
    "unknown parameter 'timout' of tool 'network_fetcher': did you mean 'timeout'?",
    "unknown parameter 'zzz' of tool 'network_fetcher': expected some of source, timeout, retry_count, options",
]
COUNTER = Tool("counter", "text", (Parameter("n", "integer", constraints={"maximum": 9}),))


@pytest.mark.parametrize(
    ("tool", "parameters", "mode", "problems"),
    [
        (FETCHER, {}, "strict", ["required parameter 'source' of tool 'network_fetcher' is missing"]),
        (
            LIBRARY["integration_mapper"],
            {"schema": {}},
            "strict",
            [
                "required parameter 'input_format' of tool 'integration_mapper' is missing",
                "required parameter 'output_format' of tool 'integration_mapper' is missing",
            ],
        ),
        (FETCHER, WRONG, "lenient", WHY_WRONG),
        (FETCHER, WRONG, "strict", WHY_WRONG),
        (
            LIBRARY["data_processing_aggregator"],
            {"group_by": ["region", 3]},
            "lenient",
            ["parameter 'group_by.1' of tool 'data_processing_aggregator': expected string, got integer 3"],
        ),
        (Tool("bare", "text"), {"x": 1}, "lenient", ["unknown parameter 'x' of tool 'bare': the tool takes none"]),
        (FETCHER, {"nonsense": object()}, "ignore", []),
        # Values that Python takes for equal; JSON Schema has no other integers than whole numbers.
        (COUNTER, {"n": 1}, "lenient", []),
        (COUNTER, {"n": 1.0}, "lenient", []),
        (COUNTER, {"n": True}, "lenient", ["parameter 'n' of tool 'counter': expected integer, got boolean true"]),
        # A tool of the same name in another library.
        (
            Tool("counter", "text", (Parameter("n", "integer", constraints={"minimum": 5}),)),
            {"n": 1},
            "lenient",
            ["parameter 'n' of tool 'counter': value 1 does not meet minimum 5"],
        ),
    ],
)
def test_what_is_wrong_with_a_call_is_said(tool, parameters, mode, problems):
    assert check_parameters(tool, parameters, mode) == problems
    assert accepts(tool, parameters, mode) == (not problems)


def test_names_near_many_unknown_ones_are_not_looked_for(monkeypatch):
    looked_for = []
    monkeypatch.setattr(parameters_module, "nearest_name", lambda name, names: looked_for.append(name))
    for count, expected in ((20, 20), (70_000, 0)):
        looked_for.clear()
        assert len(check_parameters(FETCHER, {f"sourc{number}": 1 for number in range(count)})) == count
        assert len(looked_for) == expected


def test_schema_and_defaults():
    schema = parameter_schema(FETCHER, strict=True)
    assert (schema["required"], schema["additionalProperties"]) == (["source"], False)
    assert list(schema["properties"]) == ["source", "timeout", "retry_count", "options"]
    assert schema["properties"]["timeout"] == {
        "type": "number",
        "description": "Seconds to wait for an answer.",
        "default": 30,
        "exclusiveMinimum": 0,
        "maximum": 3600,
    }
    assert "required" not in parameter_schema(FETCHER, strict=False)
    assert defaults(FETCHER) == {"timeout": 30, "retry_count": 3, "options": {}}
    for tool in LIBRARY:
        assert check_parameters(tool, defaults(tool)) == []


NAMES = sorted({parameter.name for tool in LIBRARY for parameter in tool.parameters} | {"", "x\ny"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(list(LIBRARY)), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), st.booleans())
def test_the_verdict_is_that_of_the_json_schema(tool, parameters, strict):
    problems = check_parameters(tool, parameters, "strict" if strict else "lenient")
    accepted = Draft202012Validator(parameter_schema(tool, strict)).is_valid(json.loads(json.dumps(parameters)))
    assert (problems == []) == accepted
    assert all("\n" not in problem and len(problem) < 400 for problem in problems)
    assert problems == sorted(problems)


# Values that JSON texts can carry, and a few that they cannot: both are judged alike.
ODD_VALUES = st.sampled_from([float("nan"), float("inf"), 10**400, -0.0, 1.0, "\ud800", "", object(), b"x", {1, 2}])


@given(
    st.sampled_from(list(LIBRARY)),
    st.dictionaries(st.sampled_from(NAMES), VALUES | ODD_VALUES, max_size=3),
    st.sampled_from(PARAMETER_MODES),
)
def test_accepts_is_the_verdict_of_the_check(tool, parameters, mode):
    expected = not check_parameters(tool, parameters, mode)
    assert accepts(tool, parameters, mode) is expected
    assert accepts(tool, dict(parameters), mode) is expected  # remembered


def test_a_mapping_whose_values_change_is_judged_anew():
    values = {"n": 1}
    assert accepts(COUNTER, values)
    values["n"] = 11
    assert not accepts(COUNTER, values)


def test_every_mcp_definition_is_valid_and_says_what_the_tool_says():
    definitions = [mcp_definition(tool) for tool in LIBRARY]
    assert [definition["name"] for definition in definitions] == list(LIBRARY.names)
    for tool, definition in zip(LIBRARY, definitions, strict=True):
        assert set(definition) == {"name", "description", "inputSchema", "outputSchema"}
        read = McpTool.model_validate(definition)
        assert (read.name, read.description) == (tool.name, tool.description)
        assert json.loads(read.model_dump_json(by_alias=True, exclude_none=True)) == definition
        assert definition["inputSchema"] == parameter_schema(tool, strict=True)
        output = definition["outputSchema"]
        Draft202012Validator.check_schema(output)
        assert output["type"] == "object"
        assert output["required"] == [value.name for value in tool.returns]
        assert {name: value["type"] for name, value in output["properties"].items()} == {
            value.name: value.type for value in tool.returns
        }


def test_long_and_deep_values_give_short_lines_and_unknown_modes_are_refused():
    (problem,) = check_parameters(FETCHER, {"source": {"x": "y" * 100_000}})
    assert len(problem) < 200
    deep = []
    for _ in range(100_000):
        deep = [deep]
    (problem,) = check_parameters(FETCHER, {"source": deep})
    assert "nested too deeply" in problem
    for parameters in ({"source": deep}, {"options": {"x": deep}}):
        assert accepts(FETCHER, parameters) is (not check_parameters(FETCHER, parameters))
    for check in (check_parameters, accepts):
        with pytest.raises(InvalidInputError, match="unknown parameter mode 'stricter': did you mean 'strict'"):
            check(FETCHER, {}, "stricter")


def test_a_pattern_that_takes_for_ever_holds_nobody_up():
    constraints = {"pattern": "^(a+)+$"}
    slow = Tool("slow", "Waits.", (Parameter("text", "string", constraints=constraints),))
    assert check_parameters(slow, {"text": "aaaa"}) == []
    with no_endless_wait():
        (problem,) = check_parameters(slow, {"text": "a" * 60 + "!"})
    assert "does not meet pattern" in problem
