"""Random names of tools, through library files, functions, tags, plans and the names of others."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.envs.protocol.message_reader import read_native, read_text
from resilisim.envs.protocol.native_tools import tool_functions
from resilisim.errors import InvalidInputError
from resilisim.policies.base import call_message
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.names import function_name, given_name, is_name
from resilisim.workflows import Step, Workflow
from resilisim.workflows.mcp_task import render_mcp_task
from resilisim.workflows.plan_text import read_compact_steps, render_compact_plan, render_plan
from resilisim.workflows.prompts import parse_steps

PIECES = [
    "read",
    "finish",
    "tool_call",
    " ",
    "/",
    ".",
    ":",
    "(",
    ")",
    '"',
    "'",
    "`",
    "<",
    ">",
    "{",
    "}",
    ",",
    ";",
    "\\",
]
PIECES += [
    "</tool_call>",
    "<think>",
    "after ",
    "1",
    "# ",
    "*",
    "é",
    "文",
    "\u202e",
    "\u200d",
    "\u00a0",
    "A",
    "a",
    "&lt;",
]
pieces = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
names = (pieces | st.text(max_size=12)).filter(is_name)
several = st.lists(names, min_size=1, max_size=5, unique=True)


def check(found: list[str]) -> None:
    library = ToolLibrary([Tool(name, "Does it.") for name in found])
    assert ToolLibrary.from_json(library.to_json()) == library
    functions = [library.function_name(name) for name in found]
    assert len({*functions}) == len(found)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function) for function in functions)
    assert [entry["function"]["name"] for entry in tool_functions(library, "lenient")] == [*functions, "finish"]
    for name, function in zip(found, functions, strict=True):
        assert library.resolve(name) == name
        called = {"tool_calls": [{"id": "1", "function": {"name": function, "arguments": "{}"}}]}
        assert read_native(called, library, "ignore").tool == name
        for given_parameters in (None, {"a": 1}):
            assert read_text(call_message(name, given_parameters), library, "ignore").tool == name
    steps = tuple(Step(name, requires=tuple(found[:place])) for place, name in enumerate(found))
    expected = [(step.tool, step.requires) for step in steps]
    for text in (render_plan(steps), render_mcp_task(Workflow("id", steps, "optimal", 0.5))):
        assert [(step.tool, step.requires or ()) for step in parse_steps(text)] == expected, text
    for inputs in ({}, None):
        plan = f"## Plan\n{render_compact_plan(steps, inputs)}\n"
        assert [(step.tool, step.requires or ()) for step in read_compact_steps(plan)] == expected, plan


@given(several)
def test_whatever_tools_are_called_they_are_called_by_that(found: list[str]) -> None:
    check(found)


@pytest.mark.fuzz
@settings(max_examples=5000)
@given(several)
def test_names_for_longer(found: list[str]) -> None:
    check(found)


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_has_a_name_that_is_one_and_no_other_has(one: str, other: str) -> None:
    found = [given_name(one), given_name(other, [given_name(one)])]
    assert all(map(is_name, found))
    assert (found[0] == found[1]) == (one == other and is_name(one))
    assert is_name(function_name(found[0]))


@given(st.text(max_size=140))
def test_a_library_takes_a_name_or_refuses_it_in_one_line(name: str) -> None:
    text = json.dumps([{"name": name, "description": "Does it."}])
    if is_name(name):
        assert ToolLibrary.from_json(text).names == (name,)
        return
    with pytest.raises(InvalidInputError) as refused:
        ToolLibrary.from_json(text)
    assert "\n" not in str(refused.value)
