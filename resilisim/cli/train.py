"""`resilisim train`: train a policy with PPO, measure a trained one, fine-tune a language model."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge, Le

from resilisim.bounds import Count
from resilisim.cli import options, output
from resilisim.cli.output import CommandLine
from resilisim.envs.settings import BENCHMARK_LAW
from resilisim.errors import InvalidInputError, MissingExtraError, install_line, unknown_name
from resilisim.evaluation.run.progress import LINE_SECONDS, Progressing, duration
from resilisim.evaluation.trained import ANY_PART, EPISODES_OF_A_TASK, PLAIN, measure_generality, measure_policy
from resilisim.options import option
from resilisim.reporting.learning import CURVE_FILE, write_learning_curve
from resilisim.simulator.law import TASK_PARTS
from resilisim.tables.table import Table
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tasks.sources import task_count

if TYPE_CHECKING:
    from types import ModuleType

    from resilisim.finetuning.config import FinetuningConfig
    from resilisim.finetuning.training import Standing
    from resilisim.policies.ppo.config import TrainingConfig
    from resilisim.policies.ppo.training import TrainingProgress

EXTRA_PACKAGES = ("safetensors", "sb3_contrib", "stable_baselines3", "tensorboard", "torch", "yaml")
ALL = "all"
PROGRESS_FILE = "progress.jsonl"  # of a training: a line for each evaluation
FEWEST_TOOLS, MAX_TOOLS = 3, 1000  # of a random library
# What is not known of a rate: from here on it is said, and that episodes would tell more.
MENTIONED, MOST_UNKNOWN = 0.0005, 0.01
DEFAULT_SPLIT, LIBRARIES, TASKS_OF_LIBRARY = "test", 16, 3  # what is measured on if nothing is said

app = CommandLine()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a training is told on the command line; the last four are settings of `TrainingConfig`."""

    preset: str = option(
        "quick",
        "quick (5 minutes on two cores), full (30 minutes), paper (everything in the paper), generalist "
        "(60 minutes: random libraries and laws), or gpu (5 minutes on a GPU).",
    )
    config: str | None = option(None, "YAML file with settings that replace those of the preset.", path="file")
    settings: tuple[str, ...] = option(
        (), "One setting, such as curriculum=none; repeatable.", flag="--set", metavar="KEY=VALUE"
    )
    device: str | None = option(None, "auto, cpu or cuda; environments always run on the CPU.", default_text="auto")
    seed: int | None = option(None, "A different seed trains a different policy.", default_text="0")
    max_minutes: float | None = option(
        None, "Minutes after which training ends.", flag="--minutes", default_text="the preset's"
    )
    max_steps: int | None = option(
        None, "Environment steps after which training ends; alone it replaces the limit of minutes.", flag="--steps"
    )

    def configuration(self) -> TrainingConfig:
        """Return the configuration that preset, file, settings and single options make."""
        from resilisim.policies.ppo.config import load_config

        is_counted = self.max_steps is not None and self.max_minutes is None
        settings = [*self.settings, *(["max_minutes=none"] if is_counted else [])]
        values = {name: getattr(self, name) for name in ("device", "seed", "max_minutes", "max_steps")}
        return load_config(self.preset, self.config, settings, **values)


