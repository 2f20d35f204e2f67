"""Raw success beside success with the luck taken out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilisim.evaluation.report import legend
from resilisim.evaluation.report.cells import NOTHING, policy_cell, with_interval
from resilisim.evaluation.report.charts import Mark, Panel, dot_panels
from resilisim.evaluation.report.content import Section, Table, beside_a_chart
from resilisim.evaluation.report.facts import RunFacts
from resilisim.evaluation.report.rows import labels_of
from resilisim.evaluation.summary import GroupSummary

TEXT = (
    "The luck of every draw is known, so it can be taken out: the adjusted score is the mean of outcome − β × luck. It "
    "estimates the same success rate with less noise. β is fitted on other tasks than those it is applied to, so the "
    "score stays unbiased; with β = 1 luck is taken out entirely. The last column says how many times the episodes the "
    "raw rate would need for an interval as narrow."
)


def luck_section(facts: RunFacts) -> Section | None:
    """Return raw and adjusted success, or None where no policy has any adjusted score."""
    rows = [row for row in facts.rows if not math.isnan(row.luck_adjusted.value)]
    if not rows:
        return None
    marks = [
        [
            Mark(row.success, "raw-beside", "raw"),
            Mark(row.luck_adjusted, "privileged" if row.privileged else "adjusted", "luck-adjusted"),
        ]
        for row in rows
    ]
    chart = dot_panels(
        "Raw and luck-adjusted success",
        "Two dots with 95% intervals per policy and prompt type: raw above, luck-adjusted below, and V*.",
        labels_of(rows),
        [Panel("", marks, [row.optimum.value for row in rows])],
    )
    return Section("luck", "Luck", [TEXT, legend.luck_legend(), chart, beside_a_chart(luck_table(rows))])


def luck_table(rows: Sequence[GroupSummary]) -> Table:
    """Return the raw rate beside the two luck-adjusted scores."""
    return Table(
        "Raw and luck-adjusted success in percent, with 95% intervals clustered by task",
        ("policy", "prompt", "raw", "adjusted", "fitted β", "adjusted, β = 1", "worth episodes"),
        [
            (
                policy_cell(row),
                row.prompt_type,
                with_interval(row.success),
                with_interval(row.luck_adjusted),
                NOTHING if math.isnan(row.mean_beta) else f"{row.mean_beta:.2f}",
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
        return NOTHING
    return f"{(raw / adjusted) ** 2:.1f} ×"
