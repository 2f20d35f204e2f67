"""How executions failed, by type of error, and what messages were."""

from __future__ import annotations

from collections.abc import Mapping

from resilisim.evaluation.facts import RunFacts
from resilisim.evaluation.report import legend
from resilisim.evaluation.report.bar_chart import Part, bar_chart
from resilisim.evaluation.report.cells import NOTHING, name_cell, plain
from resilisim.evaluation.report.content import Block, CellLike, Fold, Section, Table, beside_a_chart
from resilisim.evaluation.report.drawing import NUM_SERIES, RowLabel, series_style
from resilisim.evaluation.report.rows import policies_of

MOST_POLICIES = 8  # with columns of their own
TEXT = (
    "Failures that the simulator drew. A DEPENDENCY_ERROR would have been a success with all dependencies met; the "
    "others come by chance."
)
NO_INTERVALS = "No intervals: counts of draws by a known law, which describe this run and compare nothing."


def errors_section(facts: RunFacts) -> Section | None:
    """Return failed executions by type of error, or None if no execution failed."""
    errors = _by_policy(facts.breakdown.errors)
    if not any(errors.values()):
        return None
    executions = executions_by_policy(facts)
    policies = [policy for policy in policies_of(facts) if executions.get(policy)]
    privileged = {row.policy for row in facts.rows if row.privileged}
    names = _ordered(errors)
    shown = names[: NUM_SERIES - 1]
    bars = []
    for policy in policies:
        own = errors.get(policy, {})
        bar = [
            Part(series_style(place), own.get(name, 0) / executions[policy] * 100.0, name)
            for place, name in enumerate(shown)
        ]
        rest = sum(count for name, count in own.items() if name not in shown)
        if rest:
            bar.append(Part(series_style(NUM_SERIES - 1), rest / executions[policy] * 100.0, "others"))
        bars.append(bar)
    chart = bar_chart(
        "Failed executions by type of error",
        "One stacked bar per policy: failed executions of 100, by type of error.",
        [RowLabel(policy, "", policy in privileged, policy) for policy in policies],
        bars,
        "failed executions of 100",
        lambda amount: f"{amount:.3g}",
    )
    blocks: list[Block] = [
        TEXT,
        legend.parts_legend(shown + (["others"] if len(names) > len(shown) else [])),
        chart,
        beside_a_chart(errors_table(facts, errors, executions)),
        Fold("Messages by what they were", [kinds_table(facts)]),
    ]
    return Section("errors", "Errors", blocks)


def errors_table(facts: RunFacts, errors: Mapping[str, Mapping[str, int]], executions: Mapping[str, int]) -> Table:
    """Return failed executions by type of error: counts, and of each policy how many of 100 executions."""
    policies = [policy for policy in policies_of(facts) if executions.get(policy)]
    privileged = {row.policy for row in facts.rows if row.privileged}
    shown = policies if 1 < len(policies) <= MOST_POLICIES else []
    all_failures = sum(sum(own.values()) for own in errors.values())
    all_executions = sum(executions.values())
    rows: list[list[CellLike]] = []
    for name in _ordered(errors):
        count = sum(own.get(name, 0) for own in errors.values())
        rows.append(
            [
                name,
                f"{count:,}",
                f"{100 * count / all_failures:.1f}",
                f"{100 * count / all_executions:.1f}",
                *(f"{100 * errors.get(policy, {}).get(name, 0) / executions[policy]:.1f}" for policy in shown),
            ]
        )
    rows.append(
        [
            "all errors",
            f"{all_failures:,}",
            "100.0",
            f"{100 * all_failures / all_executions:.1f}",
            *(f"{100 * sum(errors.get(policy, {}).values()) / executions[policy]:.1f}" for policy in shown),
        ]
    )
    return Table(
        f"Failed executions by type of error, of {all_executions:,} executions in all",
        (
            "error",
            "failures",
            "% of failures",
            "of 100 executions",
            *(name_cell(policy, policy in privileged) for policy in shown),
        ),
        rows,
        notes=(NO_INTERVALS,),
        summary_rows=1,
    )


def kinds_table(facts: RunFacts) -> Table:
    """Return what messages were, per episode of each policy."""
    kinds = _by_policy(facts.breakdown.kinds)
    names = _ordered(kinds)
    episodes = {row.policy: row.episodes for row in facts.breakdown.totals("policy")}
    privileged = {row.policy for row in facts.rows if row.privileged}
    rows: list[list[CellLike]] = []
    for policy in policies_of(facts):
        own = kinds.get(policy, {})
        if own and episodes.get(policy):
            cells = (f"{own[name] / episodes[policy]:.2f}" if own.get(name) else NOTHING for name in names)
            rows.append([name_cell(policy, policy in privileged), *cells])
    return Table(
        "Messages per episode, by what they were",
        ("policy", *(plain(name) for name in names)),
        rows,
        notes=(NO_INTERVALS,),
    )


def executions_by_policy(facts: RunFacts) -> dict[str, int]:
    """Return the executions of each policy under all prompts together."""
    found: dict[str, int] = {}
    for (policy, _, _), use in facts.breakdown.tool_uses.items():
        found[policy] = found.get(policy, 0) + use.executions
    return found


def _by_policy(counts: Mapping[tuple[str, str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (policy, _, name), count in counts.items():
        own = found.setdefault(policy, {})
        own[name] = own.get(name, 0) + count
    return found


def _ordered(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    totals: dict[str, int] = {}
    for own in counts.values():
        for name, count in own.items():
            totals[name] = totals.get(name, 0) + count
    return sorted(totals, key=lambda name: (-totals[name], name))
