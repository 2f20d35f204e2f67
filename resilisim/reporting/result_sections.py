"""How close every policy comes to the ceiling, how sure that is, and where it lost points: what a reader looks for."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import ALL_LOSS_LABELS
from resilisim.evaluation.table.summary import (
    NO_REFERENCE_NOTE,
    SMALLEST_SHOWN,
    UNNEEDED_SEARCH,
    GroupSummary,
    adjustment_notes,
    bound_note,
    summarise_group,
)
from resilisim.reporting.charts import Entry, RowLabel, legend, series_entries, series_style
from resilisim.reporting.charts.lines import LinePanel, Series, line_charts
from resilisim.reporting.charts.rows import Part, ResultGroup, ResultRow, results_chart
from resilisim.reporting.groups import (
    BY_PROMPT,
    BY_TASK_TYPE,
    LEVEL_NAMES,
    PromptPools,
    mean_of,
    published_beside,
    ranked,
)
from resilisim.reporting.page import Block, Fold, Note, Section, beside_a_chart, plain, policy_cell, say
from resilisim.statistics import Estimate, pass_at_k, pass_hat_k
from resilisim.tables.numbers import NO_NUMBER, figure, percent
from resilisim.tables.table import SIGNED, Cell, Column, Table, in_form, with_interval

MOST_COLUMNS = 8  # of policies beside each other
MOST_TASK_TYPES = 8  # shown one by one; the rest of a run with more stands in its records
LEAST_CEILING = 0.05  # below it a share says nothing
SHADES = 10  # of cells, from 0 to 100 % of the ceiling; style.css has a class for each
MOST_TRIES = 16  # of an agent at a task shown one by one; beyond, only powers of two
_MOST_DRAWN = 4  # policies in a chart of repeats, and such charts
REPEATS = ("pass@k", "pass^k")
FINDING = "finding the tools"
FINDING_TOOLS = "finding-tools"  # CSS class of what the fewest searches cost that show the tools

POLICY: Column[GroupSummary] = ("policy", policy_cell)
PROMPT: Column[GroupSummary] = ("prompt", "prompt_type")


def results_section(pools: PromptPools) -> Section:
    """Return the results of a run."""
    rows = ranked(pools.facts.rows)
    compared = [row for row in rows if not row.has_no_ceiling]  # others have no ceiling to lose points from
    adjusted = [row for row in rows if not math.isnan(row.luck_adjusted.value)]
    labels = loss_labels(compared)
    blocks: list[Block] = [
        say("results" if pools.facts.world is None else "results_in_world"),
        _key(rows, labels),
        results_chart("Share of the ceiling and lost points", say("results_chart"), list(_groups(pools, labels))),
        *map(Note, _notes(rows, labels)),
        beside_a_chart(success_table(rows), "The same as a table, with raw success"),
    ]
    if compared:
        blocks.append(beside_a_chart(losses_table(compared, labels), "Lost points by cause, with intervals"))
    blocks.append(Fold("Full, partial and failed episodes", [say("levels"), levels_table(pools)]))
    if adjusted:
        blocks.append(Fold("How luck was removed", [say("luck"), luck_table(adjusted)]))
    return Section("results", "Results", [*blocks, *published_beside(pools.facts, BY_PROMPT)])


def must_search(row: GroupSummary) -> bool:
    """Return whether shares are of V* after the searches that show the tools, because they had to be found."""
    return row.ceiling_name == "optimum_after_searches"


def is_of_reference(row: GroupSummary) -> bool:
    """Return whether the ceiling is that of the reference solution, as in a world."""
    return row.ceiling_name == "reference_solution"


def loss_labels(rows: Sequence[GroupSummary]) -> list[str]:
    """Return the causes that occur: the price of information first, then in the order of `LOSS_LABELS`, then others."""
    labels = {label for row in rows for label in row.losses}
    known = dict.fromkeys(("information", *ALL_LOSS_LABELS))
    return [*filter(labels.__contains__, known), *sorted(labels - set(ALL_LOSS_LABELS))]


def loss_style(label: str) -> str:
    """Return the CSS class of a cause of lost points."""
    return label.replace("_", "-") if label in ALL_LOSS_LABELS else "other-loss"


def loss_bar(row: GroupSummary, labels: Sequence[str]) -> list[Part]:
    """Return the parts of a row's bar: with luck they add up to what the policy missed."""
    bar = [Part("unavoidable", row.unavoidable, "unavoidable")]
    for label in filter(row.losses.__contains__, labels):
        price = _price(row, label)
        if price > 0.0:
            bar.append(Part(FINDING_TOOLS, price, f"{FINDING}, which nobody could spare"))
        bar.append(Part(loss_style(label), row.avoidable_loss(label), row.loss_name(label)))
    return bar


