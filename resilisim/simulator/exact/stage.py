"""Which tools the solver of laws with parts has to tell apart, and what in a state makes no difference to its value.

Told apart are the required tools, what can stand in for them and all their dependencies; tools that open what is
closed, if something can close; validators, if only they tell of outputs; and what all of these depend on. Any other
tool, and these once they have succeeded, can only break a row of failures, or show whether its group is down. As in
`arena`, such a call is *neutral* if a tool as good as any is there for it at every time: then one entry stands for all
of them. Where that cannot be shown, small libraries are *enumerated*: every tool is told apart, with the row of equal
calls that the loop rule counts, and may be called for anything. In larger ones the values with those neutral calls that
are surely there are a lower bound, and the values with one that is always up, never limited and never broken (and one
that looks at each group) are an upper bound; the difference is stated.

States are packed into rows of numbers, and kept by their number of messages, each once, in a `Layer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError
from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.law import IntVector
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.build import ToolFacts, as_record, make_rulebook
from resilisim.simulator.rulebook.rules import Tables
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NUM_FAILURES,
    TURNS_USED,
)

MAX_TOOLS = 31  # statuses are two bits each of one number
MAX_WIDTH = 31  # dependencies of a tool


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The tools that the solver tells apart.

    Attributes:
        tools: Library indices of the tools; neutral ones follow them in the rulebook.
        rules: The law for these tools, and what else the solver knows of them, as a record for compiled code: the
            fields of `Rulebook`; `is_enumerated`; `is_neutral`; `is_offered`, 0 for neutral ones that only the other
            bound has; `is_timeless`, 1 for those that look at a group; `least_row`, failures in a row from which on a
            neutral one is called to break the row, or 0; `recall_row`, likewise for tools that have succeeded where
            the stage is not enumerated; `dependents`, tools that depend on each; `order`, dependents before what they
            depend on; `group_breaks_rows`; `own_key`, the rate key that only this tool has, or -1; `failing_helps`
            (`failing_helps`); `repeats_refused`, 1 if sending a refused input again can be worth it.
        tables: The law's tables.
        alone: Library indices of the tools that are taken to work; the value is for that case.
        rate_keys: For each rate key its number in the library's rulebook.
        groups: For each group likewise.
        width: Length of a packed state.
    """

    tools: tuple[int, ...]
    rules: Any
    tables: Tables
    alone: tuple[int, ...]
    rate_keys: NDArray[np.int64]
    groups: NDArray[np.int64]
    width: int


@dataclass(frozen=True, slots=True)
class Neutral:
    """A kind of call of an outside tool.

    Attributes:
        facts: What the law says of the tool.
        tools: Library indices of the tools that it can be.
        least_row: Failures in a row from which on it is called to break the row; 0 if it never is.
    """

    facts: ToolFacts
    tools: tuple[int, ...]
    least_row: int


def told_apart(problem: Problem) -> tuple[int, ...]:
    """Return the library indices of the tools that matter by themselves."""
    dynamics = problem.dynamics
    facts, library = dynamics.numbers.facts, problem.library
    wanted = set(problem.closure)
    if dynamics.rules.at_unsound >= 0:
        wanted.update(tool for tool, one in enumerate(facts) if one.is_validator)
    tools = library.closure(library.names[tool] for tool in sorted(wanted))
    # Openers come last: a validator can be closed, too, and what it depends on. Openers themselves never are.
    if dynamics.rules.at_block >= 0 and any(facts[library.index(name)].access_share > 0.0 for name in tools):
        openers = [name for name, one in zip(library.names, facts, strict=True) if one.is_opener]
        tools = library.closure([*tools, *openers])
    return tuple(library.index(name) for name in tools)


def failing_helps(problem: Problem) -> bool:
    """Return whether an execution may be made in the hope that it fails.

    Its success would have to be unwelcome and its failure welcome: a tool that is required only later, on which another
    depends that may be called before, under a law where a dependency that failed counts for more than one not executed.
    """
    law = problem.law
    if law.failed <= law.not_executed:
        return False
    return any(
        problem.place[needed] >= 0 and problem.place[tool] < problem.place[needed]
        for tool, dependencies in enumerate(problem.dependencies)
        for needed in dependencies
    )


def single_row(problem: Problem) -> int:
    """Return from how many failures in a row on calling one successful tool until the row is broken is never a loop."""
    rules = problem.rules
    return max(1, rules.max_consecutive_failures - rules.loop_length + 1) if rules.loop_length > 0 else 1


