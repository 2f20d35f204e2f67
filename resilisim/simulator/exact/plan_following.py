"""The chances of an agent that follows a plan to the letter: each step until it succeeds or its limits say to go on.

`follow_states` is what that means, under any law and for any goal: a recursion over the states of the episode. For a
list in order under a law without parts a compiled chain says the same, for the thousands of plans that are tried and
compared (`follow`). What has been done so far then follows from the step that the agent stands at and from how it left
the steps that have limits: with success, after failed tries, or untried. So its state is the step, that history, the
turns used, and how its last failures and repetitions lie, and these go on as the simulator's own functions say, which
are tabulated. The chain stays beside the recursion since it adds up numbers in an array where the recursion makes
states: to list and enter one result of a call takes the law's own functions, compiled, longer than the chain takes for
dozens of them, and limits are chosen by following hundreds of plans (docs/decisions/optimum.md). `best_limits` chooses
the limits so that the plan, followed to the letter, succeeds as often as it can.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.messages import Message, execution
from resilisim.simulator.problem import Problem, branches, build_problem, is_awaiting_closing, start_state
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NO_LOOP,
    NUM_COUNTERS,
    RUNNING,
    SPOILT,
    TURNS_USED,
    EpisodeState,
    has_succeeded,
    record_execution,
    record_turn,
)
from resilisim.simulator.tool_status import SUCCEEDED, count_unmet

# Chances that are kept apart: at ten turns, those of eleven steps with limits, each left in any of three ways.
MAX_ENTRIES = 16_000_000  # 128 MB
NEVER = np.iinfo(np.int64).max  # in place of a limit that a step does not have

# Columns of a step's numbers.
TOOL = 0  # local number of the tool: the plan's tools in the order in which they first stand in it
BASE_INDEX = 1  # of the tool's base probability in the law's table
PLACE = 2  # of the tool in the required list, or -1
OUTSIDE = 3  # dependencies of the tool that no step runs
SIGNATURE = 4  # number of the step's message among those that the loop rule can meet again, or -1 if it cannot
IS_REFUSED = 5  # 1 if the call is refused: never executed, a turn without a draw
MAX_TRIES = 6  # tries without success after which the next step is taken, or NEVER
SKIP_FROM = 7  # message from which the next step is taken, or NEVER
NUM_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Obedience:
    """What following a plan to the letter brings.

    Attributes:
        success: Probability of full success.
        coverage: Expected share of the required tools that succeed in the required order: the longest run of first
            successes (not necessarily adjacent) whose required places ascend, divided by the number of required tools.
            Where any order will do, that of those that succeed.
    """

    success: float
    coverage: float


Limits = tuple[int | None, int | None]  # `max_tries` and `skip_from`, None for no such limit
# What the kernels read of a plan and a problem: the columns above, (num_steps, NUM_COLUMNS); local numbers of each
# tool's direct dependencies that are steps, (num_steps, max_dependencies), padded with -1; required tools; the law's
# table; turns; and what `_rows_after` and `_loops_after` return.
Numbers = tuple[
    NDArray[np.int64], NDArray[np.int64], int, NDArray[np.float64], int, NDArray[np.int64], NDArray[np.int64]
]


def obey_plan(
    problem: Problem, tools: Sequence[int], refused: Sequence[int] | None = None, limits: Sequence[Limits] | None = None
) -> Obedience:
    """Return the chances of following a plan to the letter, then signalling completion.

    Args:
        problem: The task's numbers.
        tools: Library indices of the steps' tools, in plan order; a tool may stand more than once.
        refused: For each step 0 if its call is accepted, else a number: refused calls of the same tool with the same
            number are the same message. All are accepted if omitted.
        limits: `max_tries` and `skip_from` of each step (`workflows.Step`), None for no such limit; without
            limits if omitted.

    Raises:
        ExactLimitError: So many steps have limits that the ways to leave them cannot be told apart.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import build_problem
        >>> from resilisim.simulator.exact import obey_plan
        >>> problem = build_problem(default_library(), ["file_operations_reader"])
        >>> round(obey_plan(problem, problem.required, limits=[(1, None)]).success, 3)
        0.8
    """
    if not _is_chain(problem, tools):
        return follow_states(problem, tools, problem.rules.max_turns, refused, limits)
    numbers = _numbers(problem, tools, problem.rules.max_turns, refused, limits)
    success, coverage = follow(*numbers, MAX_ENTRIES)
    if success < 0.0:
        limited = int((numbers[0][:, MAX_TRIES:] < NEVER).any(axis=1).sum())
        raise ExactLimitError(
            f"following a plan of {len(tools)} steps, {limited} of them with limits, needs more than {MAX_ENTRIES:,} "
            "table entries: use fewer limits or fewer turns"
        )
    return Obedience(float(success), float(coverage))  # NumPy's, where nothing is compiled


def plan_following(problem: Problem, turns: int | None = None) -> float:
    """Return the probability of full success of following the required list to the letter.

    `turns` are the messages that the agent may use, all turns if omitted; fewer than the list is long give 0.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import build_problem
        >>> from resilisim.simulator.exact import plan_following
        >>> round(plan_following(build_problem(default_library(), ["file_operations_reader"])), 6)
        0.996096
    """
    turns = problem.rules.max_turns if turns is None else turns
    if turns < len(problem.required):
        return 0.0
    if not _is_chain(problem, problem.required):
        return follow_states(problem, problem.required, turns).success
    success, _ = follow(*_numbers(problem, problem.required, turns), MAX_ENTRIES)
    return float(success)


# Chances of states, each with the smallest places that end an ascending run of 1, 2, ... required first successes.
Reached = dict[tuple[EpisodeState, tuple[int, ...]], float]


def _is_chain(problem: Problem, tools: Sequence[int]) -> bool:
    """Return whether a plan is valued by the chain: for a list in order, under a law without parts.

    Where arguments matter, what the loop rule knows of a call that is repeated depends on whether it succeeds.
    """
    if problem.arguments_matter and len(set(tools)) < len(tools):
        return False
    return not problem.dynamics.has_sections and not problem.dynamics.rules.is_more_than_order


def follow_states(
    problem: Problem,
    tools: Sequence[int],
    turns: int,
    refused: Sequence[int] | None = None,
    limits: Sequence[Limits] | None = None,
) -> Obedience:
    """Return the chances by a recursion over states; a plan has the same parameters in every try of a step.

    Arguments are those of `obey_plan`, and the messages that may run something.
    """
    reach: Reached = {(start_state(problem), ()): 1.0}
    ended: Reached = {}
    for number, tool in enumerate(tools):
        max_tries, skip_from = limits[number] if limits is not None else (None, None)
        refusal = refused[number] if refused is not None else 0
        name, place = problem.library.names[tool], problem.place[tool]
        message = Message("rejected", tool=name, problems=(str(refusal),)) if refusal else execution(name)
        # A refused call without limits is the plan's last.
        is_last = bool(refusal) and max_tries is None and skip_from is None
        on_step, reach, tries = reach, {}, 0
        while on_step:
            following: Reached = {}
            for (state, ends), chance in on_step.items():
                turns_used = state.counters[TURNS_USED]
                if (max_tries is not None and tries >= max_tries) or (
                    skip_from is not None and turns_used + 1 >= skip_from
                ):
                    reach[state, ends] = reach.get((state, ends), 0.0) + chance
                elif is_last or turns_used >= turns or is_awaiting_closing(problem, state):
                    ended[state, ends] = ended.get((state, ends), 0.0) + chance
                else:
                    for share, after in branches(problem, state, message):
                        known = replace(after, executions=state.executions)  # which draw it was makes no difference
                        succeeded, run = not refusal and has_succeeded(state, message, after), ends
                        if succeeded and place >= 0 and state.status[tool] != SUCCEEDED:
                            shorter = bisect_left(ends, place)
                            run = (*ends[:shorter], place, *ends[shorter + 1 :])
                        into = ended if after.counters[ENDED] != RUNNING else reach if succeeded else following
                        into[known, run] = into.get((known, run), 0.0) + chance * share
            on_step, tries = following, tries + 1
    success = math.fsum(chance * problem.dynamics.chance_done(state) for (state, _), chance in reach.items())
    num_required, in_order = problem.dynamics.rules.num_required, problem.goal.ordered and not problem.goal.program
    coverage = math.fsum(
        chance * (len(ends) if in_order else state.counters[NEXT_PLACE]) / num_required
        for (state, ends), chance in (*reach.items(), *ended.items())
    )
    return Obedience(success, coverage)


def plan_following_with_search(problem: Problem) -> float:
    """Return `plan_following` for an agent that spends one turn on a search for each required tool."""
    return plan_following(problem, problem.rules.max_turns - len(problem.required))


def _numbers(
    problem: Problem,
    tools: Sequence[int],
    turns: int,
    refused: Sequence[int] | None = None,
    limits: Sequence[Limits] | None = None,
) -> Numbers:
    local = {tool: number for number, tool in enumerate(dict.fromkeys(tools))}
    steps = np.zeros((len(tools), NUM_COLUMNS), dtype=np.int64)
    width = max([1, *(len(problem.dependencies[tool]) for tool in tools)])
    dependencies = np.full((len(tools), width), -1, dtype=np.int64)
    signatures: dict[tuple[int, int], int] = {}
    for number, tool in enumerate(tools):
        refusal = refused[number] if refused is not None else 0
        max_tries, skip_from = limits[number] if limits is not None else (None, None)
        inside = [local[dependency] for dependency in problem.dependencies[tool] if dependency in local]
        dependencies[number, : len(inside)] = inside
        # A refused call without limits is the plan's last, so how it ends the episode does not matter.
        repeats = tool in tools[:number] if not refusal else max_tries is not None or skip_from is not None
        steps[number] = (
            local[tool],
            problem.base_index[tool],
            problem.place[tool],
            len(problem.dependencies[tool]) - len(inside),
            signatures.setdefault((tool, refusal), len(signatures)) if repeats else -1,
            refusal != 0,
            NEVER if max_tries is None else max_tries,
            NEVER if skip_from is None else skip_from,
        )
    rules = problem.rules
    after = (_rows_after(rules.max_consecutive_failures), _loops_after(rules.loop_length, len(signatures)))
    return steps, dependencies, len(problem.required), problem.tables.probability, turns, *after


@functools.lru_cache(maxsize=64)
def _rows_after(max_consecutive_failures: int) -> NDArray[np.int64]:
    """Return the row of failures after one that failed, or succeeded, (rows, 2); -1 is the end."""
    rows_after = np.zeros((max(max_consecutive_failures, 1), 2), dtype=np.int64)
    for row in range(len(rows_after)):
        for success in range(2):
            status, counters = [0], [0] * NUM_COUNTERS
            counters[CONSECUTIVE_FAILURES] = row
            record_execution(status, counters, -1, 0, success == 1, max_consecutive_failures)
            rows_after[row, success] = counters[CONSECUTIVE_FAILURES] if max_consecutive_failures > 0 else 0
            if counters[ENDED] != RUNNING:
                rows_after[row, success] = -1
    return rows_after


@functools.lru_cache(maxsize=256)
def _loops_after(loop_length: int, num_signatures: int) -> NDArray[np.int64]:
    """Return the place of the row of equal messages after a message, (loops, num_signatures + 1); -1 is the end.

    Place 0 is no row, else 1 + signature * (loop_length - 1) + its length - 1. The last column is of messages that are
    productive, or that nothing repeats.
    """
    slots = loop_length - 1
    loops_after = np.zeros((1 + num_signatures * max(slots, 0), num_signatures + 1), dtype=np.int64)
    for loop in range(len(loops_after)):
        for signature in range(num_signatures + 1):
            counters = [0] * NUM_COUNTERS
            counters[LOOP_SIGNATURE] = NO_LOOP
            if loop > 0:
                counters[LOOP_SIGNATURE], counters[LOOP_COUNT] = (loop - 1) // slots, (loop - 1) % slots + 1
            record_turn(counters, signature if signature < num_signatures else NO_LOOP, loop_length)
            if counters[ENDED] != RUNNING:
                loops_after[loop, signature] = -1
            elif counters[LOOP_COUNT] > 0 and slots > 0:
                loops_after[loop, signature] = 1 + counters[LOOP_SIGNATURE] * slots + counters[LOOP_COUNT] - 1
    return loops_after


@scalar
def is_left(step: NDArray[np.int64], tries: int, message: int) -> bool:
    """Return whether a step's limits say to go on, after `tries` tries without success and before a message."""
    return bool(tries >= step[MAX_TRIES] or message >= step[SKIP_FROM])


