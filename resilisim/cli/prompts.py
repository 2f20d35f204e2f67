"""`resilisim tasks prompts`: make prompts of four types, and look at one with its flaw marked."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from resilisim.bounds import Seed
from resilisim.cli import options
from resilisim.cli.output import answer, command_group, console, plain, print_json, say
from resilisim.datasets.export import write_record_file
from resilisim.datasets.prompt_records import PromptSource, PromptSpec
from resilisim.envs.settings import RULE_NAMES, EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.run.progress import Progressing
from resilisim.seeding import Draws
from resilisim.tables.table import Table
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tasks.sources import read_tasks
from resilisim.workflows.executors import Executor
from resilisim.workflows.flaws import FlawedWorkflow
from resilisim.workflows.plan_value import FLAW_KEYS, PlanCosts, flaw_cost_table

PLANS = (
    "seed",
    "planner",
    "plan_format",
    "protocol",
    "prompt_style",
    "tools",
    "alternatives",
    "semantic_match",
    "templates",
)
CHANGED: dict[str, dict[str, Any]] = {
    "protocol": {"help": "How the prompt says that tools are called."},
    "semantic_match": {"default": None},
}
SeedOption = Annotated[Seed, typer.Option("--seed", help="A different seed makes different flaws.")]

app = command_group()


@app.command("generate")
@options.takes(
    spec=options.OptionGroup(
        PromptSpec,
        ["types", "flaws", "severities", "methods", *PLANS, *RULE_NAMES, *options.LAW_OPTIONS, *options.TOOL_SEARCH],
        changed=CHANGED,
    )
)
def generate(
    *,
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="File to write, .jsonl or .parquet; the same command resumes it.")],
    tasks: options.TasksOption = BENCHMARK_VERSION,
    spec: PromptSpec,
    library: options.LibraryOption = None,
    workers: options.WorkersOption = 1,
    overwrite: Annotated[
        bool, options.output_option("--overwrite", help="Replace a file that holds something else.")
    ] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Write prompts, one record each, with the exact value of the plan; the same arguments write the same bytes.

    Each task gets the three unflawed types and one flawed prompt per flaw type that its plan can carry.
    """
    if "flawed" not in spec.types and options.given_options(context).keys() & {"flaws", "severities", "methods"}:
        raise InvalidInputError("--flaw, --severity and --method need the prompt type flawed: add --prompt-type flawed")
    tool_library = options.load(library)
    read = read_tasks(tasks, tool_library)
    started = time.perf_counter()
    with Progressing("making prompts for tasks", len(read)) as progress:
        result = write_record_file(
            spec, read, out, library=tool_library, workers=workers, overwrite=overwrite, progress=progress.advance
        )
    seconds = time.perf_counter() - started
    refused = result.num_tasks * spec.records_per_task() - result.num_records
    written = {
        "file": str(out),
        "records": result.num_records,
        "records_already_there": result.num_already_there,
        "tasks": result.num_tasks,
        "flaws_not_carried": refused,
        "seconds": seconds,
    }
    there = f", {result.num_already_there:,} of them already there" if result.num_already_there else ""
    notes = [f"{result.num_records:,} prompts for {result.num_tasks:,} tasks in {out}{there} ({seconds:.1f} s)"]
    if refused:
        notes.append(
            f"{refused:,} flawed prompts were not made, because the plan or the library cannot carry the flaw; "
            "resilisim tasks prompts show --task ID --prompt-type flawed --flaw NAME says why"
        )
    answer(as_json, written, notes=notes)


