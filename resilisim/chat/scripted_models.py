"""Chat models that say what they were told to say, from Python or from a file: for tests and runs without a network.

A script file has one JSON object a line:

    {"reply": "Thought: I search first.", "role": "planner", "expect": "Your task"}
    {"reply": "", "tool_calls": [{"name": "search", "arguments": {"query": "flights"}}]}

`reply` is the text; the rest may be left out. `role` and `expect` are conditions, as in `ScriptedReply`;
`finish_reason` is what an endpoint would say; `usage` holds prompt_tokens and completion_tokens, which are estimated
otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from resilisim.chat.types import ChatReply, ChatRequest, TokenUsage, ToolCall, estimated_usage
from resilisim.errors import InvalidInputError
from resilisim.inputs import read_json, read_text, validated
from resilisim.provenance import content_hash

_SCOPE = re.compile(r".*#([0-9]{1,9})", re.DOTALL)
_NOT_COUNTED = TokenUsage(is_estimate=True)  # stands in replies whose script does not say what they took
_TokenCount = Annotated[int, Field(ge=0)]


class ScriptError(AssertionError):
    """A scripted model was asked more than its script holds, or something else than the script expects."""


class ScriptFileError(ScriptError, InvalidInputError):
    """A script that a user wrote does not fit what is asked: it is too short, or a line expects something else."""


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

    Example:
        >>> import asyncio
        >>> from resilisim.chat import ChatMessage, ChatRequest, ScriptedChatModel
        >>> model = ScriptedChatModel(["Hi.", "Bye."])
        >>> asyncio.run(model.complete(ChatRequest((ChatMessage("user", "Hello?"),)))).text
        'Hi.'
        >>> model.remaining
        1
    """

    def __init__(self, script: Iterable[Line], name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ChatRequest] = []
        self._script = tuple(script)

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer with the next line of the script; `ScriptError` if there is none, or if it expects another request."""
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


def _reply(line: Line, request: ChatRequest, place: int) -> ChatReply:
    if isinstance(line, Exception):
        raise line
    if isinstance(line, ScriptedReply):
        if line.role is not None and line.role != request.role:
            raise ScriptError(f"reply {place + 1} is for {line.role!r}, and {request.role!r} asks")
        if line.expect not in request.messages[-1].content:
            raise ScriptError(f"reply {place + 1} expects {line.expect!r} in the last message: {_end(request)}")
        line = line.reply
    if not isinstance(line, ChatReply):
        line = ChatReply(line if isinstance(line, str) else line(request), usage=_NOT_COUNTED)
    if line.usage is not _NOT_COUNTED:
        return line
    return dataclasses.replace(line, usage=estimated_usage(request, line.text, line.tool_calls))


def _end(request: ChatRequest) -> str:
    return repr(request.messages[-1].content[-200:])


@with_config({"extra": "forbid"})
class _Call(TypedDict):
    """A call of a tool; arguments that are a text go out as they stand, to play a model that writes broken JSON."""

    name: str
    id: NotRequired[str]
    arguments: NotRequired[Any]


@with_config({"extra": "forbid"})
class _Usage(TypedDict, total=False):
    prompt_tokens: _TokenCount
    completion_tokens: _TokenCount


@with_config({"extra": "forbid"})
class _Line(TypedDict):
    reply: str
    role: NotRequired[str]
    expect: NotRequired[str]
    tool_calls: NotRequired[list[_Call]]
    finish_reason: NotRequired[str]
    usage: NotRequired[_Usage]


def _read_script(path: Path | str) -> tuple[ScriptedReply, ...]:
    text = read_text(Path(path), "script", "a file with one JSON object a line")
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"script {str(path)!r}, line {number}"
            lines.append(_scripted(validated(_Line, read_json(line, where, half_characters=True), where)))
    if not lines:
        raise InvalidInputError(f'script {str(path)!r} holds no replies: expected lines such as {{"reply": "Hello."}}')
    return tuple(lines)


def _scripted(line: _Line) -> ScriptedReply:
    calls = tuple(
        ToolCall(call.get("id", f"call_{place}"), call["name"], _written(call.get("arguments", {})))
        for place, call in enumerate(line.get("tool_calls", ()))
    )
    reply = ChatReply(
        line["reply"],
        tool_calls=calls,
        usage=TokenUsage(**line["usage"]) if "usage" in line else _NOT_COUNTED,
        finish_reason=line.get("finish_reason", "tool_calls" if calls else "stop"),
        model="scripted",
    )
    return ScriptedReply(reply, line.get("expect", ""), line.get("role"))


def _written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def script_identity(path: Path | str) -> str:
    """Return what tells a script's replies from those of others, wherever the file stands."""
    return f"sha256:{content_hash(read_text(Path(path), 'script'))[:16]}"


class FileScriptedChatModel:
    """Answers requests from a script file; keeps nothing of what it was asked.

    One file serves many episodes at once: a request whose `cache_scope` has the form EPISODE#CALL gets reply number
    CALL, counted from 0, whatever other episodes ask. Requests of another form get the replies in the order in which
    they come.

    Raises:
        InvalidInputError: The file cannot be read, or a line of it is wrong.
    """

    def __init__(self, path: Path | str) -> None:
        self.name = f"scripted:{path}"
        self._lines = _read_script(path)
        self._asked_in_order = 0

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer with the line that the request's scope names, else with the next one."""
        place = call_number(request.cache_scope)
        if place is None:
            place = self._asked_in_order
            self._asked_in_order += 1
        if place >= len(self._lines):
            raise ScriptFileError(f"{self.name} has {len(self._lines)} replies and was asked for reply {place + 1}")
        try:
            return _reply(self._lines[place], request, place)
        except ScriptError as error:
            raise ScriptFileError(f"{self.name}: {error}") from None

    async def aclose(self) -> None:
        """Do nothing."""


def call_number(cache_scope: str) -> int | None:
    """Return the number of the call within its episode that a scope EPISODE#CALL names; None for other scopes."""
    match = _SCOPE.fullmatch(cache_scope)
    return int(match.group(1)) if match else None
