"""A model behind any OpenAI-compatible endpoint: its address and key, the form of requests and replies, the asking.

The official client asks, and its own retries are switched off: ours also repeat answers that are no chat completions,
take their jitter from seeded draws, and end in errors that say how often and why. Nobody but the client is given the
key, and replies are read with distrust.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import re
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

from resilisim.certificates import trusted_certificates
from resilisim.chat.json_answers import split_thoughts
from resilisim.chat.middleware import ChatModelSettings, demanded_wait, is_passing
from resilisim.chat.types import (
    MOST_CALLS,
    ChatMessage,
    ChatReply,
    ChatRequest,
    ContextOverflowError,
    EndpointError,
    RequestRefusedError,
    TokenUsage,
    ToolCall,
    estimated_usage,
    fitted,
    is_count,
    tells_context_overflow,
)
from resilisim.chat.unwrapping import text_of_parts
from resilisim.errors import InvalidInputError, import_extra, one_line
from resilisim.provenance import content_hash, without_surrogates
from resilisim.redaction import MARK, SHORTEST_SECRET, keep_secret, without_known
from resilisim.seeding import Draws

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

BASE_URL_VARIABLE = "OPENAI_BASE_URL"
API_KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_BASE_URL = "https://api.openai.com/v1"
NO_KEY = "none"  # what is sent to an endpoint that needs no key; the client library insists on one

# What keys of common services look like, also when an endpoint repeats one cut or masked.
_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|key)-[\w*.\-]{4,}|\bBearer\s+\S+", re.IGNORECASE)

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
_OWN_NAMES: Final = (SEVERAL_CALLS, NULL_CONTENT, EMPTY_CONTENT)
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
_CONNECTIONS_PER_CLIENT = 32
# Bytes of an answer; longer ones are not read to their end. Of an error or a redirect only the beginning is.
LONGEST_BODY = 8_000_000
LONGEST_ERROR = 64_000
_LONGEST_WORD: Final = 200  # characters of an id, a model's name, a reason to end
_LONGEST_NAME: Final = 1_000  # characters of a function's name
_MOST_DIGITS: Final = 300  # of a whole number


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address without a slash at its end, and its key or `NO_KEY`."""

    url: str
    key: str = field(repr=False)
    variable: str = API_KEY_VARIABLE  # which holds the key

    def without_key(self, text: str) -> str:
        """Return a text without the key, if it is long enough to be a secret, or its JSON escapes at any depth."""
        return text if len(self.key) < SHORTEST_SECRET else without_known(text, [self.key])

    def excerpt(self, text: str, length: int = 200) -> str:
        """Return the beginning of an endpoint's own words on one line, without anything that looks like a key."""
        line = _KEY_LIKE.sub(MARK, self.without_key(" ".join(text.split())))
        return one_line(without_surrogates(line), length)


_ADDRESSED = re.compile(r"(?P<name>.*?)@(?P<url>https?://.*)", re.DOTALL | re.IGNORECASE)


def split_address(model: str) -> tuple[str, str | None]:
    """Split `NAME@URL` into what the endpoint calls the model, and its address; None if there is none."""
    match = _ADDRESSED.fullmatch(model.strip())
    return (model.strip(), None) if match is None else (match["name"].strip(), match["url"].strip())


def key_variable(url: str) -> str:
    """Return the variable that holds the key of an endpoint which a model names: its own, by host and port."""
    place = urlsplit(url).netloc.upper()
    return f"{API_KEY_VARIABLE}_{re.sub(r'[^A-Z0-9]+', '_', place)}"


