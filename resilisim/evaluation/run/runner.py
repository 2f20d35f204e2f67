"""Playing a run: what is not finished is played and written down, until all is there or a limit is reached."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, cast

from resilisim.chat.under_way import REQUESTS_UNDER_WAY
from resilisim.errors import Interrupted, InvalidInputError, count_of
from resilisim.evaluation.episode.record import EpisodeRecord, is_failure
from resilisim.evaluation.run.limits import CallOutcome, RunLimits, Tally
from resilisim.evaluation.run.plan import PlannedEpisodes, RunPlan, RunSettings
from resilisim.evaluation.run.player import Players
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.run.ray_cluster import play_anywhere
from resilisim.evaluation.run.store import JournalFolder, RunStore
from resilisim.evaluation.table.facts import RunFacts


class RunInterrupted(Interrupted):
    """Somebody stopped a run with Ctrl-C; its text says how many episodes are on disk."""

    def __init__(self, num_kept: int, num_planned: int, what: str = "episode") -> None:
        super().__init__(f"interrupted: {num_kept:,} of {count_of(num_planned, what)} kept")


# The folder, what is known of its episodes, what the call did; and what keeps a folder alive that nobody asked for.
PlayedRun: TypeAlias = "tuple[Path, RunFacts, CallOutcome, tempfile.TemporaryDirectory[str] | None]"


def play_run(
    plan: RunPlan, out: Path | str | None, limits: RunLimits, players: Players, progress: bool | None
) -> PlayedRun:
    """Play what is not finished of a run's shard, and write it down (`evaluation.run_results.evaluate`).

    Without a folder one is taken that vanishes with the result.
    """
    temporary = None
    if out is None:
        temporary = tempfile.TemporaryDirectory(prefix="resilisim-")
        out = temporary.name
    # Replies are only kept where somebody can come back for them: a later call, or another machine of a cluster.
    comes_back = temporary is None or players.ray is not None
    kept_in = str(out) if comes_back and players.wait_for_models else None
    settings, episodes = replace(plan.settings, directory=kept_in), plan.episodes
    tally = Tally(limits, settings.models.give_up_after)
    with RunStore(out, plan.arguments, len(episodes), on_record=tally.add) as store:
        already_there = store.num_finished
        if limits.cost is not None and tally.num_unpriced:
            raise InvalidInputError(
                f"a limit of dollars needs the prices of all models: {tally.num_unpriced:,} episodes in {out} "
                "were played without, so nobody knows what was spent"
            )
        try:
            stopped_by = _play_pending(settings, episodes, store, tally, players, progress)
        except KeyboardInterrupt as error:
            raise RunInterrupted(store.num_finished if temporary is None else 0, len(episodes)) from error
        if kept_in is not None and store.num_finished == len(episodes):
            JournalFolder(kept_in).remove()
        call = tally.outcome(already_there, stopped_by)
        return store.directory, tally.collector.facts(store.manifest), call, temporary


def _play_pending(
    settings: RunSettings,
    planned: PlannedEpisodes,
    store: RunStore,
    tally: Tally,
    players: Players,
    progress: bool | None,
) -> str | None:
    """Play what is not finished, and return the limit that kept something from being played."""
    num_pending = sum(1 for _ in planned.pending(store.is_finished))
    stopped_by = tally.reached()
    if not num_pending or stopped_by is not None:
        return stopped_by if num_pending else None
    sent = store.sent_before() if num_pending else {}
    episodes = map(planned.__getitem__, planned.pending(store.is_finished))
    pending = (replace(each, sent=sent[each.index]) if each.index in sent else each for each in episodes)
    players = replace(players, until=tally.until)
    playing = play_anywhere(settings, pending, num_pending, players)
    journals = None if settings.directory is None else JournalFolder(settings.directory)
    shown = Progressing(
        "episodes", planned.part_size, planned.part_size - num_pending, progress, tally.live, REQUESTS_UNDER_WAY.told
    )
    with shown, contextlib.closing(playing) as outcomes:
        for outcome, line in outcomes:
            if is_failure(outcome):
                store.append_failure(line)
                tally.lose(outcome)
                continue
            record = cast("EpisodeRecord", outcome)
            store.append_encoded(line, record["index"])
            if journals is not None:
                journals.discard(record["index"])
            tally.add(record)
            shown.advance()
            if tally.reached() is not None:
                break
    # A limit that the last episode reaches has stopped nothing.
    return tally.reached() if any(True for _ in planned.pending(store.is_finished)) else None
