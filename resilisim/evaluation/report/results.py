"""How close every policy comes to the ceiling, how sure that is, and where it lost points: what a reader looks for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report.charts import (
    RowLabel,
    dot_symbol,
    legend,
    line_symbol,
    series_legend,
    series_style,
    square_symbol,
    upright_symbol,
)
from resilisim.evaluation.report.charts.lines import NO_ESTIMATE, LinePanel, Series, line_charts
from resilisim.evaluation.report.charts.rows import Part, ResultGroup, ResultRow, results_chart
from resilisim.evaluation.report.content import (
    NOTHING,
    PRIVILEGED_NOTE,
    REGRET_ADDS_UP,
    Block,
    Cell,
    CellLike,
    Fold,
    Paragraph,
    Section,
    Table,
    beside_a_chart,
    percent,
    plain,
    policy_cell,
    with_interval,
)
from resilisim.evaluation.report.groups import LEVEL_NAMES, PromptPools, mean_of, ranked
from resilisim.evaluation.report.published import prompts_reference, task_types_reference
from resilisim.evaluation.table.facts import RunFacts
from resilisim.evaluation.table.summary import SMALLEST_SHOWN, GroupSummary, bound_note, summarise_group
from resilisim.statistics import Estimate, pass_at_k, pass_hat_k

MOST_COLUMNS = 8  # of policies beside each other
MOST_TASK_TYPES = 8  # shown one by one; the rest of a run with more stands in its records
LEAST_CEILING = 0.05  # below it a share says nothing
SHADES = 10  # of cells, from 0 to 100 % of the ceiling; style.css has a class for each
MOST_TRIES = 16  # of an agent at a task shown one by one; beyond, only powers of two
MOST_DRAWN = 4  # policies in a chart of repeats, and such charts
REPEATS = ("pass@k", "pass^k")
FINDING_TOOLS = "finding-tools"  # CSS class of what the fewest searches cost that show the tools
TEXT = (
    "The score is success with the luck of the draws taken out, as a share of the ceiling: the best success rate that "
    "any agent can have with what its prompt tells. A point is lost where a message lowers the best chance that is "
    "still open; the rest is unavoidable, or luck."
)
INFORMATION = (
    "Searching where the prompt names no tools, or the wrong ones, counts as information: a price, not a mistake."
)
SEARCHING = (
    "Where the tools must be found, the ceiling is what V* leaves after the fewest searches that show them; the pale "
    "part of a bar is what these cost."
)
TRIES_AGAIN = (
    "“Raw” stands where a policy may try again in fresh episodes, having seen the same draws before: it has no "
    "ceiling, and its luck cannot be taken out."
)
OVERSHOOT = (
    "A share below 0 or above 100 comes from taking luck out of few episodes: it is right on average, and the rate "
    "that it estimates lies between 0 and 100."
)
SEARCHES_UNKNOWN = "It is not known how many searches it takes to find the tools, so V* stands in for the ceiling of"
BEYOND = "A share above 100 is possible where tools had to be found: by an agent that knew them without a search."
LEVELS = (
    "Full success, partial success and failure add up to 100. All flawed prompts of a policy count as one; the mean "
    "gives every policy the same weight."
)
MEANS_HAVE_NONE = "With one task only, a mean or difference has no interval."
LUCK = (
    "The luck of every draw is known, so it can be taken out: the adjusted score is the mean of outcome − β × luck. It "
    "estimates the same success rate with less noise. β is fitted on other tasks than those it is applied to, so the "
    "score stays unbiased; with β = 1 luck is taken out entirely. The last column says how many times the episodes the "
    "raw rate would need for an interval as narrow."
)

REPEATS_TEXT = (
    "pass@k: the chance that at least one of k episodes of a task succeeds; pass^k: the chance that all k do. Both "
    "are raw: unbiased estimates from the episodes of each task, averaged over tasks (Chen et al., 2021; Yao et "
    "al., 2024)."
)


def results_section(pools: PromptPools) -> Section:
    """Return the results of a run."""
    rows = ranked(pools.facts.rows)
    compared = [row for row in rows if not row.tries_again]  # others have no ceiling to lose points from
    labels = loss_labels(compared)
    chart = results_chart(
        "Share of the ceiling and lost points",
        "By prompt type, the best policy first: the share of the ceiling that it reaches, luck taken out, with its 95% "
        "interval; and a stacked bar of the points that it lost, by cause. The tables below hold the numbers.",
        _groups(pools, labels),
    )
    blocks: list[Block] = [
        TEXT,
        _key(rows, labels),
        chart,
        *(Paragraph(note, "note") for note in _notes(rows, labels)),
        beside_a_chart(success_table(rows), "The same as a table, with raw success"),
    ]
    if compared:
        blocks.append(beside_a_chart(losses_table(compared, labels), "Lost points by cause, with intervals"))
    blocks.append(Fold("Full, partial and failed episodes", [LEVELS, levels_table(pools)]))
    adjusted = [row for row in rows if not math.isnan(row.luck_adjusted.value)]
    if adjusted:
        blocks.append(Fold("How luck was taken out", [LUCK, luck_table(adjusted)]))
    return Section("results", "Results", [*blocks, prompts_reference()])


def must_search(row: GroupSummary) -> bool:
    """Return whether the ceiling is below V*, because the tools had to be found."""
    return row.ceiling_name == "known_after_search"


def loss_labels(rows: Sequence[GroupSummary]) -> list[str]:
    """Return the causes that occur: the price of information first, then in the order of `LOSS_LABELS`, then others."""
    found = {label for row in rows for label in row.losses}
    known = [label for label in LOSS_LABELS if label in found and label != "information"]
    return ["information"] * ("information" in found) + known + sorted(found - set(LOSS_LABELS))


def loss_style(label: str) -> str:
    """Return the CSS class of a cause of lost points."""
    return label.replace("_", "-") if label in LOSS_LABELS else "other-loss"


def loss_bar(row: GroupSummary, labels: Sequence[str]) -> list[Part]:
    """Return the parts of a row's bar: with luck they add up to what the policy missed."""
    bar = [Part("unavoidable", row.unavoidable, "unavoidable")]
    for label in labels:
        if label not in row.losses:
            continue
        avoidable = row.avoidable_loss(label)
        price = row.losses[label].value - avoidable
        if price > 0.0:
            bar.append(Part(FINDING_TOOLS, price, "finding the tools, which nobody could spare"))
        bar.append(Part(loss_style(label), avoidable, plain(label)))
    return bar


