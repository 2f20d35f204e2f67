"""The training law of appendix D.4.1: how likely executions succeed, how episodes end, and what each action does."""

from __future__ import annotations

import numpy as np
import pytest

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    CHECK_DEPENDENCIES,
    CREATE_CHECKPOINT,
    INVOKE_TOOL,
    META_CREATE_CHECKPOINT,
    META_NO_OP,
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
from resilisim.envs.workflow.curriculum import STAGES
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.laws import phase_of, training_base, training_probability
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.playing import execute

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
TASKS = benchmark_tasks()[:20]


def training_env(stage=0, rate=0.0, task=CHAIN, **options):
    env = WorkflowEnv(tasks=[task], law="training", similarity=None, **options)
    env.set_stage(stage)
    env.set_running_success(rate)
    env.reset(seed=0)
    return env


def required(env):
    return list(env.core.problem(0).required)


def legal(env, kind, tool):
    return bool(env.action_masks()[action_index(kind, tool, NUM_TOOLS)])


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


# The law


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


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("failures", [0, 2])
def test_tools_succeed_as_often_as_the_formula_says(rate, failures):
    """Within four standard deviations, over 20,000 episodes each, with and without unmet dependencies and retries."""
    num_envs = 20_000
    envs = WorkflowVectorEnv(num_envs, tasks=[CHAIN], law="training", similarity=None, autoreset_mode="DISABLED")
    envs.set_running_success(rate)
    problem = envs.core.problem_of(0)
    base = 0.95 if rate < 0.1 else 0.9 if rate < 0.3 else 0.85
    for tool in (problem.required[0], problem.required[-1]):
        envs.reset(seed=int(1000 * rate) + tool)
        envs.core.episodes["retries"][:, tool] = failures
        envs.step(np.full(num_envs, action_index(INVOKE_TOOL, tool, NUM_TOOLS)))
        alignment = 1 + 0.3 * float(envs.core.context.task_confidence[0, tool])
        chance = min(1.0, base * alignment * 0.8 ** len(problem.dependencies[tool]) * 0.95**failures)
        seen = envs.core.episodes["tool_success"].mean()
        assert abs(seen - chance) <= 4 * np.sqrt(chance * (1 - chance) / num_envs) + 1e-12


def test_the_rate_is_that_of_the_start_of_an_episode():
    env = training_env(rate=0.0)
    env.set_running_success(0.5)
    observation, *_ = env.step(NO_OP)
    assert observation["task"][columns.BASE_PROBABILITY] == round(255 * 0.95)
    observation, _ = env.reset()
    assert observation["task"][columns.BASE_PROBABILITY] == round(255 * 0.85)


# Ends and success


def test_an_episode_has_twenty_steps():
    env = training_env()
    ended = [env.step(NO_OP)[2] for _ in range(20)]
    assert ended == [False] * 19 + [True]


def test_the_benchmark_laws_end_rules_are_off():
    env = training_env()
    tool = required(env)[0]
    for _ in range(19):
        assert not show(env, tool, FAILED)[2]
    _, _, ended, _, info = show(env, tool, FAILED)
    assert ended
    assert info["ended_by"] == "turns"


@pytest.mark.parametrize("stage", range(5))
def test_one_failure_more_than_the_stage_allows_ends_an_episode(stage):
    allowed = STAGES[stage].max_errors
    env = training_env(stage, max_turns=60)
    tool = required(env)[0]
    for _ in range(allowed):
        assert not show(env, tool, FAILED)[2]
    _, _, ended, _, info = show(env, tool, FAILED)
    assert ended
    assert (info["ended_by"], info["success"], info["steps"]) == ("consecutive_failures", False, allowed + 1)


def test_all_required_tools_end_an_episode_in_any_order():
    env = training_env()
    tools = required(env)
    for tool in reversed(tools):
        _, reward, ended, _, info = show(env, tool, SUCCESS)
    assert ended
    assert (info["ended_by"], info["success"], info["full_success"], reward) == ("completion", True, False, 0.0)
    assert (info["coverage"], info["score"], info["sequence"]) == (1.0, 1.0, pytest.approx(0.2))


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
            show(env, tool, SUCCESS)
        ended = False
        while not ended:
            _, _, ended, _, info = env.step(NO_OP)
        assert info["score"] == pytest.approx(0.2 * count + 0.1 * (count > 0))
        assert not info["full_success"]
        found.append(info["success"])
    assert found == successes


