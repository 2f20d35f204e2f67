"""Answers of models that are checked: what is wrong with one, told to the model, which is asked again."""

from __future__ import annotations

import re
import string
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from resilisim.chat.types import ChatMessage, ChatReply
from resilisim.inputs import json_problem

T = TypeVar("T")

LONGEST_REPEATED_ANSWER: Final = 4000  # characters of a refused answer that the model is shown again
CORRECTION: Final = string.Template(
    "This answer cannot be used: ${reason}.\n\n"
    "Write the whole answer again with that put right. One JSON object and nothing else."
)

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # all but tabs and line ends
_TAG = re.compile(r"</?\s*[A-Za-z_][\w:.-]*(?:\s[^<>]*)?/?>|<\s*/?\s*(?:tool_|finish|think|mcp_)|<!\[CDATA\[|<!--")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an answer cannot be used.

    Attributes:
        kind: In one word, by which results are counted.
        detail: The reason in words, fit to be told to the model.
    """

    kind: str
    detail: str


class RefusedAnswer(Exception):
    """Ends the reading of an answer that cannot be used; its arguments are those of `Refusal`."""


def check_plain_text(text: str, name: str, longest: int) -> None:
    """Raise `RefusedAnswer` unless a text is plain, not empty and not too long."""
    if not text.strip():
        raise RefusedAnswer("wrong_fields", f"{name} is empty")
    if len(text) > longest:
        raise RefusedAnswer("too_long", f"{name} has {len(text)} characters; expected at most {longest}")
    problem = json_problem(text)
    if problem is not None or _CONTROL.search(text):
        raise RefusedAnswer("not_text", f"{name} is no plain text: {problem or 'it holds control characters'}")
    tag = _TAG.search(text)
    if tag is not None:
        raise RefusedAnswer("markup", f"{name} holds markup ({tag.group()[:40]!r}); expected plain text")


def correction(answer: str, reason: str) -> tuple[ChatMessage, ...]:
    """Return the messages that follow an answer that cannot be used: the answer, and why not."""
    repeated = answer.strip()[:LONGEST_REPEATED_ANSWER] or "(no answer)"
    return (ChatMessage("assistant", repeated), ChatMessage("user", CORRECTION.substitute(reason=reason)))


async def ask_until_usable(
    ask: Callable[[tuple[ChatMessage, ...]], Awaitable[ChatReply]],
    messages: tuple[ChatMessage, ...],
    read: Callable[[str], Awaitable[T]],
    re_asks: int,
) -> T | Refusal:
    """Ask, read, and send an answer that cannot be used back with the reason; the last reason, if none can.

    Args:
        ask: Sends messages to the model.
        messages: The question.
        read: Returns what an answer is worth; raises `RefusedAnswer` where it cannot be used.
        re_asks: How often an unusable answer is sent back.
    """
    refusal = Refusal("not_json", "nothing was asked")
    for _ in range(1 + re_asks):
        reply = await ask(messages)
        try:
            return await read(reply.text)
        except RefusedAnswer as refused:
            refusal = Refusal(*refused.args)
        if reply.finish_reason == "length":
            refusal = Refusal("cut_off", "the answer was cut off at the limit of tokens; expected a shorter one")
        messages = (*messages, *correction(reply.text, refusal.detail))
    return refusal
