"""What cost most: single calls, single tasks, lost points by policy, prompt and so on; errors; episodes that broke."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import ALL_LOSS_LABELS, FailureRecord
from resilisim.evaluation.run.store import EPISODES_NAME, FAILURES_NAME, read_failures, read_records
from resilisim.evaluation.table.breakdown import BreakdownRow, CostlyCall
from resilisim.evaluation.table.facts import RunFacts
from resilisim.reporting.charts import NUM_SERIES, RowLabel, legend, series_entries, series_style
from resilisim.reporting.charts.rows import Part, bar_chart
from resilisim.reporting.groups import PromptPools
from resilisim.reporting.page import Block, Fold, Section, beside_a_chart, on_one_line, plain, say
from resilisim.statistics.estimates import FloatArray
from resilisim.tables.numbers import NO_NUMBER, counted_text, percent
from resilisim.tables.table import Cell, CellLike, Table

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
    "policy": ("policy", NO_NUMBER, "by policy, all prompts together"),
    "prompt": ("prompt", NO_NUMBER, "by prompt"),
    "flaw": ("flaw of the plan", "no flaw", "by flaw of the plan in the prompt"),
    "task_type": ("task type", NO_NUMBER, "by task type"),
    "tool": ("tool", "none (searches, endings, rejected calls)", "by the tool that was run"),
}


def losses_section(pools: PromptPools) -> Section | None:
    """Return what cost most, or None where no policy has a ceiling to lose points from, or none lost any."""
    facts = pools.facts
    if all(row.has_no_ceiling for row in facts.rows):
        return None
    blocks = [*costliest_calls(facts), *worst_tasks(facts)]
    tables = {dimension: totals_table(pools, dimension) for dimension in DIMENSIONS}
    blocks += [Fold(f"Lost points by {plain(name)}", [table]) for name, table in tables.items() if table is not None]
    return Section("losses", "What cost most", blocks) if blocks else None


def costliest_calls(facts: RunFacts) -> list[Block]:
    """Return the table of the calls that cost most, with links to their episodes; nothing where no call cost."""
    calls = facts.breakdown.costliest[:MOST_CALLS]
    first, rest = calls[:OPEN_CALLS], calls[OPEN_CALLS:]
    blocks: list[Block] = [_calls_table(f"The {count_of(len(first), 'call')}", first)] if first else []
    if rest:
        following = "The next call" if len(rest) == 1 else f"The next {len(rest)} calls"
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
            ("why it cost", lambda call: Cell(plain(call.label), explanation=ALL_LOSS_LABELS.get(call.label))),
            ("turn", "turn", "d"),
            ("cost", "regret"),
        ],
        text_columns=5,
        notes=[say("no_intervals_calls")],
    )


def message_line(message: str, most: int) -> str:
    """Return a message on one line, the calls of a native one as `tool({"x": 1})`; without any, the agent stopped."""
    return on_one_line(_native_calls(message) or message, most) or "(stopped by itself)"


def _native_calls(message: str) -> str:
    """Return the calls of a native message; nothing of one without any, or in another form."""
    try:
        functions = [call["function"] for call in json.loads(message)["tool_calls"]]
        texts = [(str(function["name"]), function.get("arguments")) for function in functions]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ""
    return ", ".join(f"{name}({'' if arguments in (None, '', '{}', {}) else arguments})" for name, arguments in texts)


def worst_tasks(facts: RunFacts) -> list[Block]:
    """Return the tasks with the most points lost by calls; nothing where no call cost anything."""
    tasks = facts.table.tasks
    parts = [facts.table.group(*names) for names in facts.table.facts]
    comparable = [part for part in parts if not part.has_no_ceiling]
    ordinary = [part for part in comparable if not part.privileged.any()]
    groups = ordinary or comparable

    def total(column: str) -> FloatArray:
        return sum((group.by_task(getattr(group, column)) for group in groups), start=np.zeros(len(tasks)))

    def costliest_cause(task: int) -> str:
        costs: Counter[str] = Counter()
        for group in groups:
            costs.update({label: float(sums[group.task == task].sum()) for label, sums in group.losses.items()})
        return plain(max(costs, key=costs.__getitem__))

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
            ("costliest cause", costliest_cause),
            ("episodes", lambda task: count[task], ",.0f"),
            ("ceiling V*", lambda task: optimum[task] / count[task]),
            ("success", lambda task: outcome[task] / count[task]),
            ("lost by calls", lambda task: regret[task]),
        ],
        text_columns=4,
        notes=[say("no_intervals_tasks"), say("regret_adds_up")],
    )
    return [Fold("The costliest tasks", [table])]


@dataclass(slots=True)
class _Total:
    """What some calls cost together."""

    episodes: float = 0.0
    calls: float = 0.0
    losses: Counter[str] = field(default_factory=Counter)  # points by label

    @classmethod
    def of(cls, rows: Iterable[BreakdownRow]) -> _Total:
        total = cls()
        for row in rows:
            total.episodes += row.episodes
            total.calls += row.calls
            total.losses.update(row.losses)
        return total

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

    def per_episode(self, episodes: float | None = None) -> str:
        """Points lost of 100 of its own episodes, or of so many."""
        number = self.episodes if episodes is None else episodes
        return percent(self.regret / number) if number else NO_NUMBER


def totals_table(pools: PromptPools, dimension: str) -> Table | None:
    """Return the lost points by the parts of one of `DIMENSIONS`, or None where there is one part only."""
    breakdown = pools.facts.breakdown
    again = {row.policy for row in pools.rows if row.has_no_ceiling}
    policies = [policy for policy in pools.policies if policy not in again]
    counted = [policy for policy in policies if policy in pools.ordinary] or policies
    rows = [row for row in breakdown.totals(dimension) if row.policy not in again]
    parts = list(dict.fromkeys(row.key for row in rows))
    if len(parts) < 2:
        return None
    heading, nameless, what = DIMENSIONS[dimension]
    # Of a tool the episodes are all those of the policy: whether to run it at all is part of the choice.
    is_tool, by_policy = dimension == "tool", dimension == "policy"
    of_policy = _episodes_of(pools) if is_tool else {}

    def total(part: str, policies: Sequence[str]) -> _Total:
        return _Total.of(row for row in rows if row.key == part and row.policy in policies)

    def name(part: str) -> CellLike:
        return pools.name(part) if by_policy else (part if is_tool else plain(part)) or nameless

    def lost(policy: str) -> tuple[Cell, Callable[[str], str]]:
        of_all = of_policy.get(policy, 0) if is_tool else None
        return pools.name(policy), lambda part: total(part, [policy]).per_episode(of_all)

    sums = {part: total(part, policies if by_policy else counted) for part in parts}
    num_counted = sum(of_policy.get(policy, 0) for policy in counted) if is_tool else None
    whose = "lost" + ", all" * (not by_policy) + " without *" * (not by_policy and len(counted) < len(policies))
    unit = "episodes" if by_policy else "of all episodes" if is_tool else "of its episodes"
    return Table.of(
        f"Points lost by calls of 100 {unit}, {what}",
        policies if by_policy else sorted(parts, key=lambda part: (-round(sums[part].regret, 9), part)),
        [
            (heading, name),
            ("costliest causes", lambda part: sums[part].causes),
            ("episodes", lambda part: counted_text(sums[part].episodes)),
            ("runs of the tool" if is_tool else "messages", lambda part: counted_text(sums[part].calls)),
            (whose, lambda part: sums[part].per_episode(num_counted)),
            *(map(lost, policies) if 1 < len(policies) <= MOST_POLICIES and not by_policy else ()),
        ],
        text_columns=2,
        notes=[say("no_intervals_sums"), say("regret_adds_up")],
    )


def _episodes_of(pools: PromptPools) -> Mapping[str, float]:
    return {row.policy: row.episodes for row in pools.facts.breakdown.totals("policy")}


def errors_section(pools: PromptPools) -> Section | None:
    """Return failed executions by type of error, or None if no execution failed."""
    errors = _by_policy(pools.facts.breakdown.errors)
    if not errors:
        return None
    executions = {policy: sum(runs.values()) for policy, runs in _by_policy(pools.facts.breakdown.executions).items()}
    policies = [policy for policy in pools.policies if executions.get(policy)]
    names = _ordered(errors)
    shown, rest = names[: NUM_SERIES - 1], names[NUM_SERIES - 1 :]
    series = [*((name, [name]) for name in shown), *[(OTHERS, rest)] * bool(rest)]

    def bar(policy: str) -> list[Part]:
        counts = [sum(errors[policy][error] for error in counted) for _, counted in series]
        return [
            Part(series_style(place), failed / executions[policy] * 100.0, series[place][0])
            for place, failed in enumerate(counts)
        ]

    chart = bar_chart(
        "Failed executions by type of error",
        "One stacked bar per policy: failed executions of 100, by type of error.",
        [RowLabel(policy, "", pools.is_privileged(policy), policy) for policy in policies],
        list(map(bar, policies)),
        "failed executions of 100",
        lambda amount: f"{amount:.3g}",
    )
    blocks: list[Block] = [
        say("errors"),
        legend(*series_entries("square", [name for name, _ in series])),
        chart,
        beside_a_chart(_errors_table(pools, policies, errors, executions)),
        Fold("Messages by what they were", [_kinds_table(pools)]),
    ]
    return Section("errors", "Errors", blocks)


def _errors_table(
    pools: PromptPools,
    policies: Sequence[str],
    errors: Mapping[str, Mapping[str, float]],
    executions: Mapping[str, float],
) -> Table:
    total = _summed(errors)
    num_executions = sum(executions.values())
    every = "all errors"

    def failures(name: str, counts: Mapping[str, float] = total) -> float:
        return sum(counts.values()) if name == every else counts[name]

    def of_policy(policy: str) -> tuple[Cell, Callable[[str], float], str]:
        return pools.name(policy), lambda name: 100 * failures(name, errors[policy]) / executions[policy], ".1f"

    return Table.of(
        f"Failed executions by type of error, of {counted_text(num_executions)} executions in all",
        [*_ordered(errors), every],
        [
            ("error", str),
            ("failures", lambda name: counted_text(failures(name))),
            ("% of failures", lambda name: 100 * failures(name) / failures(every), ".1f"),
            ("of 100 executions", lambda name: 100 * failures(name) / num_executions, ".1f"),
            *(map(of_policy, policies) if 1 < len(policies) <= MOST_ERROR_POLICIES else ()),
        ],
        notes=[say("no_intervals_counts")],
        summary_rows=1,
    )


def _kinds_table(pools: PromptPools) -> Table:
    kinds, episodes = _by_policy(pools.facts.breakdown.kinds), _episodes_of(pools)

    def column(name: str) -> tuple[str, Callable[[str], float | None], str]:
        return plain(name), lambda policy: kinds[policy][name] / episodes[policy] or None, ".2f"

    return Table.of(
        "Messages per episode, by what they were",
        [policy for policy in pools.policies if kinds[policy] and episodes.get(policy)],
        [("policy", pools.name), *map(column, _ordered(kinds))],
        notes=[say("no_intervals_counts")],
    )


def _by_policy(counts: Mapping[tuple[str, str, str], float]) -> defaultdict[str, defaultdict[str, float]]:
    own: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (policy, _, name), count in counts.items():
        own[policy][name] += count
    return own


def _summed(counts: Mapping[str, Mapping[str, float]]) -> defaultdict[str, float]:
    totals: defaultdict[str, float] = defaultdict(float)
    for own in counts.values():
        for name, count in own.items():
            totals[name] += count
    return totals


def _ordered(counts: Mapping[str, Mapping[str, float]]) -> list[str]:
    totals = _summed(counts)
    return sorted(totals, key=lambda name: (-totals[name], name))


def broken_episodes(directory: Path | str) -> list[FailureRecord]:
    """Return the last failure of each episode that broke and was not finished by a later try, by place in the plan."""
    last = {failure["index"]: failure for failure in read_failures(directory)}
    path = Path(directory) / EPISODES_NAME
    finished = set()
    if last and path.exists():
        # Only a run in which something broke pays for this look at its episodes.
        for record in read_records(directory):
            last.pop(record["index"], None)
            finished.add(tuple(record.get(name) for name in _SAME_EPISODE))
    return [last[index] for index in sorted(last) if tuple(map(last[index].get, _SAME_EPISODE)) not in finished]


_SAME_EPISODE = ("policy", "prompt_type", "instance_id", "seed")  # also where a program without a plan tries again


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
