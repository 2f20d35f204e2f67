"""Laws with parts: chances, transitions, luck and the solver against the definition, on small worlds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim import default_library
from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.seeding import Draws
from resilisim.simulator import (
    FINISH,
    Broken,
    Corrupt,
    Drift,
    Duration,
    EndRules,
    Episode,
    ErrorKinds,
    Event,
    Latency,
    Law,
    Message,
    Outage,
    Problem,
    RateLimit,
    build_problem,
    execution,
    start_state,
)
from resilisim.simulator.exact import Judge, plan_following, reachable, solve
from resilisim.simulator.exact.plan_following import obey_plan
from resilisim.simulator.exact.reachable import solve_reachable
from resilisim.simulator.messages import STOP, WAIT
from resilisim.simulator.problem import branches, next_state, outcome
from resilisim.simulator.state import EpisodeState
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.generator import random_library


def world(**tools: tuple[list[str], str, str, float]) -> ToolLibrary:
    """Build a library: for each tool its dependencies, category, operation and success probability."""
    errors = [{"code": code, "template": code} for code in ("INVALID_INPUT", "TIMEOUT", "PERMISSION_DENIED")]
    entries = [
        {
            "name": name,
            "description": f"Tool {name}.",
            "dependencies": needed,
            "metadata": {"category": category, "operation": operation},
            "parameters": [{"name": "how", "type": "string", "required": False}],
            "errors": errors,
            "success_probability": probability,
        }
        for name, (needed, category, operation, probability) in tools.items()
    ]
    return ToolLibrary.from_json(json.dumps({"tools": entries}), source="test library")


SMALL = world(
    a=([], "left", "reader", 0.6),
    b=(["a"], "right", "writer", 0.8),
    c=([], "right", "validator", 0.7),
    d=([], "left", "authenticator", 0.5),
)
LATENCY = Latency((Duration(1, 0.5), Duration(4, 0.3), Duration(9, 0.2)), timeout=5, budget=12)
LAWS = {
    "rate limit of tools": Law(rate_limit=RateLimit(1, 3)),
    "rate limit of categories": Law(rate_limit=RateLimit(2, 4, "category")),
    "rate limit of all": Law(rate_limit=RateLimit(2, 3, "all")),
    "outage": Law(outage=Outage(0.2, 0.4)),
    "broken": Law(broken=Broken(0.3)),
    "broken with an equivalent": Law(broken=Broken(0.3), equivalents={"a": ("d",)}),
    "corrupt": Law(corrupt=Corrupt(0.3)),
    "corrupt, only validators tell": Law(corrupt=Corrupt(0.3, "validators")),
    "drift": Law(drift=Drift(-0.07)),
    "error kinds": Law(error_kinds=ErrorKinds(1, 2, 3)),
    "latency": Law(latency=LATENCY),
    "much at once": Law(
        rate_limit=RateLimit(2, 4, "category"),
        outage=Outage(0.1, 0.5, {"one": ("b",)}),
        broken=Broken(0.2, ("a",)),
        error_kinds=ErrorKinds(access=2),
        equivalents={"a": ("d",)},
    ),
}
MESSAGES = [
    *(execution(name, parameters) for name in SMALL.names for parameters in ({}, {"how": "otherwise"})),
    WAIT,
    FINISH,
    STOP,
    Message("search", query="a"),
]


class Definition:
    """V* and Q* by a recursion over every message in every state, with no insight at all."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        changes = problem.dynamics.rules.at_block >= 0  # whether parameters matter
        self.messages = [one for one in MESSAGES if changes or not one.parameters]
        self.value = functools.lru_cache(maxsize=None)(self._value)

    def of(self, state: EpisodeState) -> float:
        """Return V* of a state."""
        executions = (0,) * len(state.executions)  # they choose the luck and do not change what is possible
        return float(self.value(dataclasses.replace(state, executions=executions)))

    def _value(self, state: EpisodeState) -> float:
        if state.ended_by is not None:
            dynamics = self.problem.dynamics
            return dynamics.chance_done(state) if state.ended_by in ("completion", "stopped") else 0.0
        return max(self.action_value(state, message) for message in self.messages)

    def action_value(self, state: EpisodeState, message: Message) -> float:
        """Return Q* of a message."""
        return sum(chance * self.of(after) for chance, after in branches(self.problem, state, message))


