"""The static context of Workflow-v0: shapes, values, and that it says something about the required tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from resilisim.envs.workflow.context import (
    CANDIDATES_OVERALL,
    CANDIDATES_PER_TYPE,
    TASK_FEATURES,
    TaskContext,
    build_context,
)
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import ToolLibrary, default_library
from tests.simulator.brute_force import libraries

LIBRARY = default_library()
TASKS = benchmark_tasks()
CONTEXT = build_context(LIBRARY, TASKS)
REQUIRED = np.array([[name in task.required_tools for name in LIBRARY.names] for task in TASKS])
CLOSURE = np.array([np.isin(LIBRARY.names, LIBRARY.closure(task.required_tools)) for task in TASKS])
THRESHOLD = 0.3


def feature(name: str, context: TaskContext = CONTEXT) -> NDArray[np.uint8]:
    return context.features[:, TASK_FEATURES.index(name)]


def test_features_of_one_task() -> None:
    task = Task.from_mapping(
        {
            "required_tools": ["file_operations_reader"],
            "task_type": "complex_network_integration",
            "complexity": "medium",
            "description": "One two three; four five.\nSix " + "word " * 34,
            "inputs": {"a": 1, "b": 2},
            "expected_outputs": {str(number): 0 for number in range(9)},
        },
        LIBRARY,
    )
    scores = [0.0] * 30
    scores[LIBRARY.index("file_operations_reader")] = 0.6
    scores[LIBRARY.index("network_fetcher")] = 0.2
    scores[LIBRARY.index("data_processing_parser")] = -0.4
    scores[LIBRARY.index("data_processing_filter")] = 0.8
    context = build_context(LIBRARY, [task], lambda description, names: scores)
    shown = dict(zip(TASK_FEATURES, context.features[0].tolist(), strict=True))
    assert {name for name, value in shown.items() if value == 255} == {
        "type_complex_network_integration",
        "complexity_medium",
        "expected_outputs",  # nine of eight are clipped
    }
    assert shown["inputs"] == round(255 * 2 / 8)
    assert shown["words"] == round(255 * 40 / 200)
    assert shown["clauses"] == round(255 * 3 / 20)
    assert shown["best_of_sources"] == round(255 * 0.6)
    assert shown["best_of_processors"] == shown["best_of_outputs"] == 0
    assert shown["best"] == round(255 * 0.8)
    assert shown["mean_of_highest"] == round(255 * 1.6 / 5)
    assert shown["best_minus_median"] == round(255 * 0.8)
    assert context.candidates[0].nonzero()[0].tolist() == sorted(
        LIBRARY.index(name) for name in ("file_operations_reader", "network_fetcher", "data_processing_filter")
    )


def test_confidences_of_one_task() -> None:
    task = Task.from_mapping(
        {"required_tools": ["utility_logger"], "task_type": "basic_file_processing", "description": "Do it."}, LIBRARY
    )
    notifier, aggregator, parser, logger, mapper = (
        LIBRARY.index(name)
        for name in (
            "utility_notifier",
            "data_processing_aggregator",
            "data_processing_parser",
            "utility_logger",
            "integration_mapper",
        )
    )
    scores = [0.05] * 30
    scores[notifier], scores[logger] = 0.4, -0.5
    context = build_context(LIBRARY, [task], lambda description, names: scores)
    rule, preference, static = context.rule_confidence[0], context.task_confidence[0], context.static_confidence[0]
    # (0.4 - 0.1) / (0.5 - 0.1), and prerequisites, direct or not, are raised to it.
    assert rule[[notifier, aggregator, parser]] == pytest.approx([0.75] * 3)
    assert rule[mapper] == rule[logger] == 0.0
    # The skeleton asks for sources and processors; a processor needs the aggregator; tools without a type may stand in.
    assert preference[[notifier, aggregator, parser, logger, mapper]].tolist() == [0.0, 1.0, 1.0, 0.0, 0.5]
    assert static[parser] == pytest.approx(0.25 * 0.75 + 0.30 * 0.05 + 0.20)
    assert static[notifier] == pytest.approx(0.25 * 0.75 + 0.30 * 0.4)
    assert static[logger] == 0.0
    assert static[mapper] == pytest.approx(0.30 * 0.05 + 0.20 * 0.5)


def test_a_task_of_unknown_type_prefers_nothing() -> None:
    custom = Task.from_mapping({"required_tools": ["utility_logger"], "description": "Do it."}, LIBRARY)
    context = build_context(LIBRARY, [custom, TASKS[0]], None)
    assert (context.task_confidence[0] == 0.5).all()
    assert (context.task_confidence[1] != 0.5).any()
    assert not context.features[0, :5].any()


def test_without_retrieval_nothing_speaks_against_a_tool() -> None:
    context = build_context(LIBRARY, TASKS[:200], None)
    assert not context.similarity.any()
    assert not context.candidates.any()
    assert (context.rule_confidence == 1.0).all()
    assert (context.static_confidence[CLOSURE[:200]] > THRESHOLD).all()


def test_the_required_list_is_not_read() -> None:
    others = [
        dataclasses.replace(task, required_tools=("utility_logger",), metadata={}, original_description="")
        for task in TASKS[:300]
    ]
    context = build_context(LIBRARY, others)
    for entry in dataclasses.fields(context):
        if entry.name != "operation_type":
            assert (getattr(context, entry.name) == getattr(CONTEXT, entry.name)[:300]).all()


def share(values: NDArray[np.float32], tools: NDArray[np.bool_]) -> float:
    return float((values[tools] > THRESHOLD).mean())


def ranks(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the place of each tool in its row, from 1 for the highest value."""
    return np.argsort(np.argsort(-values, axis=1, kind="stable"), axis=1) + 1


