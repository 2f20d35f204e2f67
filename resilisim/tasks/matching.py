"""Matching the steps of a task skeleton to the tools of a library by meaning.

Tools are found for the operations of a skeleton by semantic retrieval in two stages, no table written by hand. First
the operations that have the step's semantic type are ranked against the step's query, and the near ones kept. Then
tools are retrieved for each kept operation. A tool whose semantic type contradicts the step's is excluded; one without
a semantic type comes in where retrieval ranks it among the first. Only ranks are used further on, never scores: a rank
is the same on every machine as long as no two scores come closer than rounding can tell apart, and a test asserts that
none of those that decide do.
"""

from __future__ import annotations

from collections.abc import Mapping

from resilisim.tasks.task import TEMPLATES, SkeletonStep
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.retrieval import Retriever

NUM_OPERATIONS = 5  # operations kept for a step, at most
OPERATION_WINDOW = 0.29  # an operation further than this behind the best one is not kept
NUM_HITS = 8  # tools retrieved for each kept operation
UNTYPED_SHARE = 0.52  # share of the best hit's score that a tool without semantic type needs
RANK_DISCOUNT = 0.8  # a candidate one rank further down is drawn this much less often

Candidates = Mapping[str, float]  # tools that can do a step, best first, and how often each is drawn, in any scale


def match_steps(library: ToolLibrary, retriever: Retriever) -> Mapping[SkeletonStep, Candidates]:
    """Find the candidates of every step that some template finds tools for by meaning."""
    steps = dict.fromkeys(step for template in TEMPLATES for step in template.matched_steps)
    # What the steps will ask is asked at once, because embedding texts one by one takes ten times as long.
    retriever.search_many([step.query for step in steps], len(library))
    retriever.search_many(
        [
            operation_query(operation, step)
            for step in steps
            for operation in nearest_operations(step, library, retriever)
        ],
        NUM_HITS,
    )
    return {step: match_step(step, library, retriever) for step in steps}


def match_step(step: SkeletonStep, library: ToolLibrary, retriever: Retriever) -> Candidates:
    """Find the candidates of one step, best first."""
    names: list[str] = []
    for operation in nearest_operations(step, library, retriever):
        hits = retriever.search(operation_query(operation, step), NUM_HITS)
        names += [hit.name for hit in hits if library[hit.name].operation == operation]
    hits = retriever.search(step.query, len(library))
    least = UNTYPED_SHARE * hits[0].score
    names += [hit.name for hit in hits if hit.score >= least and library[hit.name].semantic_type is None]
    if not names:  # no tool has the role or none at all: what retrieval finds first must do
        allowed = [hit.name for hit in hits if library[hit.name].semantic_type in (None, step.semantic_type)]
        names = (allowed or [hit.name for hit in hits])[:NUM_OPERATIONS]
    return {tool: RANK_DISCOUNT**rank for rank, tool in enumerate(dict.fromkeys(names))}


def operation_query(operation: str, step: SkeletonStep) -> str:
    """Return the query by which tools of an operation are retrieved for a step."""
    return f"{operation}: {step.query}"


def nearest_operations(step: SkeletonStep, library: ToolLibrary, retriever: Retriever) -> tuple[str, ...]:
    """Return operations of the step's semantic type, best first, known by their names and the texts of their tools."""
    texts = operation_texts(step, library)
    operations = tuple(texts)
    hits = retriever.search_texts(step.query, tuple(texts.values()), NUM_OPERATIONS)
    return tuple(operations[hit.index] for hit in hits if hit.score >= hits[0].score - OPERATION_WINDOW)


def operation_texts(step: SkeletonStep, library: ToolLibrary) -> dict[str, str]:
    """Return the library's operations of the step's semantic type, each with the text by which it is found."""
    texts: dict[str, str] = {}
    for tool in library:
        if tool.semantic_type == step.semantic_type:
            before = texts.get(tool.operation, f"{tool.operation}:")
            texts[tool.operation] = f"{before} {tool.original_description or tool.description}"
    return texts
