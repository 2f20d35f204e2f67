"""What a tool brought, as a value that code works on."""

from __future__ import annotations

from resilisim.policies.llm.sandbox.values import JsonValue, NotJsonError, json_value
from resilisim.policies.llm.tools import ToolResult

# What these say in words is more than what they give as values: descriptions, parameters, possible errors.
READ_AS_TEXT = frozenset({"tool_search", "tool_info"})


def value_for_code(tool: str, result: ToolResult) -> JsonValue:
    """Return the value of a successful call; its words where there is none, they say more, or no sandbox takes it."""
    if result.value is None or tool in READ_AS_TEXT:
        return result.text
    try:
        return json_value(result.value)
    except NotJsonError:  # very many items, an integer of hundreds of digits: the call has succeeded all the same
        return result.text
