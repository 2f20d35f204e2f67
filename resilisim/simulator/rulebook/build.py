"""The numbers of a law: what a `Rulebook` holds for the tools of a library, or for some of them."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError, InvalidInputError, unknown_name
from resilisim.seeding import hash_words
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.law import TICKS_PER_SECOND, Law
from resilisim.simulator.rulebook.drawn_results import NAMES_AT_ONCE, OTHER_ERROR, LuckTables
from resilisim.simulator.rulebook.rules import (
    ACCESS_FAILURE,
    EVIDENCE_UNITS,
    FAILURE,
    INPUT_FAILURE,
    MOST_EVIDENCE,
    NO_SECTION,
    NONE,
    NUM_MEMORIES,
    Rulebook,
    Tables,
)
from resilisim.simulator.tool_status import success_thresholds
from resilisim.tool_library import ErrorSpec, Tool, ToolLibrary
from resilisim.tool_library.tool import standard_error_specs

OPERATION_FAILED = "OPERATION_FAILED"


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """What a law says of one tool."""

    name: str
    first_row: int  # in the tables
    dependencies: tuple[int, ...]
    rate_key: str | None = None
    group: str | None = None
    broken_prior: float = 0.0
    corrupt_chance: float = 0.0
    is_validator: bool = False
    is_opener: bool = False
    input_share: float = 0.0
    access_share: float = 0.0
    opened_input_share: float = 0.0
    lost_share: float = 0.0
    checker: str | None = None  # name of the tool whose success tells how often it has run


@dataclass(frozen=True, slots=True)
class WeighedError:
    """An error that a tool documents, its weight in the draw of a failure's code, and the result that it is."""

    error: ErrorSpec
    weight: float
    result: int


def weighed_errors(law: Law, tool: Tool, is_opener: bool, opened: bool) -> tuple[WeighedError, ...]:
    """Return the errors that an ordinary failure of a tool can show.

    Where errors mean what they say, a tool shows none that it cannot mean: none of the input if it takes no parameters,
    none of access if it opens what is closed itself, or once that is open. If nothing is left, it shows
    OPERATION_FAILED, which is transient.
    """
    kinds = law.error_kinds
    errors = tool.failure_errors
    if kinds is None:
        return tuple(WeighedError(error, 1.0, FAILURE) for error in errors)
    weight_of = {error.code: law.error_weight(error.code) for error in errors}
    if not sum(weight_of.values()) > 0.0:  # the law weighs none of the tool's codes, so they are alike
        weight_of = dict.fromkeys(weight_of, 1.0)
    weighed = []
    for error in errors:
        if error.code in kinds.input_codes:
            result, weight = INPUT_FAILURE, kinds.input if tool.parameters else 0.0
        elif error.code in kinds.access_codes:
            result, weight = ACCESS_FAILURE, 0.0 if opened or is_opener else kinds.access
        else:
            result, weight = FAILURE, kinds.transient
        weighed.append(WeighedError(error, weight * weight_of[error.code], result))
    if sum(one.weight for one in weighed) > 0.0:
        return tuple(one for one in weighed if one.weight > 0.0)
    return (WeighedError(standard_error_specs()[OPERATION_FAILED], 1.0, FAILURE),)


def _share(weighed: Sequence[WeighedError], result: int) -> float:
    return math.fsum(one.weight for one in weighed if one.result == result) / math.fsum(one.weight for one in weighed)


