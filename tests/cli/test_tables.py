"""`resilisim tables` on a run that was really played."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from tests.evaluation.report.pages import write_run
from tests.evaluation.synthetic import synthetic_run


def test_tables_are_shown_and_written_in_every_form(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command("evaluate", "--tasks", "pages-v1:6", "--policy", "reference", "--policy", "random", "--out", run)
    page, markdown, csv = tmp_path / "tables.html", tmp_path / "tables.md", tmp_path / "tables.csv"
    done = command("tables", run, "--out", page, "--markdown", markdown, "--csv", csv)
    assert done.code == 0
    assert done.err == f"page: {page}\nMarkdown: {markdown}\nCSV: {csv}\n"
    assert "KPI-Chain, table 1" in done.out
    assert "Plan-Execute †" in done.out
    assert "no comparison" in done.out
    assert "| reference | – | 100.0" in markdown.read_text()
    assert csv.read_text().startswith("paper,table,row,column,value,low,high,published\n")
    assert "</html>" in page.read_text()
    (table,) = command("tables", run, "--json").json()
    assert [(row["agent"], row["average"]) for row in table["rows"][:2]] == [("reference", 1.0), ("random", 0.0)]
    benchmark = write_run(tmp_path / "benchmark", list(synthetic_run(num_tasks=1)))
    assert "was played in no world: expected runs in one of pages-v1" in command("tables", benchmark).refusal()