def success_table(rows: Sequence[GroupSummary]) -> Table:
    """Return the share of the ceiling and what it is made of, by policy and prompt."""
    searching = any(map(must_search, rows))
    optimum = [("V*", lambda row: percent(row.optimum.value))] if searching else []
    return Table.of(
        "Success in percent of episodes, luck-adjusted and raw, with 95% intervals clustered by task",
        rows,
        [
            ("policy", policy_cell),
            ("prompt", lambda row: row.prompt_type),
            ("plan by", lambda row: row.planner or NOTHING),
            ("share of ceiling", lambda row: with_interval(row.adjusted_share)),
            ("luck-adjusted success", lambda row: with_interval(row.luck_adjusted)),
            ("ceiling" if searching else "ceiling V*", lambda row: percent(row.ceiling.value)),
            *optimum,
            ("raw success", lambda row: with_interval(row.success)),
            ("raw share", lambda row: with_interval(row.share_of_ceiling)),
            ("episodes", lambda row: f"{row.num_episodes:,}"),
            ("messages", lambda row: f"{row.turns.value:.1f}"),
        ],
        text_columns=3,
        is_stacked=True,
        notes=_starred(rows),
    )


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
    notes = (REGRET_ADDS_UP,)
    if len(rows) <= MOST_COLUMNS:
        names = [replace(policy_cell(row), detail=row.prompt_type) for row in rows]
        body = [[name, *cells] for name, cells in causes]
        return Table(caption, ["", *names], body, is_stacked=True, notes=notes)
    body = [
        [policy_cell(row), row.prompt_type, *(cells[number] for _, cells in causes)] for number, row in enumerate(rows)
    ]
    headings = ["policy", "prompt", *(name for name, _ in causes)]
    return Table(caption, headings, body, text_columns=2, is_stacked=True, notes=notes)


def luck_table(rows: Sequence[GroupSummary]) -> Table:
    """Return how much luck there was, how it was taken out, and what that is worth."""
    return Table.of(
        "Luck and its slope β, in percent of episodes, with 95% intervals clustered by task",
        rows,
        [
            ("policy", policy_cell),
            ("prompt", lambda row: row.prompt_type),
            ("luck", lambda row: with_interval(row.luck, signed=True)),
            ("fitted β", lambda row: NOTHING if math.isnan(row.mean_beta) else f"{row.mean_beta:.2f}"),
            ("adjusted with β = 1", lambda row: with_interval(row.luck_adjusted_beta_1)),
            ("worth episodes", _episodes_saved),
        ],
        text_columns=2,
    )


