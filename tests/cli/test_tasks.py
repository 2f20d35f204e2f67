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


@pytest.mark.parametrize(
    ("plot", "words"),
    [
        ("a.jpg", ["'.jpg'", ".png, .svg, .pdf"]),
        ("a.pgn", ["'.pgn'", ".png, .svg, .pdf"]),
        ("plot", ["''", ".png, .svg, .pdf"]),
        ("nowhere/a.png", ["nowhere"]),
    ],
)
def test_plots_that_cannot_be_are_refused(command, tmp_path, plot, words):
    line = command("tasks", "stats", "--plot", tmp_path / plot).refusal()
    for word in words:
        assert word in line
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "task_0"], ["task_0"]),
        (["list", "--type", "basic_file_procesing"], ["'basic_file_processing'"]),
        (["list", "--split", "tests"], ["'test'"]),
        (["list", "--complexity", "harder"], ["'hard'"]),
        (["list", "--tasks", "benchmark-v2"], ["benchmark-v2", "benchmark-v1"]),
        (["stats", "--tasks", "no/such/file.jsonl"], ["no/such/file.jsonl"]),
        (["list", "--tasks", ""], ["no tasks were named", "benchmark-v1"]),
        (["list", "--tasks", "1" * 5000], ["cannot be read"]),
    ],
)
def test_wrong_values_are_refused(command, arguments, words):
    line = command("tasks", *arguments).refusal()
    for word in words:
        assert word in line


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


def test_generate_into_a_folder_that_does_not_exist_is_refused(command, tmp_path):
    assert (
        "nowhere" in command("tasks", "generate", "--out", tmp_path / "nowhere" / "a.jsonl", "--count", "1").refusal()
    )


def test_markup_in_a_task_is_shown_as_it_stands(command, tmp_path):
    path = tmp_path / "tasks.jsonl"
    task = {
        "instance_id": "[/id]",
        "required_tools": ["file_operations_reader"],
        "task_type": "[/b]",
        "description": "[bold]d :smile:",
        "inputs": {"x[/i]": "[/u]"},
    }
    path.write_text(json.dumps(task) + "\n", encoding="utf-8")
    shown = command("tasks", "show", "[/id]", "--tasks", path).out
    for text in ("[/id]  [/b], easy", "[bold]d :smile:", "x[/i]", "'[/u]'"):
        assert text in shown
    assert "[/b]" in command("tasks", "list", "--tasks", path).out
    assert "[/b]" in command("tasks", "stats", "--tasks", path).out
    assert "[/b]" in command("bound", "--task", "all", "--tasks", path, "--clairvoyant-seeds", "0").out


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


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ('"description": "a\\ud800b"', ["line 1", "not Unicode"]),
        ('"inputs": {"a": ' + "[" * 600 + "]" * 600 + "}", ["line 1", "nested too deeply"]),
        ('"inputs": {"a": ' + "9" * 5000 + "}", ["line 1", "5000 digits"]),
    ],
)
def test_tasks_that_no_program_can_use_are_refused(command, tmp_path, field, words):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"required_tools": ["file_operations_reader"], ' + field + "}\n", encoding="utf-8")
    for arguments in (["list"], ["show", "x"], ["stats"]):
        line = command("tasks", *arguments, "--tasks", path).refusal()
        for word in words:
            assert word in line


def test_generate_with_a_model_of_ones_own(command, tmp_path, model_folder):
    out = tmp_path / "a.jsonl"
    assert command("tasks", "generate", "--out", out, "--count", "5", "--embedding-model", model_folder).code == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 5
    other = tmp_path / "b.jsonl"
    line = command("tasks", "generate", "--out", other, "--count", "5", "--embedding-model", "no/such/folder").refusal()
    assert "no/such/folder" in line
    assert not other.exists()
