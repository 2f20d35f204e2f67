"""What is said to a language model, what it answers, how it can fail to: frozen plain data, and who answers.

Tokens that nobody counted are estimated: a quarter of the bytes of the UTF-8 text, rounded up, and 4 tokens for the
frame of each message. English prose in common vocabularies has about four letters a token; counting bytes keeps
scripts of several bytes a letter from being underestimated. It is for planning, never a bill.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeGuard

from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.provenance import canonical_json

MessageRole = Literal["system", "user", "assistant", "tool"]

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
# Characters of a reply, thoughts and calls included; more than any model writes, and what is more is cut off. A hundred
# of them, as many as an agent asks for, are still what a record holds.
LONGEST_REPLY: Final = 2_000_000
MOST_CALLS: Final = 64  # of a reply that are kept
MOST_TOKENS: Final = 10**9  # of one call; a count above is none


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots; `asdict` would copy deeply and take ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A native call of a tool by a model.

    Attributes:
        id: By which the answer of the tool names the call.
        name: The tool's name, as the model wrote it.
        arguments: The arguments as the model wrote them: JSON, if it did well.

    Example:
        >>> from resilisim.chat import ToolCall
        >>> ToolCall("call_1", "add", '{"x": 1}').name
        'add'
    """

    id: str
    name: str
    arguments: str

    def to_mapping(self) -> dict[str, Any]:
        """Return the call as JSON values."""
        return _fields(self)

    def to_openai(self) -> dict[str, Any]:
        """Return the call as an assistant's message has it under OpenAI's interface."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    Attributes:
        tool_calls: Calls that an assistant's message makes.
        tool_call_id: The call that a tool's message answers.

    Example:
        >>> from resilisim.chat import ChatMessage
        >>> ChatMessage("user", "What is 1 + 1?").role
        'user'
    """

    role: MessageRole
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the message as JSON values."""
        return _fields(self) | {"tool_calls": [call.to_mapping() for call in self.tool_calls]}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Everything that one call of a model is told.

    Attributes:
        messages: The conversation so far, at least one message.
        role: The component that asks ("planner", "extractor"), for counting calls and tokens; the model never sees it.
        tools: JSON Schema definitions of tools for native calling, as OpenAI's interface has them.
        stop: Texts at which the answer ends.
        temperature: 0 or more; None leaves it to the model, as do the others.
        top_p: Above 0, at most 1.
        max_tokens: Longest answer in tokens.
        seed: For models that can repeat an answer.
        cache_scope: What else than its content tells a request from another one: requests that are to be answered
            independently although they are equal (repeated episodes) differ in it.
        extra: Other fields of the request as it is sent, such as {"reasoning_effort": "high"}.

    Example:
        >>> from resilisim.chat import ChatMessage, ChatRequest
        >>> request = ChatRequest((ChatMessage("user", "Hello?"),), temperature=0.0)
        >>> request.content()["temperature"]
        0.0
    """

    messages: tuple[ChatMessage, ...]
    role: str = ""
    tools: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    cache_scope: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def settings(self) -> dict[str, Any]:
        """Return what steers the answer besides messages and tools, as JSON values."""
        values = {name: getattr(self, name) for name in ("stop", "temperature", "top_p", "max_tokens", "seed")}
        return values | {"stop": list(self.stop)} | ({"extra": dict(self.extra)} if self.extra else {})

    def content(self) -> dict[str, Any]:
        """Return all that can influence the answer, as JSON values: everything but the component's name."""
        return {
            "messages": [message.to_mapping() for message in self.messages],
            "tools": [dict(tool) for tool in self.tools],
            **self.settings(),
            "cache_scope": self.cache_scope,
        }


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one or more calls; an estimate where the endpoint did not count.

    Example:
        >>> from resilisim.chat import TokenUsage
        >>> TokenUsage(10, 5) + TokenUsage(1, 2, is_estimate=True)
        TokenUsage(prompt_tokens=11, completion_tokens=7, is_estimate=True)
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_estimate: bool = False

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum, an estimate if a part of it is one."""
        return TokenUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.is_estimate or other.is_estimate,
        )


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What a model answered.

    Attributes:
        finish_reason: Why the answer ended, in the endpoint's word: "stop", "length", "tool_calls", ...
        model: What the endpoint says has answered.
        latency_seconds: How long the attempt took that was answered; for a cached reply, how long it took at the time.
        attempts: How often the endpoint was asked until it answered; 1 is the first time.
        from_cache: Whether it was answered before, so that nothing was asked and nothing has to be paid.
        thoughts: What the model thought before it answered, where the endpoint gives that beside the text.
        dropped: Options of the request that the endpoint refuses, so that the answer was given without them.

    Example:
        >>> from resilisim.chat import ChatReply
        >>> ChatReply("1, 2, 3, 4,", finish_reason="length").is_cut
        True
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = TokenUsage()
    finish_reason: str = "stop"
    model: str = ""
    latency_seconds: float = 0.0
    attempts: int = 1
    from_cache: bool = False
    thoughts: str = ""
    dropped: tuple[str, ...] = ()

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended because no more tokens were allowed, and not because it was over."""
        return self.finish_reason == "length"

    def to_mapping(self) -> dict[str, Any]:
        """Return the reply as JSON values, without what only the present call knows (`from_cache`)."""
        mapping = _fields(self) | {
            "tool_calls": [call.to_mapping() for call in self.tool_calls],
            "usage": _fields(self.usage),
            "dropped": list(self.dropped),
        }
        del mapping["from_cache"]
        return mapping

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> ChatReply:
        """Return the reply that `to_mapping` described.

        Raises:
            KeyError: A field is missing.
            TypeError: A field is unknown, or one that holds others is no object.
        """
        calls = tuple(ToolCall(**call) for call in mapping["tool_calls"])
        usage, dropped = TokenUsage(**mapping["usage"]), tuple(mapping.get("dropped", ()))
        return cls(**{**mapping, "tool_calls": calls, "usage": usage, "dropped": dropped})


