"""A model behind any OpenAI-compatible endpoint, asked through the official client, with retries of our own.

The client's own retries are switched off: ours also repeat answers that are no chat completions, take their jitter
from seeded draws, and end in errors that say how often and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from resilisim.chat.errors import ContextOverflowError, EndpointError, RequestRefusedError, tells_context_overflow
from resilisim.chat.openai_endpoint import API_KEY_VARIABLE, Endpoint, find_endpoint
from resilisim.chat.openai_wire import (
    LATER_TOKEN_LIMIT,
    SEVERAL_CALLS,
    TOKEN_LIMIT,
    UnreadableAnswerError,
    error_code,
    error_message,
    read_reply,
    refused_option,
    request_body,
)
from resilisim.chat.retrying import RetryPolicy, demanded_wait, is_passing
from resilisim.chat.types import ChatReply, ChatRequest
from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.provenance import content_hash
from resilisim.seeding import Draws

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

# As long as the client library's own: a model may think for minutes, and nothing is sent until it is done.
DEFAULT_TIMEOUT_SECONDS = 600.0
_CONNECTIONS_PER_CLIENT = 32
# Bytes of an answer; longer ones are not read to their end. Of an error or a redirect only the beginning is.
LONGEST_BODY = 8_000_000
LONGEST_ERROR = 64_000


class _Session:
    """What belongs to one event loop: connections, and the limit on requests under way.

    The client library looks at all of its connections whenever a request begins or ends, which at 256 of them costs
    more than all the rest; so each client has a few, and there are as many clients as are needed.

    Args:
        loop: The event loop.
        make_client: Makes a client.
        max_concurrency: Requests under way at once.
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
    """Why an attempt failed.

    Attributes:
        reason: What happened, in a few words.
        status: The HTTP status, if there was one.
        is_passing: Whether the same request may succeed later.
        demanded: Seconds that the endpoint asks to wait, if it does.
        is_overflow: Whether the request is longer than the model can read.
    """

    reason: str
    status: int | None = None
    is_passing: bool = True
    demanded: float | None = None
    is_overflow: bool = False