def _episodes_saved(row: GroupSummary) -> str:
    """How many times the episodes a raw rate would need for the interval of the adjusted one."""
    raw, adjusted = row.success.standard_error, row.luck_adjusted.standard_error
    if math.isnan(raw) or math.isnan(adjusted) or raw <= 0.0 or adjusted <= 0.0:
        return NOTHING
    return f"{(raw / adjusted) ** 2:.1f} ×"


def levels_table(pools: PromptPools) -> Table:
    """Return full, partial and failed episodes by policy and prompt, as in table 2 of the ResiliBench paper."""
    rows: list[list[CellLike]] = []
    for policy in pools.policies:
        rows.append([pools.name(policy), *pools.level_cells(policy)])
    ordinary = [policy for policy in pools.policies if not pools.is_privileged(policy)]
    num_ordinary, num_starred = len(ordinary), len(pools.policies) - len(ordinary)
    notes = [PRIVILEGED_NOTE] if num_starred else []
    if num_ordinary > 1:
        rows.append([mean_name(num_ordinary, num_starred)])
        for prompt in pools.prompts:
            found = [pool.levels for policy in ordinary if (pool := pools.get(policy, prompt)) is not None]
            means = [with_interval(mean_of(rates)) for rates in zip(*found, strict=True)]
            rows[-1] += means or [NOTHING] * len(LEVEL_NAMES)
        notes += [MEANS_HAVE_NONE] if len(pools.facts.table.tasks) < 2 else []
    return Table(
        "Full success, partial success and failure in percent of episodes, with 95% intervals clustered by task",
        ("policy", *LEVEL_NAMES * len(pools.prompts)),
        rows,
        groups=(("", 1), *((plain(prompt), len(LEVEL_NAMES)) for prompt in pools.prompts)),
        is_stacked=True,
        notes=notes,
        summary_rows=1 if num_ordinary > 1 else 0,
    )


def mean_name(number: int, num_starred: int) -> str:
    """Return what the row of a mean over policies is called."""
    return f"mean of {count_of(number, 'policy', 'policies')}" + " without *" * (num_starred > 0)


def ceiling_text(rows: Sequence[GroupSummary]) -> str:
    """Say what the ceiling of some rows is: "ceiling V* 77.2%", or "ceiling 70.1%, V* 77.2%"."""
    known = [row for row in rows if not math.isnan(row.ceiling.value)]
    known = [row for row in known if not row.privileged] or known
    if not known:
        return "no ceiling"
    optimum = _range([row.optimum.value for row in known])
    if not any(map(must_search, known)):
        doubt = " (its searches are not known)" if any(row.num_without_ceiling for row in known) else ""
        return f"ceiling V* {optimum}%{doubt}"
    return f"ceiling {_range([row.ceiling.value for row in known])}%, V* {optimum}%"


def _range(values: Sequence[float]) -> str:
    low, high = percent(min(values)), percent(max(values))
    return low if low == high else f"{low} to {high}"


def _groups(pools: PromptPools, labels: Sequence[str]) -> list[ResultGroup]:
    groups = []
    for prompt in pools.prompts:
        rows = [row for row in pools.rows if row.prompt_type == prompt]
        shown = [
            ResultRow(
                RowLabel(row.policy, "", row.privileged, f"{row.policy} under {prompt}"),
                row.adjusted_share,
                row.success,
                [] if row.tries_again else loss_bar(row, labels),
            )
            for row in rows
        ]
        groups.append(ResultGroup(f"{plain(prompt)} prompt", ceiling_text(rows), shown))
    return groups


def _key(rows: Sequence[GroupSummary], labels: Sequence[str]) -> Markup:
    privileged = [(dot_symbol("privileged"), "privileged policy *")] * any(row.privileged for row in rows)
    finding = (square_symbol(FINDING_TOOLS), "finding the tools", "what the fewest searches cost")
    return legend(
        (dot_symbol("adjusted"), "share of the ceiling, 95% interval"),
        *privileged,
        (upright_symbol("ceiling"), "ceiling"),
        (square_symbol("unavoidable"), "unavoidable", "what no agent could have had: 1 − V*"),
        *[finding] * any(map(must_search, rows)),
        *((square_symbol(loss_style(label)), plain(label), LOSS_LABELS.get(label)) for label in labels),
    )


