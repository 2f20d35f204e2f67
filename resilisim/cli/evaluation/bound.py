"""`resilisim bound`: the exact reference values of a task, of any list of tools, or of all tasks by type."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from resilisim.bounds import CountOrNone
from resilisim.cli import options
from resilisim.cli.output import answer, console, note, print_json
from resilisim.envs.settings import GOAL_NAMES, RULE_NAMES, EnvironmentSettings
from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.evaluation.run.progress import Progressing
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator import Problem
from resilisim.simulator.exact import bound as computed_bounds
from resilisim.simulator.exact.references import References, clairvoyant_if_known, solved_references
from resilisim.simulator.law import Law
from resilisim.tables.table import Table
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tasks.searches import SearchMany, all_searches_needed
from resilisim.tasks.sources import read_tasks
from resilisim.tasks.task import TASK_TYPES
from resilisim.tool_library import ToolLibrary

EXPLANATIONS = {
    "optimum": "the best possible success rate of an agent that knows the law (V*)",
    "optimum_after_searches": "the same after the fewest searches, clause by clause, that show the tools",
    "searches_needed": "the number of those searches, one for each clause of the description at most",
    "optimum_gap": "how far V* may lie above that value, which is exact only to within this",
    "plan_following": "the required tools in order, each repeated until it succeeds",
    "plan_following_with_search": "the same, with one search before each tool",
    "clairvoyant": "the best with all draws known in advance",
    "clairvoyant_se": "its standard error",
    "first_call": "what the best agent executes first",
}
GAP = "optimum_gap"
SOLVED = ("optimum", GAP, "plan_following", "plan_following_with_search")
AFTER_SEARCH = ("optimum_after_searches", "searches_needed")
EVERY_TASK = "all"
SEEDS_FOR_ONE = 200
SEEDS_FOR_EACH_OF_ALL = 5  # a mean over more than a thousand lists needs few seeds of each
BLOCK = 64  # problems that are handed to the threads together
THREADS = 2  # the compiled kernels release the interpreter lock, so they run side by side


@options.takes(
    environment=options.OptionGroup(
        EnvironmentSettings, [*RULE_NAMES, *GOAL_NAMES, *options.LAW_OPTIONS, *options.TOOL_SEARCH]
    )
)
def bound(
    *,
    task: Annotated[str | None, typer.Option(help="instance_id of a task, or all.")] = None,
    required: Annotated[
        str | None, typer.Option(metavar="TOOL,TOOL", help="Required tools in order, in place of a task.")
    ] = None,
    environment: EnvironmentSettings,
    clairvoyant_seeds: Annotated[
        CountOrNone | None,
        typer.Option(
            help="Seeds for the clairvoyant reference: 200 for one task, 5 for each list of all; 0 leaves it out.",
        ),
    ] = None,
    tasks: options.TasksOption = BENCHMARK_VERSION,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Solve tasks exactly: what the best agent, or the plan, reaches.

    That is the success rate of the best agent that knows the law, and that of following the plan to the letter.
    """
    if (task is None) == (required is None):
        raise InvalidInputError("bound takes either --task ID (or --task all) or --required a,b,c")
    tool_library = options.load(library)
    law, search_many = environment.failure_model(), environment.search_many(tool_library)
    if task == EVERY_TASK:
        seeds = SEEDS_FOR_EACH_OF_ALL if clairvoyant_seeds is None else clairvoyant_seeds
        _print_means(
            means_by_type(read_tasks(tasks, tool_library), tool_library, environment, seeds, search_many), as_json
        )
        return
    the_task = None if task is None else options.find_task(task, tasks, tool_library)
    named = tuple(filter(None, (name.strip() for name in (required or "").split(","))))
    required_tools = the_task.required_tools if the_task else named
    seeds = SEEDS_FOR_ONE if clairvoyant_seeds is None else clairvoyant_seeds
    with Progressing("seeds of the clairvoyant bound (--clairvoyant-seeds 0 leaves it out)", seeds) as progress:
        values = computed_bounds(
            the_task or required_tools,
            library=tool_library,
            law=law,
            rules=environment.rules(),
            clairvoyant_seeds=seeds,
            search_many=search_many,
            track=progress.track,
            goal=environment.goal_of(required_tools),
        )
    shown = [name for name in EXPLANATIONS if values.get(name) is not None and (name != GAP or values[name])]
    rows = [[name, values[name], EXPLANATIONS[name]] for name in shown]
    notes = [*_no_ceiling(values), *_knowledge(law, values["knowledge"]), *_sampling_noise(values, seeds)]
    found_table = Table.of_values(
        "bounds of " + ", ".join(required_tools), ["reference", "value", "meaning"], rows, digits=6
    )
    answer(as_json, values, found_table, notes=notes)


def _knowledge(law: Law, knowledge: object) -> list[str]:
    """Say what the best agent knows under a law of whose state agents cannot see everything."""
    if not law.has_hidden_state:
        return []
    if knowledge == "observing":
        return ["V* is that of an agent that sees what agents can see (observing)"]
    return ["V* is a bound: that of an agent that also sees what is down or broken (informed)"]


def _sampling_noise(values: Mapping[str, Any], seeds: int) -> list[str]:
    """Say so where the clairvoyant bound came out below V*, which only sampling can do."""
    if values.get("clairvoyant") is None or values["clairvoyant"] >= values["optimum"]:
        return []
    below = f"clairvoyant is estimated from {seeds} seeds and came out below V*, which it cannot be"
    return [f"{below}: it lies between {values['optimum']:.6f} and 1"]


