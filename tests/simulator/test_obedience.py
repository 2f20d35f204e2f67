"""Following a plan to the letter: the compiled chances against their definition over the transition itself."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.seeding import Draws
from resilisim.simulator import (
    EndRules,
    Law,
    Message,
    Outage,
    Problem,
    RateLimit,
    build_problem,
    execution,
    start_state,
)
from resilisim.simulator.exact import obey_plan
from resilisim.simulator.exact.plan_following import follow
from resilisim.simulator.problem import branches, is_awaiting_closing
from resilisim.simulator.state import NEXT_PLACE, EpisodeState, has_succeeded
from resilisim.tool_library import default_library
from resilisim.workflows import PlannedStep
from tests.simulator.brute_force import libraries, small_library
from verification.small_problems import random_problem

Limits = tuple[int | None, int | None]


def by_definition(
    problem: Problem, tools: tuple[int, ...], refused: tuple[int, ...], limits: tuple[Limits, ...]
) -> tuple[float, float]:
    """Return success and coverage by a recursion over every outcome of every call that the plan asks for."""

    @functools.cache
    def value(state: EpisodeState, step: int, firsts: tuple[int, ...], tries: int = 0) -> tuple[float, float]:
        covered = longest_run(firsts) if problem.goal.ordered else state.counters[NEXT_PLACE]
        share = covered / len(problem.required)
        if state.ended_by is not None:
            return 0.0, share
        if step == len(tools):
            return problem.dynamics.chance_done(state), share
        max_tries, skip_from = limits[step]
        if PlannedStep("x", max_tries=max_tries, skip_from=skip_from).is_left(tries, state.turns_used + 1):
            return value(state, step + 1, firsts)
        if is_awaiting_closing(problem, state):
            return 0.0, share
        tool, message = tools[step], execution(problem.library.names[tools[step]])
        if refused[step]:
            if max_tries is None and skip_from is None:
                return 0.0, share
            message = Message("rejected", tool=message.tool, problems=(str(refused[step]),))
        success = coverage = 0.0
        for chance, after in branches(problem, state, message):
            known = replace(after, executions=state.executions)
            if refused[step] or not has_succeeded(state, message, after):
                found = value(known, step, firsts, tries + 1)
            else:
                place = problem.place[tool]
                seen = (*firsts, place) if place >= 0 and place not in firsts else firsts
                found = value(known, step + 1, seen)
            success, coverage = success + chance * found[0], coverage + chance * found[1]
        return success, coverage

    return value(start_state(problem), 0, ())


def longest_run(places: tuple[int, ...]) -> int:
    """Return the length of the longest ascending subsequence, by looking at all of them."""
    best = 0
    for mask in range(1 << len(places)):
        chosen = [place for index, place in enumerate(places) if mask >> index & 1]
        if all(left < right for left, right in pairwise(chosen)):
            best = max(best, len(chosen))
    return best


def of_each(plan, values):
    return st.lists(values, min_size=len(plan), max_size=len(plan)).map(tuple)


@given(library=libraries(), data=st.data())
def test_obeying_equals_its_definition(library, data):
    names = st.sampled_from(library.names)
    required = data.draw(st.lists(names, min_size=1, max_size=3, unique=True))
    plan = data.draw(st.lists(names, max_size=6))
    refused = data.draw(of_each(plan, st.sampled_from([0] * 5 + [1, 2])))
    limit = st.one_of(st.none(), st.integers(1, 9))
    limits = data.draw(of_each(plan, st.one_of(st.just((None, None)), st.tuples(limit, limit))))
    rules = EndRules(data.draw(st.integers(1, 7)), data.draw(st.integers(0, 3)), data.draw(st.sampled_from([0, 2, 3])))
    law = Law(base=data.draw(st.sampled_from([0.3, 0.8, 1.0])))
    problem = build_problem(library, required, law, rules, arguments_matter=data.draw(st.booleans()))
    tools = tuple(library.index(name) for name in plan)
    found = obey_plan(problem, tools, refused, limits)
    success, coverage = by_definition(problem, tools, refused, limits)
    assert found.success == pytest.approx(success, abs=1e-12)
    assert found.coverage == pytest.approx(coverage, abs=1e-12)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), with_goal=st.booleans(), data=st.data())
def test_obeying_equals_its_definition_under_any_law_and_goal(seed, with_goal, data):
    problem = random_problem(Draws("plans under parts", seed), with_goal)
    rules = replace(problem.rules, max_turns=min(problem.rules.max_turns, 5))
    problem = build_problem(problem.library, problem.goal, problem.law, rules)
    plan = data.draw(st.lists(st.sampled_from(problem.library.names), min_size=1, max_size=4))
    refused = data.draw(of_each(plan, st.sampled_from([0] * 7 + [1])))
    limit = st.one_of(st.none(), st.integers(1, 6))
    limits = data.draw(of_each(plan, st.one_of(st.just((None, None)), st.tuples(limit, limit))))
    tools = tuple(problem.library.index(name) for name in plan)
    found = obey_plan(problem, tools, refused, limits)
    assert (found.success, found.coverage) == pytest.approx(by_definition(problem, tools, refused, limits), abs=1e-12)


def test_a_plan_in_a_large_library_is_that_of_its_tools():
    names = [f"tool_{number}" for number in range(80)]
    needs = {name: names[max(0, place - 2) : place] if place % 3 else [] for place, name in enumerate(names)}
    law = Law(outage=Outage(0.1, 0.4, "all"), rate_limit=RateLimit(2, 3, "tool"), equivalents={names[64]: (names[3],)})
    small = build_problem(small_library({name: needs[name] for name in names[:60]}), [names[52]], rules=EndRules(6))
    large = build_problem(small_library(needs), [names[52]], rules=EndRules(6))
    tools, limits = [50, 51, 52], [(2, None), (None, 4), (None, None)]
    assert obey_plan(large, tools, limits=limits) == obey_plan(small, tools, limits=limits)
    problem = build_problem(small_library(needs), [names[64], names[65]], law, EndRules(5))
    tools, limits = (63, 3, 65), ((1, None), (None, None), (None, None))
    found = obey_plan(problem, tools, limits=limits)
    assert (found.success, found.coverage) == pytest.approx(by_definition(problem, tools, (0,) * 3, limits), abs=1e-12)


@pytest.mark.parametrize(
    ("plan", "refused", "success", "coverage"),
    [
        ((), (), 0.0, 0.0),  # nothing is done
        (("b", "a"), (False, False), 0.0, 0.5),  # both succeed, one of them in order
        (("a", "b"), (True, False), 0.0, 0.0),  # the plan never gets past its first call
        (("a", "b"), (False, True), 0.0, 0.5),
        (("a", "b"), (False, False), 1.0, 1.0),
        (("a", "a", "a", "a", "a", "b"), (False,) * 6, 0.0, 0.5),  # the fourth equal repetition ends by the loop rule
        (("a", "a", "a", "b"), (False,) * 4, 1.0, 1.0),
        (("a", "b", "a", "b"), (False,) * 4, 1.0, 1.0),
    ],
)
def test_certain_tools_show_what_a_plan_is_worth(plan, refused, success, coverage):
    library = small_library({"a": (), "b": ()})
    problem = build_problem(library, ("a", "b"), Law(base=1.0))
    found = obey_plan(problem, [library.index(name) for name in plan], refused)
    assert (found.success, found.coverage) == (success, coverage)


def test_plain_python_gives_numbers_of_its_own_that_records_can_hold(monkeypatch):
    # The module has the name of a function that its package exports.
    monkeypatch.setitem(obey_plan.__globals__, "follow", getattr(follow, "py_func", follow))
    problem = build_problem(default_library(), ["file_operations_reader"])
    found = obey_plan(problem, problem.required)
    assert (type(found.success), type(found.coverage)) == (float, float)
