"""Likeness in meaning (S) and in function (F), and the drift that is made of both."""

import numpy as np
import pytest
from flaw_samples import LIBRARY, all_flawed, distinct_plans, similarity

from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.retrieval import default_retriever, tool_text
from resilisim.tool_library.tool import ReturnValue
from resilisim.workflows import Workflow
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import ToolSimilarity, functional_equivalence

# How far S may be off on another machine: embeddings are float32.
NOISE = 3e-6


def equivalence(one, other):
    return float(functional_equivalence(LIBRARY)[LIBRARY.index(one), LIBRARY.index(other)])


@pytest.mark.parametrize(
    ("one", "other", "role", "inputs", "outputs"),
    [
        # Both processors; {source, schema} and {data, input_format, output_format}; {data} and {data}.
        ("data_processing_parser", "data_processing_transformer", 1, 0 / 5, 1 / 1),
        # No type and aggregators; {data} and {data}; {data, kept_count} and {data}.
        ("data_processing_filter", "data_processing_aggregator", 0, 1 / 1, 1 / 2),
        # Both sources; {source} and {source}; {data} and {data, file_count}.
        ("file_operations_reader", "file_operations_scanner", 1, 1 / 1, 1 / 2),
        # Sources and outputs; {source} and {destination}; {data} and {location, bytes_written}.
        ("file_operations_reader", "file_operations_writer", 0, 0 / 2, 0 / 3),
        # The same operation, parameters and results in two categories.
        ("data_processing_validator", "network_validator", 1, 2 / 2, 3 / 3),
    ],
)
def test_functional_equivalence_worked_out_by_hand(one, other, role, inputs, outputs):
    assert equivalence(one, other) == pytest.approx((role + inputs + outputs) / 3, abs=1e-15)


def test_tools_without_parameters_and_results_are_told_apart_by_their_role():
    def tool(name, operation, *returns):
        values = tuple(ReturnValue(value) for value in ("success", "metadata", *returns))
        return Tool(name, "A tool.", returns=values, metadata={"operation": operation})

    library = ToolLibrary([tool("a", "dig"), tool("b", "dig"), tool("c", "fill"), tool("d", "fill", "x")])
    found = functional_equivalence(library)
    assert found[0].tolist() == pytest.approx([1, 1, 2 / 3, 1 / 3])


def test_likeness_of_the_default_tools():
    semantic, functional = similarity().semantic, similarity().functional
    assert np.array_equal(semantic, semantic.T)
    assert np.all(np.diag(semantic) == 1.0)
    assert semantic.min() >= 0.0
    assert np.array_equal(semantic, np.round(semantic, 3))
    assert np.array_equal(functional, functional_equivalence(LIBRARY))
    assert not functional.flags.writeable  # it is shared
    assert np.argsort(-semantic[LIBRARY.index("data_processing_validator")])[1] == LIBRARY.index("network_validator")


def naive_drift(tools, required, severity):
    """Work the drift out from S and F alone, word for word as it is documented."""
    semantic, functional = similarity().semantic, similarity().functional
    number = {name: index for index, name in enumerate(LIBRARY.names)}
    share = {"light": len(tools) / 4, "moderate": len(tools) / 2, "severe": max(len(tools) - 1, 1)}[severity]
    start = len(tools) - int(np.ceil(share))
    last_required = max(place for place, tool in enumerate(tools) if tool in required)
    result = list(tools)
    before = tools[min(start, last_required)]
    for place in range(min(start, last_required), len(tools)):
        best, best_score = "", 0.0
        for name in LIBRARY.names:
            if name in tools or name in required or name in result:
                continue
            score = semantic[number[name], number[before]] * (1 - functional[number[name], number[tools[place]]])
            if score > best_score:  # of equals the first in the library
                best, best_score = name, score
        result[place] = before = best
    return result


def test_a_misused_tool_is_the_most_similar_one_that_does_not_do_the_same():
    semantic, functional = similarity().semantic, similarity().functional
    for task, one in all_flawed("tool_misuse", "semantic_similarity"):
        edit = next(edit for edit in one.edits if edit.what == "replaced")
        was, now = LIBRARY.index(edit.before), LIBRARY.index(edit.after)
        taken = {*one.original.tools, *one.workflow.tools, *task.required_tools}
        free = [place for place, name in enumerate(LIBRARY.names) if name not in taken and functional[was, place] < 1]
        assert functional[was, now] < 1
        assert semantic[was, now] >= semantic[was, free].max() or len(one.edits) > 1


def test_the_drift_follows_its_formula():
    tried = 0
    for task, one in all_flawed("semantic_drift", "progressive_drift"):
        tools = list(one.original.tools)
        assert list(one.workflow.tools) == naive_drift(tools, list(task.required_tools), one.flaw.severity)
        tried += 1
    assert tried > 100


def chosen_tools(perturber, plans):
    for flaw in ("tool_misuse", "semantic_drift", "redundant_operation", "logic_discontinuity"):
        for method in FLAW_METHODS[flaw]:
            for severity in SEVERITIES:
                for task, workflow in plans:
                    one = perturber.perturb(workflow, task.required_tools, flaw, severity, method)
                    yield f"{method}/{severity}", one.workflow.tools if isinstance(one, FlawedWorkflow) else None


def test_no_choice_hangs_on_noise_in_the_embeddings():
    vectors = default_retriever(LIBRARY).embed([tool_text(tool) for tool in LIBRARY]).astype(np.float64)
    exact = vectors @ vectors.T
    lower, upper = np.round(exact - NOISE, 3), np.round(exact + NOISE, 3)
    borderline = np.argwhere(np.triu(lower != upper))
    assert len(borderline) <= 2  # else this test would have to try every combination of them
    plans = distinct_plans(43)
    expected = list(chosen_tools(Perturber(similarity=similarity), plans))
    for row, column in borderline:
        semantic = similarity().semantic.copy()
        other = lower if semantic[row, column] == upper[row, column] else upper
        semantic[row, column] = semantic[column, row] = other[row, column]
        moved = ToolSimilarity(semantic, similarity().functional)
        assert list(chosen_tools(Perturber(similarity=lambda moved=moved: moved), plans)) == expected


def test_the_similarities_are_asked_for_once_and_only_where_they_are_needed():
    calls = []

    def counted():
        calls.append(1)
        return similarity()

    perturber = Perturber(similarity=counted)
    task, workflow = distinct_plans(43)[0]
    perturber.perturb(workflow, task.required_tools, "sequential_order")
    perturber.perturb(workflow, task.required_tools, "tool_misuse", method="category_mismatch")
    assert calls == []
    for method in FLAW_METHODS["semantic_drift"]:
        assert isinstance(workflow, Workflow)
        perturber.perturb(workflow, task.required_tools, "semantic_drift", method=method)
    assert calls == [1]
