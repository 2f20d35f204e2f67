"""The twin: an HTTP server on loopback that answers the routes of the APIs with bodies of their shape, and with faults.

Its draws are a function of (seed, stream, API, attempt), so any call can be repeated alone. The URL says both:
`/~STREAM/ATTEMPT/HOST/PATH`; without them, `/HOST/PATH`, the server counts the attempts of each API itself.
The server speaks just enough HTTP/1.1 for that, on bare streams: a fault such as a reset connection or half a body is
nothing that a web framework can send.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Annotated, Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from annotated_types import Ge, Le

from resilisim.bounds import Seed, Share, Speed, checked
from resilisim.errors import InvalidInputError, check_number, one_line, unknown_name
from resilisim.inputs import json_problem
from resilisim.options import check_options, option
from resilisim.provenance import canonical_json
from resilisim.seeding import Draws
from resilisim.worlds.apis.api import ERROR_CODES, TIMEOUT_SECONDS, PublicApi, generated, public_apis

# Table 16 of the ResiliBench paper and the sentence before it: 948 calls, 500 of them successes. The counts of failures
# add up to 448; the percentages in the table do not fit them (docs/decisions).
PUBLISHED_CALLS, SUCCESSES = 948, 500
PUBLISHED_FAILURES: Mapping[str, int] = {
    "TIMEOUT": 337,
    "OPERATION_FAILED": 41,
    "INVALID_INPUT": 27,
    "INVALID_RESPONSE": 21,
    "NETWORK_ERROR": 21,
    "RATE_LIMIT_ERROR": 1,
}
LOOPBACK = "127.0.0.1"
LONGEST_REQUEST = 64 * 1024  # bytes of its head, and of its body
_ADDRESSED = re.compile(r"/~([^/]*)/(\d{1,18})(/.*)", re.DOTALL)
_JSON = "application/json"
_REASONS = {200: "OK", 201: "Created", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}
# Ways in which a fault of a code looks from outside, all equally likely.
_FORMS: Mapping[str, tuple[str, ...]] = {
    "TIMEOUT": ("silence",),
    "OPERATION_FAILED": ("500", "502", "503", "malformed"),
    "INVALID_INPUT": ("400",),
    "INVALID_RESPONSE": ("empty", "page", "other"),
    "NETWORK_ERROR": ("reset", "truncated"),
    "RATE_LIMIT_ERROR": ("429",),
}


@dataclass(frozen=True, slots=True)
class TwinLaw:
    """What decides how the twin answers.

    Attributes:
        success: Chance that a call succeeds.
        median_seconds: Median latency of an answer that comes.
        spread: Standard deviation of the logarithm of the latency.
        seed: Seed of all draws.
        errors: Weight of each error code among failures; those of table 16 by default.
        success_of: Chance of success of single APIs that have their own.

    Example:
        >>> from resilisim.worlds.apis import TwinLaw
        >>> law = TwinLaw()
        >>> round(law.success, 3), law.drawn("0", "joke_fetcher", attempt=5)[0]
        (0.527, 'TIMEOUT')
    """

    success: Share = option(SUCCESSES / PUBLISHED_CALLS, "Chance that a call succeeds.", default_text="0.527")
    median_seconds: Annotated[float, Ge(0), Le(60)] = option(
        0.4, "Median latency of an answer, in seconds.", flag="--latency"
    )
    spread: Annotated[float, Ge(0), Le(5)] = option(0.6, "Standard deviation of the logarithm of the latency.")
    seed: Seed = option(0, "Seed of all draws.")
    errors: Mapping[str, float] = field(default_factory=lambda: dict(PUBLISHED_FAILURES), hash=False)
    success_of: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse chances and codes that there are not."""
        check_options(self)
        for code, weight in self.errors.items():
            if code not in ERROR_CODES:
                raise unknown_name("error code", code, ERROR_CODES)
            check_number(f"weight of {code}", weight, 0)
        if not sum(self.errors.values()) > 0:
            raise InvalidInputError("errors has no weight above 0: expected at least one")
        for name, chance in self.success_of.items():
            if name not in _api_of_name():
                raise unknown_name("API", name, _api_of_name())
            check_number(f"success of {name}", chance, 0, 1)

    def drawn(self, stream: str, api: str, attempt: int) -> tuple[str | None, str, float]:
        """Return what becomes of a call: error code or None, form of the fault, seconds until the answer."""
        draws = Draws("resilisim/twin", self.seed, stream, api, attempt)
        passes = draws.uniform() < self.success_of.get(api, self.success)
        code = draws.weighted(list(self.errors), list(self.errors.values()))
        form = draws.choice(_FORMS[code])
        first, second = draws.uniform(), draws.uniform()
        normal = math.sqrt(-2.0 * math.log(1.0 - first)) * math.cos(2.0 * math.pi * second)  # Box and Muller
        seconds = self.median_seconds * math.exp(self.spread * normal)
        return (None, "", seconds) if passes else (code, form, seconds)


