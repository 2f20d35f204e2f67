"""`resilisim tasks`: generate tasks, look at them, and let a language model enhance them."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from resilisim.bounds import Count, CountOrNone, Seed
from resilisim.chat import make_chat_model
from resilisim.chat.middleware import ChatModelSettings, request_key
from resilisim.chat.models import model_identity
from resilisim.cli import options, prompts
from resilisim.cli.enhancing import REACH, WANTED, ModelOption, answers_in, check_arguments, tell_forecast
from resilisim.cli.output import answer, command_group, note, plain
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import unknown_name
from resilisim.evaluation.run.progress import Progressing
from resilisim.tables.table import Table
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tasks.composition import check_figure_path, library_statistics, task_statistics, write_task_figure
from resilisim.tasks.enhancement.design import DesignMode
from resilisim.tasks.enhancement.enhancer import (
    EnhancedTasksFile,
    EnhancementOptions,
    EnhancementTotals,
    TaskEnhancer,
    enhance_tasks,
    forecast_calls,
    num_finished,
)
from resilisim.tasks.enhancement.questions import templates_hash
from resilisim.tasks.enhancement.rewrite import RewriteMode
from resilisim.tasks.generation import generate_tasks, write_tasks
from resilisim.tasks.sources import read_tasks
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tasks.task import COMPLEXITIES

app = command_group()
app.add_typer(prompts.app, name="prompts", help="Make prompts of four types from tasks, and look at them.")


@app.command("generate")
@options.takes(environment=options.OptionGroup(EnvironmentSettings, options.TOOL_SEARCH))
def generate(
    *,
    out: Annotated[Path, typer.Option(help="JSON Lines file to write, one task a line.", dir_okay=False)],
    seed: Annotated[Seed, typer.Option(help="A different seed makes different tasks.")] = 0,
    count: Annotated[Count, typer.Option(help="Number of tasks; 5040 with seed 0 are benchmark-v2.")] = 5040,
    environment: EnvironmentSettings,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Generate tasks into a file; the same arguments write the same bytes (semantic search: extra `retrieval`)."""
    tool_library = options.load(library)
    started = time.perf_counter()
    with Progressing("generating tasks", count) as progress:
        tasks = generate_tasks(seed=seed, count=count, retriever=environment.retriever(tool_library))
        write_tasks(out, progress.track(tasks))
    seconds = time.perf_counter() - started
    written = {"file": str(out), "count": count, "seed": seed, "seconds": seconds}
    answer(as_json, written, notes=[f"wrote {count} tasks to {out} in {seconds:.1f} s"])


