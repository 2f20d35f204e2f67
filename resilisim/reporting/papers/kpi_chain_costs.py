"""KPI-Chain's ablations (5.4), latency and components (5.2, D.1), and gain and cost by hops (D.2), from runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from resilisim.evaluation.table.agents import AgentSums
from resilisim.reporting.papers.answers import Answers, Costs, Player
from resilisim.reporting.papers.paper_table import COUNTS, IN_PERCENT, KPI_CHAIN, PaperRow, PaperTable, Value, notes_of
from resilisim.tables.table import SIGNED

AGENT, REACT, PLAN_EXECUTE = "kpi-chain", "react", "plan-and-execute"
SWITCHES: Final = ("entities", "replanning", "memory")  # what an ablation turns off
RATIOS, WHOLE = ",.2f", ",.0f"
# D.1's parts of the calls of models. What tests and remembers is code here, and a tool is called without a model.
COMPONENTS_OF_PART: Final[Mapping[str, tuple[str, ...]]] = {
    "planning": ("planner", "replanner"),
    "task execution": ("reasoner", "executor", "agent"),
    "extraction": ("extractor",),
    "validation, memory": (),
}
LONG: Final = "long outputs"
EVEN_LONGER: Final = "5 hops or more"


def ablation_table(answers: Answers, published: Sequence[Sequence[Any]]) -> Iterator[PaperTable]:
    """Yield what KPI-Chain loses without entities, replanning or memory; nothing where none of them is off."""
    rows = []
    for whole, variants in _ablated(answers):
        beside = [_beside(answers, whole, architecture) for architecture in (PLAN_EXECUTE, REACT)]
        for player in (whole, *variants, *filter(None, beside)):
            sums, costs = answers.agents[player, ""], answers.mean_costs(player)
            replans = sum(number * count for number, count in sums.replans["all"].items()) / sums.num_episodes
            difference = None if player == whole else answers.difference(player, whole)
            values = (answers.overall(player), difference, costs.calls, sums.tokens_per_call, costs.tokens, replans)
            rows.append(PaperRow(answers.names(player), values))
    if not rows:
        return
    for agent, model, success, difference, tokens_per_call in published:
        rows.append(answers.published((agent, model), (success, difference, None, tokens_per_call, None, None)))
    yield PaperTable(
        KPI_CHAIN,
        "Section 5.4",
        "Ablations: success in percent and the difference in points from the whole agent on the same questions, with "
        "95% intervals clustered by task; calls of models, tokens and replans per question",
        answers.name_columns,
        ("success", "difference", "calls", "tokens per call", "tokens", "replans"),
        tuple(rows),
        form=(IN_PERCENT, SIGNED, COUNTS, WHOLE, WHOLE, RATIOS),
        notes=(
            (
                "The paper takes Plan-and-Execute for the agent without entities, and the tokens per call of ReAct for "
                "the agent without memory."
            ),
            *notes_of(KPI_CHAIN),
        ),
    )


def _ablated(answers: Answers) -> Iterator[tuple[Player, list[Player]]]:
    """Yield each whole KPI-Chain with those that differ from it in switches that are off, and in nothing else."""
    ours = [player for player, setup in answers.setups.items() if setup.architecture == AGENT]
    for whole in (player for player in answers.players if player in ours):
        options = answers.setups[whole].options
        if not _is_whole(answers, whole):
            continue
        others = [
            player
            for player in answers.players
            if player in ours
            and player != whole
            and player[1:] == whole[1:]
            and _without_switches(answers.setups[player].options) == _without_switches(options)
        ]
        if others:
            yield whole, others


def _is_whole(answers: Answers, player: Player) -> bool:
    """Return whether a player is KPI-Chain with nothing turned off."""
    setup = answers.setups.get(player)
    return setup is not None and setup.architecture == AGENT and all(setup.options.get(name, True) for name in SWITCHES)


def _without_switches(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in SWITCHES}


def _beside(answers: Answers, player: Player, architecture: str) -> Player | None:
    """Return who played with the same model and prompt as an agent of another kind, the plainest of several."""
    others = [
        other
        for other in answers.players
        if other in answers.setups and answers.setups[other].architecture == architecture and other[1:] == player[1:]
    ]
    return min(others, key=lambda other: len(other.agent), default=None)


def cost_table(answers: Answers, published: Sequence[Sequence[Any]]) -> Iterator[PaperTable]:
    """Yield latency and calls of models per question, and the shares of the calls by component."""
    players = [player for player in answers.players if player in answers.setups]
    rows = []
    for player in players:
        costs = answers.mean_costs(player)
        slower = [_ratio(answers, player, other, attrgetter("seconds")) for other in (REACT, PLAN_EXECUTE)]
        values = (costs.seconds, *slower, costs.calls, *_shares(answers.agents[player, ""]), costs.tool_calls)
        rows.append(PaperRow(answers.names(player), values))
    for agent, model, seconds, times_react, times_plan_execute, calls, *shares in published:
        values = (seconds, times_react, times_plan_execute, calls, *shares, None)
        rows.append(answers.published((agent, model), values))
    yield PaperTable(
        KPI_CHAIN,
        "Sections 5.2 and D.1",
        "Latency per question (seconds in calls of models), also as a multiple of ReAct's and of Plan-Execute's; calls "
        "of models per question, and in percent of them those of each component",
        answers.name_columns,
        ("seconds", "x ReAct", "x Plan-Execute", "calls", *COMPONENTS_OF_PART, "calls of tools"),
        tuple(rows),
        form=(COUNTS, RATIOS, RATIOS, COUNTS, *[IN_PERCENT] * len(COMPONENTS_OF_PART), COUNTS),
        notes=(
            "The paper counts calls of tools under task execution, and calls for tests and memory, which are code.",
            *notes_of(KPI_CHAIN),
        ),
    )


def _shares(sums: AgentSums) -> list[Value]:
    total = sums.total("calls")
    parts = [
        sum(sums.components.get(role, {}).get("calls", 0) for role in roles) for roles in COMPONENTS_OF_PART.values()
    ]
    if not total or sums.components.keys() - {role for roles in COMPONENTS_OF_PART.values() for role in roles}:
        return [None] * len(parts)
    return [part / total for part in parts]


def _ratio(
    answers: Answers,
    player: Player,
    architecture: str,
    of: Callable[[Costs], float],
    tasks: Collection[str] | None = None,
) -> float | None:
    other = _beside(answers, player, architecture)
    least = 0.0 if other is None else of(answers.mean_costs(other, tasks))
    return of(answers.mean_costs(player, tasks)) / least if least and other != player else None


def hops_table(
    answers: Answers,
    hops: Callable[[str], int | None],
    in_pieces: Collection[str],
    published: Sequence[Sequence[Any]],
) -> Iterator[PaperTable]:
    """Yield what KPI-Chain gains over ReAct and what it costs, by hops; nothing where not both have played."""
    rows = []
    for player in answers.players:
        other = _beside(answers, player, REACT)
        if other is None or not _is_whole(answers, player):
            continue
        shared = answers.scores_of(player).keys() & answers.scores_of(other).keys()
        for group, tasks in _groups(shared, hops, in_pieces).items():
            ours, theirs = answers.overall(player, tasks), answers.overall(other, tasks)
            gain = ours.value / theirs.value - 1.0 if theirs.value > 0.0 else None
            ratios = [
                _ratio(answers, player, REACT, of, tasks)
                for of in (attrgetter("calls"), attrgetter("tokens"), attrgetter("seconds"))
            ]
            difference = answers.difference(player, other, tasks)
            values = (len(tasks), ours, theirs, difference, gain, *ratios, None)
            rows.append(PaperRow((*answers.names(player), group), values))
    if not rows:
        return
    for agent, model, group, gain, cost in published:
        row = answers.published((agent, model), (None, None, None, None, gain, None, None, None, cost))
        rows.append(PaperRow((*row.names, group), row.values, is_published=True))
    yield PaperTable(
        KPI_CHAIN,
        "Section D.2",
        "Gain over ReAct and cost by hops: success in percent, the difference in points with 95% intervals clustered "
        "by task, the gain in percent of ReAct's success, and costs as multiples of ReAct's",
        (*answers.name_columns, "questions"),
        ("number", "success", "ReAct", "difference", "gain", "calls", "tokens", "seconds", "cost"),
        tuple(rows),
        form=("", IN_PERCENT, IN_PERCENT, SIGNED, IN_PERCENT, RATIOS, RATIOS, RATIOS, RATIOS),
        notes=(
            (
                "Hops are the searches of the reference solution; long outputs are those that KPI-Chain read in "
                "pieces. The paper does not say which cost it means."
            ),
            *notes_of(KPI_CHAIN),
        ),
    )


def _groups(
    tasks: Collection[str], hops: Callable[[str], int | None], in_pieces: Collection[str]
) -> dict[str, set[str]]:
    """Return the questions by their hops, and those with long outputs."""
    groups: dict[str, set[str]] = {"1 to 2 hops": set(), "3 to 4 hops": set(), EVEN_LONGER: set()}
    names = list(groups)
    for task in tasks:
        count = hops(task)
        if count is not None:
            groups[names[min((count - 1) // 2, 2)]].add(task)
    groups[LONG] = set(tasks) & set(in_pieces)
    return {name: members for name, members in groups.items() if members}
