"""This run against another one on common luck: differences by every method, and the tasks that differ most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.report.charts import Entry, RowLabel, legend
from resilisim.evaluation.report.charts.rows import Mark, forest_chart
from resilisim.evaluation.report.page import (
    NOTHING,
    Block,
    Cell,
    Fold,
    Note,
    Section,
    Table,
    beside_a_chart,
    plain,
    say,
    signed_points,
)
from resilisim.evaluation.run.store import read_manifest
from resilisim.evaluation.table.comparing import RunComparison, compare_runs, refuse_incomparable
from resilisim.evaluation.table.facts import RunFacts
from resilisim.statistics import Estimate
from resilisim.statistics.comparison import INDEPENDENT, MCNEMAR, PAIRED, PAIRED_LUCK_ADJUSTED, Comparison, Difference

MOST_TASKS = 10
SHOWN_DIFFERENCE = 0.0005  # less than this prints as 0.0 points
METHOD_NAMES: Mapping[str, str] = {
    INDEPENDENT: "independent",
    PAIRED: "paired",
    PAIRED_LUCK_ADJUSTED: "paired, luck-adjusted",
    MCNEMAR: "McNemar",
}
ALL = "all together"
_STYLES: Mapping[str, str] = {INDEPENDENT: "raw-beside", PAIRED: "series-1", PAIRED_LUCK_ADJUSTED: "raw"}


def refuse_unlike_runs(facts: RunFacts, directory: Path | str, compare_with: Path | str) -> None:
    """Refuse, before anything is computed, a run that cannot be compared with this one.

    Raises:
        StoreError: The other folder is none of results.
        InvalidInputError: The two cannot be compared.
    """
    other = read_manifest(compare_with)
    refuse_incomparable([facts.manifest, other], [directory, compare_with])
    mine = list(dict.fromkeys(row.policy for row in facts.rows))
    its = other["arguments"].get("policy_names", [])
    if len(mine) > 1 and its and not set(mine) & set(its):
        raise InvalidInputError(
            f"{compare_with} holds {', '.join(its[:4])} and none of this run's policies ({', '.join(mine[:4])}): a "
            "report compares policies of one name; 'resilisim compare' also compares others"
        )


def comparison_section(facts: RunFacts, directory: Path | str, compare_with: Path | str) -> Section:
    """Return the comparison of a run (A), which has these facts, with another one (B).

    Raises:
        StoreError: The other folder is none of results.
        InvalidInputError: The two cannot be compared.
    """
    compared = compare_runs(directory, compare_with)
    first = compared.comparisons[0]
    # Policies of two names can only be compared where each run has one.
    policies = (first.label_a, first.label_b) if _names(first)[0] == "A − B" else ("", "")
    names = [Path(folder).resolve().name for folder in (directory, compare_with)]
    called = [f"{name}, {policy}" if policy else name for name, policy in zip(names, policies, strict=True)]
    blocks: list[Block] = [
        say("comparison", a=called[0], b=called[1]),
        *_doubts(compared),
        legend(*(Entry("dot", style, METHOD_NAMES[method]) for method, style in _STYLES.items())),
        _forest(compared),
        beside_a_chart(differences_table(compared), "The same as a table, with p-values"),
        Fold("By every method", [methods_table(compared)]),
    ]
    tasks = tasks_table(facts, compared)
    if tasks is not None:
        blocks.append(Fold(tasks.caption, [tasks]))
    return Section("comparison", "Compared with another run", blocks)


def _names(comparison: Comparison) -> tuple[str, str]:
    policy, other = comparison.label_a.removesuffix(" (A)"), comparison.label_b.removesuffix(" (B)")
    return policy if policy == other else "A − B", comparison.prompt


def _named(compared: RunComparison) -> list[tuple[Comparison, str, str]]:
    """Return every matched policy and prompt and, where they are several, all together, each with its names."""
    found = [(comparison, *_names(comparison)) for comparison in compared.comparisons]
    return [*found, (compared.pooled, ALL, "")] if len(found) > 1 else found


def _corrected(compared: RunComparison, method: str) -> list[float]:
    """Return p-values that allow for the number of comparisons; what is said of all together needs none."""
    return [*compared.holm_p_values(method), math.nan]


def _doubts(compared: RunComparison) -> list[Block]:
    alone = [sum(comparison.num_without_partner[side] for comparison in compared.comparisons) for side in (0, 1)]
    doubts = {"no_partner": alone, "unfinished_runs": compared.num_unfinished}
    return [Note(say(name, a=numbers[0], b=numbers[1])) for name, numbers in doubts.items() if any(numbers)]


def _forest(compared: RunComparison) -> Block:
    labels: list[RowLabel] = []
    rows: list[list[Mark]] = []
    previous = ""
    for comparison, policy, prompt in _named(compared):
        labels.append(RowLabel("" if policy == previous else policy, prompt, False, f"{policy} {prompt}".strip()))
        previous = policy
        rows.append([])
        for method, style in _STYLES.items():
            one = comparison.differences[method]
            num_tasks = len(comparison.pairs.tasks)
            estimate = Estimate(one.difference, one.standard_error, *one.interval, num_tasks, one.episodes)
            rows[-1].append(Mark(estimate, style, METHOD_NAMES[method]))
    return forest_chart(
        "Differences between the two runs",
        say("comparison_chart"),
        labels,
        rows,
        ("B is better", "A is better"),
    )


def differences_table(compared: RunComparison) -> Table:
    """Return the best difference, its interval and p-values for every matched policy and prompt, and for all."""
    several = len(compared.comparisons) > 1
    methods = {comparison.best.method for comparison in (*compared.comparisons, compared.pooled)}
    method = PAIRED_LUCK_ADJUSTED if methods == {PAIRED_LUCK_ADJUSTED} else PAIRED
    rows: list[list[object]] = []
    for (comparison, *names), corrected in zip(_named(compared), _corrected(compared, method), strict=False):
        difference = comparison.differences[method]
        rates = (comparison.success_a, comparison.success_b)
        p_values = (p_text(difference.p_value), p_text(corrected))
        rows.append([*names, comparison.episodes, *rates, _difference_cell(difference), *p_values])
    return Table(
        say("differences_table", method=METHOD_NAMES[method]),
        ("policy", "prompt", "pairs", "A", "B", "A − B", "p", "p (Holm)"),
        rows,
        text_columns=2,
        notes=(say("holm"),) if several else (),
        summary_rows=1 if several else 0,
    )


def methods_table(compared: RunComparison) -> Table:
    """Return each method's difference, interval and p-value for every matched policy and prompt, and for all."""
    corrected = {method: _corrected(compared, method) for method in METHOD_NAMES}
    rows: list[list[object]] = []
    for place, (comparison, *names) in enumerate(_named(compared)):
        for method, name in METHOD_NAMES.items():
            difference = comparison.differences[method]
            p_values = (p_text(difference.p_value), p_text(corrected[method][place]))
            numbers = (_difference_cell(difference), difference.standard_error, *p_values)
            called = Cell(name, explanation=difference.note)
            rows.append([*names, called, difference.episodes, *numbers])
            names = ["", ""]
    return Table(
        say("methods_table"),
        ("policy", "prompt", "method", "pairs", "A − B", "standard error", "p", "p (Holm)"),
        rows,
        text_columns=3,
        notes=(say("comparison_methods"),),
    )


