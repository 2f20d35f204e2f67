"""Workflow-v0 as Gymnasium and stable-baselines3 expect an environment, and its messages about bad options."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.env_checker import check_env as check_sb3_env

import resilisim  # noqa: F401  (registers the ids)
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.tasks.benchmark import benchmark_tasks

WORKFLOW = "resilisim/Workflow-v0"
TASKS = [task.instance_id for task in benchmark_tasks()[:5]]


@pytest.fixture(scope="module")
def env():
    return WorkflowEnv(tasks=TASKS)


@pytest.fixture(scope="module")
def batch():
    envs = WorkflowVectorEnv(4, tasks=TASKS)
    envs.reset(seed=0)
    return envs


@pytest.mark.parametrize(
    "options", [{}, {"law": "training", "reward": "two_phase", "filters": ("semantic",), "required": "hidden"}]
)
def test_gymnasium_and_stable_baselines3_accept_it(options):
    env = WorkflowEnv(tasks=TASKS, render_mode="ansi", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render.*")
        check_env(env, skip_render_check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stable-baselines3 would rather see images or flat vectors
        check_sb3_env(env)


def test_gymnasium_makes_it():
    env = gymnasium.make(WORKFLOW, tasks=TASKS, law="training", max_turns=7)
    assert env.action_space.n == 283
    observation, info = env.reset(seed=3)
    assert observation in env.observation_space
    assert info["instance_id"] in TASKS
    assert env.unwrapped.core.worlds["rules"]["max_turns"][0] == 7


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_gymnasium_makes_batches(mode):
    envs = gymnasium.make_vec(
        WORKFLOW,
        num_envs=3,
        vectorization_mode="vector_entry_point",
        tasks=TASKS,
        autoreset_mode=mode,
        reward="two_phase",
    )
    assert envs.metadata["autoreset_mode"] is mode
    observation, _ = envs.reset(seed=3)
    assert observation in envs.observation_space
    observation, rewards, terminated, truncated, _ = envs.step(np.array([0, 1, 2]))
    assert observation in envs.observation_space
    assert rewards.dtype == np.float64
    assert (rewards.shape, terminated.shape, truncated.shape) == ((3,), (3,), (3,))
    assert not truncated.any()


def test_a_time_limit_of_gymnasium_is_the_number_of_turns():
    envs = WorkflowVectorEnv(2, 3, tasks=TASKS, autoreset_mode="DISABLED")
    envs.reset(seed=0)
    ends = [envs.step(np.full(2, 282))[2].tolist() for _ in range(3)]  # an action that the mask forbids
    assert ends == [[False, False], [False, False], [True, True]]


def test_rendering_says_what_happened(env):
    shown = WorkflowEnv(tasks=TASKS, render_mode="ansi")
    shown.reset(seed=0)
    assert shown.render() == "reset"
    shown.step_with_outcome(0, 3)
    assert shown.render() == f"INVOKE_TOOL {shown.core.library.names[0]}: SUCCESS"
    shown.step(282)
    assert shown.render() == "RECOVER_ERROR no tool: nothing executed"
    env.reset(seed=0)
    assert env.render() is None


def refused(call, *arguments, **keywords):
    """Return the one line with which a call is refused."""
    with pytest.raises(InvalidInputError) as caught:
        call(*arguments, **keywords)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", [WorkflowEnv, WorkflowVectorEnv])
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"law": "trainig"}, ("'trainig'", "did you mean 'training'?")),
        ({"reward": "full"}, ("'full'", "did you mean 'full_success'?")),
        ({"required": "hiden"}, ("'hiden'", "did you mean 'hidden'?")),
        ({"filters": ["sematic"]}, ("'sematic'", "did you mean 'semantic'?")),
        ({"filters": "semantic"}, ("filters is 'semantic'", "expected a list")),
        ({"tasks": "tests"}, ("'tests'", "did you mean 'test'?")),
        ({"tasks": []}, ("empty", "at least one task")),
        ({"tasks": [3]}, ("type int", "expected an id, a mapping or a Task")),
        ({"tasks": ["task_0"]}, ("'task_0'",)),
        ({"tasks": [{"required_tools": ["file_operations_raeder"]}]}, ("'file_operations_reader'",)),
        ({"max_turn": 3}, ("'max_turn'", "did you mean 'max_turns'?")),
        ({"max_turns": 0}, ("max_turns is 0", "at least 1")),
        ({"base": 1.5}, ("base is 1.5",)),
        ({"filters": 5}, ("filters is 5: expected a list",)),
        ({"tasks": 5}, ("tasks is 5: expected one of train",)),
        ({"max_turns": 2.5}, ("max_turns is 2.5: expected a whole number",)),
        ({"render_mode": "human"}, ("'human'",)),
    ],
)
def test_bad_options_are_refused_in_one_line(kind, options, parts):
    message = refused(kind, **{"tasks": TASKS, **options})
    assert all(part in message for part in parts), message


def test_bad_resets_and_actions_are_refused(env, batch):
    env.reset(seed=0)
    judged = WorkflowEnv(tasks=TASKS[:1], reward="value")
    refusals = [
        (env.reset, {"options": {"tusk": 0}}, "did you mean 'task'?"),
        (env.reset, {"seed": -1}, "seed is -1: expected at least 0"),
        (env.reset, {"options": {"episode_seed": -1}}, "episode_seed is -1: expected at least 0"),
        (env.reset, {"options": {"task": 5}}, "task (an id or an index) is 5: expected at least 0 and at most 4"),
        (env.reset, {"options": {"task": TASKS[2] + "x"}}, f"did you mean '{TASKS[2]}'?"),
        (env.step, {"action": 283}, "action 283: expected 0 to 282"),
        (env.step, {"action": -1}, "action -1: expected 0 to 282"),
        (env.step, {"action": 2.5}, "action 2.5: expected 0 to 282"),
        (batch.reset, {"options": {"task": [0] * 4}}, "did you mean 'tasks'?"),
        (batch.reset, {"seed": [0, 1, 2, -1]}, "seed is -1: expected at least 0"),
        (batch.reset, {"seed": [0, 1, 2]}, "3 seeds for 4 environments"),
        (batch.reset, {"options": {"tasks": [0] * 3}}, "'tasks' has the shape (3,): expected (4,)"),
        (batch.reset, {"options": {"tasks": [0, 1, 2, 5]}}, "'tasks' holds 0 to 5: expected 0 to 4"),
        (batch.reset, {"options": {"seeds": [0, 1, 2, -1]}}, "'seeds' holds -1 to 2"),
        (batch.reset, {"options": {"reset_mask": np.ones(4)}}, "reset_mask"),
        (batch.step, {"actions": np.array([0, 0, 0, 283])}, "action 283: expected 0 to 282"),
        (batch.step, {"actions": np.array([0, -1, 0, 0])}, "action -1: expected 0 to 282"),
        (batch.step, {"actions": np.zeros(3, dtype=np.int64)}, "shape (3,): expected (4,)"),
        (WorkflowVectorEnv, {"num_envs": 0, "tasks": TASKS}, "num_envs is 0"),
        (WorkflowVectorEnv, {"tasks": TASKS, "autoreset_mode": "SAME_STEPS"}, "did you mean 'SAME_STEP'?"),
        (env.set_running_success, {"rate": 1.1}, "running success rate is 1.1: expected at least 0 and at most 1"),
        (env.set_stage, {"stage": 5}, "curriculum stage is 5: expected at least 0 and at most 4"),
        (env.set_stage, {"stage": 1, "max_turns": 11}, "max_turns of a stage is 11: expected at least 1 and at most"),
        (env.set_stage, {"stage": 1, "tasks": []}, "tasks of a stage is empty"),
        (env.set_stage, {"stage": 1, "tasks": [5]}, "task is 5: expected at least 0 and at most 4"),
        (judged.set_stage, {"stage": 4, "max_turns": 9}, "which was solved for 10: expected that"),
        (env.set_patterns, {"scores": {("utility_logger",): 0.5}}, "expected two or three"),
        (env.set_patterns, {"scores": {("utility_logger", "nothing"): 0.5}}, "unknown tool"),
    ]
    for call, arguments, words in refusals:
        assert words in refused(call, **arguments)


def test_steps_before_a_reset_and_after_the_end_are_errors():
    env = WorkflowEnv(tasks=TASKS, max_turns=1)
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(0)
    env.reset(seed=0)
    assert env.step(0)[2]
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(0)
    with pytest.raises(RuntimeError, match="call reset first"):
        WorkflowVectorEnv(2, tasks=TASKS).step(np.zeros(2, dtype=np.int64))
