"""`resilisim report`: the page of a run, and its summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, error_console, print_json, say
from resilisim.errors import StoreError, count_of
from resilisim.evaluation.run_results import EvaluationResult
from resilisim.evaluation.table.facts import read_facts
from resilisim.reporting import write_report
from resilisim.reporting.viewer.packing import Packer


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    compare_with: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of another run; a section compares the policies that both have, on their common draws.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write; DIR/report.html if left out.", dir_okay=False)
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Markdown file to write the same tables to.", dir_okay=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the HTML report of a run, finished or not.

    Its summary is printed as well.
    """
    packer = Packer()
    with error_console().status("reading episodes") as status:
        facts = read_facts(directory, packer.add)
        if not facts.rows:
            raise StoreError(f"{directory} has nothing to report: no episode is finished")
        status.update("writing the report")
        path = write_report(directory, out, compare_with, markdown=markdown, facts=facts, packer=packer)
    result = EvaluationResult(directory, facts)
    if as_json:
        written = {"report": str(path), "markdown": None if markdown is None else str(markdown)}
        print_json({**result.to_mapping(), **written})
        return
    if result.num_episodes < result.num_planned:
        say(f"not finished: {result.num_episodes:,} of {count_of(result.num_planned, 'episode')}")
    console().print(result.table())
    say(f"report: {path}", *([] if markdown is None else [f"Markdown: {markdown}"]))
