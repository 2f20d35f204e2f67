"""Finding the block of code, or the end of the work, in what a model wrote; in linear time."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Final

from resilisim.policies.llm.reading import Unreadable, excerpt, visible

LONGEST_READ: Final = 200_000  # characters of a reply; a block that a sandbox takes is shorter
LONGEST_WORDS: Final = 2_000  # characters kept of what stands before a block

_LANGUAGES = ("", "python", "python3", "py")
_FENCE = re.compile(r"```([\w+-]{0,20})[^\S\n]*")
_FENCE_END = re.compile(r"^[^\S\n]*```", re.MULTILINE)
_TAG = re.compile(r"<execute>", re.IGNORECASE)
_TAG_END = re.compile(r"</execute>", re.IGNORECASE)
_FINISH = re.compile(r"<finish>", re.IGNORECASE)
_FINISH_END = re.compile(r"</finish>", re.IGNORECASE)
_BARE_FINISH = re.compile(r"<finish\s{0,5}/>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        code: The code.
        thought: What the model wrote before it.
    """

    code: str
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the work, said outside of code.

    Attributes:
        answer: The answer, which may be empty.
    """

    answer: str


Proposal = Block | Finish | Unreadable


def read_proposal(text: str, is_cut: bool = False) -> Proposal:
    """Find the first block of a reply; only where there is none, `<finish>` counts.

    Args:
        text: The reply.
        is_cut: Whether the reply ended at its limit of tokens, so that a block that is not closed lacks its rest.
    """
    shown = visible(text)[:LONGEST_READ]
    found = _first_block(shown)
    if found is None:
        answer = _finish(shown)
        if answer is not None:
            return Finish(answer)
        problem = "the reply is empty" if not shown else "the reply holds no block of code"
        return Unreadable(problem, excerpt(shown))
    start, code, is_closed = found
    if not is_closed and is_cut:
        return Unreadable("the block of code is cut off", excerpt(shown[start:]))
    code = textwrap.dedent(code).strip("\n")
    if not code.strip():
        return Unreadable("the block of code is empty", excerpt(shown[start:]))
    return Block(code, excerpt(shown[:start].strip(), LONGEST_WORDS))


def words_of(text: str) -> str:
    """Return a reply as it is kept where no block was found in it."""
    return excerpt(visible(text), LONGEST_WORDS) or "(an empty reply)"


def _first_block(text: str) -> tuple[int, str, bool] | None:
    """Return where the first block begins, its code, and whether it is closed."""
    tag, fence = _TAG.search(text), _python_fence(text)
    if tag is not None and (fence is None or tag.start() < fence[0]):
        closed = _TAG_END.search(text, tag.end())
        inner = text[tag.end() : closed.start() if closed else len(text)]
        fenced = _python_fence(inner)
        return tag.start(), fenced[1] if fenced else inner, closed is not None
    return fence


def _python_fence(text: str) -> tuple[int, str, bool] | None:
    position = 0
    while (opened := _FENCE.search(text, position)) is not None:
        start, end, following = _fence_content(text, opened.end())
        if opened.group(1).lower() in _LANGUAGES:
            return opened.start(), text[start:end], following is not None
        if following is None:
            return None
        position = following
    return None


def _fence_content(text: str, start: int) -> tuple[int, int, int | None]:
    """Return the beginning and end of what is fenced, and where the text goes on; None if the fence is not closed."""
    line_end = text.find("\n", start)
    inline = text.find("```", start, line_end if line_end >= 0 else len(text))
    if inline >= 0:
        return start, inline, inline + 3
    closed = _FENCE_END.search(text, start)
    return (start, len(text), None) if closed is None else (start, closed.start(), closed.end())


def _finish(text: str) -> str | None:
    opened = _FINISH.search(text)
    if opened is not None:
        closed = _FINISH_END.search(text, opened.end())
        return text[opened.end() : closed.start() if closed else len(text)].strip()
    return "" if _BARE_FINISH.search(text) else None
