"""This run against another one on common draws: differences by every method, and the tasks that differ most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.run.store import read_manifest
from resilisim.evaluation.table.comparing import RunComparison, compare_runs, refuse_incomparable
from resilisim.evaluation.table.facts import RunFacts
from resilisim.reporting.charts import Entry, legend, row_labels
from resilisim.reporting.charts.rows import Mark, forest_chart
from resilisim.reporting.page import Block, Fold, Note, Section, beside_a_chart, plain, say
from resilisim.statistics import Estimate
from resilisim.statistics.comparison import (
    INDEPENDENT,
    METHOD_NAMES,
    PAIRED,
    PAIRED_LUCK_ADJUSTED,
    Comparison,
    Difference,
)
from resilisim.tables.numbers import NO_NUMBER, p_value, signed_interval, signed_points
from resilisim.tables.table import SIGNED, Cell, Column, Table

_MOST_TASKS = 10
SHOWN_DIFFERENCE = 0.0005  # less than this prints as 0.0 points
_ALL = "all together"
_STYLES: Mapping[str, str] = {INDEPENDENT: "raw-beside", PAIRED: "series-1", PAIRED_LUCK_ADJUSTED: "raw"}


def refuse_unlike_runs(facts: RunFacts, directory: Path | str, compare_with: Path | str) -> None:
    """Refuse, before anything is computed, a run that cannot be compared with this one."""
    other = read_manifest(compare_with)
    refuse_incomparable([facts.manifest, other], [directory, compare_with])
    mine = list(dict.fromkeys(row.policy for row in facts.rows))
    its = other["arguments"].get("policy_names", [])
    if len(mine) > 1 and its and not set(mine) & set(its):
        raise InvalidInputError(
            f"{compare_with} holds {', '.join(its[:4])} and none of this run's policies ({', '.join(mine[:4])}): a "
            "report compares policies of one name; 'resilisim runs compare' also compares others"
        )


def comparison_section(facts: RunFacts, directory: Path | str, compare_with: Path | str) -> Section:
    """Return the comparison of a run (A), which has these facts, with another one (B)."""
    compared = compare_runs(directory, compare_with)
    first = compared.comparisons[0]
    # Policies of two names can only be compared where each run has one.
    policies = (f", {first.label_a}", f", {first.label_b}") if _policy(first) == "A − B" else ("", "")
    names = [Path(folder).resolve().name for folder in (directory, compare_with)]
    blocks: list[Block] = [
        say("comparison", a=names[0] + policies[0], b=names[1] + policies[1]),
        *_doubts(compared),
        legend(*(Entry("dot", style, METHOD_NAMES[method]) for method, style in _STYLES.items())),
        _forest(compared),
        beside_a_chart(differences_table(compared), "The same as a table, with p-values"),
        Fold("By every method", [methods_table(compared)]),
    ]
    tasks = tasks_table(facts, compared)
    blocks += [Fold(tasks.caption, [tasks])] if tasks is not None else []
    return Section("comparison", "Compared with another run", blocks)


def _policy(comparison: Comparison) -> str:
    policy, other = comparison.label_a.removesuffix(" (A)"), comparison.label_b.removesuffix(" (B)")
    return policy if policy == other else "A − B"


def _doubts(compared: RunComparison) -> list[Block]:
    alone = [sum(comparison.num_without_partner[side] for comparison in compared.comparisons) for side in (0, 1)]
    doubts = {"no_partner": alone, "unfinished_runs": compared.num_unfinished}
    return [Note(say(name, a=numbers[0], b=numbers[1])) for name, numbers in doubts.items() if any(numbers)]


class _Row(NamedTuple):
    """What one method says of a policy under a prompt, or of all of them together."""

    policy: str  # and prompt; empty where they repeat those above
    prompt: str
    comparison: Comparison
    method: str
    corrected: float  # p-value that allows for the number of comparisons; what is said of all together needs none

    @property
    def difference(self) -> Difference:
        return self.comparison.differences[self.method]

    @property
    def cell(self) -> Cell:
        """The difference with its interval."""
        difference = self.difference
        interval = signed_interval(*difference.interval)
        return Cell(signed_points(difference.difference), detail=interval, explanation=difference.note)

    @property
    def mark(self) -> Mark:
        """The difference as it is drawn."""
        difference = self.difference
        num_tasks = len(self.comparison.pairs.tasks)
        estimate = Estimate(
            difference.difference, difference.standard_error, *difference.interval, num_tasks, difference.episodes
        )
        return Mark(estimate, _STYLES[self.method], METHOD_NAMES[self.method])


def _rows(compared: RunComparison, method: str) -> list[_Row]:
    """Return a row for every matched policy and prompt and, where they are several, for all together."""
    corrected = compared.holm_p_values(method)
    rows = [
        _Row(_policy(comparison), comparison.prompt, comparison, method, p_value)
        for comparison, p_value in zip(compared.comparisons, corrected, strict=True)
    ]
    return [*rows, _Row(_ALL, "", compared.pooled, method, math.nan)] if len(rows) > 1 else rows


_P_VALUES: list[Column[_Row]] = [
    ("p", lambda row: p_value(row.difference.p_value)),
    ("p (Holm)", lambda row: p_value(row.corrected)),
]


def _forest(compared: RunComparison) -> Block:
    rows = list(zip(*(_rows(compared, method) for method in _STYLES), strict=True))
    return forest_chart(
        "Differences between the two runs",
        say("comparison_chart"),
        row_labels((row[0].policy, row[0].prompt) for row in rows),
        [[entry.mark for entry in row] for row in rows],
        ("B is better", "A is better"),
    )


def differences_table(compared: RunComparison) -> Table:
    """Return the best difference, its interval and p-values for every matched policy and prompt, and for all."""
    several = len(compared.comparisons) > 1
    methods = {comparison.best.method for comparison in (*compared.comparisons, compared.pooled)}
    method = PAIRED_LUCK_ADJUSTED if methods == {PAIRED_LUCK_ADJUSTED} else PAIRED
    return Table.of(
        say("differences_table", method=METHOD_NAMES[method]),
        _rows(compared, method),
        [
            ("policy", "policy"),
            ("prompt", "prompt"),
            ("pairs", "comparison.episodes"),
            ("A", "comparison.success_a"),
            ("B", "comparison.success_b"),
            ("A − B", "cell"),
            *_P_VALUES,
        ],
        text_columns=2,
        notes=[say("holm")] * several,
        summary_rows=int(several),
    )


def methods_table(compared: RunComparison) -> Table:
    """Return each method's difference, interval and p-value for every matched policy and prompt, and for all."""
    by_match = zip(*(_rows(compared, method) for method in METHOD_NAMES), strict=True)
    rows = [[first, *(row._replace(policy="", prompt="") for row in others)] for first, *others in by_match]
    return Table.of(
        say("methods_table"),
        [row for own in rows for row in own],
        [
            ("policy", "policy"),
            ("prompt", "prompt"),
            ("method", lambda row: Cell(METHOD_NAMES[row.method], explanation=row.difference.note)),
            ("pairs", "difference.episodes"),
            ("A − B", "cell"),
            ("standard error", "difference.standard_error"),
            *_P_VALUES,
        ],
        text_columns=3,
        notes=[say("comparison_methods")],
    )


