"""The tables of KPI-Chain and RP-ReAct: our rows against sums done here, published ones against the papers."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from resilisim.errors import InvalidInputError
from resilisim.reporting import paper_tables
from resilisim.reporting.page import whole_page
from resilisim.reporting.papers.kpi_chain import BENCHMARK_OF_QUESTION
from resilisim.reporting.papers.paper_page import tables_csv, tables_markdown, tables_page
from resilisim.reporting.papers.paper_table import PaperRow, PaperTable
from resilisim.reporting.papers.rp_react import DOMAINS_IN_ORDER
from resilisim.statistics import Estimate
from tests.reporting.agent_records import AGENTS, MODELS, agent_records
from tests.reporting.pages import Checker, write_run

Record = dict[str, Any]


def in_world(world: str, records: list[Record], folder: Path) -> Path:
    return write_run(folder, records, environment={"world": world})


def pages_records(num_tasks: int = 12) -> list[Record]:
    """Return agents' episodes on every kind of question; some answers are right in part."""
    kinds = list(BENCHMARK_OF_QUESTION)
    made = []
    for record in agent_records(num_tasks, num_seeds=1):
        task = int(record["instance_id"].rpartition("_")[2], 16)
        score = (0.25, 0.5, 1.0)[(task + record["index"]) % 3]
        criteria = {"f1": score / 2.0, "recall": score} if task % 6 in (3, 4) else {"turns": score}
        grade = {"correct": bool(record["outcome"]), "score": score, "criteria": criteria}
        made.append({**record, "task_type": kinds[task % 6], "score": {**record["score"], "grade": grade}})
    return made


def records_records(num_tasks: int = 20) -> list[Record]:
    made = []
    for record in agent_records(num_tasks, num_seeds=2):
        task = int(record["instance_id"].rpartition("_")[2], 16)
        difficulty = "easy" if task % 4 < 2 else "hard"
        made.append({**record, "task_type": f"records_{('yelp', 'agenda')[task % 2]}", "complexity": difficulty})
    return made


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], list[PaperTable]]:
    records = pages_records()
    return records, paper_tables([in_world("pages-v1", records, tmp_path_factory.mktemp("pages"))])


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], list[PaperTable]]:
    records = records_records()
    return records, paper_tables([in_world("records-v1", records, tmp_path_factory.mktemp("records"))])


def row_of(table: PaperTable, *names: str) -> PaperRow:
    (row,) = (row for row in table.rows if row.names == names)
    return row


def values_of(table: PaperTable, *names: str) -> dict[str, Any]:
    row = row_of(table, *names)
    plain = (value.value if isinstance(value, Estimate) else value for value in row.values)
    return dict(zip(table.columns, plain, strict=True))


def episodes(records: list[Record], agent: str, model: str, prompt: str) -> list[Record]:
    return [one for one in records if one["policy"] == f"{agent}@{model}" and one["prompt_type"] == prompt]


def test_table_1_scores_lists_by_recall_and_conversations_by_turns(
    pages: tuple[list[Record], list[PaperTable]],
) -> None:
    records, (table, *_) = pages
    model = next(iter(MODELS))
    for agent in AGENTS:
        own = episodes(records, agent, model, "baseline")
        expected = {}
        for benchmark in dict.fromkeys(BENCHMARK_OF_QUESTION.values()):
            some = [one for one in own if BENCHMARK_OF_QUESTION[one["task_type"]] == benchmark]
            by_grade = benchmark in ("QAMPARI", "QUEST", "TopiOCQA")
            scores = [one["score"]["grade"]["score"] if by_grade else one["outcome"] for one in some]
            expected[benchmark] = statistics.fmean(scores)
        found = values_of(table, agent, model, "baseline")
        assert found == pytest.approx({**expected, "average": statistics.fmean(expected.values())})