def _notes(rows: Sequence[GroupSummary], labels: Sequence[str]) -> list[str]:
    searching = any(map(must_search, rows))
    notes = [TRIES_AGAIN] if any(row.tries_again for row in rows) else []
    if "information" in labels:
        notes.append(f"{INFORMATION} {SEARCHING}" if searching else INFORMATION)
    unknown = sum(row.num_without_ceiling for row in rows if not row.tries_again)
    notes += [f"{SEARCHES_UNKNOWN} {count_of(unknown, 'episode')}."] if unknown else []
    notes += [note for note in (bound_note(rows),) if note is not None]
    notes += _overshoot_notes(rows)
    notes += [REGRET_ADDS_UP] if any(row.unavoidable + row.regret.value > 1.0 for row in rows) else []
    return notes + _starred(rows)


def _starred(rows: Sequence[GroupSummary]) -> list[str]:
    return [PRIVILEGED_NOTE] if any(row.privileged for row in rows) else []


def _overshoot_notes(rows: Sequence[GroupSummary]) -> list[str]:
    """Say why a share is shown as below 0 or above 100, if one is."""
    shares = [row.adjusted_share.value for row in rows]
    if not any(share <= -SMALLEST_SHOWN or share >= 1.0 + SMALLEST_SHOWN for share in shares):
        return []
    return [f"{OVERSHOOT} {BEYOND}" if any(map(must_search, rows)) else OVERSHOOT]


def task_types_section(pools: PromptPools) -> Section:
    """Return what share of the ceiling each policy reaches under each prompt, by task type."""
    table = pools.facts.table
    counts = Counter(task.task_type for task in table.tasks)
    if len(counts) == 1:
        text = f"All tasks of this run are of one type: {plain(next(iter(counts)))}."
        return Section("types", "By task type", [text, task_types_reference()])
    shown = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_TASK_TYPES]
    chosen = {name: table.tasks_where(task_type=name) for name in shown}
    groups = [table.group(*names) for names in table.groups()]
    rows = [(name, summarise_group(group, chosen[name])) for name in shown for group in groups]
    blocks: list[Block] = [shares_table(pools, {name: counts[name] for name in shown})]
    hidden = len(counts) - len(shown)
    if hidden:
        blocks.append(Paragraph(f"{count_of(hidden, 'rarer type')} left out here, not in the totals.", "note"))
    details = Fold("Success and costliest causes by task type", [task_types_table(rows)])
    return Section("types", "By task type", [*blocks, details, task_types_reference()])


def shares_table(pools: PromptPools, counts: Mapping[str, int]) -> Table:
    """Return the share of the ceiling of each policy under each prompt for each task type, and what the ceiling is."""
    chosen = [pools.facts.table.tasks_where(task_type=name) for name in counts]
    rows: list[list[CellLike]] = []
    shown: list[GroupSummary] = []
    ceilings: dict[str, list[GroupSummary]] = {}
    for row in pools.rows:
        entry = pools.get(row.policy, row.prompt_type)
        assert entry is not None  # rows are made of these
        parts = [summarise_group(entry.table, where, row.prompt_type) for where in chosen]
        shown += parts
        rows.append([policy_cell(row), plain(row.prompt_type), *map(_shaded, parts)])
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
    notes += _overshoot_notes([part for part in shown if not part.ceiling.value < LEAST_CEILING])
    return Table(
        "Share of the ceiling in percent by task type, luck taken out, with 95% intervals clustered by task",
        ("policy", "prompt", *map(plain, counts)),
        rows,
        text_columns=2,
        is_listed=True,
        notes=notes + _starred(pools.rows),
        summary_rows=1 + len(ceilings),
    )


def _shaded(row: GroupSummary) -> Cell:
    """Return a share of the ceiling on a ground that tells how high it is, or raw success where there is none."""
    if math.isnan(row.adjusted_share.value):
        cell = with_interval(row.success)
        return Cell(f"{cell.text} raw", detail=cell.detail) if cell.detail else cell
    if row.ceiling.value < LEAST_CEILING:
        return Cell(NOTHING)
    shade = min(max(int(row.adjusted_share.value * SHADES), 0), SHADES - 1)
    return replace(with_interval(row.adjusted_share), style=f"shade shade-{shade}")


def task_types_table(rows: Sequence[tuple[str, GroupSummary]]) -> Table:
    """Return success by task type, for each policy and prompt."""
    return Table.of(
        "Success in percent by task type, with 95% intervals clustered by task",
        rows,
        [
            ("task type", lambda row: plain(row[0])),
            ("policy", lambda row: policy_cell(row[1])),
            ("prompt", lambda row: row[1].prompt_type),
            ("costliest cause", lambda row: plain(row[1].biggest_loss or "none")),
            ("tasks", lambda row: f"{row[1].num_tasks:,}"),
            ("episodes", lambda row: f"{row[1].num_episodes:,}"),
            ("luck-adjusted", lambda row: with_interval(row[1].luck_adjusted)),
            ("ceiling", lambda row: percent(row[1].ceiling.value)),
            ("raw success", lambda row: with_interval(row[1].success)),
            ("partial success", lambda row: with_interval(row[1].partial_success)),
        ],
        text_columns=4,
        is_stacked=True,
    )


