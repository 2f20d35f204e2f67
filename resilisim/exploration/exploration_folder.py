"""Playing an exploration into its folder: what is not finished is played, and every branch is written down."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from resilisim.chat.under_way import REQUESTS_UNDER_WAY
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.record import EpisodeRecord, is_failure
from resilisim.evaluation.run.plan import PlannedEpisode, RunPlan
from resilisim.evaluation.run.player import Players
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.run.ray_cluster import play_anywhere
from resilisim.evaluation.run.runner import RunInterrupted
from resilisim.evaluation.run.store import ROWS_NAME, RunStore
from resilisim.exploration.exploring import ExplorationLimits, ExploredRow
from resilisim.exploration.playing import BranchPlayer, is_row, row_of
from resilisim.run_folder import JsonLinesWriter, own_file, read_json_lines

_Sent: TypeAlias = "dict[int, tuple[Any, ...]]"  # what tells the plays of branches, by their records' numbers


def play_exploration(
    plan: RunPlan,
    directory: Path,
    limits: ExplorationLimits,
    dice: int,
    players: Players,
    progress: bool | None,
    keeps_records: bool = True,
) -> tuple[tuple[ExploredRow, ...], int, str]:
    """Play what is not finished of an exploration, with so many independent sets of replies of language models.

    Where no records are wanted, policies that are functions of the state are followed from state to state.

    Returns:
        The rows in the order of the plan, how many explorations broke, and what the last of them broke on.

    Raises:
        InvalidInputError: An agent does not repeat itself.
        StoreError: The folder holds another run, or cannot be written.
        RunInterrupted: Ctrl-C; what was played is kept.
    """
    plays, numbers = limits.plays, numbers_of(plan, dice)

    def play(pending: Sequence[int]) -> Generator[Any, None, None]:
        if plan.settings.models.cache is not None:
            Path(plan.settings.models.cache).mkdir(parents=True, exist_ok=True)
        make = functools.partial(BranchPlayer, limits=limits, dice=dice, keeps_records=keeps_records)
        return play_anywhere(plan.settings, _episodes(plan, pending, dice, plays), len(pending), players, make)

    rows, failures, error = explored_into(directory, plan.arguments, numbers, plays, play, progress)
    together: dict[int, list[ExploredRow]] = {}
    for number in sorted(rows):
        together.setdefault(number // dice, []).append(rows[number])
    return tuple(map(ExploredRow.of_dice, together.values())), failures, error


def explored_into(
    directory: Path,
    arguments: Mapping[str, Any],
    numbers: Sequence[int],
    plays: int,
    play: Callable[[Sequence[int]], Generator[Any, None, None]],
    progress: bool | None,
) -> tuple[dict[int, ExploredRow], int, str]:
    """Play what is not finished of some explorations into a folder.

    Args:
        directory: The folder.
        arguments: Those of its manifest (`explored_arguments`).
        numbers: Of the explorations; record number k of one is episode `number * plays + k`.
        plays: Most records of each.
        play: Plays those that are pending, and yields what comes of it (`playing.Explored`), each as it is and encoded.
        progress: Whether to show progress.

    Returns:
        The rows by their numbers, how many explorations broke, and what the last of them broke on.

    Raises:
        InvalidInputError: An agent does not repeat itself.
        StoreError: The folder holds another run, or cannot be written.
        RunInterrupted: Ctrl-C; what was played is kept.
    """
    sent: dict[int, _Sent] = {}  # by exploration, of records that an earlier call, or a machine that died, has left

    def note(record: EpisodeRecord) -> None:
        sent.setdefault(record["index"] // plays, {})[record["index"]] = _sent_in(record)

    with RunStore(directory, arguments, arguments["num_episodes"], on_record=note) as store:
        path = own_file(store.directory, ROWS_NAME)
        rows = _rows_in(path, plays)
        for number in rows:
            sent.pop(number, None)
        with JsonLinesWriter(path) as lines:
            try:
                playing = play([number for number in numbers if number not in rows])
                shown = Progressing("explored", len(numbers), len(rows), progress, None, lambda: _told(store))
                failures, error = _write_down(playing, shown, plays, store, lines, rows, sent)
            except KeyboardInterrupt as interrupt:
                raise RunInterrupted(len(rows), len(numbers), "exploration") from interrupt
    return rows, failures, error


def explored_arguments(
    arguments: Mapping[str, Any], limits: ExplorationLimits, explorations: int, num_episodes: int, dice: int = 1
) -> dict[str, Any]:
    """Return the arguments of a manifest that says that its episodes are branches."""
    return {
        **arguments,
        "explored": True,
        **({} if dice == 1 else {"dice": dice}),
        "explorations": explorations,
        "num_episodes": num_episodes,
        "plays": limits.plays,
        "width": limits.width,
    }


def numbers_of(plan: RunPlan, dice: int) -> list[int]:
    """Return the numbers of a shard's explorations: where several sets of replies are asked for, models give each."""
    shard = list(plan.episodes.pending(lambda index: False))
    by_die = [
        [
            index * dice + die
            for index in shard
            if not die or plan.settings.contestants[plan.episodes[index].policy].model is not None
        ]
        for die in range(dice)
    ]
    return list(itertools.chain.from_iterable(by_die))  # one set after the other


def _write_down(
    playing: Generator[Any, None, None],
    shown: Progressing,
    plays: int,
    store: RunStore,
    lines: JsonLinesWriter,
    rows: dict[int, ExploredRow],
    sent: dict[int, _Sent],
) -> tuple[int, str]:
    """Write down what is played, enter the rows, and return how many explorations broke, and the last what on."""
    failures, error = 0, ""
    with shown, contextlib.closing(playing) as outcomes:
        for outcome, line in outcomes:
            number = outcome["index"] // plays
            if is_row(outcome):
                lines.write_encoded(line)
                rows[number] = row_of(outcome)
                sent.pop(number, None)
                shown.advance()
                continue
            if is_failure(outcome):
                store.append_failure(line)
                failures, error = failures + 1, outcome["error"]
                continue
            record = cast("EpisodeRecord", outcome)
            known = sent.setdefault(number, {}).setdefault(record["index"], _sent_in(record))
            if not store.is_finished(record["index"]):
                store.append_encoded(line, record["index"])
            elif known != _sent_in(record):
                raise InvalidInputError(
                    f"episode {record['index']} of {store.directory} was played otherwise before: expected an agent "
                    "that repeats itself; use another folder after changing it"
                )
    return failures, error


def _told(store: RunStore) -> str:
    """Return how many branches there are, and what is waited for."""
    branches = f"{store.num_finished:,} branches" if store.num_finished else ""
    return ", ".join(filter(None, (branches, REQUESTS_UNDER_WAY.told())))


def _episodes(plan: RunPlan, numbers: Sequence[int], dice: int, plays: int) -> Iterator[PlannedEpisode]:
    for number in numbers:
        yield replace(plan.episodes[number // dice], index=number * plays)


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
