"""The compiled loops over the episodes of Workflow-v0: they begin, they step, and show other columns.

They are the same for one environment and for thousands, and under every law. Thousands of episodes do not fit into a
core's own caches, so the loop asks for an episode's memory some environments ahead of its turn, and does not wait for
it; and luck is drawn for some environments at once, which a processor does side by side. Neither changes a value. Plain
Python leaves prefetching out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.kernels.mask import show_confidences, write_mask
from resilisim.envs.workflow.kernels.observation import show_dependency_counts, show_due, show_trainer
from resilisim.envs.workflow.kernels.records import (
    Bytes,
    Episode,
    EpisodeBlocks,
    Int,
    Records,
    SectionsBlocks,
    Words,
    World,
    copy_words,
)
from resilisim.envs.workflow.kernels.step import Luck, begin_episode, step_environment
from resilisim.seeding import PURPOSE_SUCCESS, WORD_MASK
from resilisim.simulator.compiled import inlined, inlined_bits, inlined_threefry, kernel, prefetch, scalar

AHEAD = 6  # environments
WORDS_PER_LINE = 8

# Rows of what is drawn for some environments at once, one for each column: words of 32 bits, so that the processor has
# a lane for each. The bits that are drawn are more than a word.
KEY0, KEY1, HIGH_BITS, LOW_BITS, WORD0, WORD1, ATTEMPT = range(7)
NUM_ROWS, NUM_COLUMNS = 7, 16
WORD_BITS = 32


@inlined
def look_ahead(env: int, actions: Int, episodes: Records, tasks: Records, world: World) -> None:
    """Ask for what environments after `env` will need when it is their turn to step.

    What `draw_luck` reads is asked for one draw ahead, and what depends on it, which is then there, later.
    """
    if env + NUM_COLUMNS < len(actions):
        episode = episodes[env + NUM_COLUMNS]
        prefetch(episode.identity, 0)
        for line in range(5):
            prefetch(episode.state, line * WORDS_PER_LINE)
    if env + AHEAD >= len(actions):
        return
    episode = episodes[env + AHEAD]
    prefetch(episode.observation, 0)
    prefetch(episode.observation, WORDS_PER_LINE)
    prefetch(tasks[episode.task].numbers, 0)
    tool = int(world.action_tool[actions[env + AHEAD]])
    if tool >= 0:
        prefetch(episode.tools[tool], 0)


@scalar
def _next_words(episode: Episode) -> tuple[int, int]:
    """Return two 32-bit words for the next episode: of its task and its seed."""
    word0, word1 = inlined_threefry(episode.seed0, episode.seed1, episode.episode, 0)
    return word0, word1


@scalar
def _drawn_task(word: int, pool: Int) -> int:
    return int(pool[(word * len(pool)) >> 32])


@inlined
def look_for_start(episode: EpisodeBlocks, pool: Int, tasks: Records) -> None:
    """Ask for what an environment's next episode will begin with, and for where it is written."""
    start = tasks[_drawn_task(_next_words(episode)[0], pool)].start_observation
    for word in range(0, len(start), WORDS_PER_LINE):
        prefetch(start, word)
        prefetch(episode.observation, word)


@inlined
def draw_luck(actions: Int, episodes: Records, pool: Int, tasks: Records, world: World, draws: Words) -> None:
    """Draw what `luck_of` returns for the tools of up to NUM_COLUMNS actions, into (NUM_ROWS, NUM_COLUMNS).

    Environments that wait for a reset ask for their start meanwhile.
    """
    for column in range(len(actions)):
        episode = episodes[column]
        if episode.needs_reset:
            look_for_start(episode, pool, tasks)
        tool = max(0, int(world.action_tool[actions[column]]))
        draws[KEY0, column] = episode.key0
        draws[KEY1, column] = episode.key1
        draws[WORD0, column] = world.tool_word0[tool]
        draws[WORD1, column] = world.tool_word1[tool]
        draws[ATTEMPT, column] = episode.executions[tool]
    for column in range(NUM_COLUMNS):  # a constant, and no branches: computed side by side
        word0, word1 = np.int64(draws[WORD0, column]), np.int64(draws[WORD1, column])
        key0, key1 = inlined_threefry(np.int64(draws[KEY0, column]), np.int64(draws[KEY1, column]), word0, word1)
        bits = inlined_bits(key0, key1, np.int64(draws[ATTEMPT, column]), PURPOSE_SUCCESS)
        draws[KEY0, column] = key0
        draws[KEY1, column] = key1
        draws[HIGH_BITS, column] = bits >> WORD_BITS
        draws[LOW_BITS, column] = bits & WORD_MASK


@inlined
def luck_in(draws: Words, column: int) -> Luck:
    """Return what was drawn into a column."""
    bits = (np.int64(draws[HIGH_BITS, column]) << WORD_BITS) | np.int64(draws[LOW_BITS, column])
    return int(np.int64(draws[KEY0, column])), int(np.int64(draws[KEY1, column])), int(bits)


