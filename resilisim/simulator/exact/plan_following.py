"""The chances of an agent that follows a plan to the letter: each step until it succeeds or its limits say to go on.

While such an agent works, what it has done so far follows from the step it stands at and from how it left the steps
that have limits: with success, after failed tries, or untried. So its state is the step, that history, the turns used,
and how its last failures and repetitions lie. The law and what an execution does to an episode are the simulator's own
functions; the tests pin the whole to a recursion over `simulator.state.next_state`. `best_limits` chooses the limits so
that the plan, followed to the letter, succeeds as often as it can.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.messages import Message, execution
from resilisim.simulator.problem import Problem, branches, is_awaiting_closing, start_state
from resilisim.simulator.state import (
    ENDED,
    NEXT_PLACE,
    NUM_COUNTERS,
    RUNNING,
    SPOILT,
    TURNS_USED,
    EpisodeState,
    has_succeeded,
    record_execution,
)

# Chances that are kept apart: at ten turns, those of eleven steps with limits, each left in any of three ways.
MAX_ENTRIES = 16_000_000  # 128 MB
NEVER = np.iinfo(np.int64).max  # in place of a limit that a step does not have

# Columns of a step's numbers.
TOOL = 0  # local number of the tool: the plan's tools in the order in which they first stand in it
BASE_INDEX = 1  # of the tool's base probability in the law's table
PLACE = 2  # of the tool in the required list, or -1
OUTSIDE = 3  # dependencies of the tool that no step runs
SIGNATURE = 4  # number of the step's message among those that the loop rule can meet again, or -1 if it cannot
REFUSED = 5  # 1 if the call is refused: never executed, a turn without a draw
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
    """

    success: float
    coverage: float


Limits = tuple[int | None, int | None]  # `max_tries` and `skip_from`, None for no such limit
# What the kernels read of a plan and a problem: the columns above, (num_steps, NUM_COLUMNS); local numbers of each
# tool's direct dependencies that are steps, (num_steps, max_dependencies), padded with -1; messages that the loop rule
# can meet again; required tools; the law's table; turns; and the end rules, 0 for off.
Numbers = tuple[NDArray[np.int64], NDArray[np.int64], int, int, NDArray[np.float64], int, int, int]


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
    if problem.dynamics.has_sections:
        return follow_under_parts(problem, tools, problem.rules.max_turns, refused, limits)
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
    if problem.dynamics.has_sections:
        return follow_under_parts(problem, problem.required, turns).success
    success, _ = follow(*_numbers(problem, problem.required, turns), MAX_ENTRIES)
    return float(success)


def follow_under_parts(
    problem: Problem,
    tools: Sequence[int],
    turns: int,
    refused: Sequence[int] | None = None,
    limits: Sequence[Limits] | None = None,
) -> Obedience:
    """Return the same chances under a law with parts; a plan has the same parameters in every try of a step.

    Coverage is the mean share of the required list that has succeeded in order. Arguments are those of `obey_plan`.
    """
    names, required = problem.library.names, len(problem.required)
    reach: dict[EpisodeState, float] = {start_state(problem): 1.0}
    ended: dict[EpisodeState, float] = {}
    for number, tool in enumerate(tools):
        max_tries, skip_from = limits[number] if limits is not None else (None, None)
        refusal = refused[number] if refused is not None else 0
        message = Message("rejected", tool=names[tool], problems=(str(refusal),)) if refusal else execution(names[tool])
        on_step, reach, tries = reach, {}, 0
        while on_step:
            following: dict[EpisodeState, float] = {}
            for state, chance in on_step.items():
                turns_used = state.counters[TURNS_USED]
                if (max_tries is not None and tries >= max_tries) or (
                    skip_from is not None and turns_used + 1 >= skip_from
                ):
                    reach[state] = reach.get(state, 0.0) + chance
                elif turns_used >= turns or is_awaiting_closing(problem, state):
                    ended[state] = ended.get(state, 0.0) + chance
                else:
                    for share, after in branches(problem, state, message):
                        known = replace(after, executions=state.executions)  # which draw it was makes no difference
                        succeeded = not refusal and has_succeeded(state, message, after)
                        into = ended if after.counters[ENDED] != RUNNING else reach if succeeded else following
                        into[known] = into.get(known, 0.0) + chance * share
            on_step, tries = following, tries + 1
    signalled = {state: chance for state, chance in reach.items() if state.counters[ENDED] == RUNNING}
    success = sum(chance * problem.dynamics.chance_done(state) for state, chance in signalled.items())
    every = [*reach.items(), *ended.items()]
    coverage = sum(chance * state.counters[NEXT_PLACE] / required for state, chance in every)
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
    of_rules = (turns, rules.max_consecutive_failures, rules.loop_length)
    return steps, dependencies, len(signatures), len(problem.required), problem.tables.probability, *of_rules