def _price(row: GroupSummary, label: str) -> float:
    """Return what part of the loss under a label nobody could spare: that of finding the tools."""
    return row.losses[label].value - row.avoidable_loss(label)


def success_table(rows: Sequence[GroupSummary]) -> Table:
    """Return the share of the ceiling and what it is made of, by policy and prompt."""
    searching = any(map(must_search, rows))
    return Table.of(
        say("success_table"),
        rows,
        [
            POLICY,
            PROMPT,
            ("plan by", "planner"),
            (f"share of {'reference' if searching else 'ceiling'}", "adjusted_share"),
            ("luck-adjusted success", "luck_adjusted"),
            ("reference" if searching else "ceiling V*", "ceiling.value"),
            *[("V*", "optimum.value")] * searching,
            ("raw success", "success"),
            ("raw share", "share_of_ceiling"),
            ("episodes", "num_episodes"),
            ("messages", "turns.value", ".1f"),
        ],
        text_columns=3,
        is_stacked=True,
        notes=_starred(rows),
    )


def losses_table(rows: Sequence[GroupSummary], labels: Sequence[str]) -> Table:
    """Return the points lost by cause, for each policy and prompt; causes are rows while policies fit beside them."""

    def cause(name: str, label: str) -> tuple[str, Callable[[GroupSummary], object]]:
        def lost(row: GroupSummary) -> object:
            if label not in row.losses or name not in (FINDING, row.loss_name(label)):
                return None
            if row.loss_name(label) == UNNEEDED_SEARCH:
                return _price(row, label) if name == FINDING else row.unneeded_search
            return row.losses[label] if name != FINDING else None

        return name, lost

    names_of_causes = [(name, label) for label in labels for name in _names(rows, label)]
    causes: list[tuple[str, Callable[[GroupSummary], object]]] = [
        ("not successful", lambda row: 1.0 - row.success.value),
        ("unavoidable", lambda row: row.unavoidable),
        *itertools.starmap(cause, names_of_causes),
        ("luck", lambda row: in_form(row.luck, SIGNED)),
    ]
    more: dict[str, Any] = {"is_stacked": True, "notes": [say("regret_adds_up")]}
    if len(rows) > MOST_COLUMNS:
        return Table.of(say("losses_table"), rows, [POLICY, PROMPT, *causes], text_columns=2, **more)
    names = [replace(policy_cell(row), detail=row.prompt_type) for row in rows]
    return Table(say("losses_table"), ["", *names], [[name, *map(cell, rows)] for name, cell in causes], **more)


def _names(rows: Sequence[GroupSummary], label: str) -> list[str]:
    """Return what the loss under a label is called in some rows, finding the tools first."""
    names = list(dict.fromkeys(row.loss_name(label) for row in rows if label in row.losses))
    return [*[FINDING] * (UNNEEDED_SEARCH in names), *sorted(names, reverse=True)]


def luck_table(rows: Sequence[GroupSummary]) -> Table:
    """Return how much luck there was, how it was taken out, and what that is worth."""

    def worth(row: GroupSummary) -> str:
        """How many times the episodes a raw rate would need for the interval of the adjusted one."""
        raw, adjusted = row.success.standard_error, row.luck_adjusted.standard_error
        return f"{(raw / adjusted) ** 2:.1f} ×" if raw > 0.0 and adjusted > 0.0 else NO_NUMBER  # not of NaN, either

    def taken_off(row: GroupSummary) -> str:
        """What was taken off: so many times the luck, or more than that."""
        return "draws of tools" if row.is_fitted else figure(row.mean_beta, 2)

    return Table.of(
        say("luck_table"),
        rows,
        [
            POLICY,
            PROMPT,
            ("luck", "luck", SIGNED),
            ("fitted β", taken_off),
            ("adjusted with β = 1", "luck_adjusted_beta_1"),
            ("worth episodes", worth),
        ],
        text_columns=2,
    )


