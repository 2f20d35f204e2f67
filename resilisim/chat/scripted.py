"""A chat model that says what it was told to say, and raises when it is asked more: for tests, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from resilisim.chat.estimates import estimated_prompt_tokens, estimated_tokens
from resilisim.chat.types import ChatReply, ChatRequest, TokenUsage


class ScriptError(AssertionError):
    """A scripted model was asked more than its script holds, or something else than the script expects."""


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A line of a script with a condition.

    Attributes:
        reply: What to answer.
        expect: A text that the last message of the request must hold.
        role: The component that must ask; None lets any.
    """

    reply: str | ChatReply
    expect: str = ""
    role: str | None = None


Line = str | ChatReply | ScriptedReply | Exception | Callable[[ChatRequest], str]


class ScriptedChatModel:
    """Answers requests from a script, in the order in which they come.

    Args:
        script: One entry for each request: the reply's text, a whole reply, a reply with a condition, an exception to
            raise, or a function from the request to the text.
        name: What records call it.

    Attributes:
        requests: Everything that was asked so far.
    """

    def __init__(self, script: Iterable[Line], name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ChatRequest] = []
        self._script = tuple(script)

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer with the next line of the script.

        Raises:
            ScriptError: The script has no more lines, or the next one expects another request.
        """
        place = len(self.requests)
        self.requests.append(request)
        if place >= len(self._script):
            raise ScriptError(f"the script has {len(self._script)} replies and was asked for one more: {_end(request)}")
        return _reply(self._script[place], request, place)

    @property
    def remaining(self) -> int:
        """How many replies were not asked for yet."""
        return max(0, len(self._script) - len(self.requests))

    async def aclose(self) -> None:
        """Do nothing."""


def check_condition(line: ScriptedReply, request: ChatRequest, place: int) -> None:
    """Check that a line of a script is for a request.

    Args:
        line: The line.
        request: What is asked.
        place: Number of the line, from 0.

    Raises:
        ScriptError: It is for another one.
    """
    if line.role is not None and line.role != request.role:
        raise ScriptError(f"reply {place + 1} is for {line.role!r}, and {request.role!r} asks")
    if line.expect not in request.messages[-1].content:
        raise ScriptError(f"reply {place + 1} expects {line.expect!r} in the last message: {_end(request)}")


def _reply(line: Line, request: ChatRequest, place: int) -> ChatReply:
    if isinstance(line, Exception):
        raise line
    if isinstance(line, ScriptedReply):
        check_condition(line, request, place)
        line = line.reply
    if isinstance(line, ChatReply):
        return line
    text = line if isinstance(line, str) else line(request)
    return ChatReply(text, usage=TokenUsage(estimated_prompt_tokens(request), estimated_tokens(text), is_estimate=True))


def _end(request: ChatRequest) -> str:
    return repr(request.messages[-1].content[-200:])
