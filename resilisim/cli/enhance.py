"""`resilisim tasks enhance`: tasks made better by a language model, checked, and kept as they were where it fails."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from resilisim.cli.model_options import MODEL_PANEL, BaseUrlOption, RetriesOption, TimeoutOption
from resilisim.cli.options import (
    ENVIRONMENT_PANEL,
    MAX_CONCURRENCY,
    JsonFlag,
    LibraryOption,
    load,
    make_retriever,
)
from resilisim.cli.output import console, note, print_json, table
from resilisim.cli.progress import Progressing
from resilisim.errors import MAX_COUNT, InvalidInputError
from resilisim.seeding import MAX_SEED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resilisim.chat import ChatModelSettings, ResponseCache
    from resilisim.tasks import Task
    from resilisim.tasks.enhancement import EnhancementMode, EnhancementOptions
    from resilisim.tool_library import ToolLibrary

_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|key)-", re.IGNORECASE)


def enhance(
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
    tasks: Annotated[
        str,
        typer.Option("--tasks", help="benchmark-v1, a number N (its first N tasks), or a JSON Lines file of tasks."),
    ] = "benchmark-v1",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="JSON Lines file to write; the same command goes on in it.", dir_okay=False),
    ] = None,
    base_url: BaseUrlOption = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", help="The model's own if left out.", min=0.0, max=2.0, rich_help_panel=MODEL_PANEL
        ),
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens", help="Longest answer in tokens.", min=1, max=MAX_COUNT, rich_help_panel=MODEL_PANEL
        ),
    ] = 1500,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Sent to the model; another one asks anew instead of taking cached answers.",
            min=0,
            max=MAX_SEED,
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    re_asks: Annotated[
        int,
        typer.Option(
            "--re-asks", help="How often an unusable answer is sent back with the reason.", min=0, max=MAX_COUNT
        ),
    ] = 1,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", help="Requests under way at once.", min=1, max=MAX_CONCURRENCY, rich_help_panel=MODEL_PANEL
        ),
    ] = 8,
    retries: RetriesOption = 4,
    timeout: TimeoutOption = 60.0,
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
    embedding_model: Annotated[
        str | None,
        typer.Option(
            "--embedding-model",
            help="Embedding model of the tool search; the shipped one if left out.",
            rich_help_panel=ENVIRONMENT_PANEL,
        ),
    ] = None,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a language model rewrite or design tasks; what it does not get right stays as it was (extra `llm`)."""
    from resilisim.chat import ChatModelSettings, ResponseCache, RetryPolicy
    from resilisim.tasks.enhancement import EnhancementOptions
    from resilisim.tasks.sources import read_tasks
    from resilisim.tool_library.embedding_cache import default_cache_dir

    if out is None and not dry_run:
        raise InvalidInputError("option --out is missing: expected the file to write (only --dry-run needs none)")
    if base_url is not None:
        _refuse_no_address(base_url)
    chosen = load(library)
    run = _Run(
        mode=_make_mode(mode, chosen, embedding_model),
        model=model,
        settings=ChatModelSettings(
            base_url=base_url,
            timeout_seconds=timeout,
            max_concurrency=concurrency,
            retry=RetryPolicy(retries=retries),
        ),
        options=EnhancementOptions(temperature, max_tokens, seed, re_asks),
        answers=ResponseCache(default_cache_dir() / "chat" if cache is None else cache),
        tasks=read_tasks(tasks, chosen),
        library_hash=chosen.content_hash,
        embedding_model=embedding_model,
    )
    if dry_run or out is None:
        _forecast(run, out, as_json)
    else:
        _enhance_into(out, run, concurrency, give_up_after, as_json)


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
        from resilisim.chat import model_identity

        return model_identity(self.model, self.settings)

    def arguments(self) -> dict[str, Any]:
        """Return what decides the bytes that are written, the tasks aside."""
        from resilisim.tasks.enhancement.prompting import templates_hash

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
    from resilisim.chat.openai import SHORTEST_SECRET, endpoint_url

    try:
        endpoint_url(base_url)
    except InvalidInputError as error:
        looks_like_address = len(base_url) < SHORTEST_SECRET or any(mark in base_url for mark in ".:/")
        if not looks_like_address or any(mark in base_url for mark in "@?#") or _KEY_LIKE.search(base_url):
            raise
        reason = str(error).removeprefix("base URL: ")
        raise InvalidInputError(f"option --base-url {base_url!r:.120}: {reason}") from None


def _make_mode(name: str, library: ToolLibrary, embedding_model: str | None) -> EnhancementMode:
    from resilisim.tasks.enhancement import DesignMode, RewriteMode

    retriever = make_retriever(library, embedding_model)
    return RewriteMode(library, retriever) if name == "rewrite" else DesignMode(library, retriever)


def _forecast(run: _Run, out: Path | None, as_json: bool) -> None:
    """Tell what a run would ask."""
    from resilisim.chat.middleware import request_key
    from resilisim.tasks.enhancement import forecast_calls
    from resilisim.tasks.enhancement.files import num_finished

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


def _enhance_into(out: Path, run: _Run, concurrency: int, give_up_after: int, as_json: bool) -> None:
    """Enhance the tasks that the file does not hold yet."""
    from resilisim.chat import make_chat_model
    from resilisim.tasks.enhancement import EnhancedTasksFile, EnhancementTotals, TaskEnhancer, enhance_tasks

    model = make_chat_model(run.model, run.settings, run.answers)
    totals = EnhancementTotals()
    started = time.perf_counter()
    with EnhancedTasksFile(out, run.arguments(), run.tasks, totals.add_written) as file:
        already = file.num_written
        waiting = run.tasks[already:]
        enhancements = enhance_tasks(
            waiting,
            TaskEnhancer(run.mode, model, run.options),
            concurrency=concurrency,
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
