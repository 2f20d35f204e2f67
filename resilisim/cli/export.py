"""`resilisim export`: a run's episodes as Parquet tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, note, print_json, table


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the tables; those of the same run are replaced.")],
    as_json: JsonFlag = False,
) -> None:
    """Write a run, finished or not, as Parquet tables: episodes, steps, failures, and calls of language models."""
    from resilisim.cli.progress import Progressing
    from resilisim.datasets.run_tables import export_run
    from resilisim.evaluation.run.store import read_manifest

    planned = read_manifest(directory)["arguments"].get("num_episodes", 0)
    with Progressing("exporting episodes", planned) as progress:
        result = export_run(directory, out, progress=progress.advance)
    if as_json:
        print_json(result.to_mapping())
        return
    rows = [[facts.file, facts.num_records, facts.num_bytes] for facts in result.tables]
    console().print(table(f"tables in {out}", ["file", "rows", "bytes"], rows))
    if result.num_episodes < result.num_planned:
        note(f"not finished: {result.num_episodes:,} of {result.num_planned:,} episodes")
