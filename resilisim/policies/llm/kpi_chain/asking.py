"""Asking a component until what it writes can be read, within a number of retries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from resilisim.chat import ChatMessage
from resilisim.policies.llm.kpi_chain.feedback import shortened
from resilisim.policies.llm.kpi_chain.yaml_text import UnreadableReplyError
from resilisim.policies.llm.reading import Unreadable, excerpt, visible
from resilisim.policies.llm.run import AgentRun

_MAX_REPEATED: Final = 4_000  # characters of a reply that is shown again to be put right

Reading = TypeVar("Reading")


@dataclass(frozen=True, slots=True)
class NeverReadable:
    """No reply could be read.

    Attributes:
        problem: What was wrong with the last one.
    """

    problem: str


async def ask_until_read(
    run: AgentRun, role: str, messages: Sequence[ChatMessage], read: Callable[[str], Reading], retries: int
) -> Reading | NeverReadable:
    """Return what a component wrote, as `read` understands it.

    A reply that cannot be read is shown to the component again with what is wrong; only the last one, so that a
    conversation does not grow.

    Args:
        run: The episode.
        role: The component.
        messages: What it is asked.
        read: Reads the visible part of a reply; raises `UnreadableReplyError`.
        retries: How often it is asked again.
    """
    conversation = list(messages)
    problem = ""
    for attempt in range(retries + 1):
        if attempt:
            run.count(f"{role}_retries")
        reply = await run.ask(role, conversation)
        text = visible(reply.text)
        try:
            return read(text)
        except UnreadableReplyError as error:
            problem = str(error)
        problem = run.unreadable(role, reply, Unreadable(problem, excerpt(reply.text))).problem
        again = (
            f"Your reply could not be used: {problem}\n\nWrite the whole reply again, in the form that was asked for."
        )
        shown = ChatMessage("assistant", shortened(text, _MAX_REPEATED) or "(empty)")
        conversation = [*messages, shown, ChatMessage("user", again)]
    return NeverReadable(problem)
