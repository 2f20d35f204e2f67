"""What each action type of Workflow-v0 does under the training law."""

from __future__ import annotations

import numpy as np

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    CHECK_DEPENDENCIES,
    CREATE_CHECKPOINT,
    INVOKE_TOOL,
    META_CREATE_CHECKPOINT,
    META_RECOVER_ERROR,
    META_RESTORE_CHECKPOINT,
    PARALLEL_EXECUTE,
    RECOVER_ERROR,
    RESTORE_CHECKPOINT,
    RETRY_TOOL,
    VALIDATE_OUTPUT,
    action_index,
    meta_action_index,
)
from resilisim.envs.workflow.columns import FAILED, QUEUED, RETRIES, RUNNING, STATUS, SUCCESS, TIMEOUT
from tests.envs.workflow.playing import execute
from tests.envs.workflow.training_episodes import NO_OP, NUM_TOOLS, legal, required, training_env


def legal_meta(env, meta):
    return bool(env.action_masks()[meta_action_index(meta, NUM_TOOLS)])


def do(env, kind, tool):
    assert legal(env, kind, tool)
    return env.step(action_index(kind, tool, NUM_TOOLS))


def do_meta(env, meta):
    assert legal_meta(env, meta)
    return env.step(meta_action_index(meta, NUM_TOOLS))


def show(env, tool, status):
    return env.step_with_outcome(execute(env, tool), status)


def test_validating_a_result_ends_a_row_of_failures_once():
    env = training_env()
    first, second = required(env)[:2]
    assert not legal(env, VALIDATE_OUTPUT, first)
    show(env, first, SUCCESS)
    observation = show(env, second, FAILED)[0]
    assert observation["task"][columns.CONSECUTIVE_FAILURES] == 1
    assert not legal(env, VALIDATE_OUTPUT, second)
    observation, _, _, _, info = do(env, VALIDATE_OUTPUT, first)
    assert observation["task"][columns.CONSECUTIVE_FAILURES] == 0
    assert observation["task"][columns.TOTAL_FAILURES] == 1
    assert info["execution"] is None
    assert not legal(env, VALIDATE_OUTPUT, first)


def test_recovery_forgets_retries_or_the_row_of_failures():
    env = training_env()
    tool = required(env)[0]
    assert not legal(env, RECOVER_ERROR, tool)
    assert not legal_meta(env, META_RECOVER_ERROR)
    show(env, tool, FAILED)
    observation = show(env, tool, TIMEOUT)[0]
    assert observation["tools"][tool, [STATUS, RETRIES]].tolist() == [TIMEOUT, 2]
    observation = do(env, RECOVER_ERROR, tool)[0]
    assert observation["tools"][tool, [STATUS, RETRIES]].tolist() == [TIMEOUT, 0]
    assert observation["task"][columns.CONSECUTIVE_FAILURES] == 2
    assert not legal(env, RECOVER_ERROR, tool)
    observation = do_meta(env, META_RECOVER_ERROR)[0]
    assert observation["task"][columns.CONSECUTIVE_FAILURES] == 0
    assert not legal_meta(env, META_RECOVER_ERROR)


def test_recovery_lets_the_constraint_filter_try_again():
    env = training_env(filters=("constraint",))
    tool = required(env)[0]
    for _ in range(3):
        show(env, tool, FAILED)
    assert not legal(env, RETRY_TOOL, tool)
    do(env, RECOVER_ERROR, tool)
    assert legal(env, RETRY_TOOL, tool)


def test_checking_dependencies_queues_those_not_attempted():
    env = training_env()
    library, problem = env.core.library, env.core.problem(0)
    tool = next(tool for tool in range(NUM_TOOLS) if len(problem.dependencies[tool]) >= 2)
    attempted, *others = problem.dependencies[tool]
    assert not any(legal(env, CHECK_DEPENDENCIES, root) for root in range(NUM_TOOLS) if not problem.dependencies[root])
    show(env, attempted, FAILED)
    observation = do(env, CHECK_DEPENDENCIES, tool)[0]
    assert observation["tools"][attempted, STATUS] == FAILED
    assert [observation["tools"][other, STATUS] for other in others] == [QUEUED] * len(others)
    assert observation["tools"][tool, STATUS] == columns.NOT_ATTEMPTED
    assert not legal(env, CHECK_DEPENDENCIES, tool)
    assert legal(env, INVOKE_TOOL, others[0])
    assert len(library) == NUM_TOOLS


