"""Whole episodes of the contestants as arrays: played once by the code that evaluates agents, then used many times."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.table.controls import more_controls
from resilisim.statistics import Pairs
from resilisim.statistics.luck_adjustment import NUM_MORE
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks
from resilisim.workflows import ExactPlanner
from verification.contestants import Contestant, NoisyOptimum, optimum_of
from verification.policies import Peeks, RequiredOrder
from verification.score import find_by_words

FloatArray = NDArray[np.float64]
NUM_CONTROLS = 1 + NUM_MORE  # luck, and the other sums with mean zero


@dataclass(frozen=True, slots=True)
class Contest:
    """What the episodes of several contestants brought, all on the same tasks, seeds and luck.

    Attributes:
        task_ids: Their ids; (num_tasks,).
        outcome: (num_contestants, num_tasks, num_seeds) 1 for a full success, else 0.
        luck: (num_contestants, num_tasks, num_seeds, NUM_CONTROLS) luck, and the other sums with mean zero.
        optimum: (num_tasks,) V* of the start.
    """

    task_ids: tuple[str, ...]
    outcome: FloatArray
    luck: FloatArray
    optimum: FloatArray


@functools.lru_cache(maxsize=4)
def distinct_tasks(count: int) -> tuple[Task, ...]:
    """Return tasks of every type, all with different required lists."""
    distinct = {task.required_tools: task for task in reversed(benchmark_tasks())}
    return tuple(sample_tasks(tuple(distinct.values()), count))


def play_contest(contestants: Sequence[Contestant], tasks: Sequence[Task], num_seeds: int, salt: str) -> Contest:
    """Play every contestant on every task with the seeds 0, 1, ..., by the code that evaluates agents."""
    environments = {
        planner.name: ConversationEnv(salt=salt, planner=planner, search=find_by_words)
        for planner in (ExactPlanner(), RequiredOrder())
    }
    shape = (len(contestants), len(tasks), num_seeds)
    outcome, luck = np.zeros(shape), np.zeros((*shape, NUM_CONTROLS))
    for number, contestant in enumerate(contestants):
        env, policy = environments[contestant.planner], contestant.make()
        for place, task in enumerate(tasks):
            for seed in range(num_seeds):
                if isinstance(policy, NoisyOptimum):
                    policy.begin(seed, task.instance_id)
                if isinstance(policy, Peeks):
                    policy.cheat(seed, task.instance_id)
                record = play_episode(env, policy, task, contestant.prompt, seed)
                outcome[number, place, seed] = record["outcome"]
                luck[number, place, seed] = record["luck"], *more_controls(record)
    optimum = np.array([optimum_of(task) for task in tasks])
    return Contest(tuple(task.instance_id for task in tasks), outcome, luck, optimum)


def joined(pieces: Sequence[Contest]) -> Contest:
    """Return contests of the same contestants and seeds on different tasks as one."""
    return Contest(
        tuple(task for piece in pieces for task in piece.task_ids),
        np.concatenate([piece.outcome for piece in pieces], axis=1),
        np.concatenate([piece.luck for piece in pieces], axis=1),
        np.concatenate([piece.optimum for piece in pieces]),
    )


def pairs_of(contest: Contest, a: int, b: int) -> Pairs:
    """Return the episodes of two contestants, matched by task and seed."""
    num_tasks, num_seeds = contest.outcome.shape[1:]
    optimum = np.repeat(contest.optimum, num_seeds)
    return Pairs(
        tasks=contest.task_ids,
        task=np.repeat(np.arange(num_tasks), num_seeds),
        seed=np.tile(np.arange(num_seeds), num_tasks),
        outcome_a=contest.outcome[a].ravel(),
        outcome_b=contest.outcome[b].ravel(),
        luck_a=contest.luck[a, :, :, 0].ravel(),
        luck_b=contest.luck[b, :, :, 0].ravel(),
        more=(contest.luck[a, :, :, 1:].reshape(-1, NUM_MORE), contest.luck[b, :, :, 1:].reshape(-1, NUM_MORE)),
        optimum=optimum,
        ceiling_a=optimum,
        ceiling_b=optimum,
        tries_again=False,
        num_without_partner=(0, 0),
    )
