"""The planner's marks: a sub-question, a result, the end; in linear time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from resilisim.policies.llm.reading import Finish, Unreadable, excerpt, visible

BEGIN_QUERY: Final = "<|begin_search_query|>"
END_QUERY: Final = "<|end_search_query|>"
BEGIN_RESULT: Final = "<|begin_search_result|>"
END_RESULT: Final = "<|end_search_result|>"

# A model that goes on after its question would invent the result.
STOP: Final = (BEGIN_RESULT,)

LONGEST_READ: Final = 200_000  # characters of a reply that are looked at
LONGEST_QUESTION: Final = 4_000
LONGEST_WORDS: Final = 2_000  # characters kept of what stands before a mark

_BEGIN = re.compile(r"<\|begin_search_query\|>|<finish>", re.IGNORECASE)
_ENDS = {
    "query": re.compile(r"<\|end_search_query\|>", re.IGNORECASE),
    "finish": re.compile(r"</finish>", re.IGNORECASE),
}
_ANY_MARK = re.compile(r"<\|((?:begin|end)_search_(?:query|result))\|>|<(/?finish)\s{0,5}/?>", re.IGNORECASE)
_THOUGHT = re.compile(r"</?think>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """A sub-question.

    Attributes:
        question: Its words.
        thought: What the planner wrote before it.
    """

    question: str
    thought: str = ""


Move = Query | Finish | Unreadable


def read_move(text: str) -> Move:
    """Find the first mark of a planner's reply.

    Marks within closed `<think>` blocks are thoughts. Where a block is never closed and nothing stands outside, the
    marks within it count, for models that ask while they think.
    """
    shown = visible(text)[:LONGEST_READ]
    move = _first_move(shown)
    if not isinstance(move, Unreadable) or _BEGIN.search(shown):
        return move
    thoughts = list(_THOUGHT.finditer(text))[-1:]
    if not thoughts or thoughts[0].group().startswith("</"):
        return move
    within = _first_move(visible(text[thoughts[0].end() :])[:LONGEST_READ])
    return move if isinstance(within, Unreadable) else within


def _first_move(shown: str) -> Move:
    begun = _BEGIN.search(shown)
    if begun is None:
        problem = "the reply is empty" if not shown else "the reply holds neither a sub-question nor a final answer"
        return Unreadable(problem, excerpt(shown))
    thought = excerpt(shown[: begun.start()].strip(), LONGEST_WORDS)
    kind = "finish" if begun.group().lower() == "<finish>" else "query"
    ended = _ENDS[kind].search(shown, begun.end())
    words = excerpt(shown[begun.start() :])
    if ended is None:
        return Unreadable(f"the mark {begun.group()} is never closed", words)
    inner = shown[begun.end() : ended.start()].strip()
    if kind == "finish":
        return Finish(inner)
    if _BEGIN.search(inner):
        return Unreadable("a sub-question begins within another one", words)
    if not inner:
        return Unreadable("the sub-question is empty", words)
    if len(inner) > LONGEST_QUESTION:
        return Unreadable(f"the sub-question has {len(inner):,} characters; at most {LONGEST_QUESTION:,}", words)
    return Query(inner, thought)


def written(move: Move, text: str) -> str:
    """Return a reply as it stays in the conversation: without what follows its first mark."""
    if isinstance(move, Query):
        thought = f"{move.thought}\n" if move.thought else ""
        return f"{thought}{BEGIN_QUERY}{move.question}{END_QUERY}"
    return excerpt(visible(text), LONGEST_WORDS) or "(an empty reply)"


def result_block(result: str) -> str:
    """Return a result between its marks; marks within it are words and lose their form."""
    harmless = _ANY_MARK.sub(lambda mark: f"[{mark.group(1) or mark.group(2)}]", result)
    return f"{BEGIN_RESULT}{harmless}{END_RESULT}"


def identity(question: str) -> str:
    """Return what two sub-questions share if they are the same: their words, whatever their case and spacing."""
    return " ".join(question.casefold().split()).rstrip(" .?!")
