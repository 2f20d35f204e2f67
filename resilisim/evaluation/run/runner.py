"""Playing a run: what is not finished is played and written down, until all is there or a limit is reached."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.episode.record import EpisodeRecord, is_failure
from resilisim.evaluation.run.limits import Budget, Patience, RunLimits
from resilisim.evaluation.run.plan import (
    Plan,
    RunSettings,
    Shard,
)
from resilisim.evaluation.run.player import Players, play_here
from resilisim.evaluation.run.progress import LiveTable, RunProgress
from resilisim.evaluation.run.ray_cluster import play_on_cluster
from resilisim.evaluation.run.store import RunStore, discard_journal, discard_journals
from resilisim.evaluation.table.facts import RunCollector, RunFacts
from resilisim.provenance import content_hash


class RunInterrupted(KeyboardInterrupt):
    """Somebody stopped a run with Ctrl-C.

    Attributes:
        num_kept: Episodes that are on disk.
        num_planned: Episodes of the whole run.
    """

    def __init__(self, num_kept: int, num_planned: int) -> None:
        super().__init__(f"interrupted: {num_kept:,} of {count_of(num_planned, 'episode')} kept")
        self.num_kept = num_kept
        self.num_planned = num_planned


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What one call of `evaluate` did to a folder.

    Attributes:
        num_already_there: Episodes that an earlier call had left in the folder; they were not played again.
        num_failures: Episodes that broke in this call for reasons of infrastructure; they are unfinished, and the same
            call tries them again.
        last_error: What the last of them broke on.
        stopped_by: The limit that ended the call before everything was played; None if none did.
        silent_policies: Policies that ask no model and ended every episode in the folder by returning None at once.
    """

    num_already_there: int = 0
    num_failures: int = 0
    last_error: str = ""
    stopped_by: str | None = None
    silent_policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """What is there after a call that played.

    Attributes:
        directory: The run's folder.
        facts: What is known of its episodes.
        call: What the call did.
        temporary: Keeps the folder alive, if nobody asked for it.
    """

    directory: Path
    facts: RunFacts
    call: CallOutcome
    temporary: tempfile.TemporaryDirectory[str] | None


@dataclass(frozen=True, slots=True)
class RunPart:
    """What of a run one call is to play.

    Attributes:
        plan: The whole run.
        shard: Which of its tasks.
        limits: Where to stop.
    """

    plan: Plan
    shard: Shard
    limits: RunLimits

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.plan.tasks[self.shard.number - 1 :: self.shard.count]) * self.plan.episodes_per_task

    def num_finished(self, store: RunStore) -> int:
        """Return how many of them are in a folder."""
        return sum(map(store.is_finished, self.plan.indices(self.shard)))


class _Tally:
    """Takes in the episodes of a run as they end: for its results, for those who watch, for its limits."""

    def __init__(self, limits: RunLimits) -> None:
        self.collector = RunCollector()
        self.live = LiveTable(self.collector)
        self.budget = Budget(limits)
        self._speaks: dict[str, bool] = {}  # policy -> whether any of its episodes began with more than silence

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        self.collector.add(record)
        self.budget.count(record)
        stopped_at_once = "agent" not in record and [step["kind"] for step in record["steps"]] == ["stop"]
        self._speaks[record["policy"]] = self._speaks.get(record["policy"], False) or not stopped_at_once

    def silent_policies(self) -> tuple[str, ...]:
        """Return the policies that ask no model and never sent anything, which a forgotten `return` looks like."""
        return tuple(policy for policy, speaks in self._speaks.items() if not speaks)


def play_run(
    settings: RunSettings,
    part: RunPart,
    arguments: dict[str, Any],
    out: Path | str | None,
    players: Players,
    progress: bool | None,
) -> PlayedRun:
    """Play what is not finished of a part of a run, and write it down.

    Args:
        settings: The run's settings.
        part: What to play.
        arguments: The run's arguments, for its manifest (`run_arguments`).
        out: The run's folder; None takes one that vanishes with the result.
        players: Who plays.
        progress: Whether to show progress; None shows it for runs of more than two seconds.

    Raises:
        InvalidInputError: A limit of dollars cannot be kept.
        StoreError: The folder holds another run, or cannot be written.
        InfrastructureError: A worker process died, or what policies need is down for episode after episode.
        RunInterrupted: Ctrl-C; what is finished is kept.
    """
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    # Replies are only kept where somebody can come back for them.
    kept_in = None if temporary is not None or not players.wait_for_models else str(out)
    settings = replace(settings, manifest_hash=content_hash(arguments), directory=kept_in)
    tally = _Tally(part.limits)
    with RunStore(out, arguments, len(part.plan), on_record=tally.add) as store:
        already_there = store.num_finished
        if part.limits.cost is not None and tally.budget.num_unpriced:
            raise InvalidInputError(
                f"a limit of dollars needs the prices of all models: {tally.budget.num_unpriced:,} episodes in {out} "
                "were played without, so nobody knows what was spent"
            )
        patience = Patience(settings.models.give_up_after)
        shown = RunProgress(len(part), part.num_finished(store), progress, table=tally.live)
        try:
            stopped_by = _play(settings, part, players, store, tally, patience, shown)
        except KeyboardInterrupt as error:
            raise RunInterrupted(store.num_finished if temporary is None else 0, len(part.plan)) from error
        finally:
            shown.close()
        if kept_in is not None and store.num_finished == len(part.plan):
            discard_journals(kept_in)
        call = CallOutcome(
            already_there, patience.num_failures, patience.last_error, stopped_by, tally.silent_policies()
        )
        return PlayedRun(store.directory, tally.collector.facts(store.manifest), call, temporary)


def _play(
    settings: RunSettings,
    part: RunPart,
    players: Players,
    store: RunStore,
    tally: _Tally,
    patience: Patience,
    shown: RunProgress,
) -> str | None:
    """Play what is not finished, and return the limit that kept something from being played."""
    num_pending = len(part) - part.num_finished(store)
    stopped_by = tally.budget.reached() if num_pending else None
    if stopped_by is not None:
        return stopped_by
    pending = part.plan.pending(store.is_finished, part.shard)
    until = tally.budget.until
    if players.ray is None:
        playing = play_here(settings, pending, num_pending, players, until)
    else:
        playing = play_on_cluster(settings, pending, players.ray, players.workers, players.wait_for_models, until)
    with contextlib.closing(playing) as outcomes:
        for outcome, line in outcomes:
            if is_failure(outcome):
                store.append_failure(line)
                tally.live.fail(outcome)
                patience.lose(outcome)
                continue
            record = cast("EpisodeRecord", outcome)
            store.append_encoded(line, record["index"])
            if settings.directory is not None:
                discard_journal(settings.directory, record["index"])
            tally.add(record)
            patience.restore()
            shown.advance()
            if tally.budget.reached() is not None:
                break
    # A limit that the last episode reaches has stopped nothing.
    return tally.budget.reached() if part.num_finished(store) < len(part) else None
