"""From the operations of a skeleton to tools: semantic retrieval in two stages, no table written by hand.

First the operations that have the step's semantic type are ranked against the step's query, and the near ones kept.
Then tools are retrieved for each kept operation. A tool whose semantic type contradicts the step's is excluded; one
without a semantic type comes in where retrieval ranks it among the first.

Only ranks are used further on, never scores: a rank is the same on every machine as long as no two scores come closer
than rounding can tell apart, and a test asserts that none of those that decide do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilisim.tasks.templates import TEMPLATES, SkeletonStep
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.retrieval import ToolRetriever

NUM_OPERATIONS = 5  # operations kept for a step, at most
OPERATION_WINDOW = 0.29  # an operation further than this behind the best one is not kept
NUM_HITS = 8  # tools retrieved for each kept operation
UNTYPED_SHARE = 0.52  # share of the best hit's score that a tool without semantic type needs
RANK_DISCOUNT = 0.8  # a candidate one rank further down is drawn this much less often


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tools that can do a step.

    Attributes:
        tools: Names, best first; none twice.
        weights: How often each is drawn, in any scale.
    """

    tools: tuple[str, ...]
    weights: tuple[float, ...]


def match_steps(library: ToolLibrary, retriever: ToolRetriever) -> Mapping[SkeletonStep, Candidates]:
    """Find the candidates of every step of every template."""
    steps = dict.fromkeys(step for template in TEMPLATES for step in template.steps)
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


def match_step(step: SkeletonStep, library: ToolLibrary, retriever: ToolRetriever) -> Candidates:
    """Find the candidates of one step, best first."""
    found: list[str] = []
    for operation in nearest_operations(step, library, retriever):
        hits = retriever.search(operation_query(operation, step), NUM_HITS)
        found += [hit.name for hit in hits if library[hit.name].operation == operation]
    hits = retriever.search(step.query, len(library))
    least = UNTYPED_SHARE * hits[0].score
    found += [hit.name for hit in hits if hit.score >= least and library[hit.name].semantic_type is None]
    if not found:  # no tool has the role or none at all: what retrieval finds first must do
        allowed = [hit.name for hit in hits if library[hit.name].semantic_type in (None, step.semantic_type)]
        found = (allowed or [hit.name for hit in hits])[:NUM_OPERATIONS]
    tools = tuple(dict.fromkeys(found))
    return Candidates(tools, tuple(RANK_DISCOUNT**rank for rank in range(len(tools))))


def operation_query(operation: str, step: SkeletonStep) -> str:
    """Return the query by which tools of an operation are retrieved for a step."""
    return f"{operation}: {step.query}"


def nearest_operations(step: SkeletonStep, library: ToolLibrary, retriever: ToolRetriever) -> tuple[str, ...]:
    """Return the operations of the step's semantic type that its query retrieves, best first.

    An operation is known by its name and by what the library says about the tools that carry it out.
    """
    texts = operation_texts(step, library)
    operations = tuple(texts)
    hits = retriever.search_texts(step.query, tuple(texts.values()), NUM_OPERATIONS)
    return tuple(operations[hit.index] for hit in hits if hit.score >= hits[0].score - OPERATION_WINDOW)


def operation_texts(step: SkeletonStep, library: ToolLibrary) -> dict[str, str]:
    """Return the library's operations of the step's semantic type, each with the text by which it is found."""
    purposes: dict[str, list[str]] = {}
    for tool in library:
        if tool.semantic_type == step.semantic_type:
            purposes.setdefault(tool.operation, []).append(tool.original_description or tool.description)
    return {operation: f"{operation}: {' '.join(sentences)}" for operation, sentences in purposes.items()}