def levels_table(pools: PromptPools) -> Table:
    """Return full, partial and failed episodes by policy and prompt, as in table 2 of the ResiliBench paper."""
    rows: list[list[object]] = [[pools.name(policy), *pools.level_rates(policy)] for policy in pools.policies]
    notes = [say("privileged")] if pools.num_starred else []
    has_mean = len(pools.ordinary) > 1
    if has_mean:
        means: list[object] = [mean_name(len(pools.ordinary), pools.num_starred)]
        for prompt in pools.prompts:
            levels = [pool.levels for policy in pools.ordinary if (pool := pools.get(policy, prompt)) is not None]
            means += [mean_of(rates) for rates in zip(*levels, strict=True)] or [None] * len(LEVEL_NAMES)
        rows.append(means)
        notes += [say("means_have_no_interval")] if len(pools.facts.table.tasks) < 2 else []
    return Table(
        say("levels_table"),
        ("policy", *LEVEL_NAMES * len(pools.prompts)),
        rows,
        groups=[("", 1), *pools.level_groups],
        is_stacked=True,
        notes=notes,
        summary_rows=int(has_mean),
    )


def mean_name(number: int, num_starred: int) -> str:
    """Return what the row of a mean over policies is called."""
    return f"mean of {count_of(number, 'policy', 'policies')}" + " without *" * (num_starred > 0)


def ceiling_text(rows: Sequence[GroupSummary]) -> str:
    """Say what the ceiling of some rows is: "ceiling V* 77.2%", or "reference 70.1%, V* 77.2%"."""
    known = [row for row in rows if not math.isnan(row.ceiling.value)]
    known = [row for row in known if not row.privileged] or known
    if not known:
        return "no ceiling"
    optimum = _range([row.optimum.value for row in known])
    if any(map(must_search, known)):
        return f"reference {_range([row.ceiling.value for row in known])}%, V* {optimum}%"
    doubt = " (its searches are not known)" if any(row.num_without_ceiling for row in known) else ""
    reference = " of the reference solution" if any(map(is_of_reference, known)) else ""
    return f"ceiling V*{reference} {optimum}%{doubt}"


def _range(values: Sequence[float]) -> str:
    low, high = percent(min(values)), percent(max(values))
    return low if low == high else f"{low} to {high}"


def _groups(pools: PromptPools, labels: Sequence[str]) -> Iterator[ResultGroup]:
    by_prompt: defaultdict[str, list[GroupSummary]] = defaultdict(list)
    for row in pools.rows:
        by_prompt[row.prompt_type].append(row)
    for prompt, rows in by_prompt.items():
        shown = []
        for row in rows:
            count = f"n = {row.num_episodes:,}"
            label = RowLabel(row.policy, count, row.privileged, f"{row.policy} under {prompt}")
            bar = [] if row.has_no_ceiling else loss_bar(row, labels)
            shown.append(ResultRow(label, row.adjusted_share, row.success, bar))
        yield ResultGroup(f"{plain(prompt)} prompt", ceiling_text(rows), shown)


def _key(rows: Sequence[GroupSummary], labels: Sequence[str]) -> Markup:
    finding = Entry("square", FINDING_TOOLS, FINDING, "what the fewest searches cost")
    causes = [(label, " or ".join(name for name in _names(rows, label) if name != FINDING)) for label in labels]
    return legend(
        Entry("dot", "adjusted", "share of the ceiling, 95% interval"),
        *[Entry("dot", "privileged", "privileged policy *")] * any(row.privileged for row in rows),
        Entry("tick", "ceiling", "ceiling"),
        Entry("square", "unavoidable", "unavoidable", "what no agent could have had: 1 − V*"),
        *[finding] * any(map(must_search, rows)),
        *(Entry("square", loss_style(label), name, ALL_LOSS_LABELS.get(label, "")) for label, name in causes),
    )


def _notes(rows: Sequence[GroupSummary], labels: Sequence[str]) -> list[str]:
    notes = [say("tries_again")] if any(row.tries_again for row in rows) else []
    unvalued = sum(row.num_without_reference for row in rows)
    notes += [NO_REFERENCE_NOTE.format(count_of(unvalued, "episode"))] if unvalued else []
    if "information" in labels:
        notes.append(say("information") + (f" {say('searching')}" if any(map(must_search, rows)) else ""))
    unknown = sum(row.num_without_ceiling for row in rows if not row.has_no_ceiling)
    notes += [say("searches_unknown", episodes=count_of(unknown, "episode"))] if unknown else []
    notes += filter(None, [bound_note(rows)])
    notes += adjustment_notes(rows)
    notes += _overshoot_notes(rows)
    notes += [say("regret_adds_up")] if any(row.unavoidable + row.regret.value > 1.0 for row in rows) else []
    return notes + _starred(rows)


