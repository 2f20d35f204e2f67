"""An episode that stands twice in a folder counts once, whoever reads it; two that differ are refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilisim import evaluate, read_results
from resilisim.datasets.run_tables import export_run
from resilisim.errors import StoreError
from resilisim.evaluation import compare_runs
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.table.leaderboard import read_leaderboard
from resilisim.injection.law_fit import fit_law
from resilisim.reporting import write_report
from tests.evaluation.toy_policies import toy_tasks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    evaluate(["plan-follower", "random"], toy_tasks(3), "optimal", seeds=2, out=folder)
    return folder


def copied(run: Path, out: Path, change: Callable[[list[bytes]], list[bytes]]) -> Path:
    out.mkdir()
    (out / "manifest.json").write_bytes((run / "manifest.json").read_bytes())
    lines = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (out / "episodes.jsonl").write_bytes(b"".join(change(lines)))
    return out


def figures_of(folder: Path) -> dict[str, Any]:
    results = read_results(folder).to_mapping()
    board = read_leaderboard([folder]).to_mapping()
    for row in board["rows"]:
        del row["run"]
    return {"results": results["results"], "board": board["rows"]}


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "results": lambda folder, out: figures_of(folder),
    "report": lambda folder, out: write_report(folder, out / "report.html"),
    "compare": lambda folder, out: compare_runs(folder, folder).to_mapping(),
    "merge": lambda folder, out: merge_runs([folder], out / "merged").num_episodes,
    "rescore": lambda folder, out: rescore_run(folder).num_agreeing,
    "export": lambda folder, out: export_run(folder, out / "tables"),
    "law": lambda folder, out: fit_law([folder]),
}


@pytest.mark.parametrize("reader", [name for name in READERS if name != "law"])
def test_a_line_that_stands_twice_counts_once_and_is_told(reader: str, run: Path, tmp_path: Path) -> None:
    doubled = copied(run, tmp_path / "doubled", lambda lines: [*lines, lines[3], lines[0]])
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    with pytest.warns(UserWarning, match="2 episodes stand twice in .*, the first is episode 3: each counts once"):
        found = READERS[reader](doubled, tmp_path / "one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = READERS[reader](run, tmp_path / "other")
    if reader not in ("report", "export"):
        assert found == expected


@pytest.mark.parametrize("reader", READERS)
def test_two_that_differ_are_refused_by_every_reader(reader: str, run: Path, tmp_path: Path) -> None:
    def better(lines: list[bytes]) -> list[bytes]:
        record = json.loads(lines[1])
        record["outcome"] = 1 - record["outcome"]
        return [*lines, json.dumps(record, separators=(",", ":")).encode() + b"\n"]

    with pytest.raises(StoreError, match=r"lines 2 and 13 of .* are both episode \d+, and differ"):
        READERS[reader](copied(run, tmp_path / "differs", better), tmp_path)


def renumbered(lines: list[bytes], index: int = 1) -> list[bytes]:
    record = json.loads(lines[0])
    rest = [line for line in lines if json.loads(line)["index"] != index]
    return [*rest, json.dumps({**record, "index": index}, separators=(",", ":")).encode() + b"\n"]


def test_an_episode_under_another_number_is_refused(run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path / "moved", renumbered)
    for read in (read_results, lambda path: read_leaderboard([path]), write_report):
        with pytest.raises(StoreError, match=r"episode 1 in .* is at the place of another one: its seed is 0"):
            read(folder)


def test_a_line_with_two_indices_is_refused(run: Path, tmp_path: Path) -> None:
    def hidden(lines: list[bytes]) -> list[bytes]:
        return [*lines, lines[0].replace(b'"index":0,', b'"index":999,"index":0,', 1)]

    with pytest.raises(StoreError, match=r"names its index twice|differ"):
        read_results(copied(run, tmp_path / "hidden", hidden))


def test_the_same_in_other_bytes_is_the_same(run: Path, tmp_path: Path) -> None:
    def spaced(lines: list[bytes]) -> list[bytes]:
        return [*lines, json.dumps(json.loads(lines[2])).encode() + b"\n"]

    with pytest.warns(UserWarning, match="1 episode stands twice"):
        assert figures_of(copied(run, tmp_path / "spaced", spaced)) == figures_of(run)
