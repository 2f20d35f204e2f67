"""What a call may carry, in the three modes; MCP definitions, judged by the official package."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
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
    mcp_definition,
    mcp_definitions,
    parameter_schema,
)

LIBRARY = default_library()
FETCHER = LIBRARY["network_fetcher"]


def test_what_strict_adds_is_only_that_required_ones_must_be_given() -> None:
    assert check_parameters(FETCHER, {}, "strict") == [
        "required parameter 'source' of tool 'network_fetcher' is missing"
    ]
    mapper = LIBRARY["integration_mapper"]
    assert check_parameters(mapper, {"schema": {}}, "strict") == [
        "required parameter 'input_format' of tool 'integration_mapper' is missing",
        "required parameter 'output_format' of tool 'integration_mapper' is missing",
    ]


@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_refused_calls(mode: str) -> None:
    given_parameters = {"source": 5, "timout": 1, "retry_count": 11, "zzz": None, "options": []}
    assert check_parameters(FETCHER, given_parameters, mode) == [
        "parameter 'options' of tool 'network_fetcher': expected object, got array []",
        "parameter 'retry_count' of tool 'network_fetcher': value 11 does not meet maximum 10",
        "parameter 'source' of tool 'network_fetcher': expected string, got integer 5",
        "unknown parameter 'timout' of tool 'network_fetcher': did you mean 'timeout'?",
        "unknown parameter 'zzz' of tool 'network_fetcher': expected some of source, timeout, retry_count, options",
    ]


def test_names_near_many_unknown_ones_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[str] = []
    monkeypatch.setattr(parameters_module, "nearest_name", lambda name, names: looked_for.append(name))
    reader = default_library()["file_operations_reader"]
    for count, expected in ((20, 20), (70_000, 0)):
        looked_for.clear()
        assert len(check_parameters(reader, {f"sourc{number}": 1 for number in range(count)})) == count
        assert len(looked_for) == expected


def test_schema_and_defaults() -> None:
    schema = parameter_schema(FETCHER, strict=True)
    assert schema["required"] == ["source"]
    assert schema["additionalProperties"] is False
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


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(LIBRARY)), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), st.booleans())
def test_the_verdict_is_that_of_the_json_schema(tool: Tool, parameters: dict[str, Any], strict: bool) -> None:
    problems = check_parameters(tool, parameters, "strict" if strict else "lenient")
    accepted = Draft202012Validator(parameter_schema(tool, strict)).is_valid(json.loads(json.dumps(parameters)))
    assert (problems == []) == accepted
    assert all("\n" not in problem and len(problem) < 400 for problem in problems)
    assert problems == sorted(problems)


# Values that JSON texts can carry, and a few that they cannot: both are judged alike.
ODD_VALUES = st.sampled_from([float("nan"), float("inf"), 10**400, -0.0, 1.0, "\ud800", "", object(), b"x", {1, 2}])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(LIBRARY)),
    st.dictionaries(st.sampled_from(NAMES), VALUES | ODD_VALUES, max_size=3),
    st.sampled_from(PARAMETER_MODES),
)
def test_accepts_is_the_verdict_of_the_check(tool: Tool, parameters: dict[str, Any], mode: str) -> None:
    expected = not check_parameters(tool, parameters, mode)
    assert accepts(tool, parameters, mode) is expected
    assert accepts(tool, dict(parameters), mode) is expected  # remembered


def test_accepts_tells_values_apart_that_python_takes_for_equal() -> None:
    counter = Tool("counter", "text", (Parameter("n", "integer", constraints={"maximum": 9}),))
    assert accepts(counter, {"n": 1})
    assert not accepts(counter, {"n": True})
    assert accepts(counter, {"n": 1.0})  # JSON Schema has no other integers
    assert not accepts(counter, {"n": 1.5})
    assert not accepts(counter, {"n": "1"})
    values: dict[str, Any] = {"n": 1}
    assert accepts(counter, values)
    values["n"] = 11  # the same mapping, another value
    assert not accepts(counter, values)


def test_every_mcp_definition_is_valid() -> None:
    definitions = mcp_definitions(LIBRARY)
    assert [definition["name"] for definition in definitions] == list(LIBRARY.names)
    for tool, definition in zip(LIBRARY, definitions, strict=True):
        assert set(definition) == {"name", "description", "inputSchema", "outputSchema"}
        read = McpTool.model_validate(definition)
        assert (read.name, read.description) == (tool.name, tool.description)
        assert json.loads(read.model_dump_json(by_alias=True, exclude_none=True)) == definition
        for schema in (definition["inputSchema"], definition["outputSchema"]):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"


def test_mcp_schemas_say_what_the_tool_says() -> None:
    definition = mcp_definition(LIBRARY["data_processing_validator"])
    assert definition["inputSchema"]["required"] == ["data", "schema"]
    assert list(definition["inputSchema"]["properties"]) == ["data", "schema", "options"]
    output = definition["outputSchema"]
    assert {name: value["type"] for name, value in output["properties"].items()} == {
        "success": "boolean",
        "data": "object",
        "valid": "boolean",
        "violations": "array",
        "metadata": "object",
    }
    assert output["required"] == ["success", "data", "valid", "violations", "metadata"]


@pytest.mark.parametrize(
    ("tool", "parameters", "problem"),
    [
        (
            FETCHER,
            {"timeout": True},
            "parameter 'timeout' of tool 'network_fetcher': expected number, got boolean true",
        ),
        (FETCHER, {"source": None}, "parameter 'source' of tool 'network_fetcher': expected string, got null null"),
        (
            LIBRARY["data_processing_aggregator"],
            {"group_by": ["region", 3]},
            "parameter 'group_by.1' of tool 'data_processing_aggregator': expected string, got integer 3",
        ),
        (Tool("bare", "text"), {"x": 1}, "unknown parameter 'x' of tool 'bare': the tool takes none"),
    ],
)
def test_what_is_wrong_is_said(tool: Tool, parameters: dict[str, Any], problem: str) -> None:
    assert check_parameters(tool, parameters) == [problem]


def test_tools_of_the_same_name_in_different_libraries_do_not_meet() -> None:
    one = Tool("same", "text", (Parameter("n", "integer", constraints={"minimum": 3}),))
    other = Tool("same", "text", (Parameter("n", "integer", constraints={"minimum": 5}),))
    assert accepts(one, {"n": 4})
    assert check_parameters(one, {"n": 4}) == []
    assert not accepts(other, {"n": 4})
    assert check_parameters(other, {"n": 4}) == ["parameter 'n' of tool 'same': value 4 does not meet minimum 5"]
    assert accepts(Tool("same", "text", (Parameter("n", "integer"),)), {"n": 1})


def test_long_and_deep_values_give_short_lines_and_unknown_modes_are_refused() -> None:
    (problem,) = check_parameters(FETCHER, {"source": {"x": "y" * 100_000}})
    assert len(problem) < 200
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    (problem,) = check_parameters(FETCHER, {"source": deep})
    assert "nested too deeply" in problem
    for given_parameters in ({"source": deep}, {"options": {"x": deep}}):
        assert accepts(FETCHER, given_parameters) is (not check_parameters(FETCHER, given_parameters))
    for check in (check_parameters, accepts):
        with pytest.raises(InvalidInputError, match="unknown parameter mode 'stricter': did you mean 'strict'"):
            check(FETCHER, {}, "stricter")


@pytest.mark.parametrize(
    ("tool", "parameters", "mode"),
    [
        (FETCHER, {}, "lenient"),
        (FETCHER, {"timeout": 12.5, "retry_count": 0}, "lenient"),
        (FETCHER, {"source": "https://example.org"}, "strict"),
        (FETCHER, {"nonsense": object()}, "ignore"),
        (LIBRARY["utility_cache"], {"key": "k", "value": {"a": [1, None]}}, "strict"),
        (Tool("bare", "text"), {}, "strict"),
    ],
)
def test_accepted_calls(tool: Tool, parameters: dict[str, Any], mode: str) -> None:
    assert check_parameters(tool, parameters, mode) == []
    assert accepts(tool, parameters, mode)
