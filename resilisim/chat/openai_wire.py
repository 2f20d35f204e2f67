"""The form of requests and replies on the wire of an OpenAI-compatible endpoint; replies are read with distrust."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from resilisim.chat.estimates import estimated_prompt_tokens, estimated_tokens
from resilisim.chat.types import ChatMessage, ChatReply, ChatRequest, TokenUsage, ToolCall

# OpenAI renamed the limit for its later models, which refuse the old name; most other servers know only that.
TokenLimitName = Literal["max_tokens", "max_completion_tokens"]


class UnreadableAnswerError(ValueError):
    """An endpoint answered something that is no chat completion; the text says what."""


def request_body(request: ChatRequest, model: str, token_limit_name: TokenLimitName) -> dict[str, Any]:
    """Return a request as the endpoint wants it; what is left to the model is left out."""
    body: dict[str, Any] = {"model": model, "messages": [_message(message) for message in request.messages]}
    optional = {
        "tools": [dict(tool) for tool in request.tools] or None,
        "stop": [_unicode(text) for text in request.stop] or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        token_limit_name: request.max_tokens,
        "seed": request.seed,
    }
    return body | {name: value for name, value in optional.items() if value is not None}


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
    if "content" not in message and "tool_calls" not in message:
        raise UnreadableAnswerError("a message with neither content nor tool_calls")
    text = _text(message.get("content"))
    calls = _tool_calls(message.get("tool_calls"))
    return ChatReply(
        text=text,
        tool_calls=calls,
        usage=_usage(value.get("usage"), request, text + "".join(call.name + call.arguments for call in calls)),
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
