"""Whole episodes of the contestants as arrays: played once by the code that evaluates agents, then used many times."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.statistics import Pairs
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks
from resilisim.workflows import ExactPlanner
from verification.contestants import Contestant, NoisyOptimum, optimum_of
from verification.policies import Peeks, RequiredOrder
from verification.score import find_by_words

FloatArray = NDArray[np.float64]
# Each message's luck times a number that is known before the draw has mean zero too. With v = V* before the message and
# t = turns used as a share of ten, the numbers are 1 (this is the luck itself), v, v^2, t and v t.
NUM_WEIGHTS = 5


@dataclass(frozen=True, slots=True)
class Contest:
    """What the episodes of several contestants brought, all on the same tasks, seeds and luck.

    Attributes:
        task_ids: Their ids; (num_tasks,).
        outcome: (num_contestants, num_tasks, num_seeds) 1 for a full success, else 0.
        luck: (num_contestants, num_tasks, num_seeds, NUM_WEIGHTS) the sum of luck, and weighted sums of it.
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
    outcome, luck = np.zeros(shape), np.zeros((*shape, NUM_WEIGHTS))
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
                luck[number, place, seed] = weighted_luck(record)
    optimum = np.array([optimum_of(task) for task in tasks])
    return Contest(tuple(task.instance_id for task in tasks), outcome, luck, optimum)


def weighted_luck(record: EpisodeRecord) -> FloatArray:
    """Return the sums of luck with each of the weights; shape (NUM_WEIGHTS,)."""
    steps = record["steps"]
    luck = np.array([step["luck"] for step in steps])
    value = np.array([step["value"] for step in steps])
    turns = np.arange(len(steps)) / 10.0
    weights = np.stack([np.ones(len(steps)), value, value**2, turns, value * turns])
    sums: FloatArray = weights @ luck
    return sums


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
        optimum=optimum,
        ceiling_a=optimum,
        ceiling_b=optimum,
        tries_again=False,
        num_without_partner=(0, 0),
    )
