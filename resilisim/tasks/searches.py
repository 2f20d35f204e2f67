"""How many searches show every tool that a task needs, for somebody who searches with the clauses of its description.

The number is exact: the smallest set of clauses whose results together hold all required tools (set cover). For the
tasks of the benchmark with the default library and model the numbers ship as a table, so that no model is loaded for
them. The table is found by the description itself: a rewritten task keeps its id, but gets a number of its own.

`python -m benchmarks.shipped_data searches` computes the table anew and compares.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from resilisim.errors import MissingExtraError
from resilisim.provenance import content_hash
from resilisim.tasks.benchmark import BENCHMARK_VERSION, BENCHMARKS, benchmark_tasks, version_of
from resilisim.tasks.task import Task
from resilisim.tasks.wording import SEARCH_SIZE, clauses
from resilisim.tool_library.library import ToolLibrary, default_library
from resilisim.tool_library.retrieval import ToolHit, default_retriever

# Answers many queries at once with at most so many tools each, best first.
SearchMany: TypeAlias = Callable[[Sequence[str], int], Sequence[Sequence[ToolHit]]]

SEARCHES_SCHEMA = "resilisim/searches/v1"
NOT_SHOWN = "-"  # stands in the table for a task whose clauses do not lead to all of its tools
_TASKS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Searches:
    """How many searches show every tool that a task needs.

    Attributes:
        fewest: The smallest number of clauses whose results together hold every required tool; None if that is unknown.
        reason: Why it is unknown; None where it is known.
    """

    fewest: int | None
    reason: str | None = None


def fewest_searches(required_tools: Collection[str], shown: Sequence[Collection[str]]) -> int | None:
    """Return the smallest number of queries whose results together hold all tools, or None if not even all do."""
    bit_of = {name: 1 << place for place, name in enumerate(required_tools)}
    covered = {sum(bit_of[name] for name in set(names) & bit_of.keys()) for names in shown}
    # A query that shows nothing beyond what another one shows is never needed.
    covers = [cover for cover in covered if not any(cover != other and cover | other == other for other in covered)]
    everything = (1 << len(bit_of)) - 1
    of_tool = [[cover for cover in covers if cover & bit] for bit in bit_of.values()]
    if not all(of_tool):
        return None

    most = max((cover.bit_count() for cover in covers), default=0)

    @cache
    def suffice(number: int, missing: int) -> bool:
        if missing.bit_count() > number * most:
            return False
        if not missing:
            return True
        # Some query must show the tool that the fewest show, so only these have to be tried.
        rarest = min((queries for place, queries in enumerate(of_tool) if missing >> place & 1), key=len)
        return any(suffice(number - 1, missing & ~cover) for cover in rarest)

    return next(number for number in itertools.count() if suffice(number, everything))


def searches_needed(task: Task, library: ToolLibrary, search_many: SearchMany | None = None) -> Searches:
    """Return how many searches show every tool of a task, over the clauses of its description.

    Args:
        task: The task.
        library: The tools that are searched.
        search_many: What answers searches; None takes retrieval with the default model, and the shipped table where it
            holds.
    """
    shipped = _shipped_number(task, library) if search_many is None else None
    if shipped is not None:
        return _of(None if shipped == NOT_SHOWN else int(shipped))
    try:
        return _of(_computed(task, search_many or default_retriever(library).search_many))
    except MissingExtraError as error:
        return Searches(None, str(error))


def all_searches_needed(
    tasks: Sequence[Task], library: ToolLibrary, search_many: SearchMany | None = None
) -> Iterator[Searches]:
    """Yield `searches_needed` of each task, searching for many at once, which is faster where texts are new."""
    for first in range(0, len(tasks), _TASKS_AT_ONCE):
        some = tasks[first : first + _TASKS_AT_ONCE]
        new = some if search_many is not None else [task for task in some if _shipped_number(task, library) is None]
        with suppress(MissingExtraError):  # each task will say so
            answer = search_many or default_retriever(library).search_many
            answer([clause for task in new for clause in clauses(task.description)], SEARCH_SIZE)
        yield from (searches_needed(task, library, search_many) for task in some)


def _of(fewest: int | None) -> Searches:
    reason = "no clause of the description leads to every required tool" if fewest is None else None
    return Searches(fewest, reason)


def _computed(task: Task, search_many: SearchMany) -> int | None:
    hits = search_many(clauses(task.description), SEARCH_SIZE)
    return fewest_searches(task.required_tools, [[hit.name for hit in each] for each in hits])


def searches_file(version: str) -> str:
    """Return the place of the table of a version of the benchmark in this package."""
    return f"data/searches-{version}.json"


def shipped_table(version: str = BENCHMARK_VERSION) -> Mapping[str, Any]:
    """Return the table that ships with the package for a version of the benchmark, as JSON values.

    Raises:
        AssertionError: It is damaged, or belongs to another version of the benchmark.
    """
    place = searches_file(version)
    table: dict[str, Any] = json.loads(resources.files("resilisim.tasks").joinpath(place).read_text(encoding="utf-8"))
    if table["schema"] != SEARCHES_SCHEMA or table["sha256"] != content_hash(table["searches"].encode()):
        raise AssertionError(f"{place} is damaged: reinstall the package")
    if table["benchmark"] != BENCHMARKS[version]:
        raise AssertionError(f"{place} belongs to another version of the benchmark: reinstall the package")
    return table


def _shipped_number(task: Task, library: ToolLibrary) -> str | None:
    version = version_of(task.instance_id) if library == default_library() else None
    return None if version is None else _shipped(version).get((task.description, task.required_tools))


@cache
def _shipped(version: str) -> Mapping[tuple[str, tuple[str, ...]], str]:
    numbers: str = shipped_table(version)["searches"]
    tasks = benchmark_tasks(version)
    return {(task.description, task.required_tools): number for task, number in zip(tasks, numbers, strict=True)}
