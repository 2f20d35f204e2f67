"""Agents of one run against each other: they met the same draws, so their differences are paired, luck taken out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

from resilisim.errors import ResiliSimError
from resilisim.evaluation.table.comparing import compare_tables
from resilisim.evaluation.table.verdict import comparison_sentence
from resilisim.evaluation.table.worst_case import read_counted_table
from resilisim.reporting.groups import PromptPools, merit
from resilisim.reporting.page import Block, Section, plain, say
from resilisim.statistics.comparison import Comparison, holm
from resilisim.tables.numbers import p_value, percent, signed_interval, signed_points
from resilisim.tables.table import Cell, Table

MOST_PAIRED: Final = 4  # policies under a prompt that are all compared with each other; of more, each with the best


class _Row(NamedTuple):
    """Two policies under one prompt type."""

    comparison: Comparison
    corrected: float  # p-value that allows for the number of rows

    @property
    def difference(self) -> Cell:
        best = self.comparison.best
        return Cell(signed_points(best.difference), detail=signed_interval(*best.interval), explanation=best.note)


def differences_section(pools: PromptPools, directory: Path | str) -> Section | None:
    """Return how policies of a run differ, those aside that see the state; None where there is nothing to compare."""
    if len(pools.ordinary) < 2:
        return None
    comparisons = list(_comparisons(pools, directory))
    if not comparisons:
        return None
    corrected = holm([comparison.best.p_value for comparison in comparisons])
    rows = [_Row(*each) for each in zip(comparisons, corrected, strict=True)]
    several = len({comparison.prompt for comparison in comparisons}) > 1
    verdicts = list(_verdicts(rows, several))
    table = Table.of(
        say("differences_within"),
        rows,
        [
            ("A", "comparison.label_a"),
            ("B", "comparison.label_b"),
            ("prompt", lambda row: plain(row.comparison.prompt)),
            ("pairs", "comparison.episodes"),
            ("A", lambda row: percent(row.comparison.success_a.value)),
            ("B", lambda row: percent(row.comparison.success_b.value)),
            ("A − B", "difference"),
            ("p", lambda row: p_value(row.comparison.best.p_value)),
            ("p (Holm)", lambda row: p_value(row.corrected)),
        ],
        text_columns=3,
        notes=[say("holm")] if len(rows) > 1 else [],
    )
    blocks: list[Block] = [*verdicts, table]
    return Section("differences", "Differences", blocks)


def _comparisons(pools: PromptPools, directory: Path | str) -> Iterator[Comparison]:
    """Yield the comparisons under each prompt, the better policy first."""
    table = read_counted_table(directory)
    for prompt in dict.fromkeys(row.prompt_type for row in pools.rows):
        rows = sorted((row for row in pools.rows if row.prompt_type == prompt and not row.privileged), key=merit)
        pairs = [*combinations(rows, 2)]
        if len(rows) > MOST_PAIRED:
            pairs = [(rows[0], row) for row in rows[1:]]
        for one, other in pairs:
            try:
                yield compare_tables(table.group(one.policy, prompt), table.group(other.policy, prompt))
            except ResiliSimError:  # they have no task and seed in common
                continue


def _verdicts(rows: Sequence[_Row], several: bool) -> Iterator[str]:
    """Yield a sentence for each prompt: what the best is to the next one."""
    seen = set()
    for row in rows:
        prompt = row.comparison.prompt
        if prompt not in seen:
            seen.add(prompt)
            where = f"Under {plain(prompt)} prompts: " if several else ""
            yield f"{where}{comparison_sentence(row.comparison)}."
