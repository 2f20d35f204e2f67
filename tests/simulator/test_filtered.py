"""The optimum behind the filters of appendix D.2.1: against brute force, closed form and the unfiltered optimum."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.filtered_optimum import FILTERS, filtered_optimum
from resilisim.simulator import EndRules, EpisodeState, Message, Problem, build_problem, start_state
from resilisim.simulator.law import SUCCEEDED
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.model import split_of
from resilisim.tool_library import ToolLibrary, default_library
from tests.simulator.brute_force import BruteForce
from tests.simulator.libraries import libraries

LIBRARY = default_library()
FILTER_SETS = [filters for size in range(3) for filters in itertools.combinations(FILTERS, size)]
TEST_TASKS = [task for task in benchmark_tasks() if split_of(task.required_tools) == "test"]
TEST_LISTS = list(dict.fromkeys(task.required_tools for task in TEST_TASKS))


class FilteredBruteForce(BruteForce):
    """V* over every message that the filters let pass, by the filters' definition."""

    def __init__(self, problem: Problem, filters: Collection[str]) -> None:
        super().__init__(problem)
        self.filters = filters

    def value(self, state: EpisodeState) -> float:
        # Executions of a tool without success are its failed ones, which the constraint filter counts.
        failed = [
            count if "constraint" in self.filters and status != SUCCEEDED else 0
            for count, status in zip(state.executions, state.status, strict=True)
        ]
        state = dataclasses.replace(state, executions=tuple(failed))
        if state.ended_by is None and state not in self.values:
            self.values[state] = max(
                self.action_value(state, message) for message in self.messages if self.allows(state, message)
            )
        return self.values[state] if state.ended_by is None else super().value(state)

    def allows(self, state: EpisodeState, message: Message) -> bool:
        if message.kind != "execute":
            return True
        tool = self.problem.library.index(message.tool or "")
        if "constraint" in self.filters and (state.status[tool] == SUCCEEDED or state.executions[tool] >= 3):
            return False
        met = all(state.status[needed] == SUCCEEDED for needed in self.problem.dependencies[tool])
        return met or "dependency" not in self.filters


def brute_force(problem: Problem, filters: Collection[str]) -> float:
    return FilteredBruteForce(problem, filters).value(start_state(problem))


@settings(max_examples=60)
@given(data=st.data(), library=libraries(max_tools=3))
def test_brute_force_lies_within_the_bounds(data: st.DataObject, library: ToolLibrary) -> None:
    required = data.draw(st.permutations(library.names).map(list))[: data.draw(st.integers(1, 3))]
    rules = EndRules(
        max_turns=data.draw(st.integers(1, 6)),
        max_consecutive_failures=data.draw(st.sampled_from([0, 0, 2, 3])),
        loop_length=data.draw(st.sampled_from([0, 2, 3])),
    )
    filters = data.draw(st.sampled_from(FILTER_SETS))
    problem = build_problem(library, required, rules=rules)
    found, expected = filtered_optimum(problem, filters), brute_force(problem, filters)
    assert found.value - 1e-12 <= expected <= found.value + found.gap + 1e-12
    if rules.max_consecutive_failures == 0:
        assert found.gap == 0.0


def chance_of_successes(num_needed: int, num_failures: int, turns_left: int) -> float:
    """Return the chance of so many successes in the turns left where every call succeeds with 0.8 x 0.9^failures."""
    if num_needed == 0:
        return 1.0
    if turns_left < num_needed:
        return 0.0
    chance = 0.8 * 0.9**num_failures
    success = chance_of_successes(num_needed - 1, num_failures, turns_left - 1)
    return chance * success + (1.0 - chance) * chance_of_successes(num_needed, num_failures + 1, turns_left - 1)


@pytest.mark.parametrize("turns", [10, 20])
def test_behind_the_dependency_filter_only_the_size_of_the_closure_counts(turns: int) -> None:
    # All dependencies of a callable tool have succeeded, so every call has the same chance, in whatever order.
    sizes = {len(LIBRARY.closure(names)): names for names in TEST_LISTS}
    assert max(sizes) > 10
    for size, names in sizes.items():
        problem = build_problem(LIBRARY, names, rules=EndRules(turns, max_consecutive_failures=0))
        expected = pytest.approx(chance_of_successes(size, 0, turns), abs=1e-12)
        assert filtered_optimum(problem, ("dependency",)).value == expected
