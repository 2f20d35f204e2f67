"""Names of tools as they come, in tags, as functions and over MCP: blanks, slashes, brackets, other alphabets, case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resilisim import EnvironmentSettings, benchmark_tasks, default_library, evaluate
from resilisim.envs.protocol.message_reader import read_native, read_text
from resilisim.envs.protocol.native_tools import tool_functions
from resilisim.tasks import Task
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.renaming import renamed_library
from resilisim.workflows import Step, Workflow
from resilisim.workflows.mcp_task import render_mcp_task
from resilisim.workflows.plan_text import render_plan
from resilisim.workflows.prompts import PROMPT_STYLES, parse_steps

NAMES = (
    *("_x", "fs/read", "naïve", "search the web", "search", "读取文件", "Get", "get", "a:b/c d", "it's", "f(x)"),
    *('say "hi"', "`tick`", "finish", "tool_call", "{x}", "<b>", "*star*", "wait", "x" * 128, "tool_search", "a{b"),
)
LIBRARY = ToolLibrary([Tool(name, "Does it.") for name in (*NAMES, "a</tool_call>b")])
FORMS = ("%s", "%s {}", "%s({})", "`%s`", "`%s` {}", '"%s" {}', "\n%s\n{}\n", "%s: {}", '%s {"x": 1}', "%s ({})")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_tags_is_the_tool_of_that_name(name: str) -> None:
    for form in FORMS:
        message = read_text(f"<tool_call>{form % name}</tool_call>", LIBRARY, "ignore")
        assert (message.kind, message.tool) == ("execute", name), form
    assert read_text(f"<tool_info>{name}</tool_info>", LIBRARY, "ignore").tool == name


@pytest.mark.parametrize("name", LIBRARY.names)
def test_a_name_as_json_is_the_tool_of_that_name(name: str) -> None:
    call = json.dumps({"name": name, "arguments": {}}).replace("<", "\\u003c")
    message = read_text(f"<tool_call>{call}</tool_call>", LIBRARY, "ignore")
    assert name in ("finish", "tool_call", "tool_search", "wait") or message.tool == name
    asked = {"function": {"name": "tool_call", "arguments": json.dumps({"name": name})}}
    if LIBRARY.resolve("tool_call") is None:
        assert read_native({"tool_calls": [asked]}, LIBRARY, "ignore").tool == name


def test_each_tool_has_a_function_that_endpoints_take_and_that_says_whose_it_is() -> None:
    functions = [entry["function"] for entry in tool_functions(LIBRARY, "lenient")]
    for name, function in zip(LIBRARY.names, functions, strict=False):
        call = {"id": "1", "function": {"name": function["name"], "arguments": "{}"}}
        message = read_native({"tool_calls": [call]}, LIBRARY, "ignore")
        assert (message.kind, message.tool) == ("execute", name)
        assert function["name"] == name or repr(name) in function["description"]
    assert functions[-1]["name"] == "finish"


ODD = (
    *(
        " {}",
        "_{}",
        "读取{}",
        "{}/x",
        "{}: y",
        "{} (v2)",
        '"{}"',
        "{} and {}",
        "`{}`",
        "# {}",
        "1. {}",
        "{}; {}",
        "<{}>",
    ),
    *("{} after {}", "{}'s", "*{}*", "\\{}", "{}&amp;", "- {}", "{},x", "{}\u200d", "{}\u202e", "[secret] {}"),
)


@pytest.mark.parametrize("style", PROMPT_STYLES)
def test_plans_and_prompts_of_all_styles_carry_any_name_and_are_followed_to_the_end(style: Any) -> None:
    names = {
        name: ODD[place % len(ODD)].format(name, name).strip() for place, name in enumerate(default_library().names)
    }
    odd = renamed_library(default_library(), names)
    tools: Any = "discovery" if style == "terse" else "listed"
    settings = EnvironmentSettings(base=1.0, prompt_style=style, tools=tools, search="lexical")
    tasks = benchmark_tasks()[::900]
    own = [Task.from_mapping({"required_tools": [names[n] for n in task.required_tools]}, odd) for task in tasks]
    run = evaluate("plan-follower", tasks=own, library=odd, environment=settings, prompts="optimal")
    assert [row.success.value for row in run.rows] == [1.0]


def test_plans_as_xml_carry_any_name() -> None:
    names = [form.format("read", "read").strip() for form in ODD]
    steps = tuple(Step(name, requires=tuple(names[:place][-2:])) for place, name in enumerate(names))
    for text in (render_plan(steps), render_mcp_task(Workflow("id", steps, "optimal", 0.5))):
        assert [(step.tool, step.requires or ()) for step in parse_steps(text)] == [
            (step.tool, step.requires) for step in steps
        ]
