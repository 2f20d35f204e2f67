"""Names of tools as they come, in tags, as functions and over MCP: blanks, slashes, brackets, other alphabets, case."""

from __future__ import annotations

import json

import pytest

from resilisim.envs.protocol import read_native, read_text, tool_functions
from resilisim.tool_library import Tool, ToolLibrary

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
