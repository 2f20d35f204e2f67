"""The rewards `value` and `advantage` of Workflow-v0: each action judged by the exact optimum.

`simulator.exact.judging` says what they mean. An action is judged in two parts. Before the step V* of the state and Q*
of the action are looked up; after it V* of the state that it led to is, and the step's reward is replaced. Where they
are looked up follows from how tasks are solved (`TabulatedValues`, `SolvedValues`).

V* of many problems under a plain law stands in one table that compiled code reads. Most entries of a
`TabulatedOptimum` are 0: with so many turns left, tools done and statuses nothing can succeed any more. Rows of zeros
along the last three axes are left out, which leaves about a quarter (145 MB for the train split).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.kernels.batch_loops import place_of_sections
from resilisim.envs.workflow.kernels.records import Floats, Int, Records
from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL
from resilisim.errors import CheckFailed
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.exact.arena import OUT_OF_TABLE
from resilisim.simulator.exact.judging import regret_of
from resilisim.simulator.exact.optimum import (
    TabulatedOptimum,
    loop_state,
    solve,
    status_code,
    tabulate,
    value_without_table,
)
from resilisim.simulator.exact.simplification import NOT_KNOWN
from resilisim.simulator.exact.values import Values
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.entering import enter_result, signature_of_call
from resilisim.simulator.rulebook.rules import (
    AS_HIDDEN,
    FAILURE,
    SUCCESS,
    law_probability,
)
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP,
    NEXT_PLACE,
    NUM_COUNTERS,
    NUM_FAILURES,
    RUNNING,
    TURNS_USED,
    EpisodeState,
    record_turn,
)
from resilisim.simulator.tool_status import IntVector


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
    """What is known of the actions of a step, (num_envs,) each; `action_values` where something is drawn."""

    kinds: Int
    values: NDArray[np.float64]
    action_values: NDArray[np.float64]
    reached: NDArray[np.float64]  # V* of the state after it
    gaps: NDArray[np.float64]  # how far V* may lie above what is said of it


@kernel
def judge_before(
    advantage: bool,
    actions: Int,
    episodes: Records,
    sections: Records,
    tasks: Records,
    worlds: Records,
    tables: ValueTables,
    judged: Judged,
) -> None:
    """Judge the actions (num_envs,) that are about to happen."""
    world = worlds[0]
    rules, law = world.rules, world.tables
    after = np.zeros(NUM_COUNTERS, dtype=np.int64)
    for env in range(len(actions)):
        episode = episodes[env]
        judged.kinds[env] = NOT_ACTING
        if episode.needs_reset:
            continue
        task, entry, status = tasks[episode.task], tables.entries[episode.task], episode.status
        judged.gaps[env] = entry.gap
        judged.values[env] = tabulated_value(status, episode.counters, entry, tables)
        judged.kinds[env] = NOTHING_DRAWN
        if not advantage:
            continue  # Q* is not asked for
        action_type, tool = int(world.action_type[actions[env]]), int(world.action_tool[actions[env]])
        if episode.action_mask[actions[env]] == 0 or action_type not in (INVOKE_TOOL, RETRY_TOOL):
            continue
        judged.kinds[env] = EXECUTING
        own, before = sections[place_of_sections(env, world)], status[tool]
        parts, hidden = own.parts, own.hidden
        signature = signature_of_call(rules, status, parts, tool)
        chance, expected = law_probability(rules, law, status, episode.counters, tool), 0.0
        for result in (SUCCESS, FAILURE):
            for column in range(NUM_COUNTERS):
                after[column] = episode.counters[column]
            enter_result(rules, task, law, status, after, parts, hidden, False, tool, result, 0, 0, AS_HIDDEN, 0)
            record_turn(after, signature, rules.loop_length)
            if after[ENDED] == RUNNING:  # how it ends otherwise is a failure
                reached = tabulated_value(status, after, entry, tables)
                expected += (chance if result == SUCCESS else 1.0 - chance) * reached
            status[tool] = before
        judged.action_values[env] = expected


@kernel
def judge_after(episodes: Records, tables: ValueTables, judged: Judged) -> None:
    """Look up V* of the states that the step has led to."""
    for env in range(len(episodes)):
        episode = episodes[env]
        if episode.terminated:
            judged.reached[env] = 1.0 if episode.full_success else 0.0
        elif judged.kinds[env] != NOT_ACTING:
            entry = tables.entries[episode.task]
            judged.reached[env] = tabulated_value(episode.status, episode.counters, entry, tables)


@kernel
def pay_judged(advantage: bool, judged: Judged, episodes: Records, rewards: Floats) -> int:
    """Replace the rewards (num_envs,) of the step that has been taken, also in the sums of the episodes.

    Returns:
        An environment in which Q* is above V* although that is exact, or -1.
    """
    wrong = -1
    for env in range(len(rewards)):
        if judged.kinds[env] == NOT_ACTING:
            continue
        episode = episodes[env]
        paid = judged.reached[env] - judged.values[env]
        if advantage:
            action_value = judged.action_values[env] if judged.kinds[env] == EXECUTING else judged.reached[env]
            paid = 0.0 - regret_of(judged.values[env], action_value, judged.gaps[env])
            if paid > 0.0 and judged.gaps[env] == 0.0:
                wrong = env
        difference = paid - episode.reward
        episode.reward = paid
        rewards[env] = paid
        if episode.terminated:
            episode.total += difference
        if not episode.terminated or episode.needs_reset:  # else the next one has begun
            episode.episode_return += difference
    return wrong


class _Core(Protocol):
    """What is judged: the records of `core.WorkflowCore`."""

    episodes: Records
    sections: Records
    records: Records
    worlds: Records

    def state_of(self, env: int) -> EpisodeState: ...

    def message_of(self, env: int, action: int) -> Message | None: ...


class ActionValues(Protocol):
    """Where V* and Q* of actions come from."""

    def before(self, core: _Core, actions: Int, advantage: bool, judged: Judged) -> None:
        """Write what is known of actions (num_envs,) before the step; Q* only if it is asked for."""

    def after(self, core: _Core, judged: Judged) -> None:
        """Write V* of the states after it."""


class TabulatedValues:
    """V* from tables of all tasks, thousands at a time; made at the start, for laws without sections.

    Raises:
        ExactLimitError: A task is too large to be solved exactly.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._tables = make_tables(problems)

    def before(self, core: _Core, actions: Int, advantage: bool, judged: Judged) -> None:
        """Look up V* of the states, and Q* of executions."""
        judge_before(advantage, actions, core.episodes, core.sections, core.records, core.worlds, self._tables, judged)

    def after(self, core: _Core, judged: Judged) -> None:
        """Look up V* of the states reached."""
        judge_after(core.episodes, self._tables, judged)


