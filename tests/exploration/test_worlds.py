"""`explore` in worlds: rates of known agents, and the same bracket whoever plays and whatever is killed."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from resilisim import explore
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.store import ROWS_NAME
from resilisim.simulator import EndRules, Goal, Law, build_problem, start_state
from resilisim.simulator.exact import solve
from resilisim.worlds import load_world
from resilisim.worlds.base import reference_calls
from tests.exploration.agents import TwoTries
from tests.killing import kill_when, num_lines
from tests.worlds.notebook import NAME as NOTEBOOK
from tests.worlds.test_laws import EVERYTHING

ROOT = Path(__file__).resolve().parents[2]
TURNS = 6


@pytest.mark.parametrize("world", ["records-v1", "pages-v1", "apis-v1"])
def test_who_solves_a_worlds_tasks_reaches_the_ceiling_and_who_tries_twice_what_a_recursion_says(
    world: str, tmp_path: Path
) -> None:
    found = explore(["reference", TwoTries], f"{world}:1", out=tmp_path, law=Law(base=0.8), max_turns=TURNS)
    best, twice = found.rows
    assert best.is_exact
    assert best.low == pytest.approx(best.optimum, abs=1e-12)
    assert not best.losses
    task = load_world(world).tasks()[0]
    program = [call.tool for call in reference_calls(task)]
    goal = Goal(tuple(dict.fromkeys(program)), program=tuple(program))
    problem = build_problem(
        load_world(world).library, goal, Law(base=0.8), EndRules(max_turns=TURNS), arguments_matter=True
    )
    assert best.optimum == pytest.approx(solve(problem).value(start_state(problem)), abs=1e-12)
    assert twice.is_exact
    assert twice.low == pytest.approx(TwoTries.rate(problem, program), abs=1e-12)
    assert math.fsum(twice.losses.values()) == pytest.approx(best.low - twice.low, abs=1e-12)
    assert rescore_run(tmp_path).agrees
    of_best = [record for record in found.records() if record["policy"] == "reference"]
    assert math.fsum(record["weight"] for record in of_best) == pytest.approx(1.0, abs=1e-12)
    assert math.fsum(record["weight"] * record["luck"] for record in of_best) == pytest.approx(0.0, abs=1e-12)


def test_under_outages_limits_and_drift_the_reference_solution_is_the_ceiling_of_a_world() -> None:
    row = explore("reference", f"{NOTEBOOK}:1", law=EVERYTHING, max_turns=5, plays=4000).rows[0]
    assert row.is_exact
    assert 0.0 < row.low == pytest.approx(row.optimum, abs=1e-12)


ARGUMENTS: dict[str, Any] = {"tasks": "records-v1:4", "base": 0.8, "max_turns": TURNS, "plays": 60}
KILLED = f"""
import sys
from resilisim import explore
if __name__ == "__main__":
    ray = sys.argv[3] or None
    explore("tests.exploration.agents:TwoTries", **{ARGUMENTS!r}, out=sys.argv[1], workers=int(sys.argv[2]), ray=ray)
"""


def lines_of(folder: Path) -> dict[str, list[bytes]]:
    """Return the lines of a folder's files, those of branches without what names the folder's making."""
    return {name: (folder / name).read_bytes().splitlines() for name in ("episodes.jsonl", ROWS_NAME)}


@pytest.mark.parametrize(
    ("workers", "ray"),
    [(1, ""), pytest.param(2, "", marks=pytest.mark.long), pytest.param(2, "local", marks=pytest.mark.long)],
)
def test_an_exploration_that_was_killed_comes_to_the_same_bytes(
    workers: int, ray: str, tmp_path: Path, python: list[str]
) -> None:
    whole = explore("tests.exploration.agents:TwoTries", **ARGUMENTS, out=tmp_path / "whole")
    assert all(row.is_exact for row in whole.rows)
    folder = tmp_path / "run"
    command = [*python, "-c", KILLED, str(folder), str(workers), ray]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    episodes = folder / "episodes.jsonl"
    kill_when(process, lambda: num_lines(episodes) >= 5)
    kept = episodes.read_bytes()
    assert kept.count(b"\n") < whole.rows[0].plays * len(whole.rows)
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert episodes.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    again, first = lines_of(folder), lines_of(tmp_path / "whole")
    assert {name: sorted(lines) for name, lines in again.items()} == {
        name: sorted(lines) for name, lines in first.items()
    }
    if workers == 1:
        assert again == first
    assert explore("tests.exploration.agents:TwoTries", **ARGUMENTS, out=folder).rows == whole.rows
