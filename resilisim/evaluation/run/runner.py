"""Playing a run: what is not finished is played and written down, until all is there or a limit is reached."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, is_failure
from resilisim.evaluation.run.limits import Budget, Patience, RunLimits
from resilisim.evaluation.run.plan import Plan, RunSettings
from resilisim.evaluation.run.player import Players, play_here
from resilisim.evaluation.run.progress import LiveTable, RunProgress
from resilisim.evaluation.run.ray_cluster import play_on_cluster
from resilisim.evaluation.run.store import RunStore, discard_journal, discard_journals
from resilisim.evaluation.table.facts import RunCollector, RunFacts
from resilisim.provenance import content_hash


class RunInterrupted(KeyboardInterrupt):
    """Somebody stopped a run with Ctrl-C; its text says how many episodes are on disk."""

    def __init__(self, num_kept: int, num_planned: int) -> None:
        super().__init__(f"interrupted: {num_kept:,} of {count_of(num_planned, 'episode')} kept")


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


class _Tally:
    """Takes in what the episodes of a run come to as they end: for its results, for those who watch, for its limits."""

    def __init__(self, limits: RunLimits, patience: int) -> None:
        self.collector = RunCollector()
        self.live = LiveTable(self.collector)
        self.budget = Budget(limits)
        self.patience = Patience(patience)
        self._speaks: dict[str, bool] = {}  # policy -> whether any of its episodes began with more than silence

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        self.collector.add(record)
        self.budget.count(record)
        stopped_at_once = "agent" not in record and [step["kind"] for step in record["steps"]] == ["stop"]
        self._speaks[record["policy"]] = self._speaks.get(record["policy"], False) or not stopped_at_once

    def lose(self, failure: FailureRecord) -> None:
        """Take in an episode that broke.

        Raises:
            InfrastructureError: It was one too many in a row.
        """
        self.live.fail(failure)
        self.patience.lose(failure)

    def outcome(self, already_there: int, stopped_by: str | None) -> CallOutcome:
        """Return what this call did; a policy that never sent anything may lack a `return`."""
        silent = tuple(policy for policy, speaks in self._speaks.items() if not speaks)
        return CallOutcome(already_there, self.patience.num_failures, self.patience.last_error, stopped_by, silent)


# The folder, what is known of its episodes, what the call did; and what keeps a folder alive that nobody asked for.
PlayedRun: TypeAlias = "tuple[Path, RunFacts, CallOutcome, tempfile.TemporaryDirectory[str] | None]"


def play_run(
    settings: RunSettings,
    plan: Plan,
    arguments: dict[str, Any],
    out: Path | str | None,
    limits: RunLimits,
    players: Players,
    progress: bool | None,
) -> PlayedRun:
    """Play what is not finished of a run's shard, and write it down (`evaluation.results.evaluate`).

    The arguments are those of the manifest (`run_arguments`). Without a folder one is taken that vanishes with the
    result.
    """
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    # Replies are only kept where somebody can come back for them.
    kept_in = None if temporary is not None or not players.wait_for_models else str(out)
    settings = replace(settings, manifest_hash=content_hash(arguments), directory=kept_in)
    tally = _Tally(limits, settings.models.give_up_after)
    with RunStore(out, arguments, len(plan), on_record=tally.add) as store:
        already_there = store.num_finished
        if limits.cost is not None and tally.budget.num_unpriced:
            raise InvalidInputError(
                f"a limit of dollars needs the prices of all models: {tally.budget.num_unpriced:,} episodes in {out} "
                "were played without, so nobody knows what was spent"
            )
        try:
            stopped_by = _play_pending(settings, plan, store, tally, players, progress)
        except KeyboardInterrupt as error:
            raise RunInterrupted(store.num_finished if temporary is None else 0, len(plan)) from error
        if kept_in is not None and store.num_finished == len(plan):
            discard_journals(kept_in)
        call = tally.outcome(already_there, stopped_by)
        return store.directory, tally.collector.facts(store.manifest), call, temporary


def _play_pending(
    settings: RunSettings, plan: Plan, store: RunStore, tally: _Tally, players: Players, progress: bool | None
) -> str | None:
    """Play what is not finished, and return the limit that kept something from being played."""
    num_pending = sum(1 for _ in plan.pending(store.is_finished))
    stopped_by = tally.budget.reached()
    if not num_pending or stopped_by is not None:
        return stopped_by if num_pending else None
    pending = map(plan.episode, plan.pending(store.is_finished))
    players = replace(players, until=tally.budget.until)
    if players.ray is None:
        playing = play_here(settings, pending, num_pending, players)
    else:
        playing = play_on_cluster(settings, pending, players.ray, players)
    shown = RunProgress(plan.part_size, plan.part_size - num_pending, progress, table=tally.live)
    with contextlib.closing(shown), contextlib.closing(playing) as outcomes:
        for outcome, line in outcomes:
            if is_failure(outcome):
                store.append_failure(line)
                tally.lose(outcome)
                continue
            record = cast("EpisodeRecord", outcome)
            store.append_encoded(line, record["index"])
            if settings.directory is not None:
                discard_journal(settings.directory, record["index"])
            tally.add(record)
            tally.patience.restore()
            shown.advance()
            if tally.budget.reached() is not None:
                break
    # A limit that the last episode reaches has stopped nothing.
    return tally.budget.reached() if any(True for _ in plan.pending(store.is_finished)) else None
