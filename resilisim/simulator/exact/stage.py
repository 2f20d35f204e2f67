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
from resilisim.simulator.compiled import scalar
from resilisim.simulator.exact.phases import phase_kind
from resilisim.simulator.law import TICKS_PER_SECOND
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.build import ToolFacts, as_record, make_rulebook
from resilisim.simulator.rulebook.rules import Rulebook, Tables
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NUM_FAILURES,
    TURNS_USED,
)
from resilisim.simulator.tool_status import IntVector

MAX_ENUMERATED_TOOLS = 12  # of a small library of which every tool is told apart
# Numbers of tools that a stage has room for: code is compiled for each size, and small records are read faster.
SIZES = (62, 510)
MAX_FOUND = 53  # tools of which validators tell, a bit each of a number that floats hold exactly
MAX_GROUPS, MAX_ASIDE = 8, 8  # of outages of which neutral calls are told apart, and such calls that may be there


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The tools that the solver tells apart.

    Attributes:
        tools: Library indices of the tools; neutral ones follow them in the rulebook.
        rules: The law for these tools, and what else the solver knows of them, as a record for compiled code: the
            fields of `Rulebook`; `is_enumerated`; `is_neutral`; `is_offered`, 0 for neutral ones that only the other
            bound has; `is_timeless`, 1 for those that only look at a group; `least_row`, failures in a row from which
            on a neutral one is called to break the row, or 0; `is_looker` and `needs`, likewise (`Neutral`);
            `recall_row`, the row for tools that have succeeded where the stage is not enumerated, or 0; `dependents`,
            tools that depend on each; `order`, dependents before what they depend on; `group_breaks_rows`;
            `group_twin`, the last group before it of which likewise only neutral tools are called, all alike, or -1;
            `outdoes` (`simplification.is_outdone`);
            `own_key`, the rate key that only this tool has, or -1; `failing_helps`
            (`failing_helps`); `twin`, the last helper before it that is alike in everything, or -1;
            `phase_kind` and `num_phases` (`exact.phases`); `least_ticks`, the time that any call takes at least, or 0;
            `asks_more`, 1 if a call that only asks what is corrupt is needed to know it;
            `repeats_refused`, 1 if sending a refused input again can be worth it.
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
        looks: Whether it may be called to see whether its group is up.
        needs: Number in the stage of the tool that has to have succeeded before, as it is that; or -1.
        share: What is left of the tool's chance.
        guides: Whether it stands in a wide stage (`make_stage`) for all calls of groups that are not tracked there.
    """

    facts: ToolFacts
    tools: tuple[int, ...]
    least_row: int
    looks: bool = False
    needs: int = -1
    share: float = 1.0
    guides: bool = False


def told_apart(problem: Problem) -> tuple[int, ...]:
    """Return the library indices of the tools that matter by themselves."""
    dynamics = problem.dynamics
    facts, library = dynamics.numbers.facts, problem.library
    wanted = set(problem.closure)
    rules = dynamics.rules
    if rules.at_unsound >= 0 and rules.counts_sound:
        validators = [tool for tool, one in enumerate(facts) if one.is_validator]
        wanted.update(undominated(problem, validators, 2))
    wanted.update(other for tool, other in enumerate(rules.checker) if other >= 0 and tool in problem.closure)
    tools = library.closure(library.names[tool] for tool in sorted(wanted))
    # Openers come last: a validator can be closed, too, and what it depends on. Openers themselves never are.
    if dynamics.rules.at_block >= 0 and any(facts[library.index(name)].access_share > 0.0 for name in tools):
        every = [tool for tool, one in enumerate(facts) if one.is_opener]
        tools = library.closure([*tools, *(library.names[tool] for tool in undominated(problem, every, 1))])
        # Nobody has to call the others, but somebody may have: one of them stands for all (`Reachable._enter`).
        others = [library.names[tool] for tool in every if library.names[tool] not in tools]
        if others:
            tools = library.closure([*tools, min(others, key=lambda name: len(library.closure([name])))])
    return tuple(library.index(name) for name in tools)


def undominated(problem: Problem, candidates: Sequence[int], number: int) -> list[int]:
    """Return those of some tools of one use (they open, or they validate) that can be worth calling for it.

    A tool from which nothing in the list depends is of that use alone, and of no other one than another such tool. It
    is left out if `number` tools are there that depend on nothing, are at least as reliable, and share its group and
    what counts together for the rate limit: whenever it is called, one of them could be called instead and would
    succeed at least as often, for the same turn. One is enough where it is called until it succeeds, two where it may
    be called again, since the loop rule stops only one. Where a tool has a limit of its own, as many more are needed as
    have a call free in any window; where tools may be broken, one for every turn.
    """
    dynamics = problem.dynamics
    facts, limit = dynamics.numbers.facts, dynamics.numbers.law.rate_limit
    per_tool = limit is not None and limit.per == "tool"
    if limit is not None and per_tool:
        number += -(-limit.window // limit.calls)
    if dynamics.numbers.law.broken is not None:
        number = problem.rules.max_turns
    classes: dict[tuple[str | None, str | None], list[int]] = {}
    kept = [tool for tool in candidates if tool in problem.closure]
    for tool in candidates:
        if tool not in problem.closure:
            key = None if per_tool else facts[tool].rate_key
            classes.setdefault((facts[tool].group, key), []).append(tool)
    for members in classes.values():
        free = [tool for tool in members if not facts[tool].dependencies and facts[tool].access_share == 0.0]
        free = [tool for tool in free if not problem.once[tool]]
        free.sort(key=lambda tool: (facts[tool].broken_prior, -problem.base(tool)))
        there = free[:number]
        kept += there
        if len(there) < number:
            kept += [tool for tool in members if tool not in there]
            continue
        enough = min(problem.base(tool) for tool in there)
        doubt = max(facts[tool].broken_prior for tool in there)
        kept += [
            tool
            for tool in members
            if tool not in there and (problem.base(tool) > enough or facts[tool].broken_prior < doubt)
        ]
    return kept


def failing_helps(problem: Problem, tools: Sequence[int] | None = None) -> bool:
    """Return whether an execution may be made in the hope that it fails, for the sake of any tool or of some.

    Its success would have to be unwelcome and its failure welcome: a tool that is required only later, on which another
    depends that may be called before, under a law where a dependency that failed counts for more than one not executed.
    """
    law = problem.law
    if not problem.goal.ordered or law.failed <= law.not_executed:
        return False
    return any(
        problem.place[needed] > 0 and problem.place[tool] < problem.place[needed]
        for tool in (range(problem.num_tools) if tools is None else tools)
        for needed in problem.dependencies[tool]
    )


def enumerated_tools(problem: Problem) -> tuple[int, ...]:
    """Return the tools that are told apart where any call may be made for anything; none if that are too many.

    Under a law without parts and without end rules a tool that nothing else depends on changes but the number of
    failures. Where failures are hoped for, the one likeliest to fail stands for all that have the same dependencies.
    """
    rules = problem.rules
    if problem.num_tools <= MAX_ENUMERATED_TOOLS:
        return tuple(range(problem.num_tools))
    if problem.dynamics.has_sections or rules.max_consecutive_failures > 0 or not failing_helps(problem):
        return ()
    needed = {*problem.closure, *(other for needs in problem.dependencies for other in needs)}
    needed |= {tool for tool, once in enumerate(problem.once) if once}
    likeliest: dict[tuple[int, ...], int] = {}
    for tool in sorted(set(range(problem.num_tools)) - needed, key=problem.base):
        likeliest.setdefault(tuple(sorted(problem.dependencies[tool])), tool)
    return tuple(sorted({*needed, *likeliest.values()}))


def single_row(problem: Problem) -> int:
    """Return from how many failures in a row on calling one successful tool until the row is broken is never a loop."""
    rules = problem.rules
    return max(1, rules.max_consecutive_failures - rules.loop_length + 1) if rules.loop_length > 0 else 1


def neutral_tools(
    problem: Problem, tools: Sequence[int], informed: bool, by_group: bool = True
) -> tuple[list[Neutral], list[Neutral]]:
    """Return neutral calls that are surely there, and others beside which together bound what any call aside can do.

    There are none of the latter where the former are as good as any call aside: of an outside tool, or of one that has
    succeeded. Under outages those of all groups are told apart if they may be (`by_group`), which is exact, but takes
    more states.
    """
    if (
        by_group
        and not informed
        and problem.dynamics.numbers.law.outage is not None
        and meets_outages_alone(problem, tools)
    ):
        groups_apart = _Groups(problem, tools)
        if groups_apart.are_few:
            return groups_apart.there, groups_apart.bounding
    dynamics, rules = problem.dynamics, problem.rules
    facts, law, told = dynamics.numbers.facts, dynamics.numbers.law, set(tools)
    outside = [tool for tool in range(problem.num_tools) if tool not in told]
    highest = max(problem.bases)
    free = [tool for tool in outside if not facts[tool].dependencies and not problem.once[tool]]
    best = [tool for tool in free if problem.base(tool) == highest and facts[tool].access_share == 0.0]
    per_tool = law.rate_limit is not None and law.rate_limit.per == "tool"
    classes: dict[ToolFacts, list[int]] = {}
    for tool in best:
        kept = replace(facts[tool], name="any tool", rate_key=None if per_tool else facts[tool].rate_key)
        kept = replace(kept, input_share=0.0, opened_input_share=0.0, corrupt_chance=0.0, lost_share=0.0, checker=None)
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
        return (as_good_as_any[:1] if breaks else []), []
    row = max(facts, key=lambda one: one.first_row)
    ideal = ToolFacts("an ideal tool", row.first_row, ())
    bounding = [Neutral(ideal, (), 1)] if breaks else []
    bounding += [Neutral(replace(ideal, group=group), (), 0, looks=True) for group in sorted(map(str, groups))]
    return (there if breaks else []), bounding


def most_up(problem: Problem) -> float:
    """Return the chance that a group is up which no agent's belief exceeds."""
    outage = problem.dynamics.numbers.law.outage
    if outage is None:
        return 1.0
    return max(1.0 - outage.begins, outage.ends, 1.0 - outage.share_down)