@dataclass(frozen=True, eq=False)
class LawNumbers:
    """A law and end rules, in numbers for a library.

    Attributes:
        law: The law.
        facts: (num_tools,) what it says of each tool.
        documented: For each tool the errors that an ordinary failure of it is drawn from.
        dependencies: For each tool the indices of its direct dependencies.
        bases: The distinct base probabilities that tools have at first, ascending.
        base_index: (num_tools,) index of each tool's in `bases`.
        tables: What executions read: the law's constants, tabulated for every base that a tool has at some turn, and
            what failures say. Without drift the rows are those of `bases`.
        luck: What luck is drawn by.
        equivalents: For each tool (its index) those that can stand in for it.
        groups: Names of the groups of outages, as a `Rulebook` of all tools numbers them.
    """

    law: Law
    rules: EndRules
    facts: tuple[ToolFacts, ...]
    documented: tuple[tuple[ErrorSpec, ...], ...]
    dependencies: tuple[tuple[int, ...], ...]
    bases: tuple[float, ...]
    base_index: tuple[int, ...]
    tables: Tables
    luck: LuckTables
    equivalents: Mapping[int, tuple[int, ...]]
    groups: tuple[str, ...]

    @functools.cached_property
    def rulebook(self) -> Rulebook:
        """The rulebook of all tools without a goal, which costs little to enter (`with_aims`)."""
        return _without_aims(self, self.facts)


def law_numbers(library: ToolLibrary, law: Law, rules: EndRules) -> LawNumbers:
    """Work out what a law says of each tool of a library.

    Raises:
        InvalidInputError: The law names a tool or category that the library lacks, or puts a tool into two groups.
    """
    for name in law.bases:
        library.index(name)
    given = [law.bases.get(tool.name, tool.success_probability or law.base) for tool in library]
    distinct = sorted(set(given))
    dependencies = [tuple(library.index(name) for name in library.dependencies(tool.name)) for tool in library]
    most = max(map(len, dependencies))
    bases, rows_of_base = distinct, 1
    if law.drift is not None:
        rows_of_base = rules.max_turns + 1
        drifted = [base + law.drift.per_message * turn for base in distinct for turn in range(rows_of_base)]
        bases = [min(max(base, 0.0), 1.0) for base in drifted]
    probability = tabulate_law(law, bases, most, rules.max_turns)
    group = _groups(library, law)
    broken = _chosen(library, law.broken.tools if law.broken else (), "broken")
    corrupt = _chosen(library, law.corrupt.tools if law.corrupt else (), "corrupt")
    validators = _by_operation(library, law.corrupt.validators if law.corrupt else (), "validator", "corrupt")
    openers = _by_operation(
        library, law.error_kinds.opened_by if law.error_kinds else (), "authenticator", "error_kinds"
    )
    lost = law.lost_answer
    losing = _chosen(library, lost.tools if lost else (), "lost_answer")
    checkers = _checkers(library, law)
    facts, weighed = [], []
    for number, tool in enumerate(library):
        before = weighed_errors(law, tool, number in openers, opened=False)
        after = weighed_errors(law, tool, number in openers, opened=True)
        weighed.append((before, after))
        is_validator = law.corrupt is not None and number in validators
        facts.append(
            ToolFacts(
                name=tool.name,
                first_row=distinct.index(given[number]) * rows_of_base,
                dependencies=dependencies[number],
                rate_key=_rate_key(law, tool),
                group=group.get(number),
                broken_prior=law.broken.probability if law.broken is not None and number in broken else 0.0,
                corrupt_chance=law.corrupt.probability
                if law.corrupt is not None
                and number in corrupt
                and not is_validator
                and tool.name not in checkers.values()
                else 0.0,
                is_validator=is_validator,
                is_opener=law.error_kinds is not None and number in openers,
                input_share=_share(before, INPUT_FAILURE),
                access_share=_share(before, ACCESS_FAILURE),
                opened_input_share=_share(after, INPUT_FAILURE),
                lost_share=lost.share if lost is not None and number in losing else 0.0,
                checker=checkers.get(tool.name),
            )
        )
    equivalents = {
        library.index(name): tuple(library.index(other) for other in others) for name, others in law.equivalents.items()
    }
    return LawNumbers(
        law,
        rules,
        tuple(facts),
        tuple(tool.failure_errors for tool in library),
        tuple(dependencies),
        tuple(distinct),
        tuple(distinct.index(base) for base in given),
        Tables(
            probability,
            success_thresholds(probability),
            _evidence(probability) if law.broken is not None else _NO_EVIDENCE,
        ),
        _luck_tables(facts, weighed),
        equivalents,
        tuple(dict.fromkeys(one.group for one in facts if one.group is not None)),
    )