@scalar
def is_left(step: NDArray[np.int64], tries: int, message: int) -> bool:
    """Return whether a step's limits say to go on, after `tries` tries without success and before a message."""
    return bool(tries >= step[MAX_TRIES] or message >= step[SKIP_FROM])


@kernel
def follow(
    steps: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    num_signatures: int,
    num_required: int,
    probability: NDArray[np.float64],
    turns: int,
    max_consecutive_failures: int,
    loop_length: int,
    max_entries: int,
) -> tuple[float, float]:
    """Return chance of full success and coverage; (-1, -1) if more than `max_entries` chances are kept apart.

    `turns` are the messages that run something; 0 turns an end rule off.
    """
    num_steps = len(steps)
    rows = max(max_consecutive_failures, 1)
    slots = max(loop_length - 1, 0)
    loops = 1 + num_signatures * slots  # 0: none; else 1 + signature * slots + (length of its row - 1)
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
        tool, place, refused = step[TOOL], step[PLACE], step[REFUSED] == 1
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
            missing = step[OUTSIDE] + count_not_executed(status[history], dependencies[number])
            failed = count_failed_dependencies(status[history], dependencies[number])
            again = status[history, tool] == SUCCEEDED
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
                            length = 0
                            if (again or refused) and loop_length > 0:
                                first = 1 + step[SIGNATURE] * slots
                                length = loop - first + 2 if first <= loop < first + slots else 1
                            looped = loop_length > 0 and length >= loop_length
                            loop = 1 + step[SIGNATURE] * slots + length - 1 if length > 0 and not looped else 0
                            if not refused:
                                failures = turn - successes[history] - refusals[history]
                                chance = probability[step[BASE_INDEX], missing, failed, failures]
                                if looped:
                                    coverage += mass * share
                                    break
                                if slot[history, 0] < 0:
                                    slot[history, 0] = used
                                    used += 1
                                after[slot[history, 0], turn + 1, 0, loop] += mass * chance
                                mass *= 1.0 - chance
                                consecutive = consecutive + 1 if max_consecutive_failures > 0 else 0
                            if looped or (max_consecutive_failures > 0 and consecutive == max_consecutive_failures):
                                coverage += mass * share
                                break
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
    numbers = _numbers(problem, tools, problem.rules.max_turns, limits=first)
    optional = [number for number, tool in enumerate(tools) if problem.place[tool] < 0]
    success = ascend(np.array(optional, dtype=np.int64), *numbers, MAX_ENTRIES_TRIED)
    kept: dict[int, Limits] = {}
    for place, step in enumerate(numbers[0].tolist()):
        # A step that is always skipped is only one more thing to read. Each one before it took a message at least.
        if len(kept) + 1 < step[SKIP_FROM]:
            kept[place] = _limit(step[MAX_TRIES]), _limit(step[SKIP_FROM])
    if problem.dynamics.has_sections:  # limits are chosen by the law's constants, and valued by all of it
        success = obey_plan(problem, [tools[place] for place in kept], limits=list(kept.values())).success
    return PlanLimits(tuple(kept), tuple(kept.values()), max(float(success), 0.0))


def _limit(number: int) -> int | None:
    return None if number == NEVER else number


@kernel
def ascend(
    optional: NDArray[np.int64],
    steps: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    num_signatures: int,
    num_required: int,
    probability: NDArray[np.float64],
    turns: int,
    max_consecutive_failures: int,
    loop_length: int,
    max_entries: int,
) -> float:
    """Set the limits of the steps `optional` in `steps` by coordinate ascent and return the chance of full success."""
    rest = (num_signatures, num_required, probability, turns, max_consecutive_failures, loop_length, max_entries)
    best, _ = follow(steps, dependencies, *rest)
    improved = True
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
    # A number that changes nothing would only be one more thing to read.
    for number in optional:
        for column in (MAX_TRIES, SKIP_FROM):
            chosen = steps[number, column]
            if column == SKIP_FROM and chosen == 1:
                continue
            steps[number, column] = NEVER
            success, _ = follow(steps, dependencies, *rest)
            if success < best - TOLERANCE:
                steps[number, column] = chosen
            else:
                best = success
    return best
