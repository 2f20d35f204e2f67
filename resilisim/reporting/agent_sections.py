"""LLM agents: what they used, part by part, where they gave up, and how one agent does with several models."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from resilisim.evaluation.run.contestants import split_name
from resilisim.evaluation.table.agents import (
    NOBODY,
    SUM_FIELDS,
    AgentSums,
    combined_performance_score,
    deviation_over_models,
    mixture_note,
    saturation,
)
from resilisim.evaluation.table.facts import RunFacts
from resilisim.reporting.charts import NUM_SERIES, legend, row_labels, series_entries, series_style
from resilisim.reporting.charts.lines import LinePanel, Series, line_charts
from resilisim.reporting.charts.rows import Part, bar_chart
from resilisim.reporting.groups import BY_MODEL_SIZE, LEVEL_NAMES, PromptPools, published_beside
from resilisim.reporting.page import Block, Fold, Section, beside_a_chart, name_cell, plain, say, shares_text
from resilisim.statistics import Estimate
from resilisim.tables.numbers import NO_NUMBER, counted_text
from resilisim.tables.table import Column, Table

MOST_OPEN_ROWS = 8  # of a table that is not folded away

# "7B", "0.5b", "135M", "8x7B"; a letter or digit before it belongs to another word, as in "A3B".
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![A-Za-z0-9])", re.IGNORECASE)
_UNITS = {"b": 1e9, "m": 1e6}


def agents_section(facts: RunFacts) -> Section | None:
    """Return what LLM agents used and where they gave up, or None in a run without any."""
    totals = (facts.agents.get((row.policy, row.prompt_type)) for row in facts.rows)
    agents = [sums for sums in totals if sums is not None]
    if not agents:
        return None
    asking = _asking(agents)
    giving_up, *replans = agent_tables(agents)[bool(asking) :]  # and what was stored
    blocks: list[Block] = []
    if asking:
        usage = beside_a_chart(_usage_table(asking), "Calls, tokens and seconds as a table")
        blocks = [say("agents"), *_tokens_chart(asking), usage]
    blocks.append(giving_up if len(agents) <= MOST_OPEN_ROWS else Fold("Where agents gave up", [giving_up]))
    blocks += [Fold(table.caption, [table]) for table in replans]
    return Section("agents", "Language models" if asking else "Agents", blocks)


def _asking(agents: Sequence[AgentSums]) -> list[AgentSums]:
    """Return the agents of which it is known that they asked a model."""
    return [sums for sums in agents if sums.total("calls") or sums.tokens]


def agent_tables(agents: Sequence[AgentSums]) -> list[Table]:
    """Return what agents used, if they asked models, where they gave up and how often they replanned, if any did."""
    replans, asking = _replans_table(agents), _asking(agents)
    usage = [_usage_table(asking)] if asking else []
    stored = _stored_table(agents)
    more = [table for table in (replans, stored) if table is not None]
    return [*usage, _giving_up_table(agents), *more]


def _tokens(values: Mapping[str, float]) -> float:
    return values["prompt_tokens"] + values["completion_tokens"]


def _tokens_chart(agents: Sequence[AgentSums]) -> list[Block]:
    roles = list(dict.fromkeys(role for sums in agents for role in sums.components))
    if not roles:
        return []

    def bar(sums: AgentSums) -> list[Part]:
        return [
            Part(series_style(number), _tokens(sums.components[role]) / sums.num_episodes, role)
            for number, role in enumerate(roles)
            if role in sums.components
        ]

    several = len({sums.prompt_type for sums in agents}) > 1
    chart = bar_chart(
        "Tokens per episode, by component",
        say("tokens_chart"),
        row_labels((sums.policy, sums.prompt_type if several else "") for sums in agents),
        list(map(bar, agents)),
        "tokens of prompts and replies per episode",
        lambda amount: f"{amount:,.0f}",
    )
    return [legend(*series_entries("square", roles)), chart]


class _Usage(NamedTuple):
    """What a component of an agent used, or all of them together."""

    sums: AgentSums
    role: str
    values: Mapping[str, float]
    is_first: bool
    is_last: bool

    def per_episode(self, name: str) -> float:
        return self.values[name] / self.sums.num_episodes

    def per_call(self, amount: float) -> float:
        return amount / self.values["calls"] if self.values["calls"] else math.nan

    @property
    def dollars(self) -> str:
        if not self.is_last:
            return ""
        return NO_NUMBER if self.sums.cost is None else f"{self.sums.cost / self.sums.num_episodes:.4f}"


def _usages(sums: AgentSums) -> Iterator[_Usage]:
    components = list(sums.components.items())
    if len(components) != 1:
        components.append(("all", {name: sums.total(name) for name in SUM_FIELDS}))
    for place, (role, values) in enumerate(components):
        yield _Usage(sums, role, values, place == 0, place == len(components) - 1)


def _usage_table(agents: Sequence[AgentSums]) -> Table:
    mixture = mixture_note({sums.policy: sums.sampling for sums in agents})
    estimated = [say("estimated_tokens")] if any(sums.has_estimates for sums in agents) else []
    return Table.of(
        "Use of language models per episode, by component",
        [usage for sums in agents for usage in _usages(sums)],
        [
            ("policy", lambda usage: usage.sums.policy if usage.is_first else ""),
            ("prompt", lambda usage: usage.sums.prompt_type if usage.is_first else ""),
            ("component", "role"),
            ("calls", lambda usage: usage.per_episode("calls"), ",.1f"),
            ("prompt tokens", lambda usage: usage.per_episode("prompt_tokens"), ",.0f"),
            ("reply tokens", lambda usage: usage.per_episode("completion_tokens"), ",.0f"),
            ("tokens per call", lambda usage: usage.per_call(_tokens(usage.values)), ",.0f"),
            ("seconds", lambda usage: usage.per_episode("latency_seconds"), ",.1f"),
            ("from cache", lambda usage: usage.per_call(usage.values["from_cache"]), ".0%"),
            ("dollars", "dollars"),
        ],
        text_columns=3,
        notes=[say("no_intervals_totals"), *estimated, *([] if mixture is None else [mixture])],
    )


def _giving_up_table(agents: Sequence[AgentSums]) -> Table:
    of_models: list[Column[AgentSums]] = [
        ("unreadable replies per episode", lambda sums: sums.malformed_replies / sums.num_episodes, ".2f"),
        ("replies cut off per episode", lambda sums: sums.cut_replies / sums.num_episodes, ".2f"),
        ("tokens per episode", "tokens_per_task", ",.0f"),
        ("tokens per call", "tokens_per_call", ",.0f"),
    ]
    return Table.of(
        "Where agents gave up",
        agents,
        [
            ("policy", "policy"),
            ("prompt", "prompt_type"),
            ("calls by", lambda sums: ", ".join(sorted(sums.protocols))),
            ("first to give up in failed episodes", lambda sums: shares_text(sums.first_failures) or None),
            ("what ended the agent", lambda sums: shares_text(sums.endings) or None),
            ("failed", lambda sums: _of_all(sums, sums.num_episodes - sums.num_right)),
            *(of_models if _asking(agents) else []),
        ],
        text_columns=5,
        notes=[say("giving_up", nobody=NOBODY), say("no_intervals_totals")],
    )


def _of_all(sums: AgentSums, episodes: float) -> str:
    return f"{counted_text(episodes)} of {counted_text(sums.num_episodes)}"


def _stored_table(agents: Sequence[AgentSums]) -> Table | None:
    """Return what it saved to store long outputs instead of showing them, or None if no agent stores any."""
    storing = [sums for sums in agents if sums.thresholds]
    if not any(sums.offloads for sums in storing):
        return None

    def share(sums: AgentSums) -> float:
        would = sums.total("prompt_tokens") + sums.tokens_saved
        return sums.tokens_saved / would if would else math.nan

    return Table.of(
        "Outputs stored instead of shown",
        storing,
        [
            ("policy", "policy"),
            ("prompt", "prompt_type"),
            ("stored from", lambda sums: sums.thresholds["offload_tokens"], ",d"),
            ("shown", lambda sums: sums.thresholds["preview_tokens"] or sums.thresholds["offload_tokens"], ",d"),
            ("stored per episode", lambda sums: sums.offloads / sums.num_episodes, ".1f"),
            ("prompt tokens", lambda sums: sums.total("prompt_tokens") / sums.num_episodes, ",.0f"),
            ("saved", lambda sums: sums.tokens_saved / sums.num_episodes, ",.0f"),
            ("share saved", share, ".0%"),
            ("full success", lambda sums: _of_all(sums, sums.num_right)),
        ],
        text_columns=2,
        notes=[
            (
                "Tokens per episode, those of stored outputs estimated by their bytes; saved: each stored output, less "
                "what was shown of it, in every later call of its executor."
            )
        ],
    )


def _replans_table(agents: Sequence[AgentSums]) -> Table | None:
    """Return how many episodes took how many replans, or None if no agent replanned."""
    rows: list[list[object]] = []
    for sums in agents:
        numbers = sorted(sums.replans["all"])
        for place, number in enumerate(numbers if any(numbers) else ()):
            counts = [sums.replans[which].get(number, 0) for which in ("all", "finished", "right")]
            names = ("", "") if place else (sums.policy, sums.prompt_type)
            rows.append([*names, str(number), *map(counted_text, counts), f"{counts[2] / counts[0]:.0%}"])
    if not rows:
        return None
    return Table(
        "Episodes by number of replans",
        ("policy", "prompt", "replans", "episodes", "with an answer", "full success", "share"),
        rows,
        text_columns=3,
        notes=[say("no_intervals_replans")],
    )


class Player(NamedTuple):
    """An agent with one of its models; sorted by the size that the model's name states, those without one by name."""

    size: float  # infinite if the name states none
    model: str
    agent: str
    name: str  # in records


