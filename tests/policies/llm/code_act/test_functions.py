"""Tools as functions of code: how arguments are bound, what comes back, how failures look."""

from __future__ import annotations

import asyncio

import pytest

from resilisim.policies.llm.agents.code_act import Finished, ToolFunctions, bound, describe_functions
from resilisim.policies.llm.conversation import CONVERSATION_TOOLS
from resilisim.policies.llm.sandbox import HostCallError
from resilisim.policies.llm.tools import ToolResult
from tests.policies.llm.toolboxes import ScriptedToolbox, spec

SEARCH, INFO, CALL = CONVERSATION_TOOLS


@pytest.mark.parametrize(
    ("positional", "named", "expected"),
    [
        (["reader"], {}, {"name": "reader"}),
        (["reader", {"a": 1}], {}, {"name": "reader", "parameters": {"a": 1}}),
        (["reader"], {"a": 1, "b": [2]}, {"name": "reader", "parameters": {"a": 1, "b": [2]}}),
        (["reader", {"a": 1}], {"b": 2}, {"name": "reader", "parameters": {"a": 1, "b": 2}}),
        ([], {"name": "reader", "parameters": {"a": 1}}, {"name": "reader", "parameters": {"a": 1}}),
        ([], {"name": "reader", "parameters": None, "a": 1}, {"name": "reader", "parameters": {"a": 1}}),
        ([], {}, {}),
    ],
)
def test_calls_are_bound_to_parameters(positional, named, expected):
    assert bound(CALL, positional, named) == expected


@pytest.mark.parametrize(
    ("tool", "positional", "named", "problem"),
    [
        (CALL, ["a", {}, 1], {}, "3 values without a name are too many: tool_call("),
        (CALL, ["a"], {"name": "b"}, "'name' is given twice"),
        (CALL, ["a", "text"], {"b": 2}, "no parameter 'b'"),
        (SEARCH, [], {"words": "x"}, "no parameter 'words': tool_search(query: string)"),
    ],
)
def test_what_cannot_be_bound_says_why(tool, positional, named, problem):
    with pytest.raises(HostCallError) as refused:
        bound(tool, positional, named)
    assert problem in str(refused.value)


def test_values_come_back_as_data_and_the_directory_as_text():
    toolbox = ScriptedToolbox(
        CONVERSATION_TOOLS,
        {
            "tool_search": [ToolResult("found: reader", value=[{"name": "reader"}])],
            "tool_call": [ToolResult("ran", value={"rows": [1]}, progress="3 turns left"), "only words"],
        },
    )
    functions = ToolFunctions(toolbox)

    async def play():
        return [
            await functions.by_name["tool_search"](["read"], {}),
            await functions.by_name["tool_call"](["reader"], {"source": "x"}),
            await functions.by_name["tool_call"](["reader"], {}),
        ]

    assert asyncio.run(play()) == ["found: reader", {"rows": [1]}, "only words"]
    assert functions.progress == "3 turns left"
    assert toolbox.calls[1] == ("tool_call", {"name": "reader", "parameters": {"source": "x"}})


def test_a_value_that_no_sandbox_takes_comes_back_as_words():
    toolbox = ScriptedToolbox([spec("read")], {"read": [ToolResult("many rows", value=[0] * 100_000)]})
    assert asyncio.run(ToolFunctions(toolbox).by_name["read"]([], {})) == "many rows"


def test_a_failed_tool_is_never_a_result():
    toolbox = ScriptedToolbox([spec("read", "source")], {"read": [ToolResult("words", "TIMEOUT: too slow", {"x": 1})]})
    with pytest.raises(HostCallError, match=r"^TIMEOUT: too slow$"):
        asyncio.run(ToolFunctions(toolbox).by_name["read"](["a"], {}))


@pytest.mark.parametrize(
    ("positional", "named", "answer"),
    [
        (["done"], {}, "done"),
        ([], {}, ""),
        ([], {"answer": {"a": 1}}, '{"a": 1}'),
        ([42], {}, "42"),
        ([1, 2], {}, "[1, 2]"),
        ([None], {}, "null"),
    ],
)
def test_finish_takes_any_answer(positional, named, answer):
    functions = ToolFunctions(ScriptedToolbox([], {}))
    with pytest.raises(Finished) as finished:
        asyncio.run(functions.by_name["finish"](positional, named))
    assert finished.value.answer == answer


def test_the_list_of_functions_is_python():
    lines = describe_functions(
        ScriptedToolbox([*CONVERSATION_TOOLS, spec("mail-send", "to", n="integer")], {})
    ).splitlines()
    assert lines[0].startswith("- tool_search(query: str): ")
    assert lines[2].startswith("- tool_call(name: str, parameters: dict = None): ")
    assert lines[3].startswith("- mail_send(to: str, n: int = None): ")
    assert lines[4].startswith("- finish(answer): ")