def neutral_tools(problem: Problem, tools: Sequence[int], informed: bool) -> tuple[list[Neutral], list[Neutral]]:
    """Return neutral calls that are surely there, and those that bound what any call aside can do.

    Both are the same where the former are as good as any call aside: of an outside tool, or of one that has succeeded.
    """
    dynamics, rules = problem.dynamics, problem.rules
    facts, law, told = dynamics.numbers.facts, dynamics.numbers.law, set(tools)
    outside = [tool for tool in range(problem.num_tools) if tool not in told]
    highest = max(problem.table.bases)
    free = [tool for tool in outside if not facts[tool].dependencies]
    best = [tool for tool in free if problem.base(tool) == highest and facts[tool].access_share == 0.0]
    per_tool = law.rate_limit is not None and law.rate_limit.per == "tool"
    classes: dict[ToolFacts, list[int]] = {}
    for tool in best:
        kept = replace(facts[tool], name="any tool", rate_key=None if per_tool else facts[tool].rate_key)
        kept = replace(kept, input_share=0.0, opened_input_share=0.0, corrupt_chance=0.0)
        classes.setdefault(replace(kept, is_validator=False, is_opener=False), []).append(tool)
    tracked = {None, *(facts[tool].group for tool in tools)}  # each further group would multiply the states
    there = []
    for kept, members in classes.items():
        # Each call can be of a tool that was not called lately, nor before where tools may be broken; two in turn are
        # never a loop.
        supply = len(members) * (dynamics.rules.rate_calls if per_tool else rules.max_turns)
        if (
            kept.group in tracked
            and supply >= rules.max_turns
            and (kept.broken_prior == 0.0 or len(members) >= rules.max_turns)
        ):
            is_single = len(members) == 1 or kept.broken_prior > 0.0
            there.append(Neutral(kept, tuple(members), single_row(problem) if is_single else 1))
    breaks = rules.max_consecutive_failures > 0
    groups = set() if informed else {facts[tool].group for tool in tools} - {None}
    shared = law.rate_limit is None or law.rate_limit.per != "category"
    as_good_as_any = [
        one
        for one in there
        if one.least_row == 1 and one.facts.group is None and one.facts.broken_prior == 0.0 and shared
    ]
    if not groups and (not breaks or as_good_as_any):
        exact = as_good_as_any[:1] if breaks else []
        return exact, exact
    row = max(facts, key=lambda one: one.first_row)
    ideal = ToolFacts("an ideal tool", row.first_row, ())
    bounding = [Neutral(ideal, (), 1)] if breaks else []
    bounding += [Neutral(replace(ideal, group=group), (), 0) for group in sorted(map(str, groups))]
    return (there if breaks else []), bounding


