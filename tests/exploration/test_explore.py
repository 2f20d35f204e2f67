"""`explore`: rates without a sample, brackets that hold the truth, agents that must repeat themselves, and resuming."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from resilisim import explore
from resilisim.at_work import AT_WORK
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.envs.session import Session
from resilisim.errors import InvalidInputError
from resilisim.evaluation import read_records
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.player import EpisodePlayer
from resilisim.evaluation.run.replay import find_episode, replay_episode
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.runner import RunInterrupted
from resilisim.evaluation.run.store import ROWS_NAME
from resilisim.evaluation.table.facts import read_facts
from resilisim.exploration.exploring import ExploredRow
from resilisim.policies.base import memory_of
from resilisim.policies.scripted import PlanFollower
from resilisim.simulator import Corrupt, EndRules, Law, build_problem
from resilisim.simulator.exact import obey_plan
from resilisim.tasks.benchmark import benchmark_tasks, find_task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows.plan_value import follow_steps
from tests.exploration.agents import CALLS, COUNTS, Whim, restless, three_tries, whims
from tests.simulator.brute_force import small_library
from tests.simulator.test_draws import LAWS

SMALL = small_library({"a": [], "b": ["a"], "c": []})
TASK: dict[str, Any] = {
    "instance_id": "small",
    "task_type": "own",
    "description": "Do a, then b.",
    "inputs": {},
    "expected_outputs": {},
    "required_tools": ["a", "b"],
}
SHORT = next(task for task in benchmark_tasks("benchmark-v1") if len(task.required_tools) == 2)


def test_the_plan_followers_rate_is_the_worth_of_its_plan_and_the_optimums_is_its_own(tmp_path: Path) -> None:
    found = explore(["plan-follower", "exact-optimum"], [SHORT], "optimal", out=tmp_path, base=0.7)
    problem = build_problem(default_library(), SHORT.required_tools, Law(base=0.7))
    follower, best = found.rows
    assert follower.is_exact
    plan = ConversationEnv(base=0.7).prompt(SHORT, "optimal").workflow
    assert plan is not None
    assert follower.estimate == pytest.approx(follow_steps(problem, plan.steps).success, abs=1e-12)
    assert best.low == pytest.approx(best.optimum, abs=1e-12)
    assert not best.losses
    assert follower.optimum is not None
    assert follower.optimum - follower.low == pytest.approx(math.fsum(follower.losses.values()), abs=1e-12)
    for name in ("plan-follower", "exact-optimum"):
        records = [record for record in found.records() if record["policy"] == name]
        assert math.fsum(record["weight"] for record in records) == pytest.approx(1.0, abs=1e-12)
        assert math.fsum(record["weight"] * record["luck"] for record in records) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_the_bracket_holds_the_truth_and_closes_on_it(name: str) -> None:
    settings = EnvironmentSettings(law=LAWS[name], max_turns=4)
    problem = build_problem(SMALL, ["a", "b"], LAWS[name], EndRules(max_turns=4))
    for agent in whims(1):
        truth = agent.rate(problem)
        brackets = []
        for plays in (3, 12, 5000):
            (row,) = explore(
                lambda salt=agent.salt: Whim(salt), [TASK], plays=plays, environment=settings, library=SMALL
            ).rows
            assert row.low - 1e-12 <= truth <= row.high + 1e-12
            assert row.interval[0] <= row.estimate <= row.interval[1]
            brackets.append(row.high - row.low)
        assert brackets == sorted(brackets, reverse=True)
        assert row.is_exact
        assert row.estimate == pytest.approx(truth, abs=1e-12)


def test_rows_say_how_exact_v_star_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    exact = explore("plan-follower", [SHORT], "optimal", plays=5, out=tmp_path / "exact")
    assert (exact.rows[0].optimum_gap, exact.rows[0].is_informed) == (0.0, False)
    assert len(exact.table().notes) == 1
    play, bound = EpisodePlayer.play, {"optimum_gap": 1.0, "optimum_knowledge": "informed"}
    monkeypatch.setattr(EpisodePlayer, "play", lambda *given: {**play(*given), **bound})
    bounded = explore("plan-follower", [SHORT], "optimal", plays=5, out=tmp_path / "bounded")
    (row,) = bounded.rows
    assert row.optimum is not None
    assert (row.optimum_gap, row.is_informed) == (1.0 - row.optimum, True)  # it cannot lie above 1
    points = math.ceil(1000.0 * row.optimum_gap) / 10.0
    assert f"lower bounds, at most {points} points too low" in bounded.table().notes[1]
    assert "(informed)" in bounded.table().notes[1]


def test_plays_that_leave_no_record_are_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heard: list[str] = []
    monkeypatch.setattr(AT_WORK, "hear", heard.append)
    found = explore("plan-follower", [SHORT], "optimal", plays=60, out=tmp_path)
    (row,) = found.rows
    records = len(list(found.records()))
    assert row.drawn == 60 - records > 1
    told = [phase for phase in heard if "estimates" in phase]
    assert told == [
        f"play {number} of 60 estimates the rest of {SHORT.instance_id}" for number in range(records + 1, 61)
    ]


def test_an_agent_of_ones_own_is_explored_and_stops_where_it_is_told() -> None:
    exact = explore(agents=three_tries, tasks=[SHORT], prompts="optimal").rows[0]
    plan = ConversationEnv().prompt(SHORT, "optimal").workflow
    assert plan is not None
    problem = build_problem(default_library(), SHORT.required_tools)
    tools = [problem.library.index(name) for name in plan.tools]
    worth = obey_plan(problem, tools, limits=[(CALLS, None)] * len(tools)).success
    assert exact.is_exact
    assert exact.estimate == pytest.approx(worth, abs=1e-12)
    wide = explore(agents=three_tries, tasks=[SHORT], prompts="optimal", width=0.1).rows[0]
    assert 0.0 < wide.high - wide.low <= 0.1
    assert wide.low <= exact.low <= wide.high
    assert wide.plays < exact.plays
    assert wide.high - wide.low < wide.unplayed  # some of which cannot succeed any more
    known = explore(agents=three_tries, tasks=[SHORT], prompts="optimal", width=1e-12).rows[0]
    assert known.plays < exact.plays
    assert known.estimate == pytest.approx(exact.estimate, abs=1e-12)
    assert known.losses == pytest.approx(exact.losses, abs=1e-12)


@pytest.mark.parametrize(("width", "plays"), [(0.1, 2000), (1e-12, 2000), (0.0, 40)])
def test_tables_of_the_records_say_what_the_row_says(width: float, plays: int) -> None:
    found = explore(agents=three_tries, tasks=[SHORT], prompts="optimal", width=width, plays=plays)
    row = found.rows[0]
    summary = read_facts(found.directory).rows[0]
    assert row.unplayed > 0.0
    assert summary.unplayed == pytest.approx(row.high - row.low, abs=1e-9)
    assert row.low - 1e-9 <= summary.success.value <= row.high + 1e-9
    if row.is_exact:
        assert math.isnan(summary.success.low)
        assert {label: loss.value for label, loss in summary.losses.items()} == pytest.approx(row.losses, abs=1e-9)
        assert summary.regret.value == pytest.approx(math.fsum(row.losses.values()), abs=1e-9)
    else:
        assert (summary.success.low, summary.success.high) == pytest.approx((row.low, row.high), abs=1e-9)


def test_branches_share_the_calls_before_they_part_and_costly_ones_are_listed_once(tmp_path: Path) -> None:
    found = explore("repairing-follower", "benchmark-v1:2", "baseline", out=tmp_path)
    calls = read_facts(tmp_path).breakdown.costliest
    by_label: dict[str, float] = {}
    for call in calls:
        by_label[call.label] = by_label.get(call.label, 0.0) + call.regret
    lost = {label: sum(row.losses.get(label, 0.0) for row in found.rows) for label in by_label}
    assert by_label == pytest.approx(lost, abs=1e-9)
    assert 1 < len(calls) < 20, "branches there are dozens"


def test_one_that_does_not_repeat_itself_is_told_which_message_and_both_versions() -> None:
    COUNTS.clear()
    with pytest.raises(InvalidInputError, match=r"cannot be explored: message 1 is .*name.* and was .*name.*"):
        explore(agents=restless, tasks=[SHORT])


def test_what_is_forced_leaves_nothing_to_explore() -> None:
    with pytest.raises(InvalidInputError, match="force is 'network_fetcher#1=ok': expected none"):
        explore("plan-follower", [SHORT], force=("network_fetcher#1=ok",))


def checks_once(session: Session) -> str:
    """Read, have it checked, and read again what was corrupt."""
    session.call("reader")
    if "corrupt" in str(session.call("validator").data["violations"]):
        session.call("reader")
    return "done"


def test_what_validators_find_and_what_nobody_has_checked_are_results() -> None:
    """Of tools that never fail one is corrupt in three of ten calls: 0.7, and 0.3 times 0.7 once that is mended."""
    text = json.dumps({"tools": [
        {"name": "reader", "description": "Reads.", "success_probability": 1.0, "metadata": {"operation": "reader"}},
        {"name": "validator", "description": "Checks.", "success_probability": 1.0,
         "metadata": {"operation": "validator"}, "returns": [{"name": "violations", "type": "array"}]},
    ]})  # fmt: skip
    library = ToolLibrary.from_json(text, source="a reader and a validator")
    law, task = Law(corrupt=Corrupt(0.3, "validators")), TASK | {"required_tools": ["reader"]}

    def seen(policies: Any = (), **more: Any) -> ExploredRow:
        return explore(
            policies, [task], "optimal", environment=EnvironmentSettings(law=law), library=library, **more
        ).rows[0]

    row = seen(agents=checks_once)
    assert row.is_exact
    assert row.plays == 3
    assert row.low == pytest.approx(0.7 + 0.3 * 0.7, abs=1e-12)
    assert row.optimum is not None
    assert math.fsum(row.losses.values()) == pytest.approx(row.optimum - row.low, abs=1e-12)
    assert seen("plan-follower").low == pytest.approx(0.7, abs=1e-12)


class Interrupted(Whim):
    """One that somebody stops after some messages."""

    left = 0

    def act(self, observation: str, info: Any) -> str:
        type(self).left -= 1
        if not type(self).left:
            raise KeyboardInterrupt
        return super().act(observation, info)


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    settings = EnvironmentSettings(max_turns=4)
    tasks = [TASK, TASK | {"instance_id": "other", "required_tools": ["b", "c"]}]

    def play(out: Path | None) -> list[dict[str, Any]]:
        return explore(Interrupted, tasks, environment=settings, library=SMALL, out=out).to_mapping()["rows"]

    Interrupted.left = 0
    whole = play(None)
    Interrupted.left = -Interrupted.left  # it is stopped at its last message
    with pytest.raises(RunInterrupted, match="1 of 2 explorations kept"):
        play(tmp_path)
    kept = (tmp_path / "episodes.jsonl").read_bytes()
    assert kept.count(b"\n") > json.loads((tmp_path / ROWS_NAME).read_text(encoding="utf-8"))["plays"]
    Interrupted.left = 0
    assert play(tmp_path) == whole
    assert (tmp_path / "episodes.jsonl").read_bytes().startswith(kept)
    assert play(tmp_path) == whole  # nothing is left to play


def test_another_agent_under_the_same_name_is_refused(tmp_path: Path) -> None:
    explore(agents=three_tries, tasks=[SHORT], prompts="optimal", out=tmp_path, plays=5)
    (tmp_path / ROWS_NAME).unlink()
    lines = (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[0])
    record["steps"][0]["message"] += " "
    (tmp_path / "episodes.jsonl").write_text("\n".join([json.dumps(record), *lines[1:], ""]), encoding="utf-8")
    with pytest.raises(InvalidInputError, match="was played otherwise before"):
        explore(agents=three_tries, tasks=[SHORT], prompts="optimal", out=tmp_path, plays=5)


def test_its_records_are_judged_and_played_again(tmp_path: Path) -> None:
    law = Law(base=0.8, corrupt=LAWS["corrupt"].corrupt, latency=LAWS["budget"].latency)
    explore("plan-follower", [SHORT], "optimal", law=law, plays=40, out=tmp_path)
    assert rescore_run(tmp_path).agrees
    records = list(read_records(tmp_path))
    record = max(records, key=lambda record: sum(result != "success" for result in record["branch"]))
    again = replay_episode(tmp_path, find_episode(tmp_path, str(record["index"])), find_task, default_library())
    assert {name: again[name] for name in ("weight", "branch", "outcome", "steps")} == {
        name: record[name] for name in ("weight", "branch", "outcome", "steps")
    }


def test_processes_explore_the_same(tmp_path: Path) -> None:
    agents = "tests.exploration.agents:three_tries"
    alone = explore(agents=agents, tasks=3, prompts="optimal", plays=10)
    assert explore(agents=agents, tasks=3, prompts="optimal", plays=10, workers=2).rows == alone.rows


class Hesitant(PlanFollower):
    """Counts its messages for itself, and stops at the fourth; that it inherits what says so means nothing."""

    name = "hesitant"

    def act(self, observation: str, info: Any) -> str | None:
        message = super().act(observation, info)
        return None if self._messages == 4 else message


class Counted(Hesitant):
    """The same, and it says that the messages it has counted are all that it remembers besides its plan."""

    name = "counted"

    def memory_beside_state(self) -> object:
        return super().memory_beside_state()


@pytest.mark.long
@pytest.mark.parametrize("name", LAWS)
def test_states_take_the_place_of_branches_where_no_records_are_wanted(name: str, tmp_path: Path) -> None:
    settings = EnvironmentSettings(law=LAWS[name], max_turns=5)
    arguments: dict[str, Any] = {"environment": settings, "library": SMALL, "prompts": ["optimal", "flawed"]}
    policies = ["exact-optimum", "plan-follower", "repairing-follower", "policy:default", "policy:benchmark"]
    if name in ("outage", "broken"):
        policies += ["retry-backoff[attempts=2]", "circuit-breaker[failures=1]", "alternative-first"]
    by_states = explore(policies, [TASK], **arguments).rows
    by_branches = explore(policies, [TASK], out=tmp_path, **arguments)
    assert sum(record["weight"] for record in by_branches.records()) == pytest.approx(len(by_states), abs=1e-9)
    for row, other in zip(by_states, by_branches.rows, strict=True):
        assert row.is_exact
        assert (row.policy, row.prompt, row.optimum) == (other.policy, other.prompt, other.optimum)
        assert row.low == pytest.approx(other.low, abs=1e-12)
        labels = {*row.losses, *other.losses}
        assert {label: row.losses.get(label, 0.0) for label in labels} == pytest.approx(
            {label: other.losses.get(label, 0.0) for label in labels}, abs=1e-12
        )


def test_of_few_states_the_bracket_holds_the_truth_and_a_width_stops_it() -> None:
    truth = explore("plan-follower", [SHORT], "optimal").rows[0]
    widths = []
    for plays in (1, 5, 20, 60):
        row = explore("plan-follower", [SHORT], "optimal", plays=plays).rows[0]
        assert row.plays <= plays
        assert row.low - 1e-12 <= truth.low <= row.high + 1e-12
        widths.append(row.high - row.low)
    assert widths == sorted(widths, reverse=True)
    rough = explore("plan-follower", [SHORT], "optimal", width=0.1).rows[0]
    assert 0.0 < rough.high - rough.low <= 0.1
    assert rough.plays < truth.plays


def test_a_policy_that_inherits_its_memory_is_explored_branch_by_branch() -> None:
    row = explore(Hesitant, [SHORT], "optimal").rows[0]
    assert row.low < explore("plan-follower", [SHORT], "optimal").rows[0].low
    assert memory_of(Hesitant()) is None
    followed = explore(Counted, [SHORT], "optimal").rows[0]
    assert followed.plays != row.plays
    assert (followed.low, followed.losses) == (pytest.approx(row.low, abs=1e-12), pytest.approx(row.losses, abs=1e-12))


def test_shards_that_were_explored_apart_come_to_the_same_rows_once_they_are_merged(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"tasks": 3, "prompts": "optimal", "plays": 30}
    whole = explore("plan-follower", out=tmp_path / "whole", **arguments)
    parts = [tmp_path / name for name in ("first", "second")]
    for number, part in enumerate(parts, start=1):
        assert explore("plan-follower", out=part, shard=f"{number}/2", **arguments).num_planned == 3 - number
    half = merge_runs(parts[1:], tmp_path / "half")
    assert (half.is_complete, half.num_episodes, half.num_planned, half.first_missing) == (False, 1, 3, 0)
    merged = merge_runs(parts, tmp_path / "merged")
    assert merged.is_complete
    assert merged.num_new == len(list(whole.records()))
    again = merge_runs(parts, tmp_path / "merged")
    assert (again.num_new, again.num_duplicates) == (0, merged.num_new)
    found = explore("plan-follower", out=tmp_path / "merged", **arguments)
    assert found.rows == whole.rows
    assert sum(1 for _ in read_records(tmp_path / "merged")) == merged.num_new, "nothing was played again"
