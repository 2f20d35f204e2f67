"""The batched environment: seeds, chosen episodes, masks of resets, saved states."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.tasks.benchmark import benchmark_tasks
from tests.envs.workflow.cases import random_actions, random_legal

TASKS = benchmark_tasks()[:50]
TRAINING = {"law": "training", "reward": "two_phase", "filters": ("semantic", "constraint")}


def play(envs, observations, num_steps, seed=0):
    """Return everything that some steps of random play show, as one list of arrays."""
    generator = np.random.default_rng(seed)
    shown = []
    for _ in range(num_steps):
        actions = random_actions(observations["action_mask"], generator)
        observations, rewards, terminated, _, infos = envs.step(actions)
        ends = [infos[name][infos[f"_{name}"]] for name in ("success", "score", "task", "steps") if name in infos]
        shown += [*observations.values(), rewards, terminated, *ends]
    return shown


def assert_same(one, other):
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_reset_without_a_seed_goes_on_with_the_sequence():
    envs, one = WorkflowVectorEnv(2, tasks=TASKS), WorkflowEnv(tasks=TASKS)
    envs.reset(seed=4)
    one.reset(seed=5)
    for _ in range(5):
        envs.reset()
        _, info = one.reset()
        assert envs.core.tasks[envs.core.episodes["task"][1]].instance_id == info["instance_id"]
        assert envs.core.episodes["seed"][1] == info["episode_seed"]


def test_a_sequence_of_seeds_gives_each_environment_its_own():
    envs = WorkflowVectorEnv(3, tasks=TASKS)
    envs.reset(seed=[9, 4, 9])
    seeds = envs.core.episodes["seed"].tolist()
    assert seeds[0] == seeds[2] != seeds[1]
    one = WorkflowEnv(tasks=TASKS)
    assert [one.reset(seed=seed)[1]["episode_seed"] for seed in (9, 4)] == seeds[:2]
    envs.reset(seed=[None, 4, None])  # the others go on
    assert envs.core.episodes["seed"][1] == seeds[1]
    assert envs.core.episodes["episode"].tolist() == [2, 1, 2]


def test_episode_seeds_and_tasks_do_not_depend_on_each_other():
    envs = WorkflowVectorEnv(4000, tasks=TASKS)
    envs.reset(seed=0)
    seeds, tasks = envs.core.episodes["seed"], envs.core.episodes["task"]
    assert len(set(seeds.tolist())) > 3990
    counts = np.bincount(tasks, minlength=50)
    assert abs(counts - 80).max() < 5 * np.sqrt(80)
    assert abs(np.corrcoef(seeds, tasks)[0, 1]) < 0.08


@pytest.mark.parametrize("options", [{}, TRAINING])
def test_an_episode_of_a_batch_runs_again_alone(options):
    """Whatever stood beside it, task and episode seed are all that an episode needs."""
    many = WorkflowVectorEnv(16, tasks=TASKS, autoreset_mode="DISABLED", **options)
    tasks, seeds = np.arange(16) * 3, np.arange(16) + 1000
    observations, _ = many.reset(seed=1, options={"tasks": tasks, "seeds": seeds})
    np.testing.assert_array_equal(many.core.episodes["task"], tasks)
    alone = WorkflowVectorEnv(1, tasks=TASKS, autoreset_mode="DISABLED", **options)
    one = WorkflowEnv(tasks=TASKS, **options)
    chosen = 11
    beside, _ = alone.reset(seed=99, options={"tasks": tasks[chosen : chosen + 1], "seeds": seeds[chosen : chosen + 1]})
    scalar, _ = one.reset(options={"task": int(tasks[chosen]), "episode_seed": int(seeds[chosen])})
    generator = np.random.default_rng(0)
    ended = False
    while not ended:
        for name, array in observations.items():
            np.testing.assert_array_equal(array[chosen], beside[name][0])
            np.testing.assert_array_equal(array[chosen], scalar[name])
        actions = random_legal(observations["action_mask"], generator)
        observations, rewards, terminated, _, _ = many.step(actions)
        beside, reward, _, _, _ = alone.step(actions[chosen : chosen + 1])
        scalar, scalar_reward, ended, _, _ = one.step(actions[chosen])
        assert rewards[chosen] == reward[0] == scalar_reward
        assert terminated[chosen] == ended


@pytest.mark.parametrize("options", [{}, {"reward": "advantage"}, TRAINING])
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_results_do_not_depend_on_the_number_of_threads(options, mode):
    shown = []
    for threads in (1, 2, 7):
        envs = WorkflowVectorEnv(37, tasks=TASKS, autoreset_mode=mode, threads=threads, **options)
        observations, _ = envs.reset(seed=3)
        shown.append(play(envs, observations, 12))
    assert_same(shown[0], shown[1])
    assert_same(shown[0], shown[2])


def _sum_of_rewards(envs):
    envs.reset(seed=0)
    return sum(float(envs.step(envs.action_masks().argmax(axis=1))[1].sum()) for _ in range(8))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_forked_process_has_threads_of_its_own():
    envs = WorkflowVectorEnv(8, tasks=TASKS, threads=2)
    expected = _sum_of_rewards(envs)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_sum_of_rewards, (WorkflowVectorEnv(8, tasks=TASKS, threads=2),)).get(60) == expected


def test_a_reset_mask_leaves_the_others_alone():
    envs = WorkflowVectorEnv(4, tasks=TASKS, autoreset_mode=AutoresetMode.DISABLED)
    observations, _ = envs.reset(seed=0)
    observations, *_ = envs.step(np.arange(4))
    mask = np.array([False, True, False, True])
    after, _ = envs.reset(options={"reset_mask": mask})
    for name, array in after.items():
        np.testing.assert_array_equal(array[~mask], observations[name][~mask])
    assert after["task"][:, spaces.TASK_STEPS_USED].tolist() == [1, 0, 1, 0]
    assert envs.core.episodes["episode"].tolist() == [1, 2, 1, 2]
    again, _ = envs.reset(seed=50, options={"reset_mask": mask})
    assert again["task"][:, spaces.TASK_STEPS_USED].tolist() == [1, 0, 1, 0]
    assert envs.core.episodes["episode"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("options", [{}, TRAINING])
def test_a_saved_state_continues_identically(options):
    envs = WorkflowVectorEnv(8, tasks=TASKS, autoreset_mode="SAME_STEP", **options)
    names = envs.core.library.names
    envs.set_running_success(0.4)
    envs.set_stage(1)
    envs.set_patterns({(names[0], names[1]): 0.5})
    observations, _ = envs.reset(seed=0)
    play(envs, observations, 13)
    saved = envs.get_state()
    present = {name: array.copy() for name, array in envs.core.observation.items()}
    expected = play(envs, present, 40, seed=1)
    again = WorkflowVectorEnv(8, tasks=TASKS, autoreset_mode="SAME_STEP", **options)
    again.set_state(saved)
    assert_same(list(present.values()), list(again.core.observation.values()))
    assert_same(expected, play(again, present, 40, seed=1))
    envs.set_state(saved)  # what was saved has not changed meanwhile
    assert_same(expected, play(envs, present, 40, seed=1))


def test_a_saved_state_of_another_size_is_refused():
    saved = WorkflowVectorEnv(3, tasks=TASKS).get_state()
    for arrays, words in ((saved, r"expected the shape \(2"), ({}, "got nothing")):
        with pytest.raises(InvalidInputError, match=words):
            WorkflowVectorEnv(2, tasks=TASKS).set_state(arrays)
