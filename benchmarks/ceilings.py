"""What the benchmark's tasks require, and the best that anybody can do on them: writes a page.

    python -m benchmarks.ceilings docs/results/ceilings.md

Ceilings are solved, not sampled: no figure has luck in it. The shares of the shipped policies are computed as by `train
evaluate`; that takes most of the minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.trained import measure_policy
from resilisim.reporting.groups import BY_TASK_TYPE
from resilisim.reporting.page import packaged_file
from resilisim.simulator import build_problem
from resilisim.simulator.exact.references import References, solve_all
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARKS, benchmark_tasks
from resilisim.tasks.composition import task_statistics
from resilisim.tasks.searches import searches_needed
from resilisim.tasks.split import split_of
from resilisim.tasks.task import TASK_TYPES
from resilisim.tool_library import default_library

VERSION, BEFORE = BENCHMARKS
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of V*; the last one counts to the part below it
POLICIES = ("default", "benchmark")
COLUMNS = ("type", "tasks", "tools", "V\\*", "lowest", "median", "highest", "in order", "after searches")
HARD = "advanced_computation_pipeline"

TEMPLATE = """\
# {version}: what its tasks require, and their ceilings

V\\* is the best possible rate of full success of an agent that knows the law and the required tools. Everything
except the shares of trained policies follows from the tasks alone, in the default environment
(10 turns). Nothing is sampled.

```sh
python -m benchmarks.ceilings docs/results/ceilings.md      # some minutes; needs the extra train
resilisim tasks stats
resilisim bound --task all --clairvoyant-seeds 0
```

{ceilings}

*In order*: each required tool repeated until it succeeds, and nothing else. *After searches*: what remains of V\\*
after the fewest searches, by clauses of the text, that show every tool.

## How V\\* is distributed

Percent of the tasks.

{distribution}

## Published rates of the hard type

{published}

## Tools

Tasks that require each tool: at least {least}, at most {most:,}.

{tools}

## Trained policies

`policy:default` was trained on random libraries and tasks of {version}, `policy:benchmark` on those of {before}.
Here they play the test split of {version} step by step, and success is computed, not sampled (`resilisim train
evaluate NAME`, about a minute of one core each):

{policies}
"""


def main(arguments: Sequence[str]) -> int:
    """Write the page."""
    (path,) = arguments
    Path(path).write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """Return the page: ceilings by type, their distribution, tools, published rates, trained policies."""
    solved = {version: _references(benchmark_tasks(version)) for version in BENCHMARKS}
    tasks = benchmark_tasks(VERSION)
    groups = {name: [task for task in tasks if task.task_type == name] for name in TASK_TYPES}
    groups |= {"all": list(tasks), "all of the test split": _held_out()}
    counts = task_statistics(tasks)["by_tool"]
    ranges = [f"{low:.1f} to {high:.1f}" for low, high in pairwise(EDGES)]
    return TEMPLATE.format(
        version=VERSION,
        before=BEFORE,
        ceilings=_table(COLUMNS, (_row(name, some, solved[VERSION]) for name, some in groups.items())),
        distribution=_table(("type", *ranges), (_shares(name, some, solved[VERSION]) for name, some in groups.items())),
        published=_published({version: _mean_of_hard(version, solved[version]) for version in BENCHMARKS}),
        least=min(counts.values()),
        most=max(counts.values()),
        tools=_table(("tool", "tasks") * 3, _in_columns(counts, 3)),
        policies=_table(
            ("policy", "tasks", "V\\*", "success", "share of V\\*", "95% over tasks"), map(_policy, POLICIES)
        ),
    )


def _held_out() -> list[Task]:
    return [task for task in benchmark_tasks(VERSION) if split_of(task.required_tools) == "test"]


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
    shown = [f"{figure:.4f}" for figure in (*figures, *more)]
    return [_code(name), f"{len(tasks):,}", f"{min(sizes)} to {max(sizes)}", *shown]


def _shares(name: str, tasks: Sequence[Task], references: Mapping[tuple[str, ...], References]) -> list[str]:
    counts, _ = np.histogram([references[task.required_tools].optimum for task in tasks], EDGES)
    return [_code(name), *(f"{100 * count / len(tasks):.1f}" for count in counts)]


def _mean_of_hard(version: str, references: Mapping[tuple[str, ...], References]) -> float:
    own = [task for task in benchmark_tasks(version) if task.task_type == HARD]
    return float(np.mean([references[task.required_tools].optimum for task in own]))


def _published(ceilings: Mapping[str, float]) -> str:
    figures = json.loads(packaged_file("published.json"))[str(BY_TASK_TYPE)]["of_types"][HARD]
    least, most = min(figures.values()), max(figures.values())
    now, then = (
        f"{100 * ceilings[name]:.1f}% on {name}, {'above' if most < 100 * ceilings[name] else 'below'}"
        for name in (VERSION, BEFORE)
    )
    return (
        f"ResiliBench prints {least} to {most}% for {', '.join(figures)} on its\n"
        f"complex computation pipelines. V\\* of this type is {now}\n"
        f"them, and {then} them. A rate above V\\* is no contradiction: the\n"
        "paper's tasks, scorer, turns and retries are its own, and it does not say by which law its tools failed.\n"
        "Where a published rate is above the ceiling of a run's own tasks, its report says so beside the table."
    )


def _policy(name: str) -> list[str]:
    found: dict[str, Any] = measure_policy(name, _held_out(), None, default_library(), Progressing)
    low, high = found["ratio_interval"]
    figures = [f"{found[key]:.4f}" for key in ("optimum", "success", "ratio")]
    return [f"`policy:{name}`", str(found["tasks"]), *figures, f"{low:.4f} to {high:.4f}"]


def _in_columns(counts: Mapping[str, int], number: int) -> list[list[str]]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    height = -(-len(ordered) // number)
    return [
        [text for name, count in ordered[row::height] for text in (f"`{name}`", f"{count:,}")] for row in range(height)
    ]


def _code(name: str) -> str:
    return f"`{name}`" if name in TASK_TYPES else name


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