@kernel
def follow(
    steps: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    num_required: int,
    probability: NDArray[np.float64],
    turns: int,
    rows_after: NDArray[np.int64],
    loops_after: NDArray[np.int64],
    max_entries: int,
) -> tuple[float, float]:
    """Return chance of full success and coverage; (-1, -1) if more than `max_entries` chances are kept apart.

    The first arguments are those of `Numbers`.
    """
    num_steps, rows, loops = len(steps), len(rows_after), len(loops_after)
    no_signature = loops_after.shape[1] - 1
    # reach[h, t, c, l]: chance to come to the step with history h, t turns used, the last c executions failed.
    reach = np.zeros((1, turns + 1, rows, loops))
    reach[0, 0, 0, 0] = 1.0
    # What a history says: statuses by local number, counters, successful executions, refused calls, and the smallest
    # place that ends an ascending run of 1, 2, ... required first successes.
    status = np.zeros((1, num_steps), dtype=np.int64)
    counters = np.zeros((1, NUM_COUNTERS), dtype=np.int64)
    successes = np.zeros(1, dtype=np.int64)
    refusals = np.zeros(1, dtype=np.int64)
    ends = np.full((1, num_required), num_required, dtype=np.int64)
    coverage = 0.0
    for number in range(num_steps):
        step = steps[number]
        tool, place, refused = step[TOOL], step[PLACE], step[IS_REFUSED] == 1
        limited = step[MAX_TRIES] < NEVER or step[SKIP_FROM] < NEVER
        # Ways to leave the step: 0 with success, 1 untried, 2 after failures; refused calls: 1 + number of them.
        ways = 1 if not limited else 1 + min(step[MAX_TRIES], turns) + 1 if refused else 3
        count = len(reach)
        slot = np.full((count, ways), -1, dtype=np.int64)  # places in `after`, taken when the first chance comes
        room = min(count * ways, max_entries // ((turns + 1) * rows * loops))
        after = np.zeros((room, turns + 1, rows, loops))
        used = 0
        for history in range(count):
            before = reach[history]
            run = 0
            while run < num_required and ends[history, run] < num_required:
                run += 1
            share = run / num_required
            missing, failed = count_unmet(status[history], dependencies[number])
            chances = probability[step[BASE_INDEX], missing + step[OUTSIDE], failed]  # by failures
            not_failed = successes[history] + refusals[history]
            is_repeated = step[SIGNATURE] >= 0 and (refused or status[history, tool] == SUCCEEDED)
            signature = step[SIGNATURE] if is_repeated else no_signature
            if used + ways > room and room < count * ways:
                return -1.0, -1.0
            for entered in range(turns + 1):
                for consecutive_before in range(rows):
                    for loop_before in range(loops):
                        mass = before[entered, consecutive_before, loop_before]
                        if mass == 0.0:
                            continue
                        turn, consecutive, loop, tries = entered, consecutive_before, loop_before, 0
                        while True:
                            if limited and is_left(step, tries, turn + 1):
                                way = 1 + tries if refused else 1 + min(tries, 1)
                                if slot[history, way] < 0:
                                    slot[history, way] = used
                                    used += 1
                                after[slot[history, way], turn, consecutive, loop] += mass
                                break
                            if turn == turns or (refused and not limited):
                                coverage += mass * share
                                break
                            next_loop = loops_after[loop, signature]
                            if next_loop >= 0 and not refused:
                                chance = chances[turn - not_failed]
                                if slot[history, 0] < 0:
                                    slot[history, 0] = used
                                    used += 1
                                after[slot[history, 0], turn + 1, rows_after[consecutive, 1], next_loop] += (
                                    mass * chance
                                )
                                mass *= 1.0 - chance
                                consecutive = rows_after[consecutive, 0]
                            if next_loop < 0 or consecutive < 0:
                                coverage += mass * share
                                break
                            loop = next_loop
                            turn += 1
                            tries += 1
                            if not limited:
                                # Tries need no counting, so what comes here joins who enters the step later.
                                before[turn, consecutive, loop] += mass
                                break
        # The histories that go on.
        reach = after[:used]
        new_status = np.zeros((used, num_steps), dtype=np.int64)
        new_counters = np.zeros((used, NUM_COUNTERS), dtype=np.int64)
        new_successes = np.zeros(used, dtype=np.int64)
        new_refusals = np.zeros(used, dtype=np.int64)
        new_ends = np.zeros((used, num_required), dtype=np.int64)
        for history in range(count):
            for way in range(ways):
                new = slot[history, way]
                if new < 0:
                    continue
                new_status[new] = status[history]
                new_counters[new] = counters[history]
                new_successes[new] = successes[history]
                new_refusals[new] = refusals[history]
                new_ends[new] = ends[history]
                if refused:
                    new_refusals[new] += way - 1
                elif way == 0:
                    new_successes[new] += 1
                    if place >= 0 and status[history, tool] != SUCCEEDED:
                        run = 0
                        while new_ends[new, run] < place:
                            run += 1
                        new_ends[new, run] = place
                    record_execution(new_status[new], new_counters[new], place, tool, True, 0)
                elif way == 2:
                    record_execution(new_status[new], new_counters[new], place, tool, False, 0)
        status, counters, successes, refusals, ends = (new_status, new_counters, new_successes, new_refusals, new_ends)
    success = 0.0
    for history in range(len(reach)):
        mass = reach[history].sum()
        run = 0
        while run < num_required and ends[history, run] < num_required:
            run += 1
        coverage += mass * run / num_required
        if counters[history, NEXT_PLACE] == num_required and counters[history, SPOILT] == 0:
            success += mass
    return success, coverage


MAX_ENTRIES_TRIED = 100_000  # of each of the hundreds of plans that are tried
TOLERANCE = 1e-9  # a smaller gain is none: limits should not hang on the last bits


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """A plan with limits.

    Attributes:
        kept: (num_kept,) places of the steps that are not left out, in the plan that the limits were chosen for.
        limits: (num_kept,) `max_tries` and `skip_from` of each of them, None for no such limit.
        success: Probability of full success of following them to the letter.
    """

    kept: tuple[int, ...]
    limits: tuple[Limits, ...]
    success: float


def best_limits(problem: Problem, tools: Sequence[int], left_out: Collection[int] = ()) -> PlanLimits:
    """Choose limits for the steps of a plan outside the required list, so that it succeeds as often as can be.

    Coordinate ascent: one number of one step after the other is set to the best of its values, until none can be
    improved. A step that is better skipped than ever tried is left out. Choices that would be too large to be valued
    count as worse than all others.

    Args:
        problem: The task's numbers.
        tools: Library indices of the steps' tools, in plan order.
        left_out: Tools among them with which the ascent begins as if they were not there.
    """
    first = [(None, 1 if tool in left_out else None) for tool in tools]
    plain = problem
    if not _is_chain(problem, tools):  # limits are chosen by the law's constants, and valued by all of it
        nothing: dict[str, Any] = dict.fromkeys(problem.law.parts)
        law = replace(problem.law, **nothing)
        plain = build_problem(problem.library, problem.goal, law, problem.rules, problem.arguments_matter)
    numbers = _numbers(plain, tools, plain.rules.max_turns, limits=first)
    optional = [number for number, tool in enumerate(tools) if problem.place[tool] < 0]
    success = ascend(np.array(optional, dtype=np.int64), *numbers, MAX_ENTRIES_TRIED)
    kept: dict[int, Limits] = {}
    for place, step in enumerate(numbers[0].tolist()):
        # A step that is always skipped is only one more thing to read. Each one before it took a message at least.
        if len(kept) + 1 < step[SKIP_FROM]:
            kept[place] = _limit(step[MAX_TRIES]), _limit(step[SKIP_FROM])
    if not _is_chain(problem, tools):
        success = obey_plan(problem, [tools[place] for place in kept], limits=list(kept.values())).success
    return PlanLimits(tuple(kept), tuple(kept.values()), max(float(success), 0.0))


def _limit(number: int) -> int | None:
    return None if number == NEVER else number


@kernel
def ascend(
    optional: NDArray[np.int64],
    steps: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    num_required: int,
    probability: NDArray[np.float64],
    turns: int,
    rows_after: NDArray[np.int64],
    loops_after: NDArray[np.int64],
    max_entries: int,
) -> float:
    """Set the limits of the steps `optional` in `steps` by coordinate ascent and return the chance of full success.

    A number that changes nothing would only be one more thing to read, so it is taken away again. Without it others may
    have better values than with it: the ascent goes on from there.
    """
    rest = (num_required, probability, turns, rows_after, loops_after, max_entries)
    best, _ = follow(steps, dependencies, *rest)
    before, taken_away = -1.0, True
    while taken_away and best > before + TOLERANCE:
        before, taken_away, improved = best, False, True
        while improved:
            improved = False
            for number in optional:
                for column in (MAX_TRIES, SKIP_FROM):
                    chosen = steps[number, column]
                    for limit in range(turns + 1, 0, -1):
                        steps[number, column] = limit if limit <= turns else NEVER
                        success, _ = follow(steps, dependencies, *rest)
                        if success > best + TOLERANCE:
                            best, chosen, improved = success, steps[number, column], True
                    steps[number, column] = chosen
        for number in optional:
            for column in (MAX_TRIES, SKIP_FROM):
                chosen = steps[number, column]
                if chosen == NEVER or (column == SKIP_FROM and chosen == 1):
                    continue
                steps[number, column] = NEVER
                success, _ = follow(steps, dependencies, *rest)
                if success < best - TOLERANCE:
                    steps[number, column] = chosen
                else:
                    best, taken_away = success, True
    return best
