"""Workflow-v0 agrees with itself, scalar and batched, compiled and not."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.kernels.step import END_FIELDS
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.simulator.state import ENDED_BY
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.cases import assert_same, random_actions, random_legal

TASKS = benchmark_tasks()[:40]
FILTERS = ("semantic", "dependency", "constraint")
EVERYTHING = {"law": "training", "reward": "two_phase", "filters": FILTERS, "required": "hidden", "printed_rules": True}
OPTIONS = [
    {},
    {"reward": "two_phase", "required": "hidden"},
    {"filters": FILTERS, "salt": "own"},
    {"reward": "advantage", "max_consecutive_failures": 2},
    {"law": "training", "reward": "two_phase"},
    EVERYTHING,
]
SEED = 11


def first_row(observations, env):
    return {name: array[env] for name, array in observations.items()}


def assert_same_end(info, ends, env, where):
    """The end's info of a scalar environment is the row of the batch's infos."""
    for name in END_FIELDS:
        assert ends[f"_{name}"][env], where
        if name != "ended":
            assert info[name] == ends[name][env].item(), (name, where)
    assert info["ended_by"] == ENDED_BY[int(ends["ended"][env])], where


@pytest.mark.long
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("options", OPTIONS)
def test_a_batch_is_many_scalar_environments(mode, options):
    num_envs, num_steps = 18, 60  # more than luck is drawn for at once
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


def play_and_hash():
    """Return a hash of everything that some short batches show."""
    digest = hashlib.blake2b(digest_size=16)
    judged = {"reward": "advantage", "max_turns": 4}
    for options in ({}, judged, EVERYTHING | {"required": "shown", "printed_rules": False}):
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


@pytest.mark.long
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
