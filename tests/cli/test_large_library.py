"""A library of 1,000 tools of unequal reliability, from the bound of a list to played and attributed episodes."""

from __future__ import annotations

import json

import pytest

from resilisim.evaluation.run.store import read_records
from resilisim.seeding import Draws
from resilisim.simulator import build_problem
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.optimum import SearchedOptimum
from resilisim.tool_library import ToolLibrary

NUM_TOOLS, NUM_REQUIRED = 1000, 12


@pytest.fixture(scope="module")
def library():
    draws = Draws("a thousand tools")
    tools = []
    for number in range(NUM_TOOLS):
        wanted = min(number, draws.choice((0, 0, 1, 1, 2)))
        needed = {f"tool_{draws.between(max(0, number - 60), number - 1)}" for _ in range(wanted)}
        reliability = round(0.6 + 0.39 * draws.uniform(), 3)
        tool = {"name": f"tool_{number}", "description": f"Does number {number}.", "dependencies": sorted(needed)}
        tools.append({**tool, "success_probability": reliability})
    return ToolLibrary.from_json(json.dumps({"tools": tools}), source="a thousand tools")


@pytest.fixture(scope="module")
def required(library):
    draws = Draws("twelve of a thousand")
    while True:
        chosen = sorted(draws.shuffled(library.names)[:NUM_REQUIRED], key=library.index)
        if 25 <= len(library.closure(chosen)) <= 40:
            return chosen


@pytest.mark.long
def test_twelve_tools_of_a_thousand_from_the_bound_to_attributed_episodes(command, tmp_path, library, required):
    source, tasks, out = tmp_path / "library.json", tmp_path / "tasks.jsonl", tmp_path / "run"
    source.write_text(library.to_json(), encoding="utf-8")
    tasks.write_text(json.dumps({"instance_id": "long", "required_tools": required}) + "\n", encoding="utf-8")
    shared = ("--library", source, "--turns", "18")
    bound = command("bound", "--required", ",".join(required), *shared, "--clairvoyant-seeds", "0", "--json").json()
    assert bound["optimum_gap"] == 0.0
    assert bound["plan_following_with_search"] <= bound["plan_following"] < bound["optimum"] < 1.0
    assert bound["first_call"] in library.closure(required)
    policies = ("--policy", "exact-optimum", "--policy", "random")
    played = command(
        "evaluate", *policies, "--tasks", tasks, "--seeds", "2", "--prompt", "optimal", *shared, "--out", out
    )
    assert played.code == 0, played.err
    records = list(read_records(out))
    assert len(records) == 4
    for record in records:
        assert record["optimum"] == pytest.approx(bound["optimum"], abs=1e-12)
        assert record["optimum_gap"] == 0.0
        regrets = [step["value"] - step["action_value"] for step in record["steps"]]
        assert min(regrets) >= -1e-12
        if record["policy"] == "exact-optimum":
            assert max(regrets) <= 1e-12


def test_that_list_is_solved_by_search(library, required):
    assert isinstance(solve(build_problem(library, required)), SearchedOptimum)
