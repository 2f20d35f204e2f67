"""The form of requests and replies on the wire of an OpenAI-compatible endpoint; replies are read with distrust."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from resilisim.chat.estimates import estimated_prompt_tokens, estimated_tokens
from resilisim.chat.types import ChatMessage, ChatReply, ChatRequest, TokenUsage, ToolCall

# OpenAI renamed the limit for its later models, which refuse the old name; most other servers know only that.
TOKEN_LIMIT: Final = "max_tokens"
LATER_TOKEN_LIMIT: Final = "max_completion_tokens"
# Only with functions on offer: agents carry out one call of a reply.
PARALLEL: Final = "parallel_tool_calls"
# Messages with several calls; a name of ours, for what templates of some models refuse.
SEVERAL_CALLS: Final = "several tool calls in one message"
DROPPABLE: Final = ("stop", "temperature", "top_p", "seed", TOKEN_LIMIT, LATER_TOKEN_LIMIT, PARALLEL)

_LONGEST_REFUSAL: Final = 4_000  # characters of an endpoint's words that are looked at
_SINGLE_CALLS = re.compile(r"single tool[- _]?calls?|only one tool[- _]?call|multiple tool[- _]?calls", re.IGNORECASE)
_REFUSES = re.compile(
    r"unsupported|(?:not|n't|no longer) (?:be )?(?:support|permit|allow|accept|available|valid|recogni[sz]ed)"
    r"|unknown|unrecogni[sz]ed|unexpected|forbid|invalid|incompatible|deprecated|extra (?:input|field|param)"
    r"|only the default|refuse|reject|instead",
    re.IGNORECASE,
)


# From here on a validator repeats what it was sent, all options included.
_ECHO = re.compile(r"""["']input["']\s*:""")

# Where servers put what a model thought: DeepSeek's and vLLM's first name, and the one of OpenRouter and later vLLM.
_THOUGHTS: Final = ("reasoning_content", "reasoning")


class UnreadableAnswerError(ValueError):
    """An endpoint answered something that is no chat completion; the text says what."""


def request_body(request: ChatRequest, model: str, dropped: Collection[str] = ()) -> dict[str, Any]:
    """Return a request as the endpoint wants it; what is left to the model is left out.

    Args:
        request: The request.
        model: What the endpoint calls the model.
        dropped: What it refuses: names out of `DROPPABLE`, `SEVERAL_CALLS`. Without its older name the limit on tokens
            is sent under the later one.
    """
    messages = _with_single_calls(request.messages) if SEVERAL_CALLS in dropped else request.messages
    body: dict[str, Any] = {"model": model, "messages": [_message(message) for message in messages]}
    limit_name = LATER_TOKEN_LIMIT if TOKEN_LIMIT in dropped else TOKEN_LIMIT
    optional = {
        "tools": [dict(tool) for tool in request.tools] or None,
        PARALLEL: False if request.tools else None,
        "stop": [_unicode(text) for text in request.stop] or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        limit_name: request.max_tokens,
        "seed": request.seed,
    }
    return body | {name: value for name, value in optional.items() if value is not None and name not in dropped}


def refused_option(status: int, body: object, sent: Mapping[str, Any]) -> str | None:
    """Return the option that an endpoint refuses, so that the rest would be taken without it; None if it is no such.

    Args:
        status: The HTTP status.
        body: What the endpoint answered, as JSON values or text.
        sent: The body of the request.
    """
    if status not in (400, 422):
        return None
    there = [name for name in DROPPABLE if name in sent]
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    parameter = inner.get("param") if isinstance(inner, Mapping) else None
    words = (body if isinstance(body, str) else json.dumps(body, default=str))[:_LONGEST_REFUSAL]
    words = _ECHO.split(words, maxsplit=1)[0]
    if _SINGLE_CALLS.search(words) and any(len(message.get("tool_calls", ())) > 1 for message in sent["messages"]):
        return SEVERAL_CALLS
    if isinstance(parameter, str) and parameter:  # "stop", "stop[0]", "body.stop"; all else is about something else
        place = re.search(r"\w+", parameter.removeprefix("body."))
        return place.group() if place is not None and place.group() in there else None
    if not _REFUSES.search(words):
        return None
    # The one that is named first: what is said to be used instead stands behind it.
    places = {name: re.search(rf"(?<![\w-]){name}(?![\w-])", words) for name in there}
    named = [(found.start(), name) for name, found in places.items() if found is not None]
    return min(named)[1] if named else None


def read_reply(body: str, request: ChatRequest, latency_seconds: float) -> ChatReply:
    """Read a chat completion.

    Args:
        body: The response's text.
        request: What was asked, for estimating tokens that the endpoint did not count.
        latency_seconds: How long the answer took.

    Raises:
        UnreadableAnswerError: The text is not JSON, or JSON of another form.
    """
    if not body.strip():
        raise UnreadableAnswerError("an empty body")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise UnreadableAnswerError("a body that is not JSON") from None
    return read_completion(value, request, latency_seconds)


def read_completion(value: object, request: ChatRequest, latency_seconds: float) -> ChatReply:
    """Read a chat completion that is parsed already.

    Args:
        value: JSON values.
        request: What was asked, for estimating tokens that the endpoint did not count.
        latency_seconds: How long the answer took.

    Raises:
        UnreadableAnswerError: The value has another form.
    """
    if isinstance(value, Mapping) and value.get("error"):
        raise UnreadableAnswerError(f"an error in place of an answer: {error_message(value)}")
    if not isinstance(value, Mapping):
        raise UnreadableAnswerError("JSON that is no object")
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
        raise UnreadableAnswerError("JSON without choices[0].message")
    if not {"content", "tool_calls", *_THOUGHTS} & message.keys():
        raise UnreadableAnswerError("a message with neither content nor tool_calls")
    text = _text(message.get("content"))
    calls = _tool_calls(message.get("tool_calls"))
    thoughts = next((words for name in _THOUGHTS if (words := _string(message.get(name)))), "")
    written = thoughts + text + "".join(call.name + call.arguments for call in calls)
    return ChatReply(
        text=text,
        thoughts=thoughts,
        tool_calls=calls,
        usage=_usage(value.get("usage"), request, written),
        finish_reason=_string(choice.get("finish_reason")),
        model=_string(value.get("model")),
        latency_seconds=latency_seconds,
    )


def error_message(body: object) -> str:
    """Return what an endpoint says about an error, in whichever of the usual places it says it; empty if nowhere."""
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        message = inner.get("message", inner.get("detail")) if isinstance(inner, Mapping) else inner
        return message if isinstance(message, str) else ""
    return body if isinstance(body, str) else ""


def error_code(body: object) -> str:
    """Return the code and type that an endpoint gives an error, separated by a space; empty if it gives none."""
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    words = [inner.get("code"), inner.get("type")] if isinstance(inner, Mapping) else []
    return " ".join(word for word in words if isinstance(word, str))


def _message(message: ChatMessage) -> dict[str, Any]:
    content = _unicode(message.content)
    result: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        result["content"] = content or None
        result["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _unicode(call.arguments)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    return result


def _with_single_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return a conversation in which every message makes one call at most, without the answers to the others."""
    kept: list[ChatMessage] = []
    gone: set[str] = set()
    for message in messages:
        if message.tool_calls:
            gone = {call.id for call in message.tool_calls[1:]}
            message = replace(message, tool_calls=message.tool_calls[:1])
        if message.tool_call_id is None or message.tool_call_id not in gone:
            kept.append(message)
    return kept


def _unicode(text: str) -> str:
    """Return a text that UTF-8 has a form for: models can write halves of a character, and are told them again."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(content: object) -> str:
    """Return a message's text; some servers send it in parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        if len(parts) == len(content):
            return "".join(part for part in parts if isinstance(part, str))
    raise UnreadableAnswerError("a message whose content is no text")


def _tool_calls(value: object) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise UnreadableAnswerError("tool_calls that are no list")
    calls: list[ToolCall] = []
    for place, call in enumerate(value):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str):
            raise UnreadableAnswerError("a tool call without a name")
        arguments = function.get("arguments", "")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append(ToolCall(_string(call.get("id")) or f"call_{place}", name, written))
    return tuple(calls)


def _usage(value: object, request: ChatRequest, answer: str) -> TokenUsage:
    if isinstance(value, Mapping):
        counts = [value.get("prompt_tokens"), value.get("completion_tokens")]
        numbers = [count for count in counts if isinstance(count, int) and not isinstance(count, bool) and count >= 0]
        if len(numbers) == len(counts):
            return TokenUsage(prompt_tokens=numbers[0], completion_tokens=numbers[1])
    return TokenUsage(estimated_prompt_tokens(request), estimated_tokens(answer), is_estimate=True)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
