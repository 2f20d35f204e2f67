"""The rewards `value` and `advantage` of Workflow-v0: each action judged by the exact optimum, thousands at a time.

`simulator.exact.judging` says what they mean. An action is judged in two parts. Before the step V* of the state and Q*
of an execution are looked up, in the same tables as everywhere; after it V* of the state that it led to is, and the
step's reward is replaced.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.actions import INVOKE_TOOL, RETRY_TOOL
from resilisim.envs.workflow.arrays import Int, Records
from resilisim.envs.workflow.law_parts import PartTables, message_of, state_of
from resilisim.simulator.compiled import kernel
from resilisim.simulator.exact.judging import regret_of
from resilisim.simulator.exact.optimum import Solved, solve
from resilisim.simulator.exact.tables import ValueTables, make_tables, tabulated_value
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import (
    ENDED,
    LOOP,
    NO_LOOP,
    NUM_COUNTERS,
    NUM_FAILURES,
    RUNNING,
    EpisodeState,
    record_execution,
    record_turn,
)
from resilisim.tool_library import ToolLibrary

# What is known of an environment's action before the step.
NOT_ACTING = 0  # the episode had ended before it
NOTHING_DRAWN = 1  # its Q*, if it is asked for, is V* of the state that it leads to
EXECUTING = 2


class Judged(NamedTuple):
    """What is known of the actions before a step, (num_envs,) each; `action_values` of executions only."""

    kinds: Int
    values: NDArray[np.float64]
    action_values: NDArray[np.float64]


@kernel
def judge_before(
    advantage: bool,
    actions: Int,
    episodes: Records,
    tasks: Records,
    worlds: Records,
    tables: ValueTables,
    judged: Judged,
) -> None:
    """Judge the actions (num_envs,) that are about to happen."""
    world = worlds[0]
    after = np.zeros(NUM_COUNTERS, dtype=np.int64)
    for env in range(len(actions)):
        episode = episodes[env]
        judged.kinds[env] = NOT_ACTING
        if episode.needs_reset:
            continue
        task, entry, status = tasks[episode.task], tables.entries[episode.task], episode.status
        judged.values[env] = tabulated_value(status, episode.counters, entry, tables)
        judged.kinds[env] = NOTHING_DRAWN
        if not advantage:
            continue  # Q* is not asked for
        action_type, tool = int(world.action_type[actions[env]]), int(world.action_tool[actions[env]])
        if episode.action_mask[actions[env]] == 0 or action_type not in (INVOKE_TOOL, RETRY_TOOL):
            continue
        judged.kinds[env] = EXECUTING
        before = status[tool]
        dependencies = world.dependencies[tool]
        chance = world.probability[
            world.base_index[tool],
            count_not_executed(status, dependencies),
            count_failed_dependencies(status, dependencies),
            episode.counters[NUM_FAILURES],
        ]
        expected = 0.0
        for success in range(2):
            for column in range(NUM_COUNTERS):
                after[column] = episode.counters[column]
            max_row = world.max_consecutive_failures
            record_execution(status, after, task.place[tool], tool, success == 1, max_row)
            record_turn(after, tool if before == SUCCEEDED else NO_LOOP, world.loop_length)
            if after[ENDED] == RUNNING:  # how it ends otherwise is a failure
                reached = tabulated_value(status, after, entry, tables)
                expected += (chance if success == 1 else 1.0 - chance) * reached
            status[tool] = before
        judged.action_values[env] = expected


@kernel
def pay_judged(
    advantage: bool, judged: Judged, episodes: Records, tables: ValueTables, rewards: NDArray[np.float64]
) -> None:
    """Replace the rewards (num_envs,) of the step that has been taken, also in the sums of the episodes."""
    for env in range(len(rewards)):
        if judged.kinds[env] == NOT_ACTING:
            continue
        episode = episodes[env]
        if episode.terminated:
            reached = 1.0 if episode.full_success else 0.0
            entry = tables.entries[episode.final_task]
        else:
            entry = tables.entries[episode.task]
            reached = tabulated_value(episode.status, episode.counters, entry, tables)
        paid = reached - judged.values[env]
        if advantage:
            action_value = judged.action_values[env] if judged.kinds[env] == EXECUTING else reached
            paid = 0.0 - regret_of(judged.values[env], action_value, entry.gap)
        difference = paid - episode.reward
        episode.reward = paid
        rewards[env] = paid
        if episode.terminated:
            episode.total += difference
        if not episode.terminated or episode.needs_reset:  # else the next one has begun
            episode.episode_return += difference


class _Core(Protocol):
    """What is judged: the records of `core.WorkflowCore`."""

    library: ToolLibrary
    parts: PartTables | None
    episodes: Records
    records: Records
    worlds: Records


class ActionJudge:
    """Pays what actions are worth by the exact optimum.

    Args:
        core: The episodes, under the benchmark law.
        problems: Of the tasks, in their order.
        reward: One of JUDGED_REWARDS.

    Raises:
        ExactLimitError: A task is too large to be solved exactly.
    """

    def __init__(self, core: _Core, problems: list[Problem], reward: str) -> None:
        self._core = core
        self._is_advantage = reward == "advantage"
        self._tables = make_tables(problems)
        size = len(core.episodes)
        self._judged = Judged(np.zeros(size, dtype=np.int64), np.zeros(size), np.zeros(size))

    def judge(self, actions: Int) -> None:
        """Judge the actions (num_envs,) that the next step will take."""
        core = self._core
        judge_before(self._is_advantage, actions, core.episodes, core.records, core.worlds, self._tables, self._judged)

    def pay(self, rewards: NDArray[np.float64]) -> None:
        """Replace the rewards (num_envs,) of the step that was taken with these actions."""
        pay_judged(self._is_advantage, self._judged, self._core.episodes, self._tables, rewards)


class StateJudge:
    """Pays what actions are worth by the exact optimum under a law with parts, a state at a time.

    Tasks are solved when they are first met, which takes up to seconds each (`solve_reachable`); V* is that of the best
    agent that sees what agents can see, or, where that takes too many states, that sees everything.

    Args:
        core: The episodes.
        problems: Of the tasks, in their order.
        reward: One of JUDGED_REWARDS.
    """

    def __init__(self, core: _Core, problems: list[Problem], reward: str) -> None:
        self._core = core
        self._problems = problems
        self._is_advantage = reward == "advantage"
        self._judged: list[_JudgedAction | None] = []

    def _optimum(self, env: int) -> tuple[Solved, EpisodeState]:
        core = self._core
        problem = self._problems[core.episodes[env].task]
        return solve(problem), state_of(core.episodes[env], core.parts, env, problem.num_tools)

    def judge(self, actions: Int) -> None:
        """Judge the actions (num_envs,) that the next step will take.

        Raises:
            ExactLimitError: A task is too large to be solved exactly.
        """
        self._judged = [
            None if self._core.episodes[env].needs_reset else self._judge_action(env, int(action))
            for env, action in enumerate(actions)
        ]

    def _judge_action(self, env: int, action: int) -> _JudgedAction:
        core, (optimum, state) = self._core, self._optimum(env)
        assert core.parts is not None
        message, action_value = message_of(core.library, core.parts, core.episodes, env, action), 0.0
        if self._is_advantage:
            action_value = optimum.action_value(state, message or Message("search"))
        return _JudgedAction(optimum.value(state), action_value, optimum.gap, message is None)

    def pay(self, rewards: NDArray[np.float64]) -> None:
        """Replace the rewards (num_envs,) of the step that was taken with these actions."""
        for env, judged in enumerate(self._judged):
            if judged is None:
                continue
            episode = self._core.episodes[env]
            if self._is_advantage:
                closes_loop = judged.is_useless and episode.terminated and episode.ended == LOOP
                paid = 0.0 - regret_of(judged.value, 0.0 if closes_loop else judged.action_value, judged.gap)
            elif episode.terminated:
                paid = float(episode.full_success) - judged.value
            else:
                optimum, state = self._optimum(env)
                paid = optimum.value(state) - judged.value
            difference = paid - episode.reward
            episode.reward = rewards[env] = paid
            if episode.terminated:
                episode.total += difference
            if not episode.terminated or episode.needs_reset:  # else the next one has begun
                episode.episode_return += difference


class _JudgedAction(NamedTuple):
    """What is known of an action before the step; Q* is only looked up where it is paid."""

    value: float
    action_value: float
    gap: float
    is_useless: bool  # as any message is that nobody understands
