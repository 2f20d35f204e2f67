from __future__ import annotations

import json

import pytest

from resilisim.tool_library import default_library


def test_list_gives_thirty_tools_in_the_order_of_their_indices(command):
    rows = command("tools", "list", "--json").json()
    assert [row["name"] for row in rows] == list(default_library().names)
    assert [row["index"] for row in rows] == list(range(30))
    writer = next(row for row in rows if row["name"] == "file_operations_writer")
    assert writer["dependencies"] == ["data_processing_aggregator"]
    assert writer["semantic_type"] == "outputs"
    assert "file_operations_writer" in command("tools", "list").out


def test_show_gives_the_whole_tool(command):
    shown = command("tools", "show", "computation_calculator", "--json").json()
    assert shown["name"] == "computation_calculator"
    assert shown["dependencies"] == ["data_processing_parser", "network_validator"]
    text = command("tools", "show", "computation_calculator").out
    for word in ("network_validator", "CALCULATION_ERROR", "precision"):
        assert word in text


def test_show_takes_an_alias(command):
    tool = next(tool for tool in default_library() if tool.aliases)
    assert command("tools", "show", tool.aliases[0], "--json").json()["name"] == tool.name


def test_unknown_tool_names_the_nearest(command):
    line = command("tools", "show", "file_operations_reeder").refusal()
    assert "file_operations_reeder" in line
    assert "'file_operations_reader'" in line


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


def test_wrong_export_format_names_the_nearest(command):
    assert "'json'" in command("tools", "export", "--format", "jsn").refusal()


@pytest.mark.parametrize("text", ["", "[", "{}", '{"tools": []}', '[{"name": "a", "dependencies": ["b"]}]'])
def test_wrong_library_files_are_refused_with_the_files_name(command, tmp_path, text):
    path = tmp_path / "wrong.json"
    path.write_text(text, encoding="utf-8")
    assert "wrong.json" in command("tools", "list", "--library", path).refusal()


def test_missing_library_file_is_refused(command, tmp_path):
    assert "nowhere.json" in command("tools", "list", "--library", tmp_path / "nowhere.json").refusal()


def test_search_finds_the_reader_first(command):
    hits = command("tools", "search", "file operations reader", "--json").json()
    assert len(hits) == 5
    assert hits[0]["name"] == "file_operations_reader"
    assert {hit["name"].rpartition("_")[0] for hit in hits} == {"file_operations"}
    assert len(command("tools", "search", "file operations reader", "-k", "2", "--json").json()) == 2


def test_markup_in_a_query_or_a_library_is_shown_as_it_stands(command, tmp_path):
    assert "Tools for '[/x]'" in command("tools", "search", "[/x]").out
    path = tmp_path / "library.json"
    tool = {"name": "a_b", "description": "x\\[/b] :smile:", "metadata": {"category": "[/foo]", "operation": "[red]op"}}
    path.write_text(json.dumps([tool]), encoding="utf-8")
    shown = command("tools", "show", "a_b", "--library", path).out
    assert "a_b  [/foo] / [red]op" in shown
    assert tool["description"] in shown
    assert command("tools", "list", "--library", path).code == 0


def test_search_with_a_model_of_ones_own(command, model_folder):
    default = command("tools", "search", "read a file", "--json").json()
    assert command("tools", "search", "read a file", "--json", "--embedding-model", model_folder).json() == default
    line = command("tools", "search", "read a file", "--embedding-model", "no/such/folder").refusal()
    assert "no/such/folder" in line
    assert "''" in command("tools", "search", "read a file", "--embedding-model", "").refusal()


def test_part_of_a_name_is_enough_for_a_hint(command):
    for arguments in (["tools", "show", "reader"], ["bound", "--tools", "reader"]):
        assert "did you mean 'file_operations_reader'?" in command(*arguments).refusal()


def test_show_tells_a_success_probability_of_the_tools_own(command, tmp_path):
    definitions = json.loads(default_library().to_json())
    tools = definitions["tools"] if isinstance(definitions, dict) else definitions
    tool = next(tool for tool in tools if tool["name"] == "file_operations_reader")
    tool["success_probability"] = 0.625
    path = tmp_path / "own.json"
    path.write_text(json.dumps(definitions), encoding="utf-8")
    own = command("tools", "show", "file_operations_reader", "--library", path).out
    assert "success probability of its own: 0.625" in own
    assert "success probability" not in command("tools", "show", "file_operations_reader").out
