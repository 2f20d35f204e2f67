"""How well tools are found by meaning (the default) and by words: `python -m benchmarks.searches` prints the table.

What is searched are the clauses of the 5,040 work orders, which were written so that search by meaning finds the tools,
and the clauses that people wrote for the tests of the tool library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import REPOSITORY
from resilisim.envs.settings import Search
from resilisim.evaluation import evaluate
from resilisim.simulator.exact import solve_all
from resilisim.simulator.problem import build_problem
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.model import split_of
from resilisim.tasks.searches import all_searches_needed
from resilisim.tasks.wording import SEARCH_SIZE, clauses
from resilisim.tool_library import Retriever, default_library, default_retriever

LIBRARY = default_library()
HAND_WRITTEN = REPOSITORY / "tests" / "tool_library" / "clauses.json"
NUM_SEEDS = 4
SEARCHES: tuple[Search, ...] = get_args(Search)

Cell = tuple[str, str]


def main() -> None:
    """Print a table with a column for each search."""
    tasks = benchmark_tasks()
    columns = [[*found_tools(default_retriever(LIBRARY, search), tasks), *played(search, tasks)] for search in SEARCHES]
    rows = [[cells[0][0], *(value for _, value in cells)] for cells in zip(*columns, strict=True)]
    for cells in (["", *SEARCHES], ["---", *("---:" for _ in SEARCHES)], *rows):
        print("| " + " | ".join(cells) + " |")


def found_tools(retriever: Retriever, tasks: Sequence[Task]) -> Iterator[Cell]:
    """Yield how near to the top the right tools come, and what that makes of the ceilings of the tasks."""
    texts = [clauses(task.description) for task in tasks]
    every = list(dict.fromkeys(text for some in texts for text in some))
    row_of = {text: row for row, text in enumerate(every)}
    ranks = tool_ranks(retriever, every)
    # The rank of each required tool under the clause of its task that finds it best.
    best = np.array(
        [
            ranks[[row_of[text] for text in some], LIBRARY.index(name)].min()
            for task, some in zip(tasks, texts, strict=True)
            for name in task.required_tools
        ]
    )
    yield f"required tools ({len(best):,}): first under some clause of the work order", percent((best == 0).mean())
    yield f"among the first {SEARCH_SIZE}, as one search shows them", percent((best < SEARCH_SIZE).mean())
    yield "mean reciprocal rank", f"{(1.0 / (1.0 + best)).mean():.4f}"

    searches = list(all_searches_needed(tasks, LIBRARY, retriever.search_many))
    known = [(task, found.fewest) for task, found in zip(tasks, searches, strict=True) if found.fewest is not None]
    solved = solve_all([build_problem(LIBRARY, task.required_tools) for task, _ in known])
    ceilings = [solved[build_problem(LIBRARY, task.required_tools)].after_search[fewest] for task, fewest in known]
    yield f"tasks ({len(tasks):,}) whose clauses show every required tool", percent(len(known) / len(tasks))
    yield "searches needed there, mean", f"{np.mean([fewest for _, fewest in known]):.3f}"
    yield "V* after them (`optimum_after_searches`), mean", f"{np.mean(ceilings):.4f}"

    written = json.loads(HAND_WRITTEN.read_text(encoding="utf-8"))
    pairs = [(text, name) for name, some in written.items() for text in some]
    ranked = tool_ranks(retriever, [text for text, _ in pairs])
    own = np.array([row[LIBRARY.index(name)] for row, (_, name) in zip(ranked, pairs, strict=True)])
    yield f"clauses written by hand ({len(pairs)}): their tool first", percent((own == 0).mean())
    yield f"their tool among the first {SEARCH_SIZE}", percent((own < SEARCH_SIZE).mean())


def tool_ranks(retriever: Retriever, queries: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of every tool in the answer to each query, from 0; (num_queries, num_tools)."""
    places = [[LIBRARY.index(hit.name) for hit in hits] for hits in retriever.search_many(queries, len(LIBRARY))]
    return np.argsort(np.array(places), axis=1)


def played(search: Search, tasks: Sequence[Task]) -> Iterator[Cell]:
    """Yield how often the plan follower succeeds that has to search for its tools, on the test split."""
    held_out = [task for task in tasks if split_of(task.required_tools) == "test"]
    found = evaluate("plan-follower", held_out, "baseline", NUM_SEEDS, search=search, workers=2, progress=False)
    row = found.rows[0]
    success, adjusted = row.success, row.luck_adjusted
    name = f"plan-follower, prompt baseline, {len(held_out)} tasks of the test split, {NUM_SEEDS} seeds"
    yield f"{name}: success", interval(success.value, success.to_mapping())
    yield "luck-adjusted", interval(adjusted.value, adjusted.to_mapping())


def percent(share: float) -> str:
    """Return a share as the table shows it."""
    return f"{100.0 * share:.2f} %"


def interval(value: float, bounds: dict[str, float | None]) -> str:
    """Return an estimate with its 95 % interval."""
    return f"{value:.4f} [{bounds['low']:.4f}, {bounds['high']:.4f}]"


if __name__ == "__main__":
    main()
