"""The optimum of goals, against an expectimax over everything that shares no code with it."""

from __future__ import annotations

import random

import pytest

from resilisim.simulator import Broken, EndRules, Episode, Goal, Law, LostAnswer, build_problem, execution
from resilisim.simulator.draws import Forced
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.tool_library import Tool, ToolLibrary
from tests.simulator.brute_force import small_library
from tests.simulator.goal_by_hand import GoalByHand


def computed(goal: GoalByHand) -> float:
    names = [f"f{number}" for number in range(len(goal.bases))]
    tools = [
        Tool(name, f"Does {name}.", success_probability=base, dependencies=tuple(names[other] for other in needs))
        for name, base, needs in zip(names, goal.bases, goal.needs, strict=True)
    ]
    not_executed, failed, history = goal.factors
    constants = {"not_executed": not_executed, "failed": failed, "history": history}
    law = Law(**constants, lost_answer=LostAnswer(share=1.0) if goal.after else None)
    rules = EndRules(goal.calls, max_consecutive_failures=0, loop_length=0)
    required = tuple(names[function] for function in goal.required)
    once = tuple(names[function] for function in goal.once)
    aim = Goal(required, goal.ordered, once)
    return start_optimum(build_problem(ToolLibrary(tools), aim, law, rules))


def drawn(number: int) -> GoalByHand:
    draws = random.Random(number)
    size = draws.randint(1, 4)
    order = draws.sample(range(size), size)  # dependencies go along one order, requirements along another
    needs: list[tuple[int, ...]] = [()] * size
    for place, function in enumerate(order):
        needs[function] = tuple(other for other in order[:place] if draws.random() < 0.5)
    return GoalByHand(
        bases=tuple(draws.choice((0.05, 0.2, 0.5, 0.9, 0.99, 1.0, round(draws.uniform(0.01, 1.0), 3))) for _ in order),
        needs=tuple(needs),
        factors=(draws.choice((0.0, 0.1, 0.5, 1.0)), draws.choice((0.0, 0.3, 0.7, 1.0)), draws.choice((0.2, 0.9, 1.0))),
        required=tuple(draws.sample(range(size), draws.randint(1, size))),
        calls=draws.randint(1, 6),
        ordered=draws.random() < 0.75,
        once=tuple(function for function in range(size) if draws.random() < 0.3),
        after=draws.random() < 0.4,
    )


def test_an_order_against_the_dependencies_makes_failures_worth_having() -> None:
    """To be called before its time and fail makes a function one that was executed, on which another depends."""
    goal = GoalByHand((0.2, 0.9), ((), (0,)), (0.1, 0.7, 0.9), required=(1, 0), calls=10)
    assert computed(goal) == pytest.approx(goal.value(), abs=1e-12)
    assert computed(goal) == pytest.approx(0.476260, abs=5e-7)


@pytest.mark.parametrize(
    "goal",
    [
        # A helper of a later function is called early, while few calls have failed, once what it depends on has failed.
        GoalByHand((0.3, 0.05, 0.9, 0.9), ((), (), (1,), (2,)), (0.01, 1.0, 0.5), required=(0, 1, 3), calls=6),
        # Only failures of something that nobody needs make it likely enough that the function fails.
        GoalByHand((1.0, 0.9, 0.1), ((), (0,), ()), (0.0, 1.0, 0.5), required=(1, 0), calls=6),
        # And of something that has succeeded.
        GoalByHand((1.0, 0.9, 0.9), ((), (0, 2), ()), (0.0, 1.0, 0.5), required=(1, 0), calls=6),
        GoalByHand((0.2, 0.9), ((), (0,)), (0.1, 0.7, 0.9), required=(1, 0), calls=6, once=(0, 1), after=True),
        GoalByHand((0.2, 0.9), ((), (0,)), (0.7, 0.1, 0.9), required=(1, 0), calls=6),
    ],
)
def test_no_call_is_left_out_that_can_help(goal: GoalByHand) -> None:
    assert computed(goal) == pytest.approx(goal.value(), abs=1e-12)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_goals_are_worth_what_trying_everything_says(first: int) -> None:
    for number in range(first, first + 100):
        goal = drawn(number)
        assert computed(goal) == pytest.approx(goal.value(), abs=1e-12), (number, goal)


@pytest.mark.fuzz
def test_many_random_goals_are_worth_what_trying_everything_says() -> None:
    for number in range(400, 12_000):
        goal = drawn(number)
        assert computed(goal) == pytest.approx(goal.value(), abs=1e-12), (number, goal)


def test_a_call_that_tells_of_runs_knows_one_that_was_answered_where_tools_can_be_broken():
    law = Law(broken=Broken(0.4, ("b",)), lost_answer=LostAnswer(0.5, checks={"b": "a"}))
    problem = build_problem(small_library({"a": (), "b": ()}), ["b"], law)
    episode = Episode(problem, "runs", 0, draws=Forced({("b", 1): "ok", ("a", 1): "ok"}))
    episode.apply(execution("b"))
    assert episode.apply(execution("a")).output["metadata"]["runs"] == {"b": 1}
