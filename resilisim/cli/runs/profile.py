"""`resilisim runs profile`: how policies do as tools, turns and plans get worse."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.cli import options, output
from resilisim.cli.evaluation.evaluate import MODEL_OPTIONS, WORDING_OPTIONS, asked_at_once
from resilisim.envs.settings import GOAL_NAMES, RULE_NAMES, EnvironmentSettings
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation import ModelSettings
from resilisim.evaluation.robustness.points import (
    AXES,
    DEFAULT_RELIABILITIES,
    DEFAULT_STRENGTHS,
    DEFAULT_TURNS,
    FLAWS,
    PART_AXES,
    RELIABILITY,
    TURN_LIMIT,
    ProfileRun,
    check_points,
)
from resilisim.evaluation.robustness.profile_result import ProfileResult
from resilisim.evaluation.robustness.profiling import plan_profile
from resilisim.evaluation.run.progress import QUIET_SECONDS, Progressing
from resilisim.reporting.profile import profile_tables, write_profile_page
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.workflows.flaws import SEVERITIES
from resilisim.workflows.flaws.flaw import STRESSORS


def _varied(what: str, default: str) -> Any:
    """Return an option that may be given several times, under the heading of what is varied."""
    return typer.Option(help=f"{what}; repeatable.", show_default=default, rich_help_panel="What is varied")


@options.takes(
    environment=options.OptionGroup(EnvironmentSettings, [*RULE_NAMES[1:], *GOAL_NAMES, "law", *WORDING_OPTIONS]),
    models=MODEL_OPTIONS,
)
def profile(
    *,
    policy: Annotated[list[str], typer.Option(help="As in 'resilisim evaluate'; repeatable.")],
    out: Annotated[
        Path,
        options.output_option(
            help="Folder of the profile, with a folder for each run; the same command resumes it, and one with "
            "other points adds them."
        ),
    ],
    tasks: options.TasksOption = BENCHMARK_VERSION,
    split: options.SplitOption = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="Prompts for the axes reliability and turns; repeatable. Flaws are compared with the optimal prompt.",
            show_default="optimal",
        ),
    ] = None,
    seeds: options.SeedsOption = 1,
    workers: options.WorkersOption = 1,
    axis: Annotated[
        list[str] | None,
        _varied(
            "reliability, turns, flaws, or a part of the failure model: " + ", ".join(PART_AXES),
            "reliability, turns, flaws",
        ),
    ] = None,
    reliability: Annotated[
        list[float] | None, _varied("Success probability of a tool", "0.5, 0.6, 0.7, 0.8, 0.9, 1")
    ] = None,
    turns: Annotated[list[int] | None, _varied("Turns of an episode", "4, 6, 8, 10, 12, 15")] = None,
    flaw: Annotated[list[str] | None, _varied("Flaw type", "all")] = None,
    severity: Annotated[list[str] | None, _varied("light, moderate or severe", "all")] = None,
    strength: Annotated[list[float] | None, _varied("Strength of each part, from 0 to 1", "0.1, 0.2, 0.4")] = None,
    environment: EnvironmentSettings,
    models: ModelSettings,
    library: options.LibraryOption = None,
    record_texts: options.RecordTextsOption = None,
    markdown: Annotated[
        Path | None, options.output_option(help="Markdown file for the tables.", dir_okay=False)
    ] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Show how policies cope with less reliable tools, fewer turns and flawed plans, next to the optimum."""
    for option, is_given, belongs in (
        ("--reliability", reliability, RELIABILITY),
        ("--turns", turns, TURN_LIMIT),
        ("--flaw", flaw, FLAWS),
        ("--severity", severity, FLAWS),
    ):
        if is_given and belongs not in (axis or AXES):
            raise InvalidInputError(f"{option} changes nothing without the axis {belongs}: add --axis {belongs}")
    if strength and not set(axis or ()) & set(PART_AXES):
        raise InvalidInputError(
            f"--strength changes nothing without a part: add --axis {' or --axis '.join(PART_AXES)}"
        )
    points = check_points(
        axis or AXES,
        reliability or DEFAULT_RELIABILITIES,
        turns or DEFAULT_TURNS,
        flaw or tuple(STRESSORS),
        severity or SEVERITIES,
        strength or DEFAULT_STRENGTHS,
    )
    tool_library = options.load(library)
    environment.retriever(tool_library)  # refuses a model that does not exist before all else
    job = plan_profile(
        policy,
        options.chosen_tasks(tasks, split, tool_library),
        seeds,
        points,
        out=out,
        prompts=tuple(prompt or ["optimal"]),
        standard=environment,
        library=None if library is None else tool_library,
        workers=workers,
        model=asked_at_once(models),
        record_texts=record_texts,
    )
    began = time.monotonic()
    with Progressing("solving tasks in all settings", job.num_to_solve) as progress:
        references = job.solve(progress.advance)

    def tell(number: int, total: int, run: ProfileRun) -> None:
        if time.monotonic() - began >= QUIET_SECONDS:
            output.note(f"run {number} of {total}: {run.title}")

    with output.resumable():
        result = job.play(references, tell)
    path = write_profile_page(result, markdown=markdown)
    if as_json:
        output.print_json({**result.to_mapping(), "page": str(path)})
    else:
        print_profile(result)
        output.say(f"page: {path}")
    if not result.is_finished:
        missing = sum(run.num_planned - run.num_episodes for run in result.runs)
        reason = f", the last because {result.last_error}" if result.last_error else ""
        output.note(f"{count_of(missing, 'episode')} broke and count in no score{reason}; the same command tries again")
        raise typer.Exit(output.INCOMPLETE)


NOTE = (
    "Percent, with 95% intervals clustered by task (of several, not of one). optimum: V*, the best that any agent "
    "can reach; after search: the same with the turns left after the fewest searches that show the tools, where a "
    "prompt does not name them: shares are of it under such prompts, and of V* under all others. required tools, "
    "retried: in their order, each until it succeeds, nothing else (a reference, no policy); obey: following the "
    "plan in the prompt to the letter, with the tools that others depend on; these are exact. recovered: the share "
    "of what following flawed plans gives away that an agent gets back. Drops and recovered are luck-adjusted "
    "where possible. * privileged: sees the state."
)


def print_profile(result: ProfileResult) -> None:
    """Print the tables of a profile."""
    shown = output.console()
    for profile_table in profile_tables(result):
        shown.print(replace(profile_table, notes=()))
    shown.print(output.plain(NOTE, "dim"))