class OpenAIChatModel:
    """A model behind an OpenAI-compatible endpoint.

    Args:
        model: What the endpoint calls the model.
        base_url: Address of the endpoint; None takes OPENAI_BASE_URL, else OpenAI's.
        api_key: None takes OPENAI_API_KEY; endpoints other than OpenAI's may need none. It stands in no text that
            this class makes, whatever the endpoint repeats.
        timeout_seconds: Seconds that one attempt may take, from connecting to the last byte.
        max_concurrency: Requests under way at once; one that waits for its retry keeps its place, which eases the
            load on an endpoint that complains of it.
        retry: When to ask again.
        sleep: How to wait.

    Raises:
        InvalidInputError: An argument is out of range, the address is none, or a key is needed and missing.
        MissingExtraError: The package `openai` is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        max_concurrency: int = 8,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not model.strip():
            raise InvalidInputError(f"model {model!r}: expected what the endpoint calls a model")
        if not timeout_seconds > 0:
            raise InvalidInputError(f"timeout of {timeout_seconds!r} seconds: expected more than 0")
        if max_concurrency < 1:
            raise InvalidInputError(f"concurrency {max_concurrency!r}: expected 1 or more")
        self.model = model.strip()
        self._endpoint: Endpoint = find_endpoint(base_url, api_key)
        self._openai = _require_openai()
        self._transport_errors = _transport_errors()
        self._timeout_seconds = timeout_seconds
        self._max_concurrency = max_concurrency
        self._retry = RetryPolicy() if retry is None else retry
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
            self._session = _Session(loop, self._make_client, self._max_concurrency)
        return self._session

    def _make_client(self) -> AsyncOpenAI:
        client: AsyncOpenAI = self._openai.AsyncOpenAI(
            api_key=self._endpoint.key,
            base_url=self._endpoint.url,
            timeout=self._timeout_seconds,
            max_retries=0,
            http_client=self._openai.DefaultAsyncHttpxClient(event_hooks={"response": [_shorten_error]}),
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
                self._refuse(outcome, attempt)
            if draws is None:
                draws = Draws("resilisim/chat/backoff", content_hash(request.content()))
            wait = self._retry.wait_before_retry(attempt, outcome.demanded, draws)
            if wait is None or attempt > self._retry.retries:
                self._give_up(outcome, attempt)
            await self._sleep(wait)
            attempt += 1

    async def _attempt(self, client: AsyncOpenAI, request: ChatRequest) -> ChatReply | _Failure:
        refused: dict[str, str] = {}  # options, with the endpoint's words; only an answer proves that it was they
        while True:
            body = request_body(request, self.model, self._dropped | refused.keys())
            began = time.perf_counter()
            try:
                # The client's timeout is for each read: a server that sends a byte now and then would never time out.
                async with asyncio.timeout(self._timeout_seconds):
                    text = await self._ask(client, body)
                reply = read_reply(self._endpoint.without_key(text), request, time.perf_counter() - began)
                for name, words in refused.items():
                    self._drop(name, words)
                return dataclasses.replace(reply, dropped=self._left_out(request, body))
            except (TimeoutError, self._openai.APITimeoutError):
                return _Failure(f"no answer within {self._timeout_seconds:g} s")
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
        what = option if option == SEVERAL_CALLS else repr(option)
        warnings.warn(
            f"{self.name}: {self._endpoint.url} refuses {what}; {instead} ({words})", UserWarning, stacklevel=2
        )

    def _left_out(self, request: ChatRequest, body: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the options that the request asks for and its body lacks."""
        limit = LATER_TOKEN_LIMIT if TOKEN_LIMIT in self._dropped else TOKEN_LIMIT
        wanted = {
            "stop": request.stop or None,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            limit: request.max_tokens,
        }
        return tuple(name for name, value in wanted.items() if value is not None and name not in body)

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

    def _refuse(self, failure: _Failure, attempt: int) -> NoReturn:
        """Raise what a failure means that no retry can mend."""
        status = failure.status or 0
        if not 400 <= status < 500:
            self._give_up(failure, attempt)
        place = self._endpoint.url
        if status in (401, 403):
            text = f"{place} refuses the key (status {status}): expected a valid one in {API_KEY_VARIABLE}"
        elif status == 404:
            text = f"{place} knows no model {self.model!r}, or is no such endpoint (status 404{_tail(failure)})"
        else:
            text = f"{place} refuses the request (status {status}{_tail(failure)})"
        if failure.is_overflow:
            raise ContextOverflowError(text, status)
        raise RequestRefusedError(text, status)

    def _give_up(self, failure: _Failure, attempt: int) -> NoReturn:
        """Raise what a failure means after the last attempt."""
        what = failure.reason if failure.status is None else f"status {failure.status}{_tail(failure)}"
        if failure.demanded is not None and failure.demanded > self._retry.longest_demand:
            what += f"; it asks to wait {failure.demanded:.0f} s, more than {self._retry.longest_demand:g} s"
        times = "once" if attempt == 1 else f"{attempt} times"
        text = f"{self._endpoint.url} does not answer ({what}); asked {times}"
        raise EndpointError(text, failure.status, attempt)


def _tail(failure: _Failure) -> str:
    return f": {failure.reason}" if failure.reason else ""


async def _shorten_error(response: Any) -> None:
    """Let the client, which reads bodies of errors and redirects whole, see their beginning alone."""
    if response.status_code < 300:
        return
    whole = response.stream
    library = sys.modules[type(response).__module__.partition(".")[0]]  # the one of two that this client uses

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


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return what the HTTP library below the client raises when a connection breaks while an answer is read.

    Versions of the client use one of two libraries, which importing the client has loaded.
    """
    loaded = [sys.modules[name] for name in ("httpx2", "httpx") if name in sys.modules]
    return tuple(library.HTTPError for library in loaded)


def _require_openai() -> Any:
    try:
        return importlib.import_module("openai")
    except ImportError as error:
        message = f"an OpenAI-compatible endpoint needs the package 'openai' ({error}): pip install 'resilisim[llm]'"
        raise MissingExtraError(message) from error
