"""`resilisim dataset`: write datasets that others train on, check them, and look into them."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from resilisim.bounds import Count, CountOrNone
from resilisim.cli import options
from resilisim.cli.output import answer, command_group, console, note, plain, print_json, resumable, say
from resilisim.datasets import export_dataset, read_records, verify_dataset
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.export import chosen_in_worlds
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.prompt_records import PromptSpec
from resilisim.envs.settings import ENVIRONMENT_GROUP, RULE_NAMES
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.evaluation.run.progress import Progressing
from resilisim.options import options_of
from resilisim.tables.table import Table
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.workflows.prompts import FLAWED, parse_prompt_choice

PROMPTS_PANEL = "Prompts"
PROBLEMS_FOUND = 1  # exit code of `verify`

# What answers searches; the field of this name in a specification says whether the exact optimum searches at all.
ToolSearchOption = Annotated[
    Literal["semantic", "lexical"],
    typer.Option(
        "--search",
        help="How tools are found: semantic (needs the extra retrieval) or lexical.",
        rich_help_panel=ENVIRONMENT_GROUP,
    ),
]
DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The dataset's folder.")]

app = command_group()

DatasetSpec: TypeAlias = PromptSpec | ConversationSpec | PreferenceSpec
KINDS: Mapping[str, Any] = {"prompts": PromptSpec, "conversations": ConversationSpec, "preferences": PreferenceSpec}
ENVIRONMENT = (
    *["planner", "protocol", "tools", "parameters", "prompt_style", "search_detail", "payload", "errors", "salt"],
    *RULE_NAMES,
    *options.LAW_OPTIONS,
    "embedding_model",
)
SOURCES = options.OptionGroup(
    list(KINDS.values()),
    [
        *[
            "types",
            "methods",
            "plan_format",
            "alternatives",
            "semantic_match",
            "templates",
            "seed",
            "flaws",
            "severities",
            "prompts",
            "seeds",
        ],
        *[
            "first_seed",
            "policy",
            "search",
            "pass_parameters",
            "call_arguments",
            "form",
            "explore",
            "plan_margin",
            "rename_tools",
            "min_margin",
        ],
        *ENVIRONMENT,
    ],
    changed={
        "alternatives": {
            "default": None,
            "help": "Name similar tools in each step of a plan.",
            "default_text": "with --kind prompts",
        },
        "semantic_match": {"default": None},
        "explore": {
            "default": None,
            "help": "Share of the steps of the exact optimum that are deliberate mistakes.",
            "default_text": "0.3 for preference pairs, 0 for conversations",
        },
        "seed": {"group": PROMPTS_PANEL},
        "protocol": {"help": "How tools are called."},
        "salt": {
            "default": "",
            "help": "Salt of the draws, different from the one that models are evaluated with.",
            "default_text": "that of training",
        },
    },
)


@app.command("export")
@options.takes(values=SOURCES)
def export(
    *,
    context: typer.Context,
    kind: Annotated[str, typer.Option(help="prompts, conversations or preferences.")],
    out: Annotated[
        Path,
        options.output_option(help="Folder of the dataset; the same command resumes it after the last complete file."),
    ],
    tasks: options.TasksOption = BENCHMARK_VERSION,
    split: options.SplitOption = None,
    file_format: Annotated[
        Literal["jsonl", "parquet"],
        options.output_option("--format", help="JSON Lines, or Parquet (needs the extra `datasets`)."),
    ] = "jsonl",
    workers: options.WorkersOption = 1,
    tasks_per_shard: Annotated[
        Count,
        options.output_option(help="Tasks in each file; an export that is stopped keeps its complete files."),
    ] = 50,
    overwrite: Annotated[
        bool,
        options.output_option(
            "--overwrite", help="Replace another dataset in the folder, and write next to files that no export wrote."
        ),
    ] = False,
    license_name: Annotated[str, options.output_option("--license", help="License named in the card.")] = "apache-2.0",
    tokenizer: Annotated[
        Path | None,
        options.output_option(
            help="Tokenizer of the lengths in the card: a tokenizer.json, its folder, a GGUF file, or none.",
            show_default="that of the SmolLM2 that ships",
        ),
    ] = None,
    values: Mapping[str, Any],
    tool_search: ToolSearchOption = "semantic",
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Write a dataset as a folder that Hugging Face `datasets` loads; the same arguments write the same bytes."""
    # Options are looked up by whether they were given: each kind has its own defaults and its own options.
    options_given = options.given_options(context)
    spec = make_spec(kind, {name: values[name] for name in options_given if name in values}, context, tool_search)
    where = options.scene(context, spec.environment, tasks, split, library, chosen_in_worlds(kind))
    spec, world_tasks = replace(spec, environment=where.environment), where.tasks
    started = time.perf_counter()
    with resumable(), Progressing("writing records of tasks", len(world_tasks)) as progress:
        result = export_dataset(
            spec,
            world_tasks,
            out,
            library=where.library,
            format=file_format,
            tasks_per_shard=tasks_per_shard,
            workers=workers,
            overwrite=overwrite,
            license=license_name,
            tokenizer=tokenizer,
            command=card_command(context, options_given),
            progress=progress.advance,
        )
    if result.num_already_there:
        note(f"{result.num_already_there:,} of {len(result.shards):,} files were already there")
    without_flaw = 0
    if any(parse_prompt_choice(prompt).type == FLAWED for prompt in getattr(spec, "prompts", ())):
        with_flaw = {record["instance_id"] for record in read_records(out) if record["flaw"] is not None}
        without_flaw = len(world_tasks) - len(with_flaw)  # not every plan can carry a flaw
    rows = [
        [name, records, sum(facts.split == name for facts in result.shards)]
        for name, records in result.records_per_split().items()
    ]
    notes = [f"{time.perf_counter() - started:.1f} s; next: resilisim dataset show {out}"]
    if without_flaw:
        reason = "their plans cannot carry the flaw" + (", or no state had a pair" if kind == "preferences" else "")
        notes.insert(
            0, f"{without_flaw:,} of {len(world_tasks):,} tasks have no record under a flawed prompt: {reason}"
        )
    counts = {**result.to_mapping(), "tasks_without_a_flawed_prompt": without_flaw}
    written = Table.of_values(f"{result.num_records:,} records in {out}", ["split", "records", "files"], rows)
    answer(as_json, counts, written, notes=notes)


