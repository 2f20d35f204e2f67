"""Doing a plan to the letter: the fast chain against its definition over the transition itself."""

from __future__ import annotations

import functools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.simulator import FINISH, EndRules, Law, Message, Problem, build_problem, execution, start_state
from resilisim.simulator.exact import obey_plan
from resilisim.simulator.exact.plan_following import follow
from resilisim.simulator.messages import STOP
from resilisim.simulator.problem import is_awaiting_closing, next_state, outcome, success_probability
from resilisim.simulator.state import EpisodeState
from resilisim.tool_library import default_library
from resilisim.workflows import PlannedStep
from tests.simulator.brute_force import libraries, small_library

Limits = tuple[int | None, int | None]


def by_definition(
    problem: Problem, tools: tuple[int, ...], refused: tuple[int, ...], limits: tuple[Limits, ...]
) -> tuple[float, float]:
    """Return success and coverage by a recursion over every outcome of every call that the plan asks for."""

    @functools.cache
    def value(state: EpisodeState, step: int, firsts: tuple[int, ...], tries: int = 0) -> tuple[float, float]:
        if state.ended_by is not None:
            return float(outcome(problem, state)), longest_run(firsts) / len(problem.required)
        if step == len(tools):
            return value(next_state(problem, state, FINISH), step, firsts)
        max_tries, skip_from = limits[step]
        if PlannedStep("x", max_tries=max_tries, skip_from=skip_from).is_left(tries, state.turns_used + 1):
            return value(state, step + 1, firsts)
        if is_awaiting_closing(problem, state):
            unfinished = Message("format_error", text="out of turns")
            return value(next_state(problem, state, unfinished), step, firsts)
        if refused[step]:
            if not problem.rules.loop_length and state.turns_used > 30:
                return value(next_state(problem, state, STOP), step, firsts)
            refusal = Message("rejected", tool=str(tools[step]), problems=(str(refused[step]),))
            return value(next_state(problem, state, refusal), step, firsts, tries + 1)
        tool = tools[step]
        message = execution(problem.library.names[tool])
        chance = success_probability(problem, state, tool)
        place = problem.place[tool]
        seen = (*firsts, place) if place >= 0 and place not in firsts else firsts
        won = value(next_state(problem, state, message, success=True), step + 1, seen)
        lost = value(next_state(problem, state, message, success=False), step, firsts, tries + 1)
        return chance * won[0] + (1 - chance) * lost[0], chance * won[1] + (1 - chance) * lost[1]

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
    problem = build_problem(library, required, law, rules)
    tools = tuple(library.index(name) for name in plan)
    found = obey_plan(problem, tools, refused, limits)
    success, coverage = by_definition(problem, tools, refused, limits)
    assert found.success == pytest.approx(success, abs=1e-12)
    assert found.coverage == pytest.approx(coverage, abs=1e-12)


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