@app.command("show")
@options.takes(spec=options.OptionGroup(PromptSpec, [*PLANS, *options.TOOL_SEARCH], changed=CHANGED))
def show(
    *,
    task: Annotated[str, typer.Option(help="The task's instance_id.")],
    prompt_type: Annotated[
        str, typer.Option("--prompt-type", help="baseline, chain_of_thought, optimal or flawed.")
    ] = "optimal",
    flaw: Annotated[
        str | None,
        typer.Option(help="Flaw type, with --prompt-type flawed.", show_default="one that the plan can carry"),
    ] = None,
    severity: Annotated[str | None, typer.Option(help="light, moderate or severe.")] = None,
    method: Annotated[str | None, typer.Option(help="One of the methods of the flaw.")] = None,
    spec: PromptSpec,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Print a prompt; in a flawed one, what was changed is marked."""
    if prompt_type != "flawed" and (flaw or severity or method):
        raise InvalidInputError("--flaw, --severity and --method go with --prompt-type flawed only")
    spec = replace(
        spec,
        types=(prompt_type,),
        flaws=(flaw,) if flaw else spec.flaws,
        severities=(severity,) if severity else spec.severities,
        methods=(method,) if method else (),
    )
    tool_library = options.load(library)
    the_task = options.find_task(task, tasks, tool_library)
    source = PromptSource(spec, tool_library)
    if prompt_type != "flawed":
        record = next(source.records(the_task))
        print_json(record) if as_json else say(record["text"])
        return
    sound = source.plan(the_task)
    flaws = list(source.flawed_workflows(the_task, sound))  # one, unless it is left open which
    carried = [flawed for flawed in flaws if isinstance(flawed, FlawedWorkflow)]
    if not carried:
        raise InvalidInputError(str(flaws[0]))
    flawed = Draws("resilisim/flaw-to-show", spec.seed, task).choice(carried)
    record, sound = source.flawed_record(the_task, flawed), flawed.original
    if as_json:
        print_json(record)
    else:
        print_flawed(record, source.prompt(the_task, "optimal", sound).text, source.costs(the_task, sound))


@app.command("costs")
@options.takes(environment=options.OptionGroup(EnvironmentSettings, ["planner", "search"]))
def costs(
    *,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    seed: SeedOption = 0,
    executor: Annotated[
        Executor,
        typer.Option(
            help="Who carries out the plan; they differ in what they do with a reference that cannot be resolved."
        ),
    ] = "plan-follower",
    environment: EnvironmentSettings,
    library: options.LibraryOption = None,
    workers: options.WorkersOption = 1,
    as_json: options.JsonFlag = False,
) -> None:
    """Compute what each flaw costs an agent that follows the plan, for every flaw, method, severity and task."""
    tool_library = options.load(library)
    read = read_tasks(tasks, tool_library)
    with Progressing(f"putting {len(FLAW_KEYS)} flaws into each of the plans of tasks", len(read)) as progress:
        rows = flaw_cost_table(
            read,
            library=tool_library,
            seed=seed,
            planner=environment.planner,
            search=environment.search,
            executor=executor,
            workers=workers,
            progress=progress.advance,
        )
    cells = [
        [
            *(row.flaw, row.method, row.severity, row.num_tasks, row.edits),
            f"{row.obey:.3f} ± {row.obey_interval:.3f}",
            f"{row.obey_coverage:.3f} ± {row.coverage_interval:.3f}",
            *(row.deviate, row.price),
        ]
        for row in rows
    ]
    heads = ["flaw", "method", "severity", "tasks", "edits", "obey", "obey_coverage", "deviate", "price"]
    answer(
        as_json,
        [row.to_mapping() for row in rows],
        Table.of_values("what flaws cost: means over tasks, with 95% intervals", heads, cells, digits=3),
        notes=["obey, obey_coverage, deviate: see resilisim tasks prompts generate --help; price: deviate - obey"],
    )


# What stands in the margin of a line, and its colour: the marks say the same where there are no colours.
KEPT, ADDED, REMOVED = " ", "+", "-"
STYLES: Mapping[str, str] = {KEPT: "", ADDED: "green", REMOVED: "red"}

# A step's number says nothing about what was done to it: it changes when a step before it comes or goes.
_NUMBER = re.compile(r'^(\s*)\d+(?:\.(?= Execute )|(?= [^\s(]+\())|(?<=<step number=")\d+(?=")')


def print_flawed(record: Mapping[str, Any], sound_text: str, sound_costs: PlanCosts) -> None:
    """Print a flawed prompt with its edits marked, the list of them, and what following it and the sound plan costs."""
    out = console()
    for mark, line in marked_lines(sound_text, record["text"]):
        out.print(Text(f"{mark} ", STYLES[mark]) + plain(line, STYLES[mark]), soft_wrap=True)
    flaw, costs = record["flaw"], record["costs"]
    out.print(plain(f"{flaw['type']}, {flaw['method']}, {flaw['severity']}", "bold"))
    edits = [_row(edit) for edit in flaw["edits"]]
    out.print(Table.of_values("what was changed", ["step", "was step", "what", "before", "after"], edits))
    rows = [
        ["followed to the letter, full success", sound_costs.obey, costs["obey"]],
        ["followed to the letter, share of required tools in order", sound_costs.obey_coverage, costs["obey_coverage"]],
        ["the best that an agent can do (V*)", sound_costs.deviate, costs["deviate"]],
    ]
    out.print(Table.of_values("what the plan is worth", ["", "sound", "flawed"], rows))
    price, sound_price = costs["deviate"] - costs["obey"], sound_costs.price_of_obedience
    out.print(f"price of obedience (V* - obey): {price:.4f}; of the sound plan: {sound_price:.4f}")


def marked_lines(before: str, after: str) -> Iterator[tuple[str, str]]:
    """Yield every line of a text, and those of another that it lost, each with its mark."""
    old, new = before.split("\n"), after.split("\n")
    old_keys, new_keys = ([_NUMBER.sub(r"\1", line) for line in lines] for lines in (old, new))
    matcher = SequenceMatcher(None, old_keys, new_keys, autojunk=False)
    for change, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if change != "equal":
            yield from ((REMOVED, line) for line in old[old_from:old_to])
        yield from ((KEPT if change == "equal" else ADDED, line) for line in new[new_from:new_to])


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
