"""`resilisim prompts`: make prompts of four types, and look at one with its flaw marked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
import typer
from resilisim.cli.options import ENVIRONMENT_PANEL, OUTPUT_PANEL, BaseOption, EmbeddingModelOption, FailedOption, FailuresOption, HistoryOption, JsonFlag, LibraryOption, LoopOption, NotExecutedOption, PlannerOption, PromptStyleOption, TurnsOption, command_group, load
from resilisim.cli.output import console, note, print_json, table
from resilisim.cli.progress import Progressing
from resilisim.cli.tasks import TasksOption, find_task
from resilisim.errors import MAX_WORKERS
from resilisim.seeding import MAX_SEED
from resilisim.datasets.prompts import PromptSpec
from resilisim.envs.settings import EnvironmentSettings
from resilisim.datasets.record_file import write_record_file
from resilisim.tasks.sources import read_tasks
from resilisim.cli.prompt_view import print_flawed, print_prompt
from resilisim.datasets.prompts import PromptSource
from resilisim.errors import InvalidInputError
from resilisim.seeding import Draws
from resilisim.workflows.flaws import FlawedWorkflow
from resilisim.workflows.plan_value import flaw_cost_table
from resilisim.workflows import PROMPT_TYPES
from resilisim.workflows.flaws import DEFAULT_SEVERITY, FLAW_METHODS, FLAW_TYPES
import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any
from rich.text import Text
from resilisim.cli.output import console, plain, table
from resilisim.workflows.plan_value import PlanCosts


TypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type", help="baseline, chain_of_thought, optimal or flawed; again for more.", show_default="all four"
    ),
]
FlawOption = Annotated[
    list[str] | None,
    typer.Option("--flaw", help="Flaw type of the flawed prompts; again for more.", show_default="all seven"),
]
SeverityOption = Annotated[
    list[str] | None,
    typer.Option("--severity", help="light, moderate or severe; again for more.", show_default="moderate"),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method", help="Method of a flaw, or all; again for more.", show_default="one of two, drawn from the seed"
    ),
]
PlanFormatOption = Annotated[
    Literal["markdown", "xml"],
    typer.Option("--plan-format", help="How plans are written; xml is an <mcp_task>.", rich_help_panel=OUTPUT_PANEL),
]
ProtocolOption = Annotated[
    Literal["text", "native"],
    typer.Option("--protocol", help="How the prompt says that tools are called.", rich_help_panel=ENVIRONMENT_PANEL),
]
TemplatesOption = Annotated[
    Path | None,
    typer.Option(
        "--templates",
        help="Folder of templates that replace packaged ones.",
        file_okay=False,
        rich_help_panel=OUTPUT_PANEL,
    ),
]
AlternativesOption = Annotated[
    bool,
    typer.Option(
        "--alternatives/--no-alternatives", help="Name similar tools with each step.", rich_help_panel=OUTPUT_PANEL
    ),
]
MatchOption = Annotated[
    bool | None,
    typer.Option(
        "--semantic-match/--no-semantic-match",
        help="Say how well each tool fits the task's words (slower the first time).",
        show_default="with --plan-format xml",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
ListToolsFlag = Annotated[
    bool,
    typer.Option("--list-tools", help="Put the names of the tools into the prompt.", rich_help_panel=ENVIRONMENT_PANEL),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Another seed makes other flaws.", min=0, max=MAX_SEED)]

ALL_METHODS = "all"

app = command_group("Make prompts of four types from tasks, and look at them.")


@app.command("generate")
def generate(
    out: Annotated[
        Path, typer.Option("--out", help="File to write, .jsonl or .parquet; the same command goes on in it.")
    ],
    tasks: TasksOption = "benchmark-v1",
    prompt_type: TypeOption = None,
    flaw: FlawOption = None,
    severity: SeverityOption = None,
    method: MethodOption = None,
    seed: SeedOption = 0,
    planner: PlannerOption = "auto",
    plan_format: PlanFormatOption = "markdown",
    protocol: ProtocolOption = "text",
    prompt_style: PromptStyleOption = "full",
    listed: ListToolsFlag = False,
    alternatives: AlternativesOption = True,
    semantic_match: MatchOption = None,
    templates: TemplatesOption = None,
    turns: TurnsOption = 10,
    max_consecutive_failures: FailuresOption = 5,
    loop_length: LoopOption = 4,
    success_probability: BaseOption = 0.8,
    not_executed: NotExecutedOption = 0.5,
    failed: FailedOption = 0.7,
    history: HistoryOption = 0.9,
    embedding_model: EmbeddingModelOption = None,
    library: LibraryOption = None,
    workers: Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=MAX_WORKERS)] = 1,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace a file that holds something else.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write prompts, one record each, with what obeying the plan is worth; the same arguments write the same bytes.

    Each task gets the three unflawed types and one flawed prompt per flaw type that its plan can carry.
    """
    environment = EnvironmentSettings(
        base=success_probability,
        not_executed=not_executed,
        failed=failed,
        history=history,
        max_turns=turns,
        max_consecutive_failures=max_consecutive_failures,
        loop_length=loop_length,
        planner=planner,
        tools="listed" if listed else "discovery",
        protocol=protocol,
        prompt_style=prompt_style,
        embedding_model=embedding_model,
    )
    spec = make_spec(
        prompt_type, flaw, severity, method, seed, environment, plan_format, alternatives, semantic_match, templates
    )
    chosen = load(library)
    found = read_tasks(tasks, chosen)
    started = time.perf_counter()
    with Progressing("making prompts for tasks", len(found)) as progress:
        result = write_record_file(
            spec, found, out, library=chosen, workers=workers, overwrite=overwrite, progress=progress.advance
        )
    seconds = time.perf_counter() - started
    refused = result.num_tasks * spec.records_per_task() - result.num_records
    if as_json:
        print_json(
            {
                "file": str(out),
                "records": result.num_records,
                "records_already_there": result.num_already_there,
                "tasks": result.num_tasks,
                "flaws_not_carried": refused,
                "seconds": seconds,
            }
        )
        return
    there = f", {result.num_already_there:,} of them there already" if result.num_already_there else ""
    note(f"{result.num_records:,} prompts for {result.num_tasks:,} tasks in {out}{there} ({seconds:.1f} s)")
    if refused:
        note(
            f"{refused:,} flawed prompts were not made, because the plan or the library cannot carry the flaw; "
            "resilisim prompts show --task ID --type flawed --flaw NAME says why"
        )