def _starred(rows: Sequence[GroupSummary]) -> list[str]:
    return [say("privileged")] if any(row.privileged for row in rows) else []


def _overshoot_notes(rows: Sequence[GroupSummary]) -> list[str]:
    """Say why a share is shown as below 0 or above 100, if one is."""
    shares = [row.adjusted_share.value for row in rows]
    if not any(share <= -SMALLEST_SHOWN or share >= 1.0 + SMALLEST_SHOWN for share in shares):
        return []
    return [say("overshoot") + (f" {say('overshoot_searching')}" if any(map(must_search, rows)) else "")]


def task_types_section(pools: PromptPools) -> Section:
    """Return what share of the ceiling each policy reaches under each prompt, by task type."""
    table = pools.facts.table
    counts = Counter(task.task_type for task in table.tasks)
    if len(counts) == 1:
        blocks: list[Block] = [say("one_type", name=plain(next(iter(counts))))]
    else:
        shown = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_TASK_TYPES])
        blocks = [shares_table(pools, shown)]
        hidden = len(counts) - len(shown)
        blocks += [Note(say("rarer_types", types=count_of(hidden, "rarer type")))] if hidden else []
        groups = [table.group(*names) for names in table.groups()]
        rows = [(name, summarise_group(group, table.tasks_where(task_type=name))) for name in shown for group in groups]
        blocks.append(Fold("Success and costliest causes by task type", [task_types_table(rows)]))
    return Section("types", "By task type", [*blocks, *published_beside(pools.facts, BY_TASK_TYPE)])


