"""`resilisim evaluate`: policies on tasks, under prompts and seeds, all on the same luck."""

from __future__ import annotations

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
    PROMPT_HELP,
    BaseOption,
    EmbeddingModelOption,
    FailedOption,
    FailuresOption,
    HistoryOption,
    JsonFlag,
    LibraryOption,
    LoopOption,
    NotExecutedOption,
    PayloadOption,
    PlannerOption,
    PromptStyleOption,
    RecordTextsOption,
    SearchDetailOption,
    TurnsOption,
    load,
    make_retriever,
)
from resilisim.cli.output import INCOMPLETE, STOPPED_BY_USER, console, note, print_json
from resilisim.cli.tasks import TasksOption
from resilisim.errors import MAX_COUNT, MAX_WORKERS

SCALE_PANEL = "Limits and several machines"
MOST_USED = 10**15  # of episodes and tokens

if TYPE_CHECKING:
    from resilisim.tasks import Task
    from resilisim.tool_library import ToolLibrary


def evaluate(
    policy: Annotated[
        list[str],
        typer.Option(
            "--policy",
            help="Name, module:attribute, or policy:DIR (the trained policy in a folder) of a policy, options in "
            "brackets: kpi-chain\\[theta=0.8]; again for more. 'resilisim agents' lists LLM agents and their options.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder of the results; the same command goes on in it.", rich_help_panel=OUTPUT_PANEL
        ),
    ],
    tasks: TasksOption = "benchmark-v1",
    split: Annotated[
        str | None, typer.Option("--split", help="Only tasks of train, validation or test; N tasks drawn from it.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help=PROMPT_HELP + "; again for more.", show_default="baseline"),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Episodes of each task: seeds 0, 1, ...", min=1, max=MAX_COUNT)
    ] = 1,
    workers: Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=MAX_WORKERS)] = 1,
    turns: TurnsOption = 10,
    max_consecutive_failures: FailuresOption = 5,
    loop_length: LoopOption = 4,
    success_probability: BaseOption = 0.8,
    not_executed: NotExecutedOption = 0.5,
    failed: FailedOption = 0.7,
    history: HistoryOption = 0.9,
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
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            help="i/n: play only this part of the tasks; 'resilisim merge' puts the parts together.",
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Play on a Ray cluster: auto, local, HOST:PORT; --workers are its actors then.",
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    max_episodes: Annotated[
        int | None,
        typer.Option(
            "--max-episodes",
            help="Stop when so many are finished in OUT.",
            min=1,
            max=MOST_USED,
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            help="Stop when models have used so many in OUT.",
            min=1,
            max=MOST_USED,
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(
            "--max-cost",
            help="Stop when so many dollars are spent in OUT; needs --prices for models that cost something.",
            min=0.0,
            rich_help_panel=SCALE_PANEL,
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", help="Stop after so many.", min=0.0, rich_help_panel=SCALE_PANEL),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate policies; each episode becomes one line of OUT/episodes.jsonl."""
    from resilisim.errors import count_of
    from resilisim.evaluation.run.limits import RunLimits
    from resilisim.evaluation.run.runner import RunInterrupted
    from resilisim.evaluation.run.runner import evaluate as run
    from resilisim.evaluation.run.store import FAILURES_NAME
    from resilisim.evaluation.table.agents import agent_table
    from resilisim.seeding import EVALUATION_SALT

    chosen = load(library)
    make_retriever(chosen, embedding_model)  # refuses a model that does not exist before anything is written
    try:
        result = run(
            policy,
            chosen_tasks(tasks, split, chosen),
            tuple(prompt or ["baseline"]),
            seeds,
            out=out,
            workers=workers,
            salt=EVALUATION_SALT if salt is None else salt,
            base=success_probability,
            not_executed=not_executed,
            failed=failed,
            history=history,
            max_turns=turns,
            max_consecutive_failures=max_consecutive_failures,
            loop_length=loop_length,
            planner=planner,
            parameters=parameters,
            prompt_style=prompt_style,
            search_detail=search_detail,
            payload=payload,
            tools="listed" if listed else "discovery",
            protocol=protocol,
            library=None if library is None else chosen,
            embedding_model=embedding_model,
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
            shard=shard,
            limits=RunLimits(max_episodes, max_tokens, max_cost, max_seconds),
            ray=ray,
        )
    except RunInterrupted as interrupted:
        note(f"{interrupted}; the same command goes on")
        raise typer.Exit(STOPPED_BY_USER) from None
    call = result.call
    if call.num_already_there:
        verb = "was" if call.num_already_there == 1 else "were"
        note(
            f"{call.num_already_there:,} of {count_of(result.num_planned, 'episode')} {verb} already there; "
            "policy code is not compared, use another --out after changing a policy"
        )
    if as_json:
        print_json(result.to_mapping())
    else:
        console().print(result.table())
        if result.agents():
            console().print(agent_table(result.agents()))
        is_part = shard is not None and result.num_episodes < result.num_planned
        rest = f"resilisim merge {out} ... --out DIR" if is_part else f"resilisim report {out}"
        note(f"{count_of(result.num_episodes, 'episode')} in {out}; next: {rest}")
    for name in call.silent_policies:
        count = sum(row.num_episodes for row in result.rows if row.policy == name)
        note(
            f"policy {name} returned None from act() at its first turn in {'all ' if count > 1 else ''}"
            f"{count_of(count, 'episode')}, which means stopping: was a return forgotten?"
        )
    if call.stopped_by is not None:
        note(f"stopped at {call.stopped_by}; the same command goes on, with a higher limit")
    if call.num_failures:
        them = "it" if call.num_failures == 1 else "them"
        note(
            f"{count_of(call.num_failures, 'episode')} broke and no score counts {them} "
            f"({out / FAILURES_NAME}), the last because {call.last_error}; the same command tries again"
        )
    if call.num_failures or call.stopped_by is not None:
        raise typer.Exit(INCOMPLETE)


def chosen_tasks(tasks: str, split: str | None, library: ToolLibrary) -> list[Task]:
    """Return the tasks that `--tasks` and `--split` mean: with a split, a number draws a sample from that part."""
    from resilisim.errors import InvalidInputError, unknown_name
    from resilisim.tasks.benchmark import BENCHMARK_VERSION
    from resilisim.tasks.sources import read_tasks, sample_tasks, task_count
    from resilisim.tasks.split import SPLITS, split_of

    if split is None:
        return read_tasks(tasks, library)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS, "option --split")
    count = task_count(tasks)
    if count is not None:
        return sample_tasks(read_tasks(BENCHMARK_VERSION, library), count, split=split)
    given = read_tasks(tasks, library)
    chosen = [task for task in given if split_of(task.required_tools) == split]
    if not chosen:
        which = "the only task is not" if len(given) == 1 else f"none of the {len(given):,} tasks is"
        raise InvalidInputError(f"{which} in split {split!r}")
    return chosen
