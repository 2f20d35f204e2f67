"""`resilisim mcp proxy`: real MCP servers under a law, unmodified, for any client, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, ServerMessageMetadata, SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from resilisim.bounds import Seed, checked
from resilisim.certificates import trusted_certificates
from resilisim.errors import InfrastructureError, InvalidInputError, ResiliSimError, count_of, one_line
from resilisim.injection.call import Outcome
from resilisim.injection.folder import InjectionFolder
from resilisim.injection.functions import unused_force
from resilisim.injection.inject_options import InjectionSettings
from resilisim.integrations.mcp.host import EPISODE_PATH, LOOPBACK_HOSTS, SESSION_PATH, TASK, listening
from resilisim.integrations.mcp.http_transport import AnsweringTransport
from resilisim.integrations.mcp.relay import Relay
from resilisim.integrations.mcp.server import on_signals
from resilisim.integrations.mcp.streams import process_streams, standard_streams
from resilisim.integrations.mcp.wire import Unreadable, read_messages, request_id
from resilisim.redaction import fit_to_show, without_credentials
from resilisim.tool_library import ToolLibrary

_IDLE_SECONDS: Final = 30 * 60  # after which a session over HTTP that nobody has closed is over
_REQUEST: Final = "resilisim.request"  # where the scope of an HTTP request holds the id of its message
_DISCOVER: Final = "server/discover"
_CONNECT_SECONDS: Final = 30.0
_LONGEST_REASON: Final = 300
_FLUSH_SECONDS: Final = 0.2  # for the last messages to an agent that is still there
_CLOSE_SECONDS: Final = 20.0  # for a server to end, and whatever comes of it
MOST_SERVERS: Final = 128  # that one proxy runs at once
_SPARE_SECONDS: Final = 30.0  # without a request, after which another session may take the place of one
_MOST_BODY: Final = 4 * 1024 * 1024  # bytes of a request
_MOST_NOTES: Final = 100  # of one connection


@dataclass(frozen=True, slots=True)
class Proxied:
    """What stands under a law: a server, and how.

    Attributes:
        injection: Law, seed, goal, folder and all else that `inject` takes.
        command: Command line that starts the server, for each connection anew.
        url: Where the server listens instead.
        library: Describes the server's tools as far as it has them: dependencies, success probabilities, errors.
        call_seconds: How long the server may take to answer anything; ten minutes if omitted.
        headers: What is sent with each request to the URL, such as a token.
    """

    injection: InjectionSettings
    command: tuple[str, ...] = ()
    url: str | None = None
    library: ToolLibrary | None = None
    call_seconds: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    @property
    def name(self) -> str:
        """The server, for people: without what is secret in its URL."""
        return without_credentials(self.url) if self.url else self.command[0]

    @contextlib.asynccontextmanager
    async def connect(
        self, note: Callable[[str], None] = lambda words: None, lost: Callable[[str], None] = lambda words: None
    ) -> AsyncIterator[Any]:
        """Connect to the server, and yield where its messages are read and written.

        Args:
            note: Told on one line what could not be read and was no answer.
            lost: Told that the server cannot be reached any more.
        """
        if self.url is None:
            async with process_streams(self.command) as streams:
                yield streams
            return
        timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)  # how long answers may take is for others to say
        transport = AnsweringTransport(httpx2.AsyncHTTPTransport(verify=trusted_certificates(httpx2)), note, lost)
        async with (
            httpx2.AsyncClient(timeout=timeout, transport=transport, headers=dict(self.headers)) as client,
            streamable_http_client(self.url, http_client=client, max_sse_event_size=None) as streams,
        ):
            yield streams


class ProxyConnection:
    """One connection to the server, which a task of its own holds, and the relay in front of it."""

    def __init__(
        self,
        proxied: Proxied,
        seed: int,
        folder: InjectionFolder | None,
        to_agent: Callable[[JSONRPCMessage, RequestId | None], Awaitable[None]],
        cut: Callable[[RequestId], Awaitable[None]] | None = None,
    ) -> None:
        self._proxied = proxied
        self._seed = seed
        injection = replace(proxied.injection, seed=seed)
        self._notes = 0
        seconds = proxied.call_seconds
        self.relay = Relay(injection, proxied.library, folder, to_agent, self._to_server, seconds, self.note, cut)
        self._version: str | None = None  # of a protocol that is agreed on once for a connection
        self._write: Any = None
        self._ready = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self.task: asyncio.Task[str | None] = asyncio.create_task(self._hold())

    async def open(self) -> None:
        """Wait until the server is there.

        Raises:
            InfrastructureError: It cannot be started.
        """
        ends = [self._ready, self.task]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=_CONNECT_SECONDS)
        if not self._ready.done():
            self.task.cancel()
            words = f"{self._proxied.name}: the server is not there within {_CONNECT_SECONDS:g} s"
            raise InfrastructureError(str(self.task.result()) if self.task.done() else words)

    async def refuse(self, body: bytes) -> Response | None:
        """Return what a request over HTTP is answered with that cannot be read, or whose id is in use; None if it can.

        A call that it holds is in the record all the same.
        """
        messages = read_messages(body)
        if len(messages) != 1:
            words = f"the body holds {len(messages)} messages: expected one"
            self.note(words)
            return _refusal(words, 400, INVALID_REQUEST)
        message = messages[0]
        if isinstance(message, Unreadable):
            words = f"the client's message cannot be read: {message.words}"
            self.note(words)
            if message.method == "tools/call":
                await self.relay.refused_elsewhere(message.tool or "", {}, "unreadable", words)
            return _refusal(words, 400, INVALID_REQUEST, message.id)
        if isinstance(message, JSONRPCRequest) and self.relay.is_waiting(message.id):
            words = f"the id {message.id!r:.80} is that of a request that has no answer yet: expected another id"
            self.note(words)
            if message.method == "tools/call":
                params = message.params or {}
                await self.relay.refused_elsewhere(
                    str(params.get("name")), params.get("arguments"), "id_used_twice", words
                )
            return _refusal(words, 400, INVALID_REQUEST, message.id)
        return None

    def note(self, words: str) -> None:
        """Tell whoever runs the proxy something on one line, but not without end."""
        self._notes += 1
        if self._notes <= _MOST_NOTES:
            more = "" if self._notes < _MOST_NOTES else "; more of this kind is not told"
            sys.stderr.write(f"resilisim: {fit_to_show(one_line(words, 2 * _LONGEST_REASON), one_line=True)}{more}\n")

    async def close(self, is_orderly: bool) -> str | None:
        """End the episode and let go of the server; return what went wrong, if something did."""
        if not self.task.done():
            with _told(self.relay):
                self.relay.end(is_orderly)
        self._closing.set()
        done, _ = await asyncio.wait([self.task], timeout=_CLOSE_SECONDS)
        if not done:
            self.task.cancel()
            return f"{self._proxied.name}: the server has not ended within {_CLOSE_SECONDS:g} s"
        return self.task.result()

    def summary(self) -> str:
        """Return what became of the calls, and the score if there is a goal, on one line."""
        outcomes = Counter(call.outcome for call in self.relay.calls)
        kinds = ", ".join(f"{outcomes[kind]} {kind}" for kind in get_args(Outcome))
        lines = [f"{count_of(len(self.relay.calls), 'call')}: {kinds}"]
        record = None if self.relay.episode is None else self.relay.episode.record
        if record is not None:
            figures = f"V* {record['optimum']:.3f}, regret {record['regret']:.3f}, luck {record['luck']:+.3f}"
            lines.insert(0, f"{record['score']['level']}; {figures}")
        for text in unused_force(self.relay.calls, self._proxied.injection.force):
            lines.append(f"--force {text} changed nothing: that call was never made")
        return f"seed {self._seed}: {'; '.join(lines)}"

    async def _hold(self) -> str | None:
        """Hold the connection until it is closed, and return what has ended it otherwise."""
        error: str | None = None
        try:
            async with self._connected() as (read, self._write):
                self._ready.set_result(None)
                reading = asyncio.ensure_future(self._read(read))
                closing = asyncio.ensure_future(self._closing.wait())
                try:
                    ends: list[asyncio.Future[Any]] = [reading, closing, self.relay.broken]
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    if self.relay.broken.done():
                        self.relay.broken.result()
                    if reading.done():
                        reading.result()
                        error = f"{self._proxied.name}: the server has ended"
                finally:
                    reading.cancel()
                    closing.cancel()
                    await asyncio.gather(reading, closing, return_exceptions=True)
        except Exception as raised:
            cause = _innermost(raised)
            error = str(cause)
            if isinstance(cause, OSError) and not self._ready.done():
                error = f"{self._proxied.name}: the server cannot be started: {cause.strerror or cause}"
            elif not isinstance(cause, ResiliSimError):
                error = f"{self._proxied.name}: the server cannot be reached: {one_line(error, _LONGEST_REASON)}"
        if self._closing.is_set():
            return None
        if error is not None and self._ready.done():
            with _told(self.relay):
                await self.relay.lose_server(error)
        return error

    def _connected(self) -> Any:
        if self._proxied.url is None:
            return self._proxied.connect()
        name = self._proxied.name

        def lost(words: str) -> None:
            self.relay.fail(InfrastructureError(f"{name}: the server cannot be reached: {words}"))

        return self._proxied.connect(self.note, lost)

    async def _read(self, read: Any) -> None:
        with contextlib.suppress(anyio.ClosedResourceError):
            async for item in read:
                if isinstance(item, Exception):
                    self.note(f"the server's message cannot be read: {item}")
                    continue
                message = item if isinstance(item, Unreadable) else item.message
                if isinstance(message, JSONRPCResponse) and "protocolVersion" in message.result:
                    self._version = str(message.result["protocolVersion"])
                await self.relay.from_server(message)

    async def _to_server(self, message: JSONRPCMessage) -> None:
        metadata = None if self._proxied.url is None else ClientMessageMetadata(headers=self._headers(message))
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # its end is seen elsewhere
            await self._write.send(SessionMessage(message, metadata))

    def _headers(self, message: JSONRPCMessage) -> dict[str, str]:
        """Return the headers that HTTP wants of a message."""
        params = getattr(message, "params", None) or {}
        modern = (params.get("_meta") or {}).get(PROTOCOL_VERSION_META_KEY)
        if modern is None or not isinstance(message, JSONRPCRequest):
            return {} if self._version is None else {MCP_PROTOCOL_VERSION_HEADER: self._version}
        headers = {MCP_PROTOCOL_VERSION_HEADER: str(modern), MCP_METHOD_HEADER: message.method}
        if message.method in NAME_BEARING_METHODS:
            headers[MCP_NAME_HEADER] = encode_header_value(str(params.get(NAME_BEARING_METHODS[message.method])))
        listed = self.relay.tools.get(str(params.get("name"))) if message.method == "tools/call" else None
        if listed is not None:
            headers |= mcp_param_headers(x_mcp_header_map(listed.schema), params.get("arguments") or {})
        return headers


@contextlib.contextmanager
def _told(relay: Relay) -> Any:
    """Keep an error of the record from hiding what else is to be done; the connection tells it."""
    try:
        yield
    except ResiliSimError as error:
        relay.fail(error)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def proxy_stdio(proxied: Proxied, tell: Callable[[str], None] = lambda line: None) -> None:
    """Put a server under a law for the client on the standard streams, until one of them is gone.

    Args:
        proxied: The server and the law.
        tell: Told on one line what became of the calls.

    Raises:
        InfrastructureError: The server cannot be started, or has ended before the client.
    """
    asyncio.run(_over_stdio(proxied, tell))


async def _over_stdio(proxied: Proxied, tell: Callable[[str], None]) -> None:
    stopped = asyncio.Event()
    on_signals(stopped.set)
    agent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def to_agent(message: JSONRPCMessage, related: RequestId | None) -> None:
        await (await agent).send(SessionMessage(message))

    connection = ProxyConnection(proxied, proxied.injection.seed, None, to_agent)
    await connection.open()
    async with standard_streams() as (read, write):
        agent.set_result(write)
        reading = asyncio.ensure_future(read_agent(read, connection.relay))
        waits = [asyncio.ensure_future(event.wait()) for event in (stopped, write.has_failed)]
        await asyncio.wait([reading, *waits, connection.task], return_when=asyncio.FIRST_COMPLETED)
        is_orderly = reading.done() or write.has_failed.is_set()
        for each in (reading, *waits):
            each.cancel()
        await asyncio.gather(reading, *waits, return_exceptions=True)
        error = await connection.close(is_orderly)
    tell(connection.summary())
    if error is not None:
        raise InfrastructureError(error)


async def read_agent(read: Any, relay: Relay) -> None:
    """Hand the messages of an agent to the relay until there are no more."""
    async for item in read:
        if not isinstance(item, Exception):
            await relay.from_agent(item if isinstance(item, Unreadable) else item.message)


def proxy_http(
    proxied: Proxied,
    host: str,
    port: int,
    token: str | None = None,
    *,
    ready: Callable[[str], None] = lambda url: None,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Put a server under a law for clients over HTTP, one episode a URL, until the process is told to stop.

    Args:
        proxied: The server and the law. An episode whose name is a number has that much more as its seed.
        host: Where to listen; other machines only with a token.
        port: Port; 0 takes a free one.
        token: What clients must send as bearer token.
        ready: Told the URL once clients can come.
        tell: Told on one line what became of each episode.

    Raises:
        InvalidInputError: The address cannot be listened on, or others could come in without a token.
    """
    if host not in LOOPBACK_HOSTS and not token:
        raise InvalidInputError(f"other machines can reach {host}: expected a token that clients have to send")
    asyncio.run(_over_http(ProxyEpisodes(proxied, host in LOOPBACK_HOSTS, tell), host, port, token, ready))