def small_problem(name: str, max_turns: int = 4, consecutive: int = 0) -> Problem:
    """Return a small problem under one of the laws."""
    required = ["a", "b"] if name != "corrupt, only validators tell" else ["a"]
    return build_problem(SMALL, required, LAWS[name], EndRules(max_turns, consecutive, 3))


def walk(problem: Problem, seed: int, length: int = 8) -> Iterator[tuple[EpisodeState, Message, Episode]]:
    """Play random messages; yield each state, the message sent in it, and the episode afterwards."""
    draws, episode = Draws("walk", seed), Episode(problem, "walk", seed)
    for _ in range(length):
        if episode.ended_by is not None:
            return
        state, message = episode.state, draws.choice(MESSAGES)
        episode.apply(message)
        yield state, message, episode


@pytest.mark.long
@pytest.mark.parametrize("knowledge", ["observing", "informed"])
@pytest.mark.parametrize("name", LAWS)
def test_the_solver_equals_the_definition(name: str, knowledge: reachable.Knowledge) -> None:
    for consecutive in (0, 2) if knowledge == "observing" else (2,):
        problem = small_problem(name, 3, consecutive)
        optimum, definition = solve_reachable(problem, knowledge), Definition(problem)
        for seed in range(4):
            for state, _, _ in walk(problem, seed, 2):
                known = dataclasses.replace(state, hidden=()) if knowledge == "observing" else state
                expected = definition.of(known)
                assert optimum.value(state) <= expected + 1e-12
                assert expected <= optimum.value(state) + optimum.gap + 1e-12
                best = optimum.action_value(state, optimum.best_action(state))
                assert best >= optimum.value(state) - 1e-12
                assert best <= expected + 1e-12


@pytest.mark.parametrize("name", LAWS)
def test_branches_are_a_distribution_that_holds_what_happens(name: str) -> None:
    problem = small_problem(name, 6, 3)
    for seed in range(12):
        for state, message, episode in walk(problem, seed):
            for known in (state, dataclasses.replace(state, hidden=())):
                found = branches(problem, known, message)
                assert sum(chance for chance, _ in found) == pytest.approx(1.0, abs=1e-12)
                after = episode.state if known.hidden else dataclasses.replace(episode.state, hidden=())
                assert any(one == after and chance > 0.0 for chance, one in found) or "validators" in name


@pytest.mark.parametrize("name", LAWS)
def test_regret_is_never_negative_and_luck_needs_a_draw(name: str) -> None:
    problem = small_problem(name, 6, 3)
    optimum = solve(problem)
    for seed in range(6):
        judge = Judge(problem)
        for state, message, episode in walk(problem, seed):
            found = judge.judge(state, message, episode.state)
            assert found.regret >= -1e-12 - optimum.gap
            known = dataclasses.replace(state, hidden=()) if optimum.knowledge == "observing" else state
            ends_hidden = message.kind in ("finish", "stop") and bool(state.hidden)
            if len(branches(problem, known, message)) == 1 and not ends_hidden:
                assert found.luck == 0.0
        if episode.ended_by is not None:
            assert optimum.value(episode.state) == outcome(problem, episode.state)


STRENGTH_ZERO = {
    "rate limit": Law(rate_limit=RateLimit(60, 60)),
    "outage": Law(outage=Outage(0.0, 0.5)),
    "broken": Law(broken=Broken(0.0)),
    "corrupt": Law(corrupt=Corrupt(0.0)),
    "corrupt, only validators tell": Law(corrupt=Corrupt(0.0, "validators")),
    "drift": Law(drift=Drift(0.0)),
    "error kinds": Law(error_kinds=ErrorKinds(1, 0, 0)),
    "latency": Law(latency=Latency((Duration(3, 1.0),), timeout=9, budget=999)),
    "equivalents of nothing required": Law(equivalents={"utility_cache": ("utility_logger",)}),
}