def meets_outages_alone(problem: Problem, tools: Sequence[int]) -> bool:
    """Return whether calls meet nothing that tells tools apart but outages, their dependencies and reliabilities.

    And no success of one of these tools is unwelcome (`failing_helps`).
    """
    law = problem.dynamics.numbers.law
    return (
        not set(law.parts) - {"outage", "drift", "lost_answer"}
        and problem.dynamics.rules.at_ran < 0
        and law.failed >= law.not_executed
        and not failing_helps(problem, tools)
    )


class _Groups:
    """Neutral calls group by group, where calls meet nothing but outages (`meets_outages_alone`).

    Of the outside tools of a group without dependencies the most reliable do whatever any tool of the group does aside,
    if none is more reliable: such a call is as likely to succeed and shows the same. If there are two of them at least,
    they can be called at any time; a single one stops at the loop rule, so it surely is there only from a row of
    failures on (`single_row`) and otherwise bounds. So do, each by itself, tools that are more reliable, or the tools
    of a group in which none is free, with what they depend on: a tool of the list by its own status, others by that of
    the calls which stand for theirs. One that is required can be called aside only once it has succeeded. Of one that
    depends on tools which are required only later there are two: for when they have succeeded, and for before, as if
    all but one had, and that one had failed. So nobody calls those in the hope that they fail.

    Attributes:
        there: Calls that are surely there.
        bounding: Others, which may be.
        are_few: Whether there is room for them.
    """

    def __init__(self, problem: Problem, tools: Sequence[int]) -> None:
        self.problem, self.tools, self.told = problem, tools, {tool: number for number, tool in enumerate(tools)}
        facts = self.facts = problem.dynamics.numbers.facts
        self.breaks = int(problem.rules.max_consecutive_failures > 0)
        self.tracked = {facts[tool].group for tool in tools}
        groups = {*self.tracked, *(one.group for one in facts if self.breaks)}
        self.there: list[Neutral] = []
        self.bounding: list[Neutral] = []
        self._stand_in: dict[int, tuple[bool, int]] = {}  # of tools outside: whether a call that is there, its number
        aside: list[int] = []
        for group in sorted(groups, key=str):
            aside += self._take(group, [tool for tool, one in enumerate(facts) if one.group == group])
        better = {tool: self._better(tool, aside) for tool in aside}
        self.are_few = len(groups) <= MAX_GROUPS and list(better.values()).count(None) <= MAX_ASIDE
        for tool in aside:
            if better[tool] is None:
                self._stand_in[tool] = (False, len(self.bounding))
                self.bounding.append(self._neutral(tool, ()))
        for tool, other in better.items():
            while other is not None and better[other] is not None:
                other = better[other]
            if other is not None:
                self._stand_in[tool] = self._stand_in[other]
        self.bounding = [self._with_dependencies(one) for one in self.bounding]
        self.bounding += [one for tool in aside if better[tool] is None for one in self._before(tool)]
        if self.breaks and self.are_few and groups - self.tracked - {None}:
            row = max(facts, key=lambda one: one.first_row).first_row
            any_tool = ToolFacts("any tool of another group", row, ())
            self.bounding.append(Neutral(any_tool, (), 1, share=most_up(problem), guides=True))

    def _take(self, group: str | None, members: Sequence[int]) -> list[int]:
        """Enter what can be called of a group; return tools that are called aside by themselves."""
        problem, rules = self.problem, self.problem.rules
        free = [tool for tool in members if not self.facts[tool].dependencies and not problem.once[tool]]
        outside = sorted((tool for tool in free if tool not in self.told), key=lambda tool: -problem.base(tool))
        best = problem.base(outside[0]) if outside else 0.0
        looks = group is not None and (group in self.tracked or self.breaks > 0)
        if outside and (looks or self.breaks):
            top = [tool for tool in outside if problem.base(tool) == best]
            helpers = [t for t in free if t in self.told and problem.place[t] < 0 and problem.base(t) >= best]
            if len(top) + len(helpers) > 1 or rules.loop_length == 0:
                number = len(self.there)
                self._stand_in |= {tool: (True, number) for tool in members if problem.base(tool) <= best}
                self.there.append(replace(self._neutral(top[0], tuple(top)), needs=-1))
            else:
                single, row = self._neutral(top[0], tuple(top)), single_row(problem)
                if self.breaks:
                    self.there.append(replace(single, least_row=row, looks=False))
                # The second best breaks a row at any time: the best takes its place where it would loop.
                if self.breaks and len(outside) > 1 and rules.max_consecutive_failures < 2 * rules.loop_length:
                    second = self._neutral(outside[1], (outside[1],))
                    self.there.append(replace(second, looks=False))
                if row > 1 or looks:
                    self.bounding.append(replace(single, tools=()))
        if not looks and not self.breaks:
            return []
        return [tool for tool in members if problem.base(tool) > best]

    def _neutral(self, tool: int, tools: tuple[int, ...]) -> Neutral:
        fact = self.facts[tool]
        place = self.problem.place[tool]
        # What others can stand in for may also be called once its place is taken.
        needs = self.told[tool] if place >= 0 and self.problem.place.count(place) == 1 else -1
        kept = ToolFacts("any tool" if tools else fact.name, fact.first_row, fact.dependencies, group=fact.group)
        return Neutral(kept, tools, self.breaks, fact.group is not None, needs)

    def _with_dependencies(self, one: Neutral) -> Neutral:
        """Number what a call depends on as in the stage; what nothing stands for is taken to have succeeded."""
        needed, later = [], self._later(one.facts.dependencies)
        if later:
            one = replace(one, needs=max([*later, *([one.needs] if one.needs >= 0 else [])], key=self._place_of))
        for tool in one.facts.dependencies:
            if tool in self.told and self.told[tool] in later:
                continue
            if tool in self.told:
                needed.append(self.told[tool])
            elif tool in self._stand_in:
                is_there, number = self._stand_in[tool]
                needed.append(len(self.tools) + number + (0 if is_there else len(self.there)))
        return replace(one, facts=replace(one.facts, dependencies=tuple(sorted(set(needed)))))

    def _later(self, dependencies: Sequence[int]) -> list[int]:
        """Return the numbers of those that are required, but not first."""
        is_ordered = self.problem.goal.ordered
        return [self.told[tool] for tool in dependencies if is_ordered and self.problem.place[tool] > 0]

    def _place_of(self, number: int) -> int:
        return self.problem.place[self.tools[number]]

    def _before(self, tool: int) -> list[Neutral]:
        """Return what bounds the calls of a tool before all have succeeded that it needs and are required later."""
        later = self._later(self.facts[tool].dependencies)
        if not later:
            return []
        law, first = self.problem.law, self._neutral(tool, ())
        needed = [other for other in self.facts[tool].dependencies if self.told.get(other) not in later]
        first = replace(first, facts=replace(first.facts, dependencies=tuple(needed)))
        return [replace(self._with_dependencies(first), share=max(law.failed, law.not_executed))]

    def _better(self, tool: int, others: Sequence[int]) -> int | None:
        """Return another tool of the group that is as good whenever this one can be called aside, if there is one."""
        problem = self.problem
        own = (len(self.facts[tool].dependencies), -problem.base(tool), tool)
        for other in others:
            if self.facts[other].group != self.facts[tool].group or problem.place[other] >= 0:
                continue
            needed = self.facts[other].dependencies
            rank = (len(needed), -problem.base(other), other)
            if (
                rank < own
                and {*needed} <= {*self.facts[tool].dependencies}
                and problem.base(other) >= problem.base(tool)
            ):
                return other
        return None