def tasks_table(facts: RunFacts, compared: RunComparison) -> Table | None:
    """Return the tasks on which the runs differ most, or None if they differ on none."""
    # Pairs of each task, successes of A and B in them, and sums of what the best estimate is the mean of.
    sums: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(4))
    adjusted = all(comparison.terms is not None for comparison in compared.comparisons)
    for comparison in compared.comparisons:
        pairs = comparison.pairs
        terms = comparison.terms if adjusted and comparison.terms is not None else pairs.outcome_a - pairs.outcome_b
        columns = [pairs.task_counts, *map(pairs.task_sums, (pairs.outcome_a, pairs.outcome_b, terms))]
        for task, own in zip(pairs.tasks, np.stack(columns, axis=1), strict=True):
            sums[task] += own
    means = {task: (own[1:] / own[0]).tolist() for task, own in sums.items()}
    ordered = sorted(means, key=lambda task: (-round(abs(means[task][2]), 9), task))
    shown = [task for task in ordered[:_MOST_TASKS] if abs(means[task][2]) >= SHOWN_DIFFERENCE]
    if not shown:
        return None
    types = {task.instance_id: task.task_type for task in facts.table.tasks}
    return Table.of(
        f"The {count_of(len(shown), 'task')} on which A and B differ most, in percent of their pairs",
        shown,
        [
            ("task", lambda task: Cell(task, style="id")),
            ("type", lambda task: plain(types.get(task, NO_NUMBER))),
            ("pairs", lambda task: sums[task][0], ",.0f"),
            ("A", lambda task: means[task][0]),
            ("B", lambda task: means[task][1]),
            ("A − B, luck-adjusted" if adjusted else "A − B", lambda task: means[task][2], SIGNED),
        ],
        text_columns=2,
        notes=[say("no_intervals_picked")],
    )
