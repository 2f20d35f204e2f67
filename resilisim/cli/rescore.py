"""`resilisim rescore`: the saved episodes of a run, scored and attributed again from their records alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilisim.cli.options import JsonFlag, LibraryOption, load
from resilisim.cli.output import console, plain, print_json
from resilisim.cli.progress import Progressing
from resilisim.errors import MAX_WORKERS

if TYPE_CHECKING:
    from resilisim.evaluation.run.rescoring import RescoreSummary


def rescore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the episodes as they are scored now to this new folder.", file_okay=False),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=MAX_WORKERS)] = 1,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Score saved episodes again, without a model or an environment; 1 is the exit code if any does not agree.

    What is computed again: how each episode ended, its score, and for each message V*, Q*, regret, luck and the reason
    of a loss. With --out it is written to a new folder, whatever has changed, and the exit code is 0.
    """
    from resilisim.evaluation.run.rescoring import rescore_run
    from resilisim.evaluation.run.store import read_manifest

    planned = int(read_manifest(directory)["arguments"].get("num_episodes", 0))
    with Progressing("scoring again", planned) as shown:
        summary = rescore_run(directory, out, library=load(library), workers=workers, progress=shown.advance)
    if as_json:
        print_json(summary.to_mapping())
    else:
        _print(summary)
    if out is None and not summary.agrees:
        raise typer.Exit(1)


def _print(summary: RescoreSummary) -> None:
    lines = [f"{summary.num_agreeing:,} of {summary.num_episodes:,} episodes agree (numbers to 1e-9)"]
    for number, what in (
        (summary.num_other_labels, "have the same numbers and other reasons of losses"),
        (summary.num_differing, "have another score or other numbers"),
        (summary.num_impossible, "cannot have happened as they stand there"),
    ):
        if number:
            lines.append(f"{number:,} {what}")
    if summary.differences:
        lines += ["first differences:", *(f"  {difference}" for difference in summary.differences)]
    if summary.directory is not None:
        lines.append(f"scored again: {summary.directory}")
    for line in lines:
        console().print(plain(line), soft_wrap=True)