@app.callback(invoke_without_command=True)
@options.takes(configured=options.OptionGroup(RunOptions, panel="Configuration"))
def train(
    context: typer.Context,
    *,
    out: Annotated[
        Path | None,
        options.output_option(help="Folder of the run: policy, log, TensorBoard; the same command resumes it."),
    ] = None,
    configured: RunOptions,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Train a policy with PPO, or a language model, and measure it.

    Tasks of your own library (--library) are a setting: --set tasks=FILE.
    """
    if context.invoked_subcommand is not None:
        return
    if out is None:
        if not options.given_options(context):
            typer.echo(context.get_help())
            return
        raise InvalidInputError("train needs a folder for the run: expected --out DIR")
    configuration = configured.configuration()
    tool_library = options.load(library)
    training = import_training()
    try:
        with display(progress_line, lambda progress: -1 if progress.latest is None else progress.latest.steps) as show:
            result = training.train(configuration, out, _drawing(show, out), tool_library)
    except KeyboardInterrupt:
        output.note(f"stopped; the same command resumes it from the last point in {out}")
        raise typer.Exit(output.STOPPED_BY_USER) from None
    if as_json:
        output.print_json({**asdict(result), "directory": str(result.directory)})
        return
    if result.was_finished:
        output.note(f"{out} holds this run, and it is finished")
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
    output.console().print(Table.of_values(f"training in {out}", ["", "value"], rows))
    output.note(f"how it learned, with V* above: {out / CURVE_FILE}")
    own = f"resilisim evaluate --policy policy:{out} --library {library} --tasks {configuration.tasks}"
    output.note(f"next: resilisim train evaluate {out}" if library is None else f"next: {own}")


def _drawing(
    show: Callable[[Any], None], out: Path, latest_of: Callable[[Any], object] = lambda progress: progress.latest
) -> Callable[[Any], None]:
    """Return what shows how far a training is, and draws its learning curve anew after each evaluation."""
    latest = None

    def show_and_draw(progress: Any) -> None:
        nonlocal latest
        show(progress)
        now = latest_of(progress)
        if now is not None and now != latest:
            latest = now
            write_learning_curve(out, PROGRESS_FILE)

    return show_and_draw


@app.command("evaluate")
def evaluate(
    checkpoint: Annotated[
        str, typer.Argument(metavar="DIR|NAME", help="Folder of a run, or a policy that ships: default or benchmark.")
    ],
    episodes: Annotated[
        Count | None,
        typer.Option(
            help="Episodes of each task. If left out, success rates are computed without a sample where possible "
            f"(a law without parts, or a policy that reads only the state), and {EPISODES_OF_A_TASK} are played "
            "elsewhere.",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Tasks of train, validation or test.", show_default=DEFAULT_SPLIT)
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Draw this many tasks; the whole split if left out, 3 of each random library. Or benchmark-v1, which "
            "the shipped policies were trained on, or a file."
        ),
    ] = None,
    law: Annotated[str, typer.Option(help="Name of a law that ships, or the path of a law file.")] = BENCHMARK_LAW,
    random_tools: Annotated[
        list[Annotated[int, Ge(FEWEST_TOOLS), Le(MAX_TOOLS)]] | None,
        typer.Option(
            help="Measure on random libraries of this many tools instead; repeatable.",
        ),
    ] = None,
    random_libraries: Annotated[
        Count | None,
        typer.Option(help="Random libraries of each size and part.", show_default=str(LIBRARIES)),
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help=f"Part that the laws of random libraries have, {PLAIN}, or {ANY_PART} (as drawn); repeatable.",
            show_default=ANY_PART,
        ),
    ] = None,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Measure a policy's success step by step and, under a law without parts, by its plans alone."""
    import_training()
    if not random_tools:
        for name, is_given in (("--part", parts and parts[0]), ("--random-libraries", random_libraries)):
            if is_given:
                raise InvalidInputError(
                    f"option {name}: got {is_given!r} without random libraries: give --random-tools, too"
                )
    if random_tools:
        of_tasks = (("--law", law != BENCHMARK_LAW), ("--library", library is not None), ("--split", split is not None))
        for name, is_given in of_tasks:
            if is_given:
                raise InvalidInputError(
                    f"option {name}: random libraries bring their own: leave out {name} or --random-tools"
                )
        _evaluate_generality(
            *(checkpoint, random_tools, parts or [ANY_PART], random_libraries or LIBRARIES),
            *(_tasks_of_library(tasks), episodes, as_json),
        )
        return
    split, tool_library = split or DEFAULT_SPLIT, options.load(library)
    started = time.perf_counter()
    held_out = options.chosen_tasks(tasks or BENCHMARK_VERSION, split, tool_library)
    measured = measure_policy(checkpoint, held_out, episodes, tool_library, Progressing, law) | {"split": split}
    if as_json:
        output.print_json(measured)
        return
    over = "95% over tasks" if "states" in measured else "95% interval"
    columns = ["tasks", "number", "optimum", "closed loop", "share", over, "plan alone", "share"]
    rows = []
    for name, group in [*measured["by_type"].items(), (ALL, measured)]:
        row = [name, group["tasks"], group["optimum"], group["success"], group["ratio"], _interval(group)]
        if measured["open_loop"] is not None:
            plan = measured["open_loop"] if name == ALL else measured["open_loop"]["by_type"][name]
            row += [plan["success"], plan["ratio"]]
        rows.append(row)
    columns = columns[: len(rows[0])]
    under = "" if law == BENCHMARK_LAW else f" under {law}"
    how = "rates computed, not sampled" if "states" in measured else f"{measured['episodes']:,} episodes of each task"
    title = f"{checkpoint} on the {split} split{under}, {how}"
    output.console().print(Table.of_values(title, columns, rows))
    output.note(f"trained on {measured['benchmark']} by {_origin(measured)}; {time.perf_counter() - started:.1f} s")


def _origin(measured: Mapping[str, Any]) -> str:
    """Return how a policy was trained, up to where it was kept."""
    taught, start = measured["training"].get("warm_start"), measured["training"].get("start")
    imitation = f"{taught['kind']} ({taught['updates']:,} updates)" if taught else ""
    has_played = measured["results"].get("validation", {}).get("steps") != 0
    by = f"PPO after {imitation}" if taught and has_played else imitation or "PPO alone"
    return f"{by}, from the weights of {start}" if start else by


def _tasks_of_library(tasks: str | None) -> int:
    number = TASKS_OF_LIBRARY if tasks is None else task_count(tasks)
    if not number:
        raise InvalidInputError(f"option --tasks: got {tasks!r}: random libraries bring their own: expected a number")
    return number


def _evaluate_generality(
    checkpoint: str, sizes: list[int], parts: list[str], libraries: int, tasks: int, episodes: int | None, as_json: bool
) -> None:
    for part in parts:
        if part not in (PLAIN, ANY_PART, *TASK_PARTS):
            raise unknown_name("part", part, (PLAIN, ANY_PART, *TASK_PARTS), "option --part")
    started = time.perf_counter()
    measured = measure_generality(checkpoint, sizes, parts, libraries, tasks, episodes, Progressing)
    if as_json:
        output.print_json(measured)
        return
    columns = ["tools", "part", "optimum", "closed loop", "share", "95% interval", "not solved"]
    rows = [
        [
            *(row[name] for name in ("tools", "part", "optimum", "success", "ratio")),
            _interval(row),
            row["tasks_not_solved"],
        ]
        for row in measured["rows"]
    ]
    how = (
        "rates computed, not sampled"
        if measured["computed"]
        else f"{episodes or EPISODES_OF_A_TASK:,} episodes of each task"
    )
    title = f"{checkpoint} on {libraries} random libraries each, {tasks} tasks of each, {how}"
    output.console().print(Table.of_values(title, columns, rows))
    for row in measured["rows"]:
        if max(row["unknown_success"], row["unknown_optimum"]) > MENTIONED:
            output.note(
                f"{row['tools']} tools, {row['part']}: up to {row['unknown_success']:.4f} of the success and "
                f"{row['unknown_optimum']:.4f} of the optimum is not known, and counts against the policy"
                + (f"; --episodes {EPISODES_OF_A_TASK} plays instead" if row["unknown_success"] > MOST_UNKNOWN else "")
            )
    output.note(f"{time.perf_counter() - started:.1f} s")


def _interval(group: dict[str, Any]) -> str:
    low, high = group["ratio_interval"]
    return "-" if low is None else f"{low:.4f} to {high:.4f}"


def import_training(
    module: str = "resilisim.policies.ppo.training", packages: Collection[str] = EXTRA_PACKAGES, extra: str = "train"
) -> ModuleType:
    """Import what trains; a MissingExtraError tells that the extra with its packages is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise MissingExtraError(
            f"training needs {error.name!r}, which is not installed: {install_line(extra)}"
        ) from error


@contextlib.contextmanager
def display(line: Callable[[Any], str], evaluated_at: Callable[[Any], int]) -> Iterator[Callable[[Any], None]]:
    """Show how far a training is, on standard error: one line that changes in a terminal, elsewhere lines.

    Elsewhere they come only now and then and after evaluations.
    """
    last, evaluated = time.monotonic(), -1

    def show_line(progress: Any) -> None:
        nonlocal last, evaluated
        if evaluated_at(progress) != evaluated or time.monotonic() - last >= LINE_SECONDS:
            last, evaluated = time.monotonic(), evaluated_at(progress)
            output.note(line(progress))

    if not sys.stderr.isatty():
        yield show_line
        return
    with output.error_console().status("preparing the training") as status:
        yield lambda progress: status.update(line(progress))


def progress_line(progress: TrainingProgress) -> str:
    """Say how far a training is: steps, speed, success in training, share of the optimum, time left."""
    parts = [f"{progress.steps:,} steps"]
    if progress.imitated:
        parts = [f"{progress.imitated:,} updates of imitating the optimum"]
    if progress.agreement is not None:
        parts.append(f"like the optimum in {progress.agreement:.0%} of the states")
    if progress.steps_per_second:
        parts.append(f"{progress.steps_per_second:,.0f} steps/s")
    if progress.success is not None:
        parts.append(f"success in training {progress.success:.3f}")
    if progress.latest is not None and progress.best is not None:
        parts.append(
            f"share of the optimum on validation tasks {progress.latest.share:.3f} (best {progress.best.share:.3f})"
        )
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    return ", ".join(parts)


FINETUNING_PACKAGES = ("gguf", "peft", "safetensors", "tensorboard", "tokenizers", "torch", "transformers", "yaml")


@dataclass(frozen=True, slots=True)
class FinetuningOptions:
    """What a fine-tuning is told on the command line; the last four are settings of `FinetuningConfig`."""

    preset: str = option("cpu", "cpu (one thread of a laptop), ship (hours of two cores), or gpu (twice its lessons).")
    config: str | None = option(None, "YAML file with settings that replace those of the preset.", path="file")
    settings: tuple[str, ...] = option(
        (), "One setting, such as train_tasks=100; repeatable.", flag="--set", metavar="KEY=VALUE"
    )
    stage: str | None = option(
        None,
        "What the model learns from: sft, demonstrations of the exact optimum; dpo, preferences by Q*; "
        "dagger, its own episodes, corrected by the optimum; grpo, its own episodes.",
        default_text="sft",
    )
    start: str | None = option(
        None, "Adapter to start from: the folder of another run, or resilisim.", default_text="a fresh one"
    )
    device: str | None = option(None, "auto, cpu or cuda.", default_text="the preset's")
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] | None = option(
        None, "A different seed trains a different adapter.", default_text="0"
    )

    def configuration(self) -> FinetuningConfig:
        """Return the configuration that preset, file, settings and single options make."""
        from resilisim.finetuning.config import load_config

        values = {name: getattr(self, name) for name in ("stage", "start", "device", "seed")}
        return load_config(self.preset, self.config, self.settings, **values)


@app.command("lm")
@options.takes(configured=options.OptionGroup(FinetuningOptions, panel="Configuration"))
def train_lm(
    *,
    out: Annotated[
        Path,
        options.output_option(help="Folder of the run: adapter, log, TensorBoard, data; the same command resumes it."),
    ],
    configured: FinetuningOptions,
    as_json: options.JsonFlag = False,
) -> None:
    """Fine-tune a small language model on what the exact optimum does, and play with it as --model local:DIR.

    The model sees prompts and replies of the terse style, so play it with --prompt-style terse.
    """
    configuration = configured.configuration()
    training = import_training("resilisim.finetuning.training", FINETUNING_PACKAGES, "train-lm")
    try:
        with display(finetuning_line, lambda now: -1 if isinstance(now, int) else now.evaluated_at) as show:
            report = _drawing(show, out, _of_finetuning)
            reached: Standing = training.train(configuration, out, report, prepared=show)
    except KeyboardInterrupt:
        output.note(f"stopped; the same command resumes it from the last point in {out}")
        raise typer.Exit(output.STOPPED_BY_USER) from None
    shares = {"success on validation tasks": reached.success, "share of V* there, luck removed": reached.share}
    if len(reached.shares) > 1:
        shares |= {f"the same of the ceiling of {prompt}": share for prompt, share in reached.shares.items()}
    rows = [
        ["steps", f"{reached.step:,}"],
        ["tokens", f"{reached.num_tokens:,}"],
        ["minutes of training", f"{reached.seconds / 60.0:.1f}"],
        ["tokens a second", f"{reached.tokens_per_second:,.0f}"],
        *([name, "-" if value is None else f"{value:.4f}"] for name, value in shares.items()),
    ]
    prompts = " ".join(f"--prompt {name}" for name in configuration.prompt_types)
    player = (
        f"--policy 'direct[max_tokens=96]' --model local:{out} --local-reuse-prompts --prompt-style terse {prompts}"
    )
    output.answer(
        as_json,
        {**asdict(reached), "directory": str(out)},
        Table.of_values(f"fine-tuning in {out}", ["", "value"], rows),
        notes=[
            *([f"how it learned, with V* above: {out / CURVE_FILE}"] if reached.share is not None else []),
            f"next: resilisim evaluate {player} --split test --out RESULTS",
        ],
    )


def _of_finetuning(standing: Standing) -> object:
    """Return the latest evaluation of a fine-tuning; None before the first, and of models that cannot be played."""
    return None if standing.share is None else standing.evaluated_at


def finetuning_line(standing: Standing | int) -> str:
    """Say how far a fine-tuning is: tasks that there are lessons of, or steps, speed, loss, share of V*, time left."""
    if isinstance(standing, int):
        return f"lessons of {standing:,} tasks"
    parts = [f"step {standing.step:,} of {standing.num_steps:,}", f"{standing.tokens_per_second:,.0f} tokens/s"]
    if standing.loss is not None:
        parts.append(f"loss {standing.loss:.3f}")
    if standing.share is not None:
        parts.append(f"share of V* on validation tasks {standing.share:.3f}")
    if standing.step:
        left = standing.seconds / standing.step * (standing.num_steps - standing.step)
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)
