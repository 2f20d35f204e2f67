"""`resilisim.inject`: what is drawn, what really runs, what the record keeps apart, and what a goal makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import statistics
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import resilisim
from resilisim import InjectedFailure, inject, open_session, read_results
from resilisim.envs.session import EpisodeEnded
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.evaluation.episode.rejudging import compare_records
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.store import read_records
from resilisim.injection.replay import replay_calls
from resilisim.reporting import write_report
from resilisim.simulator import Broken, EndRules, Goal, Law, LostAnswer, Outage, RateLimit, build_problem, start_state
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.exact.reachable import solve_reachable
from resilisim.tool_library import Tool, ToolLibrary
from tests.guards import WAITING_SECONDS


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


def fails(a: int) -> int:
    raise ValueError(f"no {a}")


async def slowly(a: int) -> int:
    await asyncio.sleep(0)
    return a


def outcomes(tools: Any) -> list[str]:
    return [call.outcome for call in tools.calls]


def test_injected_real_and_misused_calls_are_three_things() -> None:
    tools = inject([add, fails], law={"bases": {"add": 1.0}, "history": 1.0}, seed=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
        tools["add"](1, c=2)
    assert tools["add"](1) == 2
    seen = Counter[str]()
    for _ in range(30):
        try:
            tools["fails"](5)
        except ValueError as error:
            seen["real"] += str(error) == "no 5"
        except InjectedFailure as failure:
            seen["injected"] += failure.tool == "fails"
    assert min(seen.values()) > 3
    found = tools.summary()["functions"]
    assert found["add"] == {"ok": 1, "injected": 0, "real": 0, "misuse": 1}
    assert found["fails"] == {"ok": 0, "injected": seen["injected"], "real": seen["real"], "misuse": 0}
    assert [(call.error, call.ran) for call in tools.calls[:2]] == [("TypeError", False), (None, True)]


def test_a_call_is_drawn_first_and_nothing_runs_that_was_not_asked_for() -> None:
    for fail in ("before", "after"):
        ran: list[int] = []
        tools = inject([lambda_named(ran)], law={"base": 0.5, "history": 1.0}, seed=1, fail=fail)
        for number in range(40):
            _quietly(tools[0], number)
        passed = [call.outcome == "ok" for call in tools.calls]
        assert 8 < sum(passed) < 32
        assert ran == [number for number in range(40) if passed[number] or fail == "after"]
        assert {call.probability for call in tools.calls} == {0.5}


CERTAIN = {"base": 1.0, "history": 1.0}


def test_a_rate_limit_counts_calls_and_goes_on_where_the_law_begins_anew() -> None:
    tools = inject([add], law={**CERTAIN, "rate_limit": {"calls": 2, "window": 4}}, seed=1)
    for number in range(2010):
        _quietly(tools["add"], number)
    assert outcomes(tools) == [("ok", "ok", "injected", "injected")[number % 4] for number in range(1000)] + [
        ("ok", "ok", "injected", "injected")[number % 4] for number in range(1010)
    ]
    assert {(call.error, call.probability) for call in tools.calls} == {(None, 1.0), ("RATE_LIMIT_ERROR", 0.0)}
    assert tools.summary()["luck"] == 0.0


def test_outages_come_and_go_for_all_functions_of_a_group_and_luck_has_mean_zero() -> None:
    law = {**CERTAIN, "outage": {"begins": 0.1, "ends": 0.3, "groups": "all"}}

    def play(seed: int) -> Any:
        tools = inject([add, slowly_sync], law=law, seed=seed)
        for number in range(600):
            _quietly(tools[number % 2], number)
        return tools

    one, other = play(1), play(2)
    assert outcomes(one) == outcomes(play(1)) != outcomes(other)
    downs = [outcome == "injected" for tools in (one, other) for outcome in outcomes(tools)]
    assert sum(downs) / 1200 == pytest.approx(0.25, abs=0.08)
    again = [after for before, after in itertools.pairwise(downs) if before]
    assert sum(again) / len(again) == pytest.approx(0.7, abs=0.12)
    assert {call.error for call in one.calls} == {None, "SERVICE_UNAVAILABLE"}
    for tools in (one, other):
        assert abs(tools.summary()["luck"]) < 4 * tools.summary()["luck_spread"]


def test_errors_of_the_input_stay_until_an_argument_changes_and_misuse_is_a_message() -> None:
    kinds = {"transient": 0.0, "input": 1.0, "access": 0.0}
    tools = inject([add], law={"base": 0.5, "history": 1.0, "error_kinds": kinds}, seed=4)
    refused = next(number for number in range(20) if _quietly(tools["add"], number) is None)
    for _ in range(5):
        with pytest.raises(InjectedFailure, match="INVALID_INPUT"):
            tools["add"](refused)
    assert any(_quietly(tools["add"], 100 + number) is not None for number in range(10))
    limited = inject([add], law={**CERTAIN, "rate_limit": {"calls": 1, "window": 3}}, seed=1)
    limited["add"](1)
    for _ in range(2):
        with pytest.raises(TypeError):
            limited["add"]()
    assert limited["add"](1) == 2


def lambda_named(ran: list[int]) -> Any:
    def note(number: int) -> None:
        ran.append(number)

    return note


def test_the_same_seed_gives_the_same_draws_and_another_one_others() -> None:
    def play(seed: int, order: list[str]) -> dict[tuple[str, int | None], str]:
        tools = inject([add, slowly_sync], law={"base": 0.6, "history": 1.0}, seed=seed)
        for name in order:
            _quietly(tools[name], 1)
        return {(call.tool, call.attempt): call.outcome for call in tools.calls}

    one = play(7, ["add", "slowly_sync"] * 15)
    assert one == play(7, ["add"] * 15 + ["slowly_sync"] * 15)
    assert one != play(8, ["add", "slowly_sync"] * 15)


def slowly_sync(a: int) -> int:
    return a


def test_exceptions_are_those_that_were_asked_for() -> None:
    tools = inject([add], law={"base": 0.01}, raises=TimeoutError)
    with pytest.raises(TimeoutError, match="add: "):
        tools[0](1)
    by_code = inject([add], law={"base": 0.01, "history": 1.0}, raises={"TIMEOUT": TimeoutError})
    kinds = set()
    for _ in range(30):
        try:
            by_code[0](1)
        except (TimeoutError, InjectedFailure) as error:
            kinds.add((type(error), getattr(error, "code", "TIMEOUT")))
    assert kinds == {(TimeoutError, "TIMEOUT"), (InjectedFailure, "OPERATION_FAILED")}


def test_decorators_and_coroutines_stay_what_they_were() -> None:
    law = inject(seed=2)

    @law
    async def fetch(url: str, *, deep: bool = False) -> str:
        """Fetches."""
        return url

    assert asyncio.iscoroutinefunction(fetch)
    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetches.")

    async def play() -> list[object]:
        return await asyncio.gather(*(fetch(str(number)) for number in range(20)), return_exceptions=True)

    results = asyncio.run(play())
    assert [result == str(n) for n, result in enumerate(results)] == [
        not isinstance(result, InjectedFailure) for result in results
    ]
    with pytest.raises(InvalidInputError, match="before the first call"):
        law(add)


@pytest.mark.parametrize("required", [(), ("count",)])
def test_threads_lose_no_call_and_never_wait_for_each_other(required: tuple[str, ...]) -> None:
    together = threading.Barrier(6, timeout=WAITING_SECONDS)

    def count(number: int) -> int:
        together.wait()
        return number

    tools = inject([count], law={"base": 1.0, "history": 1.0}, required=required, turns=60 if required else None)
    with tools, ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda n: _quietly(tools[0], n), range(60)))
    assert results == list(range(60))
    assert len(tools.calls) == 60
    assert sorted(call.attempt for call in tools.calls) == list(range(1, 61))
    assert outcomes(tools) == ["ok"] * 60


def _quietly(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except InjectedFailure:
        return None


def library(dependencies: dict[str, tuple[str, ...]]) -> ToolLibrary:
    return ToolLibrary([Tool(name, f"Tool {name}.", dependencies=needs) for name, needs in dependencies.items()])


@pytest.mark.parametrize("turns", [2, 4, 7])
def test_the_optimum_of_a_goal_in_order_is_that_of_the_exact_solver(turns: int) -> None:
    rules = EndRules(turns, max_consecutive_failures=0, loop_length=0)
    chain = library({"a": (), "b": ("a",), "c": ("b", "h"), "h": ()})
    for law in (Law(), Law(base=0.6, not_executed=0.3, failed=0.5, history=0.8)):
        problem = build_problem(chain, ["a", "c"], law, rules)
        by_layers = solve_reachable(problem).value(start_state(problem))
        assert start_optimum(problem) == pytest.approx(by_layers, abs=1e-12)


def test_closed_forms_of_goals_in_any_order_and_of_answers_that_are_lost() -> None:
    rules, law = (
        EndRules(5, max_consecutive_failures=0, loop_length=0),
        Law(base=0.7, not_executed=1, failed=1, history=1),
    )

    def optimum(share: float = 0.0, **goal: Any) -> float:
        two = library({"a": (), "b": ()})
        losing = replace(law, lost_answer=LostAnswer(share)) if share else law
        return start_optimum(build_problem(two, Goal(("b", "a"), **goal), losing, rules))

    def tail(successes: int, draws: int, chance: float = 0.7) -> float:
        return sum(math.comb(draws, k) * chance**k * (1 - chance) ** (draws - k) for k in range(successes, draws + 1))

    assert optimum(ordered=False) == pytest.approx(tail(2, 5))
    assert optimum(once=("a",)) == pytest.approx(tail(2, 5))
    # The answer of a comes with the first call or never; b has the other four.
    assert optimum(1.0, ordered=False, once=("a",)) == pytest.approx(0.7 * tail(1, 4))
    assert optimum(1.0, ordered=False, once=("a", "b")) == pytest.approx(0.7**2)
    # Where effects count it has run in any case, and what may run again is called again until it has.
    assert optimum(1.0, once=("a", "b"), counts="effects") == 1.0
    assert optimum(counts="effects") == pytest.approx(tail(2, 5))


@pytest.mark.parametrize("share", [0.6, 0.9, 1.0])
def test_what_it_is_worth_to_look_before_calling_again(share: float) -> None:
    tools = ToolLibrary([Tool("charge", "Charges."), Tool("list", "Lists charges.", success_probability=1.0)])

    def optimum(turns: int, checks: Mapping[str, str]) -> float:
        law = Law(base=0.7, not_executed=1, failed=1, history=1, lost_answer=LostAnswer(share, checks=checks))
        goal = Goal(("charge",), once=("charge",), counts="effects")
        return start_optimum(build_problem(tools, goal, law, EndRules(turns, 0, 0)))

    charged = 0.7 + 0.3 * share  # of a call; a failed one is better left alone by whoever cannot look
    looked = charged
    for turns in (3, 5, 7):
        looked = 0.7 + 0.3 * (share + (1 - share) * looked)
        assert optimum(turns, {}) == pytest.approx(charged)
        assert optimum(turns, {"charge": "list"}) == pytest.approx(looked)


def test_chains_in_a_bad_order_are_worth_less() -> None:
    # In a bad order the dependency counts, so the optimum takes the other one.
    chain, falling, short = (
        library({"a": (), "b": ("a",)}),
        Law(base=0.8, not_executed=0.5, failed=0.7, history=1),
        EndRules(2, 0, 0),
    )
    for ordered, value in ((False, 0.64), (True, 0.32)):
        bad = build_problem(chain, Goal(("b", "a"), ordered), falling, short)
        assert start_optimum(bad) == pytest.approx(value)


LIMITED = Law(rate_limit=RateLimit(1, 3, "tool"), outage=Outage(0.1, 0.4, "all"), broken=Broken(0.1, ("b",)))


@pytest.mark.parametrize("fail", ["before", "after"])
def test_a_goal_stands_under_a_law_with_parts(fail: Any, tmp_path: Path) -> None:
    def tool(number: int) -> int:
        if number % 5 == 4:
            raise ValueError("it fails by itself")
        return number

    lucks: list[float] = []
    labels: set[str | None] = set()
    for seed in range(60):
        asked = {"required": ["a", "b"], "ordered": False, "once": ["a"], "fail": fail, "turns": 7}
        with inject({"a": tool, "b": tool}, law=LIMITED, seed=seed, record=tmp_path, **asked) as tools:
            for number in range(7):
                with contextlib.suppress(InjectedFailure, ValueError):
                    tools["ab"[number % 2]](number)
        record = tools.record()
        assert identity_error(record) < 1e-9
        for call, step in zip(tools.calls, record["steps"], strict=False):
            refused, is_lost = step.get("result") in ("rate_limited", "outage"), step.get("result") == "lost_answer"
            assert call.ran == (call.passed or is_lost), "what is refused does not run"
            broken = call.tool == "b" and step.get("result") == "failure"
            assert is_lost == (fail == "after" and not (call.passed or refused or broken)), "nor does what is broken"
        assert record["optimum"] == record["goal"][f"optimum_failing_{fail}"]
        assert record["optimum_knowledge"] == "observing"
        if any(step["label"] == "ran_again" for step in record["steps"]):
            assert not record["score"]["grade"]["criteria"]["ran_once"]
        lucks.append(record["luck"])
        labels.update(step["label"] for step in record["steps"])
    assert {"rate_limited_call", "ran_again", "refused_call"} <= labels
    assert abs(statistics.mean(lucks)) < 4 * statistics.stdev(lucks) / math.sqrt(len(lucks))


def test_calls_may_be_forced_and_are_no_luck(tmp_path: Path) -> None:
    force = ["add#1=TIMEOUT", "add#2=ok", "add#9=ok"]
    with inject([add], law=0.5, required=["add"], turns=3, record=tmp_path, force=force) as tools:
        with pytest.raises(InjectedFailure, match="TIMEOUT"):
            tools["add"](1)
        assert tools["add"](1) == 2
    assert [call.forced for call in tools.calls] == [True, True]
    assert tools.summary()["unused_force"] == ["add#9=ok"]
    assert tools.summary()["luck"] == 0.0
    assert [step.get("forced", False) for step in tools.record()["steps"]] == [True, True, False]
    assert all(json.loads(line)["forced"] for line in (tmp_path / "calls.jsonl").read_text().splitlines())
    with pytest.raises(InvalidInputError, match="did you mean 'add'"):
        inject([add], force=["ad#1=TIMEOUT"])["add"](1)


def test_a_goal_may_have_more_calls_than_python_nests() -> None:
    with inject([add], law={"base": 0.01, "history": 1.0}, required=["add"], turns=1500, seed=1) as tools:
        while _quietly(tools["add"], 1) is None:
            pass
    assert tools.record()["optimum"] == pytest.approx(1 - 0.99**1500)


def retrying(tools: Any, names: list[str]) -> None:
    for name in names:
        while True:
            try:
                tools[name](1)
                break
            except (InjectedFailure, ValueError):
                pass


def test_a_goal_has_a_score_whose_parts_add_up_and_luck_of_mean_zero(tmp_path: Path) -> None:
    broken = iter(range(10**6))

    def flaky(a: int) -> int:
        if next(broken) % 3 == 0:
            raise ValueError("busy")
        return a

    luck, levels = [], Counter[str]()
    for seed in range(60):
        options = {"required": ["add", "flaky"], "once": ["add"], "fail": "after", "turns": 4, "seed": seed}
        with inject([add, flaky], record=tmp_path, **options) as tools:
            retrying(tools, ["add", "flaky"])
        record = tools.record()
        assert identity_error(record) < 1e-12
        assert record["outcome"] == (tools.score["level"] == "full_success")
        luck.append(record["luck"])
        levels[record["score"]["level"]] += 1
    assert set(record["losses"]) <= {"refused_call", "ran_again", "suboptimal_choice"}
    assert 10 < levels["full_success"] < 55
    spread = math.sqrt(sum(one**2 for one in luck) / len(luck))
    assert abs(sum(luck) / len(luck)) < 3.3 * spread / math.sqrt(len(luck))
    results = read_results(tmp_path)
    assert (results.num_episodes, results.num_planned) == (60, 60)
    assert results.rows[0].optimum.value == pytest.approx(record["optimum"])
    assert write_report(results.directory).exists()
    with pytest.raises(InvalidInputError, match="a program made these calls itself"):
        rescore_run(tmp_path)
    for record in read_records(tmp_path):
        assert compare_records(record, replay_calls(tmp_path, record), tolerance=1e-12) == ("agreeing", None)


def test_running_again_what_may_run_once_is_regret_where_it_was_a_choice() -> None:
    with inject([add, slowly_sync], law={"base": 1.0}, required=["add", "slowly_sync"], once=["add"]) as tools:
        tools["add"](1)
        tools["add"](1)
        tools["slowly_sync"](1)
    assert (tools.score["level"], tools.record()["losses"]) == ("partial_success", {"ran_again": 1.0})


def test_the_check_of_the_end_state_decides_and_is_asked_once() -> None:
    asked: list[int] = []
    with inject([add], law={"base": 1.0}, required=["add"], check=lambda: asked.append(1)) as tools:
        tools["add"](1)
    assert (asked, tools.score["level"], tools.record()["losses"]) == ([1], "partial_success", {"wrong_end_state": 1.0})


def test_calls_that_are_used_up_end_the_block_and_nothing_else() -> None:
    with inject([add], law={"base": 1.0}, required=["add"], turns=2) as tools:
        for _ in range(5):
            tools["add"](1)
        raise AssertionError("unreachable")
    assert len(tools.calls) == 2
    with pytest.raises(EpisodeEnded):
        tools["add"](1)
    assert tools.score["level"] == "full_success"


def test_what_a_block_raises_goes_on_and_the_episode_is_written() -> None:
    tools = inject([add], law={"base": 1.0}, required=["add"])
    with pytest.raises(ValueError, match="no 1"), tools:
        fails(tools["add"](0))
    assert (tools.record()["ended_by"], tools.record()["outcome"]) == ("agent_error", 0)


def test_a_killed_program_keeps_its_calls_and_the_next_one_adds_to_them(tmp_path: Path, python: list[str]) -> None:
    program = (
        "import os, resilisim\n"
        "def add(a): return a\n"
        "tools = resilisim.inject([add], law={'base': 1.0}, required=['add'], record='run')\n"
        "tools[0](1)\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([*python, "-c", program], cwd=tmp_path, check=False).returncode == 9
    lines = [json.loads(line) for line in (tmp_path / "run" / "calls.jsonl").read_text().splitlines()]
    assert [(line["episode"], line["tool"], line["success"]) for line in lines] == [(0, "add", True)]
    assert (tmp_path / "run" / "episodes.jsonl").read_bytes() == b""

    def add(a: int) -> int:
        return a

    with inject([add], law={"base": 1.0}, required=["add"], record=tmp_path / "run") as tools:
        tools[0](1)
    assert tools.record()["index"] == 1
    with pytest.raises(StoreError, match="another run"):
        inject([add], law={"base": 0.5}, required=["add"], record=tmp_path / "run")[0](1)


def test_it_works_inside_a_session() -> None:
    tools = inject([add], law={"base": 1.0})
    with open_session("task_c64444cae27fab46", base=1.0) as session:
        assert session.call("file_operations_scanner").ok
        assert tools["add"](2) == 3
    assert session.score is not None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"functions": [3]}, "3 is no function"),
        ({"functions": [add, add]}, "'add' was given twice"),
        ({"functions": [lambda: 1, lambda: 2]}, "'<lambda>' was given twice"),
        ({"fail": "later"}, "unknown fail 'later'"),
        ({"required": ["ad"]}, "unknown function 'ad': did you mean 'add'?"),
        ({"required": "add"}, "expected a list of names"),
        ({"once": ["x"], "required": ["add"]}, "unknown function 'x'"),
        ({"check": lambda: True}, "needs a goal"),
        ({"turns": 5}, "towards a goal"),
        ({"turns": 0, "required": ["add"]}, "turns is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"law": "benchmrk"}, "did you mean 'benchmark'"),
        ({"dependencies": {"add": ["nobody"]}}, "unknown function 'nobody'"),
        ({"functions": []}, "no function under the law"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_one_line(options: dict[str, Any], told: str) -> None:
    chosen = {"functions": [add], **options}
    with pytest.raises(InvalidInputError, match=r".") as refused, inject(**chosen) as tools:
        tools[0](1)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert resilisim.inject is inject
