"""The commands that take the folder of a run: report, export, rescore, merge, judge, tables, submit."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from resilisim.evaluation.run.store import EPISODES_NAME, read_records
from resilisim.exploration import Case
from resilisim.provenance import encode_json_line
from resilisim.tasks import find_task
from tests.cli.conftest import Command
from tests.evaluation.synthetic import synthetic_run
from tests.reporting.pages import write_run
from tests.worlds.notebook import NAME

EVALUATE = ("evaluate", "--policy", "plan-follower", "--prompt", "optimal", "--tasks", 5, "--seeds", 2)


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Path:
    """Return the folder of a run of 10 episodes."""
    assert command(*EVALUATE, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_report_writes_the_page_and_prints_the_summary(command: Command, run: Path, tmp_path: Path) -> None:
    outcome = command("report", run)
    assert outcome.code == 0
    assert "plan-follower" in outcome.out
    assert f"report: {run / 'report.html'}" in outcome.out
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    (run / "report.html").unlink()
    page, text, other = tmp_path / "page.html", tmp_path / "x.md", tmp_path / "other"
    assert command(*EVALUATE, "--policy", "repairing-follower", "--out", other).code == 0
    values = command("report", run, "--out", page, "--compare-with", other, "--json").json()
    assert (values["report"], values["markdown"], values["num_episodes"]) == (str(page), None, 10)
    assert "Compared with another run" in page.read_text(encoding="utf-8")
    assert f"Markdown: {text}" in command("report", run, "--out", page, "--markdown", text).out
    assert text.read_text(encoding="utf-8").startswith("# ")
    (run / EPISODES_NAME).write_text("", encoding="utf-8")
    assert "no episode is finished" in command("report", run).refusal()
    assert not (run / "report.html").exists()


def test_what_a_limit_ended_is_played_again(command: Command, tmp_path: Path) -> None:
    short = (*EVALUATE[:2], "repairing-follower", *EVALUATE[3:], "--turns", 2, "--out", tmp_path / "short")
    assert command(*short).code == 0
    extend = ("runs", "extend", tmp_path / "short", "--out", tmp_path / "more")
    outcome = command(*extend, "--turns", 10)
    assert outcome.code == 0
    assert "played again with higher limits" in outcome.out
    values = command(*extend, "--turns", 10, "--json").json()
    assert values["success_after"]["value"] > values["success_before"]["value"]
    assert values["played_again"] == sum(values["ended_by_limit"].values())
    assert "nothing would be different" in command(*extend).refusal()
    assert "expected NAME=VALUE" in command(*extend, "--option", "steps").refusal()


def test_saved_episodes_are_scored_again(command: Command, run: Path, tmp_path: Path) -> None:
    outcome = command("runs", "rescore", run)
    assert (outcome.code, outcome.out) == (0, "10 of 10 episodes agree (numbers to 1e-9)\n")
    counts = command("runs", "rescore", run, "--json").json()
    assert (counts["agrees"], counts["num_agreeing"], counts["differences"]) == (True, 10, [])
    assert counts["directory"] is None

    first, *rest = (run / EPISODES_NAME).read_bytes().splitlines(keepends=True)
    record = json.loads(first)
    record["outcome"] = 1 - record["outcome"]
    (run / EPISODES_NAME).write_bytes(encode_json_line(record) + b"".join(rest))
    outcome = command("runs", "rescore", run)
    assert outcome.code == command("runs", "rescore", run, "--json").code == 1
    assert outcome.out.startswith("9 of 10 episodes agree (numbers to 1e-9)\n1 have another score or other numbers\n")
    assert "  episode 0: outcome is " in outcome.out
    repaired = command("runs", "rescore", run, "--out", tmp_path / "again")
    assert repaired.code == command("runs", "rescore", tmp_path / "again").code == 0
    assert repaired.out.endswith(f"scored again: {tmp_path / 'again'}\n")


def test_shards_are_merged_and_exported(command: Command, tmp_path: Path) -> None:
    merged, tables = tmp_path / "merged", tmp_path / "tables"
    parts = [tmp_path / "one", tmp_path / "two"]
    for number, part in enumerate(parts, start=1):
        done = command(*EVALUATE, "--out", part, "--shard", f"{number}/2")
        assert f"next: resilisim runs merge {part}" in done.err

    first = command("runs", "merge", parts[0], "--out", merged)
    assert first.code == 0  # what there is was merged; what is missing is said
    assert "6 of 10 episodes in" in first.out
    assert "not complete: 4 of 10 episodes are missing, the first is episode 2" in first.err
    second = command("runs", "merge", *parts, "--out", merged, "--json")
    assert second.err == ""
    counts = {"num_planned": 10, "num_episodes": 10, "num_new": 4, "num_duplicates": 6, "num_failures": 0}
    rest = {"num_unfinished": 0, "first_missing": None, "explored": False}
    assert list(second.json().items()) == list({"directory": str(merged), "complete": True, **counts, **rest}.items())
    assert sorted(record["index"] for record in read_records(merged)) == list(range(10))
    # The last shard of a complete folder leads to the report.
    assert f"next: resilisim report {merged}" in command(*EVALUATE, "--out", merged, "--shard", "2/2").err

    done = command("runs", "export", merged, "--out", tables)
    assert done.code == 0
    assert "episodes.parquet" in done.out
    assert pyarrow.parquet.read_table(tables / "episodes.parquet").num_rows == 10
    again = command("runs", "export", merged, "--out", tables, "--json").json()
    assert (again["num_episodes"], again["num_planned"]) == (10, 10)
    assert [table["file"] for table in again["tables"]] == ["episodes.parquet", "steps.parquet", "failures.parquet"]
    unfinished = command("runs", "export", parts[1], "--out", tables)
    assert "not finished: 4 of 10 episodes" in unfinished.err


def test_what_is_no_run_or_another_one_is_refused_in_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "out"
    for seeds, run in enumerate(runs, start=1):
        assert command("evaluate", "--policy", "random", "--tasks", 1, "--seeds", seeds, "--out", run).code == 0
    for arguments in (
        ["runs", "merge", tmp_path, "--out", out],
        ["runs", "export", tmp_path, "--out", out],
        ["runs", "rescore", tmp_path],
        ["report", tmp_path],
        ["report", runs[0], "--compare-with", tmp_path],
    ):
        assert "is not a folder of results: it has no manifest.json" in command(*arguments).refusal()
    refusal = command("runs", "merge", *runs, "--out", out).refusal()
    assert "seeds is [0, 1] there and [0] here; only parts of one run are merged" in refusal
    assert "a is named twice" in command("runs", "merge", runs[0], runs[0], "--out", out).refusal()
    assert command("runs", "export", runs[0], "--out", out).code == 0
    assert "is not a table of this run" in command("runs", "export", runs[1], "--out", out).refusal()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "pip install -c constraints.txt '.[datasets]'" in command("runs", "export", runs[0], "--out", out).refusal()


def test_the_command_shows_and_keeps_what_the_judge_says(command: Command, tmp_path: Path) -> None:
    run, script, out = tmp_path / "run", tmp_path / "judge.jsonl", tmp_path / "verdicts.jsonl"
    command("evaluate", "--tasks", f"{NAME}:4", "--policy", "reference", "--policy", "random", "--out", run)
    replies = ("correct", "incorrect", "perhaps", "correct")
    script.write_text("".join(json.dumps({"reply": reply}) + "\n" for reply in replies))
    model = ("--model", f"scripted:{script}", "--concurrency", 1)
    done = command("runs", "judge", run, *model, "--out", out)
    assert done.code == 0, done.err
    assert "8 answers" in done.out
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["verdict"] for one in verdicts if one["policy"] == "reference"] == [
        *("correct", "incorrect", "unreadable", "correct")
    ]
    reference, silent = command("runs", "judge", run, *model, "--json").json()
    assert (reference["exact"], reference["num_both"], reference["num_exact_only"]) == (1.0, 2, 1)
    assert reference["num_unreadable"] == 1
    assert (silent["judge"], silent["num_neither"], silent["agreement"]) == (0.0, 4, 1.0)
    assert "expected one, such as --model" in command("runs", "judge", run).refusal()


def test_tables_are_shown_and_written_in_every_form(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command("evaluate", "--tasks", "pages-v1:6", "--policy", "reference", "--policy", "random", "--out", run)
    page, markdown, csv = tmp_path / "tables.html", tmp_path / "tables.md", tmp_path / "tables.csv"
    done = command("runs", "tables", run, "--out", page, "--markdown", markdown, "--csv", csv)
    assert done.code == 0
    assert done.err == f"page: {page}\nMarkdown: {markdown}\nCSV: {csv}\n"
    assert "KPI-Chain, table 1" in done.out
    assert "Plan-Execute †" in done.out
    assert "no comparison" in done.out
    assert "| reference | – | 100.0" in markdown.read_text()
    assert csv.read_text().startswith("paper,table,row,column,value,low,high,published\n")
    assert "</html>" in page.read_text()
    (table,) = command("runs", "tables", run, "--json").json()
    assert [(row["agent"], row["average"]) for row in table["rows"][:2]] == [("reference", 1.0), ("random", 0.0)]
    benchmark = write_run(tmp_path / "benchmark", list(synthetic_run(num_tasks=1)))
    assert "was played in no world: expected runs in one of pages-v1" in command("runs", "tables", benchmark).refusal()


@pytest.mark.long
def test_what_made_an_agent_lose_is_found_and_played_again(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    law = ("--law", "0.35")
    agent = "tests.exploration.agents:three_tries"
    assert command("evaluate", "--agent", agent, "--prompt", "optimal", *law, "--tasks", 1, "--seeds", 6,
                   "--out", run).code == 0  # fmt: skip
    shown = command("runs", "shrink", run)
    assert shown.code == 0
    found = command("runs", "shrink", run, "--json").json()
    assert 0 < len(found["failures"]) <= found["before"]
    line, in_python = found["reproduce"]
    assert line in shown.out
    program, *arguments = shlex.split(line)
    assert program == "resilisim"
    again = command(*arguments, "--json").json()
    assert again["outcome"] == 0
    names: dict[str, Any] = {"Case": Case}
    exec(f"record = {in_python}", names)
    assert names["record"]["steps"] == again["steps"]
    number = again["index"]
    attack = command("runs", "adversary", run, number, "--above", "0.2", "--json").json()
    assert attack["pattern"]["failures"]
    assert command(*shlex.split(attack["pattern"]["reproduce"][0])[1:], "--json").json()["outcome"] == 0
    assert "and V* still above 20.0%" in command("runs", "adversary", run, number, "--above", "0.2").out
    cells = command("runs", "matrix", run, number, "--json").json()
    assert sum(cell["weight"] or 0.0 for cell in cells["cells"]) == pytest.approx(cells["single"], abs=1e-12)
    assert "from here on" in command("runs", "matrix", run, number).out
    own = tmp_path / "own.jsonl"
    own.write_text(find_task(again["instance_id"]).to_json() + "\n", encoding="utf-8")
    line = command("runs", "shrink", run, number, "--tasks", own, "--json").json()["reproduce"][0]
    assert f"--tasks {own}" in line
    assert command(*shlex.split(line)[1:], "--json").json()["steps"] == again["steps"]
    won = next(record["index"] for record in read_records(run) if record["outcome"])
    assert "has succeeded: expected an episode that was lost" in command("runs", "shrink", run, won).refusal()
    played = command("evaluate", "--policy", "plan-follower", "--prompt", "optimal", "--law", "1.0", "--tasks", 1,
                     "--force", "network_fetcher#9=ok", "--out", tmp_path / "won")  # fmt: skip
    assert (played.code, "--force network_fetcher#9=ok changed nothing" in played.err) == (0, True)
    assert "has no lost episode" in command("runs", "shrink", tmp_path / "won").refusal()
    assert "expected TOOL#NUMBER=RESULT" in command("runs", "replay", run, 0, "--force", "x").refusal()
