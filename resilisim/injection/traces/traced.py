"""A trace: the calls that one run of an agent made, whatever wrote them down, and how a call failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from resilisim.errors import one_line
from resilisim.injection.folder import UNKNOWN_END
from resilisim.tool_library.names import is_plain

# What a failure asks of whoever made the call: to call otherwise, to wait, to look whether it ran after all, to get
# access first, or nothing that its words tell.
FailureKind = Literal["input", "wait", "lost", "access", "other"]

UNNAMED_ERROR: Final = "ERROR"
NO_ANSWER: Final = "no answer is told"
_LONGEST_CODE: Final = 60
_NOT_IN_CODES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_KINDS: Final[tuple[tuple[FailureKind, re.Pattern[str]], ...]] = (
    ("wait", re.compile(r"rate.?limit|too many requests|\b429\b|throttl|quota exceeded|retry.?after", re.I)),
    (
        "lost",
        re.compile(
            r"time[d ]?.?out|deadline exceeded|\b504\b|\b408\b|connection.?(reset|closed|aborted|lost)|broken pipe|"
            r"incomplete read|end of file|\beof\b",
            re.I,
        ),
    ),
    ("access", re.compile(r"\b401\b|\b403\b|unauthor|forbidden|permission|authenticat|access denied", re.I)),
    (
        "input",
        re.compile(
            r"invalid|validation|\b400\b|\b422\b|typeerror|valueerror|keyerror|bad.?request|missing|required|malformed|"
            r"not.?found|\b404\b|no such|unexpected (keyword|argument)|parsing|schema|does not exist",
            re.I,
        ),
    ),
)
_WAIT: Final = re.compile(
    r"(?:retry|try again|wait)[^0-9]{0,40}(?P<number>[0-9]+(?:\.[0-9]+)?)\s*"
    r"(?P<unit>ms|milliseconds?|s\b|sec|m\b|min)?",
    re.I,
)
_UNITS: Final = {"ms": 0.001, "mil": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0}


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call of a tool as a trace tells it.

    Attributes:
        tool: The tool's name.
        arguments: What it was called with; None if that is not told.
        error: Code of its failure; None if it has answered.
        words: What the failure says.
        start: When it began, in seconds; None if that is not told.
        seconds: How long it took; None if that is not told.
        is_misuse: Whether the call could not be made: no such tool, or arguments that it does not take.
        has_status: Whether the trace tells of calls like this one whether they failed.
    """

    tool: str
    arguments: Any = None
    error: str | None = None
    words: str = ""
    start: float | None = None
    seconds: float | None = None
    is_misuse: bool = False
    has_status: bool = True

    @property
    def kind(self) -> FailureKind | None:
        """What its failure asks of the agent; None if it has answered."""
        if self.error is None:
            return None
        if self.error == UNKNOWN_END:
            return "lost"
        return "input" if self.is_misuse else kind_of_failure(self.error, self.words)


@dataclass(slots=True)
class Trace:
    """What one run of an agent did.

    Attributes:
        source: Where it stands: a file, and what names it there.
        calls: Its calls, in the order in which they began.
        agent: Who made them; "agent" if that is not told.
        error: What the run itself broke with; None if nothing is told of it.
    """

    source: str
    calls: list[TracedCall] = field(default_factory=list)
    agent: str = "agent"
    error: str | None = None


def kind_of_failure(code: str, words: str) -> FailureKind:
    """Return what a failure asks of whoever made the call, by its code and its words."""
    for text in (code, words):
        spaced = text.replace("_", " ")
        for kind, pattern in _KINDS:
            if pattern.search(spaced):
                return kind
    return "other"


def seconds_to_wait(words: str) -> float | None:
    """Return for how long a failure asks to wait, in seconds; None if it does not say."""
    match = _WAIT.search(words)
    if match is None:
        return None
    unit = (match["unit"] or "s").lower()
    return float(match["number"]) * _UNITS.get(unit[:3], _UNITS.get(unit[:1], 1.0))