def make_stage(
    problem: Problem,
    tools: Sequence[int],
    neutral: Sequence[Neutral],
    num_offered: int | None = None,
    *,
    is_enumerated: bool = False,
) -> Stage:
    """Number the tools that are told apart, with neutral ones behind them, of which the first few are offered."""
    dynamics = problem.dynamics
    place_of = {tool: number for number, tool in enumerate(tools)}
    every = dynamics.numbers.facts
    facts = [
        replace(every[tool], dependencies=tuple(place_of[other] for other in every[tool].dependencies))
        for tool in tools
    ]
    # Where a required tool that nothing stands in for is broken, all is lost whatever is done. So values are solved as
    # if it works, and multiplied by the chance of that.
    alone = [place >= 0 and problem.place.count(place) == 1 for place in (problem.place[tool] for tool in tools)]
    facts = [replace(one, broken_prior=0.0) if is_alone else one for one, is_alone in zip(facts, alone, strict=True)]
    facts += [one.facts for one in neutral]
    if len(facts) > MAX_TOOLS:
        raise ExactLimitError(
            f"the exact optimum under law {dynamics.numbers.law.name} has to tell {len(facts)} tools apart: expected "
            f"at most {MAX_TOOLS}; use a shorter list"
        )
    place = [problem.place[tool] for tool in tools] + [-1] * len(neutral)
    rules = make_rulebook(dynamics.numbers, facts, place, len(problem.required))
    keys = list(dict.fromkeys(one.rate_key for one in facts if one.rate_key is not None))
    groups = list(dict.fromkeys(one.group for one in facts if one.group is not None))
    every_key = list(dict.fromkeys(one.rate_key for one in every if one.rate_key is not None))
    dependents: list[list[int]] = [[] for _ in facts]
    for number, one in enumerate(facts):
        for other in one.dependencies:
            dependents[other].append(number)
    num_offered = len(neutral) if num_offered is None else num_offered
    offered = [1] * len(tools) + [int(number < num_offered) for number in range(len(neutral))]
    breaks = [0] * len(tools) + [one.least_row for one in neutral]
    group_breaks = [
        int(any(b > 0 and one.group == group for b, one in zip(breaks, facts, strict=True))) for group in groups
    ]
    holders = [[number for number, one in enumerate(facts) if one.rate_key == key] for key in keys]
    own_key = [-1] * len(facts)
    for key, holding in enumerate(holders):
        if len(holding) == 1:
            own_key[holding[0]] = key
    most = max(map(len, dependents))
    beside = {
        "is_enumerated": int(is_enumerated),
        "failing_helps": int(failing_helps(problem)),
        "repeats_refused": int(is_enumerated and rules.at_block >= 0 and rules.at_outage >= 0),
        "is_timeless": [0] * len(tools) + [int(one.least_row == 0) for one in neutral],
        "is_neutral": [0] * len(tools) + [1] * len(neutral),
        "is_offered": offered,
        "least_row": breaks,
        "recall_row": single_row(problem) if num_offered < len(neutral) else 0,
        "dependents": [[*some, *[-1] * (most - len(some))] for some in dependents] if most else [[-1]] * len(facts),
        "order": _dependents_first(facts),
        "group_breaks_rows": group_breaks,
        "own_key": own_key,
    }
    width = 2 + 5 + rules.num_rate_keys + rules.num_groups + 1
    width += len(facts) if rules.at_evidence >= 0 else 0
    return Stage(
        tools=tuple(tools),
        rules=as_record({**rules._asdict(), **beside}, MAX_TOOLS + 1, MAX_WIDTH),
        tables=dynamics.numbers.tables,
        alone=tuple(tool for tool, is_alone in zip(tools, alone, strict=True) if is_alone),
        rate_keys=np.array([every_key.index(key) for key in keys], dtype=np.int64),
        groups=np.array([dynamics.groups.index(group) for group in groups], dtype=np.int64),
        width=width,
    )


def _dependents_first(facts: Sequence[ToolFacts]) -> list[int]:
    order: list[int] = []

    def visit(tool: int) -> None:
        for other in facts[tool].dependencies:
            visit(other)
        if tool not in order:
            order.append(tool)

    for tool in range(len(facts)):
        visit(tool)
    return order[::-1]


@scalar
def pack(
    rules: Any, status: IntVector, counters: IntVector, parts: IntVector, hidden: IntVector, informed: bool, row: Any
) -> None:
    """Write a simplified state into a row; what is down and the loop share COLUMN_DOWN."""
    num_tools = rules.num_tools
    for column in range(len(row)):
        row[column] = 0
    for tool in range(num_tools):
        row[0] |= status[tool] << (2 * tool)
    row[1] = (counters[NUM_FAILURES] << 32) | (counters[CONSECUTIVE_FAILURES] << 16) | counters[NEXT_PLACE]
    for tool in range(num_tools):
        if rules.at_block >= 0:
            row[2] |= parts[rules.at_block + tool] << (2 * tool)
        if rules.at_sound >= 0:
            row[3] |= parts[rules.at_sound + tool] << (2 * tool)
        if informed and rules.at_broken >= 0:
            row[4] |= hidden[rules.at_broken + tool] << tool
        if informed and rules.at_unsound >= 0:
            row[5] |= hidden[rules.at_unsound + tool] << tool
    row[COLUMN_DOWN] = (counters[LOOP_COUNT] << 40) | ((counters[LOOP_SIGNATURE] + 1) << 32)
    column = 7
    for group in range(rules.num_groups):
        if informed:
            row[COLUMN_DOWN] |= hidden[rules.at_down + group] << group
        row[column] = parts[rules.at_outage + 2 * group] | (parts[rules.at_outage + 2 * group + 1] << 2)
        column += 1
    for key in range(rules.num_rate_keys):
        row[column] = parts[rules.at_rate + key]
        column += 1
    if rules.at_time >= 0:
        row[column] = parts[rules.at_time]
    column += 1
    if rules.at_evidence >= 0:
        for tool in range(num_tools):
            row[column] = parts[rules.at_evidence + tool]
            column += 1


