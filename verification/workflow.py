"""Check (h): agents in the batched Workflow-v0 against what is computed for them.

Following the required list and playing the exact optimum have known success rates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL, action_index
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.exact.plan_following import plan_following
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import NEXT_PLACE, EpisodeState
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks
from verification.findings import Finding
from verification.statistics import binomial_groups, worst_cell

SOURCE = "SPEC 5, benchmark law; SPEC 7, references"
NUM_TASKS, NUM_SEEDS, TASKS_OF_A_PIECE = 48, 500, 6

# Chooses a tool from a problem and a running state.
Chooser = Callable[[Problem, EpisodeState], int]


@functools.lru_cache(maxsize=1)
def tasks() -> tuple[Task, ...]:
    """Return tasks with different required lists, of every type in proportion."""
    distinct = {task.required_tools: task for task in benchmark_tasks()}
    return tuple(sample_tasks(tuple(distinct.values()), NUM_TASKS, seed=3))


@dataclass(frozen=True, slots=True)
class Played:
    """What came of the episodes of one task: successes of each agent, and their chances as computed."""

    followed: int
    following: float
    optimal: int
    optimum: float


def jobs(shift: int) -> list[tuple[int, int]]:
    """Return (first task, shift) of every piece of work."""
    return [(first, shift) for first in range(0, NUM_TASKS, TASKS_OF_A_PIECE)]


def work(job: tuple[int, int]) -> list[Played]:
    """Play some tasks with both agents, each with its own luck."""
    first, shift = job
    chosen = tasks()[first : first + TASKS_OF_A_PIECE]
    played = []
    for place, task in enumerate(chosen):
        envs = WorkflowVectorEnv(
            NUM_SEEDS,
            autoreset_mode="DISABLED",
            copy=False,
            tasks=[task],
            similarity=None,
            salt=f"verification/workflow/{shift}",
        )
        problem = envs.core.problem_of(0)
        seeds = np.arange(NUM_SEEDS) + 2 * NUM_SEEDS * (first + place)
        followed = _play(envs, seeds, _next_required)
        optimal = _play(envs, seeds + NUM_SEEDS, _best_tool)
        played.append(Played(followed, plan_following(problem), optimal, start_optimum(problem)))
    return played


def _play(envs: WorkflowVectorEnv, seeds: NDArray[np.int64], choose: Chooser) -> int:
    """Play an episode under each seed and return the number of full successes."""
    num_tools = len(envs.core.library)
    problem = envs.core.problem_of(0)
    observation, _ = envs.reset(seed=0, options={"seeds": seeds})
    running = np.arange(len(seeds))
    actions = np.zeros(len(seeds), dtype=np.int64)
    while len(running):
        for env in running.tolist():
            tool = choose(problem, envs.episode_state(env))
            invoke = action_index(INVOKE_TOOL, tool, num_tools)
            is_legal = observation["action_mask"][env, invoke]
            actions[env] = invoke if is_legal else action_index(RETRY_TOOL, tool, num_tools)
        observation, _, terminated, _, _ = envs.step(actions)
        running = running[~terminated[running]]
    return int(envs.core.episodes["full_success"].sum())


def _next_required(problem: Problem, state: EpisodeState) -> int:
    return problem.required[state.counters[NEXT_PLACE]]


def _best_tool(problem: Problem, state: EpisodeState) -> int:
    # Which executions were the earlier ones matters to luck alone; without their numbers more states are equal.
    return _solved_tool(problem, EpisodeState(state.status, state.counters, (0,) * problem.num_tools))


@functools.lru_cache(maxsize=100_000)
def _solved_tool(problem: Problem, state: EpisodeState) -> int:
    best = solve(problem).best_action(state)
    return problem.library.index(best.tool or problem.required_tools[0])


def judge(pieces: Sequence[list[Played]]) -> list[Finding]:
    """Compare the success rates of both agents with what was computed, over all tasks and for the worst one."""
    played = [one for piece in pieces for one in piece]
    trials = [NUM_SEEDS] * len(played)
    findings = []
    for name, successes, chances in (
        ("plan following", [one.followed for one in played], [one.following for one in played]),
        ("exact optimum", [one.optimal for one in played], [one.optimum for one in played]),
    ):
        together, worst = binomial_groups(successes, trials, chances), worst_cell(successes, trials, chances)
        findings.append(Finding(f"{name}: {len(played)} tasks", SOURCE, together.text, together.p_value))
        findings.append(Finding(f"{name}: the worst task", SOURCE, worst.text, worst.p_value))
    better = [one.optimum for one in played]
    control = binomial_groups([one.followed for one in played], trials, better)
    findings.append(
        Finding("control: plan following taken for V*", SOURCE, control.text, control.p_value, control=True)
    )
    return findings
