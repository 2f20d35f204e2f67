"""Playing an exploration into its folder: what is not finished is played, and every branch is written down."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from resilisim.chat.under_way import UNDER_WAY
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import EpisodeRecord, is_failure
from resilisim.evaluation.run.plan import PlannedEpisode, PlannedEpisodes, RunPlan
from resilisim.evaluation.run.player import Players, play_here
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.run.runner import RunInterrupted
from resilisim.evaluation.run.store import RunStore
from resilisim.exploration.exploring import ExplorationLimits, ExploredRow
from resilisim.exploration.playing import BranchPlayer, is_row, row_of
from resilisim.run_folder import JsonLinesWriter, own_file, read_json_lines

ROWS_NAME: Final = "explored.jsonl"  # one line for each exploration that is finished


def play_exploration(
    plan: RunPlan, directory: Path, limits: ExplorationLimits, players: Players, progress: bool | None
) -> tuple[tuple[ExploredRow, ...], int, str]:
    """Play what is not finished of an exploration.

    Returns:
        The rows in the order of the plan, how many explorations broke, and what the last of them broke on.

    Raises:
        InvalidInputError: An agent does not repeat itself.
        StoreError: The folder holds another run, or cannot be written.
        RunInterrupted: Ctrl-C; what was played is kept.
    """
    num_groups, plays = len(plan.episodes), limits.plays
    sent: dict[int, tuple[Any, ...]] = {}  # of records that an earlier call has left

    def note(record: EpisodeRecord) -> None:
        sent[record["index"]] = _sent_in(record)

    with RunStore(directory, plan.arguments, num_groups * plays, on_record=note) as store:
        path = own_file(store.directory, ROWS_NAME)
        rows = _rows_in(path, plays)
        with JsonLinesWriter(path) as lines:
            try:
                failures, error = _play_pending(plan, limits, players, progress, store, lines, rows, sent)
            except KeyboardInterrupt as interrupt:
                raise RunInterrupted(len(rows), num_groups, "exploration") from interrupt
    return tuple(rows[group] for group in sorted(rows)), failures, error


def read_rows(directory: Path | str, plays: int) -> tuple[ExploredRow, ...]:
    """Return what a folder knows of explorations that are finished, in the order of the plan."""
    rows = _rows_in(own_file(directory, ROWS_NAME), plays)
    return tuple(rows[group] for group in sorted(rows))


def _play_pending(
    plan: RunPlan,
    limits: ExplorationLimits,
    players: Players,
    progress: bool | None,
    store: RunStore,
    lines: JsonLinesWriter,
    rows: dict[int, ExploredRow],
    sent: dict[int, tuple[Any, ...]],
) -> tuple[int, str]:
    """Play what is not finished, enter the rows, and return how much broke and what on."""
    num_groups, failures, error, num_plays = len(plan.episodes), 0, "", 0
    num_pending = num_groups - len(rows)
    if not num_pending:
        return 0, ""
    pending = _pending(plan.episodes, limits.plays, rows)
    make = functools.partial(BranchPlayer, limits=limits)

    def told() -> str:
        return ", ".join(filter(None, (f"{num_plays:,} branches", UNDER_WAY.told())))

    shown = Progressing("explored", num_groups, len(rows), progress, None, told)
    playing = play_here(plan.settings, pending, num_pending, players, make)
    with shown, contextlib.closing(playing) as outcomes:
        for outcome, line in outcomes:
            if is_row(outcome):
                lines.write_encoded(line)
                rows[outcome["index"] // limits.plays] = row_of(outcome)
                shown.advance()
                continue
            if is_failure(outcome):
                store.append_failure(line)
                failures, error = failures + 1, outcome["error"]
                continue
            num_plays += 1
            record = cast("EpisodeRecord", outcome)
            if not store.is_finished(record["index"]):
                store.append_encoded(line, record["index"])
            elif sent[record["index"]] != _sent_in(record):
                raise InvalidInputError(
                    f"episode {record['index']} of {store.directory} was played otherwise before: expected an agent "
                    "that repeats itself; use another folder after changing it"
                )
    return failures, error


def _pending(episodes: PlannedEpisodes, plays: int, rows: dict[int, ExploredRow]) -> Iterator[PlannedEpisode]:
    finished = frozenset(rows)  # as it is now
    for episode in episodes:
        if episode.index not in finished:
            yield replace(episode, index=episode.index * plays)


def _rows_in(path: Path, plays: int) -> dict[int, ExploredRow]:
    rows: dict[int, ExploredRow] = {}
    for number, line in enumerate(read_json_lines(path) if path.exists() else (), start=1):
        if not isinstance(line, dict) or not is_row(line):
            raise StoreError(f"line {number} of {path} is no exploration")
        rows[line["index"] // plays] = row_of(line)
    return rows


def _sent_in(record: EpisodeRecord) -> tuple[Any, ...]:
    """Return what tells the play of a branch from others: what it brought, and what was sent."""
    return (*record.get("branch", ()), *(step["message"] for step in record["steps"]))
