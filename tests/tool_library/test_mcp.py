"""MCP definitions, judged by the official package and by JSON Schema's own schema."""

from __future__ import annotations

import json

from jsonschema import Draft202012Validator
from mcp.types import Tool as McpTool

from resilisim.tool_library import Parameter, Tool, ToolLibrary, default_library
from resilisim.tool_library.mcp import mcp_definition, mcp_definitions

LIBRARY = default_library()


def test_every_definition_is_valid() -> None:
    definitions = mcp_definitions(LIBRARY)
    assert [definition["name"] for definition in definitions] == list(LIBRARY.names)
    for tool, definition in zip(LIBRARY, definitions, strict=True):
        assert set(definition) == {"name", "description", "inputSchema", "outputSchema"}
        read = McpTool.model_validate(definition)
        assert (read.name, read.description) == (tool.name, tool.description)
        assert json.loads(read.model_dump_json(by_alias=True, exclude_none=True)) == definition
        for schema in (definition["inputSchema"], definition["outputSchema"]):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"


def test_the_schemas_say_what_the_tool_says() -> None:
    definition = mcp_definition(LIBRARY["data_processing_validator"])
    assert definition["inputSchema"]["required"] == ["data", "schema"]
    assert list(definition["inputSchema"]["properties"]) == ["data", "schema", "options"]
    output = definition["outputSchema"]
    assert {name: value["type"] for name, value in output["properties"].items()} == {
        "success": "boolean",
        "data": "object",
        "valid": "boolean",
        "violations": "array",
        "metadata": "object",
    }
    assert output["required"] == ["success", "data", "valid", "violations", "metadata"]


def test_a_user_tool_with_next_to_nothing() -> None:
    (bare,) = ToolLibrary([Tool("bare", "text", (Parameter("n", "integer"),))])
    definition = mcp_definition(bare)
    McpTool.model_validate(definition)
    assert definition["inputSchema"]["properties"] == {"n": {"type": "integer"}}
