"""What RP-ReAct's planner writes: a sub-question between its marks, or the end; and what of it stays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from resilisim.chat import ChatReply
from resilisim.chat.json_answers import LONGEST_READ
from resilisim.policies.llm.agents.react import read_end
from resilisim.policies.llm.reply_reading import Finish, Unreadable, excerpt, kept_words, visible
from resilisim.provenance import without_surrogates

BEGIN_QUERY: Final = "<|begin_search_query|>"
END_QUERY: Final = "<|end_search_query|>"
BEGIN_RESULT: Final = "<|begin_search_result|>"
END_RESULT: Final = "<|end_search_result|>"

# A model that goes on after its question would invent the result.
STOP_TEXTS: Final = (BEGIN_RESULT,)

LONGEST_QUESTION: Final = 4_000
LONGEST_THOUGHTS: Final = 8_000  # characters kept of the thoughts before a move: their end, which it follows from

_BEGIN = re.compile(r"<\|begin_search_query\|>|<finish>", re.IGNORECASE)
_ENDS = {
    "query": re.compile(r"<\|end_search_query\|>", re.IGNORECASE),
    "finish": re.compile(r"</finish>", re.IGNORECASE),
}
_ANY_MARK = re.compile(r"<\|((?:begin|end)_search_(?:query|result))\|>|<(/?finish)\s{0,5}/?>", re.IGNORECASE)
_THOUGHT = re.compile(r"</?think>", re.IGNORECASE)
_THINKING = re.compile(r"<think>(.*?)(</think>|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """A sub-question, and what the planner wrote before it."""

    question: str
    thought: str = ""


Move = Query | Finish | Unreadable


def read_move(text: str) -> Move:
    """Find the first mark of a planner's reply, or the end in a form of other agents.

    Marks within closed `<think>` blocks are thoughts. Where a block is never closed and nothing stands outside, the
    marks within it count, for models that ask while they think.
    """
    shown = visible(text)[:LONGEST_READ]
    move = _first_move(shown)
    if not isinstance(move, Unreadable) or _BEGIN.search(shown):
        return move
    end = read_end(shown)
    if end is not None:
        return end
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
    thought = shown[: begun.start()].strip()
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


def written(move: Move, reply: ChatReply) -> str:
    """Return a reply as it stays in the conversation: its thoughts, and its first mark without what follows.

    Thoughts stand there as plain words: what is tagged as a thought many models are not shown again.
    """
    thoughts = _thoughts(reply)
    if isinstance(move, Query):
        thoughts_kept, words = [*thoughts, move.thought], f"{BEGIN_QUERY}{move.question}{END_QUERY}"
    else:
        thoughts_kept, words = thoughts, kept_words(reply.text)
    thought = _THOUGHT.sub(
        "", _without_marks("\n".join(part.strip() for part in thoughts_kept if part.strip()))
    ).strip()
    if len(thought) > LONGEST_THOUGHTS:
        thought = f"...{thought[-LONGEST_THOUGHTS:]}"
    return without_surrogates(f"{thought}\n{words}" if thought else words)


def _thoughts(reply: ChatReply) -> list[str]:
    """Return what a reply marks as thoughts, and what the endpoint gives as such."""
    text = reply.text[:LONGEST_READ]
    first = _THOUGHT.search(text)
    if first is not None and first.group().startswith("</"):  # closed, but never opened
        text = f"<think>{text}"
    blocks = [match.groups() for match in _THINKING.finditer(text)]
    # The move itself may stand in a block that is never closed, and has its own words before it.
    return [reply.thoughts, *(inner for inner, end in blocks if end or not _BEGIN.search(inner))]


def _without_marks(text: str) -> str:
    """Return a text whose marks are words and have lost their form."""
    return _ANY_MARK.sub(lambda mark: f"[{mark.group(1) or mark.group(2)}]", text)


def result_block(result: str) -> str:
    """Return a result between its marks; marks within it are words and lose their form."""
    return f"{BEGIN_RESULT}{_without_marks(result)}{END_RESULT}"


def identity(question: str) -> str:
    """Return what two sub-questions share if they are the same: their words, whatever their case and spacing."""
    return " ".join(question.casefold().split()).rstrip(" .?!")