class ChatModel(Protocol):
    """Whoever answers requests; it may be asked by many tasks of one event loop at once.

    Caches, rate limits and counters are chat models that hold another one, so they can be put around any.

    Example:
        >>> from resilisim.chat import ChatReply
        >>> class Echo:
        ...     name = "echo"
        ...     async def complete(self, request):
        ...         return ChatReply(request.messages[-1].content)
        ...     async def aclose(self):
        ...         pass
    """

    @property
    def name(self) -> str:
        """What records call it, such as "openai:gpt-4o-mini"; never a secret."""
        ...

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer a request.

        Raises:
            InfrastructureError: It could not be answered, through no fault of the request.
            InvalidInputError: The request, the key or the model's name was refused.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections; the model can be asked again afterwards."""
        ...


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def estimated_prompt_tokens(request: ChatRequest) -> int:
    """Return about how many tokens the prompt of a request has, its tools' definitions included."""
    texts = [message.content for message in request.messages]
    texts += [call.name + call.arguments for message in request.messages for call in message.tool_calls]
    texts += [canonical_json(dict(tool)) for tool in request.tools]
    return TOKENS_PER_MESSAGE * len(request.messages) + sum(estimated_tokens(text) for text in texts)


def estimated_usage(request: ChatRequest, text: str, tool_calls: tuple[ToolCall, ...]) -> TokenUsage:
    """Return about what a request and its answer took."""
    written = text + "".join(call.name + call.arguments for call in tool_calls)
    return TokenUsage(estimated_prompt_tokens(request), estimated_tokens(written), is_estimate=True)


def is_count(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number of tokens: whole, if written with a point or not, and possible."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MOST_TOKENS and value == int(value)


def fitted(reply: ChatReply, request: ChatRequest) -> ChatReply:
    """Return a reply as records can keep it, whoever gave it.

    One that is longer than any model writes is cut, as if the model had been stopped there, which its reason to end
    says. Counts of tokens that cannot be are estimated.
    """
    usage = reply.usage
    if not (is_count(usage.prompt_tokens) and is_count(usage.completion_tokens)):
        usage = estimated_usage(request, reply.thoughts + reply.text, reply.tool_calls)
        reply = dataclasses.replace(reply, usage=usage)
    parts = [reply.text, *(call.arguments for call in reply.tool_calls[:MOST_CALLS]), reply.thoughts]
    if sum(map(len, parts)) <= LONGEST_REPLY and len(reply.tool_calls) <= MOST_CALLS:
        return reply
    left, kept = LONGEST_REPLY, []
    for part in parts:
        kept.append(part[:left])
        left -= len(kept[-1])
    calls = tuple(
        dataclasses.replace(call, arguments=raw) for call, raw in zip(reply.tool_calls, kept[1:-1], strict=False)
    )
    reason = "length" if left == 0 else reply.finish_reason
    return dataclasses.replace(reply, text=kept[0], tool_calls=calls, thoughts=kept[-1], finish_reason=reason)


class EndpointError(InfrastructureError):
    """An endpoint did not answer, also not after the last retry.

    Attributes:
        status: The last HTTP status; None if there was none (no connection, no answer in time).
        attempts: How often it was asked.

    Example:
        >>> from resilisim.chat import EndpointError
        >>> EndpointError("the endpoint is down", status=503, attempts=5).status
        503
    """

    def __init__(self, message: str, status: int | None = None, attempts: int = 1) -> None:
        super().__init__(message)
        self.status = status
        self.attempts = attempts


class RequestRefusedError(InvalidInputError):
    """An endpoint refuses a request, and would again: a wrong key, an unknown model, a parameter it does not take.

    Attributes:
        status: The HTTP status.

    Example:
        >>> from resilisim.chat import RequestRefusedError
        >>> RequestRefusedError("the key is refused", status=401).concerns_all_requests
        True
    """

    is_from_outside = True  # `resilisim.errors.fault_of`
    # Who asks is unknown, not permitted, or asks at a wrong address: no other request would fare better.
    _STATUSES_OF_ALL = frozenset({401, 403, 404, 405})

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status

    @property
    def concerns_all_requests(self) -> bool:
        """Whether every other request would be refused as well."""
        return self.status in self._STATUSES_OF_ALL


class ContextOverflowError(RequestRefusedError):
    """A request is longer than the model can read: a shorter one would be answered.

    Example:
        >>> from resilisim.chat import ContextOverflowError
        >>> ContextOverflowError("9,000 tokens exceed 8,192").concerns_all_requests
        False
    """

    _STATUSES_OF_ALL = frozenset()


# What endpoints say then; their words differ, and few give a code.
_OVERFLOW_WORDS = re.compile(
    r"context[_ ]length|maximum context|context window|context[_ ]size|available context|too many (?:input )?tokens"
    r"|(?:prompt|input|request|message)s? (?:is|are) too long|prompt too long|maximum (?:input|prompt) length"
    r"|reduce the length of|input length .{0,60}exceed|string_above_max_length",
    re.IGNORECASE,
)


def tells_context_overflow(status: int, words: str) -> bool:
    """Tell whether an endpoint refuses a request because it is too long, by its status and its words, code included."""
    if status == 413 and "too large" in words.lower():
        return True
    return status in (400, 413, 422) and _OVERFLOW_WORDS.search(words) is not None
