"""Tools as agents see them."""

from __future__ import annotations

import pytest

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


TYPED = ToolSpec(
    "find",
    "Finds.",
    {
        "properties": {
            "query": {"type": "string"},
            "top": {"type": "integer"},
            "filter": {"type": ["object", "null"]},
            "since": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "any": {"anyOf": [{"type": "number"}, {"$ref": "#/x"}]},
        },
        "required": ["query"],
    },
)


@pytest.mark.parametrize(
    ("arguments", "checked"),
    [
        ({"query": "x", "top": 2.0, "filter": None, "since": None, "any": []}, None),
        ({"query": "x", "filter": '{"a": [1]}'}, {"query": "x", "filter": {"a": [1]}}),
        ({"query": '{"a": 1}'}, None),
        ({"query": "x", "tup": 2}, "find has no parameter 'tup': did you mean 'top'? Its signature is find(query: st"),
        ({"query": "x", "y" * 10**6: 2}, f"find has no parameter '{'y' * 100}': its signature is find("),
        ({"top": 2}, "find needs the parameter 'query': its signature is find("),
        ({"query": 5}, "find: 'query' is a number, expected string"),
        ({"query": "x", "top": 2.5}, "find: 'top' is a number, expected integer"),
        ({"query": "x", "top": float("inf")}, "find: 'top' is a number, expected integer"),
        ({"query": "x", "top": True}, "find: 'top' is boolean, expected integer"),
        ({"query": "x", "filter": "[1, 2]"}, "find: 'filter' is array, expected object or null"),
        ({"query": "x", "filter": "{a}"}, "find: 'filter' is string, expected object or null"),
        ({"query": "x", "since": "now"}, "find: 'since' is string, expected number or null"),
    ],
)
def test_arguments_are_checked_against_the_signature(arguments, checked):
    told = TYPED.checked(arguments)
    if isinstance(checked, str):
        assert isinstance(told, str)
        assert told.startswith(checked)
    else:
        assert told == (arguments if checked is None else checked)


def test_a_tools_parameters_may_stand_beside_its_name():
    tool_call = CONVERSATION_TOOLS[2]
    assert tool_call.checked({"name": "reader", "source": "x"}) == {"name": "reader", "source": "x"}


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
