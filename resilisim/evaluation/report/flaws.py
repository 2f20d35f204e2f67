"""Robustness to flawed plans: optimal against flawed prompts, and every flaw at every severity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from resilisim.evaluation.accumulate import GroupSums
from resilisim.evaluation.report import legend
from resilisim.evaluation.report.cells import PRIVILEGED_NOTE, name_cell, plain, with_interval
from resilisim.evaluation.report.charts import Mark, Panel, RowLabel, dot_panels
from resilisim.evaluation.report.content import Block, CellLike, Fold, Paragraph, Section, Table, beside_a_chart
from resilisim.evaluation.report.drawing import series_style
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.levels import MEANS_HAVE_NONE, proportion
from resilisim.evaluation.report.obedience import FlawCosts, flaw_costs
from resilisim.evaluation.report.pooling import Pool, Rate, combination, difference, level_rates, mean_of, pool
from resilisim.evaluation.report.published import LEVEL_NAMES, flawed_reference
from resilisim.evaluation.report.rows import PromptPools
from resilisim.statistics import Estimate
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES

MOST_DRAWN = 6  # policies in one chart
GRID = (
    "Success by flaw and severity, luck taken out, between two exact marks: what following the plan to the letter "
    "brings (obey), and what an agent that does not believe it can still reach (deviate, V*)."
)
OPTIMAL, FLAWED = "optimal", "flawed"

# Flaw type and severity, or those and the method.
Key = tuple[str, ...]


def flaws_section(facts: RunFacts, pools: PromptPools) -> Section | None:
    """Return what flawed plans did to success, or None if no plan was flawed."""
    if FLAWED not in pools.prompts:
        return None
    blocks = _grid(facts, pools)
    drops = drops_table(facts, pools)
    if drops is not None:
        blocks += [Fold("Optimal against flawed plans", [drops]) if blocks else drops, flawed_reference()]
    return Section("flaws", "Flawed plans", blocks)


def drops_table(facts: RunFacts, pools: PromptPools) -> Table | None:
    """Return levels under optimal and flawed prompts and the drop from one to the other; None without both."""
    pairs = {policy: (pools.get(policy, OPTIMAL), pools.get(policy, FLAWED)) for policy in pools.policies}
    both = {policy: (sound, flawed) for policy, (sound, flawed) in pairs.items() if sound and flawed}
    if not both:
        return None
    num_tasks = len(facts.sums.tasks)
    rows: list[list[CellLike]] = []
    for policy, (sound, flawed) in both.items():
        cells: list[CellLike] = [name_cell(policy, pools.is_privileged(policy))]
        for entry in (sound, flawed):
            cells += [with_interval(proportion(rate)) for rate in level_rates(entry.group, num_tasks)]
        cells.append(with_interval(difference(sound.success, flawed.success), signed=True))
        cells.append(with_interval(difference(sound.adjusted, flawed.adjusted), signed=True))
        rows.append(cells)
    ordinary = [both[policy] for policy in both if not pools.is_privileged(policy)]
    num_starred = len(both) - len(ordinary)
    notes = [PRIVILEGED_NOTE] if num_starred else []
    notes.append(
        "The drop is the difference between two means over the same tasks, seeds and luck; its interval takes a task "
        "as the unit. The luck-adjusted drop estimates the same with less noise."
    )
    if num_tasks < 2:
        notes.append(MEANS_HAVE_NONE)
    if len(ordinary) > 1:
        rows.append([*_mean_cells(ordinary, num_tasks, num_starred)])
    return Table(
        "Optimal against flawed plans in percent of episodes, the drop in points, with 95% intervals clustered by task",
        ("policy", *LEVEL_NAMES * 2, "drop", "luck-adjusted drop"),
        rows,
        groups=(("", 1), (OPTIMAL, 3), (FLAWED, 3), ("", 2)),
        is_stacked=True,
        notes=notes,
        summary_rows=1 if len(ordinary) > 1 else 0,
    )


def _mean_cells(pairs: Sequence[tuple[Pool, Pool]], num_tasks: int, num_starred: int) -> list[CellLike]:
    share = 1.0 / len(pairs)
    name = f"mean of {count_of(len(pairs), 'policy', 'policies')}"
    cells: list[CellLike] = [f"{name} without *" if num_starred else name]
    for side in (0, 1):
        for level in range(len(LEVEL_NAMES)):
            rates = [level_rates(pair[side].group, num_tasks)[level] for pair in pairs]
            cells.append(with_interval(mean_of(rates)))
    raw: list[tuple[float, Rate]] = []
    adjusted: list[tuple[float, Rate]] = []
    for sound, flawed in pairs:
        raw += [(share, sound.success), (-share, flawed.success)]
        adjusted += [(share, sound.adjusted), (-share, flawed.adjusted)]
    return [*cells, with_interval(combination(raw), signed=True), with_interval(combination(adjusted), signed=True)]


def _grid(facts: RunFacts, pools: PromptPools) -> list[Block]:
    """Return the chart of flaws and severities with its tables."""
    parts = flaw_pools(facts)
    if not parts:
        return []
    costs = flaw_costs(facts)
    cells = sorted({key for _, key in parts}, key=_place)
    drawn = _drawn(pools)
    flaws = list(dict.fromkeys(flaw for flaw, _ in cells))
    severities = [severity for severity in SEVERITIES if any(key[1] == severity for key in cells)]
    panels = []
    for severity in severities:
        marks, ceilings, references = [], [], []
        for flaw in flaws:
            found = {policy: parts.get((policy, (flaw, severity))) for policy in drawn}
            marks.append(
                [
                    Mark(_adjusted(entry), series_style(number), f"{policy}, {plain(flaw)} {severity}, success")
                    for number, (policy, entry) in enumerate(found.items())
                    if entry is not None
                ]
            )
            ceilings.append(costs.deviate((flaw, severity)).value)
            references.append(costs.obey((flaw, severity)).value)
        panels.append(Panel(f"{severity} flaws", marks, ceilings, references, "obey: following the plan to the letter"))
    labels = [RowLabel(plain(flaw), "", False, plain(flaw)) for flaw in flaws]
    chart = dot_panels(
        "Success by flaw and severity",
        "One row per flaw, one panel per severity: luck-adjusted success of each policy with its 95% interval, what "
        "following the flawed plan to the letter brings, and V*, what can be reached without believing it.",
        labels,
        panels,
        num_columns=len(panels),
    )
    blocks: list[Block] = [
        GRID,
        legend.flaws_legend(drawn, costs.is_known),
        chart,
    ]
    if len(drawn) < len(pools.policies):
        hidden = len(pools.policies) - len(drawn)
        blocks.append(Paragraph(f"{count_of(hidden, 'more policy', 'more policies')} in the table only.", "note"))
    blocks.append(beside_a_chart(flaws_table(parts, costs, pools)))
    by_method = flaw_pools(facts, by_method=True)
    if len(by_method) > len(parts):
        blocks.append(Fold("By method of the flaw", [flaws_table(by_method, costs, pools)]))
    return blocks


def _adjusted(entry: Pool) -> Estimate:
    """Return luck-adjusted success, or raw success where there is none."""
    summary = entry.summary
    return summary.success if math.isnan(summary.luck_adjusted.value) else summary.luck_adjusted


def flaws_table(parts: Mapping[tuple[str, Key], Pool], costs: FlawCosts, pools: PromptPools) -> Table:
    """Return success by flaw and severity (and method), beside the exact chances of obeying and deviating."""
    keys = sorted({key for _, key in parts}, key=_place)
    with_method = any(len(key) == 3 for key in keys)
    rows: list[list[CellLike]] = []
    for key in keys:
        exact = [with_interval(costs.obey(key)), with_interval(costs.deviate(key))]
        for policy in pools.policies:
            found = parts.get((policy, key))
            if found is None:
                continue
            row = found.summary
            rows.append(
                [
                    *(plain(name) for name in (key[0], *key[2:], key[1])),
                    name_cell(policy, pools.is_privileged(policy)),
                    f"{row.num_tasks:,}",
                    f"{row.num_episodes:,}",
                    with_interval(row.success),
                    with_interval(row.luck_adjusted),
                    *exact,
                ]
            )
    headings = ("flaw", *(("method",) if with_method else ()), "severity", "policy")
    return Table(
        "Success by flaw and severity, in percent of episodes, with 95% intervals clustered by task; obey and deviate "
        "are exact, and their intervals are over tasks",
        (*headings, "tasks", "episodes", "success", "luck-adjusted", "obey", "deviate (V*)"),
        rows,
        text_columns=len(headings),
        is_stacked=True,
        notes=costs.notes,
    )


def flaw_pools(facts: RunFacts, by_method: bool = False) -> dict[tuple[str, Key], Pool]:
    """Return the episodes under flawed prompts by policy and (flaw, severity), or also by method."""
    groups: dict[tuple[str, Key], list[GroupSums]] = {}
    for (policy, flaw, severity, method), group in facts.breakdown.flaws.items():
        key = (flaw, severity, method) if by_method else (flaw, severity)
        groups.setdefault((policy, key), []).append(group)
    return {key: pool(facts.sums, found, FLAWED) for key, found in groups.items()}


def _place(key: Key) -> tuple[int, str, int, str, tuple[str, ...]]:
    flaw, severity = key[0], key[1]
    known = list(FLAW_METHODS)
    place = known.index(flaw) if flaw in known else len(known)
    strength = SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
    return place, flaw, strength, severity, key[2:]


def _drawn(pools: PromptPools) -> list[str]:
    """Return the policies that a chart shows: those that are not privileged come first."""
    found = [policy for policy in pools.policies if pools.get(policy, FLAWED) is not None]
    return sorted(found, key=pools.is_privileged)[:MOST_DRAWN]