def repeats_section(pools: PromptPools) -> Section | None:
    """Return pass@k and pass^k, or None where no task has several episodes of one policy and prompt."""
    compared = (row for row in pools.facts.rows if not row.tries_again)
    rows = sorted(compared, key=lambda row: pools.policies.index(row.policy))
    curves = [(row, curve) for row in rows if len(curve := _repeats_curve(pools.facts, row)) > 1]
    if not curves:
        return None
    tries = sorted({number for _, curve in curves for number in curve})
    none = (NO_ESTIMATE, NO_ESTIMATE)
    lines = [
        _RepeatsLine(row, side, [curve.get(number, none)[side] for number in tries])
        for row, curve in curves
        for side in range(len(REPEATS))
    ]
    table = Table.of(
        "pass@k and pass^k in percent of tasks, with 95% intervals over tasks",
        lines,
        [
            ("policy", lambda line: policy_cell(line.row)),
            ("prompt", lambda line: line.row.prompt_type),
            ("", lambda line: REPEATS[line.side]),
            *((f"k = {number}", partial(_RepeatsLine.cell, place=place)) for place, number in enumerate(tries)),
        ],
        text_columns=3,
        is_stacked=True,
        notes=_starred(rows),
    )
    blocks: list[Block] = [REPEATS_TEXT, *_repeats_charts(lines, tries), beside_a_chart(table)]
    return Section("repeats", "Repeats: pass@k and pass^k", blocks)


class _RepeatsLine(NamedTuple):
    """Pass@k (side 0) or pass^k (side 1) of a policy under a prompt, for each k that is shown."""

    row: GroupSummary
    side: int
    estimates: list[Estimate]

    def cell(self, place: int) -> Cell:
        return with_interval(self.estimates[place])


def _repeats_charts(lines: Sequence[_RepeatsLine], tries: Sequence[int]) -> list[Block]:
    """Return one chart per prompt type, for the first few of these and of the policies."""
    prompts = list(dict.fromkeys(line.row.prompt_type for line in lines))
    policies = list(dict.fromkeys(line.row.policy for line in lines))
    drawn = policies[:MOST_DRAWN]
    panels = []
    for prompt in prompts[:MOST_DRAWN]:
        own = (line for line in lines if line.row.prompt_type == prompt and line.row.policy in drawn)
        series = [
            Series(
                f"{line.row.policy}, {REPEATS[line.side]}",
                series_style(drawn.index(line.row.policy)),
                line.estimates,
                hollow=line.side == 1,
            )
            for line in own
        ]
        panels.append(LinePanel(f"pass@k and pass^k under {prompt}", f"{prompt} prompt", series))
    description = "Over the number of episodes k: full lines pass@k, dashed lines pass^k, with 95% intervals."
    full, dashed = (line_symbol("line"), REPEATS[0]), (line_symbol("line dashed"), REPEATS[1])
    blocks: list[Block] = [
        legend(*series_legend(drawn), full, dashed),
        line_charts(description, [str(number) for number in tries], "k episodes of a task", panels),
    ]
    hidden_policies, hidden_prompts = len(policies) - len(drawn), len(prompts) - len(panels)
    hidden = [count_of(hidden_policies, "more policy", "more policies")] if hidden_policies else []
    hidden += [count_of(hidden_prompts, "more prompt type")] if hidden_prompts else []
    if hidden:
        blocks.append(Paragraph(f"{' and '.join(hidden)} in the table only.", "note"))
    return blocks


def _repeats_curve(facts: RunFacts, row: GroupSummary) -> dict[int, tuple[Estimate, Estimate]]:
    """Return k -> (pass@k, pass^k) for the k that every task of a group allows: above `MOST_TRIES` only some."""
    group = facts.table.group(row.policy, row.prompt_type)
    episodes = group.by_task(group.count)
    present = episodes > 0
    episodes, successes = episodes[present], group.by_task(group.outcome)[present]
    most = int(np.min(episodes)) if len(episodes) else 0
    # Above the first few only powers of 2, and the last.
    numbers = [k for k in range(1, most + 1) if k <= MOST_TRIES or k.bit_count() == 1 or k == most]
    return {k: (pass_at_k(successes, episodes, k), pass_hat_k(successes, episodes, k)) for k in numbers}
