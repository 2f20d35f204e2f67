"""`resilisim merge` and `resilisim export`, through the real commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from resilisim.evaluation.run.store import read_records
from tests.cli.conftest import Command

EVALUATE = ("evaluate", "--policy", "plan-follower", "--prompt", "optimal", "--tasks", 5, "--seeds", 2)


def test_shards_are_merged_and_exported(command: Command, tmp_path: Path) -> None:
    whole, merged, tables = tmp_path / "whole", tmp_path / "merged", tmp_path / "tables"
    assert command(*EVALUATE, "--out", whole).code == 0
    parts = [tmp_path / "one", tmp_path / "two"]
    for number, part in enumerate(parts, start=1):
        assert command(*EVALUATE, "--out", part, "--shard", f"{number}/2").code == 0

    first = command("merge", parts[0], "--out", merged)
    assert first.code == 0  # what there is was merged; what is missing is said
    assert "6 of 10 episodes in" in first.out
    assert "not complete: 4 of 10 episodes are missing, the first is episode 2" in first.err
    second = command("merge", *parts, "--out", merged, "--json")
    assert second.err == ""
    assert second.json() == {
        "directory": str(merged),
        "complete": True,
        "num_planned": 10,
        "num_episodes": 10,
        "num_new": 4,
        "num_duplicates": 6,
        "num_failures": 0,
        "num_unfinished": 0,
        "first_missing": None,
    }
    assert sorted(record["index"] for record in read_records(merged)) == list(range(10))

    done = command("export", merged, "--out", tables)
    assert done.code == 0
    assert "episodes.parquet" in done.out
    assert pyarrow.parquet.read_table(tables / "episodes.parquet").num_rows == 10
    again = command("export", merged, "--out", tables, "--json").json()
    assert (again["num_episodes"], again["num_planned"]) == (10, 10)
    assert [table["file"] for table in again["tables"]] == ["episodes.parquet", "steps.parquet", "failures.parquet"]
    unfinished = command("export", parts[1], "--out", tables)
    assert "not finished: 4 of 10 episodes" in unfinished.err


def test_what_cannot_be_merged_or_exported_is_refused_in_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for seeds, run in enumerate(runs, start=1):
        arguments = ("evaluate", "--policy", "random", "--tasks", 1, "--seeds", seeds, "--out", run)
        assert command(*arguments).code == 0
    refusal = command("merge", *runs, "--out", tmp_path / "out").refusal()
    assert "seeds is [0, 1] there and [0] here; only parts of one run are merged" in refusal
    assert "a is named twice" in command("merge", runs[0], runs[0], "--out", tmp_path / "out").refusal()
    assert "is no folder of results" in command("merge", tmp_path, "--out", tmp_path / "out").refusal()
    assert "is no folder of results" in command("export", tmp_path, "--out", tmp_path / "out").refusal()
    assert command("export", runs[0], "--out", tmp_path / "out").code == 0
    assert "is not a table of this run" in command("export", runs[1], "--out", tmp_path / "out").refusal()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "pip install 'resilisim[datasets]'" in command("export", runs[0], "--out", tmp_path / "out").refusal()
