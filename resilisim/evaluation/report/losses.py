"""What cost most: single calls, single tasks, lost points by policy, prompt and so on; errors; episodes that broke."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import LOSS_LABELS, FailureRecord
from resilisim.evaluation.report.charts import NUM_SERIES, RowLabel, legend, series_entries, series_style
from resilisim.evaluation.report.charts.rows import Part, bar_chart
from resilisim.evaluation.report.groups import PromptPools
from resilisim.evaluation.report.page import (
    NOTHING,
    Block,
    Cell,
    CellLike,
    Fold,
    Section,
    Table,
    beside_a_chart,
    on_one_line,
    percent,
    plain,
    say,
)
from resilisim.evaluation.run.store import EPISODES_NAME, FAILURES_NAME, read_failures
from resilisim.evaluation.table.breakdown import BreakdownRow, CostlyCall
from resilisim.evaluation.table.facts import RunFacts
from resilisim.run_folder import read_json_lines
from resilisim.statistics.estimates import FloatArray

MOST_POLICIES = 6  # with columns of their own in a table of losses
MOST_ERROR_POLICIES = 8  # and in one of errors
OPEN_CALLS, MOST_CALLS = 5, 50
MOST_CAUSES = 3
MESSAGE_LENGTH = 120
WORST_TASKS = 10
SHOWN_REGRET = 0.0005  # less than this prints as 0.0 points
MOST_REASONS, REASON_LENGTH = 12, 160
OTHERS = "others"  # the errors that have no colour of their own

# What a dimension's rows are called, what stands for the one without a name, and what its table is about.
DIMENSIONS: Mapping[str, tuple[str, str, str]] = {
    "policy": ("policy", NOTHING, "by policy, all prompts together"),
    "prompt": ("prompt", NOTHING, "by prompt"),
    "flaw": ("flaw of the plan", "no flaw", "by flaw of the plan in the prompt"),
    "task_type": ("task type", NOTHING, "by task type"),
    "tool": ("tool", "none (searches, endings, rejected calls)", "by the tool that was run"),
}


def losses_section(pools: PromptPools) -> Section | None:
    """Return what cost most, or None where no policy has a ceiling to lose points from, or none lost any."""
    facts = pools.facts
    if all(row.tries_again for row in facts.rows):
        return None
    blocks = [*costliest_calls(facts), *worst_tasks(facts)]
    for dimension in DIMENSIONS:
        table = totals_table(pools, dimension)
        if table is not None:
            blocks.append(Fold(f"Lost points by {plain(dimension)}", [table]))
    return Section("losses", "What cost most", blocks) if blocks else None


def costliest_calls(facts: RunFacts) -> list[Block]:
    """Return the table of the calls that cost most, with links to their episodes; nothing where no call cost."""
    calls = facts.breakdown.costliest[:MOST_CALLS]
    first, rest = calls[:OPEN_CALLS], calls[OPEN_CALLS:]
    blocks: list[Block] = [_calls_table(f"The {count_of(len(first), 'call')}", first)] if first else []
    if rest:
        following = f"The {count_of(len(rest), 'next call', 'next calls')}"
        blocks.append(Fold(following, [_calls_table(following, rest)]))
    return blocks


def _calls_table(which: str, calls: Sequence[CostlyCall]) -> Table:
    return Table.of(
        f"{which} that cost most, in points of the chance of success",
        calls,
        [
            ("episode", lambda call: Cell(str(call.index), link=f"#episode-{call.index}")),
            ("policy", "policy"),
            ("prompt", "prompt_type"),
            ("message", lambda call: Cell(message_line(call.message, MESSAGE_LENGTH), style="message")),
            ("why it cost", lambda call: Cell(plain(call.label), explanation=LOSS_LABELS.get(call.label))),
            ("turn", lambda call: str(call.turn)),
            ("cost", "regret"),
        ],
        text_columns=5,
        notes=(say("no_intervals_calls"),),
    )


def message_line(message: str, most: int) -> str:
    """Return a message on one line; without any, the agent stopped."""
    return on_one_line(message, most) or "(stopped by itself)"


def worst_tasks(facts: RunFacts) -> list[Block]:
    """Return the tasks with the most points lost by calls; nothing where no call cost anything."""
    tasks = facts.table.tasks
    parts = [facts.table.group(*names) for names in facts.table.facts]
    comparable = [part for part in parts if not part.tries_again.any()]
    ordinary = [part for part in comparable if not part.privileged.any()]
    groups = ordinary or comparable

    def total(column: str) -> FloatArray:
        return sum((group.by_task(getattr(group, column)) for group in groups), start=np.zeros(len(tasks)))

    def costliest_cause(task: int) -> str:
        costs: defaultdict[str, float] = defaultdict(float)
        for group in groups:
            for label, amounts in group.losses.items():
                costs[label] += float(amounts[group.task == task].sum())
        return max(costs, key=lambda label: costs[label])

    count, outcome, optimum, luck = map(total, ("count", "outcome", "optimum", "luck"))
    regret = np.divide(optimum - outcome + luck, count, out=np.zeros_like(count), where=count > 0)  # (num_tasks,)
    worst = sorted(range(len(tasks)), key=lambda task: (-round(float(regret[task]), 9), tasks[task].instance_id))
    worst = [task for task in worst[:WORST_TASKS] if regret[task] >= SHOWN_REGRET]
    if not worst:
        return []
    table = Table.of(
        say("costliest_tasks", whose="the policies that are not privileged" if ordinary else "all policies"),
        worst,
        [
            ("task", lambda task: Cell(tasks[task].instance_id, style="id")),
            ("type", lambda task: plain(tasks[task].task_type)),
            ("required tools, in order", lambda task: Cell(" → ".join(tasks[task].required_tools), style="tools")),
            ("costliest cause", lambda task: plain(costliest_cause(task))),
            ("episodes", lambda task: f"{count[task]:,.0f}"),
            ("ceiling V*", lambda task: float(optimum[task] / count[task])),
            ("success", lambda task: float(outcome[task] / count[task])),
            ("lost by calls", lambda task: float(regret[task])),
        ],
        text_columns=4,
        notes=(say("no_intervals_tasks"), say("regret_adds_up")),
    )
    return [Fold("The costliest tasks", [table])]


@dataclass(slots=True)
class _Total:
    """What some calls cost together."""

    episodes: int = 0
    calls: int = 0
    losses: dict[str, float] = field(default_factory=dict)  # points by label

    def add(self, row: BreakdownRow | _Total) -> _Total:
        self.episodes += row.episodes
        self.calls += row.calls
        for label, amount in row.losses.items():
            self.losses[label] = self.losses.get(label, 0.0) + amount
        return self

    @property
    def regret(self) -> float:
        return sum(self.losses.values())

    @property
    def causes(self) -> str:
        """The causes that cost most, with their shares of what was lost."""
        whole = self.regret
        if whole <= 0.0:
            return "none"
        ordered = sorted(self.losses.items(), key=lambda item: (-item[1], item[0]))[:MOST_CAUSES]
        return ", ".join(f"{plain(label)} {amount / whole:.0%}" for label, amount in ordered if amount / whole >= 0.005)

    def per_episode(self, episodes: int | None = None) -> str:
        """Points lost of 100 of its own episodes, or of so many."""
        number = self.episodes if episodes is None else episodes
        return percent(self.regret / number) if number else NOTHING


def totals_table(pools: PromptPools, dimension: str) -> Table | None:
    """Return the lost points by the parts of one of `DIMENSIONS`, or None where there is one part only."""
    breakdown = pools.facts.breakdown
    again = {row.policy for row in pools.rows if row.tries_again}
    policies = [policy for policy in pools.policies if policy not in again]
    counted = [policy for policy in policies if policy in pools.ordinary] or policies
    parts: dict[str, dict[str, _Total]] = {}
    for row in breakdown.totals(dimension):
        if row.policy not in again:
            parts.setdefault(row.key, {}).setdefault(row.policy, _Total()).add(row)
    if len(parts) < 2:
        return None
    heading, nameless, what = DIMENSIONS[dimension]
    # Of a tool the episodes are all those of the policy: whether to run it at all is part of the choice.
    is_tool, by_policy = dimension == "tool", dimension == "policy"
    of_policy = {row.policy: row.episodes for row in breakdown.totals("policy")} if is_tool else {}
    num_counted = sum(of_policy.get(policy, 0) for policy in counted) if is_tool else None
    sums = {name: _together(part, policies if by_policy else counted) for name, part in parts.items()}
    shown = policies if 1 < len(policies) <= MOST_POLICIES and not by_policy else []

    def name(part: str) -> CellLike:
        return pools.name(part) if by_policy else (part if is_tool else plain(part)) or nameless

    def lost(policy: str) -> tuple[Cell, Callable[[str], str]]:
        of_all = of_policy.get(policy, 0) if is_tool else None
        return pools.name(policy), lambda part: parts[part].get(policy, _Total()).per_episode(of_all)

    whose = "lost, all" if len(counted) == len(policies) else "lost, all without *"
    unit = "episodes" if by_policy else "of all episodes" if is_tool else "of its episodes"
    return Table.of(
        f"Points lost by calls of 100 {unit}, {what}",
        policies if by_policy else sorted(parts, key=lambda name: (-round(sums[name].regret, 9), name)),
        [
            (heading, name),
            ("costliest causes", lambda part: sums[part].causes),
            ("episodes", lambda part: sums[part].episodes),
            ("runs of the tool" if is_tool else "messages", lambda part: sums[part].calls),
            ("lost" if by_policy else whose, lambda part: sums[part].per_episode(num_counted)),
            *map(lost, shown),
        ],
        text_columns=2,
        notes=(say("no_intervals_sums"), say("regret_adds_up")),
    )


def _together(part: Mapping[str, _Total], policies: Sequence[str]) -> _Total:
    total = _Total()
    for policy in policies:
        total.add(part.get(policy, _Total()))
    return total


def errors_section(pools: PromptPools) -> Section | None:
    """Return failed executions by type of error, or None if no execution failed."""
    errors = _by_policy(pools.facts.breakdown.errors)
    if not any(errors.values()):
        return None
    executions: Counter[str] = Counter()
    for (policy, _, _), number in pools.facts.breakdown.executions.items():
        executions[policy] += number
    policies = [policy for policy in pools.policies if executions[policy]]
    names = _ordered(errors)
    shown, rest = names[: NUM_SERIES - 1], names[NUM_SERIES - 1 :]
    series = [(name, [name]) for name in shown] + [(OTHERS, rest)] * bool(rest)

    def part(policy: str, place: int) -> Part:
        name, counted = series[place]
        failed = sum(errors[policy][error] for error in counted)
        return Part(series_style(place), failed / executions[policy] * 100.0, name)

    chart = bar_chart(
        "Failed executions by type of error",
        "One stacked bar per policy: failed executions of 100, by type of error.",
        [RowLabel(policy, "", pools.is_privileged(policy), policy) for policy in policies],
        [[part(policy, place) for place in range(len(series))] for policy in policies],
        "failed executions of 100",
        lambda amount: f"{amount:.3g}",
    )
    blocks: list[Block] = [
        say("errors"),
        legend(*series_entries("square", [name for name, _ in series])),
        chart,
        beside_a_chart(_errors_table(pools, names, policies, errors, executions)),
        Fold("Messages by what they were", [_kinds_table(pools)]),
    ]
    return Section("errors", "Errors", blocks)


def _errors_table(
    pools: PromptPools,
    names: Sequence[str],
    policies: Sequence[str],
    errors: defaultdict[str, Counter[str]],
    executions: Counter[str],
) -> Table:
    """Return failed executions by type of error: counts, and of each policy how many of 100 executions."""
    shown = policies if 1 < len(policies) <= MOST_ERROR_POLICIES else []
    total: Counter[str] = sum(errors.values(), Counter())

    def row(name: str, counted: Sequence[str]) -> list[object]:
        def of_100(own: Counter[str], number: int) -> str:
            return f"{100 * sum(own[error] for error in counted) / number:.1f}"

        failures = sum(total[error] for error in counted)
        of_policies = [of_100(errors[policy], executions[policy]) for policy in shown]
        return [name, failures, of_100(total, total.total()), of_100(total, executions.total()), *of_policies]

    headings = ("error", "failures", "% of failures", "of 100 executions")
    return Table(
        f"Failed executions by type of error, of {executions.total():,} executions in all",
        (*headings, *map(pools.name, shown)),
        [*(row(name, [name]) for name in names), row("all errors", names)],
        notes=(say("no_intervals_counts"),),
        summary_rows=1,
    )


def _kinds_table(pools: PromptPools) -> Table:
    """Return what messages were, per episode of each policy."""
    kinds = _by_policy(pools.facts.breakdown.kinds)
    episodes = {row.policy: row.episodes for row in pools.facts.breakdown.totals("policy")}

    def column(name: str) -> tuple[str, Callable[[str], str]]:
        return plain(
            name
        ), lambda policy: f"{kinds[policy][name] / episodes[policy]:.2f}" if kinds[policy][name] else NOTHING

    return Table.of(
        "Messages per episode, by what they were",
        [policy for policy in pools.policies if kinds[policy] and episodes.get(policy)],
        [("policy", pools.name), *map(column, _ordered(kinds))],
        notes=(say("no_intervals_counts"),),
    )


def _by_policy(counts: Mapping[tuple[str, str, str], int]) -> defaultdict[str, Counter[str]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (policy, _, name), count in counts.items():
        found[policy][name] += count
    return found


def _ordered(counts: Mapping[str, Counter[str]]) -> list[str]:
    totals: Counter[str] = sum(counts.values(), Counter())
    return sorted(totals, key=lambda name: (-totals[name], name))


def broken_episodes(directory: Path | str) -> list[FailureRecord]:
    """Return the last failure of each episode that broke and was not finished by a later try, by place in the plan.

    Raises:
        StoreError: A file cannot be read.
    """
    last = {failure["index"]: failure for failure in read_failures(directory)}
    path = Path(directory) / EPISODES_NAME
    if last and path.exists():
        # Only a run in which something broke pays for this look at its episodes.
        for record in read_json_lines(path):
            last.pop(record.get("index"), None)
    return [last[index] for index in sorted(last)]


def broken_section(broken: list[FailureRecord]) -> Section | None:
    """Return what broke, or None if nothing did."""
    if not broken:
        return None
    counts = Counter(
        (failure["policy"], failure["prompt_type"], on_one_line(failure["error"], REASON_LENGTH)) for failure in broken
    )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    hidden = len(ordered) - MOST_REASONS
    notes = [f"{count_of(hidden, 'rarer reason')} left out; all stand in {FAILURES_NAME}."] if hidden > 0 else []
    table = Table(
        "Episodes that broke and are not finished",
        ("policy", "prompt", "reason", "episodes"),
        [[*names, count] for names, count in ordered[:MOST_REASONS]],
        text_columns=3,
        notes=notes,
    )
    text = say("broken", episodes=count_of(len(broken), "episode"))
    return Section("broken", "Broken episodes", [text, table])