def test_published_rows_of_kpi_chain_are_those_of_the_paper(pages: tuple[list[Record], list[PaperTable]]) -> None:
    table, failures, recoveries, calls, *_ = pages[1]
    published = {row.names[0]: row.values for row in table.rows if row.is_published}
    # Table 1 of the paper, whose first three rows are TopiOCQA, QAMPARI and QUEST.
    assert published["KPI-Chain"] == (0.60, 0.31, 0.31, 0.25, 0.41, 0.376)
    assert published["Plan-Execute"][3] == 0.135
    for row in (row for row in table.rows if row.is_published):
        values = [value for value in row.values if isinstance(value, float)]
        assert statistics.fmean(values[:-1]) == pytest.approx(values[-1], abs=0.0011)  # 24.3 is the mean of 24.3
    assert values_of(failures, "KPI-Chain", "Qwen3-32B", "–", "LOFT")["extractor"] == "31 to 50"
    assert values_of(recoveries, "KPI-Chain", "Qwen3-32B", "–", "HotpotQA")["first attempt"] == 0.38
    named = "KPI-Chain, first version of the paper"
    assert values_of(calls, named, "Qwen3-32B", "–", "all")["calls per question"] == 2447


def test_figures_3_and_4_are_sums_over_the_records_of_agents(pages: tuple[list[Record], list[PaperTable]]) -> None:
    records, (_, failures, recoveries, calls, *_) = pages
    model = list(MODELS)[1]
    for benchmark in ("HotpotQA", "QUEST"):
        names = ("rp-react", model, "optimal", benchmark)
        own = [one for one in episodes(records, *names[:3]) if BENCHMARK_OF_QUESTION[one["task_type"]] == benchmark]
        failed = [one for one in own if not one["outcome"]]
        planners = sum(one["agent"]["first_failure"] is not None for one in failed)
        found = values_of(failures, *names)
        assert found["failed"] == len(failed)
        assert found["planner"] == (pytest.approx(planners / len(failed)) if failed else None)
        right = [one["agent"]["counters"]["replans"] for one in own if one["outcome"]]
        found = values_of(recoveries, *names)
        assert found["first attempt"] == pytest.approx(right.count(0) / len(own))
        assert found["after 2"] == pytest.approx(right.count(2) / len(own))
        assert found["after 1 to 3"] == pytest.approx(sum(number > 0 for number in right) / len(own))
        assert found["after more than 3"] == 0.0
        found = values_of(calls, *names)
        assert found == {"calls per question": 4.0, "tokens per call": 320.0, "tokens per question": 1280.0}


def test_accuracy_by_domain_and_the_measures_over_models(answers: tuple[list[Record], list[PaperTable]]) -> None:
    records, (easy, hard, easy_over, hard_over) = answers
    assert [table.name for table in answers[1]] == ["Table 1", "Table 2", "Table 3a", "Table 3b"]
    for table, over, difficulty in ((easy, easy_over, "easy"), (hard, hard_over, "hard")):
        assert table.columns == ("yelp", "scirex", "flights", "airbnb", "coffee", "agenda")
        rates = []
        for model in MODELS:
            own = episodes(records, "react", model, "optimal")
            own = [one for one in own if one["complexity"] == difficulty and one["task_type"] == "records_agenda"]
            rates.append(statistics.fmean(one["outcome"] for one in own))
            found = values_of(table, "react", model, "optimal")
            assert found["agenda"] == pytest.approx(rates[-1])
            assert found["coffee"] is None
        saturation = 1.0 - (max(rates) - statistics.fmean(rates))
        assert values_of(over, "agenda", "react", "optimal") == pytest.approx(
            {
                "models": len(MODELS),
                "Mean": statistics.fmean(rates),
                "Std": statistics.stdev(rates),
                "Sat": saturation,
                "CPS": saturation * max(rates),
            }
        )


def test_published_tables_of_rp_react_agree_with_its_own_means(answers: tuple[list[Record], list[PaperTable]]) -> None:
    """The paper's table 3 says what its tables 1 and 2 come to, so a figure in a wrong column shows."""
    four = ("gpt-oss-120b", "gpt-oss-20b", "Qwen3-32B", "Qwen3-14B")
    compared = 0
    for table, over in (answers[1][:1] + answers[1][2:3], answers[1][1:2] + answers[1][3:]):
        for agent in ("ReAct", "Reflexion", "RP-ReAct"):
            for place, domain in enumerate(DOMAINS_IN_ORDER[:5]):
                cells = [
                    row.values[place]
                    for row in table.rows
                    if row.is_published and row.names[0] == agent and row.names[1] in four
                ]
                assert len(cells) == 4
                if None not in cells:
                    compared += 1
                    mean = values_of(over, domain, agent, "–")["Mean"]
                    # It cuts after two digits, and four of its means are off by more than that.
                    assert statistics.fmean(cells) == pytest.approx(mean, abs=0.031), (agent, domain)
    assert compared == 21
    assert row_of(answers[1][0], "React-100".replace("React", "ReAct"), "gpt-oss-20b", "–").values[0] == 0.22
    assert values_of(answers[1][3], "coffee", "RP-ReAct", "–")["CPS"] == 0.36


