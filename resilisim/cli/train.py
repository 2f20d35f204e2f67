"""`resilisim train`: train a policy with PPO, and measure a trained one against the exact optimum."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilisim.cli.options import JsonFlag, LibraryOption, load
from resilisim.cli.output import (
    LINE_SECONDS,
    STOPPED_BY_USER,
    Progressing,
    console,
    error_console,
    note,
    print_json,
    table,
)
from resilisim.errors import MAX_COUNT, InvalidInputError, MissingExtraError
from resilisim.options import OUTPUT_GROUP

if TYPE_CHECKING:
    from types import ModuleType

    from rich.status import Status

    from resilisim.policies.ppo.training import TrainingProgress
    from resilisim.statistics import Estimate
    from resilisim.tasks import Task
    from resilisim.tool_library import ToolLibrary

EXTRA_PACKAGES = ("safetensors", "sb3_contrib", "stable_baselines3", "tensorboard", "torch", "yaml")
CONFIGURATION_PANEL = "Configuration"
ALL = "all"

app = typer.Typer(help="Train a policy with PPO, and measure a trained one against the exact optimum.")


@app.callback(invoke_without_command=True)
def train(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the run: policy, log, TensorBoard; the same command goes on in it.",
            rich_help_panel=OUTPUT_GROUP,
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            help="quick (5 minutes on two cores), full (30 minutes), or paper (everything that the paper has).",
            rich_help_panel=CONFIGURATION_PANEL,
        ),
    ] = "quick",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="YAML file with settings that replace those of the preset.",
            dir_okay=False,
            rich_help_panel=CONFIGURATION_PANEL,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One setting, such as curriculum=false; again for more.",
            rich_help_panel=CONFIGURATION_PANEL,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="auto, cpu or cuda; environments always run on the CPU.",
            show_default="auto",
            rich_help_panel=CONFIGURATION_PANEL,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", help="Another seed trains another policy.", show_default="0", rich_help_panel=CONFIGURATION_PANEL
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            help="Minutes after which training ends.",
            show_default="the preset's",
            rich_help_panel=CONFIGURATION_PANEL,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            help="Environment steps after which training ends; alone it replaces the limit of minutes.",
            rich_help_panel=CONFIGURATION_PANEL,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a policy with PPO, and measure a trained one against the exact optimum."""
    if context.invoked_subcommand is not None:
        return
    if out is None:
        if not _is_anything_given(context):
            typer.echo(context.get_help())
            return
        raise InvalidInputError("train needs a folder for the run: expected --out DIR")
    from resilisim.policies.ppo.config import load_config

    chosen = [*(settings or []), *(["max_minutes=none"] if steps is not None and minutes is None else [])]
    configuration = load_config(preset, config, chosen, device=device, seed=seed, max_minutes=minutes, max_steps=steps)
    training = _import_training()
    try:
        with _Display() as display:
            result = training.train(configuration, out, display.show)
    except KeyboardInterrupt:
        note(f"stopped; the same command goes on from the last point in {out}")
        raise typer.Exit(STOPPED_BY_USER) from None
    if as_json:
        print_json({**asdict(result), "directory": str(result.directory)})
        return
    if result.was_finished:
        note(f"{out} holds this run, and it is finished")
    best = result.best
    rows = [
        ["ended because", result.reason],
        ["steps", f"{result.steps:,}"],
        ["minutes", f"{result.minutes:.1f}"],
        ["success on validation tasks", f"{best.success:.4f}"],
        ["the optimum there", f"{best.optimum:.4f}"],
        ["share of the optimum", f"{best.share:.4f}"],
        ["reached after", f"{best.steps:,} steps"],
    ]
    console().print(table(f"training in {out}", ["", "value"], rows))
    note(f"next: resilisim train evaluate {out}")


