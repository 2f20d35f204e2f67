"""The tables of the report: the same numbers as the charts, for reading off and for those who cannot see charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilisim.evaluation.report.examples import signed_points
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.statistics import Estimate
from resilisim.evaluation.summary import GroupSummary, format_interval, format_percent

MOST_COLUMNS = 8  # of policies beside each other


def table(
    caption: str,
    headings: Sequence[Child],
    rows: Sequence[Sequence[Child]],
    text_columns: int = 1,
    style: str | None = None,
) -> Markup:
    """Return a table whose first `text_columns` columns are texts and all others numbers."""

    def kind(column: int) -> str | None:
        return "number" if column >= text_columns else None

    head = element(
        "tr", [element("th", text, scope="col", class_=kind(column)) for column, text in enumerate(headings)]
    )
    body = [
        element(
            "tr",
            [
                element("th", cell, scope="row") if column == 0 else element("td", cell, class_=kind(column))
                for column, cell in enumerate(row)
            ],
        )
        for row in rows
    ]
    return element(
        "div",
        element("table", element("caption", caption), element("thead", head), element("tbody", body), class_=style),
        class_="scroll",
    )


def policy_cell(row: GroupSummary) -> Child:
    """Return a policy's name, with the mark of privileged ones."""
    badge = element("span", "*", class_="badge", title="privileged: sees the state") if row.privileged else None
    return [row.policy, " " if badge else None, badge]


def with_interval(estimate: Estimate, signed: bool = False) -> Child:
    """Return an estimate in percent with its interval behind it in smaller print."""
    value = signed_points(estimate.value) if signed and not math.isnan(estimate.value) else None
    interval = format_interval(estimate).replace("-", "−")
    plain = format_percent(estimate.value).replace("-", "−")
    return [value or plain, " ", element("span", interval, class_="interval-text")]


def success_table(rows: Sequence[GroupSummary]) -> Markup:
    """Return success, partial success, ceiling and share of it, for each policy and prompt."""
    return table(
        "Success in percent of episodes, with 95% intervals clustered by task",
        (
            "policy",
            "prompt",
            "plan by",
            "episodes",
            "success",
            "partial success",
            "ceiling V*",
            "share of ceiling",
            "messages",
        ),
        [
            (
                policy_cell(row),
                row.prompt_type,
                row.planner or "–",
                f"{row.num_episodes:,}",
                with_interval(row.success),
                with_interval(row.partial_success),
                format_percent(row.optimum.value),
                with_interval(row.share_of_ceiling),
                f"{row.turns.value:.1f}",
            )
            for row in rows
        ],
        text_columns=3,
    )


def losses_table(rows: Sequence[GroupSummary], labels: Sequence[str]) -> Markup:
    """Return the points lost by cause, for each policy and prompt; causes are rows while policies fit beside them."""
    caption = "Points lost of 100 episodes: not successful = unavoidable + the causes − luck (95% intervals)"
    causes: list[tuple[str, list[Child]]] = [
        ("not successful", [format_percent(1.0 - row.success.value) for row in rows]),
        ("unavoidable", [format_percent(row.unavoidable) for row in rows]),
    ]
    for label in labels:
        cells = [with_interval(row.losses[label]) if label in row.losses else "–" for row in rows]
        causes.append((label.replace("_", " "), cells))
    causes.append(("luck", [with_interval(row.luck, signed=True) for row in rows]))
    if len(rows) <= MOST_COLUMNS:
        prompt = [element("span", row.prompt_type, class_="prompt-name") for row in rows]
        headings = ["", *([policy_cell(row), name] for row, name in zip(rows, prompt, strict=True))]
        return table(caption, headings, [[name, *cells] for name, cells in causes], style="stacked")
    body: list[list[Child]] = [
        [policy_cell(row), row.prompt_type, *(cells[number] for _, cells in causes)] for number, row in enumerate(rows)
    ]
    headings = ["policy", "prompt", *(name for name, _ in causes)]
    return table(caption, headings, body, text_columns=2, style="stacked")


def luck_table(rows: Sequence[GroupSummary]) -> Markup:
    """Return the raw rate beside the two luck-adjusted scores."""
    return table(
        "Raw and luck-adjusted success in percent, with 95% intervals clustered by task",
        ("policy", "prompt", "raw", "adjusted", "fitted β", "adjusted, β = 1", "worth episodes"),
        [
            (
                policy_cell(row),
                row.prompt_type,
                with_interval(row.success),
                with_interval(row.luck_adjusted),
                "–" if math.isnan(row.mean_beta) else f"{row.mean_beta:.2f}",
                with_interval(row.luck_adjusted_beta_1),
                _episodes_saved(row),
            )
            for row in rows
        ],
        text_columns=2,
    )


def _episodes_saved(row: GroupSummary) -> str:
    """How many times the episodes a raw rate would need for the interval of the adjusted one."""
    raw, adjusted = row.success.standard_error, row.luck_adjusted.standard_error
    if math.isnan(raw) or math.isnan(adjusted) or raw <= 0.0 or adjusted <= 0.0:
        return "–"
    return f"{(raw / adjusted) ** 2:.1f} ×"


def task_type_table(rows: Sequence[tuple[str, GroupSummary]]) -> Markup:
    """Return success by task type, for each policy and prompt."""
    return table(
        "Success in percent by task type, with 95% intervals clustered by task",
        (
            "task type",
            "policy",
            "prompt",
            "costliest cause",
            "tasks",
            "episodes",
            "success",
            "ceiling V*",
            "luck-adjusted",
        ),
        [
            (
                name.replace("_", " "),
                policy_cell(row),
                row.prompt_type,
                (row.biggest_loss or "none").replace("_", " "),
                f"{row.num_tasks:,}",
                f"{row.num_episodes:,}",
                with_interval(row.success),
                format_percent(row.optimum.value),
                with_interval(row.luck_adjusted),
            )
            for name, row in rows
        ],
        text_columns=4,
        style="stacked",
    )


def worst_tasks_table(rows: Sequence[Sequence[Child]]) -> Markup:
    """Return the tasks on which calls cost most."""
    return table(
        "The tasks with the most points lost by calls, in percent of their episodes",
        ("task", "type", "required tools, in order", "costliest cause", "ceiling V*", "success", "lost by calls"),
        rows,
        text_columns=4,
    )