async def _over_http(
    episodes: ProxyEpisodes, host: str, port: int, token: str | None, ready: Callable[[str], None]
) -> None:
    stopped = asyncio.Event()
    on_signals(stopped.set)
    app = Starlette(routes=[Route(path, endpoint=episodes) for path in (EPISODE_PATH, SESSION_PATH)])
    async with listening(app, host, port, token) as (url, serving):
        ready(url)
        stopping = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait([stopping, asyncio.ensure_future(serving)], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await episodes.close()


class _Url:
    """One episode over HTTP: the connection to the server, and the ways that the agent's requests come in by."""

    def __init__(self, proxied: Proxied, seed: int, folder: InjectionFolder | None) -> None:
        self.connection = ProxyConnection(proxied, seed, folder, self._to_agent, self._cut)
        self._transports: dict[bool, StreamableHTTPServerTransport] = {}
        self._writes: dict[bool, Any] = {}
        self._routes: dict[RequestId, Any] = {}  # where the answer of a request goes
        self._unanswered: dict[RequestId, Any] = {}  # what ends a request that is cancelled
        self._handling: dict[RequestId, asyncio.Task[Any]] = {}  # what answers the HTTP request of a message
        self._tasks: list[asyncio.Task[None]] = []
        self.used = time.monotonic()  # when the last request came or ended
        self.session = uuid.uuid4().hex  # the id of its session, in protocols that have them
        self._introduction: RequestId | None = None  # the request with which a client of the newer protocol begins
        self._is_refused = False  # whether the server does not know that

    @property
    def waits_for_session(self) -> bool:
        """Whether its client has learned that the server speaks the former protocol, and will begin anew."""
        return self._is_refused and False not in self._transports

    async def transport(
        self, is_modern: bool, security: TransportSecuritySettings | None, idle: Callable[[], None]
    ) -> StreamableHTTPServerTransport:
        """Return the transport of an era: the former one has sessions, and in the newer one each request is alone."""
        if is_modern not in self._transports:
            transport = StreamableHTTPServerTransport(
                None if is_modern else self.session, security_settings=security, idle_timeout=_IDLE_SECONDS
            )
            started = asyncio.Event()
            self._transports[is_modern] = transport
            self._tasks.append(asyncio.create_task(self._serve(transport, is_modern, started, idle)))
            await started.wait()
        return self._transports[is_modern]

    async def close(self, is_orderly: bool) -> str | None:
        """End the episode; return what went wrong, if something did."""
        error = await self.connection.close(is_orderly)
        for transport in self._transports.values():
            if not transport.is_terminated:
                await transport.terminate()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return error

    async def _serve(
        self,
        transport: StreamableHTTPServerTransport,
        is_modern: bool,
        started: asyncio.Event,
        idle: Callable[[], None],
    ) -> None:
        async with transport.connect() as (read, write):
            self._writes[is_modern] = write
            started.set()
            scope = transport.idle_scope or anyio.CancelScope()
            with scope:
                async for item in read:
                    if isinstance(item, Exception):
                        continue
                    message, metadata = item.message, item.metadata
                    if isinstance(message, JSONRPCRequest):
                        if message.method == _DISCOVER:
                            self._introduction = message.id
                        self._routes[message.id] = write
                        if isinstance(metadata, ServerMessageMetadata):
                            metadata.request_context.scope[_REQUEST] = message.id
                            self._unanswered[message.id] = metadata.on_request_unanswered
                            self._handling[message.id] = metadata.request_context.scope[TASK]
                    await self.connection.relay.from_agent(message)
                    if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
                        request = request_id((message.params or {}).get("requestId"))
                        end = None if request is None else self._unanswered.pop(request, None)
                        if end is not None:
                            await end()
            if scope.cancelled_caught:
                idle()

    async def _cut(self, request: RequestId) -> None:
        """Cut the connection of the HTTP request of a message, which gets no answer."""
        self._routes.pop(request, None)
        self._unanswered.pop(request, None)
        handling = self._handling.pop(request, None)
        if handling is not None:
            handling.cancel()  # what ends in the middle of a response makes the HTTP server close the connection

    async def _to_agent(self, message: JSONRPCMessage, related: RequestId | None) -> None:
        metadata = None
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            write = None
            self._is_refused |= isinstance(message, JSONRPCError) and message.id == self._introduction is not None
            if message.id is not None:
                write = self._routes.pop(message.id, None)
                self._unanswered.pop(message.id, None)
                self._handling.pop(message.id, None)
        elif related in self._routes:
            write, metadata = self._routes[related], ServerMessageMetadata(related_request_id=related)
        else:
            write = self._writes.get(False)  # the stream of a session that belongs to no request
        if write is not None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await write.send(SessionMessage(message, metadata))


class ProxyEpisodes:
    """The episodes of a proxy over HTTP, by the name in their URL; a name that is new is a new episode.

    At the one address for all each session is the next episode. The newer protocol has no sessions: there the next
    episode begins when a client introduces itself (`server/discover`) after the one before has called a tool.
    """

    def __init__(self, proxied: Proxied, is_loopback: bool, tell: Callable[[str], None]) -> None:
        self._proxied = proxied
        directory = proxied.injection.directory
        self._folder = None if directory is None else InjectionFolder(directory)
        self._tell = tell
        self._urls: dict[str, _Url] = {}
        self._opening = asyncio.Lock()
        self._next = 0  # number of the next episode at the address for all
        self._without_session: str | None = None  # the one there that clients without sessions play
        self._closing: set[asyncio.Task[None]] = set()
        # A page in a browser on this machine must not reach the server through a name of its own (DNS rebinding).
        names = ("127.0.0.1:*", "localhost:*", "[::1]:*")
        self._security = (
            TransportSecuritySettings(allowed_hosts=list(names), allowed_origins=[f"http://{name}" for name in names])
            if is_loopback
            else None
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer an HTTP request; no server is started for one that is refused."""
        request = Request(scope, receive)
        session = request.headers.get("mcp-session-id")
        is_post = request.method == "POST"
        refused = await TransportSecurityMiddleware(self._security).validate_request(request, is_post)
        body = b""
        if refused is None and is_post:
            body, refused = await _body_of(request)
        if refused is not None:
            await refused(scope, receive, send)
            return
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        is_modern = version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS
        name = request.path_params.get("name") or self._name_of(session, is_modern, body)
        try:
            url = self._urls.get(name) or await self._open(name, begins=is_post and session is None)
        except ResiliSimError as error:
            await _refusal(one_line(str(error), _LONGEST_REASON), 502)(scope, receive, send)
            return
        if url is None:
            await _refusal(f"no session {name or session!r:.100} is open", 404)(scope, receive, send)
            return
        url.used = time.monotonic()
        if request.method == "DELETE" and session is None:
            await self._close(name, url)
            await Response(status_code=200)(scope, receive, send)
            return
        refused = await url.connection.refuse(body) if is_post else None
        if refused is not None:
            await refused(scope, receive, send)
            return
        transport = await url.transport(is_modern, self._security, lambda: self._close_soon(name, url))
        await transport.handle_request(scope, _again(body, receive) if is_post else receive, send)
        url.used = time.monotonic()
        await self._left(name, url, transport, is_modern, scope.get(_REQUEST))

    def _name_of(self, session: str | None, is_modern: bool, body: bytes) -> str:
        """Return the name of the episode that a request at the address for all is of; "" if it can be of none."""
        if session is not None:
            return next((name for name, url in self._urls.items() if url.session == session), "")
        methods = [getattr(message, "method", None) for message in read_messages(body)]
        name = self._without_session
        url = None if name is None else self._urls.get(name)
        if not is_modern:
            if name is not None and url is not None and url.waits_for_session:
                return name
            return self._next_name() if "initialize" in methods else ""
        is_over = _DISCOVER in methods and url is not None and url.connection.relay.has_calls
        if is_over and name is not None and url is not None:
            self._close_soon(name, url)
        if name is None or url is None or is_over:
            name = self._without_session = self._next_name()
        return name

    def _next_name(self) -> str:
        """Return the first number whose seed nobody plays or has played to its end."""
        seed = self._proxied.injection.seed
        while str(self._next) in self._urls or (
            self._folder is not None and self._folder.has_played(seed + self._next)
        ):
            self._next += 1
        self._next += 1
        return str(self._next - 1)

    async def close(self) -> None:
        """End all episodes, those that are ending already among them, and release the folder."""
        await asyncio.gather(*(self._close(name, url) for name, url in tuple(self._urls.items())))
        await asyncio.gather(*self._closing)
        if self._folder is not None:
            self._folder.close()

    async def _left(
        self, name: str, url: _Url, transport: StreamableHTTPServerTransport, is_modern: bool, request: Any
    ) -> None:
        """See what the end of an HTTP request means: a cancelled call, or the end of the session."""
        if transport.is_terminated:
            await self._close(name, url)
        elif is_modern and request is not None and url.connection.relay.is_waiting(request):
            cancellation = {"requestId": request, "reason": "the client has closed the stream"}
            cancelled = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=cancellation)
            await url.connection.relay.from_agent(cancelled)

    async def _open(self, name: str, begins: bool) -> _Url | None:
        if not name:
            return None
        async with self._opening:
            url = self._urls.get(name)
            if url is None and begins:
                if len(self._urls) >= MOST_SERVERS:
                    await self._make_room()
                more = int(name) if name.isdecimal() and len(name) < 20 else 0
                seed = checked(Seed, "seed", self._proxied.injection.seed + more)
                url = _Url(self._proxied, seed, self._folder)
                await url.connection.open()
                self._urls[name] = url
                url.connection.task.add_done_callback(functools.partial(self._close_soon, name, url))
            return url

    async def _make_room(self) -> None:
        """End the session that has been idle for the longest time.

        Raises:
            InvalidInputError: All of them are in use.
        """
        name, url = min(self._urls.items(), key=lambda item: item[1].used)
        if time.monotonic() - url.used < _SPARE_SECONDS or url.connection.relay.is_busy:
            raise InvalidInputError(f"{MOST_SERVERS} servers are running for other sessions: end one, or try again")
        await self._close(name, url)

    def _close_soon(self, name: str, url: _Url, *_: object) -> None:
        task = asyncio.get_running_loop().create_task(self._close(name, url, _FLUSH_SECONDS))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, name: str, url: _Url, after: float = 0.0) -> None:
        """End an episode, unless it has ended; its name may be that of another one by now."""
        if self._urls.get(name) is url:
            self._urls.pop(name)
            await asyncio.sleep(after)
            error = await url.close(is_orderly=True)
            self._tell(f"{name}, {url.connection.summary()}" + (f"; {error}" if error is not None else ""))


async def _body_of(request: Request) -> tuple[bytes, Response | None]:
    """Return the body of a request, or how it is refused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return b"", _refusal("expected the content type application/json", 415, INVALID_REQUEST)
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > _MOST_BODY:
            return b"", _refusal(f"the body is longer than {_MOST_BODY // 2**20} MiB", 413, INVALID_REQUEST)
    if not any(not isinstance(each, Unreadable) or each.method for each in read_messages(bytes(body))):
        return b"", _refusal("the body is no message of JSON-RPC", 400, PARSE_ERROR)
    return bytes(body), None


def _again(body: bytes, receive: Any) -> Any:
    """Return what hands out a body that has been read already, and then what comes behind it."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def hand_out() -> Any:
        return left.pop() if left else await receive()

    return hand_out


def _refusal(words: str, status: int, code: int = INTERNAL_ERROR, request: RequestId | None = None) -> Response:
    body = JSONRPCError(jsonrpc="2.0", id=request, error=ErrorData(code=code, message=words))
    text = body.model_dump_json(by_alias=True, exclude_unset=True)
    return Response(text, status_code=status, media_type="application/json")
