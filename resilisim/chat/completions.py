"""Chat completions as OpenAI-compatible endpoints have them: bodies of requests, what was refused of one, and replies.

Replies are read with distrust: whatever a server sends is a `ChatReply`, or is told to be none.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from resilisim.chat.json_answers import split_thoughts
from resilisim.chat.types import (
    MOST_CALLS,
    ChatMessage,
    ChatReply,
    ChatRequest,
    TokenUsage,
    ToolCall,
    estimated_usage,
    fitted,
    is_count,
)
from resilisim.chat.unwrapping import text_of_parts
from resilisim.provenance import without_surrogates

# OpenAI renamed the limit for its later models, which refuse the old name; most other servers know only that.
TOKEN_LIMIT: Final = "max_tokens"
LATER_TOKEN_LIMIT: Final = "max_completion_tokens"
# Only with functions on offer: agents carry out one call of a reply.
PARALLEL: Final = "parallel_tool_calls"
# Messages with several calls; a name of ours, for what templates of some models refuse.
SEVERAL_CALLS: Final = "several tool calls in one message"
# The content of a message that is calls alone: null, as OpenAI has it; else an empty text; else none at all.
NULL_CONTENT: Final = "content: null beside tool calls"
EMPTY_CONTENT: Final = 'content: "" beside tool calls'
DROPPABLE: Final = ("stop", "temperature", "top_p", "seed", TOKEN_LIMIT, LATER_TOKEN_LIMIT, PARALLEL)
_LONGEST_REFUSAL: Final = 4_000  # characters of an endpoint's words that are looked at
_SINGLE_CALLS = re.compile(r"single tool[- _]?calls?|only one tool[- _]?call|multiple tool[- _]?calls", re.IGNORECASE)
_REFUSES = re.compile(
    r"unsupported|(?:not|n't|no longer) (?:be )?(?:support|permit|allow|accept|available|valid|recogni[sz]ed)"
    r"|unknown|unrecogni[sz]ed|unexpected|forbid|invalid|incompatible|deprecated|extra (?:input|field|param)"
    r"|only the default|refuse|reject|instead",
    re.IGNORECASE,
)
_REFUSES_NULL = re.compile(
    r"content.{0,300}?(?:\bnull\b|\bNone|string|str\b|required|missing|must|invalid|empty)|NoneType"
    r"|(?:null|missing|empty|required|invalid|expected).{0,80}?content",
    re.IGNORECASE | re.DOTALL,
)
# From here on a validator repeats what it was sent, all options included.
_ECHO = re.compile(r"""["']input["']\s*:""")
# Where servers put what a model thought: DeepSeek's and vLLM's first name, and the one of OpenRouter and later vLLM.
_THOUGHTS: Final = ("reasoning_content", "reasoning")
_LONGEST_WORD: Final = 200  # characters of an id, a model's name, a reason to end
_LONGEST_NAME: Final = 1_000  # characters of a function's name
_MOST_DIGITS: Final = 300  # of a whole number


class UnreadableAnswerError(ValueError):
    """An endpoint answered something that is no chat completion; the text says what."""


def request_body(request: ChatRequest, model: str, dropped: Collection[str] = ()) -> dict[str, Any]:
    """Return a request as the endpoint wants it, without what is left to the model and what it refuses (`dropped`)."""
    messages = _with_single_calls(request.messages) if SEVERAL_CALLS in dropped else request.messages
    body: dict[str, Any] = {"model": model, "messages": [_message(message, dropped) for message in messages]}
    limit_name = LATER_TOKEN_LIMIT if TOKEN_LIMIT in dropped else TOKEN_LIMIT
    optional = {
        "tools": [dict(tool) for tool in request.tools] or None,
        PARALLEL: False if request.tools else None,
        "stop": [without_surrogates(text) for text in request.stop] or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        limit_name: request.max_tokens,
        "seed": request.seed,
    }
    body |= {name: value for name, value in optional.items() if value is not None and name not in dropped}
    return {**body, **request.extra}


def refused_option(status: int, body: object, sent: Mapping[str, Any]) -> str | None:
    """Return the option without which an endpoint would take a request, by its answer (JSON values or text)."""
    if status not in (400, 422, 500):
        return None
    content = _refused_content(body, sent)
    if content is not None or status == 500:  # templates that fail at a null make servers break
        return content
    there = [name for name in DROPPABLE if name in sent]
    parameter = _mapping(_mapping(body).get("error", body)).get("param")
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
    named = [(match.start(), name) for name, match in places.items() if match is not None]
    return min(named)[1] if named else None


def _refused_content(body: object, sent: Mapping[str, Any]) -> str | None:
    """Return the content of messages that are calls alone which an endpoint refuses; None if it speaks of others."""
    contents = [message.get("content", 0) for message in sent["messages"] if message.get("tool_calls")]
    tried = NULL_CONTENT if None in contents else EMPTY_CONTENT if "" in contents else None
    words = (body if isinstance(body, str) else json.dumps(body, default=str))[:_LONGEST_REFUSAL]
    return tried if tried is not None and _REFUSES_NULL.search(words) else None


def read_reply(body: str, request: ChatRequest, latency_seconds: float) -> ChatReply:
    """Read a chat completion from the text of a response; `UnreadableAnswerError` if it is none."""
    if not body.strip():
        raise UnreadableAnswerError("an empty body")
    try:
        value = _DECODER.decode(body)
    except (ValueError, RecursionError):
        raise UnreadableAnswerError("a body that is not JSON") from None
    return read_completion(value, request, latency_seconds)


def read_completion(value: object, request: ChatRequest, latency_seconds: float) -> ChatReply:
    """Read a chat completion that is parsed already; tokens that the endpoint did not count are estimated."""
    if not isinstance(value, Mapping):
        raise UnreadableAnswerError("JSON that is no object")
    if value.get("error"):
        raise UnreadableAnswerError(f"an error in place of an answer: {error_message(value)}")
    choices = value.get("choices")
    choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
    if not isinstance(choice.get("message"), Mapping):
        raise UnreadableAnswerError("JSON without choices[0].message")
    message = choice["message"]
    if not {"content", "tool_calls", *_THOUGHTS} & message.keys():
        raise UnreadableAnswerError("a message with neither content nor tool_calls")
    text = _text(message.get("content"))
    calls = _tool_calls(_calls_of(message))
    thoughts = next((words for name in _THOUGHTS if (words := _string(message.get(name)))), "")
    reason = _string(choice.get("finish_reason"))[:_LONGEST_WORD]
    reply = ChatReply(
        text=text,
        thoughts=thoughts,
        tool_calls=calls,
        usage=_counted(value.get("usage")) or estimated_usage(request, thoughts + text, calls),
        finish_reason=reason,
        model=_string(value.get("model"))[:_LONGEST_WORD],
        latency_seconds=latency_seconds,
    )
    if thoughts and not text.strip() and not calls and not reply.is_cut:
        # A server that takes an open thought for all of the reply also takes the call at its end for one.
        inner, last = split_thoughts(f"<think>{thoughts}")
        reply = dataclasses.replace(reply, text=last, thoughts="\n".join(inner)) if last.strip() else reply
    return fitted(reply, request)


def _calls_of(message: Mapping[str, Any]) -> object:
    """Return the calls of a message: a list, the only one by itself, or that in the older field."""
    calls = message.get("tool_calls")
    single = calls if isinstance(calls, Mapping) else message.get("function_call") if not calls else None
    return [single] if isinstance(single, Mapping) and single else calls


def error_message(body: object) -> str:
    """Return what an endpoint says about an error, in whichever of the usual places it says it; empty if nowhere."""
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    return _string(inner.get("message", inner.get("detail")) if isinstance(inner, Mapping) else inner)


def error_code(body: object) -> str:
    """Return the code and type that an endpoint gives an error, separated by a space; empty if it gives none."""
    inner = _mapping(_mapping(body).get("error", body))
    return " ".join(word for word in (inner.get("code"), inner.get("type")) if isinstance(word, str))


def _message(message: ChatMessage, dropped: Collection[str] = ()) -> dict[str, Any]:
    content = without_surrogates(message.content)  # models can write halves of a character, and are told them again
    result: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        if not content and EMPTY_CONTENT in dropped:
            del result["content"]
        elif not content and NULL_CONTENT not in dropped:
            result["content"] = None
        calls = [dataclasses.replace(call, arguments=without_surrogates(call.arguments)) for call in message.tool_calls]
        result["tool_calls"] = [call.to_openai() for call in calls]
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
            message = dataclasses.replace(message, tool_calls=message.tool_calls[:1])
        if message.tool_call_id is None or message.tool_call_id not in gone:
            kept.append(message)
    return kept


def _text(content: object) -> str:
    """Return a message's text; some servers send it in parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    text = "" if content == [] else text_of_parts([content] if isinstance(content, Mapping) else content)
    if text is not None:
        return text
    raise UnreadableAnswerError("a message whose content is not a text")


def _tool_calls(value: object) -> tuple[ToolCall, ...]:
    if not isinstance(value, list | None):
        raise UnreadableAnswerError("tool_calls that are no list")
    calls: list[ToolCall] = []
    for place, entry in enumerate((value or [])[:MOST_CALLS]):
        call = _mapping(entry)
        inner = call.get("function")
        function = inner if isinstance(inner, Mapping) else call
        if not isinstance(function.get("name"), str):
            raise UnreadableAnswerError("a tool call without a name")
        arguments = function.get("arguments", "")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = _string(call.get("id"))[:_LONGEST_WORD]
        if not call_id or any(call_id == other.id for other in calls):  # each wants an answer of its own
            call_id = next(name for n in itertools.count(place) if (name := f"call_{n}") not in {c.id for c in calls})
        calls.append(ToolCall(call_id, function["name"][:_LONGEST_NAME], written))
    return tuple(calls)


def _counted(value: object) -> TokenUsage | None:
    """Return what an endpoint says that was used; None if it says nothing, or what cannot be."""
    counts = [_mapping(value).get("prompt_tokens"), _mapping(value).get("completion_tokens")]
    numbers = [int(count) for count in counts if is_count(count)]
    return TokenUsage(numbers[0], numbers[1]) if len(numbers) == len(counts) else None


def _whole_number(digits: str) -> int | float:
    """Return a whole number of JSON; one of more digits than any count has is infinite, and none is refused."""
    return int(digits) if len(digits) <= _MOST_DIGITS else float("-inf" if digits.startswith("-") else "inf")


_DECODER = json.JSONDecoder(parse_int=_whole_number)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