def _checkers(library: ToolLibrary, law: Law) -> dict[str, str]:
    """Return for tools the one whose success tells how often they have run."""
    checks = law.lost_answer.checks if law.lost_answer is not None else {}
    for tool, checker in checks.items():
        for name in (tool, checker):
            if name not in library:
                raise unknown_name("tool of lost_answer.checks", name, library.names)
        if tool == checker:
            raise InvalidInputError(f"lost_answer.checks: {tool!r} checks itself: expected another tool")
    return dict(checks)


def tabulate_law(law: Law, bases: Sequence[float], max_dependencies: int, max_failures: int) -> NDArray[np.float64]:
    """Tabulate a law for every base and every count that an episode can meet.

    Returns:
        float64 (num_bases, max_dependencies + 1, max_dependencies + 1, max_failures + 1), by base, Nu, Nf and Nh;
        entries with Nu + Nf above the most dependencies are never read. It is computed once, in one order of
        multiplication: Python, NumPy and compiled code compare luck to the same numbers, so they cannot differ in a
        single bit.
    """
    probability = np.zeros((len(bases), max_dependencies + 1, max_dependencies + 1, max_failures + 1))
    for row, base in enumerate(bases):
        for num_not_executed in range(max_dependencies + 1):
            for num_failed in range(max_dependencies + 1 - num_not_executed):
                value = law.probability(base, num_not_executed, num_failed, 0)
                for num_failures in range(max_failures + 1):
                    probability[row, num_not_executed, num_failed, num_failures] = value
                    value *= law.history  # the next step of the definition's own product
    return probability


def _luck_tables(
    facts: Sequence[ToolFacts], weighed: Sequence[tuple[tuple[WeighedError, ...], tuple[WeighedError, ...]]]
) -> LuckTables:
    groups = dict.fromkeys(one.group for one in facts if one.group is not None)
    shape = (len(facts), 2, max(len(errors) for pair in weighed for errors in pair))
    weights, results = np.zeros(shape), np.zeros(shape, dtype=np.int64)
    for tool, pair in enumerate(weighed):
        for opened, errors in enumerate(pair):
            weights[tool, opened, : len(errors)] = [one.weight for one in errors]
            results[tool, opened, : len(errors)] = [one.result for one in errors]
    return LuckTables(
        group_words=_words([f"outage:{name}" for name in groups]),
        broken_words=_words([f"broken:{one.name}" for one in facts]),
        error_weight=weights,
        error_result=results,
        num_errors=np.array([[len(errors) for errors in pair] for pair in weighed], dtype=np.int64),
        total_weight=np.array([[sum(one.weight for one in errors) for errors in pair] for pair in weighed]),
        timeout_error=np.array([[_timeout(errors) for errors in pair] for pair in weighed], dtype=np.int64),
    )


def _words(names: Sequence[str]) -> NDArray[np.int64]:
    """Return the hash words of names, (num_names, 2), with zeros behind up to a multiple of NAMES_AT_ONCE."""
    words = np.zeros((len(names) + -len(names) % NAMES_AT_ONCE, 2), dtype=np.int64)
    words[: len(names)] = np.array([hash_words(name) for name in names]).reshape(-1, 2)
    return words


def _timeout(errors: Sequence[WeighedError]) -> int:
    """Return which error is a TIMEOUT, or OTHER_ERROR."""
    return next((number for number, one in enumerate(errors) if one.error.code == "TIMEOUT"), OTHER_ERROR)


def _rate_key(law: Law, tool: Tool) -> str | None:
    if law.rate_limit is None:
        return None
    return {"tool": tool.name, "category": tool.category, "all": "all tools"}[law.rate_limit.per]


