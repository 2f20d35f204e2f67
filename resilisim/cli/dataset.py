"""`resilisim dataset`: write datasets that others train on, check them, and look into them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal
import typer
from resilisim.cli.options import ENVIRONMENT_PANEL, OUTPUT_PANEL, BaseOption, EmbeddingModelOption, FailedOption, FailuresOption, HistoryOption, JsonFlag, LibraryOption, LoopOption, NotExecutedOption, PayloadOption, PlannerOption, PromptStyleOption, SearchDetailOption, TurnsOption, command_group, load
from resilisim.cli.output import STOPPED_BY_USER, console, note, plain, print_json, table
from resilisim.cli.progress import Progressing
from resilisim.cli.prompts import FlawOption, ListToolsFlag, MatchOption, MethodOption, PlanFormatOption, SeverityOption, TemplatesOption, TypeOption
from resilisim.cli.tasks import TasksOption
from resilisim.errors import MAX_COUNT, MAX_WORKERS
from resilisim.seeding import MAX_SEED
from resilisim.cli.dataset_kinds import card_command, given_options, make_spec, plays_flawed_prompts
from resilisim.cli.evaluate import chosen_tasks
from resilisim.datasets import ExportInterrupted, export_dataset
from resilisim.datasets import verify_dataset
from resilisim.datasets import read_records
import os
import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from resilisim.cli.prompts import make_spec as make_prompt_spec
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.workflows.prompt_choice import FLAWED, parse_prompt_choice
from resilisim.datasets import SourceSpec
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.prompts import PromptSpec
from resilisim.datasets.conversations import ConversationSpec


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
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            help="What counts the lengths in the card: a tokenizer.json, its folder, a GGUF file, or none.",
            show_default="that of the SmolLM2 that ships",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
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
    call_arguments: Annotated[
        Literal["object", "text"],
        typer.Option(
            "--arguments",
            help="Form of the arguments of native calls; text is JSON text in columns of fixed types.",
            rich_help_panel=EPISODES_PANEL,
        ),
    ] = "object",
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
    prompt_style: PromptStyleOption = "full",
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
                tokenizer=tokenizer,
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


KINDS = ("prompts", "conversations", "preferences")

# Parameter of the command -> field of the specs.
SPEC_FIELDS: Mapping[str, str] = {
    "prompt_type": "types",
    "flaw": "flaws",
    "severity": "severities",
    "method": "methods",
    "seed": "seed",
    "plan_format": "plan_format",
    "alternatives": "alternatives",
    "semantic_match": "semantic_match",
    "templates": "templates",
    "prompt": "prompts",
    "seeds": "seeds",
    "first_seed": "first_seed",
    "policy": "policy",
    "search": "search",
    "pass_parameters": "pass_parameters",
    "call_arguments": "call_arguments",
    "explore": "explore",
    "min_margin": "min_margin",
}
# Parameter of the command -> field of the environment's settings.
ENVIRONMENT_FIELDS: Mapping[str, str] = {
    "success_probability": "base",
    "not_executed": "not_executed",
    "failed": "failed",
    "history": "history",
    "turns": "max_turns",
    "max_consecutive_failures": "max_consecutive_failures",
    "loop_length": "loop_length",
    "planner": "planner",
    "parameters": "parameters",
    "search_detail": "search_detail",
    "payload": "payload",
    "listed": "tools",
    "protocol": "protocol",
    "prompt_style": "prompt_style",
    "salt": "salt",
    "embedding_model": "embedding_model",
}
# What an environment needs in which something is done, and a prompt alone does not depend on.
ONLY_FOR_EPISODES = ("parameters", "search_detail", "payload", "salt")
# What does not decide the bytes of a dataset.
NOT_IN_THE_CARD = ("out", "workers", "overwrite", "as_json")


def given_options(context: typer.Context) -> dict[str, Any]:
    """Return the parameters of a command that stood on the command line, with their values."""
    return {name: value for name, value in context.params.items() if _is_given(context, name)}


def make_spec(kind: str, given: Mapping[str, Any], context: typer.Context) -> SourceSpec:
    """Return the spec that the given options mean.

    Args:
        kind: A name of `KINDS`.
        given: What `given_options` returned.
        context: Knows how options are written.

    Raises:
        InvalidInputError: The kind does not exist or does not take an option, or the spec refuses a value.
    """
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS, "option --kind")
    spec_class = _spec_class(kind)
    own_fields = {field.name for field in fields(spec_class)}
    taken = [name for name, field in SPEC_FIELDS.items() if field in own_fields]
    taken += [name for name in ENVIRONMENT_FIELDS if kind != "prompts" or name not in ONLY_FOR_EPISODES]
    for name in given:
        if name in SPEC_FIELDS.keys() | ENVIRONMENT_FIELDS.keys() and name not in taken:
            others = ", ".join(_option(context, other) for other in taken if other in SPEC_FIELDS)
            raise InvalidInputError(
                f"option {_option(context, name)} does nothing for kind {kind!r}: expected one of {others}, "
                "or an option of the environment"
            )
    environment = replace(spec_class().environment, **_environment_values(given))
    if kind == "prompts":
        return make_prompt_spec(
            given.get("prompt_type"),
            given.get("flaw"),
            given.get("severity"),
            given.get("method"),
            given.get("seed", 0),
            environment,
            given.get("plan_format", "markdown"),
            given.get("alternatives", True),
            given.get("semantic_match"),
            given.get("templates"),
        )
    if given.keys() & {"flaw", "severity"} and "flawed" not in given.get("prompt", ()):
        raise InvalidInputError(
            "--flaw and --severity are about the prompt type flawed: add --prompt flawed, or write --prompt "
            "flawed:FLAW:SEVERITY"
        )
    values = {field: _plain(given[name]) for name, field in SPEC_FIELDS.items() if name in given}
    spec: SourceSpec = spec_class(**values, environment=environment)
    return spec


def plays_flawed_prompts(spec: SourceSpec) -> bool:
    """Tell whether a spec's episodes have flawed prompts, which not every task can have."""
    return any(parse_prompt_choice(prompt).type == FLAWED for prompt in getattr(spec, "prompts", ()))


def card_command(context: typer.Context, given: Mapping[str, Any]) -> str:
    """Return the command for the card: without what does not decide the bytes, and without paths of this machine."""
    words = ["resilisim", "dataset", "export"]
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in given or name in NOT_IN_THE_CARD:
            continue
        value = given[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [parameter.opts[0], Path(item).name if _is_path(item) else str(item)]
    return shlex.join([*words, "--out", "DIR"])


def _spec_class(kind: str) -> Any:
    if kind == "prompts":
        return PromptSpec
    if kind == "conversations":
        return ConversationSpec
    return PreferenceSpec


def _environment_values(given: Mapping[str, Any]) -> dict[str, Any]:
    values = {field: given[name] for name, field in ENVIRONMENT_FIELDS.items() if name in given}
    if "tools" in values:
        values["tools"] = "listed" if values["tools"] else "discovery"
    return values


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_given(context: typer.Context, name: str) -> bool:
    # The source's class is not public in every version of typer, its name is stable.
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _is_path(value: object) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and os.path.exists(value))


def _option(context: typer.Context, name: str) -> str:
    return next(str(parameter.opts[0]) for parameter in context.command.params if parameter.name == name)
