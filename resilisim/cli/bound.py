"""`resilisim bound`: the exact reference values of a task, of any list of tools, or of all tasks by type."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilisim.cli.options import BaseOption, FailuresOption, JsonFlag, LibraryOption, TurnsOption, law_and_rules, load
from resilisim.cli.output import console, print_json, progress_bar, table
from resilisim.cli.tasks import TasksOption, find_task
from resilisim.errors import InvalidInputError

if TYPE_CHECKING:
    from resilisim.simulator.law import BenchmarkLaw
    from resilisim.simulator.rules import EndRules
    from resilisim.tasks import Task
    from resilisim.tool_library import ToolLibrary

EXPLANATIONS = {
    "known_probabilities": "the best possible success rate of an agent that knows the law (V*)",
    "plan_following": "the required tools in order, each again until it succeeds",
    "plan_following_with_search": "the same, with one search before each tool",
    "clairvoyant": "the best with all luck known beforehand",
    "clairvoyant_se": "its standard error",
    "first_call": "what the best agent executes first",
}
CLAIRVOYANT = "clairvoyant"
MEANS = ("known_probabilities", "plan_following", "plan_following_with_search", CLAIRVOYANT)
EVERY_TASK = "all"
BLOCK = 64  # problems solved between two steps of the progress bar


def bound(
    task: Annotated[str | None, typer.Option("--task", help="instance_id of a task, or all.")] = None,
    tools: Annotated[
        str | None, typer.Option("--tools", help="Required tools in order, with commas between them.")
    ] = None,
    turns: TurnsOption = 10,
    max_consecutive_failures: FailuresOption = 5,
    clairvoyant_seeds: Annotated[
        int, typer.Option("--clairvoyant-seeds", help="Seeds for the clairvoyant reference; 0 leaves it out.", min=0)
    ] = 200,
    success_probability: BaseOption = 0.8,
    tasks: TasksOption = "benchmark-v1",
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Solve a task exactly: how often can the best agent succeed, and how often does plainly following the plan."""
    if (task is None) == (tools is None):
        raise InvalidInputError("bound takes either --task ID (or --task all) or --tools a,b,c")
    chosen = load(library)
    law, rules = law_and_rules(success_probability, turns, max_consecutive_failures)
    if task == EVERY_TASK:
        from resilisim.tasks.sources import read_tasks

        _print_means(means_by_type(read_tasks(tasks, chosen), chosen, law, rules, clairvoyant_seeds), as_json)
        return
    from resilisim.simulator.exact import references

    if tools is not None:
        required = tuple(name.strip() for name in tools.split(",") if name.strip())
        instance_id = None
    else:
        found = find_task(str(task), tasks, chosen)
        required, instance_id = found.required_tools, found.instance_id
    values = references(
        required,
        library=chosen,
        law=law,
        rules=rules,
        clairvoyant_seeds=clairvoyant_seeds,
        instance_id=instance_id,
    )
    if as_json:
        print_json(values)
        return
    rows = [[name, values[name], meaning] for name, meaning in EXPLANATIONS.items() if name in values]
    console().print(table("bounds of " + ", ".join(required), ["reference", "value", "meaning"], rows, digits=6))


def means_by_type(
    tasks: Sequence[Task], library: ToolLibrary, law: BenchmarkLaw, rules: EndRules, clairvoyant_seeds: int
) -> list[dict[str, Any]]:
    """Return the mean references of each task type, and of all tasks; each distinct required list is solved once."""
    weights: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for task in tasks:
        weights[task.required_tools][task.task_type] += 1
    counts: Counter[str] = Counter()
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    with progress_bar() as progress:
        for required, values in progress.track(
            _solve_each(list(weights), library, law, rules, clairvoyant_seeds),
            total=len(weights),
            description="solving",
        ):
            for task_type, count in weights[required].items():
                for group in (task_type, EVERY_TASK):
                    counts[group] += count
                    for name, value in values.items():
                        sums[group][name] += count * value
    order = [*dict.fromkeys(task.task_type for task in tasks), EVERY_TASK]
    return [
        {
            "task_type": group,
            "tasks": counts[group],
            **{name: sums[group][name] / counts[group] for name in MEANS if name in sums[group]},
        }
        for group in order
    ]


def _solve_each(
    lists: Sequence[tuple[str, ...]], library: ToolLibrary, law: BenchmarkLaw, rules: EndRules, clairvoyant_seeds: int
) -> Iterator[tuple[tuple[str, ...], dict[str, float]]]:
    """Yield each required list with its references, solved a block at a time so that progress can be shown."""
    from resilisim.simulator.exact import references, solve_all
    from resilisim.simulator.problem import build_problem

    for start in range(0, len(lists), BLOCK):
        block = lists[start : start + BLOCK]
        problems = [build_problem(library, required, law, rules) for required in block]
        solved = solve_all(problems)
        for required, problem in zip(block, problems, strict=True):
            values = {name: getattr(solved[problem], name) for name in MEANS if name != CLAIRVOYANT}
            if clairvoyant_seeds:
                luck = references(required, library=library, law=law, rules=rules, clairvoyant_seeds=clairvoyant_seeds)
                values[CLAIRVOYANT] = float(luck[CLAIRVOYANT])
            yield required, values


def _print_means(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the means by type."""
    if as_json:
        print_json(rows)
        return
    columns = list(rows[-1])
    heads = [column.replace("_", " ") for column in columns]
    console().print(table("means by task type", heads, [[row[column] for column in columns] for row in rows]))
