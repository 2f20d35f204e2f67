"""The compiled solver against the definition, on small problems, in every reachable state, for every message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.simulator import EndRules, build_problem
from resilisim.simulator.exact import solve
from resilisim.tool_library import ToolLibrary
from tests.simulator.brute_force import BruteForce
from tests.simulator.libraries import libraries, small_library


def assert_equal_everywhere(library: ToolLibrary, required: list[str], rules: EndRules) -> int:
    """Compare V of every reachable state, and Q of every message there; return the number of states."""
    problem = build_problem(library, required, rules=rules)
    optimum, brute = solve(problem), BruteForce(problem)
    states = brute.solve()
    for state, value in states.items():
        assert optimum.value(state) == pytest.approx(value, abs=1e-12)
        for message in brute.messages:
            assert optimum.action_value(state, message) == pytest.approx(brute.action_value(state, message), abs=1e-12)
        best = optimum.action_value(state, optimum.best_action(state))
        assert best == pytest.approx(value, abs=1e-12)
    return len(states)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), library=libraries(max_tools=3))
def test_solver_equals_brute_force(data: st.DataObject, library: ToolLibrary) -> None:
    required = data.draw(st.permutations(library.names).map(list))
    required = required[: data.draw(st.integers(1, len(required)))]
    rules = EndRules(
        max_turns=data.draw(st.integers(1, 5)),
        max_consecutive_failures=data.draw(st.sampled_from([0, 1, 2, 3])),
        loop_length=data.draw(st.sampled_from([0, 2, 3])),
    )
    assert_equal_everywhere(library, required, rules)


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
    "shared helper": (
        {"h": [], "a": ["h"], "b": ["h", "a"], "z": []},
        {},
        ["a", "b"],
        EndRules(max_turns=5, max_consecutive_failures=3, loop_length=3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_solver_equals_brute_force_where_rows_of_failures_matter(case: str) -> None:
    dependencies, probabilities, required, rules = CASES[case]
    library = small_library(dependencies, probabilities)
    assert assert_equal_everywhere(library, required, rules) > 100


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
