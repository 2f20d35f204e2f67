from __future__ import annotations

import json

from resilisim.tool_library import default_library


def test_show_gives_the_whole_tool(command):
    shown = command("tools", "show", "computation_calculator", "--json").json()
    assert shown["name"] == "computation_calculator"
    assert shown["dependencies"] == ["data_processing_parser", "network_validator"]
    text = command("tools", "show", "computation_calculator").out
    for word in ("network_validator", "CALCULATION_ERROR", "precision"):
        assert word in text
    aliased = next(tool for tool in default_library() if tool.aliases)
    assert command("tools", "show", aliased.aliases[0], "--json").json()["name"] == aliased.name


def test_exported_json_loads_again_as_the_same_library(command, tmp_path):
    path = tmp_path / "library.json"
    outcome = command("tools", "export", "--format", "json", "--out", path)
    assert outcome.code == 0
    assert command("tools", "export", "--format", "json").out == path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8") == default_library().to_json()
    assert len(command("tools", "list", "--library", path, "--json").json()) == 30


def test_exported_mcp_definitions_have_the_names_and_schemas(command):
    definitions = json.loads(command("tools", "export", "--format", "mcp").out)
    assert [definition["name"] for definition in definitions] == list(default_library().names)
    assert all(definition["inputSchema"]["type"] == "object" for definition in definitions)


def test_search_finds_the_reader_first(command):
    hits = command("tools", "search", "file operations reader", "--json").json()
    assert len(hits) == 5
    assert hits[0]["name"] == "file_operations_reader"
    assert {hit["name"].rpartition("_")[0] for hit in hits} == {"file_operations"}
    assert len(command("tools", "search", "file operations reader", "-k", "2", "--json").json()) == 2


def test_show_tells_a_success_probability_of_the_tools_own(command, tmp_path):
    definitions = json.loads(default_library().to_json())
    tools = definitions["tools"] if isinstance(definitions, dict) else definitions
    tool = next(tool for tool in tools if tool["name"] == "file_operations_reader")
    tool["success_probability"] = 0.625
    path = tmp_path / "own.json"
    path.write_text(json.dumps(definitions), encoding="utf-8")
    own = command("tools", "show", "file_operations_reader", "--library", path).out
    assert "its own success probability: 0.625" in own
    assert "success probability" not in command("tools", "show", "file_operations_reader").out
