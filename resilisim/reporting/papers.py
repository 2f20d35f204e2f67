"""The tables and figures of the papers whose agents answer questions: KPI-Chain's of pages, RP-ReAct's of records.

Published figures stand beside as marked rows. They were measured with other questions and real models, so they are
never compared with ours. `templates/published-worlds.json` holds them as the papers print them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.contestants import split_name
from resilisim.evaluation.run.store import read_manifest
from resilisim.evaluation.table.agents import AgentSums, combined_performance_score, deviation_over_models, saturation
from resilisim.evaluation.table.comparing import refuse_incomparable
from resilisim.evaluation.table.facts import read_facts
from resilisim.policies.agent_record import FAILING_COMPONENTS
from resilisim.reporting.charts import legend, row_labels, series_entries, series_style
from resilisim.reporting.charts.rows import Part, bar_chart
from resilisim.reporting.page import (
    Block,
    Page,
    Section,
    beside_a_chart,
    packaged_file,
    page_markdown,
    plain,
    whole_page,
)
from resilisim.run_folder import write_file_atomically
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import clustered_proportion, to_json
from resilisim.tables.numbers import percent
from resilisim.tables.table import Cell, Table, in_form

MARK: Final = "†"
# What a question of the pages world is like in KPI-Chain's table 1, in the order of its columns here.
BENCHMARKS: Final[Mapping[str, str]] = {
    "bridge": "HotpotQA",
    "comparison": "HotpotQA",
    "hops": "MuSiQue",
    "list": "QAMPARI",
    "sets": "QUEST",
    "conversation": "TopiOCQA",
}
# RP-ReAct's five domains in the order of its tables, then those that it leaves out.
DOMAINS: Final = ("yelp", "scirex", "flights", "airbnb", "coffee", "agenda", "graph", "arithmetic")
MOST_REPLANS: Final = 3  # that figure 3b tells apart
SHARES, COUNTS = "", ",.1f"  # forms of numbers: in percent, or as they are

KPI_CHAIN: Final = "KPI-Chain"
RP_REACT: Final = "RP-ReAct"
_PAPER_OF_WORLD: Final[Mapping[str, str]] = {
    "pages-v1": KPI_CHAIN,
    "pages": KPI_CHAIN,
    "hotpotqa": KPI_CHAIN,
    "loft": KPI_CHAIN,
    "records-v1": RP_REACT,
    "records": RP_REACT,
    "toolqa": RP_REACT,
}
_SOURCES: Final[Mapping[str, str]] = {
    KPI_CHAIN: "KPI-Chain (anonymous, under review 2025), table 1 and sections 5.2 to 5.4 on pages 8 and 9, Qwen3-32B. "
    "Figures 3 and 4 are drawings: what their text says of them is here, in percent. Calls per question are of the "
    "first version of the paper, section 5.2.",
    RP_REACT: "Molinari and Ciravegna (2026), tables 1 to 3. A dash in them is a domain that the paper leaves out, or "
    "one of nine cells of which the text of the paper that was at hand does not tell the column. Table 3 is over "
    "gpt-oss 120b and 20b, and Qwen3 32b and 14b.",
}

Value = float | int | str | Estimate | None


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A row: who it is about, and its figures; published ones are not of the runs."""

    names: tuple[str, ...]
    values: tuple[Value, ...]
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table or figure of a paper, made again from runs.

    Attributes:
        paper: "KPI-Chain" or "RP-ReAct".
        name: What it is called there ("Table 1", "Figure 3a").
        caption: What it shows.
        name_columns: Headings of the names.
        columns: Headings of the figures.
        rows: Ours first, then published ones. Shares are from 0 to 1.
        form: "" for shares, which are shown in percent, else the form of the numbers (".1f").
        notes: What a reader must know.
    """

    paper: str
    name: str
    caption: str
    name_columns: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    form: str = SHARES
    notes: tuple[str, ...] = ()

    def shown(self) -> Table:
        """Return the table as reports and the terminal show it."""
        rows = [
            [
                *(
                    Cell(name, mark=MARK) if row.is_published and column == "agent" else name
                    for name, column in zip(row.names, self.name_columns, strict=True)
                ),
                *(self._cell(value) for value in row.values),
            ]
            for row in self.rows
        ]
        return Table(
            f"{self.paper}, {self.name[0].lower()}{self.name[1:]}. {self.caption}",
            (*self.name_columns, *self.columns),
            rows,
            text_columns=len(self.name_columns),
            is_stacked=True,
            notes=self.notes,
        )

    def _cell(self, value: Value) -> Any:
        if self.form == SHARES or isinstance(value, str | Estimate):
            return value
        return in_form(value, self.form)

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        rows = [
            {
                **dict(zip(self.name_columns, row.names, strict=True)),
                **dict(zip(self.columns, map(to_json, row.values), strict=True)),
                "published": row.is_published,
            }
            for row in self.rows
        ]
        return {"paper": self.paper, "name": self.name, "caption": self.caption, "rows": rows, "notes": self.notes}


class _Player(NamedTuple):
    """Who played: an agent with a model (a dash for policies without any) under a prompt."""

    agent: str
    model: str
    prompt: str


@dataclass
class _Answers:
    """What runs say, summed by player and by what kind of question it was."""

    place_of: Callable[[EpisodeRecord], tuple[str, str]]  # heading of a table, and column, of an episode
    score_of: Callable[[EpisodeRecord], float]
    # [player, table, column][task] -> sum of scores, episodes
    scores: dict[tuple[_Player, str, str], dict[str, list[float]]] = field(default_factory=dict)
    agents: dict[tuple[_Player, str], AgentSums] = field(default_factory=dict)  # by player and column
    _places: dict[_Player, tuple[int, int, int]] = field(default_factory=dict)
    _seen: set[tuple[_Player, str, int]] = field(default_factory=set)

    @property
    def players(self) -> list[_Player]:
        """Who has played, in the order of the runs and of the commands that made them."""
        return sorted(self._places, key=lambda player: self._places[player])

    def add(self, record: EpisodeRecord, directory: str, place: tuple[int, int, int]) -> None:
        """Take in one episode; `place` is that of its run, of its policy and of its prompt there."""
        agent, model = split_name(record["policy"])
        if "agent" in record:
            model = model or " + ".join(sorted(set(record["agent"]["models"].values()))) or None
        player = _Player(agent, model or "–", record["prompt_type"])
        self._places[player] = min(self._places.get(player, place), place)
        if (player, record["instance_id"], record["seed"]) in self._seen:
            raise InvalidInputError(
                f"{directory} has an episode of {record['policy']!r} that another run has, too (task "
                f"{record['instance_id']}, seed {record['seed']}): expected other agents, models, tasks or seeds"
            )
        self._seen.add((player, record["instance_id"], record["seed"]))
        table, column = self.place_of(record)
        of_task = self.scores.setdefault((player, table, column), {}).setdefault(record["instance_id"], [0.0, 0.0])
        of_task[0] += self.score_of(record)
        of_task[1] += 1.0
        if "agent" in record:
            self.agents.setdefault((player, column), AgentSums(record["policy"], column)).add(record)

    def rate(self, player: _Player, table: str, column: str) -> Estimate | None:
        """Return the mean score of a player, with tasks as the units that vary; None without any."""
        score = self.scores.get((player, table, column))
        if score is None:
            return None
        scores, counts = zip(*(score[task] for task in sorted(score)), strict=True)
        return clustered_proportion(scores, counts)

    def names(self, player: _Player) -> tuple[str, ...]:
        return tuple(player if self.has_prompts else player[:2])

    @property
    def has_prompts(self) -> bool:
        """Whether there are several prompt types, so that rows have to tell theirs."""
        return len({player.prompt for player in self.players}) > 1

    @property
    def name_columns(self) -> tuple[str, ...]:
        return ("agent", "model", "prompt")[: 2 + self.has_prompts]

    def published(self, names: Sequence[str], values: Iterable[Value]) -> PaperRow:
        return PaperRow((*names, *["–"] * self.has_prompts), tuple(values), is_published=True)


def paper_tables(directories: Sequence[Path | str]) -> list[PaperTable]:
    """Return the tables of the paper that was measured in a world like that of the runs, published figures beside.

    Of KPI-Chain (`pages-v1`, HotpotQA, LOFT): table 1 and figures 3 and 4. Of RP-ReAct (`records-v1`, ToolQA): tables
    1 to 3.

    Args:
        directories: Folders of runs in one world: of several agents or models, or of parts of the questions.

    Raises:
        InvalidInputError: The runs are of another world, of several, or hold an episode twice; or no episode is there.
        StoreError: One is no folder of results.

    Example:
        >>> from resilisim.evaluation import evaluate
        >>> from resilisim.reporting import paper_tables
        >>> results = evaluate("random", 2)
        >>> paper_tables([results.directory])
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: ... was played in no world: expected runs in one of pages-v1, ...
    """
    names = [str(directory) for directory in directories]
    manifests = [read_manifest(name) for name in names]
    worlds = {manifest["arguments"].get("environment", {}).get("world") for manifest in manifests}
    world = str(next(iter(worlds), None))
    paper = _PAPER_OF_WORLD.get(world.partition(":")[0])
    if len(worlds) != 1 or paper is None:
        played = "in no world" if None in worlds else f"in {world!r}"
        what = f"was played {played}" if len(worlds) == 1 else f"were played in {len(worlds)} worlds"
        raise InvalidInputError(
            f"{', '.join(names) or 'no folder'} {what}: expected runs in one of {', '.join(_PAPER_OF_WORLD)} "
            "(those on apis-v1 have `resilisim apis tables`)"
        )
    refuse_incomparable(manifests, names)
    is_quest = world.startswith("loft:") and "quest" in world.lower()
    answers = (
        _Answers(lambda record: ("", _benchmark(record, is_quest)), _benchmark_score)
        if paper == KPI_CHAIN
        else _Answers(_domain, lambda record: float(record["outcome"]))
    )
    for number, (name, manifest) in enumerate(zip(names, manifests, strict=True)):
        asked = [manifest["arguments"].get(which, ()) for which in ("policy_names", "prompts")]

        def add(
            record: EpisodeRecord, name: str = name, number: int = number, asked: list[Sequence[str]] = asked
        ) -> None:
            policy, prompt = (
                of.index(one) if one in of else len(of)
                for of, one in zip(asked, (record["policy"], record["prompt_type"]), strict=True)
            )
            answers.add(record, name, (number, policy, prompt))

        read_facts(name, add)
    if not answers.players:
        raise InvalidInputError(f"{', '.join(names)} has no finished episode: expected at least one")
    published = json.loads(packaged_file("published-worlds.json"))
    return list((_kpi_chain if paper == KPI_CHAIN else _rp_react)(answers, published))


def _benchmark(record: EpisodeRecord, is_quest: bool) -> str:
    kind = "sets" if is_quest and record["task_type"] == "list" else record["task_type"]
    return BENCHMARKS[kind]


def _benchmark_score(record: EpisodeRecord) -> float:
    """Score an answer as KPI-Chain does: by recall for lists, by turns for conversations, else right or wrong."""
    grade = record["score"].get("grade")
    if grade is None or record["task_type"] not in ("list", "sets", "conversation"):
        return float(record["outcome"])
    return float(grade["criteria"].get("recall", grade["score"]))


def _domain(record: EpisodeRecord) -> tuple[str, str]:
    return record["complexity"], record["task_type"].partition("_")[2]


def _kpi_chain(answers: _Answers, published: Mapping[str, Any]) -> Iterator[PaperTable]:
    figures = published["kpi-chain"]
    benchmarks = [
        benchmark
        for benchmark in dict.fromkeys(BENCHMARKS.values())
        if any(key[2] == benchmark for key in answers.scores)
    ]
    columns = tuple(dict.fromkeys(BENCHMARKS.values()))
    rows = []
    for player in answers.players:
        rates = [answers.rate(player, "", column) for column in columns]
        known = [rate.value for rate in rates if rate is not None]
        mean = statistics.fmean(known) if len(known) == len(columns) else None
        rows.append(PaperRow(answers.names(player), (*rates, mean)))
    rows += [answers.published(row[:2], row[2:]) for row in figures["success"]]
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
            f"{MARK} had 1,000 questions of HotpotQA, 100 of each other.",
            "The paper lets a model judge where an exact match or recall is computed here.",
            *_notes(KPI_CHAIN),
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


_Agents = Sequence[tuple[_Player, str, AgentSums]]


def _failures(answers: _Answers, agents: _Agents, figures: Sequence[Sequence[Any]]) -> PaperTable:
    met = {name for _, _, sums in agents for name in sums.first_failures}
    named = {name for *_, shares in figures for name in shares}
    order = [name for name in FAILING_COMPONENTS if name in met | named]
    order += sorted(met - set(order))
    rows = []
    for player, column, sums in agents:
        total = sum(sums.first_failures.values())
        shares = [sums.first_failures[name] / total if total else None for name in order]
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
            *_notes(KPI_CHAIN),
        ),
    )


def _recoveries(answers: _Answers, agents: _Agents, figures: Sequence[Sequence[Any]]) -> PaperTable:
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
        single = [right[number] / total for number in range(MOST_REPLANS + 1)]
        recovered = sums.num_right - right[0]
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
        notes=_notes(KPI_CHAIN),
    )


def _efficiency(answers: _Answers, agents: _Agents, figures: Sequence[Sequence[Any]]) -> PaperTable:
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
        notes=_notes(KPI_CHAIN),
    )


def _ranges(answers: _Answers, figures: Sequence[Sequence[Any]], columns: Sequence[str]) -> Iterator[PaperRow]:
    """Return published rows of which only some figures are known, by the names of their columns."""
    for agent, model, benchmark, known in figures:
        row = answers.published((agent, model), [known.get(column) for column in columns])
        yield PaperRow((*row.names, benchmark), row.values, is_published=True)


def _rp_react(answers: _Answers, published: Mapping[str, Any]) -> Iterator[PaperTable]:
    figures = published["rp-react"]
    domains = [domain for domain in DOMAINS if domain in DOMAINS[:5] or any(key[2] == domain for key in answers.scores)]
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
            notes=_notes(RP_REACT),
        )
    for letter, difficulty in (("a", "easy"), ("b", "hard")):
        yield _over_models(answers, letter, difficulty, domains, figures[f"{difficulty} over models"])


def _over_models(
    answers: _Answers, letter: str, difficulty: str, domains: Sequence[str], figures: Sequence[Sequence[Any]]
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
            *_notes(RP_REACT),
        ),
    )


def _notes(paper: str) -> tuple[str, ...]:
    return (f"{MARK} Published: {_SOURCES[paper]} Other questions and real models, so no comparison.",)


def tables_page(tables: Sequence[PaperTable]) -> Page:
    """Return the tables as a page; figures are drawn, with their numbers folded away below."""
    sections = []
    for number, table in enumerate(tables):
        chart = _chart(table)
        shown: Block = beside_a_chart(table.shown()) if chart else table.shown()
        sections.append(Section(f"table-{number}", table.name, [*chart, shown]))
    paper = tables[0].paper
    return Page(
        f"ResiliSim: the tables of {paper}",
        f"The tables of {paper}",
        f"Made from runs in a world like the paper's. Rows marked {MARK} are published figures.",
        [],
        [],
        sections,
        "Made by ResiliSim. This file needs no network.",
    )


def _chart(table: PaperTable) -> list[Block]:
    """Return bars of a figure's own rows; nothing for tables."""
    own = [row for row in table.rows if not row.is_published]
    if not table.name.startswith("Figure"):
        return []
    labels = row_labels((" ".join(name for name in row.names[:-1] if name != "–"), row.names[-1]) for row in own)
    if table.form == COUNTS:
        return [
            bar_chart(
                f"{table.name}: {column}",
                table.caption,
                labels,
                [[Part(series_style(0), _amount(row.values[place]), column)] for row in own],
                column,
                lambda amount: f"{amount:,.0f}",
            )
            for place, column in enumerate(table.columns[:2])
        ]
    parts = [
        place
        for place, column in enumerate(table.columns)
        if column not in ("failed", f"after 1 to {MOST_REPLANS}", "after any", "share of successes")
    ]
    bars = [
        [
            Part(series_style(number), _amount(row.values[place]), table.columns[place])
            for number, place in enumerate(parts)
        ]
        for row in own
    ]
    key = legend(*series_entries("square", [plain(table.columns[place]) for place in parts]))
    return [key, bar_chart(table.name, table.caption, labels, bars, "percent of episodes", percent)]


def _amount(value: Value) -> float:
    return float(value) if isinstance(value, int | float) and not math.isnan(value) else 0.0


def tables_markdown(tables: Sequence[PaperTable]) -> str:
    """Return the tables as Markdown."""
    return page_markdown(tables_page(tables))


def tables_csv(tables: Sequence[PaperTable]) -> str:
    """Return the tables as CSV with a line for each figure, with the ends of its 95% interval."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["paper", "table", "row", "column", "value", "low", "high", "published"])
    for table in tables:
        for row in table.rows:
            for column, value in zip(table.columns, row.values, strict=True):
                figures = (value.value, value.low, value.high) if isinstance(value, Estimate) else (value, None, None)
                cells = ["" if figure is None or figure != figure else figure for figure in figures]
                writer.writerow([table.paper, table.name, " / ".join(row.names), column, *cells, row.is_published])
    return text.getvalue()


def write_tables_page(tables: Sequence[PaperTable], path: Path | str) -> None:
    """Write the tables and charts as one HTML file that needs nothing else.

    Raises:
        StoreError: It cannot be written.
    """
    write_file_atomically(Path(path), whole_page(tables_page(tables)))
