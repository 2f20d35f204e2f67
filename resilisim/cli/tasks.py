"""`resilisim tasks`: generate tasks, and look at them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.columns import Columns

from resilisim.cli.enhance import enhance
from resilisim.cli.options import EmbeddingModelOption, JsonFlag, LibraryOption, command_group, load, make_retriever
from resilisim.cli.output import console, note, plain, print_json, table
from resilisim.cli.progress import Progressing
from resilisim.errors import MAX_COUNT, unknown_name
from resilisim.seeding import MAX_SEED

if TYPE_CHECKING:
    from resilisim.tasks import Task
    from resilisim.tool_library import ToolLibrary


TasksOption = Annotated[
    str, typer.Option("--tasks", help="benchmark-v1, a number N (its first N tasks), or a JSON Lines file of tasks.")
]

app = command_group("Generate tasks, list, show and count them.")
app.command("enhance")(enhance)


@app.command("generate")
def generate(
    out: Annotated[Path, typer.Option("--out", help="JSON Lines file to write, one task a line.", dir_okay=False)],
    seed: Annotated[int, typer.Option("--seed", help="Another seed makes other tasks.", min=0, max=MAX_SEED)] = 0,
    count: Annotated[
        int, typer.Option("--count", help="How many; 5040 with seed 0 is benchmark-v1.", min=1, max=MAX_COUNT)
    ] = 5040,
    embedding_model: EmbeddingModelOption = None,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Generate tasks into a file (needs the extra `retrieval`); the same arguments write the same bytes."""
    from resilisim.tasks.generation import generate_tasks, write_tasks

    chosen = load(library)
    started = time.perf_counter()
    with Progressing("generating tasks", count) as progress:
        tasks = generate_tasks(seed=seed, count=count, retriever=make_retriever(chosen, embedding_model))
        write_tasks(out, progress.track(tasks))
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"file": str(out), "count": count, "seed": seed, "seconds": seconds})
    else:
        note(f"wrote {count} tasks to {out} in {seconds:.1f} s")


@app.command("list")
def list_tasks(
    tasks: TasksOption = "benchmark-v1",
    task_type: Annotated[str | None, typer.Option("--type", help="Only tasks of this type.")] = None,
    complexity: Annotated[str | None, typer.Option("--complexity", help="Only easy, medium or hard tasks.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Only tasks of train, validation or test.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Show this many; 0 shows all.", min=0, max=MAX_COUNT)] = 20,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List tasks with type, split and required tools."""
    from resilisim.tasks import COMPLEXITIES
    from resilisim.tasks.model import SPLITS, split_of
    from resilisim.tasks.sources import read_tasks

    found = read_tasks(tasks, load(library))
    if task_type is not None:
        _one_of("task type", task_type, sorted({task.task_type for task in found}), "--type")
        found = [task for task in found if task.task_type == task_type]
    if complexity is not None:
        _one_of("complexity", complexity, COMPLEXITIES, "--complexity")
        found = [task for task in found if task.complexity == complexity]
    if split is not None:
        _one_of("split", split, SPLITS, "--split")
        found = [task for task in found if split_of(task.required_tools) == split]
    shown = found[:limit] if limit else found
    if as_json:
        print_json(
            [
                {
                    "instance_id": task.instance_id,
                    "task_type": task.task_type,
                    "complexity": task.complexity,
                    "split": split_of(task.required_tools),
                    "required_tools": list(task.required_tools),
                }
                for task in shown
            ]
        )
        return
    rows = [
        [task.instance_id, task.task_type, split_of(task.required_tools), ", ".join(task.required_tools)]
        for task in shown
    ]
    console().print(table(f"{len(shown)} of {len(found)} tasks", ["id", "type", "split", "required tools"], rows))
    if len(shown) < len(found):
        note(f"{len(found) - len(shown)} more: --limit 0 shows all")


@app.command("show")
def show_task(
    instance_id: Annotated[str, typer.Argument(metavar="ID", help="The task's instance_id.")],
    tasks: TasksOption = "benchmark-v1",
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one task whole."""
    from resilisim.tasks.model import split_of

    task = find_task(instance_id, tasks, load(library))
    if as_json:
        print_json({**task.to_mapping(), "split": split_of(task.required_tools)})
        return
    out = console()
    kind = f"  {task.task_type}, {task.complexity}, {split_of(task.required_tools)}"
    out.print(plain(task.instance_id, "bold") + plain(kind))
    out.print(plain(task.description))
    for place, name in enumerate(task.required_tools, start=1):
        out.print(plain(f"  {place}. {name}"))
    out.print(table("Inputs", ["name", "value"], [[name, repr(value)] for name, value in task.inputs.items()]))
    out.print(
        table("Expected outputs", ["name", "value"], [[n, repr(value)] for n, value in task.expected_outputs.items()])
    )


@app.command("stats")
def stats(
    tasks: TasksOption = "benchmark-v1",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Also draw the counts into this .png, .svg or .pdf file.", dir_okay=False),
    ] = None,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Count tasks by type, complexity, number of tools and split, and draw them (needs the extra `plots`)."""
    from resilisim.tasks.composition import check_figure_path, library_statistics, task_statistics, write_task_figure
    from resilisim.tasks.sources import read_tasks

    if plot is not None:
        check_figure_path(plot)
    chosen = load(library)
    counts = task_statistics(read_tasks(tasks, chosen))
    tools = library_statistics(chosen)
    if plot is not None:
        write_task_figure(plot, counts, tools)
        note(f"drew {plot}")
    if as_json:
        print_json({**counts, "library": tools})
        return
    shown = [
        table(key.replace("_", " "), ["", "tasks"], list(counts[key].items()))
        for key in ("by_type", "by_complexity", "by_num_tools", "by_split")
    ]
    out = console()
    out.print(f"{counts['tasks']} tasks, {counts['distinct_tool_lists']} different lists of required tools")
    out.print(Columns(shown))
    note("--json also counts domains and tools, and the library's categories and parameters")


def _one_of(what: str, value: str, valid: Sequence[str], option: str) -> None:
    """Refuse a value that is not among the valid ones."""
    if value not in valid:
        raise unknown_name(what, value, valid, f"option {option}")


def find_task(instance_id: str, tasks: str, library: ToolLibrary) -> Task:
    """Return the task of that id among `tasks`."""
    from resilisim.tasks.sources import read_tasks

    found = {task.instance_id: task for task in read_tasks(tasks, library)}
    if instance_id not in found:
        raise unknown_name("task", instance_id, found, tasks)
    return found[instance_id]