@app.command("evaluate")
def evaluate(
    checkpoint: Annotated[
        str, typer.Argument(metavar="DIR|default", help="Folder of a run, or default for the shipped policy.")
    ],
    episodes: Annotated[int, typer.Option("--episodes", help="Episodes of each task.", min=1, max=MAX_COUNT)] = 200,
    split: Annotated[str, typer.Option("--split", help="Tasks of train, validation or test.")] = "test",
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", help="Draw so many tasks; all of the split if left out.", min=1, max=MAX_COUNT),
    ] = None,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a policy's success under the benchmark law, acting step by step and by its plans alone."""
    _import_training()
    chosen = load(library)
    started = time.perf_counter()
    measured = measure_policy(checkpoint, held_out_tasks(split, tasks, chosen), episodes, chosen)
    measured["split"] = split
    if as_json:
        print_json(measured)
        return
    columns = ["tasks", "number", "optimum", "closed loop", "share", "95% interval", "plan alone", "share"]
    rows = []
    for name, group in [*measured["by_type"].items(), (ALL, measured)]:
        plan = measured["open_loop"] if name == ALL else measured["open_loop"]["by_type"][name]
        low, high = group["ratio_interval"]
        interval = "-" if low is None else f"{low:.4f} to {high:.4f}"
        acting = (group["success"], group["ratio"], interval)
        rows.append([name, group["tasks"], group["optimum"], *acting, plan["success"], plan["ratio"]])
    title = f"{checkpoint} on the {split} split, {measured['episodes']:,} episodes of each task"
    console().print(table(title, columns, rows))
    start = measured["training"].get("warm_start")
    origin = "PPO alone" if not start else f"PPO after {start['kind']} ({start['updates']:,} updates)"
    note(f"trained by {origin}; {time.perf_counter() - started:.1f} s")


def held_out_tasks(split: str, count: int | None, library: ToolLibrary) -> list[Task]:
    """Return the tasks of a split of the benchmark, or a sample of them.

    Raises:
        InvalidInputError: There is no such split, or it has fewer tasks.
    """
    from resilisim.errors import unknown_name
    from resilisim.tasks.benchmark import BENCHMARK_VERSION
    from resilisim.tasks.model import SPLITS, split_of
    from resilisim.tasks.sources import read_tasks, sample_tasks

    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS, "option --split")
    tasks = [task for task in read_tasks(BENCHMARK_VERSION, library) if split_of(task.required_tools) == split]
    return tasks if count is None else sample_tasks(tasks, count)


def measure_policy(checkpoint: str, tasks: Sequence[Task], episodes: int, library: ToolLibrary) -> dict[str, Any]:
    """Measure a trained policy against the exact optimum, by task type and in all.

    The closed loop plays episodes with the luck of evaluations. The open loop is the chance of doing the policy's plan
    to the letter, which is computed, not sampled. Intervals are clustered by task.

    Args:
        checkpoint: Folder of a run, or "default".
        tasks: The tasks.
        episodes: Episodes of each.
        library: Their tool library.

    Returns:
        JSON values: success, optimum, ratio with its interval, by_type, episodes, tasks, open_loop, training.
    """
    from resilisim.policies.ppo.checkpoint import load_checkpoint
    from resilisim.policies.ppo.network import WorkflowActor
    from resilisim.policies.ppo.policy import PolicyPlanner, observation_options, patterns_of
    from resilisim.policies.ppo.validation import play_closed_loop
    from resilisim.seeding import EVALUATION_SALT
    from resilisim.simulator.exact import solve_all
    from resilisim.simulator.law import BenchmarkLaw, EndRules
    from resilisim.simulator.problem import build_problem
    from resilisim.tasks import TASK_TYPES

    loaded = load_checkpoint(checkpoint)
    options = observation_options(loaded)
    options["library"] = library
    planner = PolicyPlanner(checkpoint, library)
    problems = [build_problem(library, task.required_tools, BenchmarkLaw(), EndRules()) for task in tasks]
    with error_console().status("solving the tasks"):
        references = solve_all(problems)
    optima = [references[problem].known_probabilities for problem in problems]
    with Progressing("playing episodes", len(tasks) * episodes) as progress:
        played = play_closed_loop(
            WorkflowActor(loaded.network),
            tasks,
            episodes,
            salt=EVALUATION_SALT,
            progress=progress.advance,
            options=options,
            patterns=patterns_of(loaded, library),
        )
    successes = [float(count) for count in played.full_success.sum(axis=1)]
    with Progressing("making plans", len(tasks)) as progress:
        plans = [planner.plan(task).predicted_success_probability for task in progress.track(tasks)]
    types = [task.task_type for task in tasks]
    known = [name for name in TASK_TYPES if name in types]
    places = {name: [place for place, own in enumerate(types) if own == name] for name in known}
    closed = {name: _summary(chosen, successes, optima, episodes) for name, chosen in places.items()}
    opened = {name: _summary(chosen, plans, optima, 1) for name, chosen in places.items()}
    every = range(len(tasks))
    return {
        "checkpoint": checkpoint,
        **_summary(every, successes, optima, episodes),
        "episodes": episodes,
        "by_type": closed,
        "open_loop": {**_summary(every, plans, optima, 1), "by_type": opened},
        "training": dict(loaded.description.training),
        "results": dict(loaded.description.results),
    }


