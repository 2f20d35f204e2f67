"""KPI-Chain's table 1 and figures 3 and 4, from runs on pages."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.extraction_judge import ExtractionJudge
from resilisim.evaluation.table.agents import AgentSums
from resilisim.policies.agent_record import FAILING_COMPONENTS
from resilisim.reporting.papers.answers import Answers, Player
from resilisim.reporting.papers.calibration import Calibration
from resilisim.reporting.papers.kpi_chain_costs import ablation_table, cost_table, hops_table
from resilisim.reporting.papers.paper_table import COUNTS, KPI_CHAIN, PUBLISHED_MARK, PaperRow, PaperTable, notes_of

# What a question of the pages world is like in KPI-Chain's table 1, in the order of its columns here.
BENCHMARK_OF_QUESTION: Final[Mapping[str, str]] = {
    "bridge": "HotpotQA",
    "comparison": "HotpotQA",
    "hops": "MuSiQue",
    "list": "QAMPARI",
    "sets": "QUEST",
    "conversation": "TopiOCQA",
}

OWN: Final = "own questions"  # over tools of one's own
MOST_REPLANS: Final = 3  # that figure 3b tells apart


def kpi_chain_tables(
    answers: Answers, published: Mapping[str, Any], judge: ExtractionJudge | None, calibration: Calibration | None
) -> Iterator[PaperTable]:
    """Yield the tables of KPI-Chain, published figures beside.

    Args:
        answers: What the runs say.
        published: The papers' figures.
        judge: Knows the questions; None if their world is not there any more.
        calibration: What it says of each episode.
    """
    figures = published["kpi-chain"]
    of_paper = tuple(dict.fromkeys(BENCHMARK_OF_QUESTION.values()))
    benchmarks = [each for each in (*of_paper, OWN) if any(key[2] == each for key in answers.scores)]
    own = (OWN,) if OWN in benchmarks else ()
    columns = (*of_paper, *own)
    rows = []
    for player in answers.players:
        rates = [answers.rate(player, "", column) for column in columns]
        known = [rate.value for rate in rates[: len(of_paper)] if rate is not None]
        mean = statistics.fmean(known) if len(known) == len(of_paper) else None
        rows.append(PaperRow(answers.names(player), (*rates, mean)))
    rows += [answers.published(row[:2], (*row[2:-1], *[None] * len(own), row[-1])) for row in figures["success"]]
    sizes = {
        benchmark: len({task for key, of in answers.scores.items() if key[2] == benchmark for task in of})
        for benchmark in columns
    }
    yield PaperTable(
        KPI_CHAIN,
        "Table 1",
        "Success by kind of question in percent, with 95% intervals clustered by task: recall for QAMPARI and QUEST, "
        "share of turns for TopiOCQA, else exact match",
        answers.name_columns,
        (*columns, "average"),
        tuple(rows),
        notes=(
            f"Questions: {', '.join(f'{benchmark} {count:,}' for benchmark, count in sizes.items())}.",
            f"{PUBLISHED_MARK} had 1,000 questions of HotpotQA, 100 of each other.",
            "The paper lets a model judge where an exact match or recall is computed here.",
            *(("Without sections C.1 and D.2: the questions of this world are not there.",) if judge is None else ()),
            *answers.notes,
            *notes_of(KPI_CHAIN),
        ),
    )
    agents = [
        (player, column, answers.agents[player, column])
        for player in answers.players
        for column in benchmarks
        if (player, column) in answers.agents
    ]
    if agents:
        yield _failures(answers, agents, figures["failures"])
        yield _recoveries(answers, agents, figures["recoveries"])
        yield _efficiency(answers, agents, figures["calls"])
        yield from cost_table(answers, figures["costs"])
        yield from ablation_table(answers, figures["ablations"])
    if judge is not None and calibration is not None:
        yield from hops_table(answers, judge.hops, calibration.in_pieces, figures["hops"])
        yield from calibration.tables(figures["calibration"])


Agents = Sequence[tuple[Player, str, AgentSums]]


def _failures(answers: Answers, agents: Agents, figures: Sequence[Sequence[Any]]) -> PaperTable:
    met = {name for _, _, sums in agents for name in sums.first_failures}
    named = {name for *_, shares in figures for name in shares}
    order = [name for name in FAILING_COMPONENTS if name in met | named]
    order += sorted(met - set(order))
    rows = []
    for player, column, sums in agents:
        total = sum(sums.first_failures.values())
        shares = [sums.first_failures.get(name, 0) / total if total else None for name in order]
        rows.append(PaperRow((*answers.names(player), column), (total, *shares)))
    rows += _ranges(answers, figures, ("failed", *order))
    return PaperTable(
        KPI_CHAIN,
        "Figure 3a",
        "Failed episodes by the first component that gave up, in percent of them",
        (*answers.name_columns, "benchmark"),
        ("failed", *order),
        tuple(rows),
        notes=(
            "nobody: no component noticed that the answer was wrong; turns, loop and the like: a limit was hit.",
            *notes_of(KPI_CHAIN),
        ),
    )


def _recoveries(answers: Answers, agents: Agents, figures: Sequence[Sequence[Any]]) -> PaperTable:
    numbers = [str(number) for number in range(1, MOST_REPLANS + 1)]
    columns = (
        "first attempt",
        *(f"after {number}" for number in numbers),
        f"after more than {MOST_REPLANS}",
        f"after 1 to {MOST_REPLANS}",
        "after any",
        "share of successes",
    )
    rows = []
    for player, column, sums in agents:
        right, total = sums.replans["right"], sums.num_episodes
        single = [right.get(number, 0) / total for number in range(MOST_REPLANS + 1)]
        recovered = sums.num_right - right.get(0, 0)
        more = recovered / total - sum(single[1:])
        share = recovered / sums.num_right if sums.num_right else None
        values = (*single, max(more, 0.0), sum(single[1:]), recovered / total, share)
        rows.append(PaperRow((*answers.names(player), column), values))
    rows += _ranges(answers, figures, columns)
    return PaperTable(
        KPI_CHAIN,
        "Figure 3b",
        "Episodes that were right, by number of replans, in percent of all; the last column: of those that were right",
        (*answers.name_columns, "benchmark"),
        columns,
        tuple(rows),
        notes=notes_of(KPI_CHAIN),
    )


def _efficiency(answers: Answers, agents: Agents, figures: Sequence[Sequence[Any]]) -> PaperTable:
    rows = [
        PaperRow(
            (*answers.names(player), column),
            (sums.total("calls") / sums.num_episodes, sums.tokens_per_call, sums.tokens_per_task),
        )
        for player, column, sums in agents
    ]
    columns = ("calls per question", "tokens per call", "tokens per question")
    rows += _ranges(answers, [(*row[:3], dict(zip(columns, row[3:], strict=True))) for row in figures], columns)
    return PaperTable(
        KPI_CHAIN,
        "Figure 4",
        "Calls of language models per question, and tokens of prompts and replies",
        (*answers.name_columns, "benchmark"),
        columns,
        tuple(rows),
        form=COUNTS,
        notes=notes_of(KPI_CHAIN),
    )


def _ranges(answers: Answers, figures: Sequence[Sequence[Any]], columns: Sequence[str]) -> Iterator[PaperRow]:
    """Return published rows of which only some figures are known, by the names of their columns."""
    for agent, model, benchmark, known in figures:
        row = answers.published((agent, model), [known.get(column) for column in columns])
        yield PaperRow((*row.names, benchmark), row.values, is_published=True)


def benchmark_of(record: EpisodeRecord, is_quest: bool) -> str:
    """Return to which benchmark of the paper an episode's question belongs; `OWN` for any other one."""
    kind = "sets" if is_quest and record["task_type"] == "list" else record["task_type"]
    return BENCHMARK_OF_QUESTION.get(kind, OWN)


def benchmark_score(record: EpisodeRecord) -> float:
    """Score an answer as KPI-Chain does: by recall for lists, by turns for conversations, else right or wrong."""
    grade = record["score"].get("grade")
    if grade is None or record["task_type"] not in ("list", "sets", "conversation"):
        return float(record["outcome"])
    return float(grade["criteria"].get("recall", grade["score"]))
