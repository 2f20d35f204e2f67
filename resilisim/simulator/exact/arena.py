"""Which tools the exact solver has to tell apart, and how their statuses become one number.

A state's value depends on the required tools, on their dependencies, and, while the rule of consecutive failures is on,
on the best tool that can be called just to break a row of failures. Three facts keep the table small and exact:

* While the order is intact the successful required tools are the first `k` of the list, so one number stands for them.
* Whether a tool was executed and failed matters only if another tool depends on it.
* Every touched tool (a helper executed, a required tool failed) has cost a turn of its own. With more of them than
  turns to spare, fewer turns are left than tools are missing, and the value is 0. Such states need no entry.

Calling a tool outside the closure can only help by succeeding, which breaks a row of failures; without the rule of
consecutive failures it never helps. Which of these calls are worth a thought? There are three cases.

* Two tools without dependencies share the highest base of the library (the default library). Whatever the loop counter
  stands at, one of them is there with that probability, and no other such call is better: the pair is *neutral*.
* Reliabilities differ. The best two without dependencies, every outside tool with a higher base than the second, and
  what those depend on, *join* the arena with digits of their own, and the loop counter becomes part of the state. All
  other outside tools are dominated by one of the two.
* They differ and too many would join. Then the second best without dependencies serves as neutral, which is always
  possible and so gives a lower bound, and a tool with the highest base of all that is always there gives an upper
  bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError
from resilisim.simulator.problem import Problem, dependencies_within

NO_TOOL = -1


@dataclass(frozen=True, slots=True)
class Breakers:
    """How rows of failures can be broken."""

    tools: tuple[int, ...] = ()  # outside tools worth calling, the best first
    joining: tuple[int, ...] = ()  # outside tools that get digits of their own
    neutral_base: int = NO_TOOL  # base index of a tool that may always be called for it
    upper_base: int = NO_TOOL  # base index that no such call exceeds, if `neutral_base` is only a lower bound


def exact_breakers(problem: Problem) -> Breakers:
    """Return the breakers that lose nothing."""
    if problem.rules.max_consecutive_failures == 0:
        return Breakers()
    outside, free = _outside(problem)
    if len(free) >= 2 and problem.base(free[1]) == max(problem.bases):
        return Breakers(tuple(free[:2]), (), problem.base_index[free[1]])
    enough = second_free_base(problem)
    joining = {*free[:2], *(tool for tool in outside if problem.base(tool) > enough)}
    pending = list(joining)
    while pending:
        for dependency in problem.dependencies[pending.pop()]:
            if dependency in outside and dependency not in joining:
                joining.add(dependency)
                pending.append(dependency)
    tools = tuple(sorted(joining, key=lambda tool: -problem.base(tool)))
    return Breakers(tools, tools)


def bounding_breakers(problem: Problem) -> Breakers:
    """Return breakers that need no digits and bound the optimum from both sides."""
    _, free = _outside(problem)
    neutral = problem.base_index[free[1]] if len(free) >= 2 else NO_TOOL
    return Breakers(tuple(free[:2]), (), neutral, len(problem.bases) - 1)


def second_free_base(problem: Problem) -> float:
    """Return the second highest base among tools outside without dependencies; -1 if there are fewer than two."""
    _, free = _outside(problem)
    return problem.base(free[1]) if len(free) >= 2 else -1.0


def _outside(problem: Problem) -> tuple[set[int], list[int]]:
    """Return the tools outside the closure, and those without dependencies among them, the most reliable first."""
    outside = set(range(problem.num_tools)).difference(problem.closure)
    free = sorted((tool for tool in outside if not problem.dependencies[tool]), key=lambda tool: -problem.base(tool))
    return outside, free


MAX_TABLE_ENTRIES = 250_000_000  # 2 GB if every entry were used
MAX_STATUS_CODES = 20_000_000
MAX_EXACT_ENTRIES = 25_000_000  # more than any list of the default library needs at ten turns
# With joining tools there is a way out that needs no digits (`Breakers`), so the table is not let grow as far.
MAX_JOINED_ENTRIES = 20_000_000
OUT_OF_TABLE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Arena:
    """The tools that the solver distinguishes, in arrays that the kernel reads."""

    slot: tuple[int, ...]  # (num_tools,) library index to arena index, or NO_TOOL
    place: NDArray[np.int64]  # (num_arena,) in the required list, or -1
    dependencies: NDArray[np.int64]  # (num_arena, max_dependencies) arena indices, padded with -1
    base_index: NDArray[np.int64]  # (num_arena,)
    stride: NDArray[np.int64]  # (num_arena,) weight of the tool's digit in a status code; 0 if it has none
    radix: NDArray[np.int64]  # (num_arena,) 3 (not executed, failed, succeeded), 2 (not executed, failed), 1 (no digit)
    codes: NDArray[np.int64]  # (num_codes,) the status codes that have an entry, ascending
    compact: NDArray[np.int32]  # (product of radices,) place of a code in `codes`, or -1
    digits: tuple[tuple[int, int, int], ...]  # (library index, place, stride) of each tool that has a digit
    breakers: Breakers
    loop_tools: int  # 1 if the table tells apart how often which successful tool was called last, else 0
    # Turns left, codes, required tools done, failures, consecutive failures, loop states.
    table_shape: tuple[int, int, int, int, int, int]


def build_arena(problem: Problem, most_exactly: int | None = None) -> Arena:
    """Choose the tools that matter for a problem and number their statuses; too large a table is refused.

    Args:
        problem: The task's numbers.
        most_exactly: Entries that a table may have which has to be exact, if it has to.
    """
    breakers = exact_breakers(problem)
    if most_exactly is not None:
        return _arena(problem, breakers, min(MAX_JOINED_ENTRIES, most_exactly) if breakers.joining else most_exactly)
    if breakers.joining:
        try:
            return _arena(problem, breakers, MAX_JOINED_ENTRIES)
        except ExactLimitError:
            breakers = bounding_breakers(problem)
    return _arena(problem, breakers, MAX_TABLE_ENTRIES)


def _arena(problem: Problem, breakers: Breakers, max_entries: int) -> Arena:
    members = sorted({*problem.closure, *breakers.joining})
    slot = {tool: index for index, tool in enumerate(members)}
    depended_on = {dependency for tool in members for dependency in problem.dependencies[tool]}
    radix = [3 if problem.place[tool] < 0 else 2 if tool in depended_on else 1 for tool in members]
    stride, size = [], 1
    for digits in radix:
        stride.append(size if digits > 1 else 0)
        size *= digits
    if size > min(MAX_STATUS_CODES, max_entries):
        raise ExactLimitError(_too_large(problem, size, min(MAX_STATUS_CODES, max_entries)))
    exact = breakers.upper_base == NO_TOOL
    loop_tools = int(exact and problem.rules.max_consecutive_failures > 0 and breakers.neutral_base == NO_TOOL)
    codes, compact = _admissible_codes(radix, size, problem.rules.max_turns - len(problem.required))
    table_shape = (
        problem.rules.max_turns + 1,
        len(codes),
        len(problem.required) + 1,
        max(problem.rules.max_turns - len(problem.required), 0) + 1,
        max(problem.rules.max_consecutive_failures, 1),
        1 + loop_tools * len(members) * max(problem.rules.loop_length - 1, 0),
    )
    if math.prod(table_shape) > max_entries:
        raise ExactLimitError(_too_large(problem, math.prod(table_shape), max_entries))
    return Arena(
        slot=tuple(slot.get(tool, NO_TOOL) for tool in range(problem.num_tools)),
        place=np.array([problem.place[tool] for tool in members], dtype=np.int64),
        dependencies=dependencies_within(problem, members),
        base_index=np.array([problem.base_index[tool] for tool in members], dtype=np.int64),
        stride=np.array(stride, dtype=np.int64),
        radix=np.array(radix, dtype=np.int64),
        codes=codes,
        compact=compact,
        digits=tuple(
            (tool, problem.place[tool], weight) for tool, weight in zip(members, stride, strict=True) if weight > 0
        ),
        breakers=breakers,
        loop_tools=loop_tools,
        table_shape=table_shape,
    )


def _admissible_codes(radix: list[int], size: int, spare_turns: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the codes with at most `spare_turns` digits above zero, and each code's place among them (or -1)."""
    touched = np.zeros(1, dtype=np.int8)
    for digits in radix:
        step = (np.arange(digits) > 0).astype(np.int8)
        touched = (step[:, None] + touched[None, :]).ravel()
    admissible = touched <= max(spare_turns, -1)
    codes = np.flatnonzero(admissible).astype(np.int64)
    compact = np.full(size, OUT_OF_TABLE, dtype=np.int32)
    compact[codes] = np.arange(len(codes), dtype=np.int32)
    return codes, compact


def _too_large(problem: Problem, entries: int, limit: int) -> str:
    return (
        f"the values of all states of {len(problem.required)} required tools with {len(problem.closure)} in their "
        f"dependency closure and {problem.rules.max_turns} turns are {entries:,} table entries: expected at most "
        f"{limit:,}; use fewer turns or a shorter list"
    )
