"""Finding the block of code, or the end of the work, in what a model wrote; in linear time."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Final

from resilisim.envs.protocol import has_finish_mark
from resilisim.policies.llm.agents.react import FINISH, finish_answer
from resilisim.policies.llm.code_act.functions import python_name
from resilisim.policies.llm.reading import Action, Finish, Unreadable, excerpt, read_action, visible
from resilisim.policies.llm.tools import Toolbox

LONGEST_READ: Final = 200_000  # characters of a reply; a block that a sandbox takes is shorter
LONGEST_WORDS: Final = 2_000  # characters kept of what stands before a block

_LANGUAGES = ("python", "python3", "py")
_NO_LANGUAGE = ""
_FENCE = re.compile(r"```(?P<language>[\w+-]{0,20})[^\S\n]*")
_OPENING = re.compile(rf"<execute>|{_FENCE.pattern}", re.IGNORECASE)
_FENCE_END = re.compile(r"^[^\S\n]*```", re.MULTILINE)
_NEXT_FENCE = re.compile(r"[^\S\n]*```\w")  # with a language it opens a block, also where it closes the one before
_TAG_END = re.compile(r"</execute>", re.IGNORECASE)
_FINISH = re.compile(r"<finish>", re.IGNORECASE)
_CLOSED_FINISH = re.compile(r"<finish>((?:(?!</?finish>).)*)</finish>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        code: The code.
        thought: What the model wrote before it.
    """

    code: str
    thought: str = ""


Proposal = Block | Finish | Unreadable


def read_proposal(text: str, is_cut: bool = False) -> Proposal:
    """Find the first block of a reply; only where there is none, `<finish>` counts.

    A fence without a language is a block only where no fence with one and no `<execute>` stands in the reply: beside
    those it quotes something, often the output of a tool. A `<finish>` that is never closed is a word.

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
        return Unreadable(_what_is_missing(shown), excerpt(shown))
    start, code, is_closed = found
    if not is_closed and is_cut:
        return Unreadable("the block of code is cut off", excerpt(shown[start:]))
    code = textwrap.dedent(code).strip("\n")
    if not code.strip():
        return Unreadable("the block of code is empty", excerpt(shown[start:]))
    return Block(code, excerpt(shown[:start].strip(), LONGEST_WORDS))


def call_as_proposal(text: str, tools: Toolbox) -> Block | Finish | None:
    """Return the code of a single call that a reply makes in another form than code; None if it makes none.

    Models that were trained to call tools by JSON do so here, too.
    """
    action = read_action(text, (*tools.specs, FINISH))
    if not isinstance(action, Action):
        return None
    if action.name == FINISH.name:
        return Finish(finish_answer(action.arguments))
    spec = next((spec for spec in tools.specs if spec.name == action.name), None)
    return None if spec is None else Block(f"print({python_name(spec)}(**{action.arguments!r}))", action.thought)


def words_of(text: str) -> str:
    """Return a reply as it is kept where no block was found in it."""
    return excerpt(visible(text), LONGEST_WORDS) or "(an empty reply)"


def _what_is_missing(shown: str) -> str:
    if not shown:
        return "the reply is empty"
    opened = ", and its <finish> is never closed" if _FINISH.search(shown) else ""
    return f"the reply holds no block of code{opened}"


def _first_block(text: str, opening: re.Pattern[str] = _OPENING) -> tuple[int, str, bool] | None:
    """Return where the first block begins, its code, and whether it is closed."""
    unlabelled: tuple[int, str, bool] | None = None
    position = 0
    while (opened := opening.search(text, position)) is not None:
        language = opened.group("language")
        if language is None:
            return _tagged(text, opened.start(), opened.end())
        start, end, following = _fence_content(text, opened.end())
        block = opened.start(), text[start:end], following is not None
        if language.lower() in _LANGUAGES:
            return block
        if language == _NO_LANGUAGE and unlabelled is None:
            unlabelled = block
        if following is None:
            break
        position = following
    return unlabelled


def _tagged(text: str, opened: int, start: int) -> tuple[int, str, bool]:
    """Return the block between the tags `<execute>`, which may hold a fence."""
    closed = _TAG_END.search(text, start)
    inner = text[start : closed.start() if closed else len(text)]
    fenced = _first_block(inner, _FENCE)
    return opened, fenced[1] if fenced else inner, closed is not None


def _fence_content(text: str, start: int) -> tuple[int, int, int | None]:
    """Return the beginning and end of what is fenced, and where the text goes on; None if the fence is not closed."""
    inline = text.find("```", start)
    if inline >= 0 and text.find("\n", start, inline) < 0:
        return start, inline, inline + 3
    closed = _FENCE_END.search(text, start)
    if closed is None:
        return start, len(text), None
    is_next = _NEXT_FENCE.match(text, closed.start()) is not None
    return start, closed.start(), closed.start() if is_next else closed.end()


def _finish(text: str) -> str | None:
    closed = _CLOSED_FINISH.search(text)
    if closed is not None:
        return closed[1].strip()
    return "" if has_finish_mark(text) else None
