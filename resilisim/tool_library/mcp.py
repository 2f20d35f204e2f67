"""Tools as definitions of the Model Context Protocol: name, description, JSON Schemas of input and output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from resilisim.tool_library.parameters import parameter_schema
from resilisim.tool_library.types import Tool


def mcp_definition(tool: Tool) -> dict[str, Any]:
    """Return the MCP tool definition of one tool, with keys name, description, inputSchema and outputSchema."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": parameter_schema(tool, strict=True),
        "outputSchema": output_schema(tool),
    }


def mcp_definitions(library: Iterable[Tool]) -> list[dict[str, Any]]:
    """Return the MCP definitions of all tools, in the order of the library."""
    return [mcp_definition(tool) for tool in library]


def output_schema(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema of what a successful execution returns."""
    return {
        "type": "object",
        "properties": {
            value.name: {"type": value.type, "description": value.description}
            if value.description
            else {"type": value.type}
            for value in tool.returns
        },
        "required": [value.name for value in tool.returns],
    }
