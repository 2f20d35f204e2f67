"""Success rates of what acts by observations in Workflow-v0: computed, and equal to what is known otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from resilisim.envs import random_libraries
from resilisim.envs.random_libraries import random_settings
from resilisim.envs.workflow import WorkflowOptions
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    LAW_FINISH_CHANCE,
    META_NO_OP,
    PART_CHANCE,
    RETRY_TOOL,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    TOOL_DUE,
    TOOL_FIRST_DESCENDANT_DUE,
    TOOL_STATUS,
    VALIDATE_OUTPUT,
    action_index,
    meta_action_index,
)
from resilisim.errors import InvalidInputError
from resilisim.evaluation.trained import measure_random_library
from resilisim.exploration import explore
from resilisim.policies.ppo.checkpoint import load_checkpoint
from resilisim.policies.ppo.exact_rates import exact_rates
from resilisim.policies.ppo.policy import actor_of, observation_options, patterns_of
from resilisim.policies.ppo.validation import play_closed_loop
from resilisim.simulator import build_problem
from resilisim.simulator.exact import obey_plan
from resilisim.simulator.law import TASK_PARTS
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library

LIBRARY = default_library()
TASK = next(task for task in benchmark_tasks() if len(task.required_tools) == 3)


class InOrder:
    """Runs some tools in order, each until it succeeds; after a TIMEOUT, if it is nervous, the last one instead."""

    def __init__(self, tools: list[int], nervous: bool = False) -> None:
        self._tools, self._nervous = tools, nervous

    def act(self, observation: dict[str, NDArray[Any]], mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return an action for each observation."""
        return np.array([self._action(row, mask[place]) for place, row in enumerate(observation["tools"])])

    def _action(self, tools: NDArray[Any], mask: NDArray[Any]) -> int:
        left = [tool for tool in self._tools if tools[tool, TOOL_STATUS] != STATUS_SUCCESS]
        tool = left[0] if left else self._tools[-1]
        if self._nervous and (tools[:, TOOL_STATUS] == STATUS_TIMEOUT).any():
            tool = self._tools[-1]
        actions = [action_index(kind, tool, len(tools)) for kind in (INVOKE_TOOL, RETRY_TOOL)]
        return next(action for action in actions if mask[action])


def test_explore_follows_a_trained_policy_to_the_same_rate() -> None:
    loaded = load_checkpoint("default")
    options, patterns = observation_options(loaded, LIBRARY), patterns_of(loaded, LIBRARY)
    computed = exact_rates(actor_of(loaded), [TASK], options=options, patterns=patterns)
    (row,) = explore("policy:default", tasks=[TASK], prompts="optimal", width=0.0).rows
    assert (row.low, row.high) == pytest.approx((computed.low[0], computed.high[0]), abs=1e-8)


def test_a_plan_that_is_followed_is_worth_what_is_computed_of_it() -> None:
    problem = build_problem(LIBRARY, TASK.required_tools)
    plan = [*sorted(set(problem.closure) - set(problem.required)), *problem.required]
    found = exact_rates(InOrder(plan), [TASK])
    worth = obey_plan(problem, plan).success
    assert found.high[0] - found.low[0] < 1e-8
    assert found.low[0] == pytest.approx(worth, abs=1e-8)


def test_what_a_failure_shows_counts_with_its_chance_and_all_tasks_are_computed_at_once() -> None:
    tasks = [task for task in benchmark_tasks()[:40] if len(task.required_tools) <= 4][:5]
    options = WorkflowOptions(base=0.6)
    problem = build_problem(LIBRARY, TASK.required_tools)
    actor = InOrder(list(problem.required), nervous=True)
    found = exact_rates(actor, [TASK, *tasks], options=options)
    episodes = 400
    played = play_closed_loop(actor, [TASK, *tasks], episodes, options=options).mean(axis=1)
    error = np.sqrt(found.low * (1.0 - found.low) / episodes)
    assert 0.02 < found.low[0] < 0.98
    assert (np.abs(played - found.low) <= 4.0 * error + 1e-9).all()
    calm = exact_rates(InOrder(list(problem.required)), [TASK], options=options)
    assert calm.low[0] != pytest.approx(found.low[0], abs=1e-3)


