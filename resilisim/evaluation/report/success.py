"""Success of every policy under every prompt, beside the ceiling: the first thing a reader looks for."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.evaluation.report import legend
from resilisim.evaluation.report.cells import PRIVILEGED_NOTE, percent, policy_cell, with_interval
from resilisim.evaluation.report.charts import Panel, dot_panels
from resilisim.evaluation.report.content import Block, Section, Table, beside_a_chart
from resilisim.evaluation.report.facts import RunFacts
from resilisim.evaluation.report.rows import labels_of, success_marks
from resilisim.evaluation.summary import GroupSummary, bound_note, overshoot_note

TRIES_AGAIN = "A policy without V* may try again in fresh episodes: it has no ceiling and no luck adjustment."


def success_section(facts: RunFacts) -> Section:
    """Return success by policy and prompt."""
    rows = facts.rows
    panel = Panel("", [success_marks(row) for row in rows], [row.optimum.value for row in rows])
    chart = dot_panels(
        "Success by policy and prompt, beside the ceiling V*",
        "One row per policy and prompt type: success with its 95% interval, and V*. The table holds the numbers.",
        labels_of(rows),
        [panel],
    )
    blocks: list[Block] = [
        "A dot is the share of episodes with full success. The gap to the upright tick V* was within reach.",
        legend.success_legend(any(row.privileged for row in rows)),
        chart,
        beside_a_chart(success_table(rows)),
    ]
    return Section("success", "Success", blocks)


def success_table(rows: Sequence[GroupSummary]) -> Table:
    """Return success, luck-adjusted success, partial success, ceiling and share of it, by policy and prompt."""
    bound = bound_note(rows)
    notes = [TRIES_AGAIN] if any(row.tries_again for row in rows) else []
    overshoot = overshoot_note(rows)
    notes += [bound] if bound is not None else []
    notes += [overshoot] if overshoot is not None else []
    notes += [PRIVILEGED_NOTE] if any(row.privileged for row in rows) else []
    return Table(
        "Success in percent of episodes, with 95% intervals clustered by task",
        (
            "policy",
            "prompt",
            "plan by",
            "episodes",
            "success",
            "luck-adjusted",
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
                with_interval(row.luck_adjusted),
                percent(row.optimum.value),
                with_interval(row.share_of_ceiling),
                f"{row.turns.value:.1f}",
            )
            for row in rows
        ],
        text_columns=3,
        notes=notes,
    )
