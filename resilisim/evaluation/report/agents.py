"""What LLM agents used, part by part, and where they gave up."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.evaluation.agent_measures import tokens_per_call, tokens_per_task
from resilisim.evaluation.agent_sums import NOBODY, SUM_FIELDS, AgentSums
from resilisim.evaluation.facts import RunFacts
from resilisim.evaluation.report import legend
from resilisim.evaluation.report.bar_chart import Part, bar_chart
from resilisim.evaluation.report.cells import NOTHING, shares_text
from resilisim.evaluation.report.content import Block, CellLike, Fold, Section, Table, beside_a_chart, folded_if_long
from resilisim.evaluation.report.drawing import RowLabel, series_style

NO_INTERVALS = "No intervals: totals divided by episodes; they describe this run and compare nothing."
GIVING_UP = (
    "First to give up: the first component that failed, or the limit that was hit before any did; "
    f"{NOBODY}: the agent was wrong and did not notice."
)
TOKENS = ("prompt_tokens", "completion_tokens")


def agents_section(facts: RunFacts) -> Section | None:
    """Return what LLM agents used and where they gave up, or None in a run without any."""
    agents = [sums for row in facts.rows if (sums := facts.sums.agents.get((row.policy, row.prompt_type))) is not None]
    if not agents:
        return None
    blocks: list[Block] = [
        "Calls of language models, by the part of the agent that made them.",
        *_chart(agents),
        beside_a_chart(usage_table(agents), "Calls, tokens and seconds as a table"),
        folded_if_long(giving_up_table(agents), "Where agents gave up"),
    ]
    replans = replans_table(agents)
    if replans is not None:
        blocks.append(Fold("Episodes by number of replans", [replans]))
    return Section("agents", "Language models", blocks)


def usage_table(agents: Sequence[AgentSums]) -> Table:
    """Return calls, tokens and seconds per episode for each component, and for each agent as a whole."""
    rows: list[list[CellLike]] = []
    for sums in agents:
        components = list(sums.components.items())
        if len(components) != 1:
            components.append(("all", {name: sums.total(name) for name in SUM_FIELDS}))
        for place, (role, values) in enumerate(components):
            calls = values["calls"]
            rows.append(
                [
                    *((sums.policy, sums.prompt_type) if place == 0 else ("", "")),
                    role,
                    f"{calls / sums.num_episodes:.1f}",
                    f"{values['prompt_tokens'] / sums.num_episodes:,.0f}",
                    f"{values['completion_tokens'] / sums.num_episodes:,.0f}",
                    f"{sum(values[name] for name in TOKENS) / calls:,.0f}" if calls else NOTHING,
                    f"{values['latency_seconds'] / sums.num_episodes:.1f}",
                    f"{values['from_cache'] / calls:.0%}" if calls else NOTHING,
                    _cost(sums) if place == len(components) - 1 else "",
                ]
            )
    notes = [NO_INTERVALS]
    if any(sums.has_estimates for sums in agents):
        notes.append("Some tokens are estimates, because an endpoint did not count them.")
    return Table(
        "Use of language models per episode, by component",
        (
            "policy",
            "prompt",
            "component",
            "calls",
            "prompt tokens",
            "reply tokens",
            "tokens per call",
            "seconds",
            "from cache",
            "dollars",
        ),
        rows,
        text_columns=3,
        notes=notes,
    )


def giving_up_table(agents: Sequence[AgentSums]) -> Table:
    """Return which component gave up first in failed episodes, how agents ended, and what could not be read."""
    rows: list[list[CellLike]] = [
        [
            sums.policy,
            sums.prompt_type,
            ", ".join(sorted(sums.protocols)),
            shares_text(sums.first_failures) if sums.first_failures else NOTHING,
            shares_text(sums.endings) if sums.endings else NOTHING,
            f"{sums.num_episodes - sums.num_right:,} of {sums.num_episodes:,}",
            f"{sums.malformed_replies / sums.num_episodes:.2f}",
            f"{sums.cut_replies / sums.num_episodes:.2f}",
            _whole(tokens_per_task(sums)),
            _whole(tokens_per_call(sums)),
        ]
        for sums in agents
    ]
    return Table(
        "Where agents gave up",
        (
            "policy",
            "prompt",
            "calls by",
            "first to give up in failed episodes",
            "what ended the agent",
            "failed",
            "unreadable replies per episode",
            "replies cut off per episode",
            "tokens per episode",
            "tokens per call",
        ),
        rows,
        text_columns=5,
        notes=(GIVING_UP, NO_INTERVALS),
    )


def replans_table(agents: Sequence[AgentSums]) -> Table | None:
    """Return how many episodes took how many replans, or None if no agent replanned."""
    shown = [sums for sums in agents if any(sums.replans["all"].keys() - {0})]
    if not shown:
        return None
    rows: list[list[CellLike]] = []
    for sums in shown:
        for number in sorted(sums.replans["all"]):
            counts = [sums.replans[which][number] for which in ("all", "finished", "right")]
            first = number == min(sums.replans["all"])
            rows.append(
                [
                    *((sums.policy, sums.prompt_type) if first else ("", "")),
                    str(number),
                    *(f"{count:,}" for count in counts),
                    f"{counts[2] / counts[0]:.0%}",
                ]
            )
    return Table(
        "Episodes by number of replans",
        ("policy", "prompt", "replans", "episodes", "with an answer", "full success", "share"),
        rows,
        text_columns=3,
        notes=("No intervals: counts of episodes that chose themselves how often they replanned.",),
    )


def _chart(agents: Sequence[AgentSums]) -> list[Block]:
    roles = list(dict.fromkeys(role for sums in agents for role in sums.components))
    if not roles:
        return []
    labels, bars = [], []
    several = len({sums.prompt_type for sums in agents}) > 1
    for place, sums in enumerate(agents):
        repeated = place > 0 and agents[place - 1].policy == sums.policy
        prompt = sums.prompt_type if several else ""
        labels.append(RowLabel("" if repeated else sums.policy, prompt, False, f"{sums.policy} {prompt}".strip()))
        bars.append(
            [
                Part(
                    series_style(number),
                    sum(sums.components[role][name] for name in TOKENS) / sums.num_episodes,
                    role,
                )
                for number, role in enumerate(roles)
                if role in sums.components
            ]
        )
    chart = bar_chart(
        "Tokens per episode, by component",
        "One stacked bar per agent and prompt type: tokens of prompts and replies of each component.",
        labels,
        bars,
        "tokens of prompts and replies per episode",
        lambda amount: f"{amount:,.0f}",
    )
    return [legend.parts_legend(roles), chart]


def _cost(sums: AgentSums) -> str:
    if sums.cost is None:
        return NOTHING
    return f"{sums.cost / sums.num_episodes:.4f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value == value else NOTHING
