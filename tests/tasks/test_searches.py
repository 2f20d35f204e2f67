"""How many searches show all tools of a task: exact, shipped for the benchmark, by retrieval for everything else."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import MissingExtraError
from resilisim.seeding import Draws
from resilisim.tasks import Task, searches
from resilisim.tasks.benchmark import BENCHMARKS, benchmark_tasks
from resilisim.tasks.searches import Searches, all_searches_needed, fewest_searches, searches_needed, shipped_table
from resilisim.tasks.wording import SEARCH_SIZE, clauses
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.embeddings import DEFAULT_MODEL_PACKAGE
from resilisim.tool_library.retrieval import ToolHit, default_retriever

LIBRARY = default_library()
TASKS = benchmark_tasks()
TOOLS = "abcdef"


@given(st.sets(st.sampled_from(TOOLS), min_size=1), st.lists(st.sets(st.sampled_from(TOOLS + "xyz"), max_size=5)))
def test_the_cover_is_the_smallest_of_all_choices(required: set[str], shown: list[set[str]]) -> None:
    covers = (
        number
        for number in range(len(shown) + 1)
        for chosen in itertools.combinations(shown, number)
        if required <= set().union(*chosen)
    )
    assert fewest_searches(sorted(required), shown) == next(covers, None)


def test_a_greedy_choice_is_not_taken_for_the_smallest() -> None:
    assert fewest_searches("abcdef", ["abcd", "abe", "cdf"]) == 2
    many = [str(number) for number in range(200)]  # far too many for trying all subsets
    assert fewest_searches(many, [many[first : first + 5] for first in range(196)]) == 40


@pytest.mark.parametrize("version", BENCHMARKS)
def test_the_table_is_what_retrieval_says_of_the_benchmark(version: str) -> None:
    """A seeded sample: embedding all clauses takes minutes, for which there is `python -m benchmarks.shipped_data`."""
    table, tasks = shipped_table(version), benchmark_tasks(version)
    assert table["benchmark"] == BENCHMARKS[version]
    assert table["library"] == LIBRARY.content_hash
    assert table["model"].startswith(f"{DEFAULT_MODEL_PACKAGE}==")
    numbers = [int(digit) for digit in table["searches"]]
    assert len(numbers) == len(tasks)
    assert all(1 <= number <= len(task.required_tools) for number, task in zip(numbers, tasks, strict=True))
    draws, retriever = Draws("searches table, sample"), default_retriever(LIBRARY)
    for _ in range(8):
        row = draws.below(len(tasks))
        hits = retriever.search_many(clauses(tasks[row].description), SEARCH_SIZE)
        found = fewest_searches(tasks[row].required_tools, [[hit.name for hit in each] for each in hits])
        assert numbers[row] == found == searches_needed(tasks[row], LIBRARY).fewest


def by_first_letter(queries: Sequence[str], k: int) -> list[list[ToolHit]]:
    return [[ToolHit(name, 1.0) for name in LIBRARY.names if name[0] == query[0].lower()][:k] for query in queries]


def test_a_rewritten_task_another_library_and_another_search_get_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def searched(queries: Sequence[str], k: int) -> list[list[ToolHit]]:
        asked.extend(queries)
        return by_first_letter(queries, k)

    task = next(task for task in TASKS if task.required_tools[0] == "file_operations_reader")
    rewritten = dataclasses.replace(
        task, description="Fetch nothing. File it; do the data.", required_tools=("file_operations_reader",)
    )
    for library in (LIBRARY, ToolLibrary(tuple(LIBRARY)[:12])):
        monkeypatch.setattr(default_retriever(library), "search_many", searched)
    assert searches_needed(task, LIBRARY).fewest is not None
    assert not asked  # the shipped number
    assert searches_needed(rewritten, LIBRARY) == Searches(1)
    assert asked == ["Fetch nothing", "File it", "do the data"]
    assert searches_needed(task, ToolLibrary(tuple(LIBRARY)[:12])).fewest != 0
    assert len(asked) > 3
    two = dataclasses.replace(rewritten, required_tools=("file_operations_reader", "data_processing_parser"))
    assert searches_needed(two, LIBRARY, by_first_letter) == Searches(2)
    none = dataclasses.replace(two, required_tools=("utility_cache",))
    missing = Searches(None, "no clause of the description leads to every required tool")
    assert list(all_searches_needed([rewritten, two, none], LIBRARY, by_first_letter)) == [
        Searches(1),
        Searches(2),
        missing,
    ]


def test_without_retrieval_only_the_benchmark_has_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(queries: Sequence[str], k: int) -> list[list[ToolHit]]:
        raise MissingExtraError("tool search needs 'faiss': pip install -c constraints.txt '.[retrieval]'")

    monkeypatch.setattr(default_retriever(LIBRARY), "search_many", not_installed)
    own = Task.from_mapping({"required_tools": ["file_operations_reader"], "description": "Open the ledger."}, LIBRARY)
    shipped, unknown = all_searches_needed([TASKS[0], own], LIBRARY)
    assert shipped == Searches(int(shipped_table()["searches"][0]))
    assert unknown.fewest is None
    assert "pip install -c constraints.txt '.[retrieval]'" in (unknown.reason or "")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("BENCHMARKS", dict.fromkeys(BENCHMARKS, "another"), "another version"),
        ("SEARCHES_SCHEMA", "another", "damaged"),
    ],
)
def test_a_stale_table_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: object, words: str) -> None:
    monkeypatch.setattr(searches, name, value)
    with pytest.raises(AssertionError, match=words):
        shipped_table()
