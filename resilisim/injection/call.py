"""A call of a function under a law: what the law says of it, what became of it, and what its failure is raised as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from resilisim.injection.call_arguments import CallArguments
from resilisim.run_folder import OpenLine

# What became of a call: it answered, was made to fail, failed by itself, or could not be made.
Outcome = Literal["ok", "injected", "real", "misuse"]

NO_END: Final = "it was made, and the process that made it ended first"
GONE: Final = ("gone", "the episode has ended before the answer came")


class InjectedFailure(Exception):
    """A call failed because the law said so.

    Attributes:
        tool: The function that was called.
        code: Code of the failure, such as TIMEOUT.
        message: Its words.
    """

    def __init__(self, tool: str, code: str, message: str) -> None:
        super().__init__(f"{tool}: {code}: {message}")
        self.tool, self.code, self.message = tool, code, message

    def __reduce__(self) -> tuple[type[InjectedFailure], tuple[str, str, str]]:
        """Travel between processes as tool, code and message."""
        return type(self), (self.tool, self.code, self.message)


_ALWAYS: Final = (
    "tool",
    "outcome",
    "attempt",
    "probability",
    "ran",
    "error",
    "message",
    "seconds",
    "arguments",
    "input",
)
_RARE: Final = ("forced", "corruption", "duration")  # which only lines have of which there is something to say

# What an injected failure is raised as: an exception that is made from it.
Raiser: TypeAlias = Callable[[InjectedFailure], BaseException]


class InjectedCall(NamedTuple):
    """One call of a function under a law.

    Attributes:
        tool: The function's name.
        outcome: What became of it.
        attempt: Which call of the function it was, from 1; None for misuse, which draws nothing.
        probability: The law's probability that it would pass; None for misuse.
        ran: Whether the function ran.
        error: Code of an injected failure, or the class of an exception; None for an answer.
        message: Words of the failure.
        seconds: How long the function ran.
        given: What it was called with.
        forced: Whether somebody said beforehand what it brings, and it was no luck.
        corruption: In which way its answer was made wrong (`law.Corrupt`), "none" if it could not be; None if the law
            left it as it was.
        duration: How many seconds it took by a law with latency; None by others.
    """

    tool: str
    outcome: Outcome
    attempt: int | None
    probability: float | None
    ran: bool
    error: str | None
    message: str | None
    seconds: float
    given: CallArguments
    forced: bool = False
    corruption: str | None = None
    duration: float | None = None

    @property
    def arguments(self) -> str:
        """What it was called with, as text that may be cut (`CallArguments.shown`)."""
        return self.given.shown

    @property
    def input(self) -> str:
        """What stands for all of that (`CallArguments.digest`)."""
        return self.given.digest

    @property
    def passed(self) -> bool:
        """Whether the law let it through."""
        return self.outcome in ("ok", "real")

    def to_mapping(self) -> dict[str, Any]:
        """Return the call as it stands in `calls.jsonl`."""
        fields = {name: getattr(self, name) for name in _ALWAYS}
        rare = {name: value for name in _RARE if (value := getattr(self, name)) not in (None, False)}
        return {"success": self.outcome == "ok", **fields, **rare}


class DrawnCall(NamedTuple):
    """What the law says of a call that is about to be made.

    Attributes:
        attempt: Which call of the function it is, from 1.
        probability: The law's probability that it passes.
        failure: Code and words of the failure that was drawn; None if it passes.
        runs: Whether the function runs: if the call passes, or if its answer is lost only then.
        number: Counts what was drawn in the episode.
        forced: Whether it was forced instead.
        is_corrupt: Whether its answer is to be made wrong.
        corruption: In which way, if that was said beforehand.
        bits: What says how the answer is made wrong, and whatever else is words.
        duration: How many seconds it takes by a law with latency; None by others.
    """

    attempt: int
    probability: float
    failure: tuple[str, str] | None
    runs: bool
    number: int
    forced: bool = False
    is_corrupt: bool = False
    corruption: str | None = None
    bits: int = 0
    duration: float | None = None


class OpenCall(NamedTuple):
    """A call that was written down before it was made: its number, and where it stands (None: nowhere yet)."""

    number: int
    place: OpenLine | None