@pytest.mark.parametrize("name", STRENGTH_ZERO)
def test_a_part_without_strength_is_the_benchmark_law(name: str) -> None:
    required = ["file_operations_reader", "data_processing_transformer", "file_operations_writer"]
    plain, problem = (build_problem(default_library(), required, law) for law in (None, STRENGTH_ZERO[name]))
    start, ours = start_state(plain), solve(problem)
    assert ours.value(start_state(problem)) == pytest.approx(solve(plain).value(start), abs=1e-12)
    assert ours.gap == pytest.approx(0.0, abs=1e-12)
    if name != "corrupt, only validators tell":
        assert plan_following(problem) == pytest.approx(plan_following(plain), abs=1e-12)
        limits = [(2, None), (None, 6), (None, None)]
        mine, theirs = (obey_plan(one, plain.required, limits=limits).success for one in (problem, plain))
        assert mine == pytest.approx(theirs, abs=1e-12)
    if name != "error kinds":  # which code a failure shows is drawn anew there
        for seed in range(3):
            for ours_event, event in zip(*(_events(one, seed) for one in (problem, plain)), strict=True):
                assert (ours_event.success, ours_event.failure) == (event.success, event.failure)


def _events(problem: Problem, seed: int) -> list[Event]:
    episode, draws = Episode(problem, "same luck", seed), Draws("same luck", seed)
    while episode.ended_by is None:
        episode.apply(execution(draws.choice(problem.library.names[:8])))
    return episode.events


@pytest.mark.parametrize("name", LAWS)
def test_the_informed_reach_at_least_as_much(name: str) -> None:
    problem = small_problem(name)
    start = start_state(problem)
    observing, informed = (solve_reachable(problem, one) for one in ("observing", "informed"))
    assert informed.value(start) >= observing.value(start) - observing.gap - 1e-12
    if problem.dynamics.rules.num_hidden == 0:
        assert informed.value(start) == observing.value(start)


@pytest.mark.parametrize("name", LAWS)
def test_playing_the_best_messages_reaches_the_optimum(name: str) -> None:
    problem = small_problem(name, 5)
    optimum, episodes, successes = solve(problem), 150, 0
    for seed in range(episodes):
        episode = Episode(problem, "best", seed)
        while episode.ended_by is None:
            episode.apply(optimum.best_action(episode.state))
        successes += outcome(problem, episode.state)
    value = optimum.value(start_state(problem))
    assert abs(successes / episodes - value) < 4.5 * (value * (1.0 - value) / episodes) ** 0.5


def test_luck_is_the_same_for_every_agent_and_replayed() -> None:
    problem = small_problem("much at once", 8)
    down = []
    for message in (WAIT, Message("search", query="x")):
        episode = Episode(problem, "luck", 5)
        for _ in range(6):
            episode.apply(message if message.kind == "wait" else Message("search", query=str(len(episode.events))))
        down.append(episode.state.hidden)
    assert down[0] == down[1]
    again = [[event.failure for _, _, episode in walk(problem, 3) for event in episode.events] for _ in range(2)]
    assert again[0] == again[1]


def _first(problem: Problem, result: str, message: Message) -> Episode:
    for seed in itertools.count():
        episode = Episode(problem, "first", seed)
        if episode.apply(message).result == result:
            return episode
    raise AssertionError


def test_a_rate_limit_says_when_it_works_again() -> None:
    problem = build_problem(SMALL, ["a"], Law(rate_limit=RateLimit(1, 3)), EndRules(8, 0, 0))
    episode = Episode(problem, "rate", 0)
    episode.apply(execution("a"))
    texts = [episode.apply(execution("a")).failure for _ in range(2)]
    assert [text.message.partition("(")[2] for text in texts if text is not None] == [
        "works again after 1 more message)",
        "works again with the next message)",
    ]
    assert episode.apply(execution("a")).result != "rate_limited"


def test_a_refused_input_works_only_when_a_parameter_changes() -> None:
    episode = _first(small_problem("error kinds", 8), "input_failure", execution("a"))
    assert episode.apply(execution("a")).result == "refused"
    assert episode.apply(execution("a", {"how": "otherwise"})).result != "refused"
    refused = _first(small_problem("error kinds", 8), "input_failure", execution("a")).state
    assert solve_reachable(episode.problem).call(refused, 0).parameters


def test_a_closed_tool_opens_once_the_authenticator_has_succeeded() -> None:
    episode = _first(small_problem("error kinds", 30), "access_failure", execution("a", {"how": "x"}))
    closed = episode.apply(execution("a", {"how": "y"}))
    assert (closed.result, closed.failure and closed.failure.code) == ("refused", "PERMISSION_DENIED")
    assert closed.failure is not None
    assert "until d has succeeded" in closed.failure.message
    number = 0
    while episode.apply(execution("d", {"how": str(number)})).result != "success":
        number += 1
    results = {episode.apply(execution("a", {"how": str(n)})).result for n in range(3)}
    assert not results & {"refused", "access_failure"}