def code_of(name: Any, words: str = "") -> str:
    """Return the code under which a failure stands that somebody calls so."""
    text = str(name).rpartition(".")[2] if isinstance(name, str) and is_plain(name) else str(name or "")
    code = _NOT_IN_CODES.sub("_", one_line(text, _LONGEST_CODE)).strip("_.-")[:_LONGEST_CODE]
    if code and is_plain(code) and code != UNKNOWN_END:
        return code
    kinds = {"input": "INVALID_INPUT", "wait": "RATE_LIMIT_ERROR", "lost": "TIMEOUT", "access": "PERMISSION_DENIED"}
    return kinds.get(kind_of_failure("", words), UNNAMED_ERROR)


def value_of(text: Any) -> Any:
    """Return the value of a text that is JSON, or else what was given."""
    if isinstance(text, str) and text[:1] in ("{", "[", '"') and len(text) < 1_000_000:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def calls_of_messages(messages: Sequence[Any]) -> list[TracedCall]:
    """Return the calls of a conversation: those of an assistant, each with the answer that a tool's message gives.

    Both forms are read: `tool_calls` and messages of the role `tool`, and parts of the types `tool_call` and
    `tool_call_response` (or `tool_use` and `tool_result`).
    """
    calls: dict[str, dict[str, Any]] = {}
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        for number, call in enumerate(_called(message)):
            function = call.get("function")
            named = function if isinstance(function, Mapping) else call
            name = named.get("name") if isinstance(named.get("name"), str) else function
            arguments = next((named[key] for key in ("arguments", "input", "args") if key in named), None)
            key = str(call.get("id") or f"{len(calls)}/{number}")
            if isinstance(name, str) and key not in calls:
                calls[key] = {"tool": name, "arguments": value_of(arguments)}
        for key, answer, error in _answered(message):
            if key in calls and "answer" not in calls[key]:
                calls[key] |= {"answer": answer, "error": error}
    made = []
    for call in calls.values():
        error = call.get("error")
        words = one_line(call.get("answer") or "", 500)
        if "answer" not in call:
            made.append(TracedCall(call["tool"], call["arguments"], UNKNOWN_END, NO_ANSWER, has_status=False))
        elif error in (None, False):
            made.append(TracedCall(call["tool"], call["arguments"], has_status=error is False))
        else:
            told = error if isinstance(error, Mapping) else {}
            words = one_line(told.get("message") or words, 500)
            code = code_of(told.get("type"), words)
            made.append(TracedCall(call["tool"], call["arguments"], code, words))
    return made


def _called(message: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for holder, kinds in (("tool_calls", None), ("parts", ("tool_call",)), ("content", ("tool_use", "tool_call"))):
        listed = message.get(holder)
        for item in listed if isinstance(listed, list) else ():
            if isinstance(item, Mapping) and (kinds is None or item.get("type") in kinds):
                yield item


def _answered(message: Mapping[str, Any]) -> Iterable[tuple[str, Any, Any]]:
    """Yield the answers of a message: whose they are, what they say, whether or how they failed (None: not told)."""
    if message.get("role") == "tool" and "tool_call_id" in message:
        yield str(message["tool_call_id"]), _text(message.get("content")), message.get("error")
    for holder in ("parts", "content"):
        listed = message.get(holder)
        for item in listed if isinstance(listed, list) else ():
            if isinstance(item, Mapping) and item.get("type") in ("tool_call_response", "tool_result"):
                answer = next((item[key] for key in ("response", "result", "content") if key in item), "")
                yield str(item.get("id") or item.get("tool_use_id")), _text(answer), item.get("is_error")


def _text(content: Any) -> str:
    if isinstance(content, list):
        texts = [str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in content]
        return "\n".join(filter(None, texts))
    return content if isinstance(content, str) else json.dumps(content, default=str)
