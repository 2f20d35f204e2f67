"""The rewards `value` and `advantage` of Workflow-v0: each action judged by the exact optimum, thousands at a time.

`simulator.exact.judging` says what they mean. An action is judged in two parts. Before the step V* of the state and Q*
of an execution are looked up, in the same tables as everywhere; after it V* of the state that it led to is, and the
step's reward is replaced.

V* of many problems stands in one table that compiled code reads. Most entries of a `TabulatedOptimum` are 0: with so
many turns left, tools done and statuses nothing can succeed any more. Rows of zeros along the last three axes are left
out, which leaves about a quarter (145 MB for the train split).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.actions import INVOKE_TOOL, RETRY_TOOL
from resilisim.envs.workflow.arrays import Int, Records
from resilisim.envs.workflow.law_parts import PartTables, message_of, state_of
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.exact.arena import OUT_OF_TABLE
from resilisim.simulator.exact.judging import regret_of
from resilisim.simulator.exact.optimum import (
    NOT_KNOWN,
    TabulatedOptimum,
    loop_state,
    solve,
    status_code,
    tabulate,
    value_without_table,
)
from resilisim.simulator.exact.values import Values
from resilisim.simulator.law import SUCCEEDED, IntVector, count_failed_dependencies, count_not_executed
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP,
    NEXT_PLACE,
    NO_LOOP,
    NUM_COUNTERS,
    NUM_FAILURES,
    RUNNING,
    TURNS_USED,
    EpisodeState,
    record_execution,
    record_turn,
)
from resilisim.tool_library import ToolLibrary


class ValueTables(NamedTuple):
    """The tables of some problems, which have a library and end rules in common, one behind the other.

    Attributes:
        entries: (num_problems,) where each problem's part begins and how long it is, with `slot` and `gap`.
        digits: int64 (sum of num_digits, 3), `Arena.digits`.
        compact: int32 (sum of num_status_codes,), `Arena.compact`.
        rows: int64 (sum of turns x codes x places,) where in `values` the row of a number of turns left, a code and a
            place begins, or OUT_OF_TABLE for a row of zeros.
        values: float64, rows of failures x consecutive failures x loop states each.
    """

    entries: NDArray[Any]
    digits: NDArray[np.int64]
    compact: NDArray[np.int32]
    rows: NDArray[np.int64]
    values: NDArray[np.float64]


def _entry_dtype(num_tools: int) -> np.dtype[Any]:
    counts = ("num_required", "max_turns", "max_consecutive_failures", "loop_length", "loop_tools")
    places = ("digits", "num_digits", "compact", "num_compact", "rows", "codes", "consecutive", "loops")
    numbers: list[tuple[Any, ...]] = [(name, np.int64) for name in (*counts, *places)]
    fields = np.dtype([*numbers, ("gap", np.float64), ("slot", np.int16, (num_tools,))])
    return np.dtype((np.record, fields))


def make_tables(problems: Sequence[Problem]) -> ValueTables:
    """Solve problems and return their tables; equal problems share theirs.

    Raises:
        ExactLimitError: One of them is too large to be solved exactly.
    """
    numbers = {problem: number for number, problem in enumerate(dict.fromkeys(problems))}
    distinct = np.zeros(len(numbers), dtype=_entry_dtype(problems[0].num_tools))
    parts: dict[str, list[NDArray[Any]]] = {"digits": [], "compact": [], "rows": [], "values": []}
    lengths = dict.fromkeys(parts, 0)
    for problem, number in numbers.items():
        entry = distinct[number]
        own = _part_of(tabulate(problem), entry)
        own["rows"][own["rows"] != OUT_OF_TABLE] += lengths["values"]
        for name, part in own.items():
            if name != "values":
                entry[name] = lengths[name]
            parts[name].append(part)
            lengths[name] += len(part)
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return ValueTables(distinct[[numbers[problem] for problem in problems]], **joined)


def _part_of(optimum: TabulatedOptimum, entry: Any) -> dict[str, NDArray[Any]]:
    """Return a problem's part of each array, places in `values` counted from its own, and note its lengths."""
    problem, arena = optimum.problem, optimum.arena
    digits = np.array(arena.digits, dtype=np.int64).reshape(-1, 3)
    table = optimum.values[:, :, :-1].reshape(
        -1, int(np.prod(optimum.values.shape[3:]))
    )  # all done is 1, not looked up
    is_kept = table.any(axis=1)
    rows = np.full(len(table), OUT_OF_TABLE, dtype=np.int64)
    rows[is_kept] = np.arange(np.count_nonzero(is_kept)) * table.shape[1]
    entry["num_required"] = len(problem.required)
    entry["max_turns"] = problem.rules.max_turns
    entry["max_consecutive_failures"] = problem.rules.max_consecutive_failures
    entry["loop_length"] = problem.rules.loop_length
    entry["loop_tools"] = arena.loop_tools
    entry["num_digits"], entry["num_compact"] = len(digits), len(arena.compact)
    entry["codes"], entry["consecutive"], entry["loops"] = (optimum.values.shape[axis] for axis in (1, 4, 5))
    entry["gap"], entry["slot"] = optimum.gap, arena.slot
    return {"digits": digits, "compact": arena.compact, "rows": rows, "values": table[is_kept].ravel()}


