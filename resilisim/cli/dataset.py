"""`resilisim dataset`: write datasets that others train on, check them, and look into them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from resilisim.cli.options import (
    ENVIRONMENT_PANEL,
    OUTPUT_PANEL,
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
    SearchDetailOption,
    TurnsOption,
    command_group,
    load,
)
from resilisim.cli.output import STOPPED_BY_USER, console, note, plain, print_json, table
from resilisim.cli.progress import Progressing
from resilisim.cli.prompts import (
    FlawOption,
    ListToolsFlag,
    MatchOption,
    MethodOption,
    PlanFormatOption,
    SeverityOption,
    TemplatesOption,
    TypeOption,
)
from resilisim.cli.tasks import TasksOption
from resilisim.errors import MAX_COUNT, MAX_WORKERS
from resilisim.seeding import MAX_SEED

PROMPTS_PANEL = "Prompts"
EPISODES_PANEL = "Conversations and preferences"
PROBLEMS_FOUND = 1  # exit code of `verify`

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The dataset's folder.")]

app = command_group("Write datasets that others train on, check them, and look into them.")


@app.command("export")
def export(
    context: typer.Context,
    kind: Annotated[str, typer.Option("--kind", help="prompts, conversations or preferences.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="Folder of the dataset; the same command goes on in it, behind the files that are whole.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ],
    tasks: TasksOption = "benchmark-v1",
    split: Annotated[
        str | None, typer.Option("--split", help="Only tasks of train, validation or test; N tasks drawn from it.")
    ] = None,
    file_format: Annotated[
        Literal["jsonl", "parquet"],
        typer.Option(
            "--format", help="JSON Lines, or Parquet (needs the extra `datasets`).", rich_help_panel=OUTPUT_PANEL
        ),
    ] = "jsonl",
    workers: Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=MAX_WORKERS)] = 1,
    tasks_per_shard: Annotated[
        int,
        typer.Option(
            "--tasks-per-shard",
            help="Tasks of each file; what a stopped export keeps is whole files.",
            min=1,
            max=MAX_COUNT,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = 50,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Remove another dataset from the folder, and write beside files that no export wrote.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = False,
    license_name: Annotated[
        str, typer.Option("--license", help="License that the card names.", rich_help_panel=OUTPUT_PANEL)
    ] = "apache-2.0",
    prompt_type: TypeOption = None,
    method: MethodOption = None,
    plan_format: PlanFormatOption = "markdown",
    alternatives: Annotated[
        bool | None,
        typer.Option(
            "--alternatives/--no-alternatives",
            help="Name similar tools with each step of a plan.",
            show_default="with --kind prompts",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    semantic_match: MatchOption = None,
    templates: TemplatesOption = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", help="Another seed makes other flaws.", min=0, max=MAX_SEED, rich_help_panel=PROMPTS_PANEL
        ),
    ] = 0,
    flaw: FlawOption = None,
    severity: SeverityOption = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            help="Prompt type that is played, or flawed:FLAW:SEVERITY; again for more.",
            show_default="baseline and optimal",
            rich_help_panel=EPISODES_PANEL,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            help="Episodes of each task and prompt type.",
            min=1,
            max=MAX_COUNT,
            rich_help_panel=EPISODES_PANEL,
        ),
    ] = 1,
    first_seed: Annotated[
        int,
        typer.Option(
            "--first-seed", help="Seed of the first of them.", min=0, max=MAX_SEED, rich_help_panel=EPISODES_PANEL
        ),
    ] = 0,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", help="Who plays conversations: exact-optimum, or any policy.", rich_help_panel=EPISODES_PANEL
        ),
    ] = "exact-optimum",
    search: Annotated[
        bool,
        typer.Option(
            "--search/--no-search",
            help="Let the exact optimum look up tools before it calls what it has not read of.",
            rich_help_panel=EPISODES_PANEL,
        ),
    ] = True,
    pass_parameters: Annotated[
        bool,
        typer.Option(
            "--pass-parameters/--no-pass-parameters",
            help="Let it pass parameters in its calls.",
            rich_help_panel=EPISODES_PANEL,
        ),
    ] = True,
    explore: Annotated[
        float,
        typer.Option(
            "--explore",
            help="Share of the steps on the way to preference pairs that are mistakes on purpose.",
            min=0.0,
            max=1.0,
            rich_help_panel=EPISODES_PANEL,
        ),
    ] = 0.3,
    min_margin: Annotated[
        float,
        typer.Option(
            "--min-margin", help="Least difference in Q* between the two of a pair.", rich_help_panel=EPISODES_PANEL
        ),
    ] = 0.01,
    planner: PlannerOption = "auto",
    protocol: Annotated[
        Literal["text", "native"],
        typer.Option("--protocol", help="How tools are called.", rich_help_panel=ENVIRONMENT_PANEL),
    ] = "text",
    listed: ListToolsFlag = False,
    parameters: Annotated[
        Literal["lenient", "strict", "ignore"],
        typer.Option("--parameters", help="How parameters of calls are checked.", rich_help_panel=ENVIRONMENT_PANEL),
    ] = "lenient",
    search_detail: SearchDetailOption = "brief",
    payload: PayloadOption = "compact",
    salt: Annotated[
        str,
        typer.Option(
            "--salt",
            help="Salt of the luck; not the one that models are evaluated with.",
            show_default="that of training",
            rich_help_panel=ENVIRONMENT_PANEL,
        ),
    ] = "",
    turns: TurnsOption = 10,
    max_consecutive_failures: FailuresOption = 5,
    loop_length: LoopOption = 4,
    success_probability: BaseOption = 0.8,
    not_executed: NotExecutedOption = 0.5,
    failed: FailedOption = 0.7,
    history: HistoryOption = 0.9,
    embedding_model: EmbeddingModelOption = None,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a dataset as a folder that Hugging Face `datasets` loads; the same arguments write the same bytes."""
    from resilisim.cli.dataset_kinds import card_command, given_options, make_spec, plays_flawed_prompts
    from resilisim.cli.evaluate import chosen_tasks
    from resilisim.datasets import ExportInterrupted, export_dataset

    # Options are looked up by whether they were given: each kind has its own defaults and its own options.
    given = given_options(context)
    spec = make_spec(kind, given, context)
    chosen = load(library)
    found = chosen_tasks(tasks, split, chosen)
    started = time.perf_counter()
    try:
        with Progressing("writing records of tasks", len(found)) as progress:
            result = export_dataset(
                spec,
                found,
                out,
                library=chosen,
                format=file_format,
                tasks_per_shard=tasks_per_shard,
                workers=workers,
                overwrite=overwrite,
                license=license_name,
                command=card_command(context, given),
                progress=progress.advance,
            )
    except ExportInterrupted as interrupted:
        note(f"{interrupted}; the same command goes on")
        raise typer.Exit(STOPPED_BY_USER) from None
    if result.num_already_there:
        note(f"{result.num_already_there:,} of {len(result.shards):,} files were already there")
    without_flaw = len(found) - _num_tasks_with_a_flaw(out) if plays_flawed_prompts(spec) else 0
    if as_json:
        print_json({**result.to_mapping(), "tasks_without_a_flawed_prompt": without_flaw})
        return
    rows = [
        [name, records, sum(facts.split == name for facts in result.shards)]
        for name, records in result.records_per_split().items()
    ]
    console().print(table(f"{result.num_records:,} records in {out}", ["split", "records", "files"], rows))
    if without_flaw:
        note(
            f"{without_flaw:,} of {len(found):,} tasks have no record under a flawed prompt: "
            "their plans cannot carry the flaw" + (", or no state had a pair" if kind == "preferences" else "")
        )
    note(f"{time.perf_counter() - started:.1f} s; next: resilisim dataset show {out}")