@app.command("list")
def list_tasks(
    tasks: options.TasksOption = BENCHMARK_VERSION,
    task_type: Annotated[str | None, typer.Option("--type", help="Only tasks of this type.")] = None,
    complexity: Annotated[str | None, typer.Option(help="Only easy, medium or hard tasks.")] = None,
    split: Annotated[str | None, typer.Option(help="Only tasks of train, validation or test.")] = None,
    limit: Annotated[CountOrNone, typer.Option(help="Show this many; 0 shows all.")] = 20,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """List tasks with type, split and required tools."""
    read = read_tasks(tasks, options.load(library))
    known: list[dict[str, Any]] = [
        {
            "instance_id": task.instance_id,
            "task_type": task.task_type,
            "complexity": task.complexity,
            "split": split_of(task.required_tools),
            "required_tools": list(task.required_tools),
        }
        for task in read
    ]
    types = sorted({task.task_type for task in read})
    for key, wanted, valid, option in (
        ("task_type", task_type, types, "--type"),
        ("complexity", complexity, COMPLEXITIES, "--complexity"),
        ("split", split, SPLITS, "--split"),
    ):
        if wanted is not None:
            if wanted not in valid:
                raise unknown_name(key.replace("_", " "), wanted, valid, f"option {option}")
            known = [task for task in known if task[key] == wanted]
    shown = known[:limit] if limit else known
    rows = [
        [*(task[key] for key in ("instance_id", "task_type", "split")), ", ".join(task["required_tools"])]
        for task in shown
    ]
    listed = Table.of_values(f"{len(shown)} of {len(known)} tasks", ["id", "type", "split", "required tools"], rows)
    left = len(known) - len(shown)
    answer(as_json, shown, listed, notes=[f"{left} more: --limit 0 shows all"] if left else [])


@app.command("show")
def show_task(
    instance_id: Annotated[str, typer.Argument(metavar="ID", help="The task's instance_id.")],
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Show one task in full."""
    task = options.find_task(instance_id, tasks, options.load(library))
    split = split_of(task.required_tools)
    answer(
        as_json,
        {**task.to_mapping(), "split": split},
        plain(task.instance_id, "bold") + plain(f"  {task.task_type}, {task.complexity}, {split}"),
        plain(task.description),
        *(plain(f"  {place}. {name}") for place, name in enumerate(task.required_tools, start=1)),
        Table.of_values("Inputs", ["name", "value"], [[name, repr(value)] for name, value in task.inputs.items()]),
        Table.of_values(
            "Expected outputs", ["name", "value"], [[n, repr(v)] for n, v in task.expected_outputs.items()]
        ),
    )


@app.command("stats")
def stats(
    tasks: options.TasksOption = BENCHMARK_VERSION,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the counts into this .png, .svg or .pdf file.", dir_okay=False)
    ] = None,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Count tasks by type, complexity, number of tools and split, and draw them (needs the extra `plots`)."""
    if plot is not None:
        check_figure_path(plot)
    tool_library = options.load(library)
    counts = task_statistics(read_tasks(tasks, tool_library))
    tools = library_statistics(tool_library)
    if plot is not None:
        write_task_figure(plot, counts, tools)
        note(f"drew {plot}")
    shown = [
        Table.of_values(f"by {name}", ["", "tasks"], list(counts[key].items()))
        for name, key in {
            "type": "by_type",
            "complexity": "by_complexity",
            "number of tools": "by_num_tools",
            "split": "by_split",
        }.items()
    ]
    answer(
        as_json,
        {**counts, "library": tools},
        f"{counts['tasks']} tasks, {counts['distinct_tool_lists']} different lists of required tools",
        *shown,
        notes=["--json also counts domains and tools, and the library's categories and parameters"],
    )


@app.command("enhance")
@options.takes(
    reach=REACH,
    wanted=WANTED,
    environment=options.OptionGroup(
        EnvironmentSettings,
        options.TOOL_SEARCH,
        changed={"embedding_model": {"help": "Embedding model of the semantic search; the shipped one if left out."}},
    ),
)
def enhance(
    *,
    mode: Annotated[
        Literal["rewrite", "design"],
        typer.Option(help="rewrite: a better description; design: also other tools, inputs and outputs."),
    ],
    model: ModelOption,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    out: Annotated[
        Path | None, typer.Option(help="JSON Lines file to write; the same command resumes it.", dir_okay=False)
    ] = None,
    reach: ChatModelSettings,
    wanted: EnhancementOptions,
    give_up_after: Annotated[
        CountOrNone,
        typer.Option(help="Failed tasks in a row that end the run; 0 keeps originals instead."),
    ] = 50,
    dry_run: options.DryRunFlag = False,
    cache: options.CacheOption = None,
    environment: EnvironmentSettings,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Let a language model rewrite or design tasks; a task that it gets wrong stays as it was (extra `llm`)."""
    check_arguments(out, dry_run, reach.base_url)
    tool_library = options.load(library)
    retriever = environment.retriever(tool_library)
    enhancing = RewriteMode(tool_library, retriever) if mode == "rewrite" else DesignMode(tool_library, retriever)
    answers = answers_in(cache)
    identity = model_identity(model, reach)
    originals = read_tasks(tasks, tool_library)
    arguments = {  # what decides the bytes that are written, the tasks aside
        "mode": mode,
        "model": identity,
        "options": asdict(wanted),
        "templates": templates_hash(mode),
        "library": tool_library.content_hash,
        "embedding_model": environment.embedding_model,
        **({} if environment.search == "semantic" else {"search": environment.search}),
    }
    if dry_run or out is None:
        finished = 0 if out is None else num_finished(out, arguments, originals)
        waiting = originals[finished:]
        with Progressing("writing questions", len(waiting)) as progress:
            questions = map(enhancing.ask, progress.track(waiting))
            forecast = forecast_calls(questions, wanted, lambda request: request_key(identity, request) in answers)
        tell_forecast("tasks", forecast, identity, finished, as_json)
        return
    enhancer = TaskEnhancer(enhancing, make_chat_model(model, reach, answers), wanted)
    totals = EnhancementTotals()
    started = time.perf_counter()
    with EnhancedTasksFile(out, arguments, originals, totals.add_written) as file:
        already = file.num_written
        waiting = originals[already:]
        enhancements = enhance_tasks(
            waiting, enhancer, concurrency=reach.max_concurrency, give_up_after=give_up_after, taken_ids=file.ids
        )
        with Progressing("asking the model", len(waiting)) as progress, contextlib.closing(enhancements):
            for enhancement in progress.track(enhancements):
                file.write(enhancement.task)
                totals.add(enhancement)
    counts = {"file": str(out), "already_there": already, **totals.to_mapping()}
    _tell_totals(counts, time.perf_counter() - started, as_json)


def _tell_totals(counts: dict[str, Any], seconds: float, as_json: bool) -> None:
    rows = [[outcome, counts[outcome], ""] for outcome in ("enhanced", "refused", "failed")]
    rows += [["", count, kind.replace("_", " ")] for kind, count in counts["refusals"].items()]
    tokens = f"{counts['prompt_tokens']} prompt tokens, {counts['completion_tokens']} completion tokens"
    estimate = " (estimated)" if counts["is_estimate"] else ""
    notes = [
        f"{counts['calls']} calls, {counts['cached_calls']} answers from the cache; {tokens}{estimate}",
        f"wrote {counts['file']}; {counts['already_there']} tasks were already there",
    ]
    if counts["refused"] == counts["tasks"] > 0:
        notes.append(
            "no task was enhanced: every answer of the model was refused (reasons above), and the file holds the "
            "tasks as they were; try another --model, or --re-asks"
        )
    elif counts["enhanced"] == 0 < counts["tasks"]:
        notes.append("no task was enhanced: the file holds the unchanged tasks")
    if counts["refused"] or counts["failed"]:
        notes.append("refused and failed tasks are unchanged; metadata.enhancement says why")
    if counts["failed"]:
        notes.append(
            "the same command with another --out asks for the failed ones again; other answers come from the cache"
        )
    shown = Table.of_values(f"{counts['tasks']} tasks", ["outcome", "tasks", "reason"], rows)
    answer(as_json, {**counts, "seconds": seconds}, shown, notes=notes)
