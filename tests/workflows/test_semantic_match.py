"""Semantic match: for each tool the best clause of the description, by the similarities of retrieval."""

import numpy as np
import pytest
from toy_workflows import LIBRARY, task

from resilisim.errors import InvalidInputError
from resilisim.workflows import ExactPlanner, resolve_planner, semantic_match_by_retrieval, steps


class TableRetriever:
    """Knows the similarities of some clauses to the five tools of the toy library."""

    library = LIBRARY
    table = {  # noqa: RUF012
        "Read it": [0.9, 0.1, 0.0, -0.2, 0.31249],
        "Write it": [0.2, 0.3, -0.5, -0.1, 0.8],
        "": [-0.0001, 0.0, 0.0, 0.0, 0.0],
    }

    def __init__(self):
        self.asked = []

    def similarities(self, queries):
        self.asked.append(list(queries))
        return np.array([self.table[query] for query in queries], np.float32)


def test_a_tool_is_scored_by_its_best_clause():
    match = semantic_match_by_retrieval(TableRetriever())
    assert match("Read it. Write it.", ["read", "write", "merge", "fetch"]) == [0.9, 0.8, -0.1, 0.3]
    assert match("Read it.", ["write"]) == [0.312]


def test_a_description_without_clauses_is_taken_as_a_whole():
    score = semantic_match_by_retrieval(TableRetriever())("", ["read"])
    assert [str(value) for value in score] == ["0.0"]  # not -0.0


def test_clauses_are_looked_at_in_batches(monkeypatch):
    monkeypatch.setattr(steps, "CLAUSES_AT_ONCE", 2)
    retriever = TableRetriever()
    match = semantic_match_by_retrieval(retriever)
    assert match("Read it. Write it. Read it. Read it. Write it.", ["fetch"]) == [0.3]
    assert retriever.asked == [["Read it", "Write it"], ["Read it", "Read it"], ["Write it"]]


def test_a_tool_of_another_library_is_named():
    with pytest.raises(InvalidInputError, match="'reed'"):
        semantic_match_by_retrieval(TableRetriever())("Read it.", ["reed"])


def test_a_planner_fills_the_match_from_the_text_of_each_task():
    asked = []

    def match(description, tools):
        asked.append((description, list(tools)))
        return [0.1 * place + (description == "B") for place in range(len(tools))]

    planner = resolve_planner("auto", LIBRARY, match=match)
    plans = [planner.plan(task("read", "write", description=text)) for text in ("A", "B")]
    tools = list(plans[0].tools)
    assert asked == [("A", tools), ("B", tools)]
    for plan, first in zip(plans, (0.0, 1.0), strict=True):
        assert [step.semantic_match for step in plan.steps] == [0.1 * place + first for place in range(len(tools))]
    plain = ExactPlanner(LIBRARY).plan(task("read", "write"))
    assert {step.semantic_match for step in plain.steps} == {None}
