"""What messages are worth: the two exact rewards, their sums, and the tables that compiled code reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.envs.workflow.judging import EXECUTING, Judged, make_tables, pay_judged, tabulated_value
from resilisim.errors import ExactLimitError
from resilisim.simulator import EndRules, build_problem, execution, start_state
from resilisim.simulator.exact import Judge, solve
from resilisim.simulator.exact.judging import regret_of
from resilisim.simulator.exact.optimum import compute_optimum
from resilisim.simulator.problem import is_awaiting_closing, next_state, outcome, success_probability
from resilisim.tool_library import default_library
from tests.simulator.brute_force import all_messages, libraries, small_library


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


@pytest.mark.parametrize(
    ("action_value", "gap", "regret"),
    [
        (0.5 - 1e-13, 0.0, 0.0),  # rounding
        (0.5 + 1e-10, 0.0, 0.0),
        (0.5 - 1e-9, 0.0, 1e-9),
        (0.5 + 1e-8, 0.0, -1e-8),  # none, so it shows
        (0.5 + 1e-10, 0.1, -1e-10),  # V* may be larger
    ],
)
def test_only_rounding_is_no_regret(action_value, gap, regret):
    assert regret_of(0.5, action_value, gap) == pytest.approx(regret, rel=1e-6, abs=0.0)


def test_what_new_tools_are_worth_shows_as_regret_below_zero():
    # The second tool is called well before the first one; before it came by, nothing could break the row of failures.
    rules = EndRules(max_turns=6, max_consecutive_failures=2)
    before, after = (
        build_problem(small_library({name: [] for name in names}, {"a": 0.5, "b": 1.0, "c": 1.0}), ["a"], rules=rules)
        for names in ("a", "abc")
    )
    judge, call = Judge(before), execution("a")
    states = [start_state(before)]
    states.append(next_state(before, states[0], call, success=False))
    first = judge.judge(states[0], call, states[1])
    judge.extend(after)
    larger = replace(states[1], status=(*states[1].status, 0, 0), executions=(*states[1].executions, 0, 0))
    second = judge.judge(larger, execution("b"), next_state(after, larger, execution("b"), success=True))
    assert second.value == first.reached
    assert second.regret == first.reached - second.action_value < -0.1
    assert first.regret + second.regret - first.luck - second.luck == pytest.approx(first.value - second.reached)


def test_a_vector_of_environments_pays_nothing_for_a_wrong_optimum():
    wrong, right = np.zeros(1, dtype=np.int64), np.array([0.5])
    episodes = np.zeros(
        1,
        dtype=np.dtype(
            (
                np.record,
                [
                    ("reward", "f8"),
                    ("total", "f8"),
                    ("episode_return", "f8"),
                    ("terminated", "?"),
                    ("needs_reset", "?"),
                ],
            )
        ),
    )
    judged = Judged(wrong + EXECUTING, right, right + 0.01, right, np.zeros(1))
    pay = getattr(pay_judged, "py_func", pay_judged)  # nothing is worth compiling here
    assert pay(True, judged, episodes, np.zeros(1)) == 0
    assert pay(True, judged._replace(gaps=np.array([0.02])), episodes, np.zeros(1)) == -1


def test_a_regret_beyond_the_bound_is_a_bug():
    problem = build_problem(default_library(), ["file_operations_reader"])
    state, call = start_state(problem), execution("file_operations_reader")
    after, optimum = next_state(problem, state, call, success=True), compute_optimum(problem)
    judge = Judge(problem)
    judge.values = replace(optimum, values=optimum.values - 0.01)  # as if V* were underestimated
    with pytest.raises(AssertionError, match="the optimum is not one"):
        judge.judge(state, call, after)
    judge.values = replace(judge.values, start_gap=0.01)
    assert -0.01 <= judge.judge(state, call, after).regret < 0.0
