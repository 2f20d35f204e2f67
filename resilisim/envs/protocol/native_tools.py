"""The functions of native tool calling, as JSON Schema tools: those of the environment, or each tool as its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import ParameterMode, parameter_schema

NATIVE_NEEDS = {"tool_search": "query", "tool_info": "name", "tool_call": "name"}
NATIVE_FUNCTIONS = (*NATIVE_NEEDS, "finish")
FUNCTION_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    **{name: {need: {"type": "string"}} for name, need in NATIVE_NEEDS.items()},
    "tool_call": {"name": {"type": "string"}, "parameters": {"type": "object"}},
    "finish": {"answer": {"type": "string"}},
}
WAIT_FUNCTION = "wait"  # understood where the law has a part in which waiting can help


def tool_functions(
    library: ToolLibrary, mode: ParameterMode, answers: bool = False, offers_wait: bool = False
) -> list[dict[str, Any]]:
    """Return each tool of a library as a function of its own, and finish, as OpenAI-compatible endpoints expect them.

    Parameters are only required where calls without them are refused: who checks calls by the schema first would refuse
    what the environment takes.

    A tool whose name cannot be that of a function has another one (`ToolLibrary.function_name`), and its description
    says so.
    """
    functions = [
        {
            "type": "function",
            "function": {
                "name": library.function_name(tool.name),
                "description": _described(tool, library),
                "parameters": parameter_schema(tool, strict=mode == "strict"),
            },
        }
        for tool in library
    ]
    own = ("finish", WAIT_FUNCTION)
    return [
        *functions,
        *(function for function in native_tools(answers, offers_wait) if function["function"]["name"] in own),
    ]


def _described(tool: Tool, library: ToolLibrary) -> str:
    depends = f" Depends on {', '.join(tool.dependencies)}." if tool.dependencies else ""
    named = "" if library.function_name(tool.name) == tool.name else f" This is the tool {tool.name!r}."
    return f"{tool.description}{depends}{named}"


_FINAL_ANSWER = {"type": "string", "description": "The answer alone, in as few words as it takes."}


def native_tools(answers: bool = False, offers_wait: bool = False) -> list[dict[str, Any]]:
    """Return the functions of the native protocol as OpenAI-compatible endpoints expect them, with JSON Schemas.

    With `answers` finish takes one; `wait` is there only if it is offered.
    """
    waiting = [_function(WAIT_FUNCTION, "Let a turn pass without doing anything.", {})] if offers_wait else []
    text = {"type": "string"}
    return [
        _function("tool_search", "Find tools for a need; lists five with their relevance.", {"query": text}),
        _function("tool_info", "Show one tool: parameters, returns, possible errors, dependencies.", {"name": text}),
        _function(
            "tool_call",
            "Execute a tool by its name, with its parameters as an object.",
            {"name": text, "parameters": {"type": "object"}},
            optional=("parameters",),
        ),
        *waiting,
        _function("finish", "Report that the task is complete, with the answer.", {"answer": _FINAL_ANSWER})
        if answers
        else _function("finish", "Report that the task is complete.", {}),
    ]


def _function(
    name: str, description: str, properties: dict[str, Any], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key not in optional],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
