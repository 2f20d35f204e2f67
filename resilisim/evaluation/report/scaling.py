"""One agent with several models: levels by size of the model, and how evenly the agent does over models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilisim.evaluation.agent_measures import combined_performance_score, deviation_over_models, saturation
from resilisim.evaluation.report import legend
from resilisim.evaluation.report.cells import NOTHING, name_cell, percent, plain, with_interval
from resilisim.evaluation.report.content import Block, CellLike, Section, Table, beside_a_chart
from resilisim.evaluation.report.drawing import NUM_SERIES, series_style
from resilisim.evaluation.report.facts import RunFacts
from resilisim.evaluation.report.levels import proportion
from resilisim.evaluation.report.line_chart import Line, LinePanel, line_charts
from resilisim.evaluation.report.pooling import level_rates
from resilisim.evaluation.report.published import LEVEL_NAMES, scaling_reference
from resilisim.evaluation.report.rows import PromptPools
from resilisim.evaluation.run.contestants import model_of, policy_of
from resilisim.statistics import Estimate

# "7B", "0.5b", "135M", "8x7B"; a letter or digit before it belongs to another word, as in "A3B".
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![A-Za-z0-9])", re.IGNORECASE)
_UNITS = {"b": 1e9, "m": 1e6}

EVENNESS = (
    "Std: standard deviation of success over models. Sat (saturation): 1 − (best − mean). CPS (combined performance "
    "score): Sat × best (Molinari and Ciravegna, 2026). No intervals: the models are chosen and few, and a best of "
    "several rates is no mean; the rates themselves have intervals in the table above."
)


@dataclass(frozen=True, slots=True)
class Player:
    """An agent with one of its models.

    Attributes:
        name: Its name in records.
        agent: The agent.
        model: The model.
        size: Parameters that the model's name states, or None.
    """

    name: str
    agent: str
    model: str
    size: float | None


def model_size(name: str) -> float | None:
    """Return the number of parameters that a model's name states ("7B" as 7e9), or None if it states none."""
    found = _SIZE.search(name)
    if found is None:
        return None
    experts, number, unit = found.groups()
    return int(experts or 1) * float(number) * _UNITS[unit.lower()]


def players_by_agent(facts: RunFacts, pools: PromptPools) -> dict[str, list[Player]]:
    """Return the agents that several models answered, each with its models by size, those without a size by name."""
    found: dict[str, list[Player]] = {}
    for name in pools.policies:
        own = next((group.model for group in facts.sums.groups.values() if group.policy == name), None)
        model = model_of(name) or own
        if model is not None:
            found.setdefault(policy_of(name), []).append(Player(name, policy_of(name), model, model_size(model)))
    return {
        agent: sorted(players, key=lambda player: (player.size or math.inf, player.model))
        for agent, players in found.items()
        if len({player.model for player in players}) > 1
    }


def scaling_section(facts: RunFacts, pools: PromptPools) -> Section | None:
    """Return levels over models, or None if no agent has several models."""
    players = players_by_agent(facts, pools)
    if not players:
        return None
    blocks: list[Block] = [
        "Raw success of one agent with several models, by the size that a model's name states (others follow by name).",
        *_charts(players, pools),
        beside_a_chart(scaling_table(facts, players, pools)),
        evenness_table(players, pools),
        scaling_reference(),
    ]
    return Section("models", "Over models", blocks)


def scaling_table(facts: RunFacts, players: Mapping[str, Sequence[Player]], pools: PromptPools) -> Table:
    """Return full, partial and failed episodes of every agent with every model, under each prompt."""
    num_tasks = len(facts.sums.tasks)
    rows: list[list[CellLike]] = []
    for agent, own in players.items():
        for player in own:
            cells: list[CellLike] = [
                name_cell(agent, pools.is_privileged(player.name)),
                player.model,
                NOTHING if player.size is None else _size_text(player.size),
            ]
            for prompt in pools.prompts:
                found = pools.get(player.name, prompt)
                if found is None:
                    cells += [NOTHING] * len(LEVEL_NAMES)
                else:
                    cells += [with_interval(proportion(rate)) for rate in level_rates(found.group, num_tasks)]
            rows.append(cells)
    return Table(
        "Full success, partial success and failure by model, in percent of episodes, with 95% intervals clustered by "
        "task",
        ("agent", "model", "size", *LEVEL_NAMES * len(pools.prompts)),
        rows,
        text_columns=3,
        groups=(("", 3), *((plain(prompt), len(LEVEL_NAMES)) for prompt in pools.prompts)),
        is_stacked=True,
    )


def evenness_table(players: Mapping[str, Sequence[Player]], pools: PromptPools) -> Table:
    """Return saturation, combined performance score and deviation of each agent over its models, under each prompt."""
    rows: list[list[CellLike]] = []
    for agent, own in players.items():
        for prompt in pools.prompts:
            found = [pools.get(player.name, prompt) for player in own]
            rates = [entry.summary.success.value for entry in found if entry is not None]
            if len(rates) < 2:
                continue
            rows.append(
                [
                    agent,
                    prompt,
                    f"{len(rates):,}",
                    percent(max(rates)),
                    percent(math.fsum(rates) / len(rates)),
                    percent(deviation_over_models(rates)),
                    percent(saturation(rates)),
                    percent(combined_performance_score(rates)),
                ]
            )
    return Table(
        "How evenly an agent does over models, in percent",
        ("agent", "prompt", "models", "best", "mean", "Std", "Sat", "CPS"),
        rows,
        text_columns=2,
        notes=(EVENNESS,),
    )


def _charts(players: Mapping[str, Sequence[Player]], pools: PromptPools) -> list[Block]:
    models: dict[str, float] = {}
    for own in players.values():
        for player in own:
            models[player.model] = player.size or math.inf
    places = sorted(models, key=lambda model: (models[model], model))
    agents = list(players)[:NUM_SERIES]
    panels = []
    for prompt in pools.prompts:
        lines = []
        for number, agent in enumerate(agents):
            by_model = {player.model: pools.get(player.name, prompt) for player in players[agent]}
            found = [by_model.get(model) for model in places]
            estimates = [_NOTHING if entry is None else entry.summary.success for entry in found]
            lines.append(Line(f"{agent}, {prompt}", series_style(number), estimates))
        panels.append(LinePanel(f"Success over models under {prompt}", f"{plain(prompt)} prompt", lines))
    description = "One line per agent, from the smallest model to the largest, with 95% intervals."
    names = [_short(model) for model in places]
    return [legend.lines_legend(agents), line_charts(description, names, "model", panels)]


_NOTHING = Estimate(math.nan, math.nan, math.nan, math.nan, 0, 0)


def _short(model: str) -> str:
    """Return a model's name without its provider or folder."""
    return model.rsplit("/", 1)[-1].partition(":")[2] or model.rsplit("/", 1)[-1]


def _size_text(size: float) -> str:
    return f"{size / 1e9:g}B" if size >= 1e9 else f"{size / 1e6:g}M"