def test_states_that_are_left_out_widen_the_bracket_around_the_truth() -> None:
    problem = build_problem(LIBRARY, TASK.required_tools)
    actor = InOrder(list(problem.required))
    whole, rough = exact_rates(actor, [TASK]), exact_rates(actor, [TASK], tolerance=0.2)
    assert rough.low[0] <= whole.low[0] <= rough.high[0]
    assert 0.0 < rough.high[0] - rough.low[0] <= 0.2
    assert rough.num_states < whole.num_states


class Preferring:
    """Takes what is due or leads to it, by its chance; waits where nothing comes of it, and accepts what is likely."""

    reads_state_alone = True

    def act(self, observation: dict[str, NDArray[Any]], mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return an action for each observation."""
        due, chance = observation["tools"][:, :, TOOL_DUE].astype(float), observation["tool_parts"][:, :, PART_CHANCE]
        num_tools = due.shape[1]
        worth = np.where(due == 1, 3.0, np.where(observation["tools"][:, :, TOOL_FIRST_DESCENDANT_DUE] == 1, 2.0, 0.0))
        worth = worth + chance / 256.0 + np.arange(num_tools) * 1e-6
        scores = np.full(mask.shape, -1.0)
        for kind in (INVOKE_TOOL, RETRY_TOOL):
            first = action_index(kind, 0, num_tools)
            scores[:, first : first + num_tools] = worth + (kind == INVOKE_TOOL) * 1e-4
        waiting = (chance * (due == 1)).max(axis=1) == 0
        scores[:, meta_action_index(META_NO_OP, num_tools)] = np.where(waiting, 5.0, -0.5)
        accepts = observation["law"][:, LAW_FINISH_CHANCE] > 150
        scores[:, action_index(VALIDATE_OUTPUT, 0, num_tools) + num_tools] = np.where(accepts, 9.0, -0.7)
        best: NDArray[np.int64] = np.where(mask, scores, -9.0).argmax(axis=1)
        return best


@pytest.mark.parametrize("part", TASK_PARTS)
def test_under_each_part_of_a_law_the_computed_rate_is_that_of_many_episodes(part: str) -> None:
    drawn, episodes = random_settings("rates", 4, 2, num_tools=10, parts=[part]), 1000
    rates = exact_rates(Preferring(), drawn.tasks, options=drawn.options)
    assert (rates.high - rates.low <= 1e-8).all()
    assert (rates.low > 0.01).any()
    played = play_closed_loop(Preferring(), drawn.tasks, episodes, options=drawn.options).mean(axis=1)
    error = np.sqrt(rates.high * (1.0 - rates.low) / episodes)
    assert (np.abs(played - rates.low) <= 4.5 * error + 1e-8).all()


def test_the_training_law_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="expected another one"):
        exact_rates(InOrder([0]), [TASK], options=WorkflowOptions(law="training"))


def test_states_that_are_not_followed_are_not_known() -> None:
    plan = [*build_problem(LIBRARY, TASK.required_tools).required]
    whole, cut = exact_rates(InOrder(plan), [TASK]), exact_rates(InOrder(plan), [TASK], max_states=2)
    assert cut.num_states < whole.num_states
    assert cut.low[0] <= whole.low[0] < whole.high[0] + 1e-12 <= cut.high[0] + 2e-12
    assert cut.high[0] - cut.low[0] > 0.01


def test_what_a_policy_surely_reaches_the_best_agent_reaches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random_settings("test", 1, 3, num_tools=12, parts=("outage",), selected=False)
    library, law, rules = drawn.options.resolved_library(), drawn.options.failure_model(), drawn.options.end_rules()
    monkeypatch.setattr(random_libraries, "MAX_BRACKET_STATES", 20)
    problems = [build_problem(library, task.required_tools, law, rules) for task in drawn.tasks]
    brackets = [random_libraries.optimum_bracket(problem) for problem in problems]
    (measured,) = measure_random_library([load_checkpoint("default")], 12, "outage", 1, 3, None)
    assert measured.optimum == [most for _, most in brackets]
    assert measured.least_optimum == [max(low, rate) for (low, _), rate in zip(brackets, measured.success, strict=True)]
    assert measured.least_optimum != [low for low, _ in brackets]
