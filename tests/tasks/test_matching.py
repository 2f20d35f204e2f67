"""From operations to tools by retrieval: what is found, what is kept out, and that nothing hangs on rounding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from resilisim.tasks.generation import (
    NUM_HITS,
    OPERATION_WINDOW,
    UNTYPED_SHARE,
    match_step,
    match_steps,
    nearest_operations,
    operation_texts,
)
from resilisim.tasks.model import TEMPLATES, SkeletonStep
from resilisim.tool_library.library import ToolLibrary, default_library
from resilisim.tool_library.model import Tool
from resilisim.tool_library.retrieval import FloatArray, ToolRetriever, default_retriever

LIBRARY = default_library()
RETRIEVER = default_retriever(LIBRARY)
STEPS = {step.operation: step for template in TEMPLATES for step in template.steps}
MARGIN = 2e-3  # scores are rounded to 1e-3: two that differ by more than that cannot change places


def test_read_leads_to_reader_fetcher_and_scanner() -> None:
    """The seed's own example of the mapping (section C.2)."""
    assert set(nearest_operations(STEPS["read"], LIBRARY, RETRIEVER)) == {"reader", "fetcher", "scanner"}
    found = match_step(STEPS["read"], LIBRARY, RETRIEVER)
    assert set(found.tools) == {"file_operations_reader", "network_fetcher", "file_operations_scanner"}


def test_the_obvious_tool_comes_first() -> None:
    first = {step.operation: found.tools[0] for step, found in match_steps(LIBRARY, RETRIEVER).items()}
    assert first == {
        "input": "file_operations_reader",
        "process": "data_processing_parser",
        "read": "file_operations_reader",
        "output": "file_operations_writer",
        "validate": "data_processing_validator",
        "transform": "data_processing_transformer",
        "aggregate": "data_processing_aggregator",
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
        assert len(set(found.tools)) == len(found.tools) == len(found.weights) >= 1
        assert all(LIBRARY[name].semantic_type in (None, step.semantic_type) for name in found.tools)
        assert all(later < earlier for earlier, later in pairwise(found.weights))
    tools = {name for found in matched.values() for name in found.tools}
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
    untyped = ToolLibrary([Tool("oven_heater", "Heats the oven."), Tool("soup_stirrer", "Stirs soup.")])
    found = match_step(STEPS["read"], untyped, default_retriever(untyped))
    assert set(found.tools) == {"oven_heater", "soup_stirrer"}
    other_role = ToolLibrary([Tool("file_writer", "Writes a file."), Tool("oven_heater", "Heats the oven.")])
    found = match_step(STEPS["read"], other_role, default_retriever(other_role))
    assert found.tools == ("oven_heater",)
    only_other_role = ToolLibrary([Tool("file_writer", "Writes a file.")])
    assert match_step(STEPS["read"], only_other_role, default_retriever(only_other_role)).tools == ("file_writer",)


def test_all_steps_together_find_what_each_finds_alone() -> None:
    class Counting(ToolRetriever):
        num_encoded = 0

        def embed(self, texts: Sequence[str]) -> FloatArray:
            self.num_encoded += 1
            return super().embed(texts)

    together = Counting(LIBRARY)
    matched = match_steps(LIBRARY, together)
    # The tools, the queries of the steps, those of their operations, and twice per step the operations' texts.
    assert together.num_encoded == 3 + 2 * len(matched)
    for step, found in matched.items():
        assert found == match_step(step, LIBRARY, ToolRetriever(LIBRARY))
