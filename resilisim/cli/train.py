"""`resilisim train`: train a policy with PPO, and measure a trained one against the exact optimum."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilisim.cli.help import CommandLine
from resilisim.cli.options import JsonFlag, LibraryOption, OptionGroup, chosen_tasks, given_options, load, takes
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
from resilisim.options import OUTPUT_GROUP, option

if TYPE_CHECKING:
    from types import ModuleType

    from resilisim.policies.ppo.config import TrainingConfig
    from resilisim.policies.ppo.training import TrainingProgress
    from resilisim.statistics import Estimate
    from resilisim.tasks import Task
    from resilisim.tool_library import ToolLibrary

EXTRA_PACKAGES = ("safetensors", "sb3_contrib", "stable_baselines3", "tensorboard", "torch", "yaml")
ALL = "all"

app = CommandLine(help="Train a policy with PPO, and measure a trained one against the exact optimum.")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a training is told on the command line; the last four are settings of `TrainingConfig`."""

    preset: str = option(
        "quick", "quick (5 minutes on two cores), full (30 minutes), or paper (everything that the paper has)."
    )
    config: str | None = option(None, "YAML file with settings that replace those of the preset.", path="file")
    settings: tuple[str, ...] = option(
        (), "One setting, such as curriculum=false; again for more.", flag="--set", metavar="KEY=VALUE"
    )
    device: str | None = option(None, "auto, cpu or cuda; environments always run on the CPU.", default_text="auto")
    seed: int | None = option(None, "Another seed trains another policy.", default_text="0")
    max_minutes: float | None = option(
        None, "Minutes after which training ends.", flag="--minutes", default_text="the preset's"
    )
    max_steps: int | None = option(
        None,
        "Environment steps after which training ends; alone it replaces the limit of minutes.",
        flag="--steps",
    )

    def configuration(self) -> TrainingConfig:
        """Return the configuration that preset, file, settings and single options make."""
        from resilisim.policies.ppo.config import load_config

        is_counted = self.max_steps is not None and self.max_minutes is None
        chosen = [*self.settings, *(["max_minutes=none"] if is_counted else [])]
        values = {name: getattr(self, name) for name in ("device", "seed", "max_minutes", "max_steps")}
        return load_config(self.preset, self.config, chosen, **values)


@app.callback(invoke_without_command=True)
@takes(options=OptionGroup(RunOptions, panel="Configuration"))
def train(
    context: typer.Context,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the run: policy, log, TensorBoard; the same command resumes it.",
            rich_help_panel=OUTPUT_GROUP,
        ),
    ] = None,
    options: RunOptions,
    as_json: JsonFlag = False,
) -> None:
    """Train a policy with PPO, and measure a trained one against the exact optimum."""
    if context.invoked_subcommand is not None:
        return
    if out is None:
        if not given_options(context):
            typer.echo(context.get_help())
            return
        raise InvalidInputError("train needs a folder for the run: expected --out DIR")
    configuration = options.configuration()
    training = _import_training()
    try:
        with _display() as show:
            result = training.train(configuration, out, show)
    except KeyboardInterrupt:
        note(f"stopped; the same command resumes it from the last point in {out}")
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
    """Return the tasks of a split of the benchmark, or a sample of them."""
    from resilisim.tasks.benchmark import BENCHMARK_VERSION
    from resilisim.tasks.sources import sample_tasks

    tasks = chosen_tasks(BENCHMARK_VERSION, split, library)
    return tasks if count is None else sample_tasks(tasks, count)


