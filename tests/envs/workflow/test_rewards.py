"""The rewards, against sums done by hand from SPEC section 5 and the weights chosen where the paper has none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.envs.workflow.actions import (
    INVOKE_TOOL,
    action_index,
)
from resilisim.envs.workflow.columns import SUCCESS
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.rewards import (
    efficiency_reward,
    error_penalty,
    longest_ascending_run,
    order_reward,
    progress_reward,
    terminal_reward,
)
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.playing import execute, random_actions

NUM_TOOLS = 30
# Four required tools with dependencies among them; the closure is exactly these.
CHAIN = {
    "required_tools": [
        "file_operations_reader",
        "data_processing_parser",
        "data_processing_validator",
        "data_processing_transformer",
    ],
    "task_type": "custom",
}
COVERAGE, SEQUENCE = 0.0, 0.5  # running success rates


def chain_env(rate=COVERAGE, printed=False, similarity=None, law="training", task=CHAIN, **options):
    env = WorkflowEnv(
        tasks=[task], law=law, reward="two_phase", similarity=similarity, printed_rules=printed, **options
    )
    env.set_running_success(rate)
    env.set_stage(0)
    env.reset(seed=0)
    return env


def tools_of(env):
    return [env.core.library.index(name) for name in env.core.tasks[0].required_tools]


def pay(env, tool, status):
    """Return what an execution with a given outcome pays, without the semantic part (0.5 c_task, no similarity)."""
    _, reward, ended, _, info = env.step_with_outcome(execute(env, tool), status)
    semantic = 0.5 * float(env.core.context.task_confidence[0, tool])
    return pytest.approx(reward - semantic, abs=1e-9), ended, info


def types_reached(env, tools):
    types = {int(env.core.context.operation_type[tool]) for tool in tools} - {0}
    return len(types) + (4 in types)


def new_milestones(env, tools, place):
    return types_reached(env, tools[: place + 1]) - types_reached(env, tools[:place])


def gains(count):
    """Progress gained by each of `count` required tools that succeed in order: coverage + 0.1, at most 1."""
    progress = [0.0, *(min(1.0, (place + 1) / count + 0.1) for place in range(count))]
    return progress, np.diff(progress)


def test_the_coverage_phase_pays_attempts_discoveries_progress_and_milestones():
    env = chain_env()
    tools = tools_of(env)
    progress, gained = gains(4)
    for place, tool in enumerate(tools):
        late = 20.0 if progress[place + 1] > 0.8 else 0.0
        expected = 3 + 30 + 50 + (100 + 10 + late) * gained[place] + 40 * new_milestones(env, tools, place)
        if place == 3:
            expected += 150 + 50 * 1.0
        reward, ended, info = pay(env, tool, SUCCESS)
        assert reward == expected, place
        assert ended == (place == 3)
    assert info["success"]
    assert info["full_success"]


def test_the_sequence_phase_pays_a_swap_less_and_disorder_costs():
    env = chain_env(SEQUENCE)
    first, second, third, fourth = tools_of(env)
    order = [second, first, fourth, third]
    problem = env.core.problem(0)
    paid, coverage_gain = [], []
    progress = 0.0
    for step, tool in enumerate(order, start=1):
        # Alone in its rank, `second` is in order; then nothing but coverage counts.
        reached = step / 4 + (0.1 if step == 1 and problem.place[tool] == 0 else 0.0)
        coverage_gain.append(max(0.0, reached - progress))
        progress = max(progress, reached)
        reward, ended, info = pay(env, tool, SUCCESS)
        milestones = types_reached(env, order[:step]) - types_reached(env, order[: step - 1])
        late = 20.0 if progress > 0.8 else 0.0
        paid.append(reward.expected - (110 + late) * coverage_gain[-1] - 40 * milestones)
    closure = len(problem.closure)
    end = 20 * (1.5 * closure - 4) / (1.5 * closure) + 10 + 100 + 50 * 2 / 4
    # One swap: 5. Third: (1, 0, 3) still one swap. Last: two swaps, and the last tool is one rank off.
    assert paid == pytest.approx([15, 5, 5, -5 + end])
    assert ended
    assert info["success"]
    assert not info["full_success"]
    assert info["sequence"] == 0.5


@given(st.permutations(range(6)), st.integers(0, 6))
def test_the_longest_ascending_run_is_the_longest_of_all(places, length):
    def longest(start, floor):
        options = [1 + longest(k + 1, places[k]) for k in range(start, length) if places[k] > floor]
        return max(options, default=0)

    assert longest_ascending_run(list(places), length) == longest(0, -1)


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


@pytest.mark.parametrize("law", ["benchmark", "training"])
def test_the_plain_reward_is_one_exactly_at_full_success(law):
    envs = WorkflowVectorEnv(512, tasks=benchmark_tasks()[:100], law=law, autoreset_mode="SAME_STEP", salt="plain")
    observations, _ = envs.reset(seed=0)
    generator = np.random.default_rng(0)
    num_full = 0
    for _ in range(60):
        actions = random_actions(observations["action_mask"], generator, illegal=0.05)
        due = observations["tools"][:, :, 2] == 1
        tool = due.argmax(axis=1)
        for kind in (0, 2):
            action = action_index(INVOKE_TOOL, 0, NUM_TOOLS) + kind * 31 + tool
            legal = observations["action_mask"][np.arange(512), action] == 1
            actions = np.where(due.any(axis=1) & legal & (generator.random(512) < 0.9), action, actions)
        observations, rewards, terminated, _, infos = envs.step(actions)
        full = infos.get("full_success", np.zeros(512, dtype=bool)) & terminated
        np.testing.assert_array_equal(rewards, full.astype(float))
        if terminated.any():
            np.testing.assert_array_equal(infos["episode_return"][terminated], full[terminated])
        num_full += int(full.sum())
    assert num_full > 100
