"""`resilisim rescore`: exit codes, what is printed, and the new folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilisim.evaluation import evaluate
from resilisim.evaluation.run.store import EPISODES_NAME
from resilisim.provenance import encode_json_line
from tests.cli.conftest import Command
from tests.evaluation.toy_policies import toy_tasks


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run of 18 episodes."""
    evaluate("plan-follower", toy_tasks(), "optimal", 3, out=tmp_path / "run", progress=False)
    return tmp_path / "run"


def spoil(run: Path) -> None:
    """Turn the outcome of the first episode round."""
    first, *rest = (run / EPISODES_NAME).read_bytes().splitlines(keepends=True)
    record = json.loads(first)
    record["outcome"] = 1 - record["outcome"]
    (run / EPISODES_NAME).write_bytes(encode_json_line(record) + b"".join(rest))


def test_a_run_that_agrees(command: Command, run: Path) -> None:
    outcome = command("rescore", run)
    assert (outcome.code, outcome.out) == (0, "18 of 18 episodes agree (numbers to 1e-9)\n")
    counts = command("rescore", run, "--json").json()
    assert counts["agrees"]
    assert (counts["num_episodes"], counts["num_agreeing"], counts["differences"]) == (18, 18, [])
    assert counts["directory"] is None


def test_a_run_that_was_changed(command: Command, run: Path, tmp_path: Path) -> None:
    spoil(run)
    outcome = command("rescore", run)
    assert outcome.code == 1
    assert outcome.out.startswith("17 of 18 episodes agree (numbers to 1e-9)\n1 have another score or other numbers\n")
    assert "  episode 0: outcome is " in outcome.out
    assert command("rescore", run, "--json").code == 1
    repaired = command("rescore", run, "--out", tmp_path / "again")
    assert repaired.code == 0
    assert repaired.out.endswith(f"scored again: {tmp_path / 'again'}\n")
    assert command("rescore", tmp_path / "again").code == 0


def test_a_folder_without_a_run_is_refused(command: Command, tmp_path: Path) -> None:
    assert "is no folder of results" in command("rescore", tmp_path).refusal()
