"""Markdown and HTML are made of one page: the same tables with the same numbers, and nothing becomes markup."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from resilisim.evaluation.report import write_report
from resilisim.evaluation.report.page import Cell, Page, Section, Table, page_markdown
from resilisim.evaluation.report.page import escape_markdown as escape
from tests.evaluation.report.agent_records import agent_records
from tests.evaluation.report.pages import check, write_run
from tests.evaluation.synthetic import synthetic_run

EVIL = "<img src=x onerror=alert(1)>|[x](javascript:y)`*_#"
CELL_END = re.compile(r"(?<!\\)\|")


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Return the rows of each table of a Markdown text, without headings."""
    tables: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [re.sub(r"\\(.)", r"\1", cell).strip() for cell in CELL_END.split(line)[1:-1]]
        if not inside:
            tables.append([])
            inside = True
            continue
        if set(line) <= set("|-: "):
            continue
        tables[-1].append([re.sub(r"^\*\*(.*)\*\*$", r"\1", cell) for cell in cells])
    return tables


@pytest.mark.parametrize("kind", ["scripted", "agents", "unfinished"])
def test_markdown_has_the_tables_of_the_page(tmp_path: Path, kind: str) -> None:
    if kind == "agents":
        records: list[dict[str, Any]] = agent_records(num_tasks=4)
    else:
        records = [dict(record) for record in synthetic_run(num_tasks=6, num_seeds=2)]
    folder = write_run(tmp_path, records, planned=len(records) + 5 * (kind == "unfinished"))
    page = check(write_report(folder, markdown=tmp_path / "report.md"))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    shown = [
        [[" ".join(cell.split()) for cell in row] for row in table if row]
        for table in page.tables
        if "message" not in table[0][1:2]  # episodes for readers without a script stand in the page only
    ]
    found = markdown_tables(text)[1:]  # the first holds the key figures, which are no table in the page
    assert len(found) > 8
    assert len(found) == len(shown)
    for mine, its in zip(found, shown, strict=True):
        assert mine == its[-len(mine) :]
    for name, figure, _, _ in markdown_tables(text)[0]:
        assert name in page.texts
        assert figure in page.texts
    assert ("Not finished" in text) == (kind == "unfinished")


def test_an_empty_run_has_a_short_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [], planned=3)
    write_report(folder, markdown=tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "No episode is finished yet" in text
    assert markdown_tables(text) == []


def test_hostile_names_stay_texts(tmp_path: Path) -> None:
    records = [
        {**record, "policy": EVIL, "task_type": EVIL, "instance_id": EVIL + record["instance_id"]}
        for record in synthetic_run(("random",), ("baseline",), num_tasks=3, num_seeds=1)
    ]
    write_report(write_run(tmp_path, records), markdown=tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "onerror" in text
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", text)
    assert not re.search(r"(?<!\\)\[x", text)
    tables = markdown_tables(text)
    assert tables[1][0][0] == EVIL


def test_a_text_is_shown_as_it_is_on_one_line() -> None:
    assert escape("a|b\n<c> *d* _e_ `f` [g] #1 ~ \\ & $") == r"a\|b \<c\> \*d\* \_e\_ \`f\` \[g\] \#1 \~ \\ \& \$"
    assert escape("x\u2028y\x00z") == "x y\N{REPLACEMENT CHARACTER}z"
    assert "\n" not in escape(html.unescape("&#10;&#13;&#133;"))


def test_groups_of_columns_and_marks_stand_in_the_cells() -> None:
    table = Table(
        "what",
        ("name", "full", "fail"),
        [(Cell("a", mark="*"), Cell("1.0", detail="[0.5, 1.5]"), "2"), ("mean", "3", "4")],
        groups=(("", 1), ("baseline", 2)),
        notes=("why",),
        summary_rows=1,
    )
    page = Page("", "", "", (), (), [Section("a", "A", [table])], "")
    assert page_markdown(page).split("## A\n\n")[1].split("\n\n**\n")[0].split("\n")[:9] == [
        "**what**",
        "",
        "| name | baseline full | baseline fail |",
        "| --- | ---: | ---: |",
        r"| a \* | 1.0 \[0.5, 1.5\] | 2 |",
        "| **mean** | 3 | 4 |",
        "",
        "*why*",
    ]
