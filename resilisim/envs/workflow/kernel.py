"""The compiled loops of Workflow-v0 over the scalar functions of `dynamics`.

There is one loop that begins episodes and one that steps them, for one environment and for thousands.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.arrays import Bytes, Episode, Int, Records, World
from resilisim.envs.workflow.copying import copy_words
from resilisim.envs.workflow.dynamics import begin_episode, step_environment
from resilisim.envs.workflow.masking import write_mask
from resilisim.envs.workflow.observing import show_confidences, show_dependency_counts, show_due, show_trainer
from resilisim.envs.workflow.prefetching import look_ahead
from resilisim.seeding import threefry2x32
from resilisim.simulator.compiled import kernel, scalar

# Arrays of the records of `arrays`: (num_envs,), (num_envs,) or fewer, (num_tasks,), (1,).
Episodes: TypeAlias = Records
Finals: TypeAlias = Records
TaskRecords: TypeAlias = Records
Worlds: TypeAlias = Records

# What `step_environments` does with an environment whose episode has ended.
RESET_AT_ONCE = 0  # the same step begins the next episode, and keeps the last observation in `finals`
RESET_NEXT_STEP = 1  # the next step begins it, whatever its action
LEAVE_ENDED = 2  # nothing happens until it is reset

_threefry2x32 = scalar(threefry2x32)


@scalar
def _begin(episode: Episode, index: int, seed: int, pool: Int, tasks: TaskRecords, world: World) -> None:
    """Begin the next episode of an environment, its task or seed drawn where `index` or `seed` is -1.

    What is drawn is a function of the environment's seed and the number of the episode.
    """
    word0, word1 = _threefry2x32(episode.seed0, episode.seed1, episode.episode, 0)
    if index < 0:
        index = pool[(word0 * len(pool)) >> 32]
    if seed < 0:
        seed = word1
    begin_episode(episode, index, seed, tasks[index], world)


@kernel
def begin_episodes(
    envs: Int, indices: Int, seeds: Int, pool: Int, episodes: Episodes, tasks: TaskRecords, worlds: Worlds
) -> None:
    """Begin the next episodes of the environments `envs`: tasks `indices` and `seeds`, both (num_chosen,), -1: drawn.

    Tasks are drawn from `pool` (num_choices,).
    """
    for chosen in range(len(envs)):
        _begin(episodes[envs[chosen]], indices[chosen], seeds[chosen], pool, tasks, worlds[0])


@kernel
def step_environments(
    actions: Int,
    outcome: int,
    autoreset: int,
    pool: Int,
    episodes: Episodes,
    finals: Finals,
    tasks: TaskRecords,
    worlds: Worlds,
    rewards: NDArray[np.float64],
    terminated: Bytes,
) -> int:
    """Step every environment with its action, and return how many episodes ended.

    Args:
        actions: (num_envs,) the actions.
        outcome: As for `step_environment`.
        autoreset: One of the three codes above.
        pool: (num_choices,) tasks from which those of new episodes are drawn.
        episodes: (num_envs,) changed in place.
        finals: (num_envs,) under RESET_AT_ONCE, written where an episode ends.
        tasks: (num_tasks,).
        worlds: (1,).
        rewards: (num_envs,) written.
        terminated: (num_envs,) written, 1 where the episode has ended.
    """
    num_ended = 0
    world = worlds[0]
    for env in range(len(actions)):
        look_ahead(env, actions, episodes, tasks, world)
        episode = episodes[env]
        begins = False
        if episode.needs_reset:
            episode.reward = 0.0
            episode.terminated = autoreset == LEAVE_ENDED
            episode.tool = -1
            episode.tool_success = False
            episode.named_similarity = 0.0
            episode.pattern = 0.0
            begins = autoreset == RESET_NEXT_STEP
        else:
            step_environment(episode, actions[env], outcome, tasks[episode.task], world)
            if episode.terminated:
                num_ended += 1
                begins = autoreset == RESET_AT_ONCE
                if begins:
                    copy_words(finals[env].words, episode.observation)
        rewards[env] = episode.reward
        terminated[env] = 1 if episode.terminated else 0
        if begins:
            _begin(episode, -1, -1, pool, tasks, world)
    return num_ended


@kernel
def show_patterns(episodes: Episodes, tasks: TaskRecords, worlds: Worlds) -> None:
    """Let running episodes show other patterns: their confidences and masks follow at once."""
    world = worlds[0]
    for env in range(len(episodes)):
        episode = episodes[env]
        if not episode.needs_reset:
            show_confidences(episode, tasks[episode.task], world)
            write_mask(episode, tasks[episode.task], world)


@kernel
def write_starts(episodes: Episodes, tasks: TaskRecords, worlds: Worlds) -> None:
    """Complete the observations at the start of episodes, whose constant columns are written, with what is computed.

    Args:
        episodes: One environment, used as scratch.
        tasks: The tasks, changed in place.
        worlds: What all environments share.
    """
    episode, world = episodes[0], worlds[0]
    episode.running_success = world.running_success
    episode.stage = world.stage
    copy_words(episode.state, world.start_state)
    for index in range(len(tasks)):
        task = tasks[index]
        copy_words(episode.observation, task.start_observation)
        for tool in range(world.num_tools):
            show_dependency_counts(episode, tool, task, world)
        show_due(episode, task, world)
        show_trainer(episode, world)
        write_mask(episode, task, world)
        copy_words(task.start_observation, episode.observation)