def test_corrupt_payloads_contradict_themselves_and_calling_again_repairs() -> None:
    episode = _first(small_problem("corrupt", 30), "corrupt", execution("a"))
    transfer = episode.events[0].output["metadata"]["transfer"]
    assert episode.events[0].success
    assert transfer["sent"] != transfer["received"]
    while episode.events[-1].result != "success":
        episode.apply(execution("a"))
    transfer = episode.events[-1].output["metadata"]["transfer"]
    assert transfer["sent"] == transfer["received"]


def test_a_validator_tells_where_outputs_only_look_sound() -> None:
    episode = _first(small_problem("corrupt, only validators tell", 30), "corrupt", execution("a"))
    assert "transfer" not in episode.events[0].output["metadata"]
    while episode.events[-1].tool != "c" or not episode.events[-1].success:
        episode.apply(execution("c"))
    assert episode.events[-1].output["violations"] == ["a: its output is corrupt"]
    episode.apply(FINISH)
    assert outcome(episode.problem, episode.state) == 0


def test_slow_calls_time_out_and_time_ends_an_episode() -> None:
    problem = build_problem(SMALL, ["a", "b"], LAWS["latency"], EndRules(30, 0, 0))
    slow = _first(problem, "too_slow", execution("a"))
    assert slow.events[0].failure is not None
    assert (slow.events[0].failure.code, slow.events[0].seconds) == ("TIMEOUT", 5.0)
    while sum(event.seconds or 0.0 for event in slow.events) < 12.0:
        slow.apply(execution("d"))
    assert sum(event.seconds or 0.0 for event in slow.events) == 12.0
    assert not slow.apply(execution("a")).executed
    assert slow.ended_by == "time"


def test_an_equivalent_takes_the_place() -> None:
    problem = small_problem("broken with an equivalent", 30)
    episode = _first(problem, "success", execution("d"))
    while episode.events[-1].tool != "b" or not episode.events[-1].success:
        if episode.ended_by is not None:
            return
        episode.apply(execution("b"))
    episode.apply(FINISH)
    assert outcome(problem, episode.state) == 1


def test_a_law_that_breaks_tools_takes_the_equivalents_of_the_library_and_records_hold_them() -> None:
    declaring = ToolLibrary(dataclasses.replace(tool, equivalents=("d",) if tool.name == "a" else ()) for tool in SMALL)
    breaking, named = Law(broken=Broken(0.9)), Law(broken=Broken(0.9), equivalents={"a": ("d",)})

    def problem(library: ToolLibrary, law: Law) -> Problem:
        return build_problem(library, ["a"], law, EndRules(6))

    assert problem(declaring, breaking).law == named
    start = start_state(problem(SMALL, named))
    values = [solve(problem(*case)).value(start) for case in ((declaring, breaking), (SMALL, named), (SMALL, breaking))]
    assert values[0] == values[1] > values[2]
    own = dataclasses.replace(named, equivalents={"b": ("d",)})
    for law in (own, Law(rate_limit=RateLimit(1, 3)), Law(bases={"a": 0.5}), Law()):
        assert problem(declaring, law).law == law, "the law's own come first, and nothing else asks for any"
    assert build_problem(declaring, ["a"], breaking, arguments_matter=True).law == breaking, "none in worlds"


