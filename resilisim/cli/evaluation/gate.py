"""`resilisim gate`: whether a candidate is worse than a baseline, with exit codes that a build can act on."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from resilisim.at_work import AT_WORK
from resilisim.bounds import Count
from resilisim.cli import options, output
from resilisim.errors import InvalidInputError, one_line
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.table.gate import DEFAULT_ALPHA, DEFAULT_MARGIN, Gate, gate_pilot, gate_runs
from resilisim.evaluation.table.gate_plan import plan_gate
from resilisim.options import OUTPUT_GROUP
from resilisim.reporting.gate import gate_junit, gate_markdown, gate_table, parted_tables, plan_table
from resilisim.tables.numbers import signed_interval, signed_points

PLAY_PANEL: Final = "Playing"
DIFFERENCES: Final = (1.0, 3.0, 10.0, 22.0)  # points that are planned for
STANDARD_ERROR: Final = 2  # where what a command prints goes, as the verdict stands on standard output
SUMMARY: Final = "GITHUB_STEP_SUMMARY"  # where a step of a GitHub workflow writes Markdown

_COMMAND_HELP = (
    "Command that plays what is missing of the {side} into {{out}}. With {{seeds}} in it, it is run for more and more "
    "seeds; with {{first_seed}}, too, each time for the new ones only."
)


def gate(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE", help="Folder of a run, or of runs of more seeds.")],
    candidate: Annotated[
        Path | None,
        typer.Argument(metavar="CANDIDATE", help="The same for the candidate; not needed with --plan."),
    ] = None,
    margin: Annotated[
        float, typer.Option("--margin", help="Points by which the candidate's success rate may be lower.")
    ] = 100.0 * DEFAULT_MARGIN,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Chance of a wrong verdict, however often you look.")
    ] = DEFAULT_ALPHA,
    baseline_policy: Annotated[
        str | None, typer.Option("--baseline-policy", help="Only this agent of BASELINE.")
    ] = None,
    candidate_policy: Annotated[
        str | None, typer.Option("--candidate-policy", help="Only this agent of CANDIDATE.")
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Only this prompt type.")] = None,
    baseline_command: Annotated[
        str | None,
        typer.Option(
            "--baseline-command",
            help=_COMMAND_HELP.format(side="baseline"),
            rich_help_panel=PLAY_PANEL,
            metavar="COMMAND",
        ),
    ] = None,
    candidate_command: Annotated[
        str | None,
        typer.Option(
            "--candidate-command",
            help="The same for the candidate.",
            rich_help_panel=PLAY_PANEL,
            metavar="COMMAND",
        ),
    ] = None,
    most_seeds: Annotated[
        Count,
        typer.Option(
            "--most-seeds", help="Stop at this many seeds per task, even without a verdict.", rich_help_panel=PLAY_PANEL
        ),
    ] = 16,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Estimate how many pairs of episodes a verdict takes, with existing runs as a pilot."
        ),
    ] = False,
    difference: Annotated[
        list[float] | None,
        typer.Option(
            "--difference",
            help="Points to plan for; repeatable.",
            show_default=", ".join(f"{d:g}" for d in DIFFERENCES),
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", help="Also write JUnit's XML there.", dir_okay=False, rich_help_panel=OUTPUT_GROUP),
    ] = None,
    github: Annotated[
        bool,
        options.output_option(
            "--github", help=f"Print Markdown for a pull request; if ${SUMMARY} is set, add it there, too."
        ),
    ] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Judge a candidate against a baseline, as a build step.

    Better, not worse, worse or undecided, on the draws that both have met. The exit code is 0 for better and not worse
    (by more than --margin), 1 for worse, 3 for undecided.
    """
    if not 0.0 <= margin < 100.0:
        raise InvalidInputError(f"--margin is {margin:g}: expected points from 0 to below 100")
    selection: dict[str, Any] = {
        "baseline_policy": baseline_policy,
        "candidate_policy": candidate_policy,
        "prompt": prompt,
    }
    if plan:
        points = difference or list(DIFFERENCES)
        for each in points:
            if not 0.0 < each < 100.0:
                raise InvalidInputError(f"--difference is {each:g}: expected points above 0 and below 100")
        with Progressing("plan", None):
            pilot = gate_pilot(baseline, candidate, **selection)
            with AT_WORK.on("playing gates with pairs like those of the pilot"):
                plans = plan_gate(pilot, [each / 100.0 for each in points], margin / 100.0, alpha)
        notes = [f"From a pilot of {len(pilot[0].terms):,} pairs."]
        if candidate is None:
            best = "At best: for a candidate that differs from the baseline in no more episodes than it loses."
            notes = [best, "A pilot of the candidate tells more: resilisim gate BASELINE CANDIDATE --plan"]
        output.answer(
            as_json, {"plan": [each.to_mapping() for each in plans]}, plan_table(plans, margin / 100.0, alpha)
        )
        if not as_json:
            output.say(*notes, style="dim")
        return
    if candidate is None:
        raise InvalidInputError("CANDIDATE is missing: expected the folder of a run (only --plan works without it)")
    judge = functools.partial(gate_runs, margin=margin / 100.0, alpha=alpha, **selection)
    judged = _judged((baseline, candidate), (baseline_command, candidate_command), most_seeds, judge)
    _show(judged, junit, github, as_json)
    raise typer.Exit(judged.exit_code)


