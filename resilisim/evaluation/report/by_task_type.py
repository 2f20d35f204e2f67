"""Success by task type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from resilisim.evaluation.report import legend
from resilisim.evaluation.report.cells import percent, plain, policy_cell, with_interval
from resilisim.evaluation.report.charts import Panel, dot_panels
from resilisim.evaluation.report.content import Block, Fold, Paragraph, Section, Table
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.published import task_types_reference
from resilisim.evaluation.report.rows import labels_of, success_marks
from resilisim.evaluation.summary import GroupSummary, ordered_groups, summarise_group

MOST_TASK_TYPES = 8  # shown one by one; the rest of a run with more stands in its records
PANELS_PER_CHART = 3


def task_types_section(facts: RunFacts) -> Section:
    """Return success by task type, for each policy and prompt."""
    counts = Counter(task.task_type for task in facts.sums.tasks)
    if len(counts) == 1:
        text = f"All tasks of this run are of one type: {plain(next(iter(counts)))}."
        return Section("types", "By task type", [text, task_types_reference()])
    shown = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_TASK_TYPES]
    groups = ordered_groups(facts.sums, *facts.order)
    parts = {
        name: [summarise_group(facts.sums, group, facts.sums.tasks_where(task_type=name)) for group in groups]
        for name in shown
    }
    blocks: list[Block] = [legend.success_legend(any(row.privileged for row in facts.rows))]
    for start in range(0, len(shown), PANELS_PER_CHART):
        names = shown[start : start + PANELS_PER_CHART]
        panels = [
            Panel(
                f"{name} ({counts[name]:,})",
                [success_marks(row) for row in parts[name]],
                [row.optimum.value for row in parts[name]],
            )
            for name in names
        ]
        title = f"Success by task type: {', '.join(names)}"
        text = "One panel per task type, one row per policy and prompt type: success with its 95% interval, and V*."
        blocks.append(dot_panels(title, text, labels_of(facts.rows), panels, num_columns=PANELS_PER_CHART))
    rows = [(name, row) for name in shown for row in parts[name]]
    blocks.append(Fold("The same as a table", [task_types_table(rows)]))
    hidden = len(counts) - len(shown)
    if hidden:
        blocks.append(Paragraph(f"{count_of(hidden, 'rarer type')} left out here, not in the totals.", "note"))
    blocks.append(task_types_reference())
    return Section("types", "By task type", blocks)


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
            "success",
            "partial success",
            "ceiling V*",
            "luck-adjusted",
        ),
        [
            (
                plain(name),
                policy_cell(row),
                row.prompt_type,
                plain(row.biggest_loss or "none"),
                f"{row.num_tasks:,}",
                f"{row.num_episodes:,}",
                with_interval(row.success),
                with_interval(row.partial_success),
                percent(row.optimum.value),
                with_interval(row.luck_adjusted),
            )
            for name, row in rows
        ],
        text_columns=4,
        is_stacked=True,
    )