def _groups(library: ToolLibrary, law: Law) -> dict[int, str]:
    """Return the group of each tool that is in one."""
    if law.outage is None:
        return {}
    groups = law.outage.groups
    if isinstance(groups, str):
        return {number: tool.category if groups == "category" else "all tools" for number, tool in enumerate(library)}
    found: dict[int, str] = {}
    for name, members in groups.items():
        for number in sorted(_chosen(library, members, "outage")):
            if number in found:
                tool = library.names[number]
                raise InvalidInputError(f"outage: {tool} is in groups {found[number]!r} and {name!r}: expected one")
            found[number] = name
    return found


def _chosen(library: ToolLibrary, names: Sequence[str] | None, part: str) -> set[int]:
    """Return the tools that names of tools or categories mean; None means all."""
    if names is None:
        return set(range(len(library)))
    chosen: set[int] = set()
    categories = {tool.category for tool in library}
    for name in names:
        if name in categories:
            chosen.update(number for number, tool in enumerate(library) if tool.category == name)
        elif library.resolve(name) is not None:
            chosen.add(library.index(name))
        else:
            raise unknown_name(f"tool or category of {part}", name, [*library.names, *sorted(categories)])
    return chosen


def _by_operation(library: ToolLibrary, names: Sequence[str] | None, operation: str, part: str) -> set[int]:
    if names is not None:
        return _chosen(library, names, part)
    return {number for number, tool in enumerate(library) if tool.operation == operation}


@dataclass(frozen=True, slots=True)
class Aims:
    """A goal in numbers, for some tools.

    Attributes:
        place: (num_tools,) place of each in the required list, or -1.
        num_required: Length of the required list.
        is_ordered: Whether first answers have to come in that order.
        is_once: (num_tools,) whether each may run only once; empty if all may run again.
        is_effects: Whether tools have to have run, whether or not their answers came through.
        program: The tools of a program's calls in order; None if the goal is a list.
    """

    place: Sequence[int]
    num_required: int
    is_ordered: bool = True
    is_once: Sequence[bool] = ()
    is_effects: bool = False
    program: Sequence[int] | None = None

    def of(self, tools: Sequence[int], num_more: int = 0) -> Aims:
        """Return the same for some of the tools, and for more behind them that nobody asks for."""
        place = [*(self.place[tool] for tool in tools), *[-1] * num_more]
        is_once = [*(self.is_once[tool] for tool in tools), *[False] * num_more] if self.is_once else []
        return replace(self, place=place, is_once=is_once)


def make_rulebook(numbers: LawNumbers, facts: Sequence[ToolFacts], aims: Aims) -> Rulebook:
    """Return the rulebook of some tools.

    Args:
        numbers: The law in numbers.
        facts: (num_tools,) the tools; their dependencies are places in this list.
        aims: The goal, for these tools.
    """
    return with_aims(_without_aims(numbers, facts), aims)