def _judged(
    folders: tuple[Path, Path],
    commands: tuple[str | None, str | None],
    most_seeds: int,
    judge: Callable[[Path, Path], Gate],
) -> Gate:
    """Play what there are commands for, in growing parts, until the verdict is clear; return the verdict."""
    if commands == (None, None):
        return _read(folders, judge)
    for command in commands:
        if command is not None and "{out}" not in command:
            raise InvalidInputError(
                f"command {command!r:.100} says nothing about {{out}}: expected the folder to play into"
            )
    grows = any(command is not None and "{seeds}" in command for command in commands)
    for first, end in _parts(most_seeds if grows else 1):
        for folder, command in zip(folders, commands, strict=True):
            if command is not None and (first == 0 or "{seeds}" in command):
                _play(command, folder, first, end)
        judged = _read(folders, judge)
        if judged.verdict != "undecided":
            break
        if end < most_seeds and grows:
            row = min(judged.rows, key=lambda row: row.low)
            told = f"{signed_points(row.difference)} {signed_interval(row.low, row.high)}".replace("−", "-")
            output.note(f"undecided after {end} of {most_seeds} seeds: {told} points")
    return judged


def _read(folders: tuple[Path, Path], judge: Callable[[Path, Path], Gate]) -> Gate:
    with Progressing("gate", None):
        return judge(*folders)


def _parts(most: int) -> Iterator[tuple[int, int]]:
    """Yield the seeds from which and up to which to play: 1, then as many again as there were."""
    first, end = 0, 1
    while first < most:
        yield first, min(end, most)
        first, end = end, 2 * end


def _play(command: str, folder: Path, first: int, end: int) -> None:
    """Run a command that plays seeds into a folder.

    Raises:
        InvalidInputError: It cannot be started, or it failed; exit code 3 means that it was not finished, which counts.
    """
    out, seeds = folder, end
    if "{first_seed}" in command:
        out, seeds = folder / f"seeds-{first:05d}", end - first
    filled = {"{out}": str(out), "{seeds}": str(seeds), "{first_seed}": str(first)}
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInputError(f"command {command!r:.100} cannot be read: {error}") from None
    for name, value in filled.items():
        words = [word.replace(name, value) for word in words]
    if words[:1] == ["resilisim"]:
        words[:1] = [sys.executable, "-m", "resilisim"]  # the one that runs, wherever the path leads
    try:
        code = subprocess.run(words, stdout=STANDARD_ERROR, check=False).returncode
    except OSError as error:
        raise InvalidInputError(f"command {one_line(command, 100)!r} cannot be started: {error.strerror}") from error
    if code not in (0, output.INCOMPLETE):
        raise InvalidInputError(f"command {one_line(command, 100)!r} ended with {code}: expected 0, or 3 if unfinished")


def _show(judged: Gate, junit: Path | None, github: bool, as_json: bool) -> None:
    if junit is not None:
        _write(junit, gate_junit(judged), "w")
    if github:
        text = gate_markdown(judged)
        summary = os.environ.get(SUMMARY)
        if summary:
            _write(Path(summary), text + "\n", "a")
    if as_json:
        output.print_json(judged.to_mapping())
    elif github:
        typer.echo(text)
    else:
        output.say(judged.sentence)
        for table in (gate_table(judged), *parted_tables(judged)):
            output.console().print(table)
        output.say(*judged.notes, style="dim")
        _say_what_else_to_do(judged)


def _write(path: Path, text: str, mode: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be written: {error.strerror}") from error


def _say_what_else_to_do(judged: Gate) -> None:
    """Say how an undecided gate comes to a verdict, and how to look at an episode."""
    if judged.verdict == "undecided":
        open_rows = [row for row in judged.rows if row.verdict == "undecided"]
        if any(row.num_missing for row in open_rows):
            output.note("episodes are missing: finish both runs (the same commands resume them), then ask again")
        elif all(row.is_exact for row in open_rows):
            output.note("the rates are not known well enough: explore again with more --plays")
        else:
            output.note("more seeds of both will tell: resilisim gate BASELINE CANDIDATE --plan says how many")
            if not any(row.num_lost or row.num_won for row in open_rows):
                output.note(
                    "no episode differs: where agents repeat themselves, runs of resilisim explore tell exactly"
                )
    first = next((each for row in judged.rows for each in row.parted if each.candidate_index is not None), None)
    if first is not None:
        output.note(f"an episode: resilisim runs episode {first.candidate_run} {first.candidate_index}")
