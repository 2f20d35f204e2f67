"""Similarities of tools and descriptions: the shipped table against the real model, and every other source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import resources

import numpy as np
import pytest

from resilisim.envs.workflow import context as similarity_module
from resilisim.envs.workflow.context import (
    THOUSANDTHS,
    SimilarityTable,
    resolve_similarity,
    shipped_table,
)
from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.seeding import Draws
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION, BENCHMARKS, benchmark_tasks
from resilisim.tasks.wording import clauses
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.embeddings import DEFAULT_MODEL_PACKAGE, FloatArray
from resilisim.tool_library.retrieval import default_retriever
from resilisim.workflows.steps import semantic_match_by_retrieval

LIBRARY = default_library()
TASKS = benchmark_tasks()
OTHER_LIBRARY = ToolLibrary(tuple(LIBRARY)[:12])
OWN_TASK = Task.from_mapping(
    {"required_tools": ["file_operations_reader"], "description": "Open the ledger from disk; parse it into records."},
    LIBRARY,
)


@pytest.mark.parametrize("version", BENCHMARKS)
def test_the_table_belongs_to_benchmark_library_and_model(version: str) -> None:
    table = shipped_table(version)
    assert table.benchmark == BENCHMARKS[version]
    assert table.library == LIBRARY.content_hash
    assert table.model.startswith(f"{DEFAULT_MODEL_PACKAGE}==")
    assert table.scores.shape == (5040, 30)
    assert np.abs(table.scores).max() <= THOUSANDTHS


@pytest.mark.parametrize("version", BENCHMARKS)
def test_the_table_holds_what_the_model_says(version: str) -> None:
    """A seeded sample of rows, exactly; save where rounding to 1e-3 hangs on bits that differ between machines."""
    draws = Draws("similarity table, sample")
    retriever = default_retriever(LIBRARY)
    match = semantic_match_by_retrieval(retriever)
    tasks = benchmark_tasks(version)
    for _ in range(12):
        row = draws.below(len(tasks))
        exact = retriever.similarities(clauses(tasks[row].description)).max(axis=0).astype(np.float64) * THOUSANDTHS
        shipped = shipped_table(version).scores[row]
        assert np.abs(exact - shipped).max() <= 0.5 + 1e-3
        decided = np.abs(exact - np.floor(exact) - 0.5) > 1e-3
        rounded = np.array(match(tasks[row].description, LIBRARY.names)) * THOUSANDTHS
        assert (np.rint(rounded)[decided] == shipped[decided]).all()
        assert decided.mean() > 0.9


def test_auto_takes_the_table_in_the_order_of_the_tasks() -> None:
    rows = [4711, 3, 3, 5039]
    found = resolve_similarity("auto", LIBRARY, [TASKS[row] for row in rows])
    assert found.dtype == np.float32
    assert (np.rint(found * THOUSANDTHS) == shipped_table().scores[rows]).all()
    assert resolve_similarity("auto", LIBRARY, []).shape == (0, 30)


def test_a_rewritten_description_gets_scores_of_its_own() -> None:
    rewritten = dataclasses.replace(TASKS[0], description=OWN_TASK.description)
    found = resolve_similarity("auto", LIBRARY, [TASKS[0], rewritten, OWN_TASK])
    assert (found[1] == found[2]).all()
    assert (found[0] != found[1]).any()
    expected = semantic_match_by_retrieval(default_retriever(LIBRARY))(OWN_TASK.description, LIBRARY.names)
    assert found[2].tolist() == np.array(expected, dtype=np.float32).tolist()
    assert {LIBRARY.names[tool] for tool in np.argsort(-found[2])[:4]} >= {
        "file_operations_reader",
        "data_processing_parser",
    }


def test_another_library_never_meets_the_table() -> None:
    found = resolve_similarity("auto", OTHER_LIBRARY, TASKS[:2])
    match = semantic_match_by_retrieval(default_retriever(OTHER_LIBRARY))
    assert found.shape == (2, 12)
    for row, task in zip(found, TASKS[:2], strict=True):
        assert row.tolist() == np.array(match(task.description, OTHER_LIBRARY.names), dtype=np.float32).tolist()


def test_none_gives_zeros_and_a_function_is_asked_for_each_description():
    assert not resolve_similarity(None, LIBRARY, TASKS[:3]).any()

    def by_length(description: str, names: Sequence[str]) -> list[float]:
        return [len(name) / 100 if name in LIBRARY else len(description) for name in names]

    found = resolve_similarity(by_length, LIBRARY, TASKS[:2])
    assert found.tolist() == [np.float32([len(name) / 100 for name in LIBRARY.names]).tolist()] * 2
    with pytest.raises(
        InvalidInputError, match="similarity is 'automatic': expected 'auto', 'lexical', None or a function"
    ):
        resolve_similarity("automatic", LIBRARY, TASKS[:1])


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ([0.5] * 29, r"scores of shape \(29,\), expected \(30,\)"),
        ([0.5] * 29 + [1.5], r"got the score 1.5, expected a number in \[-1, 1\]"),
        ([float("nan")] * 30, r"got the score nan, expected a number in \[-1, 1\]"),
        (None, r"scores of shape \(\), expected \(30,\)"),
        (["high"] * 30, "got list, expected 30 numbers"),
    ],
)
def test_a_function_that_gives_no_scores_is_refused(scores: Sequence[float], text: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"similarity function, task '{TASKS[0].instance_id}': .*{text}"):
        resolve_similarity(lambda description, names: scores, LIBRARY, TASKS[:1])


def test_without_the_extra_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(queries: Sequence[str]) -> FloatArray:
        raise MissingExtraError("tool search needs 'faiss': pip install -c constraints.txt '.[retrieval]'")

    monkeypatch.setattr(default_retriever(LIBRARY), "similarities", missing)
    task = dataclasses.replace(OWN_TASK, description="Nobody has asked this before.")
    with pytest.raises(MissingExtraError, match=r"pip install .*; in Workflow-v0 give similarity=\"lexical\", or None"):
        resolve_similarity("auto", LIBRARY, [task])


def test_a_stale_or_damaged_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = (
        resources.files("resilisim.envs.workflow")
        .joinpath(similarity_module.similarity_file(BENCHMARK_VERSION))
        .read_bytes()
    )
    with pytest.raises(AssertionError, match="damaged"):
        SimilarityTable.from_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    monkeypatch.setattr(similarity_module, "BENCHMARKS", {BENCHMARK_VERSION: "another"})
    shipped_table.cache_clear()
    with pytest.raises(AssertionError, match="another version of the benchmark"):
        shipped_table()