@app.command("verify")
def verify(directory: DirectoryArgument, as_json: options.JsonFlag = False) -> None:
    """Compare every data file of a dataset with what the export wrote; exit code 1 if something is wrong."""
    verification = verify_dataset(directory)
    if as_json:
        print_json(verification.to_mapping())
    elif not verification.problems:
        note(f"{verification.num_records:,} records in {verification.num_shards:,} files, all as they were written")
    else:
        say(*verification.problems)
    if verification.problems:
        raise typer.Exit(PROBLEMS_FOUND)


@app.command("show")
def show(
    directory: DirectoryArgument,
    limit: Annotated[CountOrNone, typer.Option(help="Show this many records; 0 shows all.")] = 1,
    split: Annotated[str | None, typer.Option(help="Only records of train, validation or test.")] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Print the first records of a dataset, nested values indented."""
    records = islice(read_records(directory, split), limit or None)
    if as_json:
        print_json(list(records))
        return
    for number, record in enumerate(records, start=1):
        console().print(plain(f"record {number}", "bold"))
        say(*readable_lines(record))


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


# What an environment needs in which something is done, and a prompt alone does not depend on.
ONLY_FOR_EPISODES = ("parameters", "search_detail", "payload", "errors", "salt")
# What does not decide the bytes of a dataset.
NOT_IN_THE_CARD = ("out", "workers", "overwrite", "as_json")


def make_spec(kind: str, options_given: Mapping[str, Any], context: typer.Context, tool_search: str) -> DatasetSpec:
    """Return the spec that the options on the command line mean; refuse those that the kind does not take."""
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS, "option --kind")
    own = options_of(KINDS[kind])
    taken = [*own, *(name for name in ENVIRONMENT if kind != "prompts" or name not in ONLY_FOR_EPISODES)]
    for name in options_given:
        if name not in taken:
            others = ", ".join(_option(context, other) for other in SOURCES.options if other in own)
            raise InvalidInputError(
                f"option {_option(context, name)} does nothing for kind {kind!r}: expected one of {others}, "
                "or an option of the environment"
            )
    if kind == "prompts":
        if "flawed" not in options_given.get("types", ("flawed",)) and options_given.keys() & {
            "flaws",
            "severities",
            "methods",
        }:
            raise InvalidInputError(
                "--flaw, --severity and --method need the prompt type flawed: add --prompt-type flawed"
            )
        # The default of the command line is that of the format.
        options_given = {"semantic_match": None, **options_given}
    elif options_given.keys() & {"flaws", "severities"} and "flawed" not in options_given.get("prompts", ()):
        raise InvalidInputError(
            "--flaw and --severity are about the prompt type flawed: add --prompt flawed, or write --prompt "
            "flawed:FLAW:SEVERITY"
        )
    made = options.filled(KINDS[kind](), options_given)
    spec: DatasetSpec = replace(made, environment=replace(made.environment, search=tool_search))
    return spec


def card_command(context: typer.Context, options_given: Mapping[str, Any]) -> str:
    """Return the command for the card: without what does not decide the bytes, and without paths of this machine."""
    words = ["resilisim", "dataset", "export"]
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in options_given or name in NOT_IN_THE_CARD:
            continue
        value = options_given[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            is_path = isinstance(item, Path) or (isinstance(item, str) and os.path.exists(item))
            words += [parameter.opts[0], Path(item).name if is_path else str(item)]
    return shlex.join([*words, "--out", "DIR"])


def _option(context: typer.Context, name: str) -> str:
    return next(str(parameter.opts[0]) for parameter in context.command.params if parameter.name == name)
