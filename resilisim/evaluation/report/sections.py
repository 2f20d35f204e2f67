"""The sections of the report, from the sums of a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilisim.evaluation.accumulate import RunSums
from resilisim.evaluation.records import LOSS_LABELS, EpisodeRecord
from resilisim.evaluation.report import tables
from resilisim.evaluation.report.charts import Mark, RowLabel, Segment, dot_chart, stacked_chart
from resilisim.evaluation.report.examples import example_section
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.summary import (
    GroupSummary,
    format_interval,
    format_percent,
    ordered_groups,
    summarise,
    summarise_group,
)

MOST_TASK_TYPES = 8  # shown one by one; the rest of a run with more stands in its records
PANELS_PER_CHART = 4
WORST_TASKS = 10


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the report is about.

    Attributes:
        manifest: The run's manifest.
        sums: Sums over its episodes.
        examples: One episode per policy.
        rows: Summary of each policy under each prompt type.
    """

    manifest: Mapping[str, Any]
    sums: RunSums
    examples: Mapping[str, EpisodeRecord]
    rows: list[GroupSummary] = field(init=False)

    def __post_init__(self) -> None:
        """Summarise the groups, in the order of the command that made them."""
        object.__setattr__(self, "rows", summarise(self.sums, *self.order))

    @property
    def order(self) -> tuple[Sequence[str], Sequence[str]]:
        """Policies and prompt types in the order of the command."""
        arguments = self.manifest["arguments"]
        return arguments.get("policy_names", ()), arguments.get("prompts", ())

    @property
    def planned(self) -> int:
        """How many episodes the run has when it is finished."""
        return int(self.manifest["arguments"].get("num_episodes", self.sums.num_episodes))


def report_title(facts: RunFacts) -> str:
    """Return the title of the page."""
    policies = list(dict.fromkeys(row.policy for row in facts.rows))
    names = ", ".join(policies) if len(policies) <= 4 else f"{len(policies)} policies"
    return f"ResiliSim report: {names}" if policies else "ResiliSim report"


def report_body(facts: RunFacts) -> Markup:
    """Return everything between <body> and </body>."""
    if not facts.rows:
        return element("main", _header(facts), element("p", "No episode is finished yet.", class_="warning"))
    return element(
        "main",
        _header(facts),
        _cards(facts),
        _contents(),
        _success(facts),
        _losses(facts),
        _by_task_type(facts),
        _luck(facts),
        _worst_tasks(facts),
        _examples(facts),
        _reading(),
        _provenance(facts),
    )


def _header(facts: RunFacts) -> Markup:
    policies = len({row.policy for row in facts.rows})
    prompts = len({row.prompt_type for row in facts.rows})
    tasks = len(facts.sums.tasks)
    seeds = facts.manifest["arguments"].get("seeds", ())
    warning = None
    if facts.sums.num_episodes < facts.planned:
        warning = element(
            "p",
            f"Not finished: {facts.sums.num_episodes:,} of {facts.planned:,} episodes are here. "
            "The same command goes on from there.",
            class_="warning",
        )
    return element(
        "header",
        element("p", "ResiliSim", class_="brand"),
        element("h1", "How far from the best possible?"),
        element(
            "p",
            f"{_count(policies, 'policy', 'policies')} on {_count(tasks, 'task')} under "
            f"{_count(prompts, 'prompt type')}, {_count(len(seeds), 'seed')} each: "
            f"{_count(facts.sums.num_episodes, 'episode')}, all on the same luck. Tools fail at random by a known law, so "
            "the best success rate that any agent could reach is computed exactly, and every lost point has a cause.",
            class_="lead",
        ),
        warning,
    )


def _cards(facts: RunFacts) -> Markup:
    ordinary = [row for row in facts.rows if not row.privileged]
    ceiling = facts.rows[0].optimum
    cards = [
        _card(
            "Ceiling V*",
            f"{format_percent(ceiling.value)}%",
            f"the best that any agent can reach on these tasks; {format_percent(1 - ceiling.value)} points are "
            "out of everyone's reach",
        )
    ]
    if ordinary:
        best = max(ordinary, key=lambda row: row.success.value)
        cards.append(
            _card(
                "Highest success" if len(ordinary) > 1 else "Success",
                f"{format_percent(best.success.value)}%",
                f"{best.policy} under {best.prompt_type}, {format_interval(best.success)}",
            )
        )
        cards.append(
            _card(
                "Its share of the ceiling",
                f"{format_percent(best.share_of_ceiling.value)}%",
                f"{format_interval(best.share_of_ceiling)}; calls cost it {format_percent(best.regret.value)} points",
            )
        )
        costs = [(row.losses[label].value, label, row) for row in ordinary for label in row.losses]
        if costs:
            cost, label, row = max(costs, key=lambda entry: entry[0])
            cards.append(
                _card(
                    "Costliest cause",
                    f"{format_percent(cost)} points",
                    f"{row.policy} under {row.prompt_type}: {LOSS_LABELS.get(label, label)}",
                )
            )
    return element("dl", cards, class_="cards")