def _without_aims(numbers: LawNumbers, facts: Sequence[ToolFacts]) -> Rulebook:
    """Return a rulebook of no goal: in Workflow-v0 each task brings its own list."""
    law, rules = numbers.law, numbers.rules
    keys = list(dict.fromkeys(one.rate_key for one in facts if one.rate_key is not None))
    groups = list(dict.fromkeys(one.group for one in facts if one.group is not None))
    width = max(1, max(len(one.dependencies) for one in facts))
    sections: dict[str, int] = {}
    num_parts = 0
    for name, is_there, size in (
        ("at_rate", bool(keys), len(keys)),
        ("at_outage", bool(groups), 2 * len(groups)),
        ("at_evidence", law.broken is not None, len(facts)),
        ("at_block", law.error_kinds is not None, len(facts)),
        ("at_sound", law.corrupt is not None, len(facts)),
        ("at_time", law.latency is not None and law.latency.budget is not None, 1),
    ):
        sections[name] = num_parts if is_there else NO_SECTION
        num_parts += size if is_there else 0
    num_hidden = 0
    for name, is_there, size in (
        ("at_down", bool(groups), len(groups)),
        ("at_broken", law.broken is not None, len(facts)),
        ("at_unsound", law.corrupt is not None and law.corrupt.shows == "validators", len(facts)),
    ):
        sections[name] = num_hidden if is_there else NO_SECTION
        num_hidden += size if is_there else 0
    durations = sorted(law.latency.distribution, key=lambda one: one.seconds) if law.latency else ()
    rate, outage = law.rate_limit, law.outage
    place = {one.name: number for number, one in enumerate(facts)}
    return Rulebook(
        num_tools=len(facts),
        place=(NONE,) * len(facts),
        is_more_than_order=0,
        is_ordered=1,
        is_once=(0,) * len(facts),
        is_effects=0,
        is_tracked=(0,) * len(facts),
        lost_share=tuple(one.lost_share for one in facts),
        unseen_run=tuple(_units(one.lost_share) for one in facts),
        checker=tuple(NONE if one.checker is None else place.get(one.checker, NONE) for one in facts),
        is_checker=(0,) * len(facts),
        is_program=0,
        program=(),
        dependencies=tuple((*one.dependencies, *[-1] * (width - len(one.dependencies))) for one in facts),
        first_row=tuple(one.first_row for one in facts),
        rows_by_turn=int(law.drift is not None),
        num_required=0,
        max_turns=rules.max_turns,
        max_consecutive_failures=rules.max_consecutive_failures,
        loop_length=rules.loop_length,
        rate_key=tuple(NONE if one.rate_key is None else keys.index(one.rate_key) for one in facts),
        num_rate_keys=len(keys),
        rate_calls=rate.calls if rate else 0,
        rate_window=rate.window if rate else 1,
        group=tuple(NONE if one.group is None else groups.index(one.group) for one in facts),
        num_groups=len(groups),
        begins=outage.begins if outage else 0.0,
        ends=outage.ends if outage else 0.0,
        share_down=outage.share_down if outage else 0.0,
        memory=_memory(1.0 - outage.begins - outage.ends if outage else 0.0),
        broken_prior=tuple(one.broken_prior for one in facts),
        corrupt_chance=tuple(one.corrupt_chance for one in facts),
        is_validator=tuple(int(one.is_validator) for one in facts),
        is_opener=tuple(int(one.is_opener) for one in facts),
        openers=tuple(number for number, one in enumerate(facts) if one.is_opener),
        shows_payload=int(law.corrupt is None or law.corrupt.shows == "payload"),
        counts_sound=int(sections["at_sound"] != NO_SECTION),
        input_share=tuple(one.input_share for one in facts),
        access_share=tuple(one.access_share for one in facts),
        opened_input_share=tuple(one.opened_input_share for one in facts),
        num_durations=len(durations) or 1,
        duration_ticks=tuple(one.ticks for one in durations) or (0,),
        duration_chance=tuple(one.probability for one in durations) or (1.0,),
        timeout=_ticks(law.latency.timeout if law.latency else None),
        budget=_ticks(law.latency.budget if law.latency else None),
        waiting_is_productive=int(law.waiting_can_help),
        at_ran=NO_SECTION,
        at_lost=NO_SECTION,
        num_parts=num_parts,
        num_hidden=num_hidden,
        num_sections=sum(place != NO_SECTION for place in sections.values()) + int(law.latency is not None),
        **sections,
    )