def _no_ceiling(values: Mapping[str, Any]) -> list[str]:
    reason = values.get("no_search_ceiling")
    return [] if reason is None else [f"no optimum_after_searches: {reason}"]


def means_by_type(
    tasks: Sequence[Task],
    library: ToolLibrary,
    environment: EnvironmentSettings,
    clairvoyant_seeds: int,
    search_many: SearchMany | None = None,
) -> list[dict[str, Any]]:
    """Return the mean references of each task type, and of all tasks; each distinct required list is solved once.

    Means are over the tasks that can be solved (the standard error of the clairvoyant one is that of its seeds alone:
    tasks are no sample), and None where none can, or searches count and those of any task are unknown.
    """
    # For each list, how many tasks of each group need how many searches (None: unknown).
    weights: dict[tuple[str, ...], Counter[tuple[str, int | None]]] = defaultdict(Counter)
    reasons: dict[str, str] = {}
    with Progressing("counting searches", len(tasks)) as progress:
        counted = all_searches_needed(tasks, library, search_many)
        for task, searches in zip(tasks, progress.track(counted), strict=True):
            for group in (task.task_type, EVERY_TASK):
                weights[task.required_tools][group, searches.fewest] += 1
                if searches.reason is not None:
                    reasons.setdefault(group, f"{task.instance_id}: {searches.reason}")
    counts: Counter[str] = Counter()
    unsolved: Counter[str] = Counter()
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    variances: dict[str, float] = defaultdict(float)
    unseen: set[str] = set()  # groups with a list whose clairvoyant bound nobody knows
    with Progressing("solving lists of tools", len(weights)) as progress:
        for required, solved, seen, error in progress.track(
            _solve_each(list(weights), library, environment, clairvoyant_seeds)
        ):
            of_group: Counter[str] = Counter()
            for (group, fewest), count in weights[required].items():
                if solved is None:
                    unsolved[group] += count
                    continue
                of_group[group] += count
                values = {name: getattr(solved, name) for name in SOLVED}
                if seen is None:
                    unseen.add(group)
                else:
                    values["clairvoyant"] = seen
                if fewest is not None:
                    values |= dict(zip(AFTER_SEARCH, (solved.after_search[fewest], fewest), strict=True))
                for name, value in values.items():
                    sums[group][name] += count * value
            counts += of_group
            for group, count in of_group.items():
                variances[group] += (count * (error or 0.0)) ** 2
    met = dict.fromkeys(task.task_type for task in tasks)
    names = [*SOLVED, *AFTER_SEARCH, *(["clairvoyant"] if clairvoyant_seeds else [])]
    rows: list[dict[str, Any]] = []
    ordered = sorted(met, key=lambda name: TASK_TYPES.index(name) if name in TASK_TYPES else len(TASK_TYPES))
    for group in [*ordered, EVERY_TASK]:
        count = counts[group]
        means: dict[str, Any] = {name: sums[group][name] / count if count else None for name in names}
        if clairvoyant_seeds:
            means["clairvoyant_se"] = math.sqrt(variances[group]) / count if count else None
        if clairvoyant_seeds and group in unseen:
            means |= {"clairvoyant": None, "clairvoyant_se": None}
        if group in reasons:
            means |= {**dict.fromkeys(AFTER_SEARCH), "no_search_ceiling": reasons[group]}
        rows.append({"task_type": group, "tasks": count + unsolved[group], "unsolved": unsolved[group], **means})
    return rows


def _solve_each(
    lists: Sequence[tuple[str, ...]],
    library: ToolLibrary,
    environment: EnvironmentSettings,
    clairvoyant_seeds: int,
) -> Iterator[tuple[tuple[str, ...], References | None, float | None, float | None]]:
    """Yield each list with its references (None if it is too large) and the clairvoyant one with its standard error."""
    for start in range(0, len(lists), BLOCK):  # somebody who stops the command waits for one block only
        block = lists[start : start + BLOCK]
        problems = [environment.problem(library, required) for required in block]
        with ThreadPoolExecutor(THREADS) as pool:
            for required, problem, solved in zip(block, problems, pool.map(_solved, problems), strict=True):
                seen: float | None = 0.0
                error: float | None = 0.0
                if clairvoyant_seeds and solved is not None:
                    name = ",".join(required)
                    seen, error = clairvoyant_if_known(problem, range(clairvoyant_seeds), EVALUATION_SALT, name)
                yield required, solved, seen, error


def _solved(problem: Problem) -> References | None:
    """Return the solved references of a problem, or None if it is too large to be solved."""
    try:
        return solved_references(problem)
    except ExactLimitError:
        return None


def _print_means(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the means by type; columns that are zero everywhere only in JSON."""
    if rows[-1]["unsolved"]:
        note(
            f"{rows[-1]['unsolved']} of {rows[-1]['tasks']} tasks are too large to be solved; the means leave them out"
        )
    if as_json:
        print_json(rows)
        return
    reasons = _no_ceiling(rows[-1])
    for reason in reasons:
        note(reason)
    columns = [name for name in rows[-1] if name not in ("unsolved", GAP) or any(row[name] for row in rows)]
    columns = [name for name in columns if not reasons or name not in (*AFTER_SEARCH, "no_search_ceiling")]
    heads = [column.replace("_", " ") for column in columns]
    # Spaces instead of underscores let a narrow terminal break the names of types between words.
    cells = [[row["task_type"].replace("_", " "), *[row[column] for column in columns[1:]]] for row in rows]
    console().print(Table.of_values("means by task type", heads, cells))
