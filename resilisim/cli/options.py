"""Options that several commands share, and what they turn into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from resilisim.simulator.law import BenchmarkLaw
    from resilisim.simulator.rules import EndRules
    from resilisim.tool_library import ToolLibrary

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
LibraryOption = Annotated[
    Path | None,
    typer.Option("--library", help="A tool library as JSON; the default one has 30 tools.", dir_okay=False),
]
TurnsOption = Annotated[int, typer.Option("--turns", help="Turns of an episode.", min=1)]
FailuresOption = Annotated[
    int,
    typer.Option(
        "--max-consecutive-failures",
        help="Failed executions in a row that end an episode; 0 turns the rule off.",
        min=0,
    ),
]
BaseOption = Annotated[
    float, typer.Option("--success-probability", help="Base success probability of a tool.", min=0.0, max=1.0)
]


def command_group(help_text: str) -> typer.Typer:
    """Return a group of commands that shows its help when it is called without one."""
    group = typer.Typer(help=help_text)

    @group.callback(invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group


def load(library: Path | None) -> ToolLibrary:
    """Return the library of a `--library` option, or the default one."""
    from resilisim.tool_library import default_library, load_library

    return default_library() if library is None else load_library(library)


def law_and_rules(base: float, turns: int, failures: int) -> tuple[BenchmarkLaw, EndRules]:
    """Return the law and the end rules that the shared options describe."""
    from resilisim.simulator.law import BenchmarkLaw
    from resilisim.simulator.rules import EndRules

    return BenchmarkLaw(base=base), EndRules(max_turns=turns, max_consecutive_failures=failures)
