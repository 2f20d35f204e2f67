"""The compiled solver against the definition, on small problems, in every reachable state, for every message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.seeding import Draws
from resilisim.simulator import EndRules, Law, Problem, build_problem, execution, start_state
from resilisim.simulator.exact import arena, solve
from resilisim.simulator.exact.arena import MAX_EXACT_ENTRIES
from resilisim.simulator.exact.optimum import SearchedOptimum, tabulate
from resilisim.simulator.exact.search import Search
from resilisim.simulator.problem import next_state
from resilisim.tool_library import ToolLibrary
from tests.simulator.brute_force import BruteForce, libraries, small_library


def searched(problem: Problem) -> SearchedOptimum:
    """Return the optimum by search, whatever the size of the problem."""
    search = Search(problem)
    return SearchedOptimum(problem, 0.0, search.breakers, search)


def assert_equal_everywhere(library: ToolLibrary, required: list[str], rules: EndRules, law: Law | None = None) -> int:
    """Compare V of every reachable state, and Q of every message there; return the number of states."""
    problem = build_problem(library, required, law, rules)
    brute = BruteForce(problem)
    states = brute.solve()
    optima = (tabulate(problem, MAX_EXACT_ENTRIES), searched(problem))
    for state, value in states.items():
        action_values = [(message, brute.action_value(state, message)) for message in brute.messages]
        for optimum in optima:
            assert abs(optimum.value(state) - value) <= 1e-12
            assert optimum._bound(state) >= value - 1e-12
            for message, expected in action_values:
                assert abs(optimum.action_value(state, message) - expected) <= 1e-12
            assert abs(optimum.action_value(state, optimum.best_action(state)) - value) <= 1e-12
    return len(states)


@settings(max_examples=25)
@given(data=st.data(), library=libraries(max_tools=3))
def test_solver_equals_brute_force(data: st.DataObject, library: ToolLibrary) -> None:
    required = data.draw(st.permutations(library.names).map(list))
    required = required[: data.draw(st.integers(1, len(required)))]
    rules = EndRules(
        max_turns=data.draw(st.integers(1, 5)),
        max_consecutive_failures=data.draw(st.sampled_from([0, 1, 2, 3])),
        loop_length=data.draw(st.sampled_from([0, 2, 3])),
    )
    # The last law is an odd one: what was tried in vain is worse than what was never tried.
    laws = (
        None,
        None,
        Law(base=0.9, not_executed=0.4, failed=0.6, history=0.8),
        Law(base=0.9, not_executed=0.7, failed=0.4, history=0.9),
    )
    assert_equal_everywhere(library, required, rules, data.draw(st.sampled_from(laws)))


CASES = {
    # Required against the dependency: the row of failures is best broken by a tool from outside.
    "outside pair": (
        {"a": ["b"], "b": [], "x": [], "y": []},
        {},
        ["a", "b"],
        EndRules(max_turns=6, max_consecutive_failures=2, loop_length=3),
    ),
    "one outside tool": (
        {"a": ["b"], "b": [], "x": []},
        {},
        ["a", "b"],
        EndRules(max_turns=6, max_consecutive_failures=2, loop_length=2),
    ),
    "better outside tool with a dependency": (
        {"a": ["b"], "b": [], "x": [], "y": ["x"]},
        {"x": 0.5, "y": 1.0},
        ["a", "b"],
        EndRules(max_turns=5, max_consecutive_failures=2, loop_length=3),
    ),
    "only successful tools break the row": (
        {"a": [], "b": ["c"], "c": []},
        {"a": 1.0},
        ["a", "b", "c"],
        EndRules(max_turns=7, max_consecutive_failures=3, loop_length=2),
    ),
    # With the default rules: a search is the best message where one more call of the helper would be the loop's fourth.
    "a search leaves the loop": ({"goal": [], "help": []}, {"goal": 0.3, "help": 0.9}, ["goal"], EndRules(max_turns=8)),
    "shared helper": (
        {"h": [], "a": ["h"], "b": ["h", "a"], "z": []},
        {},
        ["a", "b"],
        EndRules(max_turns=5, max_consecutive_failures=3, loop_length=3),
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_solver_equals_brute_force_where_rows_of_failures_matter(case: str) -> None:
    dependencies, probabilities, required, rules = CASES[case]
    library = small_library(dependencies, probabilities)
    assert assert_equal_everywhere(library, required, rules) > 100


@settings(max_examples=12)
@given(data=st.data(), library=libraries(max_tools=4))
def test_bounds_hold_where_the_table_would_be_too_large(data: st.DataObject, library: ToolLibrary) -> None:
    required = data.draw(st.permutations(library.names).map(list))[: data.draw(st.integers(1, 2))]
    rules = EndRules(max_turns=5, max_consecutive_failures=data.draw(st.sampled_from([2, 3])), loop_length=2)
    problem = build_problem(library, required, rules=rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "MAX_JOINED_ENTRIES", 0)
        bounded = tabulate(problem)
    brute = BruteForce(problem)
    for state, value in brute.solve().items():
        assert bounded.value(state) <= value + 1e-12
        assert value <= bounded.value(state) + bounded.gap + 1e-12


def test_unequal_reliabilities_of_many_tools_are_solved_exactly() -> None:
    draws = Draws("many unequal tools")
    names = [f"tool_{number}" for number in range(120)]
    dependencies = {
        name: [names[draws.below(place)] for _ in range(2) if place > 2 and draws.uniform() < 0.5]
        for place, name in enumerate(names)
    }
    library = small_library(
        {name: list(dict.fromkeys(needed)) for name, needed in dependencies.items()},
        {name: 0.6 + 0.35 * draws.uniform() for name in names},
    )
    problem = build_problem(library, names[20:60:13])
    optimum, bounded = solve(problem), tabulate(problem)
    start = start_state(problem)
    assert isinstance(optimum, SearchedOptimum)
    assert optimum.gap == 0.0 < bounded.gap < 0.05
    assert bounded.value(start) <= optimum.value(start) <= bounded.value(start) + bounded.gap
    assert optimum.action_value(start, optimum.best_action(start)) == pytest.approx(optimum.value(start), abs=1e-12)


def test_preparing_a_breaker_of_rows_can_be_the_best_call() -> None:
    # Nothing neutral can break a row of failures here: d does it well, but only after c, so c pays before a row begins.
    library = small_library({"a": [], "b": [], "c": ["a"], "d": ["a", "c"]}, {"a": 0.5, "b": 0.5, "d": 1.0})
    problem = build_problem(library, ["a", "b"], rules=EndRules(max_turns=8, max_consecutive_failures=2))
    optimum = solve(problem)
    state = next_state(problem, start_state(problem), execution("a"), success=True)
    best = optimum.best_action(state)
    assert best.tool == "c"
    assert optimum.action_value(state, best) == pytest.approx(optimum.value(state), abs=1e-12)


def test_breaking_the_row_is_worth_something() -> None:
    # The cases above would prove nothing if breaking a row of failures were never the best thing to do.
    dependencies, probabilities, required, rules = CASES["one outside tool"]
    problem = build_problem(small_library(dependencies, probabilities), required, rules=rules)
    brute = BruteForce(problem)
    breakers = [
        state
        for state, value in brute.solve().items()
        if value > 0
        and value - max(brute.action_value(state, message) for message in brute.messages if message.tool != "x") > 1e-6
    ]
    assert breakers
