"""Where draws come from: branches weigh what the law says, forced calls are marked, work is entered afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resilisim.envs import ConversationEnv, public_info
from resilisim.errors import InvalidInputError
from resilisim.simulator import (
    FINISH,
    Broken,
    Corrupt,
    Drift,
    Duration,
    EndRules,
    Episode,
    ErrorKinds,
    Latency,
    Law,
    Outage,
    RateLimit,
    build_problem,
    execution,
)
from resilisim.simulator.draws import Branch, Forced
from resilisim.simulator.exact.plan_following import obey_plan
from resilisim.simulator.messages import WAIT
from resilisim.simulator.problem import Problem, outcome
from resilisim.simulator.rulebook.dynamics import FAILS, SUCCEEDS, Draw, parameter_digest
from resilisim.simulator.rulebook.rules import INPUT_FAILURE
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.worlds.base import ToolError
from tests.simulator.brute_force import small_library

SMALL = small_library({"a": [], "b": ["a"], "c": []})
LAWS = {
    "plain": Law(base=0.7),
    "rate limit": Law(rate_limit=RateLimit(1, 2)),
    "outage": Law(outage=Outage(0.2, 0.4)),
    "broken": Law(broken=Broken(0.3, ("a", "c")), history=1.0),
    "corrupt": Law(corrupt=Corrupt(0.3)),
    "unseen": Law(corrupt=Corrupt(0.3, "validators")),
    "drift": Law(drift=Drift(-0.1)),
    "kinds": Law(error_kinds=ErrorKinds()),
    "latency": Law(latency=Latency((Duration(1, 0.7), Duration(5, 0.3)), timeout=4)),
    "budget": Law(latency=Latency((Duration(1, 0.7), Duration(5, 0.3)), budget=7)),
}


def problem_under(law: Law, *required: str, turns: int = 4, library: ToolLibrary = SMALL) -> Problem:
    return build_problem(library, required or ("a", "b"), law, EndRules(max_turns=turns))


def test_a_call_that_is_refused_surely_takes_no_time_on_a_branch() -> None:
    law = Law(error_kinds=ErrorKinds(1.0, 1.0), latency=Latency((Duration(1, 0.7), Duration(5, 0.3)), budget=60))
    problem = build_problem(default_library(), ["network_fetcher"], law)
    episode = Episode(problem, "branch", 0, draws=Branch([Draw(INPUT_FAILURE, 1000)]))
    first, again = (episode.apply(execution("network_fetcher")) for _ in range(2))
    assert (first.result, first.seconds) == ("input_failure", 1.0)
    assert (again.result, again.seconds) == ("refused", 0.0)


def follow_plan(problem: Problem, branch: Branch) -> int:
    """Call the required tools in order, each until it succeeds, and finish; return the outcome."""
    episode, waiting = Episode(problem, "branch", 0, draws=branch), list(problem.required_tools)
    while episode.ended_by is None:
        if waiting and episode.state.turns_used < problem.rules.max_turns and not out_of_time(problem, episode):
            if episode.apply(execution(waiting[0])).success:
                waiting.pop(0)
        else:
            episode.apply(FINISH if not waiting else execution(waiting[0]))
    return outcome(problem, episode.state)


def out_of_time(problem: Problem, episode: Episode) -> bool:
    return problem.dynamics.is_out_of_time(episode.state)


@pytest.mark.parametrize("name", LAWS)
def test_all_branches_weigh_one_and_those_that_succeed_what_the_plan_is_worth(name: str) -> None:
    problem = problem_under(LAWS[name])
    waiting: list[list[Draw]] = [[]]
    total = succeeded = 0.0
    while waiting:
        given = waiting.pop()
        branch = Branch(given)
        won = follow_plan(problem, branch)
        total += branch.probability
        succeeded += branch.probability * won
        taken = [point.options[point.taken][1] for point in branch.points]
        assert taken[: len(given)] == given
        for number in range(len(given), len(branch.points)):  # the ways that were not taken behind what was given
            point = branch.points[number]
            others = (draw for option, (_, draw) in enumerate(point.options) if option != point.taken)
            waiting += [[*taken[:number], other] for other in others]
    assert total == pytest.approx(1.0, abs=1e-12)
    assert succeeded == pytest.approx(obey_plan(problem, problem.required).success, abs=1e-12)


def test_a_branch_tells_what_cannot_happen() -> None:
    problem = problem_under(LAWS["plain"])
    episode = Episode(problem, "branch", 0, draws=Branch([Draw(5)]))
    with pytest.raises(
        InvalidInputError, match=r"call 1 of a cannot bring rate_limited .*expected one of success, fail"
    ):
        episode.apply(execution("a"))


@pytest.mark.parametrize("name", LAWS)
def test_forced_calls_bring_what_was_said_and_all_others_their_draw(name: str) -> None:
    problem = problem_under(LAWS[name], turns=8)
    calls = ["a", "a", "b", "c", "b"]
    forced = Forced.of(["a#1=TIMEOUT", "b#2=ok"], SMALL)
    changed = set()
    for seed in range(20):
        episode, free = Episode(problem, "forced", seed, draws=forced), Episode(problem, "forced", seed)
        for call in calls:
            if episode.ended_by is None:
                event = episode.apply(execution(call))
                assert event.forced == ((call, event.attempt) in {("a", 1), ("b", 2)})
                if (call, event.attempt) == ("a", 1):
                    assert event.failure is not None
                    assert event.failure.code == "TIMEOUT"
                if (call, event.attempt) == ("b", 2):
                    assert event.success
        changed.add(free.apply(execution("a")).success)
    assert changed == {False, True} or name == "rate limit"


@pytest.mark.parametrize(
    ("force", "words"),
    [
        (["aa#1=ok"], "unknown tool 'aa' in force: did you mean 'a'?"),
        (["a#1=TIMEOU"], "unknown result 'TIMEOU' in force of a: did you mean 'TIMEOUT'?"),
        (["a#0=ok"], "force is 'a#0=ok': expected TOOL#NUMBER=RESULT"),
        (["a"], "force is 'a': expected TOOL#NUMBER=RESULT"),
        (["a#1=ok", "a#1=TIMEOUT"], "force says ok and TIMEOUT of call 1 of a: expected one"),
        (["a#1=corrupt"], "unknown result 'corrupt' in force of a"),  # the law corrupts nothing
    ],
)
def test_what_cannot_be_forced_is_one_line(force: list[str], words: str) -> None:
    with pytest.raises(InvalidInputError) as told:
        Forced.of(force).check_results(problem_under(LAWS["plain"]))
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_an_environment_forces_and_tells_no_agent() -> None:
    env = ConversationEnv(force=["network_fetcher#1=TIMEOUT", "network_fetcher#2=ok"])
    for seed in range(4):
        env.reset(seed=seed)
        for error in ("TIMEOUT", None):
            info = env.step('<tool_call>network_fetcher {"source": "x"}</tool_call>')[4]
            assert (info["execution"]["error"], info["execution"]["forced"]) == (error, True)
            assert "forced" not in public_info(info)["execution"]
    with pytest.raises(InvalidInputError, match="did you mean 'network_fetcher'"):
        ConversationEnv(force=["network_fetchr#1=ok"])


def seeds_that_pass(problem: Problem, calls: int) -> int:
    for seed in range(1000):
        episode = Episode(problem, "work", seed)
        if all(episode.draw(execution("a", {"x": number})).success for number in range(calls)):
            return seed
    raise AssertionError("no seed passes")


@pytest.mark.parametrize("name", LAWS)
def test_work_can_be_entered_later_and_a_failure_of_its_own_counts_from_its_call_on(name: str) -> None:
    problem = problem_under(replace(LAWS[name], rate_limit=None, base=0.95), turns=8)
    seed = seeds_that_pass(problem, 2)
    episode, at_once = Episode(problem, "work", seed), Episode(problem, "work", seed, workspace=Refusing())
    first = episode.draw(execution("a", {"x": 0}))
    second = episode.draw(execution("a", {"x": 1}))
    assert episode.settle(second, {"found": 2}).output == {"found": 2}
    refused = episode.settle(first, failure=("NOT_FOUND", "there is none"))
    assert (refused.success, refused.is_real_failure) == (False, True)
    for number in range(2):
        event = at_once.apply(execution("a", {"x": number}))
        assert event.success == episode.events[number].success
    assert episode.state == at_once.state
    with pytest.raises(RuntimeError):
        episode.settle(first, {})


class Refusing:
    """A workspace whose first call really fails."""

    def __init__(self) -> None:
        self._calls = 0

    def call(self, tool: str, parameters: Any) -> dict[str, Any]:
        self._calls += 1
        if self._calls == 1:
            raise ToolError("NOT_FOUND", "there is none")
        return {"found": 2}

    def close(self) -> None:
        """Hold nothing."""


@pytest.mark.parametrize("name", LAWS)
def test_tools_that_come_by_change_nothing_of_what_happened(name: str) -> None:
    larger = small_library({"a": [], "b": ["a"], "c": [], "d": ["b"]})
    law, messages = LAWS[name], [execution("a"), WAIT, execution("b"), execution("c")]
    for seed in range(10):
        episode = Episode(problem_under(law, turns=8), "more", seed)
        for message in messages[:2]:
            episode.apply(message)
        episode.extend(problem_under(law, turns=8, library=larger))
        whole = Episode(problem_under(law, turns=8, library=larger), "more", seed)
        for message in messages[:2]:
            whole.apply(message)
        assert episode.state == whole.state
        for message in messages[2:]:
            assert (episode.apply(message), episode.state) == (whole.apply(message), whole.state)


def test_given_results_are_those_of_a_plain_call() -> None:
    problem = problem_under(LAWS["plain"])
    branch = Branch([FAILS, SUCCEEDS])
    assert [Episode(problem, "x", 0, draws=branch).apply(execution("a")).success] == [False]
    assert branch.probability == pytest.approx(0.3)


def test_calls_are_the_same_by_their_whole_arguments_in_whatever_order() -> None:
    one, other = {"a": 1, "b": {"c": [1, 2], "d": 2}}, {"b": {"d": 2, "c": [1, 2]}, "a": 1}
    for same in (one, {**one, "e": float("nan")}, {**one, "e": {1}}):
        again = {name: same[name] for name in reversed(same)} | {"b": other["b"]}
        assert execution("a", same).signature == execution("a", again).signature
        assert parameter_digest(SMALL["a"], same) == parameter_digest(SMALL["a"], again)
    long = [execution("a", {"text": "x" * 5000 + end}) for end in "12"]
    for told in ({"a": 1.0}, {"a": True}, {"a": "1"}, {"a": 1, "b": None}):
        assert execution("a", {"a": 1}).signature != execution("a", told).signature
    assert long[0].signature != long[1].signature
