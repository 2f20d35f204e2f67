"""The rewards, against sums done by hand from SPEC section 5 and the weights chosen where the paper has none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.envs.workflow.actions import (
    INVOKE_TOOL,
    META_CREATE_CHECKPOINT,
    META_NO_OP,
    action_index,
    meta_action_index,
)
from resilisim.envs.workflow.columns import FAILED, SUCCESS
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
NO_OP = meta_action_index(META_NO_OP, NUM_TOOLS)
COVERAGE, MIDDLE, SEQUENCE = 0.0, 0.2, 0.5  # running success rates


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


def other_tool(env):
    """A tool that is not required."""
    return next(tool for tool in range(NUM_TOOLS) if env.core.problem(0).place[tool] < 0)


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


@pytest.mark.parametrize(("rate", "penalty"), [(0.0, 0), (0.1, 2), (0.29, 2), (0.3, 5), (0.9, 5)])
def test_a_failure_costs_by_the_running_success(rate, penalty):
    assert error_penalty(rate) == penalty
    env = chain_env(rate)
    tool = tools_of(env)[0]
    attempt = 3 if rate < 0.3 else 0
    novel = 30 if rate < 0.3 else 0
    assert pay(env, tool, FAILED)[0] == attempt + novel - penalty
    assert pay(env, tool, FAILED)[0] == attempt - penalty  # the second attempt is not novel, and a retry is free
    assert pay(env, other_tool(env), FAILED)[0] == attempt + novel - penalty


def test_a_tool_that_is_not_required_pays_its_attempt_only():
    env = chain_env()
    assert pay(env, other_tool(env), SUCCESS)[0] == 3 + 30
    env = chain_env(SEQUENCE)
    assert pay(env, other_tool(env), SUCCESS)[0] == 0


@pytest.mark.parametrize(("rate", "weight", "attempt"), [(COVERAGE, 1, 3), (SEQUENCE, 5, 0)])
def test_repeated_successes_cost_more_each_time(rate, weight, attempt):
    env = chain_env(rate)
    tool = other_tool(env)
    pay(env, tool, SUCCESS)
    assert pay(env, tool, SUCCESS)[0] == attempt - weight
    assert pay(env, tool, SUCCESS)[0] == attempt - 2 * weight
    error = 0 if rate == COVERAGE else 5
    assert pay(env, tool, FAILED)[0] == attempt - error - 2 * weight  # counts successes: still three


def test_the_sequence_phase_pays_order_and_efficiency_at_the_end():
    env = chain_env(SEQUENCE)
    tools = tools_of(env)
    progress, gained = gains(4)
    closure = len(env.core.problem(0).closure)
    for place, tool in enumerate(tools):
        late = 20.0 if progress[place + 1] > 0.8 else 0.0
        expected = 15 + (100 + 10 + late) * gained[place] + 40 * new_milestones(env, tools, place)
        if place == 3:
            target = 1.5 * closure
            expected += 20 * (target - 4) / target + 10 + 100 + 50 * 1.0
        assert pay(env, tool, SUCCESS)[0] == expected, place


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


def test_two_no_ops_in_a_row_stagnate():
    env = chain_env()
    rewards = [env.step(action)[1] for action in (NO_OP, NO_OP, NO_OP)]
    assert rewards == [0.0, -10.0, -10.0]
    env.step(meta_action_index(META_CREATE_CHECKPOINT, NUM_TOOLS))
    assert env.step(NO_OP)[1] == 0.0


@pytest.mark.parametrize(("rate", "succeeded"), [(COVERAGE, 0), (COVERAGE, 1), (SEQUENCE, 1)])
def test_an_episode_without_success_ends_with_its_progress(rate, succeeded):
    env = chain_env(rate, max_turns=3)
    for tool in tools_of(env)[:succeeded]:
        pay(env, tool, SUCCESS)
    while True:
        _, reward, ended, _, info = env.step(meta_action_index(META_CREATE_CHECKPOINT, NUM_TOOLS))
        if ended:
            break
        assert reward == 0.0
    progress = 0.35 if succeeded else 0.0
    assert (info["ended_by"], info["success"]) == ("turns", False)
    assert reward == pytest.approx(50 * progress)


def test_early_progress_ends_with_the_ninth_step():
    for waiting, early in ((8, 10.0), (9, 0.0)):
        env = chain_env()
        for _ in range(waiting):
            env.step(meta_action_index(META_CREATE_CHECKPOINT, NUM_TOOLS))
        tools = tools_of(env)
        expected = 3 + 30 + 50 + (100 + early) * 0.35 + 40 * new_milestones(env, tools, 0)
        assert pay(env, tools[0], SUCCESS)[0] == expected


def test_similarity_and_patterns_pay_a_little():
    def similarity(description, names):
        return np.where(np.arange(len(names)) == 20, 0.5, -0.5)

    env = chain_env(SEQUENCE, similarity=similarity)
    names = env.core.library.names
    tools = tools_of(env)
    assert 20 not in tools
    env.set_patterns({(names[tools[0]], names[20]): 0.8})
    env.reset(seed=0)
    assert pay(env, 20, SUCCESS)[0] == 2 * 0.5
    env.reset(seed=0)
    pay(env, tools[0], SUCCESS)
    assert pay(env, 20, FAILED)[0] == 2 * 0.5 - 5  # a pattern is paid when it is completed
    assert pay(env, 20, SUCCESS)[0].expected == pytest.approx(2 * 0.5 + 0.5 * 0.8)


def test_printed_rules_pay_as_printed():
    # Attempts: any action that is not NO_OP.
    env = chain_env(printed=True)
    assert env.step(meta_action_index(META_CREATE_CHECKPOINT, NUM_TOOLS))[1] == pytest.approx(3 + (100 + 20) * 0.1)
    assert env.step(NO_OP)[1] == 0.0
    # The bonus of 0.1 is always there, coverage counts what was executed, and gamma_base is 10.
    tool = tools_of(env)[0]
    reward = pay(env, tool, FAILED)[0]
    assert reward == 3 + 30 + (100 + 10 + 10) * 0.25
    # Discovery is paid at every success; executions, not successes, are counted as repetitions.
    milestone = 40 * new_milestones(env, tools_of(env), 0)
    assert pay(env, tool, SUCCESS)[0] == 3 + 50 + milestone - 1
    assert pay(env, tool, SUCCESS)[0] == 3 + 50 - 2


def test_printed_rules_pay_order_and_efficiency_at_every_step():
    env = chain_env(SEQUENCE, printed=True)
    tools = tools_of(env)
    closure = len(env.core.problem(0).closure)
    target = 1.5 * closure

    def efficiency(step):
        return 20 * max(0.0, target - step) / target + 10

    first = 15 + 120 * 0.35 + 40 * new_milestones(env, tools, 0) + efficiency(1)
    assert pay(env, tools[0], SUCCESS)[0] == first
    assert env.step(NO_OP)[1] == pytest.approx(15 + efficiency(2))  # the order is paid again, summed over all tools
    second = 2 * 15 + 120 * 0.25 + 40 * new_milestones(env, tools, 1) + efficiency(3)
    assert pay(env, tools[1], SUCCESS)[0] == second


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
