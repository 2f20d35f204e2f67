"""Where errors mean what they say, no failure shows a code that it does not mean, whatever the tool is like."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.simulator import Broken, EndRules, Episode, ErrorKinds, Law, build_problem, execution
from resilisim.simulator.law import ACCESS_CODES, INPUT_CODES
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.tool import DEPENDENCY_ERROR

CODES = ("INVALID_INPUT", "TIMEOUT", "PERMISSION_DENIED", "FILE_NOT_FOUND", "MAINTENANCE")
PARAMETERS = [{"name": "how", "type": "string", "required": False}]
RULES = EndRules(max_turns=12, max_consecutive_failures=0, loop_length=0)


def tool(name: str, **entries: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Tool {name}.", **entries}


def library(*tools: dict[str, Any]) -> ToolLibrary:
    return ToolLibrary.from_json(json.dumps({"tools": list(tools)}), source="test library")


@st.composite
def libraries(draw: st.DrawFn) -> ToolLibrary:
    tools = []
    for name in "abc":
        entries: dict[str, Any] = {}
        if draw(st.booleans()):
            entries["parameters"] = PARAMETERS
        if codes := draw(st.lists(st.sampled_from(CODES), unique=True)):
            entries["errors"] = [{"code": code, "template": code} for code in codes]
        if name == "b" and draw(st.booleans()):
            entries["dependencies"] = ["a"]
        if name == "c" and draw(st.booleans()):
            entries["metadata"] = {"category": "x", "operation": "authenticator"}
        tools.append(tool(name, success_probability=draw(st.sampled_from([0.1, 0.5, 1.0])), **entries))
    return library(*tools)


weights = st.sampled_from([0.0, 1.0, 5.0])
laws = st.builds(
    Law,
    errors=st.dictionaries(st.sampled_from([*CODES, "NEVER_DOCUMENTED"]), st.sampled_from([1.0, 3.0]), max_size=2),
    error_kinds=st.builds(ErrorKinds, transient=weights, input=weights, access=weights),
    broken=st.none() | st.just(Broken(0.5)),
)


@given(libraries(), laws, st.integers(0, 10_000), st.lists(st.sampled_from("abc"), min_size=12, max_size=12))
def test_codes_mean_what_they_say(tools: ToolLibrary, law: Law, seed: int, calls: list[str]) -> None:
    problem = build_problem(tools, ["a", "b"], law, RULES)
    episode = Episode(problem, "task", seed)
    refused, closed, tried, opened = set[str](), set[str](), set[str](), False
    for name in calls:
        event = episode.apply(execution(name))
        unmet = set(tools.dependencies(name)) - {one.tool for one in episode.events[:-1] if one.success}
        code = None if event.failure is None else event.failure.code
        if name in closed and not opened:
            assert code in ACCESS_CODES
        elif name in refused:
            assert code in INPUT_CODES  # the same call, unchanged
        elif code in INPUT_CODES:
            assert tools[name].parameters  # there is something to change
            refused.add(name)
        elif code in ACCESS_CODES:
            assert not opened
            assert tools[name].operation != "authenticator"
            closed.add(name)
        elif code == DEPENDENCY_ERROR:
            assert unmet
        opened = opened or (event.success is True and tools[name].operation == "authenticator")
        tried.add(name)


def test_a_minimal_tool_and_an_opener_that_document_nothing_else_fail_for_now() -> None:
    only = [{"code": "INVALID_INPUT", "template": "no"}, {"code": "PERMISSION_DENIED", "template": "no"}]
    opener = tool("a", errors=only, success_probability=0.01, metadata={"category": "x", "operation": "authenticator"})
    problem = build_problem(library(opener), ["a"], Law(error_kinds=ErrorKinds()), RULES)
    failures = [Episode(problem, "task", seed).apply(execution("a")).failure for seed in range(40)]
    codes = {failure.code for failure in failures if failure is not None}
    assert codes == {"OPERATION_FAILED"}


def test_weights_that_name_no_code_of_a_tool_leave_its_codes_alike_and_of_their_kinds() -> None:
    errors = [{"code": code, "template": code} for code in ("INVALID_INPUT", "TIMEOUT")]
    tools = library(tool("a", errors=errors, parameters=PARAMETERS, success_probability=0.01))
    law = Law(errors={"NEVER_DOCUMENTED": 1.0}, error_kinds=ErrorKinds())
    problem = build_problem(tools, ["a"], law, RULES)
    results = [Episode(problem, "task", seed).apply(execution("a")).result for seed in range(200)]
    assert results.count("input_failure") == pytest.approx(100, abs=40)


def test_a_sure_tool_that_is_broken_and_depends_on_nothing_does_not_blame_dependencies() -> None:
    tools = library(tool("a", success_probability=1.0))
    problem = build_problem(tools, ["a"], Law(broken=Broken(0.5)), RULES)
    failures = [Episode(problem, "task", seed).apply(execution("a")).failure for seed in range(60)]
    codes = [failure.code for failure in failures if failure is not None]
    assert 10 < len(codes) < 50
    assert DEPENDENCY_ERROR not in codes
