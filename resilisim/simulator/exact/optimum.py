"""The exact optimum of a problem: V* of every state and Q* of every message (SPEC section 7)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.exact.arena import OUT_OF_TABLE, Arena, build_arena
from resilisim.simulator.exact.breakers import NO_TOOL
from resilisim.simulator.exact.kernel import solve_values
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.messages import FINISH, Message, execution
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import (
    EpisodeState,
    has_succeeded,
    is_awaiting_closing,
    is_done,
    next_state,
    outcome,
    start_state,
    success_probability,
)
from resilisim.simulator.transition import (
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NUM_FAILURES,
    ORDER_BROKEN,
    RUNNING,
    TURNS_USED,
)

# Values closer than this count as equal when an action is chosen, so that ties do not hang on rounding.
TIE_TOLERANCE = 1e-12

# Sent only to leave a row of equal calls before the loop rule ends the episode; what it searches for has no meaning.
OTHER_MESSAGE = Message("search", query="anything else")

# Solving all of benchmark-v1 takes seconds, so little is worth keeping.
CACHE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Optimum:
    """The solved problem.

    Attributes:
        problem: What was solved.
        arena: The tools that the table tells apart.
        values: float64 `arena.table_shape`, see `kernel`.
        gap: How far the values may lie below the optimum: 0 where they are exact, which they are unless tools of
            unequal reliability would make the table too large (`breakers`).
    """

    problem: Problem
    arena: Arena
    values: NDArray[np.float64]
    gap: float

    def __repr__(self) -> str:
        """Return the problem and its value, without the table."""
        return f"Optimum({self.problem}, value={self.value(start_state(self.problem)):.6f}, gap={self.gap:.6f})"

    def value(self, state: EpisodeState) -> float:
        """Return V*(state), the highest probability of full success from a state that an episode can reach."""
        counters = state.counters
        if counters[ENDED] != RUNNING:
            return float(outcome(self.problem, state))
        if counters[ORDER_BROKEN]:
            return 0.0
        if is_done(self.problem, state):
            return 1.0
        turns_left = self.problem.rules.max_turns - counters[TURNS_USED]
        if turns_left < len(self.problem.required) - counters[NEXT_PLACE]:
            return 0.0
        row = self.arena.compact[self._code(state)]
        if row == OUT_OF_TABLE:
            return 0.0
        consecutive = counters[CONSECUTIVE_FAILURES] if self.problem.rules.max_consecutive_failures else 0
        place = counters[NEXT_PLACE]
        return float(self.values[turns_left, row, place, counters[NUM_FAILURES], consecutive, self._loop(state)])

    def after_search(self, searches: int) -> float:
        """Return V* after so many different searches at the start, 0.0 to 1.0.

        It is V* with that many turns fewer, and the most that is left to somebody who has to make these searches before
        the last required tool can succeed, whenever they are made: a search changes nothing but the turns left, and
        different ones are no loop (docs/decisions.md).

        Args:
            searches: How many, at least 0.
        """
        state = start_state(self.problem)
        for number in range(min(searches, self.problem.rules.max_turns)):
            state = next_state(self.problem, state, Message("search", query=str(number)))
        return self.value(state)

    def action_value(self, state: EpisodeState, message: Message) -> float:
        """Return Q*(state, message): the highest probability of full success if this message is sent next."""
        if message.kind != "execute" or is_awaiting_closing(self.problem, state):
            return self.value(next_state(self.problem, state, message))
        after_success = self.value(next_state(self.problem, state, message, success=True))
        after_failure = self.value(next_state(self.problem, state, message, success=False))
        return self._expected(state, message, after_success, after_failure)

    def judge(self, state: EpisodeState, message: Message, after: EpisodeState) -> tuple[float, float]:
        """Return Q*(state, message) and V*(after) for the state that the message led to, which saves half of the work.

        Args:
            state: A running state.
            message: What was sent in it.
            after: What `next_state` made of both.
        """
        reached = self.value(after)
        if message.kind != "execute" or is_awaiting_closing(self.problem, state):
            return reached, reached
        succeeded = has_succeeded(state, message, after)
        missed = self.value(next_state(self.problem, state, message, success=not succeeded))
        values = (reached, missed) if succeeded else (missed, reached)
        return self._expected(state, message, *values), reached

    def _expected(self, state: EpisodeState, message: Message, after_success: float, after_failure: float) -> float:
        chance = success_probability(self.problem, state, self.problem.library.index(message.tool or ""))
        return chance * after_success + (1.0 - chance) * after_failure

    def best_action(self, state: EpisodeState) -> Message:
        """Return a message with the highest Q*; among equals the next required tool, then the order of the library.

        Where nothing can succeed any more, the next required tool is called all the same (or the episode finished, if
        only the closing message is left).
        """
        if is_done(self.problem, state) or is_awaiting_closing(self.problem, state):
            return FINISH
        required_next = self.problem.required[min(state.counters[NEXT_PLACE], len(self.problem.required) - 1)]
        best, best_value = required_next, -1.0
        for tool in (required_next, *self._worth_calling(state)):
            value = self.action_value(state, execution(self.problem.library.names[tool]))
            if value > best_value + TIE_TOLERANCE:
                best, best_value = tool, value
        if self._loop(state) > 0 and self.action_value(state, OTHER_MESSAGE) > best_value + TIE_TOLERANCE:
            return OTHER_MESSAGE
        return execution(self.problem.library.names[best])

    def _worth_calling(self, state: EpisodeState) -> list[int]:
        """Return tools among which there is one with the highest Q*; calling any other is dominated by one of them.

        Calling a successful tool again can only break a row of failures, which a neutral tool does as well. Breakers
        that are not neutral may have dependencies, and running these can pay before a row has begun.
        """
        breakers = self.arena.breakers
        in_row = state.counters[CONSECUTIVE_FAILURES] > 0 and self.problem.rules.max_consecutive_failures > 0
        again = in_row and breakers.neutral_base == NO_TOOL
        tools = [tool for tool in self.problem.closure if again or state.status[tool] != SUCCEEDED]
        return [*tools, *breakers.tools] if in_row or breakers.joining else tools

    def _code(self, state: EpisodeState) -> int:
        code = 0
        done = state.counters[NEXT_PLACE]
        for tool, place, stride in self.arena.digits:
            if not 0 <= place < done:
                code += state.status[tool] * stride
        return code

    def _loop(self, state: EpisodeState) -> int:
        if not self.arena.loop_tools or self.values.shape[5] == 1:
            return 0
        tool = state.counters[LOOP_SIGNATURE]
        slot = self.arena.slot.get(tool)
        if slot is None or state.status[tool] != SUCCEEDED:
            return 0
        return 1 + slot * (self.problem.rules.loop_length - 1) + state.counters[LOOP_COUNT] - 1


def solve(problem: Problem) -> Optimum:
    """Solve a problem exactly, or return it solved if it was met lately.

    Problems are equal if they are the same object (`build_problem` sees to that). The latest tables are kept, up to
    CACHE_BYTES together.

    Raises:
        ExactLimitError: The problem's table would be too large.
    """
    optimum = _solved.get(problem)
    if optimum is not None:
        _solved.move_to_end(problem)
        return optimum
    optimum = _solved[problem] = compute_optimum(problem)
    while len(_solved) > 1 and sum(kept.values.nbytes for kept in _solved.values()) > CACHE_BYTES:
        _solved.popitem(last=False)
    return optimum


_solved: OrderedDict[Problem, Optimum] = OrderedDict()


def compute_optimum(problem: Problem) -> Optimum:
    """Solve a problem exactly and keep nothing."""
    arena = build_arena(problem)
    values = _sweep(problem, arena, arena.breakers.neutral_base)
    if arena.breakers.upper_base == NO_TOOL:
        return Optimum(problem, arena, values, 0.0)
    upper = _sweep(problem, arena, arena.breakers.upper_base)
    upper -= values
    return Optimum(problem, arena, values, float(upper.max()))


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
        problem.table.probability,
        neutral_base,
        arena.loop_tools,
        len(problem.required),
        problem.rules.max_turns,
        problem.rules.max_consecutive_failures,
        problem.rules.loop_length,
        values,
    )
    return values


def known_probabilities(problem: Problem) -> float:
    """Return V*(start), the ceiling for an agent that knows the law but not its luck."""
    return solve(problem).value(start_state(problem))
