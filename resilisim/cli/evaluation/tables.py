"""`resilisim tables`: the tables of the KPI-Chain and RP-ReAct papers, made from runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from resilisim.cli.options import JsonFlag, output_option
from resilisim.cli.output import answer, console, error_console, plain, tables_that_fit
from resilisim.evaluation.report.papers import paper_tables, tables_csv, tables_markdown, write_tables_page
from resilisim.run_folder import write_file_atomically


def tables(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs in one world; each may hold other models.")
    ],
    out: Annotated[
        Path | None, output_option("--out", help="HTML file to write, with charts of the figures.", dir_okay=False)
    ] = None,
    markdown: Annotated[Path | None, output_option(help="Markdown file for the tables.", dir_okay=False)] = None,
    csv: Annotated[
        Path | None, output_option("--csv", help="CSV file for the tables, one figure a line.", dir_okay=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make the tables of the KPI-Chain and RP-ReAct papers from runs on pages or records, published figures beside.

    Runs on pages (pages-v1, HotpotQA, LOFT) give table 1 and figures 3 and 4 of KPI-Chain, runs on records (records-v1,
    ToolQA) tables 1 to 3 of RP-ReAct.
    """
    with error_console().status("reading episodes"):
        made = paper_tables(directories)
    written = []
    if out is not None:
        write_tables_page(made, out)
        written.append(f"page: {out}")
    for path, text, what in ((markdown, tables_markdown, "Markdown"), (csv, tables_csv, "CSV")):
        if path is not None:
            write_file_atomically(path, text(made).encode("utf-8"))
            written.append(f"{what}: {path}")
    terminal = console()
    shown: list[RenderableType] = [part for table in made for part in tables_that_fit(table.shown(), terminal)]
    notes = dict.fromkeys(note for table in made for note in table.notes)
    answer(
        as_json, [table.to_mapping() for table in made], *shown, *(plain(note, "dim") for note in notes), notes=written
    )