def test_what_does_not_fit_a_library_or_the_solver_is_refused() -> None:
    for law, text in (
        (Law(broken=Broken(0.1, ("network_fetchr",))), "did you mean 'network_fetcher'"),
        (Law(bases={"fetcher": 0.5}), "unknown tool 'fetcher'"),
        (Law(outage=Outage(0.1, 0.1, {"x": ("network",), "y": ("network_fetcher",)})), "groups 'x' and 'y'"),
        (Law(equivalents={"network_fetcher": ("nothing",)}), "unknown tool 'nothing'"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            build_problem(default_library(), ["network_fetcher"], law)


@functools.cache
def roomy() -> tuple[Problem, reachable.ReachableOptimum]:
    """A problem whose states have room, and its optimum."""
    problem = small_problem("much at once", 8)
    return problem, solve_reachable(problem)


def test_whatever_tool_has_opened_others_counts_also_one_that_nobody_has_to_call() -> None:
    library = random_library(Draws("openers", 15), 60, lambda _: None)
    law = Law(error_kinds=ErrorKinds(1.0, 1.0, 1.0))
    openers = [tool for tool in build_problem(library, library.names[:1], law).dynamics.rules.openers if tool >= 0]
    facts = build_problem(library, library.names[:1], law).dynamics.numbers.facts
    required = next(name for name, fact in zip(library.names, facts, strict=True) if fact.access_share > 0.0)
    problem = build_problem(library, [required], law, EndRules(7))
    free = [tool for tool in openers if tool not in problem.closure and not problem.dependencies[tool]]
    optimum, start = solve_reachable(problem), start_state(problem)
    assert {*free} - {*optimum.states.stage.tools}, "some are not told apart"
    values = []
    for opener in free:
        state = next_state(problem, start, execution(library.names[opener]), True)
        values.append(optimum.value(state))
        assert optimum.action_value(state, execution(required)) <= values[-1] + 1e-12
    assert values == pytest.approx([values[0]] * len(values), abs=1e-12)


def test_what_may_not_be_bounded_is_refused_where_there_is_no_room() -> None:
    problem, exact = roomy()
    with pytest.raises(ExactLimitError, match="more than 30 states"):
        solve_reachable(problem, max_states=30, may_bound=False)
    whole = solve_reachable(problem, may_bound=False)
    assert whole.gap == 0.0
    assert whole.value(start_state(problem)) == exact.value(start_state(problem))


@pytest.mark.parametrize("max_states", [1, 30, 300])
def test_where_there_is_no_room_for_every_state_the_value_is_known_between_two_bounds(max_states: int) -> None:
    (problem, exact), start = roomy(), start_state(roomy()[0])
    found = solve_reachable(problem, max_states=max_states)
    assert exact.num_states > 300
    assert exact.gap == 0.0
    assert found.num_states <= max_states + problem.rules.max_turns
    assert found.value(start) <= exact.value(start) <= found.bound(start)
    assert found.bound(start) == pytest.approx(found.value(start) + found.start_gap, abs=1e-15)
    assert 0.0 < found.start_gap <= found.gap
    for number in range(40):  # off the best path, too, no question is refused
        draws, episode = Draws("between bounds", number), Episode(problem, "between bounds", number)
        while episode.ended_by is None:
            known = dataclasses.replace(episode.state, hidden=())
            assert found.value(known) <= exact.value(known) + 1e-12
            assert exact.value(known) <= max(found.bound(known), found.value(known)) + 1e-12
            episode.apply(draws.choice((execution("a"), execution("b"), execution("c"), WAIT)))


def test_the_informed_choose_on_average_as_long_as_they_have_seen_nothing() -> None:
    problem = small_problem("outage", 8)
    observing, informed = (solve_reachable(problem, knowledge) for knowledge in ("observing", "informed"))
    start = start_state(problem)
    assert informed.value(start) > observing.value(start)
    choices, messages = informed.best_choices(start), [execution("a"), execution("b"), WAIT, FINISH]
    values = [informed.action_value(start, message) for message in messages]
    assert informed.best_action(start).tool == "a"
    assert values[0] == pytest.approx(max(values)) == pytest.approx(choices.value)
    assert choices.value < informed.value(start)  # who sees what is down chooses by that


@settings(max_examples=15)
@given(st.floats(0.0, 1.0), st.integers(1, 9))
def test_more_of_a_part_is_never_better(strength: float, turns: int) -> None:
    values = []
    for more in (strength, min(1.0, strength + 0.2)):
        problem = build_problem(SMALL, ["a", "b"], Law(broken=Broken(more)), EndRules(turns))
        values.append(solve(problem).value(start_state(problem)))
    assert values[0] >= values[1] - 1e-12


def test_a_bracket_is_not_refused_for_tools_that_would_only_narrow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = default_library()
    law = Law(corrupt=Corrupt(0.2, "validators"))
    problem = build_problem(library, library.names[:8], law, EndRules(max_turns=14))
    tools = reachable.told_apart(problem)
    joined = reachable.joined_tools(problem, tools)
    assert len(joined) > len(tools)
    stage = reachable.make_stage(problem, joined, (), informed=False, is_enumerated=True)
    monkeypatch.setattr(reachable, "MAX_OUTCOMES", 16 * reachable.most_results(stage.rules, False) - 1)
    optimum = solve_reachable(problem, max_states=20)
    start = start_state(problem)
    assert 0.0 < optimum.value(start) < optimum.bound(start) < 1.0