def _difference_cell(difference: Difference) -> Cell:
    low, high = difference.interval
    detail = "" if math.isnan(low) or math.isnan(high) else f"[{signed_points(low)}, {signed_points(high)}]"
    return Cell(signed_points(difference.difference), detail=detail, explanation=difference.note)


def p_text(value: float) -> str:
    """Return a p-value with three digits, or a dash for NaN."""
    if math.isnan(value):
        return NOTHING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def tasks_table(facts: RunFacts, compared: RunComparison) -> Table | None:
    """Return the tasks on which the runs differ most, or None if they differ on none."""
    sums: dict[str, list[float]] = {}
    adjusted = all(comparison.terms is not None for comparison in compared.comparisons)
    for comparison in compared.comparisons:
        pairs = comparison.pairs
        terms = comparison.terms if adjusted and comparison.terms is not None else pairs.outcome_a - pairs.outcome_b
        columns = [pairs.task_counts, *map(pairs.task_sums, (pairs.outcome_a, pairs.outcome_b, terms))]
        for task, own in zip(pairs.tasks, np.stack(columns, axis=1).tolist(), strict=True):
            total = sums.setdefault(task, [0.0, 0.0, 0.0, 0.0])
            for place, value in enumerate(own):
                total[place] += value
    means = {task: [value / total[0] for value in total[1:]] for task, total in sums.items()}
    ordered = sorted(means, key=lambda task: (-round(abs(means[task][2]), 9), task))
    shown = [task for task in ordered[:MOST_TASKS] if abs(means[task][2]) >= SHOWN_DIFFERENCE]
    if not shown:
        return None
    types = {task.instance_id: task.task_type for task in facts.table.tasks}
    return Table.of(
        f"The {count_of(len(shown), 'task')} on which A and B differ most, in percent of their pairs",
        shown,
        [
            ("task", lambda task: Cell(task, style="id")),
            ("type", lambda task: plain(types.get(task, NOTHING))),
            ("pairs", lambda task: f"{sums[task][0]:,.0f}"),
            ("A", lambda task: means[task][0]),
            ("B", lambda task: means[task][1]),
            ("A − B, luck-adjusted" if adjusted else "A − B", lambda task: signed_points(means[task][2])),
        ],
        text_columns=2,
        notes=(say("no_intervals_picked"),),
    )
