"""A model behind any OpenAI-compatible endpoint: its address and key, and the asking.

The official client asks, and its own retries are switched off: ours also repeat answers that are no chat completions,
take their jitter from seeded draws, and end in errors that say how often and why. Nobody but the client is given the
key.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

from resilisim.certificates import trusted_certificates
from resilisim.chat.completions import (
    EMPTY_CONTENT,
    LATER_TOKEN_LIMIT,
    NULL_CONTENT,
    SEVERAL_CALLS,
    TOKEN_LIMIT,
    UnreadableAnswerError,
    error_code,
    error_message,
    read_reply,
    refused_option,
    request_body,
)
from resilisim.chat.middleware import ChatModelSettings, demanded_wait, is_passing
from resilisim.chat.types import (
    ChatReply,
    ChatRequest,
    ContextOverflowError,
    EndpointError,
    RequestRefusedError,
    tells_context_overflow,
)
from resilisim.errors import InvalidInputError, import_extra, one_line
from resilisim.provenance import content_hash, without_surrogates
from resilisim.redaction import SECRET_MARK, SHORTEST_SECRET, keep_secret, without_known
from resilisim.seeding import Draws

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

BASE_URL_VARIABLE = "OPENAI_BASE_URL"
API_KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_BASE_URL = "https://api.openai.com/v1"
NO_KEY = "none"  # what is sent to an endpoint that needs no key; the client library insists on one

# What keys of common services look like, also when an endpoint repeats one cut or masked.
_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|key)-[\w*.\-]{4,}|\bBearer\s+\S+", re.IGNORECASE)

_OWN_NAMES: Final = (SEVERAL_CALLS, NULL_CONTENT, EMPTY_CONTENT)
_CONNECTIONS_PER_CLIENT = 32
# Bytes of an answer; longer ones are not read to their end. Of an error or a redirect only the beginning is.
LONGEST_BODY = 8_000_000
LONGEST_ERROR = 64_000


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
        line = _KEY_LIKE.sub(SECRET_MARK, self.without_key(" ".join(text.split())))
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
