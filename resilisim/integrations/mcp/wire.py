"""What travels between clients and servers of MCP, read so that nothing of it is dropped in silence.

A text is read as messages of JSON-RPC. What cannot be read becomes a value that says what was seen and, as far as it
can be told, which request it belongs to, so that whoever waits for it can be answered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from mcp_types import (
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from resilisim.errors import one_line
from resilisim.inputs import finite_number

MOST_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # of one message
_LONGEST_EXCERPT: Final = 160
_TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)
_INTEGER: Final = re.compile(r"(-?(?:0|[1-9][0-9]{0,17}))(?:\.0{1,9})?")
_MAYBE_NO_NUMBER: Final = re.compile(r"NaN|Infinity|[0-9][eE]\+?[0-9]{3}|[0-9]{309}")
_MOST_DEPTH: Final = 2  # as deep as there is something to find


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A text that is no message of JSON-RPC.

    Attributes:
        words: What was seen, for people; on one line.
        id: The request that it is, or that it answers; None if it names none.
        method: What it asks for; None if it asks for nothing.
        tool: The tool that it calls; None if it calls none.
    """

    words: str
    id: RequestId | None = None
    method: str | None = None
    tool: str | None = None


_NUMBERS: Final = json.JSONDecoder(parse_float=finite_number, parse_constant=finite_number, strict=False)
_REASONS: Final = {"hex escape": "half of a surrogate pair", "recursion limit": "more than 200 levels"}

Read: TypeAlias = "JSONRPCMessage | Unreadable"


def read_messages(text: str | bytes) -> list[Read]:
    """Return the messages of a text: one, several in a batch, or none in an empty line."""
    text = text if isinstance(text, str) else text.decode("utf-8", "replace")
    if not text.strip():
        return []
    try:
        if _MAYBE_NO_NUMBER.search(text):
            _NUMBERS.decode(text)
        return [jsonrpc_message_adapter.validate_json(text, by_name=False)]
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
        for sign, words in _REASONS.items():
            problem = words if sign in problem else problem
    except (ValueError, RecursionError) as error:
        problem = "more than 200 levels" if isinstance(error, RecursionError) else str(error)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [_unreadable(problem, text)]
    if isinstance(value, list) and value:
        return [message for item in value for message in _of_batch(item)]
    return [_unreadable(_mistake(value) or problem, text)]


def _of_batch(item: Any) -> list[Read]:
    try:
        text = json.dumps(item)
    except (ValueError, RecursionError) as error:
        return [Unreadable(one_line(f"an item of a batch: {error}"))]
    return [_unreadable("a batch in a batch", text)] if isinstance(item, list) else read_messages(text)


def _unreadable(problem: str, text: str) -> Unreadable:
    excerpt = one_line(text[: 2 * _LONGEST_EXCERPT], _LONGEST_EXCERPT)
    return replace(_envelope(text), words=f"{one_line(problem)}: {excerpt}")


def _mistake(value: Any) -> str | None:
    """Say what is wrong with a JSON value that is no message; None if it is nothing that can be seen here."""
    if not isinstance(value, dict):
        return f"{_kind(value)}: expected an object"
    if value.get("jsonrpc") != "2.0":
        return f"jsonrpc is {_shown(value.get('jsonrpc'))}: expected '2.0'"
    identity, error = value.get("id"), value.get("error")
    if ("id" in value and not isinstance(identity, str | int | None)) or isinstance(identity, bool):
        return f"id is {_shown(identity)}: expected a text or a whole number"
    for name in ("params", "result", "error"):
        if name in value and not isinstance(value[name], dict) and (name != "params" or value[name] is not None):
            return f"{name} is {_shown(value[name])}: expected an object"
    if "method" in value and not isinstance(value["method"], str):
        return f"method is {_shown(value['method'])}: expected a text"
    if isinstance(error, dict):
        if not isinstance(error.get("code"), int) or isinstance(error.get("code"), bool):
            return f"error.code is {_shown(error.get('code'))}: expected a whole number"
        if not isinstance(error.get("message"), str):
            return f"error.message is {_shown(error.get('message'))}: expected a text"
    if not {"method", "result", "error"} & value.keys():
        return "neither a method nor a result nor an error"
    return None


def _shown(value: Any) -> str:
    try:
        return one_line(json.dumps(value), 60)
    except (ValueError, RecursionError):
        return _kind(value)


def _kind(value: Any) -> str:
    named = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return named.get(type(value), "a number")


def _envelope(text: str) -> Unreadable:
    """Return what a text that may be no JSON says of itself at its top: id, method, tool."""
    members: dict[tuple[str, ...], Any] = {}
    path: list[str | None] = []  # the key under which each open object or list stands
    opened: list[str] = []
    key: str | None = None
    expects_value = False
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in "{[":
            path.append(key if expects_value else None)
            opened.append(token)
            key, expects_value = None, False
        elif token in "}]":
            if not path:
                break
            path.pop()
            opened.pop()
            key, expects_value = None, False
        elif token == ":":
            expects_value = True
        elif token == ",":
            key, expects_value = None, False
        elif not expects_value:
            key = _text(token)
        elif opened and opened[-1] == "{" and key is not None and len(opened) <= _MOST_DEPTH:
            place = (*(name or "" for name in path[1:]), key)
            members.setdefault(place, _scalar(token))
    identity, method, tool = (members.get(place) for place in (("id",), ("method",), ("params", "name")))
    is_call = method == "tools/call"
    return Unreadable(
        "",
        identity if isinstance(identity, str | int) else None,
        method if isinstance(method, str) else None,
        tool if is_call and isinstance(tool, str) else None,
    )


def _text(token: str) -> str | None:
    value = _scalar(token)
    return value if isinstance(value, str) else None


def _scalar(token: str) -> str | int | None:
    """Return a text or a whole number that a token stands for, half characters replaced."""
    number = _INTEGER.fullmatch(token)
    if number is not None:
        return int(number[1])
    if not token.startswith('"'):
        return None
    try:
        value = json.loads(token, strict=False)
    except ValueError:
        return None
    return str(value).encode("utf-8", "replace").decode()


def answers(message: Read, request: RequestId) -> bool:
    """Return whether a message is an answer to a request, as far as its id says."""
    is_answer = message.method is None if isinstance(message, Unreadable) else not hasattr(message, "method")
    return is_answer and getattr(message, "id", None) == request


def encoded(message: JSONRPCMessage) -> bytes:
    """Return a message as one line."""
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def request_id(value: object) -> RequestId | None:
    """Return what a message names as a request or token; None if it can be neither, whatever the sender meant by it."""
    return value if isinstance(value, str | int) else None


def meta_of(message: JSONRPCRequest | JSONRPCNotification) -> Mapping[str, Any]:
    """Return what a message says besides its parameters."""
    meta = (message.params or {}).get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def failure_of(message: JSONRPCResponse | JSONRPCError) -> tuple[str, str] | None:
    """Return with what a tool has failed, kind and words; None if it has answered."""
    if isinstance(message, JSONRPCError):
        return f"JSON-RPC {message.error.code}", message.error.message
    return ("isError", words_of(message)) if message.result.get("isError") else None


def words_of(message: JSONRPCResponse) -> str:
    """Return the texts of a tool's answer."""
    content = message.result.get("content")
    parts = content if isinstance(content, list) else []
    return " ".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def failed(request: JSONRPCRequest, words: str) -> JSONRPCResponse:
    """Return the answer of a tool that has failed, in the form of the request's protocol."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": words}], "isError": True}
    if PROTOCOL_VERSION_META_KEY in meta_of(request):
        result["resultType"] = "complete"
    return JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)
