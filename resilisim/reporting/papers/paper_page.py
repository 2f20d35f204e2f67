"""The tables of a paper as a page with charts, as Markdown, and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from resilisim.reporting.charts import legend, row_labels, series_entries, series_style
from resilisim.reporting.charts.rows import Part, bar_chart
from resilisim.reporting.page import Block, Page, Section, beside_a_chart, page_markdown, plain, whole_page
from resilisim.reporting.papers.kpi_chain import MOST_REPLANS
from resilisim.reporting.papers.paper_table import COUNTS, PUBLISHED_MARK, PaperTable, Value
from resilisim.run_folder import write_file_atomically
from resilisim.statistics import Estimate
from resilisim.tables.numbers import percent


def tables_page(tables: Sequence[PaperTable]) -> Page:
    """Return the tables as a page; figures are drawn, with their numbers folded away below."""
    sections = []
    for number, table in enumerate(tables):
        chart = _chart(table)
        shown: Block = beside_a_chart(table.table()) if chart else table.table()
        sections.append(Section(f"table-{number}", table.name, [*chart, shown]))
    paper = tables[0].paper
    return Page(
        f"ResiliSim: the tables of {paper}",
        f"The tables of {paper}",
        f"Made from runs in a world like the paper's. Rows marked {PUBLISHED_MARK} are published figures.",
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
