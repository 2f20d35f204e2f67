"""Options that several commands share, and what they turn into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from resilisim.errors import MAX_TURNS

if TYPE_CHECKING:
    from resilisim.tool_library import ToolLibrary
    from resilisim.tool_library.retrieval import ToolRetriever

MAX_CONCURRENCY = 10_000
MAX_SECONDS = 1e6  # of waiting for an answer

# Headings under which --help shows the options.
LAW_PANEL = "Law of the luck"
RULES_PANEL = "End rules"
ENVIRONMENT_PANEL = "Environment"
OUTPUT_PANEL = "Output"

PROMPT_HELP = "Prompt: baseline, chain_of_thought, optimal, flawed (a flaw drawn for each task), flawed:FLAW:SEVERITY"

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT_PANEL)]
LibraryOption = Annotated[
    Path | None,
    typer.Option(
        "--library",
        help="A tool library as JSON; the default one has 30 tools.",
        dir_okay=False,
        rich_help_panel=ENVIRONMENT_PANEL,
    ),
]
EmbeddingModelOption = Annotated[
    str | None,
    typer.Option(
        "--embedding-model",
        help="Embedding model of the tool search: a sentence-transformers name or folder; the shipped one if left out.",
        rich_help_panel=ENVIRONMENT_PANEL,
    ),
]
PlannerOption = Annotated[
    str,
    typer.Option(
        "--planner",
        help="Who makes the plan of prompts that hold one: auto, exact, exact-path (without limits of steps), "
        "policy:DIR (the trained policy in a folder) or policy:default (the one that ships).",
        rich_help_panel=ENVIRONMENT_PANEL,
    ),
]
TurnsOption = Annotated[
    int, typer.Option("--turns", help="Turns of an episode.", min=1, max=MAX_TURNS, rich_help_panel=RULES_PANEL)
]
FailuresOption = Annotated[
    int,
    typer.Option(
        "--max-consecutive-failures",
        help="Failed executions in a row that end an episode; 0 turns the rule off.",
        min=0,
        max=MAX_TURNS,
        rich_help_panel=RULES_PANEL,
    ),
]
LoopOption = Annotated[
    int,
    typer.Option(
        "--loop-length",
        help="Same unproductive messages in a row that end an episode; 0 turns the rule off.",
        min=0,
        max=MAX_TURNS,
        rich_help_panel=RULES_PANEL,
    ),
]
BaseOption = Annotated[
    float,
    typer.Option(
        "--success-probability", help="Base success probability of a tool.", min=0.0, max=1.0, rich_help_panel=LAW_PANEL
    ),
]
NotExecutedOption = Annotated[
    float,
    typer.Option(
        "--not-executed", help="Factor for each dependency never executed.", min=0.0, max=1.0, rich_help_panel=LAW_PANEL
    ),
]
FailedOption = Annotated[
    float,
    typer.Option(
        "--failed",
        help="Factor for each dependency executed but not yet successful.",
        min=0.0,
        max=1.0,
        rich_help_panel=LAW_PANEL,
    ),
]
HistoryOption = Annotated[
    float,
    typer.Option(
        "--history", help="Factor for each failed execution so far.", min=0.0, max=1.0, rich_help_panel=LAW_PANEL
    ),
]
SearchDetailOption = Annotated[
    Literal["brief", "full"],
    typer.Option("--search-detail", help="How much a search tells of each tool.", rich_help_panel=ENVIRONMENT_PANEL),
]
PayloadOption = Annotated[
    Literal["compact", "verbose"],
    typer.Option("--payload", help="Size of what tools return.", rich_help_panel=ENVIRONMENT_PANEL),
]
RecordTextsOption = Annotated[
    Literal["all", "failures", "none"] | None,
    typer.Option(
        "--record-texts",
        help="Whose prompts, thoughts, messages and replies stay in the records: of all episodes, of failures (no full "
        "success), of none.",
        show_default="all of LLM agents, failures of other policies",
        rich_help_panel=OUTPUT_PANEL,
    ),
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


def make_retriever(library: ToolLibrary, model: str | None) -> ToolRetriever:
    """Return the tool search over a library with the model of a `--embedding-model` option, or the shipped one."""
    from resilisim.tool_library.retrieval import ToolRetriever, default_retriever

    if model is None:
        return default_retriever(library)
    retriever = ToolRetriever(library, model)
    retriever.embed([])  # refuses a model that does not exist now, not at the first search
    return retriever