@app.command("verify")
def verify(directory: DirectoryArgument, as_json: JsonFlag = False) -> None:
    """Compare every byte of a dataset with what the export wrote; exit code 1 if something is wrong."""
    from resilisim.datasets import verify_dataset

    found = verify_dataset(directory)
    if as_json:
        print_json(found.to_mapping())
    else:
        for problem in found.problems:
            console().print(plain(problem), soft_wrap=True)
        if not found.problems:
            note(f"{found.num_records:,} records in {found.num_shards:,} files, all as they were written")
    if found.problems:
        raise typer.Exit(PROBLEMS_FOUND)


@app.command("show")
def show(
    directory: DirectoryArgument,
    limit: Annotated[
        int, typer.Option("--limit", help="Show this many records; 0 shows all.", min=0, max=MAX_COUNT)
    ] = 1,
    split: Annotated[str | None, typer.Option("--split", help="Only records of train, validation or test.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the first records of a dataset, nested values indented."""
    from resilisim.datasets import read_records

    records = islice(read_records(directory, split), limit or None)
    if as_json:
        print_json(list(records))
        return
    out = console()
    for number, record in enumerate(records, start=1):
        out.print(plain(f"record {number}", "bold"))
        for line in readable_lines(record):
            out.print(plain(line), soft_wrap=True)


def _num_tasks_with_a_flaw(directory: Path) -> int:
    from resilisim.datasets import read_records

    return len({record["instance_id"] for record in read_records(directory) if record["flaw"] is not None})


def readable_lines(value: Any, indent: str = "  ") -> Iterator[str]:
    """Yield the lines in which people read a mapping or a list: names, indented values, texts line by line."""
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for name, item in pairs:
        head = f"{indent}-" if name is None else f"{indent}{name}:"
        if isinstance(item, dict | list) and item:
            yield head
            yield from readable_lines(item, indent + "    ")
        elif isinstance(item, str) and "\n" in item:
            yield head
            yield from (f"{indent}    {line}" for line in item.split("\n"))
        else:
            yield f"{head} {item}" if item is not None else f"{head} -"
