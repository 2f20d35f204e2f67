"""What messages are worth: the two exact rewards, their sums, and the tables that compiled code reads."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.filtered_optimum import FILTERS, filtered_optimum
from resilisim.envs.workflow.judging import make_tables, tabulated_value
from resilisim.errors import ExactLimitError
from resilisim.simulator import (
    EndRules,
    EpisodeState,
    Message,
    Problem,
    build_problem,
    execution,
    next_state,
    start_state,
    success_probability,
)
from resilisim.simulator.exact import Judge, solve
from resilisim.simulator.exact.optimum import compute_optimum
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.state import is_awaiting_closing, outcome
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.model import split_of
from resilisim.tool_library import ToolLibrary, default_library
from tests.simulator.brute_force import BruteForce, all_messages, libraries, small_library


@st.composite
def problems(draw, max_turns=4):
    library = draw(libraries(3))
    required = draw(st.permutations(library.names))[: draw(st.integers(1, len(library)))]
    rules = EndRules(draw(st.integers(1, max_turns)), draw(st.integers(0, 2)), draw(st.sampled_from([0, 2, 3])))
    return build_problem(library, required, rules=rules)


@settings(max_examples=30)
@given(problems(2), st.integers(0, 2**32))
def test_in_the_mean_advantages_add_up_to_success_minus_the_optimum_for_every_agent(problem, habits):
    """The performance difference lemma, by recursion over all that an agent with random habits can meet."""
    messages, generator = all_messages(problem), np.random.default_rng(habits)
    optimum = solve(problem)

    def expected(state):
        """The agent's chance of full success from here, and what it is paid in the mean: advantages, values."""
        if state.ended_by is not None:
            return np.array([outcome(problem, state), 0.0, 0.0])
        weights = generator.dirichlet(np.full(len(messages), 0.3))
        total = np.zeros(3)
        for message, weight in zip(messages, weights, strict=True):
            draws = [(1.0, False)]
            if message.kind == "execute" and not is_awaiting_closing(problem, state):
                chance = success_probability(problem, state, problem.library.index(message.tool))
                draws = [(chance, True), (1.0 - chance, False)]
            for chance, success in draws:
                after = next_state(problem, state, message, success)
                judge = Judge(problem)
                found = judge.judge(state, message, after)
                assert optimum.gap > 0.0 or found.reward("advantage") <= 0.0
                paid = np.array([0.0, found.reward("advantage"), found.reward("value")])
                if chance > 0.0:
                    total += weight * chance * (paid + expected(after))
        return total

    start = start_state(problem)
    success, advantages, values = expected(start)
    assert advantages == pytest.approx(success - optimum.value(start), abs=1e-12)
    assert values == pytest.approx(success - optimum.value(start), abs=1e-12)


@settings(max_examples=60)
@given(st.lists(problems(), min_size=1, max_size=3), st.data())
def test_the_joint_tables_say_what_each_optimum_says(chosen, data):
    first = chosen[0]
    same_world = [first, *(problem for problem in chosen[1:] if problem.library == first.library)]
    tables = make_tables([*same_world, first])
    assert np.array_equal(tables.entries[0], tables.entries[-1]), "equal problems share a table"
    number = data.draw(st.integers(0, len(same_world) - 1))
    problem, state = same_world[number], start_state(same_world[number])
    optimum = solve(problem)
    while state.ended_by is None:
        value = tabulated_value(np.array(state.status), np.array(state.counters), tables.entries[number], tables)
        assert value == optimum.value(state)
        state = next_state(problem, state, data.draw(st.sampled_from(all_messages(problem))), data.draw(st.booleans()))


def test_a_task_that_cannot_be_solved_has_no_judge():
    library = small_library({f"tool_{number}": [f"tool_{number - 1}"] if number else [] for number in range(40)})
    problem = build_problem(library, library.names, rules=EndRules(2000))
    with pytest.raises(ExactLimitError):
        Judge(problem)
    with pytest.raises(ExactLimitError):
        make_tables([build_problem(library, library.names[:1], rules=EndRules(2000)), problem])


def test_giving_up_at_once_costs_the_whole_optimum():
    problem = build_problem(default_library(), ["network_fetcher"])
    state = start_state(problem)
    stop = next(message for message in all_messages(problem) if message.kind == "stop")
    found = Judge(problem).judge(state, stop, next_state(problem, state, stop))
    assert found.reward("value") == found.reward("advantage") == -found.value
    assert (found.reached, found.luck) == (0.0, 0.0)


def test_a_regret_beyond_the_bound_is_a_bug():
    problem = build_problem(default_library(), ["file_operations_reader"])
    state, call = start_state(problem), execution("file_operations_reader")
    after, optimum = next_state(problem, state, call, success=True), compute_optimum(problem)
    judge = Judge(problem)
    judge.optimum = replace(optimum, values=optimum.values - 0.01)  # as if V* were underestimated
    with pytest.raises(AssertionError, match="the optimum is not one"):
        judge.judge(state, call, after)
    judge.optimum = replace(judge.optimum, gap=0.01)
    assert -0.01 <= judge.judge(state, call, after).regret < 0.0


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
