"""The messages of scripted policies, in the text protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilisim.envs.session import Info
from resilisim.workflows.templating import inline_json

FINISH = "<finish/>"
# What a scripted policy says in its closing message when it is not done: no tag and no signal of completion.
OUT_OF_TURNS = "I have used all my turns and could not do everything."


def search(query: str) -> str:
    """Return the message that searches for tools."""
    return f"<tool_search>{query.replace('<', ' ')}</tool_search>"


def ask(tool: str) -> str:
    """Return the message that asks for everything about a tool."""
    return f"<tool_info>{tool}</tool_info>"


def call(tool: str, parameters: Mapping[str, Any] | None = None) -> str:
    """Return the message that runs a tool."""
    given = f" {inline_json(parameters)}" if parameters else ""
    return f"<tool_call>{tool}{given}</tool_call>"


def is_closing(info: Info) -> bool:
    """Return whether only the closing message is left, which runs nothing."""
    return info.get("turns_left") == 0


def succeeded_tool(info: Info) -> str | None:
    """Return the tool that the last message ran successfully, or None."""
    execution = info.get("execution")
    return str(execution["tool"]) if execution is not None and execution["success"] else None