COLUMN_DOWN = 6


@scalar
def unpack(
    rules: Any,
    row: Any,
    turns_used: int,
    informed: bool,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
) -> None:
    """Read a row back, the inverse of `pack`."""
    num_tools = rules.num_tools
    for number in range(len(counters)):
        counters[number] = 0
    counters[LOOP_COUNT] = row[COLUMN_DOWN] >> 40
    counters[LOOP_SIGNATURE] = ((row[COLUMN_DOWN] >> 32) & 0xFF) - 1
    counters[TURNS_USED] = turns_used
    counters[NUM_FAILURES] = row[1] >> 32
    counters[CONSECUTIVE_FAILURES] = (row[1] >> 16) & 0xFFFF
    counters[NEXT_PLACE] = row[1] & 0xFFFF
    for tool in range(num_tools):
        status[tool] = (row[0] >> (2 * tool)) & 3
        if rules.at_block >= 0:
            parts[rules.at_block + tool] = (row[2] >> (2 * tool)) & 3
        if rules.at_sound >= 0:
            parts[rules.at_sound + tool] = (row[3] >> (2 * tool)) & 3
        if informed and rules.at_broken >= 0:
            hidden[rules.at_broken + tool] = (row[4] >> tool) & 1
        if informed and rules.at_unsound >= 0:
            hidden[rules.at_unsound + tool] = (row[5] >> tool) & 1
    column = 7
    for group in range(rules.num_groups):
        if informed:
            hidden[rules.at_down + group] = (row[COLUMN_DOWN] >> group) & 1
        parts[rules.at_outage + 2 * group] = row[column] & 3
        parts[rules.at_outage + 2 * group + 1] = row[column] >> 2
        column += 1
    for key in range(rules.num_rate_keys):
        parts[rules.at_rate + key] = row[column]
        column += 1
    if rules.at_time >= 0:
        parts[rules.at_time] = row[column]
    column += 1
    if rules.at_evidence >= 0:
        for tool in range(num_tools):
            parts[rules.at_evidence + tool] = row[column]
            column += 1


@scalar
def find_slot(row: Any, rows: Any, slots: Any) -> int:
    """Return the slot of a row in a hash table: that of its number, or the empty one (-1) where it belongs."""
    code = 1469598103934665603
    for column in range(len(row)):
        code = (code ^ row[column]) * 1099511628211
        code ^= (code >> 29) & 0x7FFFFFFFF
    place = code & (len(slots) - 1)
    while slots[place] >= 0:
        same = True
        for column in range(len(row)):
            if rows[slots[place], column] != row[column]:
                same = False
                break
        if same:
            return int(place)
        place = (place + 1) & (len(slots) - 1)
    return int(place)


@kernel
def fill_slots(rows: NDArray[np.int64], count: int, slots: NDArray[np.int32]) -> None:
    """Number the first rows in an empty hash table."""
    for number in range(count):
        slots[find_slot(rows[number], rows, slots)] = number


@kernel
def find_row(row: NDArray[np.int64], rows: NDArray[np.int64], slots: NDArray[np.int32]) -> int:
    """Return the number of a row, or -1."""
    return int(slots[find_slot(row, rows, slots)])


class Layer:
    """The states after so many messages, each once."""

    def __init__(self, width: int) -> None:
        self.rows = np.zeros((64, width), dtype=np.int64)
        self.values = np.zeros(64)
        self.slots = np.full(256, -1, dtype=np.int32)
        self.count = np.zeros(1, dtype=np.int64)

    @property
    def size(self) -> int:
        """How many there are."""
        return int(self.count[0])

    def grow(self) -> None:
        """Make room for four times as many."""
        self.rows = np.concatenate([self.rows, np.zeros((3 * len(self.rows), self.rows.shape[1]), dtype=np.int64)])
        self.values = np.concatenate([self.values, np.zeros(3 * len(self.values))])
        self.slots = np.full(4 * len(self.slots), -1, dtype=np.int32)
        fill_slots(self.rows, self.size, self.slots)

    def add(self, row: NDArray[np.int64]) -> bool:
        """Add a state, unless it is there; return whether it is new."""
        if find_row(row, self.rows, self.slots) >= 0:
            return False
        if self.size == len(self.rows):
            self.grow()
        self.rows[self.size] = row
        self.count[0] += 1
        self.slots[:] = -1
        fill_slots(self.rows, self.size, self.slots)
        return True