def with_aims(rulebook: Rulebook, aims: Aims) -> Rulebook:
    """Return a rulebook that was made for no goal with one; where it matters what has run, there are sections for it.

    Hidden is what has run where failures leave that open: not where all of them come after the run, and the tool works.
    """
    size, program = rulebook.num_tools, aims.program
    is_once = tuple(map(int, aims.is_once)) or (0,) * size
    is_asked = [once or (aims.is_effects and at >= 0) for once, at in zip(is_once, aims.place, strict=True)]
    # That a tool has run also tells that it is not broken.
    tells = [at >= 0 and doubt > 0.0 for at, doubt in zip(rulebook.checker, rulebook.broken_prior, strict=True)]
    is_tracked = tuple(int(asked or told) for asked, told in zip(is_asked, tells, strict=True))
    shares = [share if tracked else 0.0 for share, tracked in zip(rulebook.lost_share, is_tracked, strict=True)]
    is_open = [s > 0.0 and (s < 1.0 or p > 0.0) for s, p in zip(shares, rulebook.broken_prior, strict=True)]
    checker = tuple(other if doubts else NONE for other, doubts in zip(rulebook.checker, is_open, strict=True))
    has_section, is_hidden = any(shares), any(is_open)
    return rulebook._replace(
        place=tuple(aims.place),
        num_required=aims.num_required if program is None else len(program),
        is_more_than_order=int(not aims.is_ordered or any(is_once) or program is not None or has_section),
        is_ordered=int(aims.is_ordered),
        is_once=is_once,
        is_effects=int(aims.is_effects),
        is_tracked=is_tracked,
        checker=checker,
        is_checker=tuple(int(tool in checker) for tool in range(size)),
        counts_sound=int(rulebook.at_sound != NO_SECTION and not aims.is_effects),
        is_program=int(program is not None),
        program=tuple(program or ()),
        at_ran=rulebook.num_parts if has_section else NO_SECTION,
        num_parts=rulebook.num_parts + (size if has_section else 0),
        at_lost=rulebook.num_hidden if is_hidden else NO_SECTION,
        num_hidden=rulebook.num_hidden + (size if is_hidden else 0),
    )


def _units(share: float) -> int:
    """Return what it says for a tool being broken that a failure turns out not to have come after a run, in units."""
    return round(min(-math.log1p(-share) if share < 1.0 else MOST_EVIDENCE, MOST_EVIDENCE) * EVIDENCE_UNITS)


def _memory(kept: float) -> tuple[float, ...]:
    """Return the products of 0, 1, ... times what one message leaves."""
    return tuple(itertools.accumulate([1.0, *[kept] * (NUM_MEMORIES - 1)], operator.mul))


MAX_DURATIONS = 64  # that compiled code can tell apart


def as_record(values: Mapping[str, Any], length: int, width: int) -> Any:
    """Return the fields of a rulebook, and others beside, for compiled code, padded with -1: all are of one type.

    Single numbers come first: every step reads many of them, and they lie on a few lines of a processor's cache.

    Args:
        values: The fields.
        length: Entries of the vectors, at least one for each tool; durations have MAX_DURATIONS.
        width: Entries of the second axis, where there is one.

    Raises:
        ExactLimitError: The law has more durations.
    """
    lengths = {"duration_ticks": MAX_DURATIONS, "duration_chance": MAX_DURATIONS, "memory": NUM_MEMORIES}
    num_durations = len(values["duration_ticks"])
    if num_durations > MAX_DURATIONS:
        raise ExactLimitError(f"the law has {num_durations} durations: expected at most {MAX_DURATIONS}")
    padded: dict[str, Any] = {}
    single = {name: value for name, value in values.items() if not isinstance(value, list | tuple)}
    for name, value in {**single, **values}.items():
        if name in single:
            padded[name] = value
            continue
        array = np.array(value if len(value) else [-1])
        kind = np.float64 if array.dtype.kind == "f" else np.int64 if name == "duration_ticks" else np.int32
        padded[name] = np.full([lengths.get(name, length), *([width] if array.ndim > 1 else [])], -1, dtype=kind)
        padded[name][tuple(slice(size) for size in array.shape)] = array
    kinds = [(name, np.asarray(value).dtype, np.shape(value)) for name, value in padded.items()]
    record = np.zeros(1, dtype=np.dtype((np.record, kinds)))
    for name, value in padded.items():
        record[name] = value
    return record[0]


_NO_EVIDENCE = np.zeros((1, 1, 1, 1), dtype=np.int64)  # where no tool is broken, and so nobody reads any


def _ticks(seconds: float | None) -> int:
    return NONE if seconds is None else max(1, round(seconds * TICKS_PER_SECOND))


def _evidence(probability: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return what a failure says for the tool being broken: -log(1 - p), in units."""
    with np.errstate(divide="ignore"):
        nats = np.minimum(-np.log1p(-probability), MOST_EVIDENCE)
    found: NDArray[np.int64] = np.round(nats * EVIDENCE_UNITS).astype(np.int64)
    return found
