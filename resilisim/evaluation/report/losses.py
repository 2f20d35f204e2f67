"""What cost most: single calls, single tasks, and lost points by policy, prompt, flaw, task type and tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilisim.evaluation.breakdown import BreakdownRow
from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report.cells import NOTHING, REGRET_ADDS_UP, name_cell, percent, plain
from resilisim.evaluation.report.content import Block, Cell, CellLike, Fold, Section, Table
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.rows import policies_of
from resilisim.evaluation.report.worst_tasks import worst_tasks

MOST_POLICIES = 6  # with columns of their own
OPEN_CALLS, MOST_CALLS = 5, 50
MOST_CAUSES = 3
MESSAGE_LENGTH = 120
NO_INTERVALS = "No intervals: sums over calls, which say where points went and compare nothing."

# What a dimension's rows are called, what stands for the one without a name, and what its table is about.
DIMENSIONS: Mapping[str, tuple[str, str, str]] = {
    "policy": ("policy", NOTHING, "by policy, all prompts together"),
    "prompt": ("prompt", NOTHING, "by prompt"),
    "flaw": ("flaw of the plan", "no flaw", "by flaw of the plan in the prompt"),
    "task_type": ("task type", NOTHING, "by task type"),
    "tool": ("tool", "none (searches, endings, rejected calls)", "by the tool that was run"),
}


@dataclass(slots=True)
class _Total:
    """What some calls cost together."""

    episodes: int = 0
    calls: int = 0
    losses: dict[str, float] = field(default_factory=dict)

    def add(self, row: BreakdownRow) -> None:
        self.episodes += row.episodes
        self.calls += row.calls
        for label, amount in row.losses.items():
            self.losses[label] = self.losses.get(label, 0.0) + amount

    @property
    def regret(self) -> float:
        return sum(self.losses.values())


def losses_section(facts: RunFacts) -> Section | None:
    """Return what cost most, or None where no policy has a ceiling to lose points from, or none lost any."""
    if all(row.tries_again for row in facts.rows):
        return None
    blocks = [*costliest_calls(facts), *worst_tasks(facts), *totals_folds(facts)]
    return Section("losses", "What cost most", blocks) if blocks else None


def totals_folds(facts: RunFacts) -> list[Block]:
    """Return a folded table for each dimension in which a run has several parts."""
    found: list[Block] = []
    for dimension in DIMENSIONS:
        table = totals_table(facts, dimension)
        if table is not None:
            found.append(Fold(f"Lost points by {plain(dimension)}", [table]))
    return found


def totals_table(facts: RunFacts, dimension: str) -> Table | None:
    """Return the lost points by the parts of a dimension, or None where there is one part only.

    Args:
        facts: The run's facts.
        dimension: A key of `DIMENSIONS`.
    """
    again = {row.policy for row in facts.rows if row.tries_again}
    privileged = {row.policy for row in facts.rows if row.privileged}
    policies = [policy for policy in policies_of(facts) if policy not in again]
    counted = [policy for policy in policies if policy not in privileged] or policies
    all_episodes: dict[str, int] = {}
    for row in facts.breakdown.totals("policy"):
        all_episodes[row.policy] = row.episodes
    parts: dict[str, dict[str, _Total]] = {}
    for row in facts.breakdown.totals(dimension):
        if row.policy not in again:
            parts.setdefault(row.key, {}).setdefault(row.policy, _Total()).add(row)
    if dimension == "policy":
        return _policies_table(parts, policies, privileged)
    if len(parts) < 2:
        return None
    shown = policies if 1 < len(policies) <= MOST_POLICIES else []
    sums = {key: _together(part, counted) for key, part in parts.items()}
    # Of a tool the episodes are all those of the policy: whether to run it at all is part of the choice.
    of_all = dimension == "tool"
    num_counted = sum(all_episodes.get(policy, 0) for policy in counted)
    rows: list[list[CellLike]] = []
    heading, nameless, what = DIMENSIONS[dimension]
    for key in sorted(parts, key=lambda key: (-round(sums[key].regret, 9), key)):
        total = sums[key]
        cells: list[CellLike] = [
            plain(key) if key and dimension != "tool" else key or nameless,
            _causes(total),
            f"{total.episodes:,}",
            f"{total.calls:,}",
            _per_episode(total.regret, num_counted if of_all else total.episodes),
        ]
        for policy in shown:
            own = parts[key].get(policy, _Total())
            cells.append(_per_episode(own.regret, all_episodes.get(policy, 0) if of_all else own.episodes))
        rows.append(cells)
    whose = "all" if len(counted) == len(policies) else "all without *"
    unit = "of all episodes" if of_all else "of its episodes"
    return Table(
        f"Points lost by calls of 100 {unit}, {what}",
        (
            heading,
            "costliest causes",
            "episodes",
            "runs of the tool" if of_all else "messages",
            f"lost, {whose}",
            *(name_cell(policy, policy in privileged) for policy in shown),
        ),
        rows,
        text_columns=2,
        notes=(NO_INTERVALS, REGRET_ADDS_UP),
    )


def costliest_calls(facts: RunFacts) -> list[Block]:
    """Return the table of the calls that cost most, with links to their episodes; nothing where no call cost."""
    calls = facts.breakdown.costliest[:MOST_CALLS]
    if not calls:
        return []
    rows: list[list[CellLike]] = []
    for call in calls:
        text = " ".join(call.message.split())
        message = text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"
        rows.append(
            [
                Cell(str(call.index), link=f"#episode-{call.index}"),
                call.policy,
                call.prompt_type,
                Cell(message or "(stopped by itself)", style="message"),
                Cell(plain(call.label), explanation=LOSS_LABELS.get(call.label)),
                str(call.turn),
                percent(call.regret),
            ]
        )
    first, rest = rows[:OPEN_CALLS], rows[OPEN_CALLS:]
    what = "that cost most, in points of the chance of success"
    blocks: list[Block] = [_calls_table(f"The {count_of(len(first), 'call')} {what}", first)]
    if rest:
        following = f"The {count_of(len(rest), 'next call', 'next calls')}"
        blocks.append(Fold(following, [_calls_table(f"{following} {what}", rest)]))
    return blocks


def _calls_table(caption: str, rows: Sequence[Sequence[CellLike]]) -> Table:
    return Table(
        caption,
        ("episode", "policy", "prompt", "message", "why it cost", "turn", "cost"),
        rows,
        text_columns=5,
        notes=("No intervals: each is a single call, and its cost is exact.",),
    )


def _policies_table(
    parts: Mapping[str, Mapping[str, _Total]], policies: Sequence[str], privileged: set[str]
) -> Table | None:
    if len(policies) < 2:
        return None
    rows: list[list[CellLike]] = []
    for policy in policies:
        total = _together(parts.get(policy, {}), [policy])
        rows.append(
            [
                name_cell(policy, policy in privileged),
                _causes(total),
                f"{total.episodes:,}",
                f"{total.calls:,}",
                _per_episode(total.regret, total.episodes),
            ]
        )
    return Table(
        f"Points lost by calls of 100 episodes, {DIMENSIONS['policy'][2]}",
        ("policy", "costliest causes", "episodes", "messages", "lost"),
        rows,
        text_columns=2,
        notes=(NO_INTERVALS, REGRET_ADDS_UP),
    )


def _together(part: Mapping[str, _Total], policies: Sequence[str]) -> _Total:
    total = _Total()
    for policy in policies:
        own = part.get(policy)
        if own is None:
            continue
        total.episodes += own.episodes
        total.calls += own.calls
        for label, amount in own.losses.items():
            total.losses[label] = total.losses.get(label, 0.0) + amount
    return total


def _causes(total: _Total) -> str:
    """Return the causes that cost most, with their shares of what was lost."""
    whole = total.regret
    if whole <= 0.0:
        return "none"
    ordered = sorted(total.losses.items(), key=lambda item: (-item[1], item[0]))[:MOST_CAUSES]
    return ", ".join(f"{plain(label)} {amount / whole:.0%}" for label, amount in ordered if amount / whole >= 0.005)


def _per_episode(amount: float, episodes: int) -> str:
    return percent(amount / episodes) if episodes else NOTHING
