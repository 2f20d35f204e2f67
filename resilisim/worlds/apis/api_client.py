"""Calls of public APIs over HTTP: one attempt, one answer, and every failure a value.

Nothing is retried: what a call met is what is told. Where a call goes is an address: the real hosts, or a twin that
stands in for them. All else is the same for both.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import quote, urlsplit

from annotated_types import Ge, Le

from resilisim import __version__
from resilisim.bounds import Speed, checked
from resilisim.certificates import trusted_certificates
from resilisim.errors import InvalidInputError, import_extra, one_line
from resilisim.inputs import json_problem, read_json
from resilisim.redaction import without_credentials
from resilisim.tool_library.parameters import check_parameters
from resilisim.worlds.apis.api import PublicApi
from resilisim.worlds.apis.twin import Twin, TwinLaw

if TYPE_CHECKING:
    import httpx2

LARGEST_ANSWER = 2_000_000  # bytes; the answers of the APIs are a thousandth of it
MOST_REDIRECTS = 5
MOST_CALLS_A_HOST = 1000
PerHost = Annotated[int, Ge(1), Le(MOST_CALLS_A_HOST)]
TWIN_SPEED = 5.0  # of a twin that is started for calls: 30 seconds without an answer take 6


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call of an API and what came of it.

    Attributes:
        api: Name of the API.
        parameters: What it was called with.
        attempt: Which call of this API it was, counted from 0.
        output: The documented values, None if the call failed.
        error: Code of the failure, None if it succeeded.
        message: What is said about the failure.
        status: HTTP status, None if no answer began.
        seconds: Time that the call took, as the service's clock runs.
    """

    api: str
    parameters: Mapping[str, Any] = field(hash=False)
    attempt: int
    output: Mapping[str, Any] | None = field(hash=False)
    error: str | None
    message: str
    status: int | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class Address:
    """Where calls go: the real hosts, or a twin.

    Attributes:
        twin: URL of a twin; empty for the real hosts.
        stream: Which of the twin's sequences of draws the calls belong to.
        speed: How much faster than the real hosts' the clock of the twin runs.

    Example:
        >>> from resilisim.worlds.apis import Address, find_api
        >>> Address().origin(find_api("stoic_quote_fetcher"), attempt=0)
        'https://stoic-quotes.com'
        >>> Address("http://127.0.0.1:8750", stream="demo").origin(find_api("stoic_quote_fetcher"), attempt=3)
        'http://127.0.0.1:8750/~demo/3/stoic-quotes.com'
    """

    twin: str = ""
    stream: str = "0"
    speed: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        shown = without_credentials(self.twin)  # which are secret from here on
        if self.twin and not _is_address(self.twin):
            raise InvalidInputError(
                f"the twin's address is {shown!r:.80}: expected a URL, such as http://127.0.0.1:8750"
            )
        checked(Speed, "speed", self.speed)
        if not self.twin and self.speed != 1.0:
            raise InvalidInputError(f"speed is {self.speed:g}: expected 1, the clock of real hosts cannot be changed")

    def origin(self, api: PublicApi, attempt: int) -> str:
        """Return what stands before the path of a call."""
        if not self.twin:
            return api.origin
        return f"{self.twin.rstrip('/')}/~{quote(self.stream, safe='')}/{attempt}/{api.host}"


def _is_address(url: str) -> bool:
    """Return whether a text is the URL of a server, as far as one can see."""
    try:
        parts = urlsplit(url)
        has_place = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:  # a port that is none, or too high; half an address
        return False
    return has_place and not parts.query and not parts.fragment and url.isprintable() and " " not in url


@asynccontextmanager
async def reached(address: Address | None, law: TwinLaw | None = None, stream: str = "0") -> AsyncIterator[Address]:
    """Give an address as it is; for None start a twin and give its own."""
    if address is not None:
        yield address
        return
    async with Twin(law, speed=TWIN_SPEED) as twin:
        yield Address(twin.url, stream, TWIN_SPEED)


