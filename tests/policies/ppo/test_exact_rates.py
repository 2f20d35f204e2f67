"""Success rates of what acts by observations in Workflow-v0: computed, and equal to what is known otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from resilisim.envs.workflow import WorkflowOptions
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    RETRY_TOOL,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    TOOL_STATUS,
    action_index,
)
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.exact_rates import exact_rates
from resilisim.policies.ppo.validation import play_closed_loop
from resilisim.simulator import build_problem
from resilisim.simulator.exact import obey_plan
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
    whole, rough = exact_rates(actor, [TASK]), exact_rates(actor, [TASK], negligible=0.02)
    assert rough.low[0] <= whole.low[0] <= rough.high[0]
    assert 0.0 < rough.high[0] - rough.low[0] < 1.0
    assert rough.num_states < whole.num_states


def test_laws_with_parts_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="expected a plain one"):
        exact_rates(InOrder([0]), [TASK], options=WorkflowOptions(law="outages"))
