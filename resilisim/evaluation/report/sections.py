"""The sections of the report that hold results, each a chart with a table of the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from resilisim.evaluation.accumulate import GroupSums, RunSums, TaskVector
from resilisim.evaluation.records import LOSS_LABELS
from resilisim.evaluation.report import frame, legend, tables
from resilisim.evaluation.report.charts import Mark, RowLabel, Segment, dot_chart, stacked_chart
from resilisim.evaluation.report.examples import example_section
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.statistics import FloatArray
from resilisim.evaluation.summary import GroupSummary, bound_note, format_percent, ordered_groups, summarise_group

MOST_TASK_TYPES = 8  # shown one by one; the rest of a run with more stands in its records
PANELS_PER_CHART = 3
WORST_TASKS = 10
SHOWN_REGRET = 0.0005  # less than this prints as 0.0 points


def report_body(facts: RunFacts) -> Markup:
    """Return everything between <body> and </body>."""
    if not facts.rows:
        nothing = element("p", "No episode is finished yet.", class_="warning")
        return element("main", frame.header(facts), nothing)
    return element(
        "main",
        frame.header(facts),
        frame.cards(facts),
        frame.contents(),
        _success(facts),
        _losses(facts),
        _by_task_type(facts),
        _luck(facts),
        _worst_tasks(facts),
        _examples(facts),
        frame.reading(),
        frame.provenance(facts),
    )


_TRIES_AGAIN = "A policy without V* may try again in fresh episodes: it has no ceiling and no luck adjustment."


def _labels(rows: Sequence[GroupSummary]) -> list[RowLabel]:
    several_prompts = len({row.prompt_type for row in rows}) > 1
    labels = []
    for number, row in enumerate(rows):
        repeated = number > 0 and rows[number - 1].policy == row.policy
        full_name = f"{row.policy} under {row.prompt_type}" + (" (privileged)" if row.privileged else "")
        prompt = row.prompt_type if several_prompts else ""
        labels.append(RowLabel("" if repeated else row.policy, prompt, row.privileged, full_name))
    return labels


def _success_marks(row: GroupSummary) -> list[Mark]:
    style = "privileged" if row.privileged else "raw"
    return [Mark(row.success, style, f"{row.policy} under {row.prompt_type}, success")]


def _success(facts: RunFacts) -> Markup:
    rows = facts.rows
    any_privileged = any(row.privileged for row in rows)
    note = "* privileged: it is shown the state and the required tools; no fair comparison."
    bound = bound_note(rows)
    chart = dot_chart(
        "Success by policy and prompt, beside the ceiling V*",
        "One row per policy and prompt type: success with its 95% interval, and V*. The table holds the numbers.",
        _labels(rows),
        [("", [_success_marks(row) for row in rows], [row.optimum.value for row in rows])],
    )
    return frame.section(
        "success",
        element(
            "p", "A dot is the share of episodes with full success. The gap to the upright tick V* was within reach."
        ),
        legend.success_legend(any_privileged),
        _scrolling(chart),
        tables.success_table(rows),
        element("p", _TRIES_AGAIN, class_="note") if any(row.tries_again for row in rows) else None,
        element("p", bound, class_="note") if bound is not None else None,
        element("p", note, class_="note") if any_privileged else None,
    )


def _losses(facts: RunFacts) -> Markup:
    rows = [row for row in facts.rows if not row.tries_again]  # others have no ceiling to lose points from
    if not rows:
        text = "Every policy may try again in fresh episodes, so there is no ceiling from which points could be lost."
        return frame.section("losses", element("p", text))
    labels = [label for label in LOSS_LABELS if any(label in row.losses for row in rows)]
    labels += sorted({label for row in rows for label in row.losses} - set(LOSS_LABELS))
    bars = []
    for row in rows:
        bar = [Segment("unavoidable", row.unavoidable, "unavoidable")]
        for label in labels:
            if label in row.losses:
                bar.append(Segment(legend.loss_style(label), row.losses[label].value, label.replace("_", " ")))
        bars.append(bar)
    chart = stacked_chart(
        "Points lost of 100, by cause",
        "One stacked bar per policy and prompt type: unavoidable points and regret by cause; beside it luck.",
        _labels(rows),
        bars,
        [row.luck for row in rows],
    )
    information = " Searching where the prompt names no tools is shown as information: a price, not a blame."
    return frame.section(
        "losses",
        element(
            "p",
            "Each message is judged by what it did to the best chance of success still open, before luck is drawn. "
            "So the points that a policy misses are unavoidable, lost by a call for the reason named, or luck.",
            information if "information" in labels else None,
        ),
        legend.losses_legend(labels),
        _scrolling(chart),
        tables.losses_table(rows, labels),
    )


def _by_task_type(facts: RunFacts) -> Markup:
    counts = Counter(task.task_type for task in facts.sums.tasks)
    if len(counts) == 1:
        return frame.section("types", element("p", f"All tasks of this run are of one type: {next(iter(counts))}."))
    shown = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_TASK_TYPES]
    groups = ordered_groups(facts.sums, *facts.order)
    parts = {
        name: [summarise_group(facts.sums, group, facts.sums.tasks_where(task_type=name)) for group in groups]
        for name in shown
    }
    charts = []
    for start in range(0, len(shown), PANELS_PER_CHART):
        names = shown[start : start + PANELS_PER_CHART]
        panels = [
            (
                f"{name} ({counts[name]:,})",
                [_success_marks(row) for row in parts[name]],
                [row.optimum.value for row in parts[name]],
            )
            for name in names
        ]
        title = f"Success by task type: {', '.join(names)}"
        text = "One panel per task type, one row per policy and prompt type: success with its 95% interval, and V*."
        charts.append(_scrolling(dot_chart(title, text, _labels(facts.rows), panels, num_columns=PANELS_PER_CHART)))
    rows = [(name, row) for name in shown for row in parts[name]]
    hidden = len(counts) - len(shown)
    more = element("p", f"{count_of(hidden, 'rarer type')} left out here, not in the totals.", class_="note")
    return frame.section(
        "types",
        legend.success_legend(any(row.privileged for row in facts.rows)),
        charts,
        element("details", element("summary", "The same as a table"), tables.task_type_table(rows)),
        more if hidden else None,
    )


def _luck(facts: RunFacts) -> Markup:
    rows = facts.rows
    marks = [
        [
            Mark(row.success, "raw-beside", "raw"),
            Mark(row.luck_adjusted, "privileged" if row.privileged else "adjusted", "luck-adjusted"),
        ]
        for row in rows
    ]
    chart = dot_chart(
        "Raw and luck-adjusted success",
        "Two dots with 95% intervals per policy and prompt type: raw above, luck-adjusted below, and V*.",
        _labels(rows),
        [("", marks, [row.optimum.value for row in rows])],
    )
    return frame.section(
        "luck",
        element(
            "p",
            "The luck of every draw is known, so it can be taken out: the adjusted score is the mean of "
            "outcome − β × luck. It estimates the same success rate with less noise. β is fitted on other tasks than "
            "those it is applied to, so the score stays unbiased; with β = 1 luck is taken out entirely. The last "
            "column says how many times the episodes the raw rate would need for an interval as narrow.",
        ),
        legend.luck_legend(),
        _scrolling(chart),
        tables.luck_table(rows),
    )


def _worst_tasks(facts: RunFacts) -> Markup:
    sums = facts.sums
    comparable = [group for group in sums.groups.values() if not group.tries_again]
    ordinary = [group for group in comparable if not group.privileged]
    groups = ordinary or comparable
    count = _total(sums, [group.count for group in groups])
    outcome = _total(sums, [group.outcome for group in groups])
    optimum = _total(sums, [group.optimum for group in groups])
    luck = _total(sums, [group.luck for group in groups])
    regret = np.divide(optimum - outcome + luck, count, out=np.zeros_like(count), where=count > 0)  # (num_tasks,)
    worst = sorted(range(len(regret)), key=lambda task: (-round(float(regret[task]), 9), sums.tasks[task].instance_id))
    rows: list[list[Child]] = []
    for task in worst[:WORST_TASKS]:
        if regret[task] < SHOWN_REGRET:
            break
        traits = sums.tasks[task]
        rows.append(
            [
                element("code", traits.instance_id, class_="id"),
                traits.task_type.replace("_", " "),
                element("span", " → ".join(traits.required_tools), class_="tools"),
                _costliest_cause(groups, task).replace("_", " "),
                format_percent(float(optimum[task] / count[task])),
                format_percent(float(outcome[task] / count[task])),
                format_percent(float(regret[task])),
            ]
        )
    if not rows:
        return frame.section("tasks", element("p", "No call cost anything on any task."))
    whose = "the policies that are not privileged" if ordinary else "all policies"
    text = f"Where calls cost most, over {whose} and all prompt types. Few episodes lie behind each line."
    return frame.section("tasks", element("p", text), tables.worst_tasks_table(rows))


def _total(sums: RunSums, vectors: Sequence[TaskVector]) -> FloatArray:
    """Return the sum of vectors over groups, shape (num_tasks,)."""
    total = np.zeros(len(sums.tasks), dtype=np.float64)
    for vector in vectors:
        total += vector.to_array(len(sums.tasks))
    return total


def _costliest_cause(groups: Sequence[GroupSums], task: int) -> str:
    costs: dict[str, float] = {}
    for group in groups:
        for label, vector in group.losses.items():
            costs[label] = costs.get(label, 0.0) + vector.get(task)
    return max(costs, key=lambda label: costs[label])


def _examples(facts: RunFacts) -> Markup:
    policies = list(dict.fromkeys(row.policy for row in facts.rows))
    chosen = [facts.examples[policy] for policy in policies]
    first = next((record["policy"] for record in chosen if not record["privileged"]), policies[0])
    text = (
        "For each policy the episode in which its calls cost most (not a typical one), or its unluckiest if none cost "
        "anything. V* is the chance of success that was still open."
    )
    episodes = [example_section(record, record["policy"] == first) for record in chosen]
    return frame.section("episodes", element("p", text), episodes)


def _scrolling(chart: Markup) -> Markup:
    return element("div", chart, class_="chart-scroll")
