"""Playing the branches of agents, in this process or in several: what comes of it are records, and a row at the end."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard, cast

from resilisim.at_work import AT_WORK
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.play import on_branch
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, is_failure
from resilisim.evaluation.run.plan import PlannedEpisode, RunSettings
from resilisim.evaluation.run.player import EpisodePlayer, Outcome, Slot
from resilisim.evaluation.run.store import Journals
from resilisim.exploration.exploring import ExplorationLimits, ExploredRow, Exploring, Play
from resilisim.exploration.states import StateChain

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
        journals: Not used: replies of models are kept by what was said before them, in the folder `models.cache`.
        limits: Where each exploration stops.
        dice: How many independent sets of replies language models give.
        keeps_records: Whether the records of branches are wanted. Else policies that are functions of the state are
            followed from state to state, which leaves none.

    Raises:
        InvalidInputError: Replies are kept in a folder that this machine does not see.
    """

    def __init__(
        self,
        settings: RunSettings,
        journals: Journals | None = None,
        *,
        limits: ExplorationLimits,
        dice: int = 1,
        keeps_records: bool = True,
    ) -> None:
        cache = settings.models.cache
        if cache is not None and not Path(cache).is_dir():
            raise InvalidInputError(f"replies are kept in {cache}: expected a folder that every machine sees")
        self._settings, self._limits, self._dice, self._keeps_records = settings, limits, dice, keeps_records
        self._players: dict[int, EpisodePlayer] = {}

    def play_all(self, pending: Iterator[PlannedEpisode], until: float | None = None) -> Iterator[Any]:
        """Explore one agent on one task after the other, and yield what is played and comes of it (`Explored`).

        An exploration that breaks ends with the failure, and without a row.

        Raises:
            InvalidInputError: An agent does not repeat itself.
        """
        for die, episodes in itertools.groupby(pending, self._die):
            player = self._player(die)
            if player.has_agents:
                explore = functools.partial(self._explore_in_slot, player)
                yield from player.play_together(episodes, cast("Any", explore), until)
            else:
                for episode in episodes:
                    yield from self._explore(player, episode)

    def ended(self, outcome: Any) -> int | None:
        """Return the number of an exploration that has come to a row, or has broken (`Plays.ended`)."""
        if is_row(outcome) or is_failure(outcome):
            return int(outcome["index"]) // self._limits.plays * self._limits.plays
        return None

    def _explore(self, player: EpisodePlayer, episode: PlannedEpisode) -> Iterator[Explored]:
        row = self._by_states(player, episode)
        if row is not None:
            yield row_line(episode.index, row)
            return
        exploring = self._exploring(episode)
        while (play := exploring.next()) is not None:
            planned = _planned(episode, play)
            with self._phase(play, exploring):
                outcome = player.play(planned)
            if is_failure(outcome) or exploring.enter(cast("EpisodeRecord", outcome)):
                yield self._shared(outcome, planned)
            if is_failure(outcome):
                return
        yield row_line(episode.index, exploring.row())

    async def _explore_in_slot(
        self, player: EpisodePlayer, slot: Slot, episode: PlannedEpisode
    ) -> AsyncIterator[Explored]:
        row = self._by_states(player, episode)
        if row is not None:
            yield row_line(episode.index, row)
            return
        exploring = self._exploring(episode)
        while (play := exploring.next()) is not None:
            planned = _planned(episode, play)
            with self._phase(play, exploring):
                outcome = await player.play_in_slot(slot, planned)
            if is_failure(outcome) or exploring.enter(cast("EpisodeRecord", outcome)):
                yield self._shared(outcome, planned)
            if is_failure(outcome):
                return
        yield row_line(episode.index, exploring.row())

    def _phase(self, play: Play, exploring: Exploring) -> contextlib.AbstractContextManager[None]:
        """Return the phase of a play that is drawn, which nothing else tells of: it leaves no record."""
        if not play.is_drawn:
            return contextlib.nullcontext()
        number = f"play {exploring.num_played + 1:,} of {self._limits.plays:,}"
        return AT_WORK.on(f"{number} estimates the rest of {exploring.task}", in_general=True)

    def _by_states(self, player: EpisodePlayer, episode: PlannedEpisode) -> ExploredRow | None:
        """Return the row of a policy that can be followed from state to state, if no records are wanted."""
        if self._keeps_records:
            return None
        with player.lent(episode) as (env, policy):
            name = self._settings.contestants[episode.policy].name
            return StateChain(env, policy, episode).row(name, self._limits)

    def _die(self, episode: PlannedEpisode) -> int:
        """Return which set of replies an episode is played with, which its number says."""
        return episode.index // self._limits.plays % self._dice

    def _player(self, die: int) -> EpisodePlayer:
        if die not in self._players:
            models = replace(self._settings.models, dice=die)
            self._players[die] = EpisodePlayer(replace(self._settings, models=models))
        return self._players[die]

    def _shared(self, outcome: Outcome, planned: PlannedEpisode) -> Outcome:
        """Return an outcome with the weight that is its own among those of all sets of replies."""
        if is_failure(outcome) or self._settings.contestants[planned.policy].model is None:
            return outcome
        return on_branch(cast("EpisodeRecord", outcome), planned.branch, self._dice)

    def _exploring(self, episode: PlannedEpisode) -> Exploring:
        name = self._settings.contestants[episode.policy].name
        return Exploring(name, episode.task.instance_id, episode.prompt, episode.seed, self._limits)


def _planned(episode: PlannedEpisode, play: Play) -> PlannedEpisode:
    return replace(episode, index=episode.index + play.number, sent=play.sent, branch=play.branch)