def model_size(name: str) -> float | None:
    """Return the number of parameters that a model's name states ("7B" as 7e9), or None if it states none."""
    match = _SIZE.search(name)
    if match is None:
        return None
    experts, number, unit = match.groups()
    return int(experts or 1) * float(number) * _UNITS[unit.lower()]


def scaling_section(pools: PromptPools) -> Section | None:
    """Return levels over models, or None if no agent has several models."""
    players = _players_by_agent(pools)
    if not players:
        return None
    blocks: list[Block] = [
        say("scaling"),
        *_scaling_charts(players, pools),
        beside_a_chart(_scaling_table(players, pools)),
        _evenness_table(players, pools),
        *published_beside(pools.facts, BY_MODEL_SIZE),
    ]
    return Section("models", "Over models", blocks)


def _players_by_agent(pools: PromptPools) -> dict[str, list[Player]]:
    """Return the agents that several models answered, each with its models by size."""
    models = {known.policy: known.model for known in pools.facts.table.facts.values()}
    by_agent: dict[str, list[Player]] = {}
    for name in pools.policies:
        agent, model = split_name(name)
        model = model or models.get(name)
        if model is not None:
            by_agent.setdefault(agent, []).append(Player(model_size(model) or math.inf, model, agent, name))
    several = {agent: own for agent, own in by_agent.items() if len({player.model for player in own}) > 1}
    return {agent: sorted(own, key=lambda player: player[:2]) for agent, own in several.items()}


