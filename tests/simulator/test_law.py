"""The law: the table is the formula, sampling reads the table, transitions do what SPEC section 3 says."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.simulator import EndRules, Law, build_problem, execution, start_state
from resilisim.simulator.problem import next_state, success_probability
from resilisim.simulator.rulebook.build import tabulate_law
from resilisim.simulator.tool_status import SUCCEEDED, success_threshold, success_thresholds
from resilisim.tool_library import default_library
from tests.simulator.brute_force import small_library


def test_table_is_the_formula():
    table = tabulate_law(Law(), [0.8, 0.95], max_dependencies=3, max_failures=10)
    thresholds = success_thresholds(table)
    assert table.shape == (2, 4, 4, 11)
    for base_index, base in enumerate((0.8, 0.95)):
        for not_executed in range(4):
            for failed in range(4 - not_executed):
                for failures in range(11):
                    expected = base * 0.5**not_executed * 0.7**failed * 0.9**failures
                    entry = (base_index, not_executed, failed, failures)
                    assert table[entry] == pytest.approx(expected, rel=1e-14)
                    assert thresholds[entry] == math.ceil(table[entry] * 2**53)


@given(st.floats(0.0, 1.0))
@example(0.0)
@example(1.0)
def test_threshold_gives_the_probability_to_53_bits(probability):
    threshold = success_threshold(probability)
    assert threshold - 1 < probability * 2**53 <= threshold
    assert 0 <= threshold <= 2**53


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *((Law, *constant) for constant in [("base", 0.0), ("base", 1.2), ("failed", -0.1), ("history", 1.01)]),
        *((EndRules, *rule) for rule in [("max_turns", 0), ("max_consecutive_failures", -1), ("loop_length", 1)]),
    ],
)
def test_impossible_constants_and_rules_are_refused(kind, name, value):
    with pytest.raises(InvalidInputError, match=f"{name} is {value}"):
        kind(**{name: value})


def test_probability_follows_dependencies_and_history():
    library = default_library()
    problem = build_problem(library, ["computation_analyzer"])
    analyzer = library.index("computation_analyzer")
    parser = execution("data_processing_parser")
    state = start_state(problem)
    assert success_probability(problem, state, analyzer) == pytest.approx(0.8 * 0.5**2)
    state = next_state(problem, state, parser, success=False)
    assert success_probability(problem, state, analyzer) == pytest.approx(0.8 * 0.7 * 0.5 * 0.9)
    state = next_state(problem, state, parser, success=True)
    assert success_probability(problem, state, analyzer) == pytest.approx(0.8 * 0.5 * 0.9)
    # A tool that has succeeded counts as successful for ever; its later failure only adds to the history.
    state = next_state(problem, state, parser, success=False)
    assert state.status[library.index("data_processing_parser")] == SUCCEEDED
    assert success_probability(problem, state, analyzer) == pytest.approx(0.8 * 0.5 * 0.9**2)


def test_own_success_probability_of_a_tool_counts():
    library = small_library({"a": [], "b": ["a"]}, {"b": 0.5})
    problem = build_problem(library, ["a", "b"])
    assert success_probability(problem, start_state(problem), 0) == 0.8
    assert success_probability(problem, start_state(problem), 1) == 0.25