def _card(name: str, figure: str, detail: str) -> Markup:
    return element(
        "div",
        element("dt", name),
        element("dd", element("span", figure, class_="figure"), element("span", detail, class_="detail")),
        class_="card",
    )


CONTENTS = (
    ("success", "Success"),
    ("losses", "Where points were lost"),
    ("types", "By task type"),
    ("luck", "Luck"),
    ("tasks", "Worst tasks"),
    ("episodes", "Episodes"),
    ("reading", "How to read this"),
    ("provenance", "Provenance"),
)


def _contents() -> Markup:
    return element("nav", [element("a", name, href=f"#{target}") for target, name in CONTENTS], aria_label="Sections")


def _section(target: str, *content: Child) -> Markup:
    return element("section", element("h2", dict(CONTENTS)[target]), *content, id=target)


def _labels(rows: Sequence[GroupSummary]) -> list[RowLabel]:
    several_prompts = len({row.prompt_type for row in rows}) > 1
    labels = []
    for number, row in enumerate(rows):
        repeated = number > 0 and rows[number - 1].policy == row.policy
        labels.append(
            RowLabel(
                "" if repeated else row.policy,
                row.prompt_type if several_prompts else "",
                row.privileged,
                f"{row.policy} under {row.prompt_type}" + (" (privileged: sees the state)" if row.privileged else ""),
            )
        )
    return labels


def _success_marks(row: GroupSummary) -> list[Mark]:
    style = "privileged" if row.privileged else "raw"
    return [Mark(row.success, style, f"{row.policy} under {row.prompt_type}, success")]


def _success(facts: RunFacts) -> Markup:
    rows = facts.rows
    return _section(
        "success",
        element(
            "p", "Dots are the share of episodes with full success, bars their 95% intervals. The upright tick is V*."
        ),
        _dot_legend(any(row.privileged for row in rows)),
        _scrolling(
            dot_chart(
                "Success by policy and prompt, beside the ceiling V*",
                "One row per policy and prompt type: success rate with its 95% interval, and V*. The table holds the numbers.",
                _labels(rows),
                [("", [_success_marks(row) for row in rows], [row.optimum.value for row in rows])],
            )
        ),
        tables.success_table(rows),
        _privileged_note(rows),
    )


def _losses(facts: RunFacts) -> Markup:
    rows = facts.rows
    labels = [label for label in LOSS_LABELS if any(label in row.losses for row in rows)]
    labels += sorted({label for row in rows for label in row.losses} - set(LOSS_LABELS))
    bars = []
    for row in rows:
        bar = [Segment("unavoidable", row.unavoidable, "unavoidable")]
        bar += [
            Segment(_style(label), row.losses[label].value, label.replace("_", " "))
            for label in labels
            if label in row.losses
        ]
        bars.append(bar)
    legend: list[Child] = [_legend_item("unavoidable", "unavoidable", "what no agent could have had: 1 − V*")]
    legend += [_legend_item(_style(label), label.replace("_", " "), LOSS_LABELS.get(label)) for label in labels]
    legend.append(_legend_item("luck", "luck", "what the draws brought, with mean zero"))
    return _section(
        "losses",
        element(
            "p",
            "Each message is judged by what it did to the best chance of success still open, before luck is drawn. So the "
            "points that a policy misses are unavoidable, lost by a call for the reason named, or luck.",
            " Searching where the prompt names no tools is shown as information: a price, not a blame."
            if "information" in labels
            else None,
        ),
        element("ul", legend, class_="legend"),
        _scrolling(
            stacked_chart(
                "Points lost of 100, by cause",
                "One stacked bar per policy and prompt type: unavoidable points and regret by cause; luck apart, with sign.",
                _labels(rows),
                bars,
                [row.luck for row in rows],
            )
        ),
        tables.losses_table(rows, labels),
    )


