"""`resilisim runs extend`: episodes that a limit ended, played again with higher limits on the same draws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilisim.bounds import Turns
from resilisim.cli import options
from resilisim.cli.evaluation.evaluate import MODEL_OPTIONS, asked_at_once
from resilisim.cli.output import INCOMPLETE, console, note, print_json, resumable
from resilisim.cli.runs.episode import RunArgument, models_of_run
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation import ModelSettings, RunLimits
from resilisim.evaluation.extension import extend_run
from resilisim.evaluation.run.store import FAILURES_NAME
from resilisim.tasks.benchmark import BENCHMARK_VERSION


@options.takes(models=MODEL_OPTIONS, limits=options.OptionGroup(RunLimits, panel="Limits"))
def extend(
    run: RunArgument,
    *,
    out: Annotated[
        Path, options.output_option("--out", help="Folder of the new episodes; the same command resumes it.")
    ],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="Option of the policy with its new value: steps=100; repeatable."
        ),
    ] = None,
    turns: Annotated[Turns | None, typer.Option(help="Turns of an episode; those of the run if left out.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy whose episodes to extend, if limits ended those of several.")
    ] = None,
    solved_by: Annotated[
        str | None, typer.Option(help="Only episodes that this other policy of the run has solved.")
    ] = None,
    models: ModelSettings,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    workers: options.WorkersOption = 1,
    limits: RunLimits,
    as_json: options.JsonFlag = False,
) -> None:
    """Play episodes that hit a limit again, with higher limits on the same draws; compare before and after.

    `runs extend RUN --policy react --option steps=100 --out DIR` is the experiment on step limits: the models of the
    run are asked unless others are named.
    """
    changes: dict[str, str] = {}
    for text in option or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise InvalidInputError(f"--option {text!r}: expected NAME=VALUE, such as steps=100")
        changes[name] = value
    tool_library = options.load(library)
    with resumable():
        extension = extend_run(
            run,
            out,
            lambda task: options.find_task(task, tasks, tool_library),
            policy=policy,
            options=changes,
            max_turns=turns,
            solved_by=solved_by,
            library=None if library is None else tool_library,
            models_of=lambda whose: asked_at_once(models_of_run(run, whose, models)),
            workers=workers,
            limits=limits,
        )
    if as_json:
        print_json({"run": str(run), "out": str(out), **extension.to_mapping()})
    else:
        console().print(extension.table())
    missing = extension.result.num_planned - extension.result.num_episodes
    if missing:
        broke = f" ({out / FAILURES_NAME})" if extension.result.call.num_failures else ""
        note(
            f"{count_of(missing, 'episode')} not played yet{broke}, which count as they were; the same command resumes"
        )
        raise typer.Exit(INCOMPLETE)
