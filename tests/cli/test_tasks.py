"""`resilisim tasks`, of the benchmark and of worlds, and `resilisim tools`."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import zlib
from pathlib import Path

import pytest

from resilisim.reporting.viewer import BLOCK_TYPE
from resilisim.tool_library import default_library
from resilisim.worlds import load_world
from tests.chat.loopback import LoopbackServer
from tests.cli.conftest import Command
from tests.doubles.world_models import WorldModel
from tests.reporting.pages import Checker

COUNTS = {
    "basic_file_processing": 1200,
    "simple_data_transformation": 320,
    "complex_validation_pipeline": 1520,
    "complex_network_integration": 1360,
    "advanced_computation_pipeline": 640,
}


def test_stats_count_the_benchmark(command):
    counts = command("tasks", "stats", "--json").json()
    assert counts["by_type"] == COUNTS
    assert counts["by_complexity"] == {"easy": 1520, "medium": 2880, "hard": 640}
    assert sum(counts["by_num_tools"].values()) == 5040
    text = command("tasks", "stats").out
    assert "basic_file_processing" in text
    assert "1,520" in text


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_stats_are_drawn_and_still_printed(command, tmp_path, suffix):
    plot = tmp_path / f"tasks{suffix}"
    outcome = command("tasks", "stats", "--plot", plot)
    assert outcome.code == 0
    assert "basic_file_processing" in outcome.out
    assert str(plot) in outcome.err
    begin = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()]
    assert plot.read_bytes().startswith(begin)
    again = command("tasks", "stats", "--plot", plot, "--json").json()
    assert again["library"]["by_parameter"]["options"] == {"tools": 25, "required": 0}
    assert sum(again["library"]["by_category"].values()) == 30
    assert [path.name for path in tmp_path.iterdir()] == [plot.name]


def test_list_filters_and_limits(command):
    rows = command("tasks", "list", "--type", "basic_file_processing", "--limit", "3", "--json").json()
    assert [row["task_type"] for row in rows] == ["basic_file_processing"] * 3
    hard = command("tasks", "list", "--complexity", "hard", "--limit", "0", "--json").json()
    assert len(hard) == 640
    test = command("tasks", "list", "--split", "test", "--limit", "0", "--json").json()
    assert {row["split"] for row in test} == {"test"}
    assert 300 < len(test) < 1300
    outcome = command("tasks", "list")
    assert "20 of 5040" in outcome.out
    assert "5020 more" in outcome.err


def test_show_gives_the_fields_of_a_task(command):
    listed = command("tasks", "list", "--limit", "1", "--json").json()[0]
    shown = command("tasks", "show", listed["instance_id"], "--json").json()
    assert shown["required_tools"] == listed["required_tools"]
    assert {"description", "inputs", "expected_outputs", "constraints", "metadata"} <= set(shown)
    assert listed["required_tools"][0] in command("tasks", "show", listed["instance_id"]).out


def test_generate_repeats_itself_and_is_read_back(command, tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    outcome = command("tasks", "generate", "--out", first, "--seed", "3", "--count", "40", "--json")
    assert outcome.json()["count"] == 40
    assert command("tasks", "generate", "--out", second, "--seed", "3", "--count", "40").code == 0
    assert first.read_bytes() == second.read_bytes()
    tasks = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    assert len(tasks) == 40
    assert sum(command("tasks", "stats", "--tasks", first, "--json").json()["by_type"].values()) == 40
    shown = command("tasks", "show", tasks[7]["instance_id"], "--tasks", first, "--json").json()
    assert shown["required_tools"] == tasks[7]["required_tools"]


def test_odd_characters_reach_an_output_that_does_not_know_them(tmp_path, python):
    path = tmp_path / "tasks.jsonl"
    task = {"instance_id": "ü", "required_tools": ["file_operations_reader"], "description": "😀\u2028é"}
    path.write_text(json.dumps(task) + "\n", encoding="utf-8")

    def show(*options):
        command = [*python, "-m", "resilisim", "tasks", "show", "ü", "--tasks", str(path), *options]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert json.loads(show("--json"))["description"] == task["description"]
    assert "\\U0001f600" in show()


BLOCK = re.compile(rf'<script type="{re.escape(BLOCK_TYPE)}"[^>]*>(.*?)</script>', re.DOTALL)


@pytest.mark.long
def test_the_records_set_from_evaluate_to_the_viewer(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    sound, risky = tmp_path / "sound", tmp_path / "risky"
    with LoopbackServer(WorldModel([load_world("records-v1")])) as server:
        asked = ("--policy", "rp-react", "--model", "openai:competent", "--base-url", server.base_url)
        told = command("evaluate", "--tasks", "records-v1:8", *asked, "--policy", "reference", "--out", sound)
        assert told.code == 0, told.err
        law = ("--law", "benchmark", "--prompt", "optimal", "--prompt", "flawed")
        told = command("evaluate", "--tasks", "records-v1:4", *asked, *law, "--out", risky, "--json")
        assert 0.9 < told.json()["results"][0]["optimum"]["value"] < 1.0
    for run in (sound, risky):
        assert "agree (numbers to 1e-9)" in command("runs", "rescore", run).out
    found = command(
        "runs", "compare", sound, sound, "--policy-a", "rp-react", "--policy-b", "reference", "--json"
    ).json()
    assert (found["episodes"], found["success_a"]["value"], found["success_b"]["value"]) == (8, 1.0, 1.0)
    assert "cannot be compared: law" in command("runs", "compare", sound, risky).refusal()
    for run, words in ((sound, "No call fails by chance."), (risky, "Calls also fail at random by a known law.")):
        command("report", run)
        text = (run / "report.html").read_text(encoding="utf-8")
        page = Checker(text)
        assert words in page.text
        assert "the chance of completing the reference solution" in page.text
        assert "ResiliBench" not in page.text, "whose calls are simulated"
        blocks = [zlib.decompress(base64.b64decode(block)).decode() for block in BLOCK.findall(text)]
        told_of = json.dumps(load_world("records-v1").tasks()[0].description)[1:-1]
        assert any(told_of in block for block in blocks)
        assert any("LoadDB executed successfully" in block for block in blocks)
    shown = command("runs", "episode", sound, "0").out
    assert "full success" in shown
    assert "LoadDB executed successfully." in shown


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