def test_a_checkpoint_of_a_tool_brings_its_retries_back():
    env = training_env()
    first, second = required(env)[:2]
    show(env, first, FAILED)
    assert legal(env, CREATE_CHECKPOINT, second)
    observation = do(env, CREATE_CHECKPOINT, first)[0]
    assert observation["task"][columns.HAS_CHECKPOINT] == 0  # shown for the checkpoint of everything
    assert not legal(env, RESTORE_CHECKPOINT, first)
    show(env, first, FAILED)
    show(env, second, FAILED)
    assert legal(env, RESTORE_CHECKPOINT, first)
    assert not legal(env, RESTORE_CHECKPOINT, second)
    observation = do(env, RESTORE_CHECKPOINT, first)[0]
    assert observation["tools"][[first, second], RETRIES].tolist() == [1, 1]
    assert observation["task"][columns.CONSECUTIVE_FAILURES] == 3
    assert not legal(env, RESTORE_CHECKPOINT, first)


def test_a_checkpoint_of_everything_brings_retries_and_the_row_back_but_no_success_is_lost():
    env = training_env()
    first, second, third = required(env)[:3]
    show(env, first, FAILED)
    observation = do_meta(env, META_CREATE_CHECKPOINT)[0]
    assert observation["task"][columns.HAS_CHECKPOINT] == 1
    assert not legal_meta(env, META_RESTORE_CHECKPOINT)
    show(env, second, SUCCESS)
    for tool in (first, third, third):
        show(env, tool, FAILED)
    observation = do_meta(env, META_RESTORE_CHECKPOINT)[0]
    assert observation["tools"][[first, second, third], RETRIES].tolist() == [1, 0, 0]
    assert observation["tools"][second, STATUS] == SUCCESS
    assert observation["task"][columns.CONSECUTIVE_FAILURES] == 1
    assert observation["task"][columns.TOTAL_FAILURES] == 4


def test_no_op_does_nothing_but_use_a_step():
    env = training_env()
    before = env.reset(seed=0)[0]
    after, reward, _, _, info = env.step(NO_OP)
    np.testing.assert_array_equal(before["tools"], after["tools"])
    changed = np.flatnonzero(before["task"] != after["task"]).tolist()
    assert changed == [columns.STEPS_USED, columns.STEPS_LEFT, columns.LOOP_COUNT]
    assert (reward, info["execution"]) == (0.0, None)


def test_a_parallel_execution_is_known_at_the_next_step():
    env = training_env()
    first, second = required(env)[:2]
    observation, _, _, _, info = do(env, PARALLEL_EXECUTE, first)
    assert info["execution"] is None
    assert observation["tools"][first, [STATUS, columns.EXECUTIONS]].tolist() == [RUNNING, 0]
    assert observation["task"][columns.NUM_RUNNING] == 1
    for kind in (INVOKE_TOOL, RETRY_TOOL, PARALLEL_EXECUTE):
        assert not legal(env, kind, first)
    observation, _, _, _, info = env.step_with_outcome(NO_OP, SUCCESS)
    assert info["execution"] == {"tool": env.core.library.names[first], "success": True, "status": "SUCCESS"}
    assert observation["tools"][first, [STATUS, columns.EXECUTIONS]].tolist() == [SUCCESS, 1]
    assert observation["task"][columns.NUM_RUNNING] == 0
    do(env, PARALLEL_EXECUTE, second)
    observation, *_ = env.step_with_outcome(action_index(PARALLEL_EXECUTE, required(env)[2], NUM_TOOLS), FAILED)
    assert observation["tools"][[second, required(env)[2]], STATUS].tolist() == [FAILED, RUNNING]
    assert observation["task"][columns.NUM_RUNNING] == 1


def test_two_tools_take_one_step_and_the_first_is_entered_first():
    env = training_env()
    tools = required(env)
    do(env, PARALLEL_EXECUTE, tools[0])
    observation, *_ = show(env, tools[1], SUCCESS)
    assert observation["tools"][tools[:2], columns.SUCCESS_ORDER].tolist() == [1, 2]
    assert observation["task"][[columns.STEPS_USED, columns.ORDER_BROKEN]].tolist() == [2, 0]


def test_the_constraint_filter_keeps_relatives_of_what_runs_waiting():
    env = training_env(filters=("constraint",))
    library = env.core.library
    running = required(env)[0]
    do(env, PARALLEL_EXECUTE, running)
    for tool, name in enumerate(library.names):
        related = tool == running or library.names[running] in library.closure((name,))
        related = related or name in library.closure((library.names[running],))
        assert legal(env, INVOKE_TOOL, tool) == (not related), name