class SolvedValues:
    """V* a state at a time, of tasks that are solved when they are first met, which takes up to seconds each.

    It is that of the best agent that sees what agents can see, or less by a gap where that takes too many states.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._problems = problems
        self._is_useless: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def before(self, core: _Core, actions: Int, advantage: bool, judged: Judged) -> None:
        """Ask for V* of the states, and Q* of every action.

        Raises:
            ExactLimitError: A task is too large to be solved exactly.
        """
        self._is_useless = np.zeros(len(actions), dtype=np.bool_)
        for env, action in enumerate(actions):
            if core.episodes[env].needs_reset:
                judged.kinds[env] = NOT_ACTING
                continue
            optimum, state, message = self._optimum(core, env), core.state_of(env), core.message_of(env, int(action))
            judged.kinds[env], judged.gaps[env] = EXECUTING, optimum.gap
            judged.values[env] = optimum.value(state)
            self._is_useless[env] = message is None  # as any message is that nobody understands
            if advantage:
                judged.action_values[env] = optimum.action_value(state, message or Message("search"))

    def after(self, core: _Core, judged: Judged) -> None:
        """Ask for V* of the states reached; a useless message that closed a loop was worth nothing."""
        for env, episode in enumerate(core.episodes):
            if judged.kinds[env] == NOT_ACTING:
                continue
            if not episode.terminated:
                judged.reached[env] = self._optimum(core, env).value(core.state_of(env))
                continue
            judged.reached[env] = float(episode.full_success)
            if self._is_useless[env] and episode.ended == LOOP:
                judged.action_values[env] = 0.0

    def _optimum(self, core: _Core, env: int) -> Values:
        return solve(self._problems[core.episodes[env].task])


class ActionJudge:
    """Pays what actions are worth by the exact optimum.

    Args:
        core: The episodes, under any law but the training law.
        values: Where V* comes from.
        reward: One of JUDGED_REWARDS.
    """

    def __init__(self, core: _Core, values: ActionValues, reward: str) -> None:
        self._core = core
        self._is_advantage = reward == "advantage"
        self._values = values
        self._judged = _nothing_judged(len(core.episodes))

    def of(self, core: _Core) -> ActionJudge:
        """Return what pays the actions of a copy of the episodes, by the same values."""
        judge = copy.copy(self)
        judge._core, judge._judged = core, _nothing_judged(len(core.episodes))
        judge._values = copy.copy(self._values)
        return judge

    def judge(self, actions: Int) -> None:
        """Judge the actions (num_envs,) that the next step will take."""
        self._values.before(self._core, actions, self._is_advantage, self._judged)

    def pay(self, rewards: NDArray[np.float64]) -> None:
        """Replace the rewards (num_envs,) of the step that was taken with these actions."""
        self._values.after(self._core, self._judged)
        wrong = pay_judged(self._is_advantage, self._judged, self._core.episodes, rewards)
        if wrong >= 0:
            raise CheckFailed(f"Q* is above V* = {self._judged.values[wrong]}: the optimum is not one")


def _nothing_judged(size: int) -> Judged:
    return Judged(np.zeros(size, dtype=np.int64), *(np.zeros(size) for _ in range(4)))