class Twin:
    """The server; `async with` starts and stops it.

    Args:
        law: What decides how it answers.
        port: Port on loopback; 0 takes a free one.
        speed: How much faster than a real host's its clock runs: a latency of one second takes 1 / speed seconds.

    Attributes:
        url: Where it listens, once it has been started.
        calls: Calls that it has answered, by API.

    Raises:
        InvalidInputError: The port is taken.

    Example:
        >>> import asyncio, urllib.request
        >>> from resilisim.worlds.apis import Twin, TwinLaw
        >>> async def fetch(path):
        ...     async with Twin(TwinLaw(success=1.0, median_seconds=0.0)) as twin:
        ...         return await asyncio.to_thread(lambda: urllib.request.urlopen(twin.url + path).read())
        >>> asyncio.run(fetch("/~demo/0/api.ipify.org/"))
        b'{"ip": ...}'
    """

    def __init__(self, law: TwinLaw | None = None, port: int = 0, speed: float = 1.0) -> None:
        self.law = law or TwinLaw()
        self.url = ""
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._speed = checked(Speed, "speed", speed)
        self._port = port
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Begin to listen."""
        try:
            self._server = await asyncio.start_server(self._serve, LOOPBACK, self._port, limit=LONGEST_REQUEST)
        except OSError as error:
            raise InvalidInputError(f"port {self._port} cannot be used: {error.strerror or error}".lower()) from None
        self.url = f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, and let go of everybody who still waits."""
        if self._server is not None:
            self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def serve_forever(self) -> None:
        """Answer until it is cancelled."""
        assert self._server is not None
        await self._server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while await self._answer(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client has gone, sends what is no request, or the twin is stopped
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, and return whether another may follow on this connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, _, headers = head.partition("\r\n")
        method, _, target = line.rpartition(" ")[0].partition(" ")
        length = re.search(r"(?im)^content-length: *(\d{1,9})\s*$", headers)
        if length is not None and int(length[1]) > LONGEST_REQUEST:
            return False
        sent = await reader.readexactly(int(length[1])) if length is not None else b""
        addressed = _ADDRESSED.fullmatch(target)
        try:
            route = _routed(method, addressed[3] if addressed else target, sent)
        except (ValueError, RecursionError) as error:  # a target or a body that cannot be taken apart
            return _send(writer, 400, json.dumps({"error": one_line(error)}))
        if isinstance(route, str):
            return _send(writer, 404, json.dumps({"error": route}))
        api, values = route
        if (problem := json_problem(values)) is not None:
            return _send(writer, 400, json.dumps({"error": problem}))
        stream, attempt = (unquote(addressed[1]), int(addressed[2])) if addressed else ("", self.calls[api.name])
        self.calls[api.name] += 1
        code, form, seconds = self.law.drawn(stream, api.name, attempt)
        if form == "silence":
            # Until the client has given up, which is what ends it; the limit is for clients without one.
            await asyncio.wait_for(_gone(reader), 2 * TIMEOUT_SECONDS / self._speed)
            return False
        if seconds:
            await asyncio.sleep(seconds / self._speed)
        if code is not None:
            return _send_fault(writer, form, api.name)
        return _send(writer, 201 if api.method == "POST" else 200, _body(api, values, self.law.seed, stream, attempt))


async def _gone(reader: asyncio.StreamReader) -> None:
    """Return when the client closes the connection."""
    while await reader.read(4096):
        pass


def _body(api: PublicApi, sent: Mapping[str, Any], seed: int, stream: str, attempt: int) -> str:
    """Return a body: to a question always the same one, of an API that is asked nothing another at each attempt."""
    asked = canonical_json(dict(sent)) if api.parameters else attempt
    draws = Draws("resilisim/twin/answer", seed, stream, api.name, asked)
    return json.dumps(generated(api.answer, draws, sent), ensure_ascii=False)


@lru_cache(maxsize=1)
def _api_of_name() -> Mapping[str, PublicApi]:
    return {api.name: api for api in public_apis()}


@lru_cache(maxsize=1)
def _routes() -> tuple[tuple[str, str, re.Pattern[str], PublicApi], ...]:
    """Return method, host, pattern of the path and API of each route, those without placeholders first."""
    routes = []
    for api in sorted(public_apis(), key=lambda api: "{" in api.route):
        parts = re.split(r"(\{\w+\})", api.route)
        pattern = "".join(f"(?P<{part[1:-1]}>[^/]+)" if part.startswith("{") else re.escape(part) for part in parts)
        routes.append((api.method, api.host, re.compile(pattern), api))
    return tuple(routes)


def _routed(method: str, target: str, sent: bytes) -> tuple[PublicApi, dict[str, Any]] | str:
    """Return the API that a request is for and the parameters that it gives, or what is wrong with it."""
    parts = urlsplit(target)
    host, _, path = parts.path.removeprefix("/").partition("/")
    for wanted, name, pattern, api in _routes():
        if wanted == method and name == host and (match := pattern.fullmatch("/" + path)):
            values: dict[str, Any] = {slot: unquote(text) for slot, text in match.groupdict().items()}
            query = {key: texts[0] for key, texts in parse_qs(parts.query).items()}
            values |= {slot: query[key] for key, slot in _slots(api.query) if key in query}
            if api.body is not None:
                values |= _of_json(api, sent)
            return api, {
                parameter.name: _typed(values[parameter.name], parameter.type)
                for parameter in api.parameters
                if parameter.name in values
            }
    return f"no route {method} {target[:200]}; the routes are those of the APIs, each behind its host"


def _slots(template: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return key and parameter of each value that is a placeholder."""
    return [(key, text[1:-1]) for key, text in template.items() if isinstance(text, str) and text.startswith("{")]


def _of_json(api: PublicApi, sent: bytes) -> dict[str, Any]:
    try:
        value = json.loads(sent)
    except (ValueError, RecursionError):
        return {}
    return {slot: value[key] for key, slot in _slots(api.body or {}) if isinstance(value, dict) and key in value}


def _typed(value: Any, kind: str) -> Any:
    """Return what a text of a URL stands for, where a parameter is a number."""
    if kind not in ("integer", "number") or not isinstance(value, str):
        return value
    try:
        return int(value) if kind == "integer" else float(value)
    except ValueError:
        return value


def _send(writer: asyncio.StreamWriter, status: int, text: str, media_type: str = _JSON, more: str = "") -> bool:
    data = text.encode()
    reason = _REASONS.get(status, "Internal Server Error")
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: {media_type}\r\nContent-Length: {len(data)}\r\n{more}\r\n"
    writer.write(head.encode() + data)
    return True


def _send_fault(writer: asyncio.StreamWriter, form: str, name: str) -> bool:
    """Send a fault, and return whether the connection is still good."""
    if form in ("reset", "truncated"):
        if form == "truncated":
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n\r\n{"resul')
        else:  # closing with unsent time 0 tells the other side that the connection broke
            taken = writer.get_extra_info("socket")
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False
    if form == "empty":
        return _send(writer, 200, "")
    if form == "malformed":
        return _send(writer, 200, '{"results": [{"name": ')
    if form == "page":
        return _send(writer, 200, "<html><body>Down for maintenance</body></html>", "text/html")
    if form == "other":
        return _send(writer, 200, json.dumps(f"{name} has moved"))
    if form == "429":
        return _send(writer, 429, json.dumps({"error": "too many requests"}), more="Retry-After: 1\r\n")
    return _send(writer, int(form), json.dumps({"error": "the request failed"}))