def _scaling_table(players: Mapping[str, Sequence[Player]], pools: PromptPools) -> Table:
    rows: list[list[object]] = []
    for player in (player for own in players.values() for player in own):
        name = name_cell(player.agent, pools.is_privileged(player.name))
        rows.append([name, player.model, _size_text(player.size), *pools.level_rates(player.name)])
    return Table(
        say("scaling_table"),
        ("agent", "model", "size", *LEVEL_NAMES * len(pools.prompts)),
        rows,
        text_columns=3,
        groups=[("", 3), *pools.level_groups],
        is_stacked=True,
    )


def _evenness_table(players: Mapping[str, Sequence[Player]], pools: PromptPools) -> Table:
    rows: list[tuple[str, str, list[float]]] = []
    for agent, own in players.items():
        for prompt in pools.prompts:
            of_prompt = (pools.get(player.name, prompt) for player in own)
            rows.append((agent, prompt, [entry.summary.success.value for entry in of_prompt if entry is not None]))
    return Table.of(
        "How evenly an agent does over models, in percent",
        [row for row in rows if len(row[2]) > 1],
        [
            ("agent", lambda row: row[0]),
            ("prompt", lambda row: row[1]),
            ("models", lambda row: len(row[2])),
            ("best", lambda row: max(row[2])),
            ("mean", lambda row: math.fsum(row[2]) / len(row[2])),
            ("Std", lambda row: deviation_over_models(row[2])),
            ("Sat", lambda row: saturation(row[2])),
            ("CPS", lambda row: combined_performance_score(row[2])),
        ],
        text_columns=2,
        notes=[say("evenness")],
    )


def _scaling_charts(players: Mapping[str, Sequence[Player]], pools: PromptPools) -> list[Block]:
    models = dict.fromkeys(model for _, model in sorted({player[:2] for own in players.values() for player in own}))
    places = [_short(model) for model in models]
    agents = list(players)[:NUM_SERIES]

    def series(number: int, agent: str, prompt: str) -> Series:
        by_model = {player.model: pools.get(player.name, prompt) for player in players[agent]}
        of_models = [by_model.get(model) for model in models]
        estimates = [Estimate.nothing() if entry is None else entry.summary.success for entry in of_models]
        return Series(f"{agent}, {prompt}", series_style(number), estimates)

    def panel(prompt: str) -> LinePanel:
        own = [series(number, agent, prompt) for number, agent in enumerate(agents)]
        title = f"Success over models under {prompt}"
        return LinePanel(title, f"{plain(prompt)} prompt", places, own, say("scaling_chart"), "model")

    return [legend(*series_entries("dot", agents)), line_charts(list(map(panel, pools.prompts)))]


def _short(model: str) -> str:
    """Return a model's name without its provider or folder."""
    last = model.rsplit("/", 1)[-1]
    return last.partition(":")[2] or last


def _size_text(size: float) -> str:
    if math.isinf(size):
        return NO_NUMBER
    return f"{size / 1e9:g}B" if size >= 1e9 else f"{size / 1e6:g}M"