def test_too_many_failures_are_no_success_whatever_the_progress():
    env = training_env(4)
    tools = required(env)
    for tool in tools[:4]:
        show(env, tool, SUCCESS)
    ended = False
    while not ended:
        _, _, ended, _, info = show(env, tools[4], FAILED)
    assert (info["ended_by"], info["success"], info["score"]) == ("consecutive_failures", False, pytest.approx(0.9))


def test_progress_never_falls():
    env = training_env()
    tools = required(env)
    shown = [show(env, tool, SUCCESS)[0]["task"][columns.PROGRESS] for tool in (tools[0], tools[2], tools[1])]
    # 0.3 in order; coverage 0.4 without the bonus; coverage 0.6
    assert shown == [round(255 * 0.3), round(255 * 0.4), round(255 * 0.6)]
    env = training_env()
    shown = [show(env, tool, SUCCESS)[0]["task"][columns.PROGRESS] for tool in (tools[0], tools[1], tools[3])]
    assert shown == [round(255 * 0.3), round(255 * 0.5), round(255 * 0.6)]


def unlike_everything(description, names):
    return np.full(len(names), -1.0)


def test_a_deadlock_ends_an_episode():
    """Nothing passes the filter, there are no candidates, and the tools without dependencies have all succeeded."""
    env = WorkflowEnv(tasks=[CHAIN], law="training", filters=("semantic",), similarity=unlike_everything)
    env.reset(seed=0)
    library = env.core.library
    roots = [tool for tool, name in enumerate(library.names) if not library.dependencies(name)]
    assert 0 < len(roots) < 10
    for tool in roots:
        _, _, ended, _, info = show(env, tool, SUCCESS)
    assert ended
    assert (info["ended_by"], info["success"]) == ("deadlock", False)


def test_printed_rules_end_in_deadlock_before_the_fallback():
    options = {"law": "training", "filters": ("semantic",), "similarity": unlike_everything}
    for printed in (False, True):
        env = WorkflowEnv(tasks=[CHAIN], printed_rules=printed, **options)
        env.reset(seed=0)
        _, _, ended, _, info = env.step(NO_OP)
        assert ended == printed
        assert info.get("ended_by") == ("deadlock" if printed else None)


def test_printed_rules_count_what_was_executed():
    env = training_env(printed_rules=True)
    for tool in required(env):
        _, _, ended, _, info = show(env, tool, FAILED)
    assert ended
    assert (info["ended_by"], info["success"], info["full_success"]) == ("completion", True, False)
    assert (info["coverage"], info["score"]) == (1.0, 1.0)


def test_printed_rules_succeed_at_half_the_progress_whatever_the_stage():
    env = training_env(4, printed_rules=True)
    for tool in required(env)[:2]:
        show(env, tool, FAILED)
    ended = False
    while not ended:
        _, _, ended, _, info = env.step(NO_OP)
    assert (info["ended_by"], info["success"], info["score"]) == ("turns", True, pytest.approx(0.5))


# What each action does


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


def similar_to_two(description, names):
    """Weak similarities for the tools 10, 20 and 25, in this order: candidates that do not pass the filter."""
    return np.select([np.arange(len(names)) == place for place in (10, 20, 25)], [0.13, 0.12, 0.11], -1.0)


def test_algorithm_1_offers_the_two_best_candidates_then_the_roots():
    env = WorkflowEnv(tasks=[CHAIN], law="training", filters=("semantic",), similarity=similar_to_two)
    env.reset(seed=0)
    library = env.core.library
    roots = [tool for tool, name in enumerate(library.names) if not library.dependencies(name)]

    def offered():
        return [tool for tool in range(NUM_TOOLS) if legal(env, INVOKE_TOOL, tool) or legal(env, RETRY_TOOL, tool)]

    assert offered() == [10, 20]
    show(env, 10, FAILED)
    assert offered() == [10, 20]
    show(env, 10, SUCCESS)
    assert offered() == [20, 25]
    show(env, 20, SUCCESS)
    assert offered() == [25]
    show(env, 25, SUCCESS)
    assert offered() == [tool for tool in roots if tool not in (10, 20, 25)]