class ApiClient:
    """Calls APIs, at most so many of one host at once; use it in `async with`, or call `aclose`.

    Args:
        address: Where calls go; the real hosts if omitted.
        per_host: Calls of one host at a time; others wait, and the wait is not part of their time.

    Raises:
        MissingExtraError: httpx2 is not installed.

    Example:
        >>> import asyncio
        >>> from resilisim.worlds.apis import Address, ApiClient, Twin, TwinLaw, find_api
        >>> async def fetch_word():
        ...     law = TwinLaw(success=1.0, median_seconds=0.0)
        ...     async with Twin(law) as twin, ApiClient(Address(twin.url)) as client:
        ...         return await client.call(find_api("word_fetcher"))
        >>> asyncio.run(fetch_word()).output
        {'word': '...'}
    """

    def __init__(self, address: Address | None = None, per_host: int = 4) -> None:
        self.address = address or Address()
        self._httpx = import_extra("httpx2", "calling an API needs", "apis")
        per_host = checked(PerHost, "per_host", per_host)
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(per_host))
        self._client: httpx2.AsyncClient = self._httpx.AsyncClient(
            headers={"User-Agent": f"resilisim/{__version__}", "Accept": "application/json"},
            timeout=None,  # the whole call has one limit
            follow_redirects=True,
            max_redirects=MOST_REDIRECTS,
            limits=self._httpx.Limits(max_connections=None, max_keepalive_connections=100),
            trust_env=not self.address.twin,
            verify=trusted_certificates(self._httpx),
        )

    async def call(
        self, api: PublicApi, parameters: Mapping[str, Any] | None = None, attempt: int = 0, stream: str | None = None
    ) -> ApiCall:
        """Call an API once.

        Args:
            api: The API.
            parameters: Parameters of the call.
            attempt: Which call of this API it is; a twin draws by it.
            stream: The twin's sequence of draws, the address's if omitted.

        Raises:
            InvalidInputError: The parameters do not fit the API; nothing is sent.
        """
        parameters = dict(parameters or {})
        if problems := check_parameters(api.tool, parameters, "strict"):
            raise InvalidInputError(problems[0])
        if (problem := json_problem(parameters)) is not None:
            raise InvalidInputError(f"the parameters of {api.name} cannot be sent: {problem}")
        address = self.address if stream is None else Address(self.address.twin, stream, self.address.speed)
        path, query, body = api.request(parameters)
        async with self._turns[api.host]:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(api.timeout_seconds / address.speed):
                    url = address.origin(api, attempt) + path
                    output, error, message, status = await self._answered(api, url, query, body)
            except TimeoutError:
                output, status = None, None
                error, message = "TIMEOUT", f"no answer within {api.timeout_seconds:g} seconds"
            seconds = (time.perf_counter() - began) * address.speed
        return ApiCall(api.name, parameters, attempt, output, error, message, status, seconds)

    async def _answered(
        self, api: PublicApi, url: str, query: Mapping[str, Any], body: Any
    ) -> tuple[dict[str, Any] | None, str | None, str, int | None]:
        """Return output, error code, message and status."""
        status: int | None = None
        data = bytearray()
        try:
            request = self._client.build_request(api.method, url, params=query, json=body)
            response = await self._client.send(request, stream=True)
            try:
                status = response.status_code
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > LARGEST_ANSWER:
                        return None, "INVALID_RESPONSE", f"the answer is longer than {LARGEST_ANSWER:,} bytes", status
            finally:
                await response.aclose()
        except (self._httpx.TransportError, OSError) as error:
            return None, "NETWORK_ERROR", one_line(error) or type(error).__name__, status
        except (self._httpx.RequestError, self._httpx.InvalidURL) as error:  # too many redirects, a broken encoding
            return None, "OPERATION_FAILED", one_line(error) or type(error).__name__, status
        return (*_read(api, status, response.headers.get("content-type", ""), bytes(data)), status)

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close its connections."""
        await self.aclose()


def _read(api: PublicApi, status: int, media_type: str, data: bytes) -> tuple[dict[str, Any] | None, str | None, str]:
    """Return output, error code and message of a whole answer."""
    if not 200 <= status <= 299:
        return None, api.error_code(status), f"HTTP status {status}{_said(data)}"
    if not data.strip():
        return None, "INVALID_RESPONSE", "the answer is empty"
    kind = media_type.partition(";")[0].strip().lower()
    if kind and "json" not in kind and kind != "text/plain":
        return None, "INVALID_RESPONSE", f"the answer is {kind[:60]!r}, not JSON"
    try:
        answer = read_json(data.decode("utf-8-sig"), "the answer")
    except (UnicodeDecodeError, InvalidInputError) as error:
        reason = "the answer is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else one_line(error)
        return None, "OPERATION_FAILED", reason
    if (refusal := api.refusal(answer)) is not None:
        return None, refusal.code, refusal.reason
    output = api.output(answer)
    if output is None:
        return None, "INVALID_RESPONSE", "the answer does not have the documented form"
    return output, None, ""


def _said(data: bytes) -> str:
    """Return what the body of an error says, where it is short JSON."""
    text = one_line(data[:2000].decode("utf-8", "replace"), 120)
    return f": {text}" if text.startswith(("{", "[")) else ""
