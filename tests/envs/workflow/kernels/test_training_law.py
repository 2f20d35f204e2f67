"""The training law of appendix D.4.1: how likely executions succeed, and how episodes end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.context import types_of_skeleton
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.kernels.rewards import (
    efficiency_reward,
    error_penalty,
    order_reward,
    progress_reward,
    terminal_reward,
)
from resilisim.envs.workflow.kernels.training_law import (
    MAX_STAGE,
    STAGES,
    phase_of,
    training_base,
    training_probability,
)
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    META_NO_OP,
    META_RECOVER_ERROR,
    OUTPUT_TYPE,
    RECOVER_ERROR,
    RETRY_TOOL,
    STATUS_FAILED,
    STATUS_SUCCESS,
    action_index,
    meta_action_index,
)
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.simulator.state import CONSECUTIVE_FAILURES, NUM_FAILURES
from resilisim.statistics.estimates import clopper_pearson
from tests.envs.workflow.cases import execute, random_legal

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


# With n of 5 in order progress is 0, .3, .5, .7, .9; of 5 tools .2, .4, .7, .9 and 1 are 1, 2, 3, 4 and 5 whole ones.
@pytest.mark.parametrize(("stage", "needed"), [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_success_when_the_steps_run_out_depends_on_the_stage(stage, needed):
    assert [ended_idle(stage, count)["success"] for count in range(5)] == [count >= needed for count in range(5)]


def ended_idle(stage, count):
    env = training_env(stage)
    for tool in required(env)[:count]:
        show(env, tool, STATUS_SUCCESS)
    ended = False
    while not ended:
        _, _, ended, _, info = env.step(NO_OP)
    assert (info["ended_by"], info["steps"]) == ("turns", STAGES[stage].max_turns)
    assert info["score"] == pytest.approx(0.2 * count + 0.1 * (count > 0))
    assert not info["full_success"]
    return info


def test_the_last_stage_wants_everything_and_holds_before_a_trainer_says_otherwise():
    assert not ended_idle(MAX_STAGE, 4)["success"]
    env = WorkflowEnv(tasks=[CHAIN], law="training", similarity=None)
    assert env.reset(seed=0)[0]["task"][[spaces.TASK_STAGE, spaces.TASK_STEPS_LEFT]].tolist() == [4, 28]
    for tool in required(env):
        _, _, ended, _, info = show(env, tool, STATUS_SUCCESS)
    assert (ended, info["success"], info["full_success"], info["steps"]) == (True, True, True, 5)


@pytest.mark.parametrize("stage", range(5))
def test_more_failures_than_the_stage_allows_are_no_success_though_everything_is_done(stage):
    allowed = STAGES[stage].max_errors
    for failures in (allowed, allowed + 1):
        env = training_env(stage)
        env.core.episodes["counters"][0, NUM_FAILURES] = failures  # in rows that successes have ended
        for tool in required(env):
            *_, info = show(env, tool, STATUS_SUCCESS)
        assert (info["ended_by"], info["full_success"]) == ("completion", True)
        assert info["success"] == (failures == allowed)


def test_steps_grow_with_the_stage_unless_their_number_is_named():
    longest = [training_env(stage).reset()[0]["task"][spaces.TASK_STEPS_LEFT] for stage in range(5)]
    assert longest == [20, 22, 24, 26, 28]
    env = training_env(1, max_turns=7)
    for _ in range(6):
        assert not env.step(NO_OP)[2]
    assert env.step(NO_OP)[2]


def test_a_stage_holds_for_the_episodes_that_begin_with_it():
    env = training_env(0)
    env.set_stage(4)
    assert env.step(NO_OP)[0]["task"][[spaces.TASK_STAGE, spaces.TASK_STEPS_LEFT]].tolist() == [0, 19]
    assert env.reset()[0]["task"][[spaces.TASK_STAGE, spaces.TASK_STEPS_LEFT]].tolist() == [4, 28]


def test_a_stage_can_say_what_is_played_and_how_long():
    env = WorkflowEnv(tasks="test")
    env.set_stage(4, max_turns=3, tasks=[5, 7])
    met = set()
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        assert observation["task"][spaces.TASK_STEPS_LEFT] == 3
        met.add(info["instance_id"])
    assert met == {env.core.tasks[index].instance_id for index in (5, 7)}
    tool = required(env)[0]
    for _ in range(2):
        assert not show(env, tool, STATUS_FAILED)[2]
    assert show(env, tool, STATUS_FAILED)[4]["ended_by"] == "turns"
    env.set_stage(4)
    assert env.reset(seed=0)[0]["task"][spaces.TASK_STEPS_LEFT] == 10
    assert len({env.reset()[1]["instance_id"] for _ in range(20)}) > 2


def test_under_the_benchmark_law_the_plain_reward_pays_what_the_stage_asks_for():
    for stage, needed in ((0, 1), (2, 3), (3, 4), (4, 5)):
        for count in range(5):
            env = WorkflowEnv(tasks=[CHAIN], similarity=None, max_turns=5, loop_length=0, max_consecutive_failures=0)
            env.set_stage(stage)
            env.reset(seed=0)
            for tool in required(env)[:count]:
                show(env, tool, STATUS_SUCCESS)
            for _ in range(5 - count):
                _, reward, ended, _, info = show(env, required(env)[4], STATUS_FAILED)
            assert ended
            assert (reward, info["success"], info["full_success"]) == (count >= needed, count >= needed, False)


def test_a_random_policy_succeeds_less_often_at_each_stage():
    """Each stage is another criterion; the intervals of one policy's rates, 99.9% with simultaneity, do not touch."""
    rates = [random_rate(stage) for stage in range(5)]
    for (low, _), (_, high) in itertools.pairwise(rates):
        assert high < low, rates