def measure_policy(checkpoint: str, tasks: Sequence[Task], episodes: int, library: ToolLibrary) -> dict[str, Any]:
    """Measure a trained policy against the exact optimum, by task type and in all; the values are fit for JSON.

    The closed loop plays episodes with the luck of evaluations. The open loop is the chance of doing the policy's plan
    to the letter, which is computed, not sampled. Intervals are clustered by task.
    """
    from resilisim.policies.ppo.checkpoint import load_checkpoint
    from resilisim.policies.ppo.network import WorkflowActor
    from resilisim.policies.ppo.policy import PolicyPlanner, observation_options, patterns_of
    from resilisim.policies.ppo.validation import optima_of, play_closed_loop
    from resilisim.seeding import EVALUATION_SALT

    loaded = load_checkpoint(checkpoint)
    planner = PolicyPlanner(checkpoint, library)
    with error_console().status("solving the tasks"):
        optima = optima_of(tasks, library)
    with Progressing("playing episodes", len(tasks) * episodes) as progress:
        played = play_closed_loop(
            WorkflowActor(loaded.network),
            tasks,
            episodes,
            salt=EVALUATION_SALT,
            progress=progress.advance,
            options=observation_options(loaded, library),
            patterns=patterns_of(loaded, library),
        )
    with Progressing("making plans", len(tasks)) as progress:
        plans = [planner.plan(task).predicted_success_probability for task in progress.track(tasks)]
    closed, by_type = _summaries(tasks, [float(count) for count in played.sum(axis=1)], optima, episodes)
    opened, opened_by_type = _summaries(tasks, plans, optima, 1)
    return {
        "checkpoint": checkpoint,
        **closed,
        "episodes": episodes,
        "by_type": by_type,
        "open_loop": {**opened, "by_type": opened_by_type},
        "training": dict(loaded.description.training),
        "results": dict(loaded.description.results),
    }


def _summaries(
    tasks: Sequence[Task], successes: Sequence[float], optima: Sequence[float], episodes: int
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return success, optimum and ratio of all tasks and of each type, from each task's sum over its episodes."""
    from resilisim.statistics import clustered_mean, clustered_ratio
    from resilisim.tasks import TASK_TYPES

    def summary(places: Sequence[int]) -> dict[str, Any]:
        own, best = [successes[place] for place in places], [optima[place] for place in places]
        success = clustered_mean(own, [float(episodes)] * len(own))
        ratio = clustered_ratio(own, [value * episodes for value in best], episodes * len(own))
        return {
            "tasks": len(own),
            "success": success.value,
            "success_interval": _interval(success),
            "optimum": sum(best) / len(best),
            "ratio": ratio.value,
            "ratio_interval": _interval(ratio),
        }

    types = [task.task_type for task in tasks]
    places = {name: [place for place, own in enumerate(types) if own == name] for name in TASK_TYPES if name in types}
    return summary(range(len(tasks))), {name: summary(own) for name, own in places.items()}


def _interval(estimate: Estimate) -> tuple[float | None, float | None]:
    mapping = estimate.to_mapping()
    return mapping["low"], mapping["high"]


def _import_training() -> ModuleType:
    """Import what trains; a MissingExtraError tells that the extra `train` is not installed."""
    try:
        from resilisim.policies.ppo import training
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRA_PACKAGES:
            raise
        raise MissingExtraError(
            f"training needs {error.name!r}, which is not installed: pip install 'resilisim[train]'"
        ) from error
    return training


@contextlib.contextmanager
def _display() -> Iterator[Callable[[TrainingProgress], None]]:
    """Show how far a training is, on standard error: one line that changes in a terminal, elsewhere lines.

    Elsewhere they come only now and then and after evaluations.
    """
    last, evaluated = time.monotonic(), -1

    def show_line(progress: TrainingProgress) -> None:
        nonlocal last, evaluated
        steps = -1 if progress.latest is None else progress.latest.steps
        if steps != evaluated or time.monotonic() - last >= LINE_SECONDS:
            last, evaluated = time.monotonic(), steps
            note(progress_line(progress))

    if not sys.stderr.isatty():
        yield show_line
        return
    with error_console().status("preparing the training") as status:
        yield lambda progress: status.update(progress_line(progress))


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
