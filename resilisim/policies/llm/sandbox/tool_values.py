"""What a tool brought, as a value that code works on."""

from __future__ import annotations

from typing import Any

from resilisim.policies.llm.tools import ToolResult

# What these say in words is more than what they give as values: descriptions, parameters, possible errors.
READ_AS_TEXT = frozenset({"tool_search", "tool_info"})


def value_for_code(tool: str, result: ToolResult) -> Any:
    """Return the value of a successful call, or its words where there is none or the words say more."""
    return result.text if result.value is None or tool in READ_AS_TEXT else result.value
