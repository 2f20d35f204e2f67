"""The exact optimum by search: values of the states that can matter, for problems whose full table would be too large.

A depth-first search over states, each valued once and kept. At a state it tries the calls in the order of an upper
bound on their worth (`relaxation`) and stops as soon as no other call's bound is above the best value found, so what is
left out could not have changed the value. States that differ only in what can no longer matter are one state
(`_canonical`): statuses of tools that no missing tool depends on any more, which of several equal helpers it was, a row
of failures that is too short to end the episode before the turns do.

Where no neutral tool is there to break a row of failures (`arena.exact_breakers`), the search runs on two levels: the
lower one solves the problem as if the most reliable tool could always be called for it, and its exact values are the
bounds of the upper one, which follows loops and the tools that a break may need.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError
from resilisim.simulator.exact.arena import NO_TOOL, Breakers, exact_breakers, second_free_base
from resilisim.simulator.exact.relaxation import NUM_TOKENS, relax
from resilisim.simulator.exact.search_kernels import (
    FINISHED,
    MEMORY_FULL,
    NUM_OF_CALL,
    TOOLS_A_WORD,
    Field,
    Memo,
    Space,
    bound_state,
    move_memo,
    search,
    search_on_two_levels,
)
from resilisim.simulator.problem import Problem, dependencies_within
from resilisim.simulator.state import (
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NO_LOOP,
    NUM_COUNTERS,
    EpisodeState,
)
from resilisim.simulator.tool_status import SUCCEEDED

MAX_MEMO_BYTES = 400 * 2**20  # of one problem; about 6 million states of 40 tools
FIRST_CAPACITY = 1 << 8


class Search:
    """Searches for the values of one problem's states, and keeps what it finds.

    Args:
        problem: The task's numbers.
        max_states: States that may be kept, about; as many as there is memory for if None.

    Attributes:
        breakers: What is worth calling just to break a row of failures.
        members: Library indices of the tools that are told apart, dependencies first.
        local: Their places among the members.
        levels: 2 where no neutral tool is there to break a row of failures, else 1.

    Raises:
        ExactLimitError: There are too many turns.
    """

    def __init__(self, problem: Problem, max_states: int | None = None) -> None:
        self.problem = problem
        self.breakers = exact_breakers(problem)
        self.members = _dependencies_first(problem, {*problem.closure, *self.breakers.joining})
        self.local = {tool: index for index, tool in enumerate(self.members)}
        self.levels = 1 + int(problem.rules.max_consecutive_failures > 0 and self.breakers.neutral_base == NO_TOOL)
        self._lock = threading.Lock()
        self._is_fresh = True  # whether the search under way began with nothing kept
        self._field = _make_field(problem, self.members, self.breakers, self.levels)
        self._words = (len(self.members) - 1) // TOOLS_A_WORD + 2
        of_a_state = 8 * (self._words + 1)
        self._is_capped = max_states is not None and max_states * of_a_state < MAX_MEMO_BYTES
        self._most_bytes = MAX_MEMO_BYTES if max_states is None else min(MAX_MEMO_BYTES, max_states * of_a_state)
        self._spaces = [self._make_space() for _ in range(self.levels)]
        self._memos = [_make_memo(FIRST_CAPACITY, self._words) for _ in range(self.levels)]

    @property
    def nbytes(self) -> int:
        """Bytes that the values take."""
        return sum(memo.keys.nbytes + memo.values.nbytes for memo in self._memos) + self._field.relaxation.bound.nbytes

    @property
    def num_states(self) -> int:
        """Number of states whose values are kept."""
        return sum(int(memo.used[0]) for memo in self._memos)

    def value(self, state: EpisodeState) -> float:
        """Return V* of a running state whose order is intact.

        Raises:
            ExactLimitError: Too many states would have to be kept.
        """
        with self._lock:
            self._enter(state)
            begins, top = True, self.levels - 1
            self._is_fresh = self.num_states == 0
            while True:
                memo, space = self._memos[top], self._spaces[top]
                if top == 0:
                    code = search(self._field, memo, space, begins)
                else:
                    code = search_on_two_levels(self._field, memo, space, self._memos[0], self._spaces[0], begins)
                if code == FINISHED:
                    return float(space.result[0])
                begins = not self._make_room(top if code == MEMORY_FULL else 0)
                if begins:
                    self._enter(state)

    def bound(self, state: EpisodeState) -> float:
        """Return an upper bound on V* of a running state whose order is intact, without a search."""
        with self._lock:
            self._enter(state)
            space = self._spaces[-1]
            return bound_state(self._field, space.status[0], space.counters[0], space.tokens[0])

    def scale_bounds(self, factor: float) -> None:
        """Multiply the bounds: below 1 they are none any more. For checks that the bounds are what values hang on."""
        self._field.relaxation.bound[:-1] *= factor

    def _enter(self, state: EpisodeState) -> None:
        space, counters = self._spaces[-1], state.counters
        space.status[0] = [state.status[tool] for tool in self.members]
        looping = self.local.get(counters[LOOP_SIGNATURE], NO_LOOP)
        if looping >= 0 and state.status[counters[LOOP_SIGNATURE]] != SUCCEEDED:
            looping = NO_LOOP
        space.counters[0] = counters
        if looping < 0:
            space.counters[0, LOOP_COUNT] = 0
        space.counters[0, LOOP_SIGNATURE] = looping

    def _make_room(self, level: int) -> bool:
        """Let a memo grow, or forget everything to begin again; return whether the search can go on."""
        old = self._memos[level]
        size = sum(memo.keys.nbytes + memo.values.nbytes for memo in self._memos)
        if size + old.keys.nbytes + old.values.nbytes <= self._most_bytes:
            self._memos[level] = _make_memo(2 * len(old.values), self._words)
            move_memo(old, self._memos[level])
            return True
        num_states = self.num_states
        if not self._is_capped:
            self._memos = [_make_memo(FIRST_CAPACITY, self._words) for _ in range(self.levels)]
        if self._is_fresh or self._is_capped:
            problem = self.problem
            raise ExactLimitError(
                f"the exact optimum of {len(problem.required)} required tools with {len(problem.closure)} in their "
                f"dependency closure and {problem.rules.max_turns} turns needs more than {num_states:,} states: "
                "use fewer turns or a shorter list"
            )
        self._is_fresh = True
        return False

    def _make_space(self) -> Space:
        rows, members = self.problem.rules.max_turns + 2, len(self.members)
        return Space(
            status=np.zeros((rows, members), dtype=np.int64),
            counters=np.zeros((rows, NUM_COUNTERS), dtype=np.int64),
            keys=np.zeros((rows, self._words), dtype=np.uint64),
            calls=np.zeros((rows, members + 3, NUM_OF_CALL)),
            tree=np.zeros((rows, 3), dtype=np.int64),
            best=np.zeros((rows, 2)),
            marks=np.zeros((2, members), dtype=np.int64),
            tally=np.zeros((int(self._field.twins.max()) + 1, 2), dtype=np.int64),
            tokens=np.zeros((2, NUM_TOKENS), dtype=np.int64),
            neutral=np.zeros(1, dtype=np.int64),
            course=np.zeros(5, dtype=np.int64),
            result=np.zeros(1),
        )


def _make_field(problem: Problem, members: Sequence[int], breakers: Breakers, levels: int) -> Field:
    most_reliable = max(problem.base_index[tool] for tool in members)
    neutral = most_reliable if levels == 2 else breakers.neutral_base
    place = np.array([problem.place[tool] for tool in members], dtype=np.int64)
    dependencies = dependencies_within(problem, members)
    base_index = np.array([problem.base_index[tool] for tool in members], dtype=np.int64)
    is_breaker = np.zeros(len(members), dtype=np.bool_)
    if levels == 2:
        enough = second_free_base(problem)
        is_breaker[:] = [tool in breakers.tools or problem.base(tool) > enough for tool in members]
    users: list[list[int]] = [[] for _ in members]
    for tool, needed in enumerate(dependencies.tolist()):
        for dependency in needed:
            if dependency >= 0:
                users[dependency].append(tool)
    num_required = len(problem.required)
    matters = np.zeros((2, num_required + 1, len(members)), dtype=np.bool_)
    twins = np.full((2, num_required + 1, len(members)), -1, dtype=np.int64)
    for level in range(levels):
        breaks = is_breaker if level == 1 else np.zeros_like(is_breaker)
        for done in range(num_required):
            live = (place >= done) | breaks
            for tool in range(len(members) - 1, -1, -1):
                live[tool] |= place[tool] < 0 and any(live[user] for user in users[tool])
            _find_mattering(place, users, live, breaks, matters[level, done], done)
            _find_twins(base_index, dependencies, users, live & (place < 0) & ~breaks, live, twins[level, done])
    rules = problem.rules
    numbers = [num_required, rules.max_turns, rules.max_consecutive_failures, rules.loop_length, neutral]
    return Field(
        place,
        dependencies,
        base_index,
        problem.tables.probability,
        is_breaker,
        matters,
        twins,
        np.array(numbers, dtype=np.int64),
        relax(
            problem,
            members,
            np.repeat([[problem.base(tool)] for tool in members], problem.rules.max_turns + 1, axis=1),
            np.full(problem.rules.max_turns + 1, problem.bases[max(neutral, 0)]),
            problem.rules.max_consecutive_failures,
        ),
    )


def _find_mattering(
    place: NDArray[np.int64],
    users: Sequence[Sequence[int]],
    live: NDArray[np.bool_],
    breaks: NDArray[np.bool_],
    matters: NDArray[np.bool_],
    done: int,
) -> None:
    """Mark the missing required tools that something depends on that can be called before they have succeeded."""
    changed = True
    while changed:
        changed = False
        for tool in np.flatnonzero((place >= done) & ~matters).tolist():
            if any(live[user] and (place[user] < place[tool] or matters[user] or breaks[user]) for user in users[tool]):
                matters[tool] = changed = True


def _find_twins(
    base_index: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    users: Sequence[Sequence[int]],
    helpers: NDArray[np.bool_],
    live: NDArray[np.bool_],
    twins: NDArray[np.int64],
) -> None:
    """Number the groups of helpers that have the same chance and serve the same tools."""
    groups: dict[object, list[int]] = {}
    for tool in np.flatnonzero(helpers).tolist():
        served = tuple(user for user in users[tool] if live[user])
        groups.setdefault((base_index[tool], frozenset(dependencies[tool].tolist()), served), []).append(tool)
    for number, tools in enumerate(tools for tools in groups.values() if len(tools) > 1):
        twins[tools] = number


def _make_memo(capacity: int, words: int) -> Memo:
    return Memo(np.zeros((capacity, words), dtype=np.uint64), np.zeros(capacity), np.zeros(1, dtype=np.int64))


def _dependencies_first(problem: Problem, tools: set[int]) -> list[int]:
    """Return tools in an order in which every tool stands behind its dependencies."""
    ordered: dict[int, None] = {}
    pending = sorted(tools, reverse=True)
    while pending:
        tool = pending.pop()
        if tool in ordered:
            continue
        missing = [needed for needed in problem.dependencies[tool] if needed not in ordered]
        if missing:
            pending += [tool, *missing]
        else:
            ordered[tool] = None
    return list(ordered)
