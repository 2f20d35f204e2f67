"""Workflow-v0 agrees with itself, scalar and batched, compiled and not, and with Conversation-v0."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.workflow.dynamics import END_FIELDS, ended_by
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.seeding import TRAINING_SALT
from resilisim.simulator.messages import Message, execution
from resilisim.simulator.state import next_state
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.playing import execute, random_actions, random_legal

TASKS = benchmark_tasks()[:40]
FILTERS = ("semantic", "dependency", "constraint")
EVERYTHING = {"law": "training", "reward": "two_phase", "filters": FILTERS, "required": "hidden", "printed_rules": True}
OPTIONS = [
    {},
    {"reward": "two_phase", "required": "hidden"},
    {"filters": FILTERS, "salt": "own"},
    {"law": "training", "reward": "two_phase"},
    EVERYTHING,
]
SEED = 11


def assert_same(one, row, where):
    for name, array in one.items():
        np.testing.assert_array_equal(array, row[name], err_msg=f"{name} at {where}", strict=True)


def first_row(observations, env):
    return {name: array[env] for name, array in observations.items()}


def assert_same_end(info, ends, env, where):
    """The end's info of a scalar environment is the row of the batch's infos."""
    for name in END_FIELDS:
        assert ends[f"_{name}"][env], where
        if name != "ended":
            assert info[name] == ends[name][env].item(), (name, where)
    assert info["ended_by"] == ended_by(int(ends["ended"][env])), where


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("options", OPTIONS)
def test_a_batch_is_many_scalar_environments(mode, options):
    num_envs, num_steps = 6, 120
    envs = WorkflowVectorEnv(num_envs, tasks=TASKS, autoreset_mode=mode, **options)
    ones = [WorkflowEnv(tasks=TASKS, **options) for _ in range(num_envs)]
    for env in (envs, *ones):
        env.set_running_success(0.35)
        env.set_stage(2)
        names = env.core.library.names
        env.set_patterns({(names[0], names[1]): 0.9, (names[2], names[0], names[5]): 0.7})
    observations, _ = envs.reset(seed=SEED)
    for index, one in enumerate(ones):
        assert_same(one.reset(seed=SEED + index)[0], first_row(observations, index), (index, "start"))
    generator = np.random.default_rng(5)
    over = np.zeros(num_envs, dtype=bool)
    num_ended = 0
    for step in range(num_steps):
        actions = random_actions(observations["action_mask"], generator)
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert not truncated.any()
        for index, one in enumerate(ones):
            where, row = (index, step), first_row(observations, index)
            if over[index]:  # a step after the end
                if mode is AutoresetMode.NEXT_STEP:
                    assert_same(one.reset()[0], row, where)
                    over[index] = False
                assert (rewards[index], bool(terminated[index])) == (0.0, bool(over[index])), where
                continue
            observation, reward, ended, _, info = one.step(actions[index])
            assert (reward, ended) == (rewards[index], terminated[index]), where
            if ended:
                num_ended += 1
                assert_same_end(info, infos, index, where)
                over[index] = mode is not AutoresetMode.SAME_STEP
                if mode is AutoresetMode.SAME_STEP:
                    assert infos["_final_obs"][index]
                    assert_same(observation, first_row(infos["final_obs"], index), where)
                    observation, _ = one.reset()
            assert_same(observation, row, where)
        if mode is AutoresetMode.DISABLED and over.any():
            observations, _ = envs.reset(options={"reset_mask": over})
            for index in np.flatnonzero(over):
                assert_same(ones[index].reset()[0], first_row(observations, index), (index, step, "reset"))
            over[:] = False
    assert num_ended > num_envs


def expected_status(execution_info):
    """Return the status that Workflow-v0 shows for an execution of Conversation-v0."""
    if execution_info["success"]:
        return "SUCCESS"
    return {"DEPENDENCY_ERROR": "DEPENDENCY_FAILED", "TIMEOUT": "TIMEOUT"}.get(execution_info["error"], "FAILED")


def test_it_is_conversation_without_the_words():
    """The same calls lead to the same outcomes, errors, rewards and ends, and to the state that the optimum reads."""
    env = WorkflowEnv(tasks=TASKS)
    talk = ConversationEnv(salt=TRAINING_SALT)
    generator = np.random.default_rng(3)
    seen, ends, rewarded = set(), set(), 0
    for episode in range(150):
        task, seed = TASKS[episode % len(TASKS)], 1000 + episode
        problem = env.core.problem_of(episode % len(TASKS))
        talk.reset(seed=seed, options={"task": task})
        _, info = env.reset(options={"task": task.instance_id, "episode_seed": seed})
        assert (info["instance_id"], info["episode_seed"]) == (task.instance_id, seed)
        state, ended = env.core.episode_state(0), False
        due = list(problem.required)
        repeat = int(generator.integers(30)) if episode % 5 == 0 else None
        while not ended:
            wanted = due[0] if due and generator.random() < 0.8 else int(generator.integers(30))
            tool = repeat if repeat is not None else wanted
            name = env.core.library.names[tool]
            repeated = env.core.episode_state(0).status[tool] == 2
            _, reward, ended, _, info = env.step(execute(env, tool))
            _, talk_reward, talk_ended, _, talk_info = talk.step(f"<tool_call>{name}</tool_call>")
            happened = talk_info["execution"]
            assert (info["execution"]["tool"], info["execution"]["success"]) == (name, happened["success"])
            if not repeated:  # a tool that has succeeded stays so, whatever later calls bring
                assert info["execution"]["status"] == expected_status(happened)
                seen.add(info["execution"]["status"])
            state = next_state(problem, state, execution(name), happened["success"])
            present = env.core.episode_state(0)
            assert (present.status, present.executions) == (state.status, state.executions)
            assert present.counters[:-1] == state.counters[:-1]
            if happened["success"] and due and tool == due[0]:
                due.pop(0)
            if ended and not talk_ended:  # done, or no turn is left: what remains is to say so
                assert info["ended_by"] in ("completion", "turns")
                closing = "<finish/>" if info["ended_by"] == "completion" else "<tool_call>nothing</tool_call>"
                _, talk_reward, talk_ended, _, talk_info = talk.step(closing)
            else:
                assert present == state
            assert (reward, ended) == (talk_reward, talk_ended)
        assert info["ended_by"] == talk_info["score"]["ended_by"]
        assert info["full_success"] == (reward == 1.0) == (talk_info["score"]["level"] == "full_success")
        assert info["coverage"] == pytest.approx(talk_info["score"]["coverage"])
        ends.add(info["ended_by"])
        rewarded += int(reward)
    assert seen == {"SUCCESS", "FAILED", "TIMEOUT", "DEPENDENCY_FAILED"}
    assert ends == {"completion", "turns", "consecutive_failures", "loop"}
    assert 10 < rewarded < 140


def test_an_illegal_action_is_a_rejected_call():
    env = WorkflowEnv(tasks=TASKS)
    env.reset(seed=0)
    problem, state = env.core.problem(0), env.core.episode_state(0)
    for count, illegal in enumerate([270, 270, 271, 271, 271, 271], start=1):
        _, reward, ended, _, info = env.step(illegal)
        state = next_state(problem, state, Message("rejected", tool=str(illegal)))
        present = env.core.episode_state(0)
        assert (reward, info["execution"]) == (0.0, None)
        assert (present.status, present.executions) == (state.status, state.executions)
        assert present.counters[0] == count
        assert (present.counters[1:5], present.counters[6:]) == (state.counters[1:5], state.counters[6:])
    assert ended
    assert info["ended_by"] == "loop"


def play_and_hash():
    """Return a hash of everything that some short batches show."""
    digest = hashlib.blake2b(digest_size=16)
    for options in ({}, EVERYTHING | {"required": "shown", "printed_rules": False}):
        envs = WorkflowVectorEnv(3, tasks=TASKS[:6], autoreset_mode="SAME_STEP", **options)
        names = envs.core.library.names
        envs.set_patterns({(names[0], names[1]): 0.9})
        observations, _ = envs.reset(seed=SEED)
        generator = np.random.default_rng(2)
        for _ in range(30):
            actions = random_legal(observations["action_mask"], generator)
            observations, rewards, *_ = envs.step(actions)
            for array in (*observations.values(), rewards):
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def test_the_same_text_runs_without_a_compiler():
    root = Path(__file__).parents[3]
    code = "from tests.envs.workflow.test_parity import play_and_hash; print(play_and_hash())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == play_and_hash()