# What `step_environments` does with an environment whose episode has ended.
RESET_AT_ONCE = 0  # the same step begins the next episode, and keeps the last observation in `finals`
RESET_NEXT_STEP = 1  # the next step begins it, whatever its action
LEAVE_ENDED = 2  # nothing happens until it is reset


@inlined
def place_of_sections(env: int, world: World) -> int:
    """Return where an environment's record of sections stands; under a law without there is one, which nobody reads."""
    return env if world.has_sections else 0


@scalar
def _begin(
    episode: EpisodeBlocks,
    sections: SectionsBlocks,
    index: int,
    seed: int,
    pool: Int,
    tasks: Records,
    world: World,
) -> None:
    """Begin the next episode, a function of the environment's seed and the episode's number; -1 draws task or seed."""
    word0, word1 = _next_words(episode)
    if index < 0:
        index = _drawn_task(word0, pool)
    if seed < 0:
        seed = word1
    begin_episode(episode, sections, index, seed, tasks[index], world)


@kernel
def begin_episodes(
    envs: Int,
    indices: Int,
    seeds: Int,
    pool: Int,
    episodes: Records,
    sections: Records,
    tasks: Records,
    worlds: Records,
) -> None:
    """Begin episodes of `envs`: tasks `indices` and `seeds`, both (num_chosen,), -1: drawn, tasks from `pool`."""
    world = worlds[0]
    for chosen in range(len(envs)):
        env = envs[chosen]
        own = sections[place_of_sections(env, world)]
        _begin(episodes[env], own, indices[chosen], seeds[chosen], pool, tasks, world)


@kernel
def step_environments(
    actions: Int,
    result: int,
    ticks: int,
    shown: int,
    autoreset: int,
    pool: Int,
    episodes: Records,
    sections: Records,
    finals: Records,
    final_sections: Records,
    tasks: Records,
    worlds: Records,
    rewards: NDArray[np.float64],
    terminated: Bytes,
) -> int:
    """Step every environment with its action, and return how many episodes ended.

    `rewards`, `terminated` and, under RESET_AT_ONCE, `finals` are written, all (num_envs,); so are `sections` and
    `final_sections` where the law has any. Result, ticks and what a failure shows are the `Outcome` that executions are
    made to bring, one by one, as a tuple takes longer to hand over; `autoreset` is one of the codes above; new tasks
    come from `pool` (num_choices,).
    """
    num_ended = 0
    world, outcome = worlds[0], (result, ticks, shown)
    draws = np.zeros((NUM_ROWS, NUM_COLUMNS), dtype=np.uint32)
    for env in range(len(actions)):
        column = env % NUM_COLUMNS
        if column == 0:
            block = episodes[env : env + NUM_COLUMNS]
            draw_luck(actions[env : env + NUM_COLUMNS], block, pool, tasks, world, draws)
        look_ahead(env, actions, episodes, tasks, world)
        episode, own = episodes[env], sections[place_of_sections(env, world)]
        begins = False
        if episode.needs_reset:
            episode.reward = 0.0
            episode.terminated = autoreset == LEAVE_ENDED
            episode.tool = -1
            episode.tool_success = False
            episode.pattern = 0.0
            begins = autoreset == RESET_NEXT_STEP
        else:
            luck = luck_in(draws, column)
            step_environment(episode, own, actions[env], outcome, luck, tasks[episode.task], world)
            if episode.terminated:
                num_ended += 1
                begins = autoreset == RESET_AT_ONCE
                if begins:
                    copy_words(finals[env].words, episode.observation)
                    if world.has_sections:
                        copy_words(final_sections[env].words, own.observation)
        rewards[env] = episode.reward
        terminated[env] = 1 if episode.terminated else 0
        if begins:
            _begin(episode, own, -1, -1, pool, tasks, world)
    return num_ended


@kernel
def show_patterns(episodes: Records, sections: Records, tasks: Records, worlds: Records) -> None:
    """Let running episodes show other patterns: their confidences and masks follow at once."""
    world = worlds[0]
    for env in range(len(episodes)):
        episode = episodes[env]
        if not episode.needs_reset:
            show_confidences(episode, tasks[episode.task], world)
            write_mask(episode, sections[place_of_sections(env, world)], tasks[episode.task], world)


@kernel
def write_starts(episodes: Records, sections: Records, tasks: Records, worlds: Records) -> None:
    """Complete the observations at the start of episodes with what is computed; `episodes` is one, as scratch."""
    episode, own, world = episodes[0], sections[0], worlds[0]
    episode.running_success = world.running_success
    episode.stage = world.stage
    episode.max_turns = world.max_turns
    copy_words(episode.state, world.start_state)
    copy_words(own.observation, world.start_sections)
    for index in range(len(tasks)):
        task = tasks[index]
        copy_words(episode.observation, task.start_observation)
        for tool in range(world.rules.num_tools):
            show_dependency_counts(episode, tool, task, world)
        show_due(episode, own, task, world)
        show_trainer(episode, world)
        write_mask(episode, own, task, world)
        copy_words(task.start_observation, episode.observation)
        task.fallback = episode.fallback
