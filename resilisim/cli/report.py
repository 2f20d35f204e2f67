"""`resilisim report`: the summary table and the HTML report of a folder of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, error_console, plain, print_json


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file to write; DIR/report.html if left out.", dir_okay=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the HTML report of a run, finished or not, and print its summary."""
    from resilisim.evaluation.report.facts import count_of
    from resilisim.evaluation.results import read_results

    with error_console().status("reading episodes"):
        result = read_results(directory)
        path = result.write_report(out)
    if as_json:
        print_json({**result.to_mapping(), "report": str(path)})
        return
    if result.num_episodes < result.num_planned:
        console().print(f"not finished: {result.num_episodes:,} of {count_of(result.num_planned, 'episode')}")
    console().print(result.table())
    console().print(plain(f"report: {path}"), soft_wrap=True)
