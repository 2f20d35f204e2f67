"""Playing the branches of agents, in this process or in several: what comes of it are records, and a row at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeGuard, cast

from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, is_failure
from resilisim.evaluation.run.plan import PlannedEpisode, RunSettings
from resilisim.evaluation.run.player import EpisodePlayer, Slot
from resilisim.exploration.exploring import ExplorationLimits, ExploredRow, Exploring

ROW_SCHEMA: Final = "resilisim-explored-1"

# A record of a branch, what kept one from its end, or a row (`row_line`).
Explored: TypeAlias = "EpisodeRecord | FailureRecord | Mapping[str, Any]"


def row_line(index: int, row: ExploredRow) -> dict[str, Any]:
    """Return a row as a line of a file; `index` is that of the first record."""
    return {"schema": ROW_SCHEMA, "index": index, **row.to_mapping()}


def is_row(value: Mapping[str, Any]) -> TypeGuard[dict[str, Any]]:
    """Tell whether a JSON value is a row."""
    return value.get("schema") == ROW_SCHEMA


def row_of(line: Mapping[str, Any]) -> ExploredRow:
    """Return the row in a line (`row_line`)."""
    fields = {name: value for name, value in line.items() if name not in ("schema", "index")}
    return ExploredRow(**{**fields, "interval": tuple(fields["interval"])})


class BranchPlayer:
    """Explores agents on the tasks that it is given; beside one another where models or programs are waited for.

    Args:
        settings: Those of the run.
        limits: Where each exploration stops.
    """

    def __init__(self, settings: RunSettings, limits: ExplorationLimits) -> None:
        self._settings, self._limits = settings, limits
        self._player = EpisodePlayer(settings)

    def play_all(self, pending: Iterator[PlannedEpisode], until: float | None = None) -> Iterator[Any]:
        """Explore one agent on one task after the other, and yield what is played and comes of it (`Explored`).

        An exploration that breaks ends with the failure, and without a row.

        Raises:
            InvalidInputError: An agent does not repeat itself.
        """
        if self._player.has_agents:
            yield from self._player.play_together(pending, cast("Any", self._explore_in_slot), until)
            return
        for episode in pending:
            exploring = self._exploring(episode)
            while (planned := exploring.next()) is not None:
                outcome = self._player.play(planned)
                if is_failure(outcome) or exploring.enter(cast("EpisodeRecord", outcome)):
                    yield outcome
                if is_failure(outcome):
                    break
            else:
                yield row_line(episode.index, exploring.row())

    async def _explore_in_slot(self, slot: Slot, episode: PlannedEpisode) -> AsyncIterator[Explored]:
        exploring = self._exploring(episode)
        while (planned := exploring.next()) is not None:
            outcome = await self._player.play_in_slot(slot, planned)
            if is_failure(outcome) or exploring.enter(cast("EpisodeRecord", outcome)):
                yield outcome
            if is_failure(outcome):
                return
        yield row_line(episode.index, exploring.row())

    def _exploring(self, episode: PlannedEpisode) -> Exploring:
        return Exploring(episode, self._settings.contestants[episode.policy].name, self._limits)