def test_similarity_tells_required_tools_from_others() -> None:
    assert share(CONTEXT.similarity, REQUIRED) == pytest.approx(0.956, abs=1e-3)
    assert share(CONTEXT.similarity, ~REQUIRED) == pytest.approx(0.106, abs=1e-3)
    assert np.median(ranks(CONTEXT.similarity)[REQUIRED]) == 3
    among_highest = ranks(CONTEXT.similarity) <= REQUIRED.sum(axis=1, keepdims=True)
    precision = (among_highest & REQUIRED).sum(axis=1) / REQUIRED.sum(axis=1)
    assert precision.mean() == pytest.approx(0.874, abs=1e-3)


def test_the_filter_passes_what_a_task_needs() -> None:
    confidence = CONTEXT.static_confidence
    assert share(confidence, REQUIRED) == pytest.approx(0.988, abs=1e-3)
    assert share(confidence, CLOSURE & ~REQUIRED) == pytest.approx(0.990, abs=1e-3)
    assert share(confidence, ~CLOSURE) == pytest.approx(0.281, abs=1e-3)
    assert share(confidence, ~REQUIRED) == pytest.approx(0.328, abs=1e-3)


def test_candidates_hold_nearly_all_required_tools() -> None:
    assert CONTEXT.candidates[REQUIRED].mean() == pytest.approx(0.987, abs=1e-3)
    assert CONTEXT.candidates.sum(axis=1).max() <= CANDIDATES_OVERALL + 5 * CANDIDATES_PER_TYPE
    assert CONTEXT.candidates.sum(axis=1).mean() == pytest.approx(12.1, abs=0.1)


@given(
    data=st.data(),
    library=libraries(),
    description=st.text(max_size=60),
    scores=st.lists(st.floats(-1, 1), min_size=5, max_size=5),
)
def test_everything_is_in_range_for_any_library(
    data: st.DataObject, library: ToolLibrary, description: str, scores: Sequence[float]
) -> None:
    required = data.draw(st.permutations(library.names))[:1]
    task = Task.from_mapping({"required_tools": required, "description": description}, library)
    context = build_context(library, [task], lambda text, names: scores[: len(names)])
    assert context.features.shape == (1, 20)
    for values in (context.rule_confidence, context.task_confidence):
        assert ((values >= 0.0) & (values <= 1.0)).all()
    assert ((context.static_confidence >= 0.0) & (context.static_confidence <= 0.75 + 1e-6)).all()
    for name in library.names:
        for needed in library.dependencies(name):
            later, earlier = library.index(name), library.index(needed)
            assert context.rule_confidence[0, earlier] >= context.rule_confidence[0, later]
    assert context.candidates[0].tolist() == [score > 0 for score in np.float32(scores[: len(library)])]
