"""The training law of appendix D.4.1: how likely executions succeed, and how episodes end."""

from __future__ import annotations

import numpy as np
import pytest

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    META_NO_OP,
    RETRY_TOOL,
    STATUS_FAILED,
    STATUS_SUCCESS,
    action_index,
    meta_action_index,
)
from resilisim.envs.workflow.training import (
    STAGES,
    efficiency_reward,
    error_penalty,
    order_reward,
    phase_of,
    progress_reward,
    terminal_reward,
    training_base,
    training_probability,
)
from resilisim.simulator.state import CONSECUTIVE_FAILURES
from tests.envs.workflow.cases import execute

NUM_TOOLS = 30
CHAIN = {
    "required_tools": [
        "file_operations_reader",
        "data_processing_parser",
        "data_processing_validator",
        "data_processing_transformer",
        "data_processing_aggregator",
    ],
    "task_type": "custom",
}
NO_OP = meta_action_index(META_NO_OP, NUM_TOOLS)


def training_env(stage=0, rate=0.0, **options):
    env = WorkflowEnv(tasks=[CHAIN], law="training", similarity=None, **options)
    env.set_stage(stage)
    env.set_running_success(rate)
    env.reset(seed=0)
    return env


def required(env):
    return list(env.problem().required)


def show(env, tool, status):
    return env.step_with_outcome(execute(env, tool), status)


@pytest.mark.parametrize(
    ("rate", "base", "phase"),
    [(0, 0.95, 0), (0.099, 0.95, 0), (0.1, 0.9, 0), (0.29, 0.9, 0), (0.3, 0.85, 1), (1, 0.85, 1)],
)
def test_the_base_and_the_phase_follow_the_running_success(rate, base, phase):
    assert training_base(rate) == base
    assert phase_of(rate) == phase


def test_the_formula():
    assert training_probability(0.9, 0, 0, 0.0) == 0.9
    assert training_probability(0.9, 2, 3, 0.0) == pytest.approx(0.9 * 0.8**2 * 0.95**3)
    assert training_probability(0.9, 2, 3, 0.5) == pytest.approx(0.9 * 0.8**2 * 0.95**3 * 1.15)
    assert training_probability(0.95, 0, 0, 1.0) == 1.0


def test_the_rate_is_that_of_the_start_of_an_episode():
    env = training_env(rate=0.0)
    env.set_running_success(0.5)
    observation, *_ = env.step(NO_OP)
    assert observation["task"][spaces.TASK_BASE_PROBABILITY] == round(255 * 0.95)
    observation, _ = env.reset()
    assert observation["task"][spaces.TASK_BASE_PROBABILITY] == round(255 * 0.85)


@pytest.mark.parametrize("stage", range(5))
def test_one_failure_more_than_the_stage_allows_ends_an_episode(stage):
    allowed = STAGES[stage].max_errors
    env = training_env(stage)
    tool = required(env)[0]
    env.core.episodes["counters"][0, CONSECUTIVE_FAILURES] = allowed - 1  # more than twenty steps can bring
    assert not show(env, tool, STATUS_FAILED)[2]
    _, _, ended, _, info = show(env, tool, STATUS_FAILED)
    assert ended
    assert (info["ended_by"], info["success"]) == ("consecutive_failures", False)


# Progress with n of 5 in order: 0, .3, .5, .7, .9. Running out of steps asks for .5 and for what the stage asks for.
@pytest.mark.parametrize(
    ("stage", "successes"),
    [
        (0, [False, False, True, True, True]),
        (1, [False, False, True, True, True]),
        (2, [False, False, False, False, True]),  # coverage .7
        (3, [False, False, False, False, False]),  # coverage .9
        (4, [False, False, False, False, False]),
    ],
)
def test_success_when_the_steps_run_out_depends_on_the_stage(stage, successes):
    found = []
    for count in range(5):
        env = training_env(stage)
        for tool in required(env)[:count]:
            show(env, tool, STATUS_SUCCESS)
        ended = False
        while not ended:
            _, _, ended, _, info = env.step(NO_OP)
        assert info["score"] == pytest.approx(0.2 * count + 0.1 * (count > 0))
        assert not info["full_success"]
        found.append(info["success"])
    assert found == successes


