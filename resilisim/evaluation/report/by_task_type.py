"""Results by task type."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from resilisim.errors import count_of
from resilisim.evaluation.facts import RunFacts
from resilisim.evaluation.report.cells import NOTHING, PRIVILEGED_NOTE, percent, plain, policy_cell, with_interval
from resilisim.evaluation.report.content import Cell, CellLike, Fold, Paragraph, Section, Table
from resilisim.evaluation.report.published import task_types_reference
from resilisim.evaluation.report.results import overshoot_notes
from resilisim.evaluation.report.rows import PromptPools
from resilisim.evaluation.summary import GroupSummary, ordered_groups, summarise_group

MOST_TASK_TYPES = 8  # shown one by one; the rest of a run with more stands in its records
LEAST_CEILING = 0.05  # below it a share says nothing
SHADES = 10  # of cells, from 0 to 100 % of the ceiling; style.css has a class for each


def task_types_section(facts: RunFacts, pools: PromptPools) -> Section:
    """Return what share of the ceiling each policy reaches under each prompt, by task type."""
    counts = Counter(task.task_type for task in facts.sums.tasks)
    if len(counts) == 1:
        text = f"All tasks of this run are of one type: {plain(next(iter(counts)))}."
        return Section("types", "By task type", [text, task_types_reference()])
    shown = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_TASK_TYPES]
    chosen = {name: facts.sums.tasks_where(task_type=name) for name in shown}
    groups = ordered_groups(facts.sums, *facts.order)
    rows = [(name, summarise_group(facts.sums, group, chosen[name])) for name in shown for group in groups]
    hidden = len(counts) - len(shown)
    left_out = [Paragraph(f"{count_of(hidden, 'rarer type')} left out here, not in the totals.", "note")]
    return Section(
        "types",
        "By task type",
        [
            shares_table(facts, pools, {name: counts[name] for name in shown}),
            *(left_out if hidden else []),
            Fold("Success and costliest causes by task type", [task_types_table(rows)]),
            task_types_reference(),
        ],
    )


def shares_table(facts: RunFacts, pools: PromptPools, counts: Mapping[str, int]) -> Table:
    """Return the share of the ceiling of each policy under each prompt for each task type, and what the ceiling is."""
    chosen = [facts.sums.tasks_where(task_type=name) for name in counts]
    rows: list[list[CellLike]] = []
    shown: list[GroupSummary] = []
    ceilings: dict[str, list[GroupSummary]] = {}
    for row in pools.rows:
        entry = pools.get(row.policy, row.prompt_type)
        assert entry is not None  # rows are made of these
        parts = [summarise_group(facts.sums, entry.group, where) for where in chosen]
        shown += parts
        rows.append([policy_cell(row), plain(row.prompt_type), *(_shaded(part) for part in parts)])
        if not math.isnan(row.ceiling.value):
            ceilings.setdefault(row.ceiling_name, parts)
    names = {"known_probabilities": "tools known"} if len(ceilings) > 1 else {"known_probabilities": ""}
    for name, parts in sorted(ceilings.items()):
        cells = (percent(part.ceiling.value) if part.num_tasks else NOTHING for part in parts)
        rows.append(["ceiling in % of episodes", names.get(name, "tools to be found"), *cells])
    rows.append(["tasks", "", *(f"{count:,}" for count in counts.values())])
    low = any(part.ceiling.value < LEAST_CEILING for part in shown)
    several_tries = any(row.tries_again for row in pools.rows)
    notes = ["“raw”: success in percent of episodes, where there is no ceiling."] if several_tries else []
    notes += [f"No share where the ceiling is below {percent(LEAST_CEILING, 0)}%."] if low else []
    notes += overshoot_notes([part for part in shown if not part.ceiling.value < LEAST_CEILING])
    return Table(
        "Share of the ceiling in percent by task type, luck taken out, with 95% intervals clustered by task",
        ("policy", "prompt", *map(plain, counts)),
        rows,
        text_columns=2,
        is_listed=True,
        notes=notes + ([PRIVILEGED_NOTE] if any(row.privileged for row in pools.rows) else []),
        summary_rows=1 + len(ceilings),
    )


def _shaded(row: GroupSummary) -> Cell:
    """Return a share of the ceiling on a ground that tells how high it is, or raw success where there is none."""
    if math.isnan(row.adjusted_share.value):
        cell = with_interval(row.success)
        return Cell(f"{cell.text} raw", detail=cell.detail) if cell.detail else cell
    if row.ceiling.value < LEAST_CEILING:
        return Cell(NOTHING)
    cell = with_interval(row.adjusted_share)
    shade = min(max(int(row.adjusted_share.value * SHADES), 0), SHADES - 1)
    return Cell(cell.text, detail=cell.detail, style=f"shade shade-{shade}")


def task_types_table(rows: Sequence[tuple[str, GroupSummary]]) -> Table:
    """Return success by task type, for each policy and prompt."""
    return Table(
        "Success in percent by task type, with 95% intervals clustered by task",
        (
            "task type",
            "policy",
            "prompt",
            "costliest cause",
            "tasks",
            "episodes",
            "luck-adjusted",
            "ceiling",
            "raw success",
            "partial success",
        ),
        [
            (
                plain(name),
                policy_cell(row),
                row.prompt_type,
                plain(row.biggest_loss or "none"),
                f"{row.num_tasks:,}",
                f"{row.num_episodes:,}",
                with_interval(row.luck_adjusted),
                percent(row.ceiling.value),
                with_interval(row.success),
                with_interval(row.partial_success),
            )
            for name, row in rows
        ],
        text_columns=4,
        is_stacked=True,
    )
