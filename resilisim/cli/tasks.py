"""`resilisim tasks`: generate tasks, look at them, and let a language model enhance them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.columns import Columns

from resilisim.chat import ChatModelSettings, ResponseCache, make_chat_model, model_identity
from resilisim.chat.middleware import request_key
from resilisim.chat.openai import SHORTEST_SECRET, endpoint_url
from resilisim.cli.options import (
    EMBEDDING_MODEL,
    MODEL_PANEL,
    OPTIONS_PANEL,
    JsonFlag,
    LibraryOption,
    OptionGroup,
    TasksOption,
    command_group,
    find_task,
    load,
    make_retriever,
    takes,
)
from resilisim.cli.output import Progressing, console, note, plain, print_json, table
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import MAX_COUNT, InvalidInputError, unknown_name
from resilisim.seeding import MAX_SEED
from resilisim.tasks import COMPLEXITIES, Task
from resilisim.tasks.composition import check_figure_path, library_statistics, task_statistics, write_task_figure
from resilisim.tasks.enhancement import (
    DesignMode,
    EnhancedTasksFile,
    EnhancementMode,
    EnhancementOptions,
    EnhancementTotals,
    RewriteMode,
    TaskEnhancer,
    enhance_tasks,
    forecast_calls,
)
from resilisim.tasks.enhancement.files import num_finished
from resilisim.tasks.enhancement.modes import templates_hash
from resilisim.tasks.generation import generate_tasks, write_tasks
from resilisim.tasks.model import SPLITS, split_of
from resilisim.tasks.sources import read_tasks
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.retrieval import default_cache_dir

app = command_group()


@app.command("generate")
@takes(search=EMBEDDING_MODEL)
def generate(
    *,
    out: Annotated[Path, typer.Option("--out", help="JSON Lines file to write, one task a line.", dir_okay=False)],
    seed: Annotated[int, typer.Option("--seed", help="Another seed makes other tasks.", min=0, max=MAX_SEED)] = 0,
    count: Annotated[
        int, typer.Option("--count", help="How many; 5040 with seed 0 is benchmark-v1.", min=1, max=MAX_COUNT)
    ] = 5040,
    search: EnvironmentSettings,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Generate tasks into a file (needs the extra `retrieval`); the same arguments write the same bytes."""
    chosen = load(library)
    started = time.perf_counter()
    with Progressing("generating tasks", count) as progress:
        tasks = generate_tasks(seed=seed, count=count, retriever=make_retriever(chosen, search.embedding_model))
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


_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|key)-", re.IGNORECASE)


@app.command("enhance")
@takes(
    reach=OptionGroup(
        ChatModelSettings,
        ["base_url", "max_concurrency", "retries", "timeout_seconds"],
        MODEL_PANEL,
        {"timeout_seconds": {"default": 60.0}},
    ),
    options=OptionGroup(EnhancementOptions, panel=MODEL_PANEL, changed={"re_asks": {"group": OPTIONS_PANEL}}),
    search=OptionGroup(
        EnvironmentSettings,
        ["embedding_model"],
        changed={"embedding_model": {"help": "Embedding model of the tool search; the shipped one if left out."}},
    ),
)
def enhance(
    *,
    mode: Annotated[
        Literal["rewrite", "design"],
        typer.Option("--mode", help="rewrite: a better description; design: also other tools, inputs and outputs."),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Who is asked, such as openai:gpt-4o-mini; the key is taken from OPENAI_API_KEY.",
            rich_help_panel=MODEL_PANEL,
        ),
    ],
    tasks: TasksOption = "benchmark-v1",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="JSON Lines file to write; the same command goes on in it.", dir_okay=False),
    ] = None,
    reach: ChatModelSettings,
    options: EnhancementOptions,
    give_up_after: Annotated[
        int,
        typer.Option(
            "--give-up-after",
            help="Failed tasks in a row that end the run; 0 keeps originals instead.",
            min=0,
            max=MAX_COUNT,
        ),
    ] = 50,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only state calls and tokens; asks nothing and needs no key.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache", help="Folder of answers; in the user's cache folder if left out.", rich_help_panel=MODEL_PANEL
        ),
    ] = None,
    search: EnvironmentSettings,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a language model rewrite or design tasks; what it does not get right stays as it was (extra `llm`)."""
    if out is None and not dry_run:
        raise InvalidInputError("option --out is missing: expected the file to write (only --dry-run needs none)")
    if reach.base_url is not None:
        _refuse_no_address(reach.base_url)
    chosen = load(library)
    run = _Run(
        mode=_make_mode(mode, chosen, search.embedding_model),
        model=model,
        settings=reach,
        options=options,
        answers=ResponseCache(default_cache_dir() / "chat" if cache is None else cache),
        tasks=read_tasks(tasks, chosen),
        library_hash=chosen.content_hash,
        embedding_model=search.embedding_model,
    )
    if dry_run or out is None:
        _forecast(run, out, as_json)
    else:
        _enhance_into(out, run, give_up_after, as_json)


@dataclass(frozen=True, slots=True)
class _Run:
    """What is asked, who is asked, and about which tasks."""

    mode: EnhancementMode
    model: str
    settings: ChatModelSettings
    options: EnhancementOptions
    answers: ResponseCache
    tasks: Sequence[Task]
    library_hash: str
    embedding_model: str | None

    @property
    def identity(self) -> str:
        """Which model answers, and where."""
        return model_identity(self.model, self.settings)

    def arguments(self) -> dict[str, Any]:
        """Return what decides the bytes that are written, the tasks aside."""
        return {
            "mode": self.mode.name,
            "model": self.identity,
            "options": asdict(self.options),
            "templates": templates_hash(self.mode.name),
            "library": self.library_hash,
            "embedding_model": self.embedding_model,
        }


def _refuse_no_address(base_url: str) -> None:
    """Refuse what is no address of an endpoint, and repeat it, unless it may be a key in the wrong place.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        endpoint_url(base_url)
    except InvalidInputError as error:
        looks_like_address = len(base_url) < SHORTEST_SECRET or any(mark in base_url for mark in ".:/")
        if not looks_like_address or any(mark in base_url for mark in "@?#") or _KEY_LIKE.search(base_url):
            raise
        reason = str(error).removeprefix("base URL: ")
        raise InvalidInputError(f"option --base-url {base_url!r:.120}: {reason}") from None


