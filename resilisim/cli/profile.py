"""`resilisim profile`: how policies do as tools, turns and plans get worse."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from resilisim.cli.model_options import (
    BaseUrlOption,
    CacheOption,
    ConcurrencyOption,
    GiveUpOption,
    LocalThreadsOption,
    ModelsOption,
    PricesOption,
    RequestsPerMinuteOption,
    RetriesOption,
    ReusePromptsOption,
    TimeoutOption,
    TokensPerMinuteOption,
    model_settings,
)
from resilisim.cli.options import (
    ENVIRONMENT_PANEL,
    OUTPUT_PANEL,
    EmbeddingModelOption,
    FailuresOption,
    JsonFlag,
    LibraryOption,
    LoopOption,
    PayloadOption,
    PlannerOption,
    PromptStyleOption,
    RecordTextsOption,
    SearchDetailOption,
    load,
    make_retriever,
)
from resilisim.cli.output import INCOMPLETE, STOPPED_BY_USER, console, note, plain, print_json
from resilisim.cli.progress import QUIET_SECONDS, Progressing
from resilisim.cli.tasks import TasksOption
from resilisim.errors import MAX_COUNT, MAX_WORKERS

if TYPE_CHECKING:
    from resilisim.evaluation.robustness.plan import ProfileRun

AXES_PANEL = "What is varied"


def profile(
    policy: Annotated[
        list[str],
        typer.Option("--policy", help="As in 'resilisim evaluate'; again for more."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="Folder of the profile, with a folder for each run; the same command goes on in it, and one with "
            "other points adds them.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ],
    tasks: TasksOption = "benchmark-v1",
    split: Annotated[
        str | None, typer.Option("--split", help="Only tasks of train, validation or test; N tasks drawn from it.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            help="Prompts along reliability and turns; again for more. Flaws are compared with the optimal prompt.",
            show_default="optimal",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Episodes of each task: seeds 0, 1, ...", min=1, max=MAX_COUNT)
    ] = 1,
    workers: Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=MAX_WORKERS)] = 1,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            help="reliability, turns or flaws; again for more.",
            show_default="all",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    reliability: Annotated[
        list[float] | None,
        typer.Option(
            "--reliability",
            help="Success probability of a tool; again for more.",
            show_default="0.5, 0.6, 0.7, 0.8, 0.9, 1",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    turns: Annotated[
        list[int] | None,
        typer.Option(
            "--turns",
            help="Turns of an episode; again for more.",
            show_default="4, 6, 8, 10, 12, 15",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    flaw: Annotated[
        list[str] | None,
        typer.Option("--flaw", help="Flaw type; again for more.", show_default="all", rich_help_panel=AXES_PANEL),
    ] = None,
    severity: Annotated[
        list[str] | None,
        typer.Option(
            "--severity",
            help="light, moderate or severe; again for more.",
            show_default="all",
            rich_help_panel=AXES_PANEL,
        ),
    ] = None,
    max_consecutive_failures: FailuresOption = 5,
    loop_length: LoopOption = 4,
    planner: PlannerOption = "auto",
    parameters: Annotated[
        Literal["lenient", "strict", "ignore"],
        typer.Option("--parameters", help="How parameters of calls are checked.", rich_help_panel=ENVIRONMENT_PANEL),
    ] = "lenient",
    prompt_style: PromptStyleOption = "full",
    search_detail: SearchDetailOption = "brief",
    payload: PayloadOption = "compact",
    listed: Annotated[
        bool,
        typer.Option(
            "--list-tools", help="Put the names of the tools into the prompt.", rich_help_panel=ENVIRONMENT_PANEL
        ),
    ] = False,
    protocol: Annotated[
        Literal["text", "native"],
        typer.Option("--protocol", help="How messages are written.", rich_help_panel=ENVIRONMENT_PANEL),
    ] = "text",
    salt: Annotated[
        str | None,
        typer.Option("--salt", help="Any text: other luck, a private leaderboard.", rich_help_panel=ENVIRONMENT_PANEL),
    ] = None,
    embedding_model: EmbeddingModelOption = None,
    model: ModelsOption = None,
    base_url: BaseUrlOption = None,
    concurrency: ConcurrencyOption = 8,
    retries: RetriesOption = 4,
    timeout: TimeoutOption = 600.0,
    requests_per_minute: RequestsPerMinuteOption = None,
    tokens_per_minute: TokensPerMinuteOption = None,
    cache: CacheOption = None,
    prices: PricesOption = None,
    give_up_after: GiveUpOption = 20,
    local_threads: LocalThreadsOption = None,
    local_reuse_prompts: ReusePromptsOption = False,
    library: LibraryOption = None,
    record_texts: RecordTextsOption = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", help="Markdown file for the tables.", dir_okay=False, rich_help_panel=OUTPUT_PANEL),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how policies do as tools fail more often, turns run short and plans are flawed, beside the optimum."""
    from resilisim.cli.evaluate import chosen_tasks
    from resilisim.cli.profile_view import print_profile
    from resilisim.envs.settings import EnvironmentSettings
    from resilisim.errors import InvalidInputError, count_of
    from resilisim.evaluation.report.profile import write_profile_markdown, write_profile_page
    from resilisim.evaluation.robustness.plan import (
        AXES,
        DEFAULT_RELIABILITIES,
        DEFAULT_TURNS,
        FLAWS,
        RELIABILITY,
        TURNS,
        check_points,
    )
    from resilisim.evaluation.robustness.profile import ProfileInterrupted, plan_profile
    from resilisim.seeding import EVALUATION_SALT
    from resilisim.workflows.flaws import FLAW_TYPES, SEVERITIES

    for option, given, belongs in (
        ("--reliability", reliability, RELIABILITY),
        ("--turns", turns, TURNS),
        ("--flaw", flaw, FLAWS),
        ("--severity", severity, FLAWS),
    ):
        if given and belongs not in (axis or AXES):
            raise InvalidInputError(f"{option} changes nothing without the axis {belongs}: add --axis {belongs}")
    points = check_points(
        axis or AXES,
        reliability or DEFAULT_RELIABILITIES,
        turns or DEFAULT_TURNS,
        flaw or FLAW_TYPES,
        severity or SEVERITIES,
    )
    chosen = load(library)
    make_retriever(chosen, embedding_model)  # refuses a model that does not exist before anything is written
    job = plan_profile(
        policy,
        chosen_tasks(tasks, split, chosen),
        seeds,
        points,
        out=out,
        prompts=tuple(prompt or ["optimal"]),
        standard=EnvironmentSettings(
            max_consecutive_failures=max_consecutive_failures,
            loop_length=loop_length,
            planner=planner,
            parameters=parameters,
            prompt_style=prompt_style,
            search_detail=search_detail,
            payload=payload,
            tools="listed" if listed else "discovery",
            protocol=protocol,
            salt=EVALUATION_SALT if salt is None else salt,
            embedding_model=embedding_model,
        ),
        library=None if library is None else chosen,
        workers=workers,
        model=model_settings(
            model,
            base_url,
            concurrency,
            retries,
            timeout,
            requests_per_minute,
            tokens_per_minute,
            cache,
            prices,
            give_up_after,
            local_threads,
            local_reuse_prompts,
        ),
        record_texts=record_texts,
    )
    began = time.monotonic()
    with Progressing("solving tasks in all settings", job.num_to_solve) as progress:
        references = job.solve(progress.advance)

    def tell(number: int, total: int, run: ProfileRun) -> None:
        if time.monotonic() - began >= QUIET_SECONDS:
            note(f"run {number} of {total}: {run.title}")

    try:
        result = job.play(references, tell)
    except ProfileInterrupted as interrupted:
        note(f"{interrupted}; the same command goes on")
        raise typer.Exit(STOPPED_BY_USER) from None
    path = write_profile_page(result)
    if markdown is not None:
        write_profile_markdown(result, markdown)
    if as_json:
        print_json({**result.to_mapping(), "page": str(path)})
    else:
        print_profile(result)
        console().print(plain(f"page: {path}"), soft_wrap=True)
    if not result.is_finished:
        missing = sum(run.num_planned - run.num_episodes for run in result.runs)
        reason = f", the last because {result.last_error}" if result.last_error else ""
        note(f"{count_of(missing, 'episode')} broke and no score counts them{reason}; the same command tries again")
        raise typer.Exit(INCOMPLETE)