def endpoint_url(base_url: str | None = None) -> str:
    """Return the address of the endpoint: the one given, else the environment's, else OpenAI's.

    One that holds more is refused: credentials would end up in records, and the client library would lose a query.
    """
    where, url = "base URL", base_url
    if url is None:
        where, url = BASE_URL_VARIABLE, os.environ.get(BASE_URL_VARIABLE, "").strip() or DEFAULT_BASE_URL
    try:
        parts = urlsplit(url.strip())
        has_host, _ = bool(parts.hostname), parts.port
    except ValueError:
        has_host, parts = False, urlsplit("")
    if parts.scheme not in ("http", "https") or not has_host or any(c.isspace() for c in url.strip()):
        # The text is not repeated: it may be a key that was put into the wrong place.
        raise InvalidInputError(f"{where}: no address of a web service; expected one such as {DEFAULT_BASE_URL!r}")
    if "@" in parts.netloc:
        raise InvalidInputError(f"{where}: holds credentials; expected an address alone, and the key in OPENAI_API_KEY")
    if parts.query or parts.fragment:
        raise InvalidInputError(f"{where}: holds a query or a fragment; expected one such as {DEFAULT_BASE_URL!r}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def find_endpoint(
    base_url: str | None = None, api_key: str | None = None, variable: str = API_KEY_VARIABLE
) -> Endpoint:
    """Return address and key, each as given, else from the environment; only OpenAI's own endpoint must have a key."""
    url = endpoint_url(base_url)
    key = (os.environ.get(variable, "") if api_key is None else api_key).strip()
    if not key and urlsplit(url).hostname == urlsplit(DEFAULT_BASE_URL).hostname:
        raise InvalidInputError(
            f"{url} needs a key: set {variable}, or name another endpoint in {BASE_URL_VARIABLE} or --base-url"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidInputError(f"{variable}: not a key; expected printable ASCII characters without spaces")
    keep_secret(key)
    return Endpoint(url, key or NO_KEY, variable)


def named_endpoint(url: str, settings: ChatModelSettings) -> Endpoint:
    """Return the endpoint that a model names: with the key of its own variable, or that of all on the same host.

    A key is never sent to another host than it is for.
    """
    address = endpoint_url(url)
    own = key_variable(address)
    usual = urlsplit(endpoint_url(settings.base_url)).netloc
    if not os.environ.get(own, "").strip() and urlsplit(address).netloc == usual:
        return find_endpoint(address, settings.api_key)
    return find_endpoint(address, variable=own)


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
    raise UnreadableAnswerError("a message whose content is no text")


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


class _Session:
    """What belongs to one event loop: connections, and the limit on requests under way.

    The client library looks at all of its connections for each request, so there are several clients with a few each.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, make_client: Callable[[], AsyncOpenAI], max_concurrency: int
    ) -> None:
        self.loop = loop
        self._make_client = make_client
        self._clients: dict[int, AsyncOpenAI] = {}
        # The place that was given back last is taken first, so its connection is still open.
        self._places: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for place in reversed(range(max_concurrency)):
            self._places.put_nowait(place // _CONNECTIONS_PER_CLIENT)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncOpenAI]:
        """Wait for a free place, and lend its client."""
        place = await self._places.get()
        try:
            if place not in self._clients:
                self._clients[place] = self._make_client()
            yield self._clients[place]
        finally:
            self._places.put_nowait(place)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why an attempt failed: in a few words, with the HTTP status if there was one."""

    reason: str
    status: int | None = None
    is_passing: bool = True
    demanded: float | None = None  # seconds that the endpoint asks to wait
    is_overflow: bool = False

    @property
    def tail(self) -> str:
        return f": {self.reason}" if self.reason else ""


class OpenAIChatModel:
    """A model behind an OpenAI-compatible endpoint.

    A request that waits for its retry keeps its place among `max_concurrency`, which eases the load on an endpoint that
    complains of it. The `model` may name an endpoint of its own, `NAME@URL`, whose key is in the environment
    (`key_variable`). `timeout_seconds` is for one attempt, from connecting to the last byte. The key stands in no text
    that this class makes, whatever the endpoint repeats. `options` are single values of the settings, by name.

    Raises:
        InvalidInputError: An argument is out of range, the address is none, or a key is needed and missing.
        MissingExtraError: The package `openai` is not installed.

    Example:
        >>> from resilisim.chat import OpenAIChatModel
        >>> OpenAIChatModel("small", base_url="http://127.0.0.1:8000/v1", timeout_seconds=60.0)
        OpenAIChatModel('small', base_url='http://127.0.0.1:8000/v1')
    """

    def __init__(
        self,
        model: str,
        settings: ChatModelSettings | None = None,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        **options: Any,
    ) -> None:
        if not split_address(model)[0]:
            raise InvalidInputError(f"model {model!r}: expected what the endpoint calls a model")
        self._settings = dataclasses.replace(settings or ChatModelSettings(), **options)
        self.model, url = split_address(model)
        self._endpoint: Endpoint = (
            find_endpoint(self._settings.base_url, self._settings.api_key)
            if url is None
            else named_endpoint(url, self._settings)
        )
        self._openai = import_extra("openai", "an OpenAI-compatible endpoint needs the package", "llm")
        self._transport_errors = _transport_errors()
        self._sleep = sleep
        self._dropped: set[str] = set()
        self._session: _Session | None = None

    def __repr__(self) -> str:
        return f"OpenAIChatModel({self.model!r}, base_url={self._endpoint.url!r})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, which would write the key down."""
        raise TypeError("an OpenAIChatModel holds a key and connections: make one in each process")

    @property
    def name(self) -> str:
        """What records call it."""
        return f"openai:{self.model}"

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Ask the endpoint, again after failures that may pass.

        Raises:
            EndpointError: It did not answer, also not after the last retry.
            ContextOverflowError: The request is longer than the model can read.
            RequestRefusedError: It refuses the request, the key or the model.
        """
        session = self._session_of_running_loop()
        async with session.client() as client:
            return await self._answer(client, request)

    async def aclose(self) -> None:
        """Close the connections; the next request opens new ones."""
        session, self._session = self._session, None
        if session is not None and session.loop is asyncio.get_running_loop():
            await session.close()

    def _session_of_running_loop(self) -> _Session:
        """Return the connections of this event loop; those of a loop that has ended cannot be used any more."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.loop is not loop:
            self._session = _Session(loop, self._make_client, self._settings.max_concurrency)
        return self._session

    def _make_client(self) -> AsyncOpenAI:
        client: AsyncOpenAI = self._openai.AsyncOpenAI(
            api_key=self._endpoint.key,
            base_url=self._endpoint.url,
            timeout=self._settings.timeout_seconds,
            max_retries=0,
            http_client=self._openai.DefaultAsyncHttpxClient(
                verify=trusted_certificates(_http_libraries()[0]), event_hooks={"response": [_shorten_error]}
            ),
        )
        return client

    async def _answer(self, client: AsyncOpenAI, request: ChatRequest) -> ChatReply:
        draws: Draws | None = None  # hashing the request costs more than everything else of ours, and few need it
        attempt = 1
        while True:
            outcome = await self._attempt(client, request)
            if isinstance(outcome, ChatReply):
                return dataclasses.replace(outcome, attempts=attempt)
            if not outcome.is_passing:
                raise self._error(outcome, attempt)
            if draws is None:
                draws = Draws("resilisim/chat/backoff", content_hash(request.content()))
            wait = self._settings.retry.wait_before_retry(attempt, outcome.demanded, draws)
            if wait is None or attempt > self._settings.retry.retries:
                raise self._error(outcome, attempt)
            await self._sleep(wait)
            attempt += 1

    async def _attempt(self, client: AsyncOpenAI, request: ChatRequest) -> ChatReply | _Failure:
        refused: dict[str, str] = {}  # options, with the endpoint's words; only an answer proves that it was they
        while True:
            body = request_body(request, self.model, self._dropped | refused.keys())
            began = time.perf_counter()
            try:
                # The client's timeout is for each read: a server that sends a byte now and then would never time out.
                async with asyncio.timeout(self._settings.timeout_seconds):
                    text = await self._ask(client, body)
                reply = read_reply(self._endpoint.without_key(text), request, time.perf_counter() - began)
                for name, words in refused.items():
                    self._drop(name, words)
                return dataclasses.replace(reply, dropped=self._left_out(request, body))
            except (TimeoutError, self._openai.APITimeoutError):
                return _Failure(f"no answer within {self._settings.timeout_seconds:g} s")
            except self._openai.APIStatusError as error:
                failure = self._status_failure(error)
                option = None if failure.is_overflow else refused_option(error.status_code, error.body, body)
                if option is None:
                    return failure
                refused[option] = failure.reason  # what is sent gets less each time, so this ends
            except (self._openai.OpenAIError, *self._transport_errors) as error:
                cause = error.__cause__ or error
                return _Failure(f"no connection ({self._endpoint.excerpt(str(cause)) or type(cause).__name__})")
            except UnreadableAnswerError as error:
                return _Failure(self._endpoint.excerpt(str(error)), 200)

    def _drop(self, option: str, words: str) -> None:
        """Leave an option out from now on; other requests under way may have been told so already."""
        if option in self._dropped:
            return
        self._dropped.add(option)
        instead = f"{LATER_TOKEN_LIMIT!r} is sent instead" if option == TOKEN_LIMIT else "it is left out from now on"
        what = option if option in _OWN_NAMES else repr(option)
        warnings.warn(
            f"{self.name}: {self._endpoint.url} refuses {what}; {instead} ({words})", UserWarning, stacklevel=2
        )

    def _left_out(self, request: ChatRequest, body: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the options that the request asks for and its body lacks."""
        limit = LATER_TOKEN_LIMIT if TOKEN_LIMIT in self._dropped else TOKEN_LIMIT
        wanted = request.settings()
        wanted |= wanted.pop("extra", {})
        wanted[limit] = wanted.pop("max_tokens")
        return tuple(name for name, value in wanted.items() if value not in (None, []) and name not in body)

    async def _ask(self, client: AsyncOpenAI, body: Mapping[str, Any]) -> str:
        """Send a request once and return the answer's text, read no further than it may be long."""
        # As an extra body the messages pass as they are; the client would check each against its types, which takes
        # three times as long as the rest of a request.
        asking = client.chat.completions.with_streaming_response.create(
            model=self.model, messages=[], extra_body=dict(body)
        )
        parts: list[bytes] = []
        length = 0
        async with asking as response:
            async for part in response.iter_bytes():
                length += len(part)
                if length > LONGEST_BODY:
                    raise UnreadableAnswerError(f"a body of more than {LONGEST_BODY:,} bytes")
                parts.append(part)
        return b"".join(parts).decode("utf-8", "replace")

    def _status_failure(self, error: APIStatusError) -> _Failure:
        status = error.status_code
        if status in (401, 403):  # their texts tend to repeat the key, cut or masked in ways that nobody can list
            return _Failure("", status, is_passing=False)
        words = self._endpoint.excerpt(error_message(error.body))
        is_overflow = tells_context_overflow(status, f"{error_code(error.body)} {error_message(error.body)}")
        return _Failure(words, status, is_passing(status), demanded_wait(error.response.headers), is_overflow)

    def _error(self, failure: _Failure, attempt: int) -> Exception:
        """Return what a failure means that no retry can mend, or that the last one has not."""
        status, place = failure.status or 0, self._endpoint.url
        if failure.is_passing or not 400 <= status < 500:
            what = failure.reason if failure.status is None else f"status {status}{failure.tail}"
            if failure.demanded is not None and failure.demanded > self._settings.retry.longest_demand:
                longest = self._settings.retry.longest_demand
                what += f"; it asks to wait {failure.demanded:.0f} s, more than {longest:g} s"
            times = "once" if attempt == 1 else f"{attempt} times"
            check = f"; {_how_to_check(place)}" if failure.status is None else ""
            return EndpointError(f"{place} does not answer ({what}); asked {times}{check}", failure.status, attempt)
        if status in (401, 403):
            text = f"{place} refuses the key (status {status}): expected a valid one in {self._endpoint.variable}"
        elif status == 404:
            text = f"{place} knows no model {self.model!r}, or is no such endpoint (status 404{failure.tail})"
            text += f"; {_how_to_check(place)}"
        else:
            text = f"{place} refuses the request (status {status}{failure.tail})"
        return (ContextOverflowError if failure.is_overflow else RequestRefusedError)(text, status)


def _how_to_check(url: str) -> str:
    """Return how a user finds out whether an endpoint is there."""
    return (
        f"`curl {url}/models` shows whether it is up; its address is --base-url or {BASE_URL_VARIABLE}, "
        f"its key {API_KEY_VARIABLE}"
    )


async def _shorten_error(response: Any) -> None:
    """Let the client, which reads bodies of errors and redirects whole, see their beginning alone."""
    if response.status_code < 300:
        return
    whole = response.stream
    library = sys.modules[type(response).__module__.partition(".")[0]]  # the one of two that this client uses

    # The client takes streams of its own library's class alone, and which library that is shows when it runs.
    class Beginning(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            length = 0
            async for part in whole:
                yield part
                length += len(part)
                if length > LONGEST_ERROR:
                    return

        async def aclose(self) -> None:
            await whole.aclose()

    response.stream = Beginning()


def _http_libraries() -> list[Any]:
    """Return the HTTP library below the client, which is one of two, and may be loaded beside the other."""
    return [sys.modules[name] for name in ("httpx2", "httpx") if name in sys.modules]


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return what the HTTP library raises when a connection breaks within an answer."""
    return tuple(library.HTTPError for library in _http_libraries())