def most_tools(problem: Problem) -> int:
    """Return how many tools a stage has room for, neutral ones among them."""
    corrupt = problem.dynamics.numbers.law.corrupt
    return MAX_FOUND if corrupt is not None and corrupt.shows == "validators" else SIZES[-1]


def make_stage(
    problem: Problem,
    tools: Sequence[int],
    neutral: Sequence[Neutral],
    num_offered: int | None = None,
    *,
    informed: bool,
    is_enumerated: bool = False,
    is_wide: bool = False,
) -> Stage:
    """Number the tools that are told apart, with neutral ones behind them, of which the first few are offered.

    A *wide* one has the same numbers and tracks only the groups of tools that are told apart: one neutral call, which
    is as likely to succeed as any and tells nothing, stands in the upper value for those of all other groups.
    """
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
    is_left_out = [one.guides for one in neutral]
    if is_wide:
        tracked = {None, *(one.group for one in facts)}
        is_left_out = [one.facts.group not in tracked for one in neutral]
        gone = {len(tools) + number for number, left_out in enumerate(is_left_out) if left_out}
        kept = [tuple(other for other in one.facts.dependencies if other not in gone) for one in neutral]
        neutral = [
            replace(one, facts=replace(one.facts, dependencies=needed))
            for one, needed in zip(neutral, kept, strict=True)
        ]
    neutral = [
        replace(one, least_row=0, looks=False) if left_out else one
        for one, left_out in zip(neutral, is_left_out, strict=True)
    ]
    tables = dynamics.numbers.tables
    for call in neutral:
        first_row = call.facts.first_row
        if call.share < 1.0:
            first_row, tables = len(tables.probability), _with_share(problem, tables, first_row, call.share)
        facts.append(replace(call.facts, first_row=first_row))
    if len(facts) > most_tools(problem):
        raise ExactLimitError(
            f"the exact optimum under law {dynamics.numbers.law.name} has to tell {len(facts)} tools apart: "
            f"expected at most {most_tools(problem)}; use a shorter list"
        )
    size = next(size for size in SIZES if len(facts) <= size)
    rules = make_rulebook(dynamics.numbers, facts, dynamics.aims.of(tools, len(neutral)))
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
    is_neutral = [*[False] * len(tools), *[True] * len(neutral)]
    twins: dict[object, int] = {}
    group_twin = [-1] * len(groups)
    for number, group in enumerate(groups):
        members = [tool for tool, one in enumerate(facts) if one.group == group]
        if len(members) == 1 and is_neutral[members[0]] and offered[members[0]] and not dependents[members[0]]:
            call = neutral[members[0] - len(tools)]
            alike = (call.facts.first_row, call.facts.rate_key, call.least_row, call.looks)
            group_twin[number] = twins.get(alike, -1)
            twins[alike] = number
    open_groups = {
        one.facts.group for one, out in zip(neutral[num_offered:], is_left_out[num_offered:], strict=True) if not out
    }
    recall = [single_row(problem) * int(bool({one.group, None} & open_groups)) for one in facts]
    most = max(map(len, dependents))
    kind, num_phases = phase_kind(problem, informed)
    limit = dynamics.numbers.law.rate_limit
    is_limit_own = limit is not None and limit.per == "tool"
    beside = {
        "is_enumerated": int(is_enumerated),
        "failing_helps": int(failing_helps(problem)),
        "repeats_refused": int(is_enumerated and rules.at_block >= 0 and rules.at_outage >= 0),
        "outdoes": int(meets_outages_alone(problem, tools)),
        "is_timeless": [0] * len(tools) + [int(one.least_row == 0) for one in neutral],
        "is_looker": [0] * len(tools) + [int(one.looks) for one in neutral],
        "needs": [-1] * len(tools) + [one.needs for one in neutral],
        "is_neutral": list(map(int, is_neutral)),
        "is_offered": offered,
        "least_row": breaks,
        "recall_row": recall,
        "dependents": [[*some, *[-1] * (most - len(some))] for some in dependents] if most else [[-1]] * len(facts),
        "order": _dependents_first(facts),
        "group_breaks_rows": group_breaks,
        "group_twin": group_twin,
        "own_key": own_key,
        "phase_kind": kind,
        "num_phases": num_phases,
        "least_ticks": _least_ticks(problem),
        "asks_more": int(not informed and _asks_more(problem)),
        "twin": _twins(facts[: len(tools)], rules, dependents, is_limit_own, alone),
    }
    return Stage(
        tools=tuple(tools),
        rules=as_record({**rules._asdict(), **beside}, size + 1, size),
        tables=tables,
        alone=tuple(tool for tool, is_alone in zip(tools, alone, strict=True) if is_alone),
        rate_keys=np.array([every_key.index(key) for key in keys], dtype=np.int64),
        groups=np.array([dynamics.groups.index(group) for group in groups], dtype=np.int64),
        width=_width(rules, informed),
    )


