"""`resilisim traces read`: from lines of calls to points lost, a law, and a section of the report."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Command

CALLS = [
    {"run": 1, "tool": "find", "arguments": {"id": "x"}, "error": "INVALID_INPUT", "message": "id is no number"},
    {"run": 1, "tool": "find", "arguments": {"id": "x"}, "error": "INVALID_INPUT", "message": "id is no number"},
    {"run": 1, "tool": "find", "arguments": {"id": 1}, "error": None},
    {"run": 1, "tool": "pay", "arguments": {}, "error": None},
    {"run": 2, "tool": "find", "arguments": {"id": 2}, "error": None},
    {"run": 2, "tool": "pay", "arguments": {}, "error": "TIMEOUT"},
]


def test_traces_are_read_reported_and_fitted(command: Command, tmp_path: Path) -> None:
    file, out = tmp_path / "calls.jsonl", tmp_path / "out"
    file.write_text("\n".join(map(json.dumps, CALLS)))
    asked = command("traces", "read", file, "--out", out, "--required", "find,pay", "--json").json()
    assert asked["agent"] == {"repeated_invalid_call": 1, "gave_up_early": 1}
    assert asked["lost"]["lost"] == 50.0
    assert abs(asked["lost"]["tools"] + asked["lost"]["agent"] - 50.0) < 1e-9
    shown = command("report", out)
    assert shown.code == 0, shown.err
    page = (out / "report.html").read_text()
    assert "Faults of tools, faults of agents" in page
    assert "repeated unchanged after an input error" in page
    law = command("law", "fit", out, "--json").json()["law"]
    assert law["bases"] == asked["law"]["bases"]


def test_several_agents_stand_in_one_folder_and_report(command: Command, tmp_path: Path) -> None:
    file, out = tmp_path / "calls.jsonl", tmp_path / "out"
    file.write_text("\n".join(json.dumps({**call, "agent": f"agent {call['run']}"}) for call in CALLS))
    asked = command("traces", "read", file, "--out", out, "--required", "find,pay")
    assert asked.code == 0, asked.err
    assert command("report", out).code == 0
    assert all(f"agent {number}" in (out / "report.html").read_text() for number in (1, 2))


def test_without_a_goal_there_are_faults_and_no_points(command: Command, tmp_path: Path) -> None:
    file, out = tmp_path / "calls.jsonl", tmp_path / "out"
    file.write_text("\n".join(map(json.dumps, CALLS)))
    asked = command("traces", "read", tmp_path, "--out", out)
    assert asked.code == 0, asked.err
    assert "points lost" not in asked.out
    assert "repeated unchanged after an input error" in asked.out
    assert not (out / "episodes.jsonl").exists() or not (out / "episodes.jsonl").read_text()
    assert "expected a new folder" in command("traces", "read", file, "--out", out).refusal()
    assert "expected --required" in command("traces", "read", file, "--out", tmp_path / "b", "--any-order").refusal()
