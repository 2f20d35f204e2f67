"""How close every policy comes to the ceiling, how sure that is, and where it lost points: what a reader looks for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report import legend
from resilisim.evaluation.report.cells import (
    NOTHING,
    PRIVILEGED_NOTE,
    REGRET_ADDS_UP,
    percent,
    plain,
    policy_cell,
    with_interval,
)
from resilisim.evaluation.report.content import (
    Block,
    Cell,
    CellLike,
    Fold,
    Paragraph,
    Section,
    Table,
    beside_a_chart,
)
from resilisim.evaluation.report.drawing import RowLabel
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.levels import levels_table
from resilisim.evaluation.report.published import prompts_reference
from resilisim.evaluation.report.results_chart import ResultGroup, ResultRow, Segment, results_chart
from resilisim.evaluation.report.rows import PromptPools, ranked
from resilisim.evaluation.summary import SMALLEST_SHOWN, GroupSummary, bound_note

MOST_COLUMNS = 8  # of policies beside each other
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
LUCK = (
    "The luck of every draw is known, so it can be taken out: the adjusted score is the mean of outcome − β × luck. It "
    "estimates the same success rate with less noise. β is fitted on other tasks than those it is applied to, so the "
    "score stays unbiased; with β = 1 luck is taken out entirely. The last column says how many times the episodes the "
    "raw rate would need for an interval as narrow."
)


def results_section(facts: RunFacts, pools: PromptPools) -> Section:
    """Return the results of a run."""
    rows = ranked(facts.rows)
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
        legend.results_legend(labels, any(row.privileged for row in rows), any(map(must_search, rows))),
        chart,
        *(Paragraph(note, "note") for note in _notes(rows, labels)),
        beside_a_chart(success_table(rows), "The same as a table, with raw success"),
    ]
    if compared:
        blocks.append(beside_a_chart(losses_table(compared, labels), "Lost points by cause, with intervals"))
    blocks.append(Fold("Full, partial and failed episodes", [LEVELS, levels_table(facts, pools)]))
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


def loss_bar(row: GroupSummary, labels: Sequence[str]) -> list[Segment]:
    """Return the parts of a row's bar: with luck they add up to what the policy missed."""
    bar = [Segment("unavoidable", row.unavoidable, "unavoidable")]
    for label in labels:
        if label not in row.losses:
            continue
        avoidable = row.avoidable_loss(label)
        price = row.losses[label].value - avoidable
        if price > 0.0:
            bar.append(Segment(legend.FINDING_TOOLS, price, "finding the tools, which nobody could spare"))
        bar.append(Segment(legend.loss_style(label), avoidable, plain(label)))
    return bar


def success_table(rows: Sequence[GroupSummary]) -> Table:
    """Return the share of the ceiling and what it is made of, by policy and prompt."""
    searching = any(map(must_search, rows))
    return Table(
        "Success in percent of episodes, luck-adjusted and raw, with 95% intervals clustered by task",
        (
            "policy",
            "prompt",
            "plan by",
            "share of ceiling",
            "luck-adjusted success",
            *(("ceiling", "V*") if searching else ("ceiling V*",)),
            "raw success",
            "raw share",
            "episodes",
            "messages",
        ),
        [
            (
                policy_cell(row),
                row.prompt_type,
                row.planner or NOTHING,
                with_interval(row.adjusted_share),
                with_interval(row.luck_adjusted),
                percent(row.ceiling.value),
                *([percent(row.optimum.value)] if searching else []),
                with_interval(row.success),
                with_interval(row.share_of_ceiling),
                f"{row.num_episodes:,}",
                f"{row.turns.value:.1f}",
            )
            for row in rows
        ],
        text_columns=3,
        is_stacked=True,
        notes=(PRIVILEGED_NOTE,) if any(row.privileged for row in rows) else (),
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
        headings: list[CellLike] = [""]
        for row in rows:
            name = policy_cell(row)
            headings.append(Cell(name.text, detail=row.prompt_type, mark=name.mark, mark_meaning=name.mark_meaning))
        return Table(caption, headings, [[name, *cells] for name, cells in causes], is_stacked=True, notes=notes)
    body = [
        [policy_cell(row), row.prompt_type, *(cells[number] for _, cells in causes)] for number, row in enumerate(rows)
    ]
    headings = ["policy", "prompt", *(name for name, _ in causes)]
    return Table(caption, headings, body, text_columns=2, is_stacked=True, notes=notes)


def luck_table(rows: Sequence[GroupSummary]) -> Table:
    """Return how much luck there was, how it was taken out, and what that is worth."""
    return Table(
        "Luck and its slope β, in percent of episodes, with 95% intervals clustered by task",
        ("policy", "prompt", "luck", "fitted β", "adjusted with β = 1", "worth episodes"),
        [
            (
                policy_cell(row),
                row.prompt_type,
                with_interval(row.luck, signed=True),
                NOTHING if math.isnan(row.mean_beta) else f"{row.mean_beta:.2f}",
                with_interval(row.luck_adjusted_beta_1),
                _episodes_saved(row),
            )
            for row in rows
        ],
        text_columns=2,
    )


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


def _notes(rows: Sequence[GroupSummary], labels: Sequence[str]) -> list[str]:
    searching = any(map(must_search, rows))
    notes = [TRIES_AGAIN] if any(row.tries_again for row in rows) else []
    if "information" in labels:
        notes.append(f"{INFORMATION} {SEARCHING}" if searching else INFORMATION)
    unknown = sum(row.num_without_ceiling for row in rows if not row.tries_again)
    notes += [f"{SEARCHES_UNKNOWN} {count_of(unknown, 'episode')}."] if unknown else []
    notes += [note for note in (bound_note(rows),) if note is not None]
    notes += overshoot_notes(rows)
    notes += [REGRET_ADDS_UP] if any(row.unavoidable + row.regret.value > 1.0 for row in rows) else []
    return notes + ([PRIVILEGED_NOTE] if any(row.privileged for row in rows) else [])


def overshoot_notes(rows: Sequence[GroupSummary]) -> list[str]:
    """Say why a share is shown as below 0 or above 100, if one is."""
    shares = [row.adjusted_share.value for row in rows]
    if not any(share <= -SMALLEST_SHOWN or share >= 1.0 + SMALLEST_SHOWN for share in shares):
        return []
    return [f"{OVERSHOOT} {BEYOND}" if any(map(must_search, rows)) else OVERSHOOT]


def _episodes_saved(row: GroupSummary) -> str:
    """How many times the episodes a raw rate would need for the interval of the adjusted one."""
    raw, adjusted = row.success.standard_error, row.luck_adjusted.standard_error
    if math.isnan(raw) or math.isnan(adjusted) or raw <= 0.0 or adjusted <= 0.0:
        return NOTHING
    return f"{(raw / adjusted) ** 2:.1f} ×"
