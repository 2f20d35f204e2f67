"""Losing patterns: failures with which an agent loses, what each of them cost, and how to have them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from resilisim.evaluation.episode.record import EpisodeRecord, has_no_ceiling
from resilisim.exploration.failures.watching import Call, Playable, Watching
from resilisim.tables.numbers import percent
from resilisim.tables.table import Table

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LosingFailure:
    """A call that went wrong in an episode that was lost.

    Attributes:
        tool: Name of the tool.
        attempt: Which call of the tool it was, from 1.
        turn: Number of the message that made it, from 1.
        result: What it brought, an error code or "corrupt".
        chance: How likely that was, whatever the words.
        optimum_before: V* before the call; None where nobody knows it.
        optimum_after: V* after it: what could still be reached.
    """

    tool: str
    attempt: int
    turn: int
    result: str
    chance: float
    optimum_before: float | None
    optimum_after: float | None


@dataclass(frozen=True, slots=True)
class Pattern:
    """Failures with which an agent loses.

    Attributes:
        failures: The failures, in the order of their calls; none where it loses although nothing fails by luck.
        probability: How likely it is that the calls of the episode bring just this: these failures, and no others.
        optimum: V* of the start; None where nobody knows it.
        force: What has to be said beforehand to have the episode again (`--force`).
        reproduce: Two lines that play it again: of a run the command, or the call in Python; of a program one after the
            other.
        record: The episode.
    """

    failures: tuple[LosingFailure, ...]
    probability: float
    optimum: float | None
    force: tuple[str, ...]
    reproduce: tuple[str, str]
    record: EpisodeRecord = field(repr=False)

    @classmethod
    def of(cls, case: Playable, played: Watching, force: Sequence[str]) -> Pattern:
        """Return what lost a play that `force` brings about."""
        is_known = not has_no_ceiling(played.record)
        failures = [
            LosingFailure(
                tool=call.tool,
                attempt=call.attempt,
                turn=call.turn,
                result=call.result,
                chance=call.chance,
                optimum_before=played.optimum_after(call.turn - 1) if is_known else None,
                optimum_after=played.optimum_after(call.turn) if is_known else None,
            )
            for call in failures_by_luck(played)
        ]
        return cls(
            tuple(failures),
            played.probability,
            played.record["optimum"] if is_known else None,
            tuple(force),
            case.reproducing(force),
            played.record,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values, the record apart."""
        return {
            "failures": [asdict(failure) for failure in self.failures],
            "probability": self.probability,
            "optimum": self.optimum,
            "force": list(self.force),
            "reproduce": list(self.reproduce),
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table."""
        return self.table()._repr_html_()

    def table(self, caption: str = "") -> Table:
        """Return the failures as a table."""
        rows = [
            [
                f"{failure.tool}#{failure.attempt}",
                failure.result,
                failure.chance,
                failure.optimum_before,
                failure.optimum_after,
            ]
            for failure in self.failures
        ]
        note = f"Percent. The calls of this episode bring just this {percent(self.probability, 3)}% of the time."
        headings = ["call", "brings", "chance", "V* before", "V* after"]
        return Table(caption, headings, rows, text_columns=2, notes=[note])


def failures_by_luck(played: Watching) -> list[Call]:
    """Return the calls that went wrong where they could have gone right."""
    return [call for call in played.calls if call.has_failed_by_luck]
