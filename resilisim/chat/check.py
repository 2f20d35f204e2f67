"""Trying out a chat model: whether it answers, what it can do, and how fast it is, in a handful of small requests."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from resilisim.chat.json_answers import json_object_in
from resilisim.chat.request_options import Fields, with_fields
from resilisim.chat.types import ChatMessage, ChatModel, ChatReply, ChatRequest, EndpointError, RequestRefusedError
from resilisim.errors import InfrastructureError, InvalidInputError, one_line

DEFAULT_SECONDS_PER_CHECK = 20.0

_STOP = "5"
_COUNTING = "Count from 1 to 20, with commas between the numbers."
_WEATHER = "What is the weather in Paris now? Find out with the tool get_weather; do not answer by yourself."
_CAPITAL = 'Give the capital of France as a JSON object with the keys "city" and "country", and nothing else.'
_SENTENCE = "Write one short sentence about the sea."
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """One thing that was tried."""

    name: str
    passed: bool | None  # whether the model can do it; None if its answers do not tell
    detail: str  # what was seen, in a few words
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What a model can do; `answering` is what the endpoint says has answered."""

    model: str
    answering: str
    checks: tuple[ModelCheck, ...]
    protocols: tuple[str, ...]
    latency_seconds: float
    tokens_per_second: float | None
    counts_tokens: bool

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return dataclasses.asdict(self) | {"protocols": list(self.protocols)}


class _AskedWith:
    """A model that is asked with other fields than a check has by itself."""

    def __init__(self, model: ChatModel, fields: Fields) -> None:
        self.name = model.name
        self._model = model
        self._fields = fields

    async def complete(self, request: ChatRequest) -> ChatReply:
        return await self._model.complete(with_fields(request, self._fields))

    async def aclose(self) -> None:
        await self._model.aclose()


async def check_model(
    model: ChatModel,
    *,
    seconds_per_check: float = DEFAULT_SECONDS_PER_CHECK,
    fields: Fields = MappingProxyType({}),
) -> ModelReport:
    """Try out a model; `InfrastructureError` if it does not answer, not in time or without a text.

    `fields` are those of requests that agents will be given, too (`request_options`).
    """
    model = _AskedWith(model, fields) if fields else model
    try:
        async with asyncio.timeout(seconds_per_check):
            first = await _first_answer(model)
    except TimeoutError:
        raise EndpointError(f"{model.name} gives no answer within {seconds_per_check:g} s (--timeout)") from None
    if not first.text.strip():
        raise EndpointError(f"{model.name} answers without a text (finish reason {first.finish_reason!r})")
    tried = await asyncio.gather(
        _tried("stop sequences", lambda: _check_stop(model, first), seconds_per_check),
        _tried("native tool calls", lambda: _check_tool_call(model), seconds_per_check),
        _tried("JSON answers", lambda: _check_json(model), seconds_per_check),
        _tried("repeats itself", lambda: _check_repetition(model), seconds_per_check),
    )
    native = next(check for check in tried if check.name == "native tool calls")
    counts = not first.usage.is_estimate
    has_speed = first.usage.completion_tokens > 0 and first.latency_seconds > 0.0
    answer = ModelCheck("answers", True, one_line(first.text, 60), first.latency_seconds)
    counting = ModelCheck("counts tokens", counts, _tokens(first), 0.0)
    return ModelReport(
        model=model.name,
        answering=first.model,
        checks=(answer, *tried, counting),
        protocols=("text", "native") if native.passed else ("text",),
        latency_seconds=first.latency_seconds,
        tokens_per_second=first.usage.completion_tokens / first.latency_seconds if has_speed else None,
        counts_tokens=counts,
    )


async def _first_answer(model: ChatModel) -> ChatReply:
    """Return an answer of a line, also from a model that thinks first, at its own temperature and at length."""
    request = _request(_COUNTING, max_tokens=64)
    try:
        reply = await model.complete(request)
    except RequestRefusedError as error:
        if error.concerns_all_requests:
            raise
        return await model.complete(dataclasses.replace(request, temperature=None, seed=None, max_tokens=2048))
    if not reply.text.strip() and reply.finish_reason == "length":
        return await model.complete(dataclasses.replace(request, max_tokens=2048))
    return reply


_Finding = tuple[bool | None, str]


async def _tried(name: str, check: Callable[[], Awaitable[_Finding]], seconds: float) -> ModelCheck:
    """Run a check; a model that fails at it is a finding, not a failure of ours."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(seconds):
            passed, detail = await check()
    except TimeoutError:
        passed, detail = False, f"no answer within {seconds:g} s"
    except (InfrastructureError, InvalidInputError) as error:
        passed, detail = False, str(error)
    return ModelCheck(name, passed, detail, time.perf_counter() - began)


async def _check_stop(model: ChatModel, unstopped: ChatReply) -> _Finding:
    reply = await model.complete(_request(_COUNTING, max_tokens=64, stop=(_STOP,)))
    if _STOP in reply.text:
        return False, f"the answer goes on past {_STOP!r}: {one_line(reply.text, 60)}"
    if _STOP not in unstopped.text:
        return None, f"{_STOP!r} does not come up without them either"
    return True, f"the answer ends before {_STOP!r}"


async def _check_tool_call(model: ChatModel) -> _Finding:
    reply = await model.complete(_request(_WEATHER, max_tokens=128, tools=(_TOOL,)))
    if not reply.tool_calls:
        return False, f"answers in text: {one_line(reply.text, 60)}"
    call = reply.tool_calls[0]
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return False, f"calls {call.name!r} with arguments that are not JSON: {one_line(call.arguments, 60)}"
    if call.name != "get_weather" or not isinstance(arguments, dict) or not isinstance(arguments.get("city"), str):
        return False, f"calls something else: {one_line(f'{call.name} {call.arguments}', 60)}"
    return True, f"{call.name} {one_line(call.arguments, 60)}"


async def _check_json(model: ChatModel) -> _Finding:
    reply = await model.complete(_request(_CAPITAL, max_tokens=96))
    answer = json_object_in(reply.text, ("city", "country"))
    return (False, answer) if isinstance(answer, str) else (True, one_line(json.dumps(answer, ensure_ascii=False), 60))


async def _check_repetition(model: ChatModel) -> _Finding:
    texts = [(await model.complete(_request(_SENTENCE, max_tokens=32))).text for _ in range(2)]
    if texts[0] == texts[1]:
        return True, "the same answer twice at temperature 0 with one seed"
    return False, f"two answers at temperature 0 with one seed: {one_line(texts[0], 40)} / {one_line(texts[1], 40)}"


def _request(question: str, **more: Any) -> ChatRequest:
    return ChatRequest((ChatMessage("user", question),), role="check", temperature=0.0, seed=1, **more)


def _tokens(reply: ChatReply) -> str:
    usage = reply.usage
    estimate = " (estimated: the endpoint does not say)" if usage.is_estimate else ""
    return f"{usage.prompt_tokens} of a prompt, {usage.completion_tokens} of an answer{estimate}"
