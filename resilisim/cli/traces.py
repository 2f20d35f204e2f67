"""`resilisim traces`: what agents did in production, read into records, and whose faults its failures were."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.bounds import Turns
from resilisim.cli import options
from resilisim.cli.goal_options import (
    AnyOrderOption,
    ChecksOption,
    FailOption,
    GoalOption,
    OnceOption,
    checks_in,
    names_in,
)
from resilisim.cli.options import output_option
from resilisim.cli.output import answer, command_group, plain
from resilisim.envs.settings import GOAL_GROUP
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.run.progress import Progressing
from resilisim.injection.traces.faults import FAULT_WORDS, Faults
from resilisim.injection.traces.reading import read_traces, trace_files
from resilisim.injection.traces.recording import record_traces
from resilisim.tables.table import Table

_MOST_EPISODES = 5  # whose calls lost most that are named

app = command_group()


@app.callback()
def group() -> None:
    """Read production traces, and tell tools' faults from the agent's."""


@app.command("read")
def read(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Files or folders: OTLP JSON (GenAI or OpenInference spans), logs of Inspect (.json, .eval), MCP "
            "messages, conversations, JSON Lines of calls.",
        ),
    ],
    *,
    out: Annotated[Path, output_option("--out", help="New folder for the record of calls.", file_okay=False)],
    law: Annotated[
        str | None,
        typer.Option("--law", help="Law by which V* is computed.", show_default="the one that fits these traces"),
    ] = None,
    library: options.LibraryOption = None,
    required: Annotated[
        str | None,
        typer.Option(
            "--required",
            metavar="TOOL,TOOL",
            help="The goal: tools that had to answer, in this order. Each trace is then an episode with V*, regret and "
            "luck.",
            rich_help_panel=GOAL_GROUP,
        ),
    ] = None,
    counts: GoalOption = None,
    any_order: AnyOrderOption = False,
    once: OnceOption = None,
    fail: FailOption = None,
    checks: ChecksOption = None,
    turns: Annotated[
        Turns | None,
        typer.Option(
            "--turns",
            help="Calls that an agent has.",
            show_default="those of the longest trace and one more, at least 10",
            rich_help_panel=GOAL_GROUP,
        ),
    ] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Read traces into the record of calls that `inject` writes, and tell faults of tools from faults of agents.

    `law fit DIR` makes a law file of it, and with --required `report DIR` shows each trace as an episode.
    """
    files = trace_files(paths)
    goal = names_in(required)
    if (any_order or counts or turns is not None) and not goal:
        raise InvalidInputError("--goal, --any-order and --turns say more of a goal: expected --required")
    with Progressing("files", len(files)) as shown:
        traces = read_traces(files, shown.advance)
    with Progressing("traces", len(traces)) as shown:
        result = record_traces(
            traces,
            out,
            law=law,
            library=None if library is None else options.load(library),
            required=goal,
            goal=counts or "answers",
            ordered=not any_order,
            once=names_in(once),
            fail=fail or "before",
            checks=checks_in(checks or ()),
            turns=turns,
            advance=shown.advance,
        )
    faults = result.faults
    lines = [] if faults.lost is None else [plain(_lost_words(faults.lost), "bold")]
    costly = sorted(
        (
            (step["regret"], record, place, step)
            for record in result.records
            for place, step in enumerate(record["steps"], start=1)
            if step["regret"] > 0.0005
        ),
        key=lambda each: -each[0],
    )
    rows = [
        [traces[record["seed"]].source, place, step["tool"] or step["kind"], step["label"], 100.0 * regret]
        for regret, record, place, step in costly[:_MOST_EPISODES]
    ]
    named = Table.of_values("What lost most", ["trace", "message", "tool", "cause", "points"], rows, digits=1)
    answer(
        as_json,
        {"out": str(out), "law": result.law.to_mapping(), **faults.to_mapping()},
        *lines,
        _tools_table(faults),
        *([_agents_table(faults)] if faults.agent else [plain("The traces show no fault of an agent.")]),
        *([named] if rows else []),
        notes=[
            *faults.untold,
            *(result.fitted.untold if result.fitted is not None else ()),
            f"{count_of(faults.calls, 'call')} of {count_of(faults.traces, 'trace')} in {out}; next: "
            f"resilisim law fit {out} --out law.yaml" + (f", resilisim report {out}" if result.records else ""),
        ],
    )


def _lost_words(lost: dict[str, float]) -> str:
    return (
        f"Of {lost['lost']:.1f} points lost, {lost['tools']:.1f} were the tools' and {lost['agent']:.1f} the agents'. "
        f"V* is {lost['optimum']:.1f}%."
    )


def _tools_table(faults: Faults) -> Table:
    kinds = ("lost", "wait", "access", "input", "other", "misuse")
    rows = [
        [tool, counts["calls"], *(counts[kind] for kind in kinds)]
        for tool, counts in sorted(faults.tools.items(), key=lambda each: -each[1]["calls"])
    ]
    heads = ["tool", "calls", "answer lost", "wait", "access", "input", "other", "bad call"]
    return Table.of_values("Failures of tools, by what they ask for", heads, rows)


def _agents_table(faults: Faults) -> Table:
    rows = []
    for kind, count in faults.counted().items():
        first = next(fault for fault in faults.agent if fault.kind == kind)
        rows.append([FAULT_WORDS[kind], count, f"{first.source}, call {first.call} ({first.tool})"])
    return Table.of_values("Faults of agents", ["what", "times", "first"], rows)
