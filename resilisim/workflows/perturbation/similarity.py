"""How alike two tools are: in meaning (S) and in function (F)."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from resilisim.tool_library import Tool, ToolLibrary

if TYPE_CHECKING:
    from resilisim.tool_library.retrieval import ToolRetriever

SIMILARITY_DECIMALS = 3  # as in searches: no choice hangs on rounding in the last digits of a float


@dataclass(frozen=True, slots=True, eq=False)
class ToolSimilarity:
    """Similarities between all tools of a library, tools in the library's order.

    Attributes:
        semantic: float64 (num_tools, num_tools), S: cosine similarity of the tools' texts, rounded to 1e-3, in [0, 1].
        functional: float64 (num_tools, num_tools), F: functional equivalence in [0, 1], 1 for a tool and itself.
    """

    semantic: NDArray[np.float64]
    functional: NDArray[np.float64]


def tool_similarity(retriever: ToolRetriever) -> ToolSimilarity:
    """Compare all tools of a retriever's library.

    Raises:
        MissingExtraError: The tool texts are not in the cache of embeddings yet and the extra `retrieval` is missing.
    """
    from resilisim.tool_library.retrieval import tool_text

    vectors = retriever.embed([tool_text(tool) for tool in retriever.library]).astype(np.float64)
    semantic = np.clip(np.round(vectors @ vectors.T, SIMILARITY_DECIMALS), 0.0, 1.0)
    return ToolSimilarity(semantic, functional_equivalence(retriever.library))


@functools.lru_cache(maxsize=8)
def functional_equivalence(library: ToolLibrary) -> NDArray[np.float64]:
    """Return F(a, b) for all tools: how far one could stand in for the other, whatever their texts say.

    F is the mean of three shares: whether they have the same role (semantic type, or the same operation), the overlap
    of the names of their required parameters, and the overlap of the names of what they return beside `success` and
    `metadata`, which every tool returns (Jaccard; two empty sets overlap fully).

    Returns:
        float64 (num_tools, num_tools), symmetric, 1 on the diagonal.
    """
    tools = list(library)
    result = np.ones((len(tools), len(tools)))
    for row, tool in enumerate(tools):
        for column in range(row):
            result[row, column] = result[column, row] = _equivalence(tool, tools[column])
    result.setflags(write=False)  # the same array is handed to everybody
    return result


def _equivalence(left: Tool, right: Tool) -> float:
    same_operation = left.operation != "" and left.operation == right.operation
    same_type = left.semantic_type is not None and left.semantic_type == right.semantic_type
    inputs = _overlap(
        (parameter.name for parameter in left.parameters if parameter.required),
        (parameter.name for parameter in right.parameters if parameter.required),
    )
    outputs = _overlap(_own_results(left), _own_results(right))
    return (float(same_operation or same_type) + inputs + outputs) / 3.0


def _own_results(tool: Tool) -> list[str]:
    return [value.name for value in tool.returns if value.name not in ("success", "metadata")]


def _overlap(left: Iterable[str], right: Iterable[str]) -> float:
    first, second = set(left), set(right)
    return len(first & second) / len(first | second) if first | second else 1.0
