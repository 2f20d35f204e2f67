"""`resilisim report`: the summary table and the HTML report of a folder of results, also as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, error_console, plain, print_json


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    compare_with: Annotated[
        Path | None,
        typer.Option(
            "--compare-with",
            metavar="DIR",
            help="Folder of another run; a section compares the policies that both have, on their common luck.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file to write; DIR/report.html if left out.", dir_okay=False)
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Markdown file to write the same tables to.", dir_okay=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the HTML report of a run, finished or not, and print its summary."""
    from resilisim.errors import StoreError, count_of
    from resilisim.evaluation.report import write_report
    from resilisim.evaluation.report.viewer import Packer
    from resilisim.evaluation.results import result_of
    from resilisim.evaluation.table.facts import read_facts

    packer = Packer()
    with error_console().status("reading episodes") as status:
        facts = read_facts(directory, packer.add)
        if not facts.rows:
            raise StoreError(f"{directory} has nothing to report: no episode is finished")
        status.update("writing the report")
        path = write_report(directory, out, compare_with, markdown=markdown, facts=facts, packer=packer)
    result = result_of(directory, facts)
    if as_json:
        written = {"report": str(path), "markdown": None if markdown is None else str(markdown)}
        print_json({**result.to_mapping(), **written})
        return
    if result.num_episodes < result.num_planned:
        console().print(f"not finished: {result.num_episodes:,} of {count_of(result.num_planned, 'episode')}")
    console().print(result.table())
    console().print(plain(f"report: {path}"), soft_wrap=True)
    if markdown is not None:
        console().print(plain(f"Markdown: {markdown}"), soft_wrap=True)
