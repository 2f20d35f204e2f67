"""How well the tools of a plan match the text of their task, as semantic retrieval sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from resilisim.tasks.wording import clauses
from resilisim.tool_library.retrieval import SCORE_DECIMALS

if TYPE_CHECKING:
    from resilisim.tool_library.retrieval import ToolRetriever

# Scores (-1 to 1) of tools for a task, from its description and their names.
SemanticMatch = Callable[[str, Sequence[str]], Sequence[float]]

# Clauses whose similarities to all tools are held at once; bounds memory for texts of any length.
CLAUSES_AT_ONCE = 256


def semantic_match_by_retrieval(retriever: ToolRetriever) -> SemanticMatch:
    """Return a function that scores tools by the clause of a description that is nearest to each.

    The score of a tool is the highest cosine similarity of its text and a clause, rounded to 1e-3 as in every search. A
    description without clauses is taken as a whole. Nothing is loaded until the function is called.

    Args:
        retriever: Retrieval over the library of the tools.
    """

    def semantic_match(description: str, tools: Sequence[str]) -> list[float]:
        columns = [retriever.library.index(name) for name in tools]
        parts = clauses(description) or [description]
        best = np.full(len(tools), -np.inf)
        for first in range(0, len(parts), CLAUSES_AT_ONCE):
            similarities = retriever.similarities(parts[first : first + CLAUSES_AT_ONCE])
            best = np.maximum(best, similarities[:, columns].max(axis=0))
        return [round(float(score), SCORE_DECIMALS) + 0.0 for score in best]

    return semantic_match