def _with_share(problem: Problem, tables: Tables, first_row: int, share: float) -> Tables:
    """Return the tables with rows behind them: those of a tool, its chances lowered to a share."""
    rows = slice(first_row, first_row + (problem.rules.max_turns + 1 if problem.law.drift is not None else 1))
    return Tables(
        np.concatenate([tables.probability, tables.probability[rows] * share]),
        *(np.concatenate([table, table[rows]]) for table in tables[1:]),
    )


def _asks_more(problem: Problem) -> bool:
    """Return whether to repair a corrupt output takes a call beside, of a validator that nothing else wants called.

    Not so where a second tool can take a place: it may be called in case that the first one's output is corrupt.
    """
    law, facts = problem.dynamics.numbers.law, problem.dynamics.numbers.facts
    if (
        law.corrupt is None
        or problem.goal.counts == "effects"
        or law.corrupt.shows != "validators"
        or any(facts[tool].is_validator for tool in problem.closure)
    ):
        return False
    return all(problem.place.count(place) == 1 for place in range(len(problem.required)))


def _least_ticks(problem: Problem) -> int:
    """Return the time that any call takes at least, or 0 where some take none or time alone changes what calls can."""
    law = problem.dynamics.numbers.law
    others = law.rate_limit or law.outage or law.error_kinds
    if law.latency is None or law.latency.budget is None or others or (law.drift and law.drift.per_message < 0.0):
        return 0
    least = min(one.ticks for one in law.latency.distribution)
    if law.latency.timeout is not None:
        least = min(least, round(law.latency.timeout * TICKS_PER_SECOND))
    return least