def _by_task_type(facts: RunFacts) -> Markup | None:
    counts = Counter(task.task_type for task in facts.sums.tasks)
    if len(counts) < 2:
        only = next(iter(counts))
        return _section("types", element("p", f"All tasks of this run are of one type: {only}."))
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
        charts.append(_scrolling(dot_chart(title, text, _labels(facts.rows), panels)))
    table = tables.table(
        "Success in percent by task type, with 95% intervals clustered by task",
        (
            "task type",
            "policy",
            "prompt",
            "tasks",
            "episodes",
            "success",
            "ceiling V*",
            "luck-adjusted",
            "costliest cause",
        ),
        [
            (
                name,
                tables.policy_cell(row),
                row.prompt_type,
                f"{row.num_tasks:,}",
                f"{row.num_episodes:,}",
                tables.with_interval(row.success),
                format_percent(row.optimum.value),
                tables.with_interval(row.luck_adjusted),
                (row.biggest_loss or "none").replace("_", " "),
            )
            for name in shown
            for row in parts[name]
        ],
        text_columns=3,
    )
    hidden = len(counts) - len(shown)
    more = element("p", f"{_count(hidden, 'rarer type')} left out here, not in the totals.", class_="note")
    return _section(
        "types",
        charts,
        element("details", element("summary", "The same as a table"), table),
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
    return _section(
        "luck",
        element(
            "p",
            "The luck of every draw is known, so it can be taken out: the adjusted score is the mean of outcome − β × luck. "
            "It estimates the same success rate with less noise. β is fitted on other tasks than those it is applied to, so "
            "the score stays unbiased; β = 1 takes luck out entirely. The last column says how many times the episodes the "
            "raw rate would need for an interval as narrow.",
        ),
        element(
            "ul",
            element("li", _dot_symbol("raw-beside"), "raw success"),
            element("li", _dot_symbol("adjusted"), "luck-adjusted, with fitted β"),
            element("li", _ceiling_symbol(), "ceiling V*"),
            class_="legend",
        ),
        _scrolling(
            dot_chart(
                "Raw and luck-adjusted success",
                "Two dots with 95% intervals per policy and prompt type: raw success above, luck-adjusted below, and V*.",
                _labels(rows),
                [("", marks, [row.optimum.value for row in rows])],
            )
        ),
        tables.luck_table(rows),
    )


def _worst_tasks(facts: RunFacts) -> Markup:
    sums = facts.sums
    num_tasks = len(sums.tasks)
    ordinary = [group for group in sums.groups.values() if not group.privileged]
    groups = ordinary or list(sums.groups.values())
    count = sum((group.count.to_array(num_tasks) for group in groups), np.zeros(num_tasks))
    outcome = sum((group.outcome.to_array(num_tasks) for group in groups), np.zeros(num_tasks))
    optimum = sum((group.optimum.to_array(num_tasks) for group in groups), np.zeros(num_tasks))
    luck = sum((group.luck.to_array(num_tasks) for group in groups), np.zeros(num_tasks))
    regret = np.divide(optimum - outcome + luck, count, out=np.zeros(num_tasks), where=count > 0)  # (num_tasks,)
    worst = sorted(range(num_tasks), key=lambda task: (-round(float(regret[task]), 9), sums.tasks[task].instance_id))
    rows: list[list[Child]] = []
    for task in worst[:WORST_TASKS]:
        if count[task] == 0 or regret[task] <= 0.0:
            continue
        facts_of_task = sums.tasks[task]
        causes = Counter[str]()
        for group in groups:
            for label, vector in group.losses.items():
                causes[label] += vector.to_array(num_tasks)[task]
        label, _ = causes.most_common(1)[0]
        rows.append(
            [
                element("code", facts_of_task.instance_id),
                facts_of_task.task_type.replace("_", " "),
                element("span", " → ".join(facts_of_task.required_tools), class_="tools"),
                label.replace("_", " "),
                format_percent(float(optimum[task] / count[task])),
                format_percent(float(outcome[task] / count[task])),
                format_percent(float(regret[task])),
            ]
        )
    if not rows:
        return _section("tasks", element("p", "No call cost anything on any task."))
    whose = "the policies that are not privileged" if ordinary else "all policies"
    return _section(
        "tasks",
        element("p", f"Where calls cost most, over {whose} and all prompt types. Few episodes lie behind each line."),
        tables.table(
            "The tasks with the most points lost by calls, in percent of their episodes",
            ("task", "type", "required tools, in order", "costliest cause", "ceiling V*", "success", "lost by calls"),
            rows,
            text_columns=4,
        ),
    )


def _examples(facts: RunFacts) -> Markup:
    policies = list(dict.fromkeys(row.policy for row in facts.rows))
    chosen = [facts.examples[policy] for policy in policies if policy in facts.examples]
    first = next((record["policy"] for record in chosen if not record["privileged"]), policies[0])
    return _section(
        "episodes",
        element(
            "p",
            "For each policy the episode in which its calls cost most (not a typical one), or its unluckiest if none cost "
            "anything. V* is the chance of success that was still open.",
        ),
        [example_section(record, record["policy"] == first) for record in chosen],
    )


READING = (
    (
        "V* (ceiling)",
        "The highest probability of full success that any agent can have from a state, if it knows the law, the required "
        "tools and what happened so far, but not the luck to come. Solved exactly for every state.",
    ),
    ("Q*", "The same, if a given message is sent first and play is best from there on."),
    ("regret", "V* − Q*: what a message gave away before its luck was drawn. Never negative; 0 for a best message."),
    ("luck", "V* after the message − Q*: what the draw brought. Its mean is zero for every agent."),
    ("identity", "Of each episode: 1 − outcome = (1 − V* of the start) + sum of regret − sum of luck."),
    (
        "intervals",
        "95%, Student's t, clustered by task: episodes of one task resemble each other and count as one unit of evidence. "
        "Where every episode succeeded, or none, the interval is Clopper and Pearson's over tasks. None with a single task.",
    ),
    (
        "full success",
        "All required tools succeeded, their first successes in the required order, a required output tool among them if "
        "there is one, and completion was signalled.",
    ),
    (
        "privileged *",
        "A policy that is shown the state and the required tools. It marks the ceiling and is no fair rival.",
    ),
)


def _reading() -> Markup:
    causes = [(label.replace("_", " "), f"Points lost by {text}.") for label, text in LOSS_LABELS.items()]
    return _section(
        "reading",
        _keys(READING),
        element("details", element("summary", "All causes of lost points"), _keys(causes)),
    )


def _provenance(facts: RunFacts) -> Markup:
    manifest = facts.manifest
    arguments = manifest["arguments"]
    entries = [(name, _as_text(value)) for name, value in sorted(arguments.items())]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest.get("versions", {}).items()))
    entries += [
        ("hash of these arguments", str(manifest["hash"])),
        ("versions", versions),
        ("platform", str(manifest.get("platform", ""))),
        ("begun", str(manifest.get("created", ""))),
        ("largest error of the identity", f"{facts.sums.largest_identity_error:.1e}"),
    ]
    return element(
        "section",
        element("h2", "Provenance"),
        element("p", "Everything that decides these results. The same arguments and versions give the same episodes."),
        _keys(entries),
        element(
            "footer",
            "Made by ResiliSim. This file needs no network; every number in it can be computed again from episodes.jsonl.",
        ),
        id="provenance",
    )


