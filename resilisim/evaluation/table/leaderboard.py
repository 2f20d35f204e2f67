"""Runs side by side: a row for each policy and prompt type, and which differences between rows are more than noise."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.evaluation.run.store import read_manifest
from resilisim.evaluation.table.comparing import compare_tables, refuse_incomparable
from resilisim.evaluation.table.episodes import EpisodeTable, TableBuilder, taking_in
from resilisim.evaluation.table.summary import GroupSummary, summarise
from resilisim.evaluation.table.worst_case import counted_records
from resilisim.statistics.comparison import Difference, holm
from resilisim.statistics.estimates import CONFIDENCE_LEVEL, finite_or_none


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy under one prompt type of one run, before it is ranked."""

    run: str
    summary: GroupSummary  # its estimates
    table: EpisodeTable  # its episodes
    num_unfinished: int  # episodes that its run has planned and not played
    num_counted_as_lost: int = 0  # its episodes that broke, nobody can tell why, and are not finished

    @property
    def sampling(self) -> str:
        """How the model of an LLM agent was sampled; empty for other policies."""
        return next((known.sampling for known in self.table.facts.values()), "")

    @property
    def score(self) -> float:
        """What it is ranked by: the luck-adjusted success rate, or the raw one where there is none."""
        adjusted = self.summary.luck_adjusted.value
        return self.summary.success.value if math.isnan(adjusted) else adjusted


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the leaderboard."""

    entry: Entry  # what it shows
    label: str  # name of its policy, with the run where several runs hold one of that name
    rank: int  # its place by score among the rows of its prompt type, from 1
    # The best and the worst place that the tests leave possible: rows that are significantly better stand above it,
    # rows that are significantly worse below
    rank_range: tuple[int, int]
    behind_above: Difference | None  # difference of this row and the one above it (negative), None in the first row
    # Its p-value, corrected for all pairs of rows of this prompt type (Holm 1979); NaN where there is none
    p_value: float

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        against = None
        if self.behind_above is not None:
            behind = self.behind_above
            against = {"method": behind.method, **behind.to_mapping(), "p_value_holm": finite_or_none(self.p_value)}
        return {
            "rank": self.rank,
            "rank_range": list(self.rank_range),
            "label": self.label,
            "run": self.entry.run,
            "num_unfinished": self.entry.num_unfinished,
            "num_counted_as_lost": self.entry.num_counted_as_lost,
            "score": finite_or_none(self.entry.score),
            **self.entry.summary.to_mapping(),
            "against_above": against,
        }


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Rows by prompt type, best first."""

    sections: dict[str, tuple[Row, ...]]  # for each prompt type its rows
    num_unfinished: dict[str, int]  # for each run that is not finished, how many episodes are missing
    same_episodes: bool  # whether all rows of each prompt type are about the same tasks and seeds

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "rows": [row.to_mapping() for rows in self.sections.values() for row in rows],
            "num_unfinished": self.num_unfinished,
            "same_episodes": self.same_episodes,
        }


def read_leaderboard(
    directories: Sequence[Path | str], prompt: str | None = None, level: float = 1.0 - CONFIDENCE_LEVEL
) -> Leaderboard:
    """Return the leaderboard of runs, each read once.

    Args:
        directories: Folders of runs.
        prompt: Only this prompt type.
        level: Level of the tests that limit the ranks.

    Raises:
        StoreError: One is not a folder of results.
        InvalidInputError: A folder was given twice, runs cannot be compared, have no episode in common, or none has
            the prompt type.
    """
    names = [str(directory) for directory in directories]
    if len({Path(name).resolve() for name in names}) < len(names):
        raise InvalidInputError(f"a folder was given twice: {', '.join(names)}"[:200])
    refuse_incomparable([read_manifest(name) for name in names], names)
    entries = [entry for name in names for entry in read_entries(name)]
    return rank(entries, prompt, level)


def read_entries(directory: str) -> list[Entry]:
    """Return what a run holds, one entry for each policy and prompt type."""
    manifest = read_manifest(directory)
    sums, episodes = TableBuilder(), TableBuilder(sums=False)
    lost: Counter[tuple[str, str]] = Counter()
    for record, counts_as_lost in counted_records(directory, manifest):
        with taking_in(record, directory):
            sums.add(record)
            episodes.add(record)
        lost[record["policy"], record["prompt_type"]] += counts_as_lost
    table = episodes.table(manifest)
    missing = max(table.num_planned - table.num_episodes + lost.total(), 0)
    return [
        Entry(directory, summary, table.group(*names), missing, lost[names])
        for summary in summarise(sums.table(manifest))
        for names in [(summary.policy, summary.prompt_type)]
    ]


