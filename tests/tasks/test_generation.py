"""From operations to tools by retrieval, and from tools to tasks."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from resilisim.errors import InvalidInputError, StoreError
from resilisim.seeding import Draws
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.generation import generate_tasks, write_tasks
from resilisim.tasks.matching import (
    NUM_HITS,
    OPERATION_WINDOW,
    UNTYPED_SHARE,
    match_step,
    match_steps,
    nearest_operations,
    operation_texts,
)
from resilisim.tasks.scene import TICKET_MODULUS, TICKET_STEP, draw_scene
from resilisim.tasks.selection import ToolPool, draw_tools
from resilisim.tasks.task import TEMPLATE_OF_TYPE, TEMPLATES, SkeletonStep, sorted_by_dependencies
from resilisim.tasks.wording import solving_clauses
from resilisim.tool_library.library import ToolLibrary, default_library
from resilisim.tool_library.parameters import check_parameters
from resilisim.tool_library.retrieval import ToolRetriever, default_retriever
from resilisim.tool_library.tool import Parameter, ReturnValue, Tool

LIBRARY = default_library()


def weather_library() -> ToolLibrary:
    """A small library with typed and untyped tools, dependencies, and parameters that leave little room."""
    return ToolLibrary(
        [
            Tool(
                "station_reader",
                "Reads measurements of a weather station.",
                (
                    Parameter("station", "string", constraints={"enum": ["north", "south"]}),
                    Parameter("hours", "integer", constraints={"minimum": 1, "maximum": 48}),
                    Parameter("share", "number", constraints={"exclusiveMinimum": 0, "maximum": 1}),
                    Parameter("names", "array", constraints={"items": {"type": "string"}, "minItems": 3}),
                    Parameter("numbers", "array", constraints={"items": {"type": "integer"}, "maxItems": 1}),
                    Parameter("exact", "boolean"),
                    Parameter("kind", "string", constraints={"const": "hourly"}),
                    Parameter("code", "string", constraints={"minLength": 60}),
                    Parameter("short", "string", constraints={"maxLength": 4}),
                    Parameter("extra", "object", required=False),
                ),
            ),
            Tool("cloud_analyzer", "Analyzes cloud cover in sky images.", dependencies=("station_reader",)),
            Tool("storm_predictor", "Predicts storms from pressure curves.", dependencies=("cloud_analyzer",)),
            Tool("rain_aggregator", "Adds up rainfall by river basin.", dependencies=("station_reader",)),
            Tool(
                "forecast_poster",
                "Posts the forecast on the town's website.",
                (Parameter("destination"),),
                (ReturnValue("page", "string"), ReturnValue("visits", "integer")),
                dependencies=("storm_predictor",),
            ),
            Tool("siren", "Sounds the storm siren on the town hall."),
            Tool("balloon_launcher", "Launches a sounding balloon."),
        ]
    )


def test_the_same_arguments_give_the_same_tasks_and_the_benchmark_begins_like_its_beginning() -> None:
    first = [task.to_json() for task in generate_tasks(seed=3, count=30)]
    assert first == [task.to_json() for task in generate_tasks(seed=3, count=30)]
    assert len(set(first)) == 30
    longer = [task.to_json() for task in generate_tasks(seed=0, count=63)]
    assert longer == [task.to_json() for task in benchmark_tasks()[:63]]


def test_other_seeds_give_other_tasks() -> None:
    ids = [{task.instance_id for task in generate_tasks(seed=seed, count=20)} for seed in (0, 1, 2**63 - 1)]
    assert len(set.union(*ids)) == 60


def test_arguments_out_of_range_are_refused_at_once() -> None:
    for seed, count in ((-1, 5), (2**63, 5), (0, 0), (0, -3)):
        with pytest.raises(InvalidInputError):
            generate_tasks(seed=seed, count=count)
    with pytest.raises(InvalidInputError, match="another tool library"):
        generate_tasks(library=weather_library(), retriever=default_retriever(LIBRARY))


def test_tickets_never_meet() -> None:
    """The running number makes any two tasks of a seed differ, a million of them too."""
    assert TICKET_MODULUS > 1_000_000
    numbers = {place * TICKET_STEP % TICKET_MODULUS for place in range(200_000)}
    assert len(numbers) == 200_000
    scenes = [draw_scene(Draws("test", 1), 5, index).ticket for index in (0, TICKET_MODULUS, 2 * TICKET_MODULUS)]
    assert scenes[1] == scenes[0] + "-1"
    assert scenes[2] == scenes[0] + "-2"


@pytest.mark.long
def test_memory_does_not_grow_with_the_count() -> None:
    stream = generate_tasks(seed=9, count=100_000)
    for _ in itertools.islice(stream, 100):  # candidates, vocabulary and caches are in place after this
        pass
    tracemalloc.start()
    try:
        for _ in itertools.islice(stream, 50):
            pass
        before = tracemalloc.get_traced_memory()[0]
        for _ in itertools.islice(stream, 200):
            pass
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000, "200 tasks kept would be more than half a megabyte"


def test_tasks_for_another_library() -> None:
    library = weather_library()
    retriever = default_retriever(library)
    tasks = list(generate_tasks(seed=2, count=60, library=library))
    assert len({task.instance_id for task in tasks}) == 60
    assert len({task.required_tools for task in tasks}) >= 10
    assert set().union(*(task.required_tools for task in tasks)) == set(library.names)
    for task in tasks:
        assert Task.from_mapping(task.to_mapping(), library) == task
        assert sorted_by_dependencies(task.required_tools, library) == task.required_tools
        assert check_parameters(library[task.required_tools[0]], task.inputs, "strict") == []
        returns = {value.name: value.type for value in library[task.required_tools[-1]].returns}
        assert task.expected_outputs
        assert set(task.expected_outputs) <= set(returns)
    for task in tasks[:6]:
        assert solving_clauses(task.description, task.required_tools, retriever) is not None


def test_a_changed_default_library_is_checked_again() -> None:
    """A neighbour that draws searches away: phrasings that no longer lead to the old tool are not used."""
    neighbours = [
        Tool(
            f"data_processing_parser_{place}",
            f"Parses raw text into structured records, fields and rows, kind {place}.",
        )
        for place in range(6)
    ]
    library = ToolLibrary([*LIBRARY, *neighbours])
    retriever = default_retriever(library)
    for task in generate_tasks(seed=0, count=6, library=library):
        assert solving_clauses(task.description, task.required_tools, retriever) is not None


@pytest.mark.parametrize("num_tools", [1, 2, 3])
def test_tiny_libraries_work(num_tools: int) -> None:
    library = ToolLibrary(list(weather_library())[:num_tools])
    for task in generate_tasks(seed=1, count=10, library=library):
        assert 1 <= len(task.required_tools) <= num_tools


def test_a_library_without_words_is_refused() -> None:
    class Blind(ToolRetriever):
        def search_many(self, queries: object, k: int = 5) -> list[list[object]]:
            return [[] for _ in queries]

    library = weather_library()
    with pytest.raises(InvalidInputError, match="retrieval finds no tool"):
        next(generate_tasks(count=1, library=library, retriever=Blind(library)))


def pool(library: ToolLibrary = LIBRARY, **names: str) -> ToolPool:
    """What tools are drawn from, with one candidate for each step that is named."""
    steps = {step.operation: step for template in TEMPLATES for step in template.matched_steps}
    return ToolPool(library, library.names, {steps[operation]: {name: 1.0} for operation, name in names.items()})


def test_fewer_tools_drop_middle_steps() -> None:
    template = TEMPLATE_OF_TYPE["complex_validation_pipeline"]
    tools = {
        "read": "network_fetcher",
        "validate": "network_validator",
        "transform": "file_operations_converter",
        "aggregate": "data_processing_filter",
        "write": "network_poster",
    }
    sizes = Counter()
    for number in range(100):
        chosen = draw_tools(template, Draws("test", number), pool(**tools))
        sizes[len(chosen)] += 1
        operations = [step.operation for step in chosen.values() if step is not None]
        assert list(chosen) == [tools[operation] for operation in operations]
        assert operations == [operation for operation in tools if operation in operations]
        assert {"read", "write"} <= set(operations)
    assert set(sizes) == {4, 5}


def test_a_step_without_a_free_candidate_is_left_out() -> None:
    template = TEMPLATE_OF_TYPE["complex_validation_pipeline"]
    reader = dict.fromkeys((step.operation for step in template.steps), "file_operations_reader")
    for number in range(20):
        chosen = draw_tools(template, Draws("test", number), pool(**reader))
        assert [step.operation for step in chosen.values() if step is not None] == ["read"]


def test_paths_are_as_short_as_the_task_and_join_where_the_graph_allows() -> None:
    """A library whose graph is one long chain, beside tools that depend on nothing."""
    chain = [
        Tool(f"link_{place}", f"Does part {place}.", dependencies=(f"link_{place - 1}",) * (place > 0))
        for place in range(9)
    ]
    library = ToolLibrary([*chain, Tool("alone", "Does nothing else."), Tool("lonely", "Does little else.")])
    template = TEMPLATE_OF_TYPE["advanced_computation_pipeline"]
    for number in range(60):
        for end, expected in (("link_8", 8), ("link_2", None)):
            names = list(draw_tools(template, Draws("test", number), pool(library, compute=end)))
            assert len(names) in template.num_tools
            assert names == [f"link_{place}" for place in range(9) if f"link_{place}" in names], "one path, in order"
            assert expected is None or names[-1] == f"link_{expected}"
    small = ToolLibrary([Tool("one", "Does one thing."), Tool("two", "Does another."), Tool("three", "Does a third.")])
    assert set(draw_tools(template, Draws("test", 0), pool(small, compute="two"))) == {"one", "two", "three"}


def test_written_tasks_are_canonical_lines(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("old", encoding="utf-8")
    tasks = benchmark_tasks()[:5]
    assert write_tasks(path, tasks) == 5
    data = path.read_bytes()
    assert data.endswith(b"}\n")
    assert [json.loads(line) for line in data.splitlines()] == [task.to_mapping() for task in tasks]
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    def broken() -> Iterator[Task]:
        yield benchmark_tasks()[0]
        raise OSError(28, "No space left on device")

    path = tmp_path / "tasks.jsonl"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(StoreError, match="the disk is full"):
        write_tasks(path, broken())
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StoreError, match="cannot be written"):
        write_tasks(tmp_path / "missing" / "tasks.jsonl", [])


RETRIEVER = default_retriever(LIBRARY)
STEPS = {step.operation: step for template in TEMPLATES for step in template.matched_steps}
MARGIN = 2e-3  # scores are rounded to 1e-3: two that differ by more than that cannot change places


def test_read_leads_to_reader_fetcher_and_scanner() -> None:
    """The seed's own example of the mapping (section C.2)."""
    assert set(nearest_operations(STEPS["read"], LIBRARY, RETRIEVER)) == {"reader", "fetcher", "scanner"}
    found = match_step(STEPS["read"], LIBRARY, RETRIEVER)
    assert set(found) == {"file_operations_reader", "network_fetcher", "file_operations_scanner"}


