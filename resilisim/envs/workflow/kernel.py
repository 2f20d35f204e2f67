"""The compiled loops of Workflow-v0 over the scalar functions of `dynamics`."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilisim.envs.workflow.arrays import Episode, Int, World
from resilisim.envs.workflow.dynamics import begin_episode, step_environment
from resilisim.envs.workflow.observing import show_dependency_counts, show_due
from resilisim.seeding import threefry2x32
from resilisim.simulator.compiled import kernel, scalar

# Arrays of the records of `arrays`: (num_envs,), (num_tasks,), (1,).
Episodes = np.recarray[Any, Any]
TaskRecords = np.recarray[Any, Any]
Worlds = np.recarray[Any, Any]

DRAWN = -1  # outcome of an execution that luck decides (`dynamics`)

# What `step_environments` does with an environment whose episode has ended.
RESET_AT_ONCE = 0  # the same step begins the next episode
RESET_NEXT_STEP = 1  # the next step begins it, whatever its action
LEAVE_ENDED = 2  # nothing happens until it is reset

_threefry2x32 = scalar(threefry2x32)


@scalar
def begin_drawn_episode(episode: Episode, pool: Int, tasks: TaskRecords, world: World) -> None:
    """Begin the next episode of an environment: task and episode seed are functions of its seed and episode number."""
    word0, word1 = _threefry2x32(episode.seed0, episode.seed1, episode.episode, 0)
    index = pool[(word0 * len(pool)) >> 32]
    begin_episode(episode, index, word1, tasks[index], world)


@kernel
def begin_episodes(envs: Int, indices: Int, seeds: Int, episodes: Episodes, tasks: TaskRecords, worlds: Worlds) -> None:
    """Begin given episodes: task numbers `indices` and `seeds`, both (num_chosen,), in environments `envs`."""
    for chosen in range(len(envs)):
        index = indices[chosen]
        begin_episode(episodes[envs[chosen]], index, seeds[chosen], tasks[index], worlds[0])


@kernel
def begin_drawn_episodes(envs: Int, pool: Int, episodes: Episodes, tasks: TaskRecords, worlds: Worlds) -> None:
    """Begin the next episode in each of `envs` (num_chosen,), its task drawn from `pool` (num_choices,)."""
    for env in envs:
        begin_drawn_episode(episodes[env], pool, tasks, worlds[0])


@kernel
def step_one(action: int, outcome: int, episodes: Episodes, tasks: TaskRecords, worlds: Worlds) -> None:
    """Step the first environment, and leave it as it is when its episode has ended."""
    episode = episodes[0]
    step_environment(episode, action, outcome, tasks[episode.task], worlds[0])


@kernel
def step_environments(
    actions: Int, autoreset: int, pool: Int, episodes: Episodes, tasks: TaskRecords, worlds: Worlds
) -> int:
    """Step every environment with its action, (num_envs,), and return how many episodes ended."""
    num_ended = 0
    world = worlds[0]
    for env in range(len(actions)):
        episode = episodes[env]
        if episode.needs_reset:
            episode.reward = 0.0
            episode.terminated = autoreset == LEAVE_ENDED
            episode.tool = -1
            episode.tool_success = False
            episode.named_similarity = 0.0
            episode.pattern = 0.0
            if autoreset == RESET_NEXT_STEP:
                begin_drawn_episode(episode, pool, tasks, world)
            continue
        step_environment(episode, actions[env], DRAWN, tasks[episode.task], world)
        if episode.terminated:
            num_ended += 1
            if autoreset == RESET_AT_ONCE:
                begin_drawn_episode(episode, pool, tasks, world)
    return num_ended


@kernel
def write_starts(episodes: Episodes, tasks: TaskRecords, worlds: Worlds) -> None:
    """Complete the observations at the start of episodes, whose constant columns are written, with what is computed.

    Args:
        episodes: One environment, used as scratch.
        tasks: The tasks, changed in place.
        worlds: What all environments share.
    """
    episode, world = episodes[0], worlds[0]
    for index in range(len(tasks)):
        task = tasks[index]
        episode.tools[:] = task.start_tools
        episode.task_columns[:] = task.start_task
        for tool in range(world.num_tools):
            show_dependency_counts(episode, tool, task, world)
        show_due(episode, task, world)
        task.start_tools[:] = episode.tools
        task.start_task[:] = episode.task_columns
