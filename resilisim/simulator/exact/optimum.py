"""The exact optimum of a problem: V* of every state and Q* of every message (SPEC section 7).

Of small problems the values of all states come from backward induction over the arena's states, compiled, one sweep per
number of turns left; of larger ones those that are asked for come from a search (`exact.search`). The success law is
read from the same table that the simulator samples from; the test suite pins both to a brute-force recursion over
`simulator.state.next_state`, and to each other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.at_work import AT_WORK
from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.exact.arena import (
    MAX_EXACT_ENTRIES,
    MAX_TABLE_ENTRIES,
    NO_TOOL,
    OUT_OF_TABLE,
    Arena,
    Breakers,
    build_arena,
)
from resilisim.simulator.exact.program import ProgramValues
from resilisim.simulator.exact.reachable import MAX_STATES, ReachableOptimum, check_room, solve_reachable
from resilisim.simulator.exact.search import Search
from resilisim.simulator.exact.simplification import NOT_KNOWN
from resilisim.simulator.exact.stage import failing_helps
from resilisim.simulator.exact.values import Knowledge, Values
from resilisim.simulator.messages import FINISH, Message, execution
from resilisim.simulator.problem import (
    Problem,
    branches,
    is_awaiting_closing,
    is_done,
    next_required,
    outcome,
    start_state,
)
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NUM_FAILURES,
    RUNNING,
    SPOILT,
    TURNS_USED,
    EpisodeState,
)
from resilisim.simulator.tool_status import FAILED, NOT_EXECUTED, SUCCEEDED, IntVector, count_unmet


@scalar
def decode_status(
    code: int, next_place: int, place: IntVector, stride: IntVector, radix: IntVector, status: IntVector
) -> bool:
    """Write the arena tools' statuses into `status`; return False if the combination cannot occur."""
    for tool in range(len(place)):
        digit = 0
        if radix[tool] > 1:
            digit = (code // stride[tool]) % radix[tool]
        if 0 <= place[tool] < next_place:
            if digit != NOT_EXECUTED:
                return False
            status[tool] = SUCCEEDED
        else:
            status[tool] = digit
    return True


@kernel
def solve_values(
    place: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    base_index: NDArray[np.int64],
    stride: NDArray[np.int64],
    radix: NDArray[np.int64],
    codes: NDArray[np.int64],
    compact: NDArray[np.int32],
    probability: NDArray[np.float64],
    neutral_base: int,
    loop_tools: int,
    num_required: int,
    max_turns: int,
    max_consecutive_failures: int,
    loop_length: int,
    values: NDArray[np.float64],
) -> None:
    """Fill `values`, the highest probability of full success from each state.

    The first seven arguments are fields of `Arena`; `probability` is the law's table, and 0 turns an end rule off.
    `neutral_base` is the base index of a tool that is always there to break a row of failures, or -1, and `loop_tools`
    is 1 if the last axis of `values` tells apart which successful tool was called last, how often. `values`, zero on
    entry, is float64 (max_turns + 1, num_codes, num_required + 1, max_turns - num_required + 1, rows, loops), indexed
    by turns left, place of the code, required tools done, failures, consecutive failures, loop state.
    """
    num_tools = len(place)
    rows = max(max_consecutive_failures, 1)
    loop_slots = max(loop_length - 1, 0)
    failure_counts = values.shape[3]
    status = np.zeros(num_tools, dtype=np.int64)
    num_not_executed = np.zeros(num_tools, dtype=np.int64)
    num_failed = np.zeros(num_tools, dtype=np.int64)
    code_success = np.zeros(num_tools, dtype=np.int64)
    code_failure = np.zeros(num_tools, dtype=np.int64)
    for turns_left in range(max_turns + 1):
        for row in range(len(codes)):
            values[turns_left, row, num_required] = 1.0
    for turns_left in range(1, max_turns + 1):
        for row in range(len(codes)):
            code = codes[row]
            for done in range(num_required):
                if turns_left < num_required - done or not decode_status(code, done, place, stride, radix, status):
                    continue
                successes = done
                for tool in range(num_tools):
                    num_not_executed[tool], num_failed[tool] = count_unmet(status, dependencies[tool])
                    code_failure[tool] = code
                    code_success[tool] = code
                    if place[tool] < 0:
                        if status[tool] == SUCCEEDED:
                            successes += 1
                        else:
                            code_success[tool] = code + (SUCCEEDED - status[tool]) * stride[tool]
                    elif place[tool] == done and radix[tool] > 1:
                        code_success[tool] = code - status[tool] * stride[tool]
                    if status[tool] == NOT_EXECUTED and radix[tool] > 1:
                        code_failure[tool] = code + (FAILED - NOT_EXECUTED) * stride[tool]
                for failures in range(min(max_turns - turns_left - successes + 1, failure_counts)):
                    for consecutive in range(min(failures + 1, rows)):
                        # A failure that leaves fewer turns than tools, or that ends the episode, is worth nothing.
                        failure_ends = max_consecutive_failures > 0 and consecutive + 1 == max_consecutive_failures
                        failure_ends = failure_ends or failures + 1 == failure_counts
                        next_row = consecutive + 1 if max_consecutive_failures > 0 else 0
                        best = 0.0
                        if neutral_base >= 0:
                            chance = probability[neutral_base, 0, 0, failures]
                            value = chance * values[turns_left - 1, row, done, failures, 0, 0]
                            if not failure_ends:
                                after = values[turns_left - 1, row, done, failures + 1, next_row, 0]
                                value += (1.0 - chance) * after
                            best = max(best, value)
                        for tool in range(num_tools):
                            if status[tool] == SUCCEEDED:
                                continue
                            chance = probability[base_index[tool], num_not_executed[tool], num_failed[tool], failures]
                            value = 0.0
                            if place[tool] < 0 or place[tool] == done:
                                after_row = compact[code_success[tool]]
                                done_after = done + 1 if place[tool] >= 0 else done
                                if after_row >= 0:
                                    value += chance * values[turns_left - 1, after_row, done_after, failures, 0, 0]
                            if not failure_ends:
                                after_row = compact[code_failure[tool]]
                                if after_row >= 0:
                                    after = values[turns_left - 1, after_row, done, failures + 1, next_row, 0]
                                    value += (1.0 - chance) * after
                            best = max(best, value)
                        if loop_tools == 0:
                            values[turns_left, row, done, failures, consecutive, 0] = best
                            continue
                        # Calling a successful tool again is worth a thought here, and the loop rule watches it; so is
                        # any other message that executes nothing, since it leaves the loop.
                        for loop in range(values.shape[5]):
                            best_in_loop = max(best, values[turns_left - 1, row, done, failures, consecutive, 0])
                            for tool in range(num_tools):
                                if status[tool] != SUCCEEDED:
                                    continue
                                count = 1
                                if loop_slots > 0 and loop > 0 and (loop - 1) // loop_slots == tool:
                                    count = (loop - 1) % loop_slots + 2
                                if loop_length > 0 and count >= loop_length:
                                    continue
                                after_loop = 1 + tool * loop_slots + count - 1 if loop_slots > 0 else 0
                                chance = probability[
                                    base_index[tool], num_not_executed[tool], num_failed[tool], failures
                                ]
                                value = chance * values[turns_left - 1, row, done, failures, 0, after_loop]
                                if not failure_ends:
                                    after = values[turns_left - 1, row, done, failures + 1, next_row, after_loop]
                                    value += (1.0 - chance) * after
                                best_in_loop = max(best_in_loop, value)
                            values[turns_left, row, done, failures, consecutive, loop] = best_in_loop


@scalar
def value_without_table(counters: IntVector, num_required: int, max_turns: int) -> float:
    """Return V* of a running state where it follows from the counters alone, else NOT_KNOWN."""
    if counters[SPOILT]:
        return 0.0
    if counters[NEXT_PLACE] == num_required:
        return 1.0
    if max_turns - counters[TURNS_USED] < num_required - counters[NEXT_PLACE]:
        return 0.0
    return NOT_KNOWN


@scalar
def status_code(status: IntVector, done: int, digits: Any) -> int:
    """Return the arena's number for the statuses of tools, (num_tools,); `digits` as in `Arena`, or as an array."""
    code = 0
    for index in range(len(digits)):
        digit = digits[index]
        if not 0 <= digit[1] < done:
            code += status[digit[0]] * digit[2]
    return code


@scalar
def loop_state(status: IntVector, counters: IntVector, slot: IntVector, loop_length: int) -> int:
    """Return the place on the table's last axis; `slot` as in `Arena`, or as an array."""
    tool = counters[LOOP_SIGNATURE]
    if not 0 <= tool < len(slot) or slot[tool] < 0 or status[tool] != SUCCEEDED:
        return 0
    return int(1 + slot[tool] * (loop_length - 1) + counters[LOOP_COUNT] - 1)


# Sent only to leave a row of equal calls before the loop rule ends the episode; what it searches for has no meaning.
OTHER_MESSAGE = Message("search", query="anything else")

# Solving all of the benchmark takes seconds, so little is worth keeping.
CACHE_BYTES = 64 * 2**20
ENTRIES_OF_A_STATE = 8  # of a table, which a search would keep one state of
MAX_BOUNDED_STATES = (
    20_000  # of a plain list that has no room; more of them hardly narrow what is known (docs/decisions)
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Optimum(Values):
    """The solved problem of a list in order under a law without parts.

    Attributes:
        start_gap: How far V*(start) may lie below the optimum: 0 where it is exact.
        breakers: What is worth calling just to break a row of failures.
    """

    problem: Problem
    start_gap: float
    breakers: Breakers
    knowledge: Knowledge = field(init=False, default="observing")

    @abstractmethod
    def _running_value(self, state: EpisodeState) -> float:
        """Return V* of a running state that `value_without_table` does not know."""

    def _bound(self, state: EpisodeState) -> float:
        """Return something cheap that V*(state) is not above."""
        return self.value(state)

    def value(self, state: EpisodeState) -> float:
        """Return V*(state), the highest probability of full success from a state that an episode can reach."""
        counters = state.counters
        if counters[ENDED] != RUNNING:
            return float(outcome(self.problem, state))
        known = value_without_table(counters, len(self.problem.required), self.problem.rules.max_turns)
        return known if known != NOT_KNOWN else self._running_value(state)

    def _candidates(self, state: EpisodeState) -> Iterable[Message]:
        """Return the signal if that is all that is left, else calls, and what leaves a loop."""
        if is_done(self.problem, state) or is_awaiting_closing(self.problem, state):
            return [FINISH]
        tools = dict.fromkeys([next_required(self.problem, state), *self._worth_calling(state)])
        return [*(execution(self.problem.library.names[tool]) for tool in tools), OTHER_MESSAGE]

    def _worth_calling(self, state: EpisodeState) -> list[int]:
        """Return tools among which there is one with the highest Q*; calling any other is dominated by one of them.

        Calling a successful tool again only breaks a row of failures, as a neutral tool does; others may need others.
        """
        breakers = self.breakers
        in_row = state.counters[CONSECUTIVE_FAILURES] > 0 and self.problem.rules.max_consecutive_failures > 0
        again = in_row and breakers.neutral_base == NO_TOOL
        tools = [tool for tool in self.problem.closure if again or state.status[tool] != SUCCEEDED]
        return [*tools, *breakers.tools] if in_row or breakers.joining else tools


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TabulatedOptimum(Optimum):
    """The values of all states in one table.

    Attributes:
        arena: The tools that the table tells apart.
        values: float64 `arena.table_shape`, see `solve_values`.
    """

    arena: Arena
    values: NDArray[np.float64]

    @property
    def gap(self) -> float:
        """How far the values may lie below the optimum: of the start no further than of any state."""
        return self.start_gap

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return self.values.nbytes

    def tells_apart(self, tool: int) -> bool:
        """Return whether the tool has a place in the arena."""
        return self.arena.slot[tool] != NO_TOOL

    def _running_value(self, state: EpisodeState) -> float:
        counters = state.counters
        place = counters[NEXT_PLACE]
        row = self.arena.compact[status_code(state.status, place, self.arena.digits)]
        if row == OUT_OF_TABLE:
            return 0.0
        turns_left = self.problem.rules.max_turns - counters[TURNS_USED]
        consecutive = counters[CONSECUTIVE_FAILURES] if self.problem.rules.max_consecutive_failures else 0
        return float(self.values[turns_left, row, place, counters[NUM_FAILURES], consecutive, self._loop(state)])

    def _loop(self, state: EpisodeState) -> int:
        if not self.arena.loop_tools or self.values.shape[5] == 1:
            return 0
        return loop_state(state.status, state.counters, self.arena.slot, self.problem.rules.loop_length)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SearchedOptimum(Optimum):
    """Values that are searched for when they are asked for, of problems whose table would be too large.

    If a state has no room, it and all that are asked for later are bounded, as under laws with parts; only that of the
    start stays what it was.

    Attributes:
        search: What finds and keeps them.
        may_bound: Whether values are bounded where there is no room for more states; else they are refused.
        start_value: V*(start), if it was asked for already, else NOT_KNOWN.
        bounded: The values between bounds, once there are any.
    """

    search: Search
    may_bound: bool = True
    start_value: float = NOT_KNOWN
    bounded: list[ReachableOptimum] = field(init=False, default_factory=list)

    @property
    def gap(self) -> float:
        """How far any value that was asked for so far may lie below the optimum."""
        return self.bounded[0].gap if self.bounded else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes that the values found so far take."""
        return self.search.nbytes + sum(values.nbytes for values in self.bounded)

    def tells_apart(self, tool: int) -> bool:
        """Return whether the search tells the tool apart from others."""
        return tool in self.search.local

    def _running_value(self, state: EpisodeState) -> float:
        if state.counters[TURNS_USED] == 0 and self.start_value != NOT_KNOWN:
            return self.start_value
        if not self.bounded:
            try:
                return self.search.value(state)
            except ExactLimitError:
                if not self.may_bound:
                    raise
            self.bounded.append(solve_reachable(self.problem, max_states=MAX_BOUNDED_STATES))
        return self.bounded[0].value(state)

    def _worth(self, state: EpisodeState, message: Message, enough: float) -> float:
        """Search no further than it takes to see that a message is not worth enough."""
        paths = branches(self.problem, state, message)
        worth = sum(chance * self._bound(after) for chance, after in paths)
        for chance, after in paths:
            if worth < enough:
                break
            worth += chance * (self.value(after) - self._bound(after))
        return worth

    def _bound(self, state: EpisodeState) -> float:
        if state.counters[ENDED] != RUNNING:
            return float(outcome(self.problem, state))
        known = value_without_table(state.counters, len(self.problem.required), self.problem.rules.max_turns)
        return known if known != NOT_KNOWN else self.search.bound(state)


def solve(problem: Problem, max_states: int | None = None, may_bound: bool = True) -> Values:
    """Solve a problem, exactly if there is room for it, or return it solved if it was met lately.

    Problems are equal if they are the same object (`build_problem` sees to that). The latest are kept, up to
    CACHE_BYTES together.

    Args:
        problem: The problem.
        max_states: States that may be kept; by default as many as memory allows, or MAX_STATES under a law with parts.
        may_bound: Whether values are bounded where there is no room for more states; else they are refused, when it is
            solved or when they are asked for.

    Raises:
        ExactLimitError: The problem is too large.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import build_problem
        >>> from resilisim.simulator.exact import solve
        >>> solve(build_problem(default_library(), ["network_fetcher"])).gap
        0.0
    """
    asked = problem, max_states, may_bound  # what was solved with little room would refuse who asks for more
    optimum = _solved.get(asked)
    if optimum is not None:
        _solved.move_to_end(asked)
        return optimum
    optimum = _solved[asked] = solve_afresh(problem, max_states, may_bound)
    while len(_solved) > 1 and sum(kept.nbytes for kept in _solved.values()) > CACHE_BYTES:
        _solved.popitem(last=False)
    return optimum


_solved: OrderedDict[tuple[Problem, int | None, bool], Values] = OrderedDict()


def solve_afresh(problem: Problem, max_states: int | None = None, may_bound: bool = True) -> Values:
    """Solve a problem under any law, and keep nothing; the arguments are those of `solve`."""
    if problem.goal.program is not None:
        return ProgramValues(problem, tuple(map(problem.library.index, problem.goal.program)))
    with AT_WORK.on("solving ceiling"):
        hopes_for_failures = problem.rules.max_consecutive_failures == 0 and failing_helps(problem)
        if is_plain_list(problem) and not hopes_for_failures:
            return compute_optimum(problem, max_states, may_bound)
        return solve_reachable(
            problem, max_states=MAX_STATES if max_states is None else max_states, may_bound=may_bound
        )


def is_plain_list(problem: Problem) -> bool:
    """Return whether a problem is a list in order under a law without parts, which a table or a search can solve.

    Lost answers are a part only where it matters whether a tool has run. That some tools may run only once makes no
    difference where nobody would call a tool that has succeeded: where no row of failures has to be broken.
    """
    goal, has_rows = problem.goal, problem.rules.max_consecutive_failures > 0
    law = problem.dynamics.numbers.law
    if set(law.parts) - {"lost_answer"} or law.equivalents or not goal.ordered or goal.program is not None:
        return False
    return not goal.once or (problem.dynamics.rules.at_ran < 0 and not has_rows)


def compute_optimum(problem: Problem, max_states: int | None = None, may_bound: bool = True) -> Values:
    """Solve a problem under the benchmark law and keep nothing; the arguments are those of `solve`.

    Small ones get a table of all states, others are searched, and where there is no room for that, either, values are
    bounded as they are under laws with parts.
    """
    largest = MAX_EXACT_ENTRIES if max_states is None else min(MAX_EXACT_ENTRIES, ENTRIES_OF_A_STATE * max_states)
    try:
        return tabulate(problem, largest)
    except ExactLimitError:
        pass
    try:
        return _searched(problem, max_states, may_bound)
    except ExactLimitError as error:
        refused = error.with_traceback(None)  # which would keep in memory what was searched
    # Very many turns of very few tools are one thing that a table is better at.
    try:
        return tabulate(problem, MAX_TABLE_ENTRIES if max_states is None else largest)
    except ExactLimitError:
        if not may_bound:
            raise refused from None
    return solve_reachable(problem, max_states=min(MAX_BOUNDED_STATES, max_states or MAX_BOUNDED_STATES))


def _searched(problem: Problem, max_states: int | None, may_bound: bool) -> SearchedOptimum:
    search = Search(problem, max_states)
    start_value = search.value(start_state(problem))  # what is too large is refused here
    return SearchedOptimum(problem, 0.0, search.breakers, search, may_bound, start_value)


def check_solvable(problem: Problem) -> None:
    """Refuse a problem of which nothing can be said; one whose values can be bounded is not solved for it.

    Raises:
        ExactLimitError: The problem is too large.
    """
    if problem.goal.program is not None:
        solve(problem)
        return
    is_plain = is_plain_list(problem)
    try:
        if is_plain:
            build_arena(problem, MAX_EXACT_ENTRIES)
            return
    except ExactLimitError:
        pass
    try:
        check_room(problem)
    except ExactLimitError:
        if not is_plain:
            raise
        solve(problem)  # searches keep more tools apart


def tabulate(problem: Problem, most_exactly: int | None = None) -> TabulatedOptimum:
    """Return the values of all states in one table, which compiled code can read.

    It is larger than what most uses need, so fewer problems can be solved so. Unless it has to be exact, tools of
    unequal reliability that would make it too large are bounded (`arena.Breakers`), and `gap` is above 0.

    Args:
        problem: The task's numbers.
        most_exactly: Entries that the table may have if it has to be exact.
    """
    if not is_plain_list(problem):
        raise InvalidInputError(
            f"there is no table of values under {problem.law} for {problem.goal}: expected a list in order, and a law "
            "without parts"
        )
    arena = build_arena(problem, most_exactly)
    values = _sweep(problem, arena, arena.breakers.neutral_base)
    if arena.breakers.upper_base == NO_TOOL:
        return TabulatedOptimum(problem, 0.0, arena.breakers, arena, values)
    upper = _sweep(problem, arena, arena.breakers.upper_base)
    upper -= values
    return TabulatedOptimum(problem, float(upper.max()), arena.breakers, arena, values)


def _sweep(problem: Problem, arena: Arena, neutral_base: int) -> NDArray[np.float64]:
    values = np.zeros(arena.table_shape)
    solve_values(
        arena.place,
        arena.dependencies,
        arena.base_index,
        arena.stride,
        arena.radix,
        arena.codes,
        arena.compact,
        problem.tables.probability,
        neutral_base,
        arena.loop_tools,
        len(problem.required),
        problem.rules.max_turns,
        problem.rules.max_consecutive_failures,
        problem.rules.loop_length,
        values,
    )
    return values


def start_optimum(problem: Problem) -> float:
    """Return V*(start), the ceiling for an agent that knows the law but not its luck."""
    return solve(problem).value(start_state(problem))
