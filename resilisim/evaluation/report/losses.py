"""Where points were lost: by cause for each policy and prompt, then by flaw, task type, tool and call."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.evaluation.records import LOSS_LABELS
from resilisim.evaluation.report import legend
from resilisim.evaluation.report.cells import NOTHING, REGRET_ADDS_UP, percent, plain, policy_cell, with_interval
from resilisim.evaluation.report.content import Block, Cell, CellLike, Section, Table, beside_a_chart
from resilisim.evaluation.report.facts import RunFacts
from resilisim.evaluation.report.loss_chart import Segment, stacked_chart
from resilisim.evaluation.report.loss_totals import costliest_calls, totals_folds
from resilisim.evaluation.report.rows import labels_of
from resilisim.evaluation.summary import GroupSummary

MOST_COLUMNS = 8  # of policies beside each other
TEXT = (
    "Each message is judged by what it did to the best chance of success still open, before luck is drawn. So the "
    "points that a policy misses are unavoidable, lost by a call for the reason named, or luck."
)
INFORMATION = " Searching where the prompt names no tools is shown as information: a price, not a blame."


def losses_section(facts: RunFacts) -> Section:
    """Return the lost points of a run."""
    title = "Where points were lost"
    rows = [row for row in facts.rows if not row.tries_again]  # others have no ceiling to lose points from
    if not rows:
        text = "Every policy may try again in fresh episodes, so there is no ceiling from which points could be lost."
        return Section("losses", title, [text])
    labels = [label for label in LOSS_LABELS if any(label in row.losses for row in rows)]
    labels += sorted({label for row in rows for label in row.losses} - set(LOSS_LABELS))
    chart = stacked_chart(
        "Points lost of 100, by cause",
        "One stacked bar per policy and prompt type: unavoidable points and regret by cause; beside it luck.",
        labels_of(rows),
        [loss_bar(row, labels) for row in rows],
        [row.luck for row in rows],
    )
    blocks: list[Block] = [
        f"{TEXT} {REGRET_ADDS_UP}" + (INFORMATION if "information" in labels else ""),
        legend.losses_legend(labels),
        chart,
        beside_a_chart(losses_table(rows, labels)),
        *totals_folds(facts),
        *costliest_calls(facts),
    ]
    return Section("losses", title, blocks)


def loss_bar(row: GroupSummary, labels: Sequence[str]) -> list[Segment]:
    """Return the parts of a row's bar: with luck they add up to what the policy missed."""
    bar = [Segment("unavoidable", row.unavoidable, "unavoidable")]
    for label in labels:
        if label in row.losses:
            bar.append(Segment(legend.loss_style(label), row.losses[label].value, plain(label)))
    return bar


def losses_table(rows: Sequence[GroupSummary], labels: Sequence[str]) -> Table:
    """Return the points lost by cause, for each policy and prompt; causes are rows while policies fit beside them."""
    caption = "Points lost of 100 episodes: not successful = unavoidable + the causes − luck (95% intervals)"
    causes: list[tuple[str, list[CellLike]]] = [
        ("not successful", [percent(1.0 - row.success.value) for row in rows]),
        ("unavoidable", [percent(row.unavoidable) for row in rows]),
    ]
    for label in labels:
        cells: list[CellLike] = [with_interval(row.losses[label]) if label in row.losses else NOTHING for row in rows]
        causes.append((plain(label), cells))
    causes.append(("luck", [with_interval(row.luck, signed=True) for row in rows]))
    if len(rows) <= MOST_COLUMNS:
        headings: list[CellLike] = [""]
        for row in rows:
            name = policy_cell(row)
            headings.append(Cell(name.text, detail=row.prompt_type, mark=name.mark, mark_meaning=name.mark_meaning))
        return Table(caption, headings, [[name, *cells] for name, cells in causes], is_stacked=True)
    body = [
        [policy_cell(row), row.prompt_type, *(cells[number] for _, cells in causes)] for number, row in enumerate(rows)
    ]
    headings = ["policy", "prompt", *(name for name, _ in causes)]
    return Table(caption, headings, body, text_columns=2, is_stacked=True)
