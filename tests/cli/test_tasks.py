from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

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
    assert "1520" in text


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


def test_odd_characters_reach_an_output_that_does_not_know_them(tmp_path):
    path = tmp_path / "tasks.jsonl"
    task = {"instance_id": "ü", "required_tools": ["file_operations_reader"], "description": "😀\u2028é"}
    path.write_text(json.dumps(task) + "\n", encoding="utf-8")

    def show(*options):
        command = [sys.executable, "-m", "resilisim", "tasks", "show", "ü", "--tasks", str(path), *options]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert json.loads(show("--json"))["description"] == task["description"]
    assert "\\U0001f600" in show()