def _as_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(entry)}" for name, entry in value.items())
    if isinstance(value, list):
        if len(value) > 12 and value == list(range(len(value))):
            return f"0 to {len(value) - 1:,}"
        texts = [_as_text(entry) for entry in value]
        return ", ".join(texts) if len(texts) <= 40 else f"{', '.join(texts[:40])} and {len(texts) - 40:,} more"
    return value if isinstance(value, str) else json.dumps(value)


def _keys(entries: Sequence[tuple[str, str]]) -> Markup:
    return element("dl", [[element("dt", name), element("dd", text)] for name, text in entries], class_="keys")


def _scrolling(chart: Markup) -> Markup:
    return element("div", chart, class_="chart-scroll")


def _style(label: str) -> str:
    return label.replace("_", "-") if label in LOSS_LABELS else "other-loss"


def _legend_item(style: str, name: str, explanation: str | None) -> Markup:
    square = element("rect", x=0, y=0, width=13, height=13, rx=2, class_=f"bar {style}")
    return element("li", _symbol(13, square), name, title=explanation)


def _dot_legend(any_privileged: bool) -> Markup:
    return element(
        "ul",
        element("li", _dot_symbol("raw"), "success, 95% interval"),
        element("li", _dot_symbol("privileged"), "privileged policy *") if any_privileged else None,
        element("li", _ceiling_symbol(), "ceiling V*"),
        class_="legend",
    )


def _dot_symbol(style: str) -> Markup:
    line = element("line", x1=2, x2=28, y1=6.5, y2=6.5, class_=f"interval {style}")
    return _symbol(30, line, element("circle", cx=15, cy=6.5, r=4.5, class_=f"dot {style}"))


def _ceiling_symbol() -> Markup:
    return _symbol(6, element("line", x1=3, x2=3, y1=0, y2=13, class_="ceiling"))


def _symbol(width: int, *content: Child) -> Markup:
    return element("svg", *content, width=width, height=13, viewBox=f"0 0 {width} 13", aria_hidden="true")


def _privileged_note(rows: Sequence[GroupSummary]) -> Markup | None:
    if not any(row.privileged for row in rows):
        return None
    return element(
        "p", "* privileged: it is shown the state and the required tools; no fair comparison.", class_="note"
    )


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