def unlike_everything(description, names):
    return np.full(len(names), -1.0)


def test_a_deadlock_ends_an_episode():
    """Nothing passes the filter, there are no candidates, and it is too late for the tools without dependencies."""
    options = {"tasks": [CHAIN], "law": "training", "filters": ("semantic",), "similarity": unlike_everything}
    env = WorkflowEnv(**options)
    env.reset(seed=0)
    library = env.core.library
    roots = [tool for tool, name in enumerate(library.names) if not library.dependencies(name)]
    for tool in roots[:9]:
        assert not show(env, tool, STATUS_SUCCESS)[2]
    _, _, ended, _, info = show(env, roots[9], STATUS_SUCCESS)
    assert (ended, info["ended_by"], info["success"], info["steps"]) == (True, "deadlock", False, 10)
    printed = WorkflowEnv(**options, printed_rules=True)  # before the fallback
    printed.reset(seed=0)
    assert printed.step(NO_OP)[4]["ended_by"] == "deadlock"


def similar_to_two(description, names):
    """Weak similarities for the tools 10, 20 and 25, in this order: candidates that do not pass the filter."""
    return np.select([np.arange(len(names)) == place for place in (10, 20, 25)], [0.13, 0.12, 0.11], -1.0)


def test_algorithm_1_offers_the_two_best_candidates_then_the_roots():
    env = WorkflowEnv(tasks=[CHAIN], law="training", filters=("semantic",), similarity=similar_to_two)
    env.reset(seed=0)
    library = env.core.library
    roots = [tool for tool, name in enumerate(library.names) if not library.dependencies(name)]

    def offered():
        invoke, retry = (action_index(kind, 0, NUM_TOOLS) for kind in (INVOKE_TOOL, RETRY_TOOL))
        mask = env.action_masks()
        return np.flatnonzero(mask[invoke : invoke + NUM_TOOLS] | mask[retry : retry + NUM_TOOLS]).tolist()

    assert offered() == [10, 20]
    show(env, 10, STATUS_FAILED)
    assert offered() == [10, 20]
    show(env, 10, STATUS_SUCCESS)
    assert offered() == [20, 25]
    show(env, 20, STATUS_SUCCESS)
    assert offered() == [25]
    show(env, 25, STATUS_SUCCESS)
    assert offered() == [tool for tool in roots if tool not in (10, 20, 25)]


@pytest.mark.parametrize(
    ("places", "once", "printed"),
    [
        ([2], 15, 15),
        ([0, 3], 15, 30),
        ([3, 0], 5, 10),  # ranks 1, 0: one swap
        ([1, 0, 2], 5, 15),
        ([2, 0, 1], -5, -20),  # two swaps; off by 2, 1, 1; the latest by 1
        ([2, 1, 0], -10, -20),
        ([5, 4, 9], 5, 15),
        ([4, 5, 3, 9], 0, -20),  # the latest is in its rank: nothing; off by 1, 1, 2, 0
    ],
)
def test_order_rewards(places, once, printed):
    assert order_reward(places, len(places), False) == once
    assert order_reward(places, len(places), True) == printed


def test_formulas():
    assert [error_penalty(rate) for rate in (0.0, 0.1, 0.29, 0.3, 0.9)] == [0, 2, 2, 5, 5]
    assert efficiency_reward(4, 4, 0) == pytest.approx(20 * 2 / 6 + 10)
    assert efficiency_reward(4, 4, 1) == pytest.approx(20 * 2 / 6)
    assert efficiency_reward(7, 4, 3) == 0.0
    assert progress_reward(0.25, 0.5, 9, False) == 2.5
    assert progress_reward(0.25, 0.5, 10, False) == 0.0
    assert progress_reward(0.25, 0.9, 10, False) == 5.0
    assert progress_reward(0.25, 0.9, 9, True) == 10.0
    assert terminal_reward(True, 0, 0.5, 0.25, 0.6) == 175.0
    assert terminal_reward(True, 1, 0.5, 0.5, 0.6) == 125.0
    assert terminal_reward(False, 1, 0.5, 0.5, 0.6) == pytest.approx(30.0)
