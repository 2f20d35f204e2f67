"""What an agent's message means to the simulator, whatever protocol it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from resilisim.provenance import arguments_text
from resilisim.seeding import hash_words

MessageKind = Literal["execute", "search", "info", "format_error", "rejected", "finish", "stop", "wait", "agent_error"]

# Signatures of unproductive messages lie above every tool index; below them, a tool's index stands for calling it
# again.
_SIGNATURE_BIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Message:
    """One message of an agent, understood.

    Attributes:
        kind: execute (a tool runs), search, info, format_error (nothing could be read), rejected (unknown tool or
            refused parameters: not an execution), finish (completion signal), stop (the agent stopped by itself or hit
            its cap), wait (a turn passes), agent_error (the agent broke or was given up: the episode is lost).
        tool: Canonical tool name (execute, info), or the name as it was given (rejected).
        parameters: Parameters of an execution, as given.
        query: What was searched for.
        problems: Why the call was rejected, one line each.
        text: The message as it came, without thoughts.
        thoughts: What stood in <think> blocks.
        native: Whether it came as a native tool call.
        ignored: Further tags or parallel calls in the same message, which have no effect.
        answer: The answer that a completion signal gives, where one is asked for.

    Example:
        >>> from resilisim.simulator import Message
        >>> Message("search", query="read a file").signature == Message("search", query="Read  a file").signature
        True
    """

    kind: MessageKind
    tool: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    query: str | None = None
    problems: tuple[str, ...] = ()
    text: str = ""
    thoughts: str = ""
    ignored: int = 0
    native: bool = False
    answer: str | None = None

    @property
    def signature(self) -> int:
        """Return the number by which the loop rule knows an unproductive message again."""
        if self.kind == "search":
            what = " ".join((self.query or "").lower().split())
        elif self.kind == "info":
            what = self.tool or ""
        elif self.kind in ("rejected", "execute"):
            what = f"{self.tool} {arguments_text(self.parameters)} {self.problems}"
        else:
            what = "" if self.kind == "wait" else " ".join(self.text.split())
        word0, word1 = hash_words(self.kind, what)
        return _SIGNATURE_BIT | ((word0 << 30) ^ word1)


def execution(tool: str, parameters: Mapping[str, Any] | None = None) -> Message:
    """Return the message that executes a tool.

    Example:
        >>> from resilisim.simulator import execution
        >>> execution("network_fetcher", {"source": "https://example.org"}).kind
        'execute'
    """
    return Message("execute", tool=tool, parameters=parameters or {})


FINISH = Message("finish")
STOP = Message("stop")
WAIT = Message("wait")
AGENT_ERROR = Message("agent_error")
