"""Laws with parts in small libraries: the solver against every call in every state, over explicit beliefs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import pytest

from resilisim.errors import CheckFailed
from resilisim.seeding import Draws
from resilisim.simulator import (
    FINISH,
    Broken,
    Corrupt,
    EndRules,
    Episode,
    ErrorKinds,
    Law,
    Message,
    Outage,
    Problem,
    RateLimit,
    build_problem,
    execution,
    load_law,
    start_state,
)
from resilisim.simulator.exact import Judge, solve, stage
from resilisim.simulator.exact.reachable import solve_reachable
from resilisim.simulator.messages import WAIT
from resilisim.simulator.state import EpisodeState
from resilisim.tool_library import ToolLibrary
from tests.simulator.little_room import give_little_room
from verification import small_problems
from verification.beliefs import Beliefs

WORK = 4_000  # calls that the enumeration may look at, of one problem


@pytest.mark.parametrize("number", range(12))
def test_values_are_those_of_every_call_in_every_state(number: int) -> None:
    draws = Draws("tests/small problems", number)
    found = small_problems.compare(draws, episodes=2, most=WORK, with_goal=number % 2 == 1)
    assert max(found.wrong, found.lost, found.chances, found.informed) < small_problems.TOLERANCE, found
    assert found.gap == 0.0


def library(tools: Mapping[str, tuple[float, Sequence[str], str, str]]) -> ToolLibrary:
    """Return a library: for each tool its chance, its dependencies, category and operation."""
    errors = [{"code": code, "template": code} for code in ("TIMEOUT", "INVALID_INPUT", "PERMISSION_DENIED")]
    entries = [
        {
            "name": name,
            "description": f"The {name}.",
            "success_probability": chance,
            "dependencies": list(needed),
            "metadata": {"category": category, "operation": operation},
            "parameters": [{"name": "how", "type": "string", "required": False}],
            "errors": errors,
        }
        for name, (chance, needed, category, operation) in tools.items()
    ]
    return ToolLibrary.from_json(json.dumps({"tools": entries}), source="test library")


TWO = library({"good": (0.95, (), "left", "reader"), "poor": (0.3, (), "right", "writer")})


@pytest.mark.parametrize(
    ("law", "value"),
    [
        (Law(), 0.816407),
        (Law(error_kinds=ErrorKinds(input=0.0, access=0.0)), 0.816407),
        (Law(rate_limit=RateLimit(60, 60)), 0.816407),
        (Law(broken=Broken(0.0)), 0.816407),
        (load_law("outages"), 0.718247),
    ],
)
def test_a_tool_that_has_succeeded_breaks_a_row_of_failures(law: Law, value: float) -> None:
    optimum = solve(build_problem(TWO, ["good", "poor"], law))
    assert optimum.value(start_state(optimum.problem)) == pytest.approx(value, abs=1e-6)
    assert optimum.gap == 0.0
    state = start_state(optimum.problem)
    counters = list(state.counters)
    counters[0:4] = [5, 4, 4, 1]  # turns, failures, of them in a row, places done
    state = EpisodeState((2, 1), tuple(counters), (1, 4), state.parts)
    if law.outage is None:
        assert optimum.best_action(state) == execution("good"), "one failure more would end the episode"


CASES = {
    # What closes is called again to break a row, and may then be closed itself.
    "closed again": (
        {"good": (0.95, (), "left", "reader"), "poor": (0.3, (), "right", "writer"), "key": (0.5, (), "left", "x")},
        ["good", "poor"],
        Law(error_kinds=ErrorKinds(1.0, 0.0, 3.0, opened_by=("key",))),
        EndRules(7, 2, 3),
    ),
    # The due tool is limited: another one of its group, no longer needed, shows whether it is up.
    "a look at the group": (
        {"first": (0.9, (), "left", "reader"), "second": (0.6, (), "left", "writer")},
        ["first", "second"],
        Law(rate_limit=RateLimit(1, 3, "tool"), outage=Outage(0.3, 0.3, "all")),
        EndRules(8, 2, 4),
    ),
    # A validator can be closed, though nothing that is required can.
    "the opener of a validator": (
        {
            "wanted": (0.8, (), "left", "reader"),
            "checks": (0.7, (), "left", "validator"),
            "opens": (0.9, (), "left", "authenticator"),
        },
        ["wanted"],
        Law(corrupt=Corrupt(0.4, "validators"), error_kinds=ErrorKinds(1.0, 0.0, 4.0)),
        EndRules(7, 0, 3),
    ),
    # A call that the limit refuses counts as an execution that failed, and 0.9 is more than 0.3.
    "refused on purpose": (
        {
            "poor": (0.2, (), "left", "reader"),
            "other": (0.9, (), "left", "reader"),
            "wanted": (0.9, ("poor",), "right", "writer"),
        },
        ["other", "wanted"],
        Law(not_executed=0.3, failed=0.9, history=1.0, rate_limit=RateLimit(1, 2, "category")),
        EndRules(6, 0, 0),
    ),
    # The validator's fourth call in a row would be a loop.
    "a validator again and again": (
        {"wanted": (0.9, (), "left", "reader"), "checks": (0.4, (), "left", "validator")},
        ["wanted"],
        Law(corrupt=Corrupt(0.5, "validators")),
        EndRules(8, 0, 2),
    ),
    # What is required last is called first, in the hope that it fails.
    "hoping for a failure": (
        {"late": (0.1, (), "left", "reader"), "early": (0.9, ("late",), "right", "writer")},
        ["early", "late"],
        Law(not_executed=0.0, failed=1.0, outage=Outage(0.2, 0.5)),
        EndRules(7, 3, 3),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_no_call_is_left_out_because_it_looks_useless(case: str, informed: bool) -> None:
    tools, required, law, rules = CASES[case]
    problem = build_problem(library(tools), required, law, rules)
    truth = Beliefs(problem.library, problem.goal, law, rules, informed).start_value()
    optimum = solve_reachable(problem, "informed" if informed else "observing")
    assert optimum.value(start_state(problem)) == pytest.approx(truth, abs=1e-12)
    assert optimum.gap == 0.0


def messages_of(problem: Problem) -> list[Message]:
    """Return messages of every kind, calls above all."""
    calls = [execution(name, how) for name in problem.library.names for how in ({}, {"how": "otherwise"})]
    return [*calls, *calls, WAIT, Message("search", query="the same"), Message("format_error", text="?")]


def test_regret_is_never_negative_whatever_agents_send() -> None:
    played = 0
    for number in range(80):
        draws = Draws("regret of random agents", number)
        problem = small_problems.random_problem(draws)
        turns = min(problem.rules.max_turns, len(problem.required) + 3)
        rules = EndRules(turns, problem.rules.max_consecutive_failures, problem.rules.loop_length)
        problem = build_problem(problem.library, problem.required_tools, problem.law, rules)
        for seed in range(3):
            episode, judge = Episode(problem, "random agent", seed), Judge(problem)
            while episode.ended_by is None:
                state, message = episode.state, draws.choice(messages_of(problem))
                message = FINISH if draws.uniform() < 0.03 else message
                episode.apply(message)
                judged = judge.judge(state, message, episode.state)
                assert judged.value - judged.action_value >= -1e-12 - judge.values.gap
                played += 1
    assert played > 1_000


@pytest.mark.long
@pytest.mark.parametrize("has_room", [True, False])
def test_what_is_not_enumerated_has_the_true_values_and_without_room_two_bounds(
    has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "MAX_ENUMERATED_TOOLS", 0)
    if not has_room:
        give_little_room(monkeypatch, math.inf)
    problems = [Draws("tests/bounded problems", number) for number in range(5)]
    compared = [small_problems.compare(draws, episodes=2, most=WORK) for draws in problems]
    for found in compared:
        assert max(found.wrong, found.lost, found.chances, found.informed) < small_problems.TOLERANCE, found
    assert has_room or any(0.0 < found.gap < 0.5 for found in compared)


def test_a_check_of_our_own_stops_what_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = build_problem(TWO, ["good", "poor"], load_law("outages"))
    optimum, start = solve(problem), start_state(problem)
    judge, message = Judge(problem), execution("good")
    monkeypatch.setattr(type(optimum), "judge", lambda self, state, message, after: (0.5, 0.5))
    assert judge.judge(start, message, start).action_value == 0.5, "V* is above that"
    judge = Judge(problem)
    for name in ("value", "bound"):  # as if both were underestimated
        monkeypatch.setattr(type(optimum), name, lambda self, state: 0.0)
    with pytest.raises(CheckFailed, match=r"is above V\*"):
        judge.judge(start, message, start)