def test_the_obvious_tool_comes_first() -> None:
    first = {step.operation: next(iter(found)) for step, found in match_steps(LIBRARY, RETRIEVER).items()}
    assert first == {
        "read": "file_operations_reader",
        "validate": "data_processing_validator",
        "transform": "data_processing_transformer",
        "aggregate": "data_processing_aggregator",
        "log": "utility_logger",
        "write": "file_operations_writer",
        "fetch": "network_fetcher",
        "parse": "data_processing_parser",
        "post": "network_poster",
        "compute": "computation_calculator",
    }


def test_no_candidate_contradicts_its_step_and_weights_fall() -> None:
    matched = match_steps(LIBRARY, RETRIEVER)
    assert set(matched) == set(STEPS.values())
    for step, found in matched.items():
        assert found == match_step(step, LIBRARY, RETRIEVER)
        assert all(LIBRARY[name].semantic_type in (None, step.semantic_type) for name in found)
        assert all(later < earlier for earlier, later in pairwise(found.values()))
    tools = {name for found in matched.values() for name in found}
    untyped = {name for name in tools if LIBRARY[name].semantic_type is None}
    assert untyped >= {"data_processing_filter", "file_operations_converter", "computation_optimizer"}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_no_rank_that_decides_hangs_on_rounding(step: SkeletonStep) -> None:
    texts = operation_texts(step, LIBRARY)
    rows = RETRIEVER.embed([step.query, *texts.values()])
    by_operation = np.sort(rows[1:] @ rows[0])[::-1]
    kept = by_operation[by_operation >= by_operation[0] - OPERATION_WINDOW]
    assert all(earlier - later > MARGIN for earlier, later in pairwise(kept))
    assert np.abs(by_operation - (by_operation[0] - OPERATION_WINDOW)).min() > MARGIN

    for operation in nearest_operations(step, LIBRARY, RETRIEVER):
        scores = RETRIEVER.similarities([f"{operation}: {step.query}"])[0]
        own = np.sort([scores[LIBRARY.index(tool.name)] for tool in LIBRARY if tool.operation == operation])[::-1]
        assert all(earlier - later > MARGIN for earlier, later in pairwise(own))
        last_hit = np.sort(scores)[::-1][NUM_HITS - 1 : NUM_HITS + 1].mean()
        assert np.abs(own - last_hit).min() > MARGIN

    scores = RETRIEVER.similarities([step.query])[0]
    untyped = np.sort([scores[LIBRARY.index(tool.name)] for tool in LIBRARY if tool.semantic_type is None])[::-1]
    least = UNTYPED_SHARE * scores.max()
    assert np.abs(untyped - least).min() > MARGIN
    assert all(earlier - later > MARGIN for earlier, later in pairwise(untyped[untyped >= least]))


def test_a_library_without_the_role_offers_what_retrieval_finds() -> None:
    oven, soup, writer = (
        Tool("oven_heater", "Heats the oven."),
        Tool("soup_stirrer", "Stirs soup."),
        Tool("file_writer", "Writes a file."),
    )
    for tools, expected in (
        ((oven, soup), {oven.name, soup.name}),
        ((writer, oven), {oven.name}),
        ([writer], {writer.name}),
    ):
        library = ToolLibrary(tools)
        assert set(match_step(STEPS["read"], library, default_retriever(library))) == expected