def test_all_forms_hold_the_same_figures_and_mark_published_ones(pages: tuple[list[Record], list[PaperTable]]) -> None:
    tables = pages[1]
    rows = list(csv.DictReader(io.StringIO(tables_csv(tables))))
    assert len(rows) == sum(len(table.columns) * len(table.rows) for table in tables)
    first = tables[0].rows[0]
    assert isinstance(first.values[0], Estimate)
    assert [float(rows[0][name]) for name in ("value", "low", "high")] == [
        first.values[0].value,
        first.values[0].low,
        first.values[0].high,
    ]
    assert {row["published"] for row in rows} == {"True", "False"}
    mapping = json.loads(json.dumps([table.to_mapping() for table in tables], allow_nan=False))
    assert mapping[0]["rows"][0]["HotpotQA"]["value"] == first.values[0].value
    assert sum(row["published"] for row in mapping[0]["rows"]) == 4
    markdown = tables_markdown(tables)
    assert markdown.count("\n| KPI-Chain †") == 1 + 3 + 3 + 1
    page = Checker(whole_page(tables_page(tables)).decode())
    assert len(page.tables) == len(tables) == 5
    assert page.tags.count("svg") > 0


def test_the_mark_stands_behind_the_agent(answers: tuple[list[Record], list[PaperTable]]) -> None:
    assert "\n| yelp | RP-ReAct † | – | 4 | 52.0 | 18.0 | – | 57.0 |" in tables_markdown(answers[1])


def test_several_runs_are_one_table_and_none_counts_twice(tmp_path: Path) -> None:
    records = records_records(8)
    halves = [[one for one in records if one["seed"] == seed] for seed in (0, 1)]
    folders = [in_world("records-v1", half, tmp_path / str(place)) for place, half in enumerate(halves)]
    whole = in_world("records-v1", records, tmp_path / "whole")
    assert [table.to_mapping() for table in paper_tables(folders)] == [
        table.to_mapping() for table in paper_tables([whole])
    ]
    # Agents that ask models end their episodes in any order.
    backwards = write_run(
        tmp_path / "backwards",
        records[::-1],
        environment={"world": "records-v1"},
        policy_names=list(dict.fromkeys(record["policy"] for record in records)),
        prompts=["baseline", "optimal"],
    )
    assert [table.to_mapping() for table in paper_tables([backwards])] == [
        table.to_mapping() for table in paper_tables([whole])
    ]
    with pytest.raises(InvalidInputError, match="another run has, too"):
        paper_tables([whole, folders[0]])
    elsewhere = in_world("pages-v1", pages_records(6), tmp_path / "pages")
    with pytest.raises(InvalidInputError, match="played in 2 worlds"):
        paper_tables([whole, elsewhere])
    with pytest.raises(InvalidInputError, match=r"was played in 'apis-v1'.*resilisim apis tables"):
        paper_tables([in_world("apis-v1", records, tmp_path / "apis")])
    with pytest.raises(InvalidInputError, match="no finished episode"):
        paper_tables([write_run(tmp_path / "empty", [], 4, environment={"world": "records-v1"})])


def test_lists_of_loft_count_for_the_benchmark_of_their_folder(tmp_path: Path) -> None:
    lists = [record for record in pages_records(6) if record["task_type"] == "list"]
    for folder, benchmark in (("quest", "QUEST"), ("qampari", "QAMPARI")):
        table = paper_tables([in_world(f"loft:data/{folder}/128k", lists, tmp_path / folder)])[0]
        filled = {
            column for row in table.rows[:4] for column, value in zip(table.columns, row.values, strict=True) if value
        }
        assert filled == {benchmark}
