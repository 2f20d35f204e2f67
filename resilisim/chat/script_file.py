"""A scripted model whose replies stand in a file, for runs without a network: one JSON object a line.

    {"reply": "Thought: I search first.", "role": "planner", "expect": "Your task"}
    {"reply": "", "tool_calls": [{"name": "search", "arguments": {"query": "flights"}}]}

`reply` is the text; the rest may be left out. `role` and `expect` are conditions, as in `ScriptedReply`;
`finish_reason` is what an endpoint would say; `usage` holds prompt_tokens and completion_tokens, which are estimated
otherwise.

One file serves many episodes at once: a request whose `cache_scope` has the form EPISODE#CALL gets reply number CALL,
counted from 0, whatever other episodes ask. Requests of another form get the replies in the order in which they come.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilisim.chat.estimates import estimated_prompt_tokens, estimated_tokens
from resilisim.chat.json_files import json_object, read_text, refuse, refuse_unknown_keys
from resilisim.chat.scripted import ScriptedReply, ScriptError, check_condition
from resilisim.chat.types import ChatReply, ChatRequest, TokenUsage, ToolCall
from resilisim.errors import InvalidInputError
from resilisim.provenance import content_hash

_FIELDS = ("reply", "role", "expect", "tool_calls", "finish_reason", "usage")
_CALL_FIELDS = ("id", "name", "arguments")
_USAGE_FIELDS = ("prompt_tokens", "completion_tokens")
_SCOPE = re.compile(r".*#([0-9]{1,9})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """One line of a script file.

    Attributes:
        condition: The role that must ask and the text that the last message must hold.
        reply: What is answered.
        has_usage: Whether the line says what the tokens are; they are estimated otherwise.
    """

    condition: ScriptedReply
    reply: ChatReply
    has_usage: bool


class ScriptFileError(ScriptError, InvalidInputError):
    """A script that a user wrote does not fit what is asked: it is too short, or a line expects something else."""


def call_number(cache_scope: str) -> int | None:
    """Return the number of the call within its episode that a scope EPISODE#CALL names; None for other scopes."""
    match = _SCOPE.fullmatch(cache_scope)
    return int(match.group(1)) if match else None


def read_script(path: Path | str) -> tuple[ScriptLine, ...]:
    """Read a script file; empty lines are passed over.

    Raises:
        InvalidInputError: The file cannot be read, holds no reply, or a line of it is wrong.
    """
    text = read_text(Path(path), "script")
    lines = tuple(
        _read_line(json_object(line, f"script {str(path)!r}, line {number}"), f"script {str(path)!r}, line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    )
    if not lines:
        raise InvalidInputError(f'script {str(path)!r} holds no replies: expected lines such as {{"reply": "Hello."}}')
    return lines


def script_identity(path: Path | str) -> str:
    """Return what tells a script's replies from those of others, wherever the file stands.

    Raises:
        InvalidInputError: The file cannot be read.
    """
    return f"sha256:{content_hash(read_text(Path(path), 'script'))[:16]}"


class FileScriptedChatModel:
    """Answers requests from a script file; keeps nothing of what it was asked.

    Args:
        path: The file.

    Raises:
        InvalidInputError: The file cannot be read, or a line of it is wrong.
    """

    def __init__(self, path: Path | str) -> None:
        self.name = f"scripted:{path}"
        self._lines = read_script(path)
        self._asked_in_order = 0

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer with the line that the request's scope names, else with the next one.

        Raises:
            ScriptFileError: The script has no such line, or the line expects another request.
        """
        place = call_number(request.cache_scope)
        if place is None:
            place = self._asked_in_order
            self._asked_in_order += 1
        if place >= len(self._lines):
            raise ScriptFileError(f"{self.name} has {len(self._lines)} replies and was asked for reply {place + 1}")
        line = self._lines[place]
        try:
            check_condition(line.condition, request, place)
        except ScriptError as error:
            raise ScriptFileError(f"{self.name}: {error}") from None
        if line.has_usage:
            return line.reply
        return dataclasses.replace(line.reply, usage=_estimate(line.reply, request))

    async def aclose(self) -> None:
        """Do nothing."""


def _estimate(reply: ChatReply, request: ChatRequest) -> TokenUsage:
    written = reply.text + "".join(call.name + call.arguments for call in reply.tool_calls)
    return TokenUsage(estimated_prompt_tokens(request), estimated_tokens(written), is_estimate=True)


def _read_line(values: dict[str, Any], where: str) -> ScriptLine:
    refuse_unknown_keys(values, _FIELDS, where)
    if "reply" not in values:
        raise InvalidInputError(f"{where}: 'reply' is missing; expected the text of the answer")
    text = _string(values, "reply", where)
    calls = _calls(values.get("tool_calls", []), f"{where}, field 'tool_calls'")
    usage = _usage(values["usage"], f"{where}, field 'usage'") if "usage" in values else None
    return ScriptLine(
        ScriptedReply(
            text,
            expect=_string(values, "expect", where) if "expect" in values else "",
            role=_string(values, "role", where) if "role" in values else None,
        ),
        ChatReply(
            text,
            tool_calls=calls,
            usage=usage or TokenUsage(),
            finish_reason=_string(values, "finish_reason", where)
            if "finish_reason" in values
            else ("tool_calls" if calls else "stop"),
            model="scripted",
        ),
        has_usage=usage is not None,
    )


def _string(values: dict[str, Any], field: str, where: str) -> str:
    value = values[field]
    if not isinstance(value, str):
        refuse(f"{where}, field {field!r}", value, "a string")
    return value


def _calls(value: object, where: str) -> tuple[ToolCall, ...]:
    if not isinstance(value, list):
        refuse(where, value, "a list of calls")
    calls = []
    for place, call in enumerate(value):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            refuse(where, call, 'an object such as {"name": "search", "arguments": {}}')
        refuse_unknown_keys(call, _CALL_FIELDS, where)
        # Text goes out as it stands, so that a script can also play a model that writes broken JSON.
        arguments = call.get("arguments", {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        name = call.get("id", f"call_{place}")
        if not isinstance(name, str):
            refuse(f"{where}, field 'id'", name, "a string")
        calls.append(ToolCall(name, call["name"], written))
    return tuple(calls)


def _usage(value: object, where: str) -> TokenUsage:
    if not isinstance(value, dict):
        refuse(where, value, 'an object such as {"prompt_tokens": 10, "completion_tokens": 5}')
    refuse_unknown_keys(value, _USAGE_FIELDS, where)
    counts = [value.get(field, 0) for field in _USAGE_FIELDS]
    if any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in counts):
        refuse(where, value, "whole numbers of tokens, 0 or more")
    return TokenUsage(*counts)