def rank(entries: Sequence[Entry], prompt: str | None = None, level: float = 1.0 - CONFIDENCE_LEVEL) -> Leaderboard:
    """Order entries by their score within each prompt type, and test every pair of them.

    Each pair is compared by the best method there is for it on the episodes that both have played, and the p-values of
    all pairs are corrected together. Counting who is significantly better and worse gives ranges of ranks that all hold
    at once with the confidence of the tests (Al Mohamad, Goeman and van Zwet 2022).
    """
    prompts = list(dict.fromkeys(entry.summary.prompt_type for entry in entries))
    if not prompts:
        raise InvalidInputError("no run holds an episode: expected at least one")
    if prompt is not None and prompt not in prompts:
        raise unknown_name("prompt type", prompt, prompts)
    prompt_types = prompts if prompt is None else [prompt]
    sections = {
        name: _rank_section([entry for entry in entries if entry.summary.prompt_type == name], level)
        for name in prompt_types
    }
    unfinished = {entry.run: entry.num_unfinished for entry in entries if entry.num_unfinished}
    same = all(len({_played(row.entry.table) for row in rows}) == 1 for rows in sections.values())
    return Leaderboard(sections, unfinished, same)


def _rank_section(entries: Sequence[Entry], level: float) -> tuple[Row, ...]:
    # Nobody is better than the exact optimum, whatever the luck of the rows.
    ordered = sorted(entries, key=lambda entry: (not entry.summary.is_optimum, -entry.score))
    names = [entry.summary.policy for entry in ordered]
    runs = _short_names([entry.run for entry in ordered])
    pairs = list(combinations(range(len(ordered)), 2))
    tests = [_compare(ordered[lower], ordered[upper]) for upper, lower in pairs]
    p_values = holm([test.p_value for test in tests])
    better, worse = [0] * len(ordered), [0] * len(ordered)
    for (upper, lower), test, p_value in zip(pairs, tests, p_values, strict=True):
        if p_value <= level:
            # By the test on common episodes, which may see another order than the scores on each row's own.
            ahead, behind = (upper, lower) if test.difference < 0.0 else (lower, upper)
            better[behind] += 1
            worse[ahead] += 1
    by_pair = dict(zip(pairs, zip(tests, p_values, strict=True), strict=True))
    rows = []
    for number, (entry, name) in enumerate(zip(ordered, names, strict=True)):
        label = name if names.count(name) == 1 else f"{name} ({runs[entry.run]})"
        ranks = (better[number] + 1, len(ordered) - worse[number])
        rank = number + 1
        if entry.summary.is_optimum:
            rank, ranks = 1, (1, 1)
        rows.append(Row(entry, label, rank, ranks, *by_pair.get((number - 1, number), (None, math.nan))))
    return tuple(rows)


def _short_names(runs: Sequence[str]) -> dict[str, str]:
    """Return the last part of each folder's name, all of it where folders share their last part."""
    short = {run: Path(run).name or run for run in runs}
    shown = list(short.values())
    return {run: name if shown.count(name) == 1 else run for run, name in short.items()}


def _compare(one: Entry, other: Entry) -> Difference:
    try:
        return compare_tables(one.table, other.table).best
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{one.summary.policy} ({one.run}) and {other.summary.policy} ({other.run}): {error}"
        ) from error


def _played(table: EpisodeTable) -> str:
    """Return a hash of the tasks and seeds of a table, in whatever order they were played."""
    present, task = np.unique(table.task, return_inverse=True)
    names = [table.tasks[place].instance_id for place in present]
    by_name = np.argsort(names, kind="stable")  # tables number their tasks in the order in which they met them
    place = np.argsort(by_name, kind="stable")[task]
    order = np.lexsort((table.seed, place))
    digest = hashlib.sha256("\n".join(sorted(names)).encode("utf-8", "surrogatepass"))
    digest.update(place[order].tobytes() + table.seed[order].tobytes())
    return digest.hexdigest()