def shares_table(pools: PromptPools, counts: Mapping[str, int]) -> Table:
    """Return the share of the ceiling of each policy under each prompt for each task type, and what the ceiling is."""
    of_types = [pools.facts.table.tasks_where(task_type=name) for name in counts]
    rows: list[list[object]] = []
    shown: list[GroupSummary] = []
    ceilings: dict[str, list[GroupSummary]] = {}
    for row in pools.rows:
        table = pools[row.policy, row.prompt_type].table
        parts = [summarise_group(table, where, row.prompt_type) for where in of_types]
        shown += parts
        rows.append([policy_cell(row), plain(row.prompt_type), *map(_shaded, parts)])
        if not math.isnan(row.ceiling.value):
            ceilings.setdefault(row.ceiling_name, parts)
    names = {"optimum": "tools known" if len(ceilings) > 1 else "", "reference_solution": ""}
    for name, parts in sorted(ceilings.items(), reverse=True):  # searches first
        cells = (part.ceiling.value if part.num_tasks else None for part in parts)
        rows.append(["100% is, in % of episodes", names.get(name, "tools to be found"), *cells])
    rows.append(["tasks", "", *counts.values()])
    notes = [say("raw_shares")] if any(row.has_no_ceiling for row in pools.rows) else []
    high = [part for part in shown if not part.ceiling.value < LEAST_CEILING]
    notes += [say("low_ceiling", least=percent(LEAST_CEILING, 0))] if len(high) < len(shown) else []
    notes += _overshoot_notes(high)
    return Table(
        say("shares_table"),
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
        return replace(cell, text=f"{cell.text} raw") if cell.detail else cell
    if row.ceiling.value < LEAST_CEILING:
        return Cell(NO_NUMBER)
    shade = min(max(int(row.adjusted_share.value * SHADES), 0), SHADES - 1)
    return replace(with_interval(row.adjusted_share), style=f"shade shade-{shade}")


def task_types_table(rows: Sequence[tuple[str, GroupSummary]]) -> Table:
    """Return success by task type, for each policy and prompt."""
    return Table.of(
        say("types_table"),
        rows,
        [
            ("task type", lambda row: plain(row[0])),
            ("policy", lambda row: policy_cell(row[1])),
            ("prompt", lambda row: row[1].prompt_type),
            (
                "costliest cause",
                lambda row: "none" if row[1].biggest_loss is None else row[1].loss_name(row[1].biggest_loss),
            ),
            ("tasks", lambda row: row[1].num_tasks),
            ("episodes", lambda row: row[1].num_episodes),
            ("luck-adjusted", lambda row: row[1].luck_adjusted),
            ("ceiling", lambda row: row[1].ceiling.value),
            ("raw success", lambda row: row[1].success),
            ("partial success", lambda row: row[1].partial_success),
        ],
        text_columns=4,
        is_stacked=True,
    )


class _RepeatsLine(NamedTuple):
    """Pass@k (side 0) or pass^k (side 1) of a policy under a prompt, by k."""

    row: GroupSummary
    side: int
    estimates: Mapping[int, Estimate]


def repeats_section(pools: PromptPools) -> Section | None:
    """Return pass@k and pass^k, or None where no task has several episodes of one policy and prompt."""
    compared = (row for row in pools.facts.rows if not row.tries_again)
    rows = sorted(compared, key=lambda row: pools.policies.index(row.policy))
    lines = [line for row in rows for line in _repeats_lines(pools, row) if len(line.estimates) > 1]
    if not lines:
        return None
    tries = sorted({number for line in lines for number in line.estimates})

    def column(number: int) -> tuple[str, Callable[[_RepeatsLine], Estimate]]:
        return f"k = {number}", lambda line: line.estimates.get(number, Estimate.nothing())

    table = Table.of(
        say("repeats_table"),
        lines,
        [
            ("policy", lambda line: policy_cell(line.row)),
            ("prompt", "row.prompt_type"),
            ("", lambda line: REPEATS[line.side]),
            *map(column, tries),
        ],
        text_columns=3,
        is_stacked=True,
        notes=_starred(rows),
    )
    blocks: list[Block] = [say("repeats"), *_repeats_charts(lines, tries), beside_a_chart(table)]
    return Section("repeats", "Repeats: pass@k and pass^k", blocks)


def _repeats_lines(pools: PromptPools, row: GroupSummary) -> Iterator[_RepeatsLine]:
    """Yield pass@k and pass^k of a group for the k that every task of it allows: above `MOST_TRIES` only some."""
    group = pools.facts.table.group(row.policy, row.prompt_type)
    episodes = group.by_task(group.count)
    present = episodes > 0
    episodes, successes = episodes[present], group.by_task(group.outcome)[present]
    most = int(np.min(episodes)) if len(episodes) else 0
    # Above the first few only powers of 2, and the last.
    numbers = [k for k in range(1, most + 1) if k <= MOST_TRIES or k.bit_count() == 1 or k == most]
    for side, estimate in enumerate((pass_at_k, pass_hat_k)):
        yield _RepeatsLine(row, side, {k: estimate(successes, episodes, k) for k in numbers})


def _repeats_charts(lines: Sequence[_RepeatsLine], tries: Sequence[int]) -> Iterator[Block]:
    """Yield one chart per prompt type, for the first few of these and of the policies."""
    prompts = list(dict.fromkeys(line.row.prompt_type for line in lines))
    policies = list(dict.fromkeys(line.row.policy for line in lines))
    drawn = policies[:_MOST_DRAWN]

    def series(line: _RepeatsLine) -> Series:
        style = series_style(drawn.index(line.row.policy))
        estimates = [line.estimates.get(number, Estimate.nothing()) for number in tries]
        return Series(f"{line.row.policy}, {REPEATS[line.side]}", style, estimates, hollow=line.side == 1)

    def panel(prompt: str) -> LinePanel:
        own = [line for line in lines if line.row.prompt_type == prompt and line.row.policy in drawn]
        title, places = f"pass@k and pass^k under {prompt}", list(map(str, tries))
        name = "k episodes of a task"
        return LinePanel(title, f"{prompt} prompt", places, list(map(series, own)), say("repeats_chart"), name)

    kinds = [Entry("line", "line", REPEATS[0]), Entry("line", "line dashed", REPEATS[1])]
    yield legend(*series_entries("dot", drawn), *kinds)
    yield line_charts(list(map(panel, prompts[:_MOST_DRAWN])))
    hidden_policies, hidden_prompts = len(policies) - len(drawn), len(prompts) - _MOST_DRAWN
    hidden = [count_of(hidden_policies, "more policy", "more policies")] if hidden_policies else []
    hidden += [count_of(hidden_prompts, "more prompt type")] if hidden_prompts > 0 else []
    if hidden:
        yield Note(say("in_the_table_only", hidden=" and ".join(hidden)))