def _summary(
    chosen: Sequence[int], successes: Sequence[float], optima: Sequence[float], episodes: int
) -> dict[str, Any]:
    """Return success, optimum and ratio of some tasks.

    Args:
        chosen: Their places.
        successes: For each task the sum of successes.
        optima: For each task V*.
        episodes: What each sum is over.
    """
    from resilisim.statistics import clustered_mean, clustered_ratio

    count = [float(episodes)] * len(chosen)
    own = [successes[place] for place in chosen]
    best = [optima[place] for place in chosen]
    success = clustered_mean(own, count)
    ratio = clustered_ratio(own, [value * episodes for value in best], episodes * len(chosen))
    return {
        "tasks": len(chosen),
        "success": success.value,
        "success_interval": _interval(success),
        "optimum": sum(best) / len(best),
        "ratio": ratio.value,
        "ratio_interval": _interval(ratio),
    }


def _interval(estimate: Estimate) -> tuple[float | None, float | None]:
    mapping = estimate.to_mapping()
    return mapping["low"], mapping["high"]


def _is_anything_given(context: typer.Context) -> bool:
    """Return whether the command line holds an option of the command."""
    sources = [context.get_parameter_source(name) for name in context.params]
    return any(source is not None and source.name == "COMMANDLINE" for source in sources)


def _import_training() -> ModuleType:
    """Import what trains.

    Raises:
        MissingExtraError: The extra `train` is not installed.
    """
    try:
        from resilisim.policies.ppo import training
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA_PACKAGES:
            raise
        raise MissingExtraError(
            f"training needs {error.name!r}, which is not installed: pip install 'resilisim[train]'"
        ) from error
    return training


class _Display:
    """Shows how far a training is, on standard error: one line that changes in a terminal, elsewhere lines."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._exit = contextlib.ExitStack()
        self._last = 0.0
        self._evaluated = -1

    def __enter__(self) -> _Display:
        if sys.stderr.isatty():
            self._status = self._exit.enter_context(error_console().status("preparing the training"))
        self._last = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        self._exit.close()

    def show(self, progress: TrainingProgress) -> None:
        """Show a line, in a pipe only now and then and after evaluations."""
        line = progress_line(progress)
        if self._status is not None:
            self._status.update(line)
            return
        evaluated = -1 if progress.latest is None else progress.latest.steps
        now = time.monotonic()
        if evaluated != self._evaluated or now - self._last >= LINE_SECONDS:
            self._last, self._evaluated = now, evaluated
            note(line)


def progress_line(progress: TrainingProgress) -> str:
    """Say how far a training is: steps, speed, success in training, share of the optimum, time left."""
    parts = [f"{progress.steps:,} steps"]
    if progress.steps_per_second:
        parts.append(f"{progress.steps_per_second:,.0f} steps/s")
    if progress.success is not None:
        parts.append(f"success in training {progress.success:.3f}")
    if progress.latest is not None and progress.best is not None:
        parts.append(
            f"share of the optimum on validation tasks {progress.latest.share:.3f} (best {progress.best.share:.3f})"
        )
    if progress.seconds_left is not None:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        parts.append(f"{minutes}:{seconds:02d} left")
    return ", ".join(parts)