def _twins(
    facts: Sequence[ToolFacts],
    rules: Rulebook,
    dependents: Sequence[Sequence[int]],
    is_limit_own: bool,
    alone: Sequence[bool],
) -> list[int]:
    """Return for each helper the last one before it that is alike in everything, or -1.

    Where required tools may come in any order, so are those that nothing stands in for.
    """
    last: dict[object, int] = {}
    twins = [-1] * len(dependents)
    for tool, one in enumerate(facts):
        is_wanted = rules.place[tool] >= 0
        if not rules.is_checker[tool] and (not is_wanted or (alone[tool] and not rules.is_ordered)):
            # What its own limit counts is exchanged with it.
            alike = replace(one, name="", rate_key=None if is_limit_own else one.rate_key)
            alike = replace(alike, dependencies=tuple(sorted(one.dependencies)))
            if not rules.is_tracked[tool]:
                alike = replace(alike, lost_share=0.0, checker=None)
            key = (alike, tuple(dependents[tool]), rules.is_once[tool], is_wanted)
            twins[tool] = last.get(key, -1)
            last[key] = tool
    return twins


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


BITS_OF_A_WORD = 60
AGE_BITS, TIME_BITS, RAN_BITS, HIDDEN_BITS = 20, 50, 20, 2


@scalar
def _write(row: IntVector, at: int, bits: int, value: int) -> int:
    """Write a number of so many bits behind the first `at` ones of a row; return where the next one begins."""
    if at % BITS_OF_A_WORD + bits > BITS_OF_A_WORD:
        at += BITS_OF_A_WORD - at % BITS_OF_A_WORD
    row[at // BITS_OF_A_WORD] |= value << (at % BITS_OF_A_WORD)  # numbers of a whole word may be longer, or negative
    return at + bits


@scalar
def pack(
    rules: Any, status: IntVector, counters: IntVector, parts: IntVector, hidden: IntVector, informed: bool, row: Any
) -> None:
    """Write what makes a difference of a simplified state into a row (`Stage.width`,); no two states share one."""
    num_tools = rules.num_tools
    for column in range(len(row)):
        row[column] = 0
    row[0] = (counters[TURNS_USED] << 40) | (counters[NUM_FAILURES] << 20) | counters[CONSECUTIVE_FAILURES]
    row[1] = (counters[LOOP_COUNT] << 40) | ((counters[LOOP_SIGNATURE] + 1) << 20) | counters[NEXT_PLACE]
    at = 2 * BITS_OF_A_WORD
    for tool in range(num_tools):
        at = _write(row, at, 2, status[tool])
    if rules.at_block >= 0:
        for tool in range(num_tools):
            at = _write(row, at, 2, parts[rules.at_block + tool])
    if rules.at_sound >= 0:
        for tool in range(num_tools):
            at = _write(row, at, 2, parts[rules.at_sound + tool])
    if rules.at_ran >= 0:
        for tool in range(num_tools):
            at = _write(row, at, RAN_BITS, parts[rules.at_ran + tool])
    for group in range(rules.num_groups):
        at = _write(row, at, 2, parts[rules.at_outage + 2 * group])
        at = _write(row, at, AGE_BITS, parts[rules.at_outage + 2 * group + 1])
    for key in range(rules.num_rate_keys):
        at = _write(row, at, BITS_OF_A_WORD, parts[rules.at_rate + key])
    if rules.at_time >= 0:
        at = _write(row, at, TIME_BITS, parts[rules.at_time])
    if rules.at_evidence >= 0 and not informed:
        for tool in range(num_tools):
            at = _write(row, at, BITS_OF_A_WORD, parts[rules.at_evidence + tool])
    if informed:
        for number in range(rules.num_hidden):
            at = _write(row, at, HIDDEN_BITS, hidden[number])


def _width(rules: Rulebook, informed: bool) -> int:
    """Return how many words `pack` writes."""
    sizes = [2] * rules.num_tools * (1 + int(rules.at_block >= 0) + int(rules.at_sound >= 0))
    sizes += [RAN_BITS] * (rules.num_tools if rules.at_ran >= 0 else 0)
    sizes += [2, AGE_BITS] * rules.num_groups + [BITS_OF_A_WORD] * rules.num_rate_keys
    sizes += [TIME_BITS] * int(rules.at_time >= 0)
    sizes += [BITS_OF_A_WORD] * (rules.num_tools if rules.at_evidence >= 0 and not informed else 0)
    sizes += [HIDDEN_BITS] * (rules.num_hidden if informed else 0)
    row, at = [0] * (3 + len(sizes)), 2 * BITS_OF_A_WORD
    for bits in sizes:
        at = _write(row, at, bits, 0)
    return (at - 1) // BITS_OF_A_WORD + 1
