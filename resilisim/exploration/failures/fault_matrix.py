"""`matrix`: one fault of each kind at each call of an agent, what becomes of the episode, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import has_no_ceiling
from resilisim.evaluation.run.progress import Progressing
from resilisim.exploration.failures.adversary import likeliest_faults
from resilisim.exploration.failures.watching import Call, Playable, Steady, Watching
from resilisim.simulator.draws import CORRUPTED, SLOWEST
from resilisim.simulator.law import CORRUPTIONS
from resilisim.simulator.rulebook.rules import CORRUPT, FAILURE, SLOW, SUCCESS
from resilisim.tables.numbers import percent
from resilisim.tables.table import Table

FROM_HERE_ON = "from here on"
_AROUND_THE_RUN = (FAILURE, SLOW)  # kinds of failure that come before a function runs, or after it ran


@dataclass(frozen=True, slots=True)
class FaultCell:
    """One fault at one call, while everything else succeeds.

    Attributes:
        tool: Name of the tool.
        attempt: Which call of the tool, from 1.
        turn: Number of the message that makes it, from 1.
        fault: What it brings: an error code, "corrupt" (in one way: "corrupt:stale"), or "slow".
        kind: Number of the law's result (`rulebook.rules`).
        lasting: Whether every later call of the tool fails so, too.
        ran: Of a program, whether the function had run, and its answer was lost; None of agents, and of answers.
        outcome: 1 if the agent succeeds all the same, else 0.
        optimum_after: V* after the call; None where nobody knows it.
        weight: How likely it is that just this happens: this fault at this call, and no other. None of a lasting one,
            which is no single fault, of one that is only slow, as weights leave durations out, and of what the law does
            not draw.
    """

    tool: str
    attempt: int
    turn: int
    fault: str
    kind: int
    lasting: bool
    ran: bool | None
    outcome: int
    optimum_after: float | None
    weight: float | None


@dataclass(frozen=True, slots=True)
class FaultMatrix:
    """What `matrix` found.

    Attributes:
        case: Whose calls these are, in words.
        outcome: What the episode comes to if nothing fails.
        without: How likely it is that nothing fails.
        cells: A cell for each fault at each call, in the order of the calls.
    """

    case: str
    outcome: int
    without: float
    cells: tuple[FaultCell, ...] = field(repr=False)

    @property
    def single(self) -> float:
        """How likely exactly one fault is: the sum of the weights."""
        return math.fsum(cell.weight or 0.0 for cell in self.cells)

    @property
    def cost(self) -> float:
        """How likely it is that there is exactly one fault, and the episode is lost by it."""
        return math.fsum(cell.weight or 0.0 for cell in self.cells if not cell.outcome)

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values."""
        numbers = {"outcome": self.outcome, "without": self.without, "single": self.single, "cost": self.cost}
        return {"case": self.case, **numbers, "cells": [asdict(cell) for cell in self.cells]}

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table."""
        return self.table()._repr_html_()

    def table(self) -> Table:
        """Return the cells as a table; codes with which a call fails in the same way share a row."""
        groups: dict[tuple[Any, ...], list[FaultCell]] = {}
        for cell in self.cells:
            traits = (cell.turn, cell.tool, cell.attempt, cell.lasting, cell.kind, cell.ran, cell.weight is None)
            key = (*traits, cell.outcome, cell.optimum_after)
            groups.setdefault(key, []).append(cell)
        rows = []
        for (_, tool, attempt, lasting, _, ran, is_unweighed, outcome, after), cells in groups.items():
            faults = ", ".join(cell.fault for cell in cells)
            weight = None if is_unweighed else math.fsum(cell.weight or 0.0 for cell in cells)
            fault = f"{faults} {FROM_HERE_ON}" if lasting else faults
            if ran is not None:
                fault += " (it ran)" if ran else " (it did not run)"
            rows.append([f"{tool}#{attempt}", fault, "ok" if outcome else "lost", after, weight])
        end = "succeeds" if self.outcome else "is lost"
        note = (
            f"Percent. Without a fault ({percent(self.without)}% of the time) the episode {end}; it has just one "
            f"{percent(self.single)}% of the time, and is lost by it {percent(self.cost)}% of the time."
        )
        headings = ["call", "fault", "outcome", "V* left", "weight"]
        return Table(self.case, headings, rows, text_columns=3, notes=[note])


def fault_matrix(case: Playable, progress: bool | None) -> FaultMatrix:
    """Try one fault of each kind at each call (`Case.matrix`)."""
    steady = case.watch(Steady(case.calls))
    answers = CORRUPTIONS if case.is_program else ()
    tried = [fault for fault in _faults(steady, answers) if fault[0].place not in case.calls]
    cells = []
    with Progressing("faults", len(tried), 0, progress) as shown:
        for call, fault, kind, share, lasting in tried:
            if lasting:
                draws = Steady(case.calls, {call.tool: (call.attempt, fault)})
            else:
                draws = Steady({**case.calls, call.place: fault})
            cells.append(_cell(case, draws, call, fault, kind, None if lasting else share))
            if case.turned is not None and kind in _AROUND_THE_RUN and not lasting:
                cells.append(_cell(case.turned, draws, call, fault, kind, None))
            shown.advance()
    return FaultMatrix(case.name, steady.record["outcome"], steady.probability, tuple(cells))


def _faults(steady: Watching, answers: Sequence[str]) -> Iterator[tuple[Call, str, int, float | None, bool]]:
    """Yield calls, the faults to try at them, their kinds, the share of each in its kind, and whether they last.

    `answers` are the ways in which answers are wrong where they are really given, and the law does not say which.
    """
    for call in steady.calls:
        kinds = likeliest_faults(call)
        chance_of = {kind.kind: kind.chance for kind in kinds}
        for fault in call.faults:
            share = fault.chance / chance_of[fault.kind]
            ways = [f"{CORRUPTED}:{way}" for way in answers] if fault.result == CORRUPTED else []
            for result in ways or [fault.result]:
                yield call, result, fault.kind, share / max(len(ways), 1), False
        if kinds:
            likeliest = max(kinds, key=lambda kind: kind.chance)
            yield call, likeliest.result, likeliest.kind, 1.0, True
        if call.can_be_slow:
            yield call, SLOWEST, SUCCESS, None, False


def _cell(case: Playable, draws: Steady, call: Call, fault: str, kind: int, share: float | None) -> FaultCell:
    played = case.watch(draws)
    made = next((each for each in played.calls if each.place == call.place), None)
    if made is None:
        raise InvalidInputError(
            f"{case.name} did not make call {call.attempt} of {call.tool} again: expected an agent that repeats itself"
        )
    answers = kind in (CORRUPT, SUCCESS)
    return FaultCell(
        tool=call.tool,
        attempt=call.attempt,
        turn=made.turn,
        fault=fault,
        kind=kind,
        lasting=bool(draws.lasting),
        ran=made.ran if case.is_program and not answers else None,
        outcome=played.record["outcome"],
        optimum_after=None if has_no_ceiling(played.record) else played.optimum_after(made.turn),
        weight=None if share is None else played.probability * share,
    )
