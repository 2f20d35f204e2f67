"""Tools as agents see them."""

from __future__ import annotations

from resilisim.policies.llm.conversation import CONVERSATION_TOOLS
from resilisim.policies.llm.tools import ToolResult, ToolSpec, describe_tools
from tests.policies.llm.toolboxes import spec


def test_signatures_tell_optional_parameters_and_types():
    tool = ToolSpec(
        "find",
        "Finds.",
        {
            "properties": {"query": {"type": "string"}, "top": {"type": "integer"}, "filter": {}},
            "required": ["query"],
        },
    )
    assert tool.signature() == "find(query: string, top?: integer, filter?: any)"
    assert tool.parameter_names == ("query", "top", "filter")
    assert tool.required == ("query",)
    assert ToolSpec("now", "Tells the time.").signature() == "now()"


def test_a_tool_as_endpoints_want_it():
    function = spec("find", "query").to_function()
    assert function["type"] == "function"
    assert function["function"]["name"] == "find"
    assert function["function"]["parameters"]["required"] == ["query"]
    assert ToolSpec("now", "Tells the time.").to_function()["function"]["parameters"] == {
        "type": "object",
        "properties": {},
    }


def test_a_list_of_tools():
    assert describe_tools([spec("a", "x"), spec("b")]) == "- a(x: string): A tool of a test.\n- b(): A tool of a test."
    assert describe_tools([]) == ""


def test_tools_can_be_told_apart_and_put_into_sets():
    assert len({spec("a", "x"), spec("a", "x"), spec("b", "x")}) == 2
    assert spec("a", "x") != spec("a", "y")


def test_the_tools_of_the_environment():
    assert [tool.signature() for tool in CONVERSATION_TOOLS] == [
        "tool_search(query: string)",
        "tool_info(name: string)",
        "tool_call(name: string, parameters?: object)",
    ]


def test_results():
    assert ToolResult("fine").ok
    assert ToolResult("fine").observation == "fine"
    failed = ToolResult("It broke.", "TIMEOUT", progress="2 turns left.")
    assert not failed.ok
    assert failed.value is None
    assert failed.observation == "It broke.\n\n2 turns left."