def _make_mode(name: str, library: ToolLibrary, embedding_model: str | None) -> EnhancementMode:
    retriever = make_retriever(library, embedding_model)
    return RewriteMode(library, retriever) if name == "rewrite" else DesignMode(library, retriever)


def _forecast(run: _Run, out: Path | None, as_json: bool) -> None:
    """Tell what a run would ask."""
    identity = run.identity
    finished = 0 if out is None else num_finished(out, run.arguments(), run.tasks)
    waiting = run.tasks[finished:]
    with Progressing("writing questions", len(waiting)) as progress:
        forecast = forecast_calls(
            progress.track(waiting),
            run.mode,
            run.options,
            lambda request: request_key(identity, request) in run.answers,
        )
    if as_json:
        print_json({"model": identity, "already_there": finished, **forecast.to_mapping()})
        return
    rows = [
        ["calls", forecast.calls, forecast.most_calls],
        ["prompt tokens (estimate)", forecast.prompt_tokens_estimate, forecast.most_prompt_tokens_estimate],
        [
            "completion tokens (at most)",
            forecast.most_completion_tokens,
            forecast.most_completion_tokens_with_re_asks,
        ],
    ]
    title = f"{forecast.tasks} tasks, nothing was asked"
    console().print(table(title, ["", "each asked once", "each asked again"], rows))
    note(f"model: {identity}")
    note(f"{finished} tasks are in the file already, {forecast.cached} answers are in the cache")


def _enhance_into(out: Path, run: _Run, give_up_after: int, as_json: bool) -> None:
    """Enhance the tasks that the file does not hold yet."""
    model = make_chat_model(run.model, run.settings, run.answers)
    totals = EnhancementTotals()
    started = time.perf_counter()
    with EnhancedTasksFile(out, run.arguments(), run.tasks, totals.add_written) as file:
        already = file.num_written
        waiting = run.tasks[already:]
        enhancements = enhance_tasks(
            waiting,
            TaskEnhancer(run.mode, model, run.options),
            concurrency=run.settings.max_concurrency,
            give_up_after=give_up_after,
            taken_ids=file.ids,
        )
        with Progressing("asking the model", len(waiting)) as progress, contextlib.closing(enhancements):
            for enhancement in progress.track(enhancements):
                file.write(enhancement.task)
                totals.add(enhancement)
    counts = {"file": str(out), "already_there": already, **totals.to_mapping()}
    if as_json:
        print_json({**counts, "seconds": time.perf_counter() - started})
    else:
        _show(counts)


def _show(counts: dict[str, Any]) -> None:
    rows = [[outcome, counts[outcome], ""] for outcome in ("enhanced", "refused", "failed")]
    rows += [["", count, kind.replace("_", " ")] for kind, count in counts["refusals"].items()]
    console().print(table(f"{counts['tasks']} tasks", ["outcome", "tasks", "reason"], rows))
    tokens = f"{counts['prompt_tokens']} prompt tokens, {counts['completion_tokens']} completion tokens"
    estimate = " (estimated)" if counts["is_estimate"] else ""
    note(f"{counts['calls']} calls, {counts['cached_calls']} answers from the cache; {tokens}{estimate}")
    note(f"wrote {counts['file']}; {counts['already_there']} tasks were there already")
    if counts["refused"] == counts["tasks"] > 0:
        note(
            "no task was enhanced: every answer of the model was refused (reasons above), and the file holds the "
            "tasks as they were; try another --model, or --re-asks"
        )
    elif counts["enhanced"] == 0 < counts["tasks"]:
        note("no task was enhanced: the file holds the tasks as they were")
    if counts["refused"] or counts["failed"]:
        note("refused and failed tasks are as they were; metadata.enhancement says why")
    if counts["failed"]:
        note("the same command with another --out asks for the failed ones again; other answers come from the cache")
