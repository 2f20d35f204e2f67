"""RP-ReAct's tables 1 to 3, from runs on records."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.table.agents import combined_performance_score, deviation_over_models, saturation
from resilisim.reporting.papers.answers import Answers
from resilisim.reporting.papers.paper_table import RP_REACT, PaperRow, PaperTable, notes_of

# RP-ReAct's five domains in the order of its tables, then those that it leaves out.
DOMAINS_IN_ORDER: Final = ("yelp", "scirex", "flights", "airbnb", "coffee", "agenda", "graph", "arithmetic")


def rp_react_tables(answers: Answers, published: Mapping[str, Any]) -> Iterator[PaperTable]:
    """Yield the tables of RP-ReAct, published figures beside."""
    figures = published["rp-react"]
    domains = [
        domain
        for domain in DOMAINS_IN_ORDER
        if domain in DOMAINS_IN_ORDER[:5] or any(key[2] == domain for key in answers.scores)
    ]
    rest = [None] * (len(domains) - 5)
    for number, difficulty in enumerate(("easy", "hard"), start=1):
        rows = [
            PaperRow(answers.names(player), rates)
            for player in answers.players
            if any(rates := tuple(answers.rate(player, difficulty, domain) for domain in domains))
        ]
        yield PaperTable(
            RP_REACT,
            f"Table {number}",
            f"Accuracy on {difficulty} questions by domain in percent, with 95% intervals clustered by task",
            answers.name_columns,
            tuple(domains),
            (*rows, *(answers.published(row[:2], (*row[2:], *rest)) for row in figures[difficulty])),
            notes=(*answers.notes, *notes_of(RP_REACT)),
        )
    for letter, difficulty in (("a", "easy"), ("b", "hard")):
        yield _over_models(answers, letter, difficulty, domains, figures[f"{difficulty} over models"])


def _over_models(
    answers: Answers, letter: str, difficulty: str, domains: Sequence[str], figures: Sequence[Sequence[Any]]
) -> PaperTable:
    """Return mean, deviation, saturation and CPS over the models of each agent (Molinari and Ciravegna 2026)."""
    rows = []
    whose = dict.fromkeys((player.agent, player.prompt) for player in answers.players)
    for domain in domains:
        for agent, prompt in whose:
            rates = [
                rate.value
                for player in answers.players
                if (player.agent, player.prompt) == (agent, prompt)
                and (rate := answers.rate(player, difficulty, domain)) is not None
            ]
            if not rates:
                continue
            measures = (statistics.fmean(rates), deviation_over_models(rates), saturation(rates))
            names = (domain, agent, prompt)[: 2 + answers.has_prompts]
            rows.append(PaperRow(names, (len(rates), *measures, combined_performance_score(rates))))
        of_paper = [row for row in figures if row[0] == domain]
        rows += [answers.published(row[:2], (4, *row[2:4], None, row[4])) for row in of_paper]
    return PaperTable(
        RP_REACT,
        f"Table 3{letter}",
        f"Accuracy on {difficulty} questions over models, in percent",
        ("domain", *answers.name_columns[:1], *answers.name_columns[2:]),
        ("models", "Mean", "Std", "Sat", "CPS"),
        tuple(rows),
        notes=(
            "Std: sample standard deviation over models. Sat: 1 - (best - mean). CPS: Sat times best.",
            *answers.notes,
            *notes_of(RP_REACT),
        ),
    )


def domain_of(record: EpisodeRecord) -> tuple[str, str]:
    """Return difficulty and domain of an episode on records: its table, and its column there."""
    return record["complexity"], record["task_type"].partition("_")[2]
