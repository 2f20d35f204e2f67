"""The tasks of apis-v1 played by scripted policies, and the tables that are made of the runs."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from resilisim.envs import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation import EvaluationResult, evaluate
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.injection.real_apis import LAW_NAME, TABLE_14, TABLE_15, real_api_tables
from resilisim.simulator import build_problem, load_law
from resilisim.simulator.exact import solve
from resilisim.simulator.failures import drawn_error
from resilisim.simulator.problem import start_state
from resilisim.worlds import load_world
from resilisim.worlds.apis import TwinLaw
from resilisim.worlds.apis.api import api_library
from resilisim.worlds.apis.twin import PUBLISHED_FAILURES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> EvaluationResult:
    """The oracle and one that knows nothing of values, under all four types of prompt."""
    prompts = ["baseline", "chain_of_thought", "optimal", "flawed:parameter_error"]
    folder = tmp_path_factory.mktemp("run")
    return evaluate(["reference", "plan-follower"], "apis-v1", prompts, seeds=1, out=folder)


def test_the_oracle_is_always_right_and_a_plan_follower_with_constants_never(run: EvaluationResult) -> None:
    assert run.num_episodes == 2 * 4 * 8
    for row in run.rows:
        assert row.success.value == (1.0 if row.policy == "reference" else 0.0), row
        assert row.optimum.value == 1.0
    records = list(run.records())
    assert {record["score"]["grade"]["score"] for record in records if record["policy"] == "reference"} == {1.0}
    # It does call tools, and what needs no value of others succeeds.
    followed = [record for record in records if record["policy"] == "plan-follower"]
    assert any(step["success"] for record in followed for step in record["steps"])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_tables_hold_the_run_and_the_marked_figures_of_the_paper(run: EvaluationResult) -> None:
    text = real_api_tables(run.directory)
    assert re.findall(r"^## Table (\d+)", text, flags=re.MULTILINE) == ["5", "14", "15", "16"]
    by_table = {int(part.split(".")[0]): part.splitlines() for part in text.split("## Table ")[1:]}
    marked = [line for line in by_table[14] if "†" in line]
    assert len(marked) == len(TABLE_14) == 7
    assert cells(marked[1]) == [
        "Gemini-2.5-Flash †",
        *["33.3", "33.3", "33.3", "39.5", "39.5", "21.1", "55.3", "41.2", "3.5", "34.1", "33.5", "32.4"],
    ]
    assert [cells(line)[1:] for line in by_table[5] if "GPT-4o" in line] == [
        ["42.1", "38.6", "19.3", "34.3", "34.3", "31.4"]
    ]
    assert sum("†" in line for line in by_table[5]) == 7
    averages = [cells(line) for line in by_table[5] if line.startswith("| Average")]
    assert averages[0] == ["Average", *["50.0", "0.0", "50.0"] * 2], "of both agents, all right and never"
    assert averages[1] == ["Average †", "46.7", "39.4", "13.9", "34.8", "34.0", "31.3"]
    assert sum("†" in line and "Qwen" in line for line in by_table[15]) == len(TABLE_15)
    ours = next(line for line in by_table[14] if line.startswith("| reference"))
    assert [cell.split()[0] for cell in cells(ours)[1:]] == ["100.0", "0.0", "0.0"] * 4
    assert len({len(cells(line)) for line in by_table[14] if line.startswith("|")}) == 1
    # Rows of the paper add up to 100 but for rounding.
    assert all(abs(sum(three) - 100.0) < 0.3 for row in TABLE_14.values() for three in row)


def test_a_run_with_faults_shows_what_the_services_did(tmp_path: Path) -> None:
    task = load_world("apis-v1:faults").tasks()[4].instance_id
    found = evaluate("reference", f"apis-v1:faults:{task}", "baseline", seeds=1, out=tmp_path)
    errors = sum(found.facts.breakdown.errors.values())
    executions = sum(found.facts.breakdown.executions.values())
    assert f"{executions:,.0f} calls of APIs, {1 - errors / executions:.1%} of them succeeded" in real_api_tables(
        tmp_path
    )
    record = next(found.records())
    drawn = [
        TwinLaw().drawn(f"{task}/0", step["tool"], step["attempt"] - 1)[0] for step in record["steps"] if step["tool"]
    ]
    assert [step["success"] for step in record["steps"] if step["tool"]] == [code is None for code in drawn]


def test_codes_of_failures_under_the_shipped_law_come_in_the_proportions_of_table_16() -> None:
    law = load_law(LAW_NAME)
    assert law.errors == {code: float(count) for code, count in PUBLISHED_FAILURES.items()}
    tool, counted = api_library()["joke_fetcher"], Counter[str]()
    for attempt in range(4000):
        counted[drawn_error(law, tool.failure_errors, (7, 11), attempt)[0]] += 1
    for code, weight in PUBLISHED_FAILURES.items():
        expected = 4000 * weight / 448
        assert abs(counted[code] - expected) < 4 * expected**0.5 + 1, code
    assert settings_of(law).errors == "documented"
    assert settings_of({"bases": {"joke_fetcher": 0.5}}).errors == "transient"


def settings_of(law: object) -> EnvironmentSettings:
    return EnvironmentSettings(law=law).in_world("apis-v1")


def test_a_law_with_chances_of_its_own_for_tools_is_played_and_scored_again(tmp_path: Path) -> None:
    law = {"base": 0.9, "history": 1.0, "bases": {"word_fetcher": 0.3}, "errors": {"INVALID_RESPONSE": 1}}
    task = load_world("apis-v1").tasks()[4]
    found = evaluate("reference", f"apis-v1:{task.instance_id}", "optimal", seeds=6, out=tmp_path, law=law)
    steps = [step for record in found.records() for step in record["steps"] if step["tool"]]
    assert {step["success_probability"] for step in steps if step["tool"] == "word_fetcher"} == {0.3}
    assert {step["error"] for step in steps if not step["success"]} == {"INVALID_RESPONSE"}
    rescored = rescore_run(tmp_path)
    assert rescored.num_agreeing == rescored.num_episodes == 6


def test_laws_with_parts_are_played_and_those_without_meaning_there_are_refused(tmp_path: Path) -> None:
    task = load_world("apis-v1").tasks()[4]
    found = evaluate("reference", f"apis-v1:{task.instance_id}", "optimal", seeds=6, out=tmp_path, law="outages")
    errors = {step["error"] for record in found.records() for step in record["steps"] if step["tool"]}
    assert "SERVICE_UNAVAILABLE" in errors
    rescored = rescore_run(tmp_path)
    assert rescored.num_agreeing == rescored.num_episodes == 6
    with pytest.raises(InvalidInputError, match="is for no world: error_kinds"):
        evaluate("reference", "apis-v1", law="meaningful-errors")


def test_other_runs_have_no_such_tables(tmp_path: Path) -> None:
    evaluate("plan-follower", 2, "optimal", out=tmp_path)
    with pytest.raises(InvalidInputError, match="expected a run on apis-v1"):
        real_api_tables(tmp_path)


def test_the_shipped_law_is_the_twins_and_its_ceiling_the_chance_of_enough_successes_in_ten() -> None:
    from scipy.stats import binom

    law = load_law(LAW_NAME)
    assert law.base == TwinLaw().success
    assert (law.not_executed, law.failed, law.history) == (1.0, 1.0, 1.0)
    required = load_world("apis-v1").tasks()[0].required_tools
    problem = build_problem(api_library(), required, law)
    value = solve(problem).value(start_state(problem))
    # Five successes in ten calls, less the runs of five failures that end an episode before them.
    assert value < binom.sf(4, 10, law.base)
    assert value == pytest.approx(by_hand(law.base, 5, 10, 5), abs=1e-12)


def by_hand(chance: float, needed: int, turns: int, most_failures: int) -> float:
    """Return the chance of so many successes before turns or a run of failures end the episode, state by state."""
    states = {(0, 0): 1.0}
    done = 0.0
    for _ in range(turns):
        after: dict[tuple[int, int], float] = {}
        for (successes, failures), mass in states.items():
            if successes + 1 == needed:
                done += mass * chance
            else:
                key = (successes + 1, 0)
                after[key] = after.get(key, 0.0) + mass * chance
            if failures + 1 < most_failures:
                key = (successes, failures + 1)
                after[key] = after.get(key, 0.0) + mass * (1.0 - chance)
        states = after
    return done
