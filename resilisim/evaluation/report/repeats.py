"""Several episodes of one task: how often any of k succeeds, and how often all k do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from resilisim.errors import count_of
from resilisim.evaluation.report.charts import legend, line_symbol, series_legend, series_style
from resilisim.evaluation.report.charts.lines import NO_ESTIMATE, LinePanel, Series, line_charts
from resilisim.evaluation.report.content import (
    NOTHING,
    PRIVILEGED_NOTE,
    Block,
    CellLike,
    Paragraph,
    Section,
    Table,
    beside_a_chart,
    policy_cell,
    with_interval,
)
from resilisim.evaluation.report.rows import policies_of
from resilisim.evaluation.table.facts import RunFacts
from resilisim.evaluation.table.summary import GroupSummary
from resilisim.statistics import Estimate

MOST_TRIES = 16  # shown one by one; beyond, only powers of two
MOST_DRAWN = 4  # policies in a chart
MOST_PROMPTS = 4  # with a chart


def repeats_section(facts: RunFacts) -> Section | None:
    """Return pass@k and pass^k, or None where no task has several episodes of one policy and prompt."""
    order = policies_of(facts)
    rows = sorted((row for row in facts.rows if not row.tries_again), key=lambda row: order.index(row.policy))
    curves = [(row, _curve(facts, row)) for row in rows]
    curves = [(row, curve) for row, curve in curves if len(curve) > 1]
    if not curves:
        return None
    tries = sorted({number for _, curve in curves for number in curve})
    text = (
        "pass@k: the chance that at least one of k episodes of a task succeeds; pass^k: the chance that all k do. Both "
        "are raw: unbiased estimates from the episodes of each task, averaged over tasks (Chen et al., 2021; Yao et "
        "al., 2024)."
    )
    blocks: list[Block] = [text, *_charts(curves, tries), beside_a_chart(repeats_table(curves, tries))]
    return Section("repeats", "Repeats: pass@k and pass^k", blocks)


def repeats_table(
    curves: Sequence[tuple[GroupSummary, dict[int, tuple[Estimate, Estimate]]]], tries: Sequence[int]
) -> Table:
    """Return pass@k and pass^k for each policy and prompt."""
    rows: list[list[CellLike]] = []
    for row, curve in curves:
        for side, name in enumerate(("pass@k", "pass^k")):
            cells: list[CellLike] = [policy_cell(row), row.prompt_type, name]
            for number in tries:
                cells.append(with_interval(curve[number][side]) if number in curve else NOTHING)
            rows.append(cells)
    return Table(
        "pass@k and pass^k in percent of tasks, with 95% intervals over tasks",
        ("policy", "prompt", "", *(f"k = {number}" for number in tries)),
        rows,
        text_columns=3,
        is_stacked=True,
        notes=(PRIVILEGED_NOTE,) if any(row.privileged for row, _ in curves) else (),
    )


def _charts(
    curves: Sequence[tuple[GroupSummary, dict[int, tuple[Estimate, Estimate]]]], tries: Sequence[int]
) -> list[Block]:
    """Return one chart per prompt type."""
    prompts = list(dict.fromkeys(row.prompt_type for row, _ in curves))
    drawn = list(dict.fromkeys(row.policy for row, _ in curves))[:MOST_DRAWN]
    panels = []
    for prompt in prompts[:MOST_PROMPTS]:
        lines = []
        for row, curve in curves:
            if row.prompt_type != prompt or row.policy not in drawn:
                continue
            for side, name in enumerate(("pass@k", "pass^k")):
                estimates = [curve[number][side] if number in curve else NO_ESTIMATE for number in tries]
                style = series_style(drawn.index(row.policy))
                lines.append(Series(f"{row.policy}, {name}", style, estimates, hollow=side == 1))
        panels.append(LinePanel(f"pass@k and pass^k under {prompt}", f"{prompt} prompt", lines))
    description = "Over the number of episodes k: full lines pass@k, dashed lines pass^k, with 95% intervals."
    blocks: list[Block] = [
        legend(*series_legend(drawn), (line_symbol("line"), "pass@k"), (line_symbol("line dashed"), "pass^k")),
        line_charts(description, [str(number) for number in tries], "k episodes of a task", panels),
    ]
    hidden_policies = len({row.policy for row, _ in curves}) - len(drawn)
    hidden_prompts = len(prompts) - len(panels)
    hidden = [count_of(hidden_policies, "more policy", "more policies")] if hidden_policies else []
    hidden += [count_of(hidden_prompts, "more prompt type")] if hidden_prompts else []
    if hidden:
        blocks.append(Paragraph(f"{' and '.join(hidden)} in the table only.", "note"))
    return blocks


def _curve(facts: RunFacts, row: GroupSummary) -> dict[int, tuple[Estimate, Estimate]]:
    """Return k -> (pass@k, pass^k) for the k that every task of a group allows."""
    from resilisim.statistics import pass_at_k, pass_hat_k

    group = facts.table.group(row.policy, row.prompt_type)
    episodes = group.by_task(group.count)
    present = episodes > 0
    episodes, successes = episodes[present], group.by_task(group.outcome)[present]
    most = int(np.min(episodes)) if len(episodes) else 0
    return {
        number: (pass_at_k(successes, episodes, number), pass_hat_k(successes, episodes, number))
        for number in _numbers(most)
    }


def _numbers(most: int) -> list[int]:
    """Return 1 to `most`, above `MOST_TRIES` only powers of two and the last."""
    return [
        number for number in range(1, most + 1) if number <= MOST_TRIES or number & (number - 1) == 0 or number == most
    ]
