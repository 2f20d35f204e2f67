"""What the benchmark's tasks require, and the best that anybody can do on them: writes a page.

    python -m benchmarks.ceilings docs/results/ceilings.md

Ceilings are solved, not sampled: no figure has luck in it. The shares of the shipped policies are computed as by `train
evaluate`; that takes most of the minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.trained import measure_policy
from resilisim.reporting.page import packaged_file
from resilisim.simulator import build_problem
from resilisim.simulator.exact.references import References, solve_all
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARKS, benchmark_tasks
from resilisim.tasks.composition import task_statistics
from resilisim.tasks.searches import searches_needed
from resilisim.tasks.task import TASK_TYPES, split_of
from resilisim.tool_library import default_library

VERSION, BEFORE = BENCHMARKS
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of V*; the last one counts to the part below it
POLICIES = ("default", "benchmark")
HARD = "advanced_computation_pipeline"


def main(arguments: Sequence[str]) -> int:
    """Write the page."""
    (path,) = arguments
    Path(path).write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """Return the page: ceilings by type, their distribution, tools, published rates, trained policies."""
    solved = {version: _references(benchmark_tasks(version)) for version in BENCHMARKS}
    tasks, references = benchmark_tasks(VERSION), solved[VERSION]
    by_type = {name: [task for task in tasks if task.task_type == name] for name in TASK_TYPES}
    held_out = [task for task in tasks if split_of(task.required_tools) == "test"]
    groups = {**by_type, "all": list(tasks), "all of the test split": held_out}
    counts = task_statistics(tasks)["by_tool"]
    before = [task for task in benchmark_tasks(BEFORE) if task.task_type == HARD]
    return "\n".join(
        [
            f"# {VERSION}: what its tasks require, and their ceilings",
            "",
            "V\\* is the best possible rate of full success of an agent that knows the law and the required tools. Everything here "
            "but the share",
            "of trained policies follows from the tasks alone, in the default environment (10 turns); nothing is drawn.",
            "",
            "```sh",
            "python -m benchmarks.ceilings docs/results/ceilings.md      # some minutes; needs the extra train",
            "resilisim tasks stats",
            "resilisim bound --task all --clairvoyant-seeds 0",
            "```",
            "",
            *_table(
                ("type", "tasks", "tools", "V\\*", "lowest", "median", "highest", "only the list, in order", "after searches"),
                (_row(name, some, references) for name, some in groups.items()),
            ),
            "",
            "*Only the list, in order*: each required tool again until it succeeds, and nothing else. *After searches*: what is left of "
            "V\\* after",
            "the fewest searches by clauses of the text that show every tool.",
            "",
            "## How V\\* is distributed",
            "",
            "Percent of the tasks of each type.",
            "",
            *_table(
                ("type", *(f"{low:.1f} to {high:.1f}" for low, high in zip(EDGES, EDGES[1:], strict=False))),
                (_distribution(name, some, references) for name, some in groups.items()),
            ),
            "",
            "## Published rates of the hard type",
            "",
            *_published(solved, by_type[HARD], before),
            "",
            "## Tools",
            "",
            f"Tasks that require each tool; at least {min(counts.values())}, at most {max(counts.values()):,}.",
            "",
            *_table(("tool", "tasks", "tool", "tasks", "tool", "tasks"), _in_columns(counts, 3)),
            "",
            "## Policies that were trained on the version before",
            "",
            f"`policy:default` and `policy:benchmark` were trained on {BEFORE}. On the test split of {VERSION} "
            "(`resilisim train evaluate NAME`), acting",
            "step by step, success computed and not sampled:",
            "",
            *_table(("policy", "tasks", "V\\*", "success", "share of V\\*", "95 % over tasks"), map(_policy, POLICIES)),
            "",
        ]
    )


def _references(tasks: Iterable[Task]) -> Mapping[tuple[str, ...], References]:
    library = default_library()
    lists = list(dict.fromkeys(task.required_tools for task in tasks))
    problems = {names: build_problem(library, names) for names in lists}
    solved = solve_all(problems.values())
    return {names: solved[problem] for names, problem in problems.items()}


def _row(name: str, tasks: Sequence[Task], references: Mapping[tuple[str, ...], References]) -> list[str]:
    own = [references[task.required_tools] for task in tasks]
    optima = np.array([entry.optimum for entry in own])
    after = [
        entry.after_search[searches]
        for task, entry in zip(tasks, own, strict=True)
        if (searches := searches_needed(task, default_library()).fewest) is not None
    ]
    sizes = {len(task.required_tools) for task in tasks}
    figures = (optima.mean(), optima.min(), np.median(optima), optima.max())
    more = (np.mean([entry.plan_following for entry in own]), np.mean(after))
    return [_code(name), f"{len(tasks):,}", f"{min(sizes)} to {max(sizes)}", *(f"{figure:.4f}" for figure in (*figures, *more))]


def _distribution(name: str, tasks: Sequence[Task], references: Mapping[tuple[str, ...], References]) -> list[str]:
    counts, _ = np.histogram([references[task.required_tools].optimum for task in tasks], EDGES)
    return [_code(name), *(f"{100 * count / len(tasks):.1f}" for count in counts)]


def _published(
    solved: Mapping[str, Mapping[tuple[str, ...], References]], tasks: Sequence[Task], before: Sequence[Task]
) -> list[str]:
    figures = json.loads(packaged_file("published.json"))["13"]["by_type"][HARD]
    ceilings = {
        version: float(np.mean([solved[version][task.required_tools].optimum for task in some]))
        for version, some in ((VERSION, tasks), (BEFORE, before))
    }
    where = "below" if min(figures.values()) > 100 * ceilings[VERSION] else "not below"
    return [
        f"ResiliBench prints {min(figures.values())} to {max(figures.values())} % for {', '.join(figures)} on complex "
        "computation pipelines. V\\* of this type is",
        f"{100 * ceilings[VERSION]:.1f} % on {VERSION}, {where} them, and {100 * ceilings[BEFORE]:.1f} % on {BEFORE}. The two are not "
        "of the same thing: the paper's tasks, its",
        "scorer and its numbers of turns and retries are its own, and what it says of them does not tell the law that its tools failed by. "
        "Reports say it",
        "beside the published table, with the ceiling of the run's own tasks.",
    ]


def _policy(name: str) -> list[str]:
    held_out = [task for task in benchmark_tasks(VERSION) if split_of(task.required_tools) == "test"]
    found: dict[str, Any] = measure_policy(name, held_out, None, default_library(), Progressing)
    low, high = found["ratio_interval"]
    return [
        f"`policy:{name}`",
        str(found["tasks"]),
        f"{found['optimum']:.4f}",
        f"{found['success']:.4f}",
        f"{found['ratio']:.4f}",
        f"{low:.4f} to {high:.4f}",
    ]


def _in_columns(counts: Mapping[str, int], number: int) -> list[list[str]]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    height = -(-len(ordered) // number)
    return [
        [text for name, count in ordered[row::height] for text in (f"`{name}`", f"{count:,}")] for row in range(height)
    ]


def _code(name: str) -> str:
    return f"`{name}`" if name in TASK_TYPES else name


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