def random_rate(stage):
    envs = WorkflowVectorEnv(4000, tasks="test", law="training", autoreset_mode="DISABLED")
    envs.set_stage(stage)
    envs.set_running_success(0.5)
    generator = np.random.default_rng(stage)
    observation, _ = envs.reset(seed=0)
    while not envs.core.episodes["needs_reset"].all():
        observation, *_ = envs.step(random_legal(observation["action_mask"], generator))
    return clopper_pearson(int(envs.core.episodes["success"].sum()), 4000, 0.9998)


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


def test_what_algorithm_1_offers_has_its_confidence_as_long_as_it_is_offered():
    env = WorkflowEnv(tasks=[CHAIN], law="training", filters=("semantic",), similarity=similar_to_two)
    env.reset(seed=0)
    own = env.core.context.static_confidence[0]

    def confidences():
        decoded = [
            env.decode_action(action_index(INVOKE_TOOL, tool, NUM_TOOLS)).confidence for tool in range(NUM_TOOLS)
        ]
        shown = env.core.observation["tools"][0, :, spaces.TOOL_CONFIDENCE]
        assert shown.tolist() == [int(255 * value + 0.5) for value in decoded]
        return {tool: round(value, 6) for tool, value in enumerate(decoded) if value != pytest.approx(own[tool])}

    assert confidences() == {10: 0.35, 20: 0.35}
    for tool in (10, 20):
        show(env, tool, STATUS_SUCCESS)
    assert confidences() == {25: 0.35}
    show(env, 25, STATUS_SUCCESS)
    offered = confidences()
    assert set(offered.values()) == {0.30}
    assert len(offered) > 5
    env.set_patterns({(env.core.library.names[25], env.core.library.names[0]): 1.0})  # lets a tool pass: no fallback
    assert confidences() == {0: round(float(own[0]) + 0.25, 6)}


def test_too_late_for_tools_without_dependencies_only_recovery_is_left():
    options = {"tasks": [CHAIN], "law": "training", "filters": ("semantic",), "similarity": unlike_everything}
    env = WorkflowEnv(**options)
    env.reset(seed=0)
    library = env.core.library
    roots = [tool for tool, name in enumerate(library.names) if not library.dependencies(name)]
    for tool in roots[:8]:
        show(env, tool, STATUS_SUCCESS)
    show(env, roots[8], STATUS_FAILED)
    assert not show(env, roots[9], STATUS_FAILED)[2]
    recover = [action_index(RECOVER_ERROR, tool, NUM_TOOLS) for tool in sorted(roots[8:10])]
    legal = np.flatnonzero(env.action_masks()).tolist()
    assert legal == [*recover, meta_action_index(META_RECOVER_ERROR, NUM_TOOLS)]
    for action in legal[:-1]:
        assert not env.step(action)[2]
    _, _, ended, _, info = env.step(legal[-1])
    assert (ended, info["ended_by"], info["steps"]) == (True, "deadlock", 13)


def test_progress_without_required_tools_is_of_milestones_tools_and_steps():
    """D.4.1's second formula; the list is still what full success means."""
    env = WorkflowEnv(tasks=[{**CHAIN, "task_type": "basic_file_processing"}], law="training", required="none")
    env.reset(seed=0)
    types = types_of_skeleton("basic_file_processing")
    expected = len(types) + (OUTPUT_TYPE in types)
    assert env.core.observation["task"][0, spaces.TASK_MILESTONES_EXPECTED] == expected
    met = set()
    for steps, tool in enumerate(required(env), start=1):
        *_, info = show(env, tool, STATUS_SUCCESS)
        met |= {int(env.core.context.operation_type[tool])} & types
        milestones = len(met) + (OUTPUT_TYPE in met)
        progress = 0.3 * milestones / expected + 0.4 * steps / 5 + 0.3 * steps / 20
        assert env.core.episodes["progress"][0] == pytest.approx(progress)
    ended = False
    while not ended:
        _, _, ended, _, info = env.step(NO_OP)
    assert info["full_success"]
    assert (info["coverage"], info["sequence"]) == (0.0, 0.0)
    assert info["score"] == pytest.approx(0.3 * milestones / expected + 0.7)
    assert info["success"] == (info["score"] >= STAGES[MAX_STAGE].min_progress)


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