@app.command("show")
def show(
    task: Annotated[str, typer.Option("--task", help="The task's instance_id.")],
    prompt_type: Annotated[
        str, typer.Option("--type", help="baseline, chain_of_thought, optimal or flawed.")
    ] = "optimal",
    flaw: Annotated[
        str | None,
        typer.Option("--flaw", help="Flaw type, with --type flawed.", show_default="one that the plan can carry"),
    ] = None,
    severity: Annotated[str | None, typer.Option("--severity", help="light, moderate or severe.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="One of the two methods of the flaw.")] = None,
    seed: SeedOption = 0,
    planner: PlannerOption = "auto",
    plan_format: PlanFormatOption = "markdown",
    protocol: ProtocolOption = "text",
    prompt_style: PromptStyleOption = "full",
    listed: ListToolsFlag = False,
    alternatives: AlternativesOption = True,
    semantic_match: MatchOption = None,
    templates: TemplatesOption = None,
    embedding_model: EmbeddingModelOption = None,
    tasks: TasksOption = "benchmark-v1",
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a prompt; in a flawed one, what was changed is marked."""
    if prompt_type != "flawed" and (flaw or severity or method):
        raise InvalidInputError("--flaw, --severity and --method go with --type flawed only")
    environment = EnvironmentSettings(
        planner=planner,
        tools="listed" if listed else "discovery",
        protocol=protocol,
        prompt_style=prompt_style,
        embedding_model=embedding_model,
    )
    spec = make_spec(
        [prompt_type],
        [flaw] if flaw else None,
        [severity] if severity else None,
        [method] if method else None,
        seed,
        environment,
        plan_format,
        alternatives,
        semantic_match,
        templates,
    )
    chosen = load(library)
    found = find_task(task, tasks, chosen)
    source = PromptSource(spec, chosen)
    if prompt_type != "flawed":
        record = next(source.records(found))
        print_json(record) if as_json else print_prompt(record)
        return
    sound = source.plan(found)
    flaws = list(source.flawed_workflows(found, sound))  # one, unless it is left open which
    carried = [flawed for flawed in flaws if isinstance(flawed, FlawedWorkflow)]
    if not carried:
        raise InvalidInputError(str(flaws[0]))
    record = source.flawed_record(found, Draws("resilisim/flaw-to-show", seed, task).choice(carried))
    if as_json:
        print_json(record)
    else:
        print_flawed(record, source.text(found, "optimal", sound), source.costs(found, sound))


@app.command("costs")
def costs(
    tasks: TasksOption = "benchmark-v1",
    seed: SeedOption = 0,
    planner: PlannerOption = "auto",
    library: LibraryOption = None,
    workers: Annotated[int, typer.Option("--workers", help="Processes.", min=1, max=MAX_WORKERS)] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Compute what obeying each flaw costs: every flaw, method and severity in the plan of every task."""
    chosen = load(library)
    found = read_tasks(tasks, chosen)
    with Progressing("putting 42 flaws into each of the plans of tasks", len(found)) as progress:
        rows = flaw_cost_table(
            found, library=chosen, seed=seed, planner=planner, workers=workers, progress=progress.advance
        )
    if as_json:
        print_json([row.to_mapping() for row in rows])
        return
    cells = [
        [
            row.flaw,
            row.method,
            row.severity,
            row.num_tasks,
            row.edits,
            f"{row.obey:.3f} ± {row.obey_interval:.3f}",
            f"{row.obey_coverage:.3f} ± {row.coverage_interval:.3f}",
            row.deviate,
            row.price,
        ]
        for row in rows
    ]
    heads = ["flaw", "method", "severity", "tasks", "edits", "obey", "obey_coverage", "deviate", "price"]
    console().print(table("what flaws cost: means over tasks, with 95 % intervals", heads, cells, digits=3))
    note("obey, obey_coverage, deviate: see resilisim prompts generate --help; price: deviate - obey")


def make_spec(
    types: list[str] | None,
    flaws: list[str] | None,
    severities: list[str] | None,
    methods: list[str] | None,
    seed: int,
    environment: EnvironmentSettings,
    plan_format: str,
    alternatives: bool,
    semantic_match: bool | None,
    templates: Path | None,
) -> PromptSpec:
    """Return the spec that options of the command line mean.

    Raises:
        InvalidInputError: A name does not exist, or flaws are named and flawed prompts are not wanted.
    """
    chosen_types = tuple(types or PROMPT_TYPES)
    if "flawed" not in chosen_types and (flaws or severities or methods):
        raise InvalidInputError("--flaw, --severity and --method need the prompt type flawed: add --type flawed")
    chosen_flaws = tuple(flaws or FLAW_TYPES)
    chosen_methods = tuple(methods or ())
    if ALL_METHODS in chosen_methods:
        chosen_methods = tuple(method for flaw in chosen_flaws for method in FLAW_METHODS.get(flaw, ()))
    return PromptSpec(
        types=chosen_types,
        flaws=chosen_flaws,
        severities=tuple(severities or (DEFAULT_SEVERITY,)),
        methods=chosen_methods,
        plan_format=plan_format,
        alternatives=alternatives,
        semantic_match=plan_format == "xml" if semantic_match is None else semantic_match,
        templates=None if templates is None else str(templates),
        seed=seed,
        environment=environment,
    )


# What stands in the margin of a line, and its colour: the marks say the same where there are no colours.
KEPT, ADDED, GONE = " ", "+", "-"
STYLES: Mapping[str, str] = {KEPT: "", ADDED: "green", GONE: "red"}

# A step's number says nothing about what was done to it: it changes when a step before it comes or goes.
_NUMBER = re.compile(r'^(\s*)\d+(?:\.(?= Execute )|(?= [^\s(]+\())|(?<=<step number=")\d+(?=")')


def print_prompt(record: Mapping[str, Any]) -> None:
    """Print the text of a prompt."""
    console().print(plain(record["text"]), soft_wrap=True)


def print_flawed(record: Mapping[str, Any], sound_text: str, sound_costs: PlanCosts) -> None:
    """Print a flawed prompt with its edits marked, a list of the edits, and what obeying costs.

    Args:
        record: The prompt's record.
        sound_text: The prompt with the plan as it was before.
        sound_costs: What obeying that plan is worth.
    """
    out = console()
    for mark, line in marked_lines(sound_text, record["text"]):
        out.print(Text(f"{mark} ", STYLES[mark]) + plain(line, STYLES[mark]), soft_wrap=True)
    flaw, costs = record["flaw"], record["costs"]
    out.print(plain(f"{flaw['type']}, {flaw['method']}, {flaw['severity']}", "bold"))
    out.print(
        table(
            "what was changed", ["step", "was step", "what", "before", "after"], [_row(edit) for edit in flaw["edits"]]
        )
    )
    rows = [
        ["obeyed to the letter, full success", sound_costs.obey, costs["obey"]],
        ["obeyed to the letter, share of required tools in order", sound_costs.obey_coverage, costs["obey_coverage"]],
        ["the best that an agent can do (V*)", sound_costs.deviate, costs["deviate"]],
    ]
    out.print(table("what the plan is worth", ["", "sound", "flawed"], rows))
    price, sound_price = costs["deviate"] - costs["obey"], sound_costs.price_of_obedience
    out.print(f"price of obedience (V* - obeyed): {price:.4f}; of the sound plan: {sound_price:.4f}")


def marked_lines(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield every line of a text, and those of another that it lost, each with its mark."""
    old, new = before.split("\n"), after.split("\n")
    matcher = SequenceMatcher(None, [_key(line) for line in old], [_key(line) for line in new], autojunk=False)
    for _, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        same = [_key(line) for line in old[old_from:old_to]] == [_key(line) for line in new[new_from:new_to]]
        if not same:
            yield from ((GONE, line) for line in old[old_from:old_to])
        yield from ((KEPT if same else ADDED, line) for line in new[new_from:new_to])


def _key(line: str) -> str:
    return _NUMBER.sub(r"\1", line)


def _row(edit: Mapping[str, Any]) -> list[str]:
    where, what = edit["where"], edit["what"].replace("_", " ")
    parameter = where["parameter"]
    return [
        str(where["step"]),
        str(where["original_step"] or "-"),
        f"{what}: {parameter}" if parameter else what,
        edit["before"] or "-",
        edit["after"] or "-",
    ]
