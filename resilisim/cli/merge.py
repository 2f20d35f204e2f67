"""`resilisim merge`: put the parts of a run, played apart, into one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli.options import JsonFlag
from resilisim.cli.output import console, note, plain, print_json


def merge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of one run: its shards, or copies of it.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the merged run; the same command goes on in it.")],
    as_json: JsonFlag = False,
) -> None:
    """Put the parts of a run into one folder, each episode once; folders of other runs are refused."""
    from resilisim.cli.progress import Progressing
    from resilisim.evaluation.run.merge import merge_runs
    from resilisim.evaluation.run.store import read_manifest

    planned = read_manifest(directories[0])["arguments"].get("num_episodes", 0)
    with Progressing("merging episodes", planned) as progress:
        result = merge_runs(directories, out, progress=progress.advance)
    if as_json:
        print_json(result.to_mapping())
    else:
        console().print(
            plain(
                f"{result.num_episodes:,} of {result.num_planned:,} episodes in {out}, {result.num_new:,} of them new"
            ),
            soft_wrap=True,
        )
    if not result.is_complete:
        missing = result.num_planned - result.num_episodes
        note(
            f"not complete: {missing:,} of {result.num_planned:,} episodes are missing, the first is episode "
            f"{result.first_missing}; merge the folder that holds it, or evaluate into {out} to play what is missing"
        )
    if result.num_unfinished:
        note(f"{result.num_unfinished:,} of them were begun; their replies are kept")