@scalar
def tabulated_value(status: IntVector, counters: IntVector, entry: Any, tables: ValueTables) -> float:
    """Return V* of a running state, as `TabulatedOptimum.value` does; `entry` is the problem's."""
    known = value_without_table(counters, entry.num_required, entry.max_turns)
    if known != NOT_KNOWN:
        return known
    place = counters[NEXT_PLACE]
    code = status_code(status, place, tables.digits[entry.digits : entry.digits + entry.num_digits])
    column = tables.compact[entry.compact + code]
    if column == OUT_OF_TABLE:
        return 0.0
    turns_left = entry.max_turns - counters[TURNS_USED]
    row = tables.rows[entry.rows + (turns_left * entry.codes + column) * entry.num_required + place]
    if row == OUT_OF_TABLE:
        return 0.0
    consecutive = counters[CONSECUTIVE_FAILURES] if entry.max_consecutive_failures > 0 else 0
    loop = loop_state(status, counters, entry.slot, entry.loop_length) if entry.loop_tools and entry.loops > 1 else 0
    return float(tables.values[row + (counters[NUM_FAILURES] * entry.consecutive + consecutive) * entry.loops + loop])


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
        self._judged = _nothing_judged(len(core.episodes))

    def of(self, core: _Core) -> ActionJudge:
        """Return what pays the actions of a copy of the episodes, by the same tables."""
        judge = copy.copy(self)
        judge._core, judge._judged = core, _nothing_judged(len(core.episodes))
        return judge

    def judge(self, actions: Int) -> None:
        """Judge the actions (num_envs,) that the next step will take."""
        core = self._core
        judge_before(self._is_advantage, actions, core.episodes, core.records, core.worlds, self._tables, self._judged)

    def pay(self, rewards: NDArray[np.float64]) -> None:
        """Replace the rewards (num_envs,) of the step that was taken with these actions."""
        pay_judged(self._is_advantage, self._judged, self._core.episodes, self._tables, rewards)


def _nothing_judged(size: int) -> Judged:
    return Judged(np.zeros(size, dtype=np.int64), np.zeros(size), np.zeros(size))


class StateJudge:
    """Pays what actions are worth by the exact optimum under a law with parts, a state at a time.

    Tasks are solved when they are first met, which takes up to seconds each (`solve_reachable`); V* is that of the best
    agent that sees what agents can see, or less by a gap where that takes too many states.

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

    def of(self, core: _Core) -> StateJudge:
        """Return what pays the actions of a copy of the episodes."""
        return StateJudge(core, self._problems, "advantage" if self._is_advantage else "value")

    def _optimum(self, env: int) -> tuple[Values, EpisodeState]:
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
