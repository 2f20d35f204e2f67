"""`resilisim view`: all runs of a folder in the browser."""

from __future__ import annotations

import contextlib
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from resilisim.bounds import Port
from resilisim.cli import options, output
from resilisim.reporting.view.server import ViewServer
from resilisim.tasks.benchmark import BENCHMARK_VERSION


def view(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Folder that contains the runs, at any depth.")
    ] = Path(),
    port: Annotated[Port, typer.Option(help="Port on this machine; 0 takes a free one.")] = 8700,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
) -> None:
    """Show the runs in a folder in the browser, even unfinished ones.

    It shows their progress and reports, compares any two agents, and puts the same episode of both side by side on
    the same draws. Pages are served to this machine only, and nothing is written. Pass the `--tasks` and `--library`
    of the runs if the optimum is to play on from a recorded turn.
    """
    tool_library = options.load(library)
    with ViewServer(
        folder, port, find_task=lambda task: options.find_task(task, tasks, tool_library), library=tool_library
    ) as server:
        output.say(f"the runs in {folder.resolve()} are at {server.url} (Ctrl-C ends)")
        if browser:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve()
