"""Sessions over the Model Context Protocol: episodes that any MCP client can play, over stdio or HTTP; extra `mcp`."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from resilisim import __version__
from resilisim.envs.session import EpisodeEnded, Session
from resilisim.envs.ways_of_failing import ANSWERED, Manner
from resilisim.errors import InvalidInputError, ResiliSimError, import_extra, unknown_name

EPISODE_PATH: Final = "/episodes/{name}/mcp"  # protocol 2026-07-28 has no HTTP sessions, so each episode has a URL
SESSION_PATH: Final = "/mcp"  # one address for session after session, each the next episode
WORK_ORDER: Final = "work_order"  # the prompt that says what there is to do
TASK: Final = "resilisim.task"  # where the scope of an HTTP request holds what answers it
START: Final = "episode_start"
EPISODE_FINISH: Final = "episode_finish"
LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
_MOST_EPISODES: Final = 100_000  # URLs that a server remembers

# What begins an episode: task, seed and prompt, as far as the client names them.
Begin: TypeAlias = Callable[[Mapping[str, Any]], Session]
# The server's sockets are ours to tell about, and its log is not the user's.
logging.getLogger("mcp").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client is told: words, and the same as JSON if there is more to it; a failure may come in another way."""

    text: str
    is_error: bool = False
    data: Mapping[str, Any] | None = None
    manner: Manner = ANSWERED


class EpisodeHost:
    """The episodes of one client, one after the other.

    Simulated failures are answers that are errors; so is what a client does wrong: each says in one line what was
    expected.

    Args:
        tools: The tools of an episode, as MCP lists them.
        begin: Begins an episode; what it refuses is told to the client.
        ended: Called once with each episode that is over, and how it ended for the host: "finished", "timeout", "gone".
        starts: Whether the first call of a tool begins the episode, because everything about it is fixed.
        repeats: Whether the next episode can be begun when one is over.
        seconds: How long an episode may take.
    """

    def __init__(
        self,
        tools: list[dict[str, Any]],
        begin: Begin,
        ended: Callable[[Session, str], None] = lambda session, how: None,
        *,
        starts: bool = False,
        repeats: bool = True,
        seconds: float | None = None,
    ) -> None:
        own = [tool for tool in tools if tool["name"] != "finish"]
        names = [tool["name"] for tool in own]
        # What a tool is called here, and what it is called in the session.
        self._called = {_other_name(name, names) if name in (START, EPISODE_FINISH) else name: name for name in names}
        listed = (_renamed(tool, name) for tool, name in zip(own, self._called, strict=True))
        self.tools = [*_EPISODE_TOOLS, *map(_for_mcp, listed)]
        self._names = [tool["name"] for tool in self.tools]
        self._begin = begin
        self._tell_ended = ended
        self._starts = starts
        self._repeats = repeats
        self._seconds = seconds
        self._session: Session | None = None
        self._is_told = True  # whether the end of the episode was told
        self._deadline: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()  # set when the episode is over: whoever hangs need not hang on
        self._order = asyncio.Lock()  # calls that arrive at once are served in order of arrival

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """Answer a call of a tool; one that hangs keeps no other waiting."""
        async with self._order:
            answer, over = await self._answer(name, arguments), self._over
        if answer.manner.hang_seconds:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), answer.manner.hang_seconds)
        return answer

    async def _answer(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        try:
            if name == START:
                return await self._start(arguments)
            if name == EPISODE_FINISH:
                return self._finish(arguments)
            if name not in self._names:
                raise unknown_name("tool", name[:100], self._names)
            return await self._call(self._called[name], arguments)
        except ResiliSimError as error:
            return Answer(" ".join(str(error).split()), is_error=True)

    def leave(self) -> None:
        """End what is under way, because the client is gone: without finishing, it has stopped."""
        if self._session is not None and not self._is_told:
            self._session.stop()
            self._end("finished")

    async def left(self) -> None:
        """End what is under way, as `leave` does, once the call that is being answered has its answer."""
        async with self._order:
            self.leave()

    def abandon(self, how: str) -> None:
        """Give up what is under way."""
        if self._session is not None and not self._is_told:
            self._session.close()
            self._end(how)

    async def _start(self, arguments: Mapping[str, Any]) -> Answer:
        for name in arguments:
            if name not in ("task", "seed", "prompt"):
                raise unknown_name("argument", name[:100], ("task", "seed", "prompt"), START)
        if self._session is not None:
            if not self._session.ended:
                raise InvalidInputError(f"an episode is under way: call {EPISODE_FINISH} before the next {START}")
            if not self._repeats:
                raise InvalidInputError("the episode of this URL is over: the next one needs another URL")
        wanted = {name: value for name, value in arguments.items() if value is not None}
        # The first exact optimum of a process compiles for seconds, in which other episodes go on.
        session = self.take(await asyncio.to_thread(self._begin, wanted))
        return Answer(self.prompt, data={"prompt": self.prompt, "turns": session.turns_left})

    async def work_order(self, arguments: Mapping[str, Any]) -> str:
        """Return what there is to do; without an episode under way this begins the next one, as `START` does.

        Raises:
            InvalidInputError: An argument names no episode, or another one than that which is under way.
        """
        async with self._order:
            if self._session is None or self._session.ended or arguments:
                await self._start(arguments)
            return self.prompt

    @property
    def prompt(self) -> str:
        """What there is to do, in words that fit MCP; empty before an episode has begun."""
        return "" if self._session is None else self._session.prompt

    def take(self, session: Session) -> Session:
        """Make a session the episode that is played, and return it."""
        session.tell_finish(f"the tool {EPISODE_FINISH}")
        self._session, self._over = session, asyncio.Event()
        self._is_told = False
        if self._seconds is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._seconds, self.abandon, "timeout")
        return session

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        session = self._session
        if session is None and self._starts:
            session = self.take(await asyncio.to_thread(self._begin, {}))
        if session is None:
            raise InvalidInputError(f"no episode has begun: call {START} first")
        try:
            result = await session.acall(name, arguments)
        except EpisodeEnded:
            raise InvalidInputError(self._why_over()) from None
        if session.ended:
            self._end("finished")
        # No structured content: some clients show their model that alone, and the words say more.
        return Answer(result, not result.ok, manner=session.manner)

    def _finish(self, arguments: Mapping[str, Any]) -> Answer:
        for name in arguments:
            if name != "answer":
                raise unknown_name("argument", name[:100], ("answer",), EPISODE_FINISH)
        session = self._session
        if session is None:
            raise InvalidInputError(f"no episode has begun: call {START} first")
        if session.score is None and session.ended:
            raise InvalidInputError(self._why_over())
        session.finish(arguments.get("answer"))  # one that the environment has ended has its score all the same
        self._end("finished")
        score = session.score or {}
        return Answer(json.dumps(score), data=score)

    def _why_over(self) -> str:
        then = f"{START} begins the next one" if self._repeats else f"{EPISODE_FINISH} tells its score"
        return f"the episode is over: {then}"

    def release(self) -> None:
        """Let whoever hangs go."""
        self._over.set()

    def _end(self, how: str) -> None:
        self.release()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._session is not None and not self._is_told:
            self._is_told = True
            self._tell_ended(self._session, how)


def _other_name(name: str, taken: Sequence[str]) -> str:
    """Return the name here of a tool of the library that is called as one of the episode's."""
    return next(
        candidate
        for candidate in (f"tool_{'_' * number}{name}" for number in itertools.count())
        if candidate not in taken
    )


def _renamed(tool: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    own = tool["name"]
    if name == own:
        return tool
    described = f"{tool['description']} In the library it is called {own!r}, which is another tool here."
    return {**tool, "name": name, "description": described}


def _for_mcp(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in ("name", "description", "inputSchema")}


_TEXT: Final = {"type": "string"}
_EPISODE_TOOLS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": START,
        "description": "Begin an episode, and read what there is to do. Leave out what you do not want to choose.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "task": {**_TEXT, "description": "Id of a task."},
                "seed": {"type": "integer", "description": "Episode seed."},
                "prompt": {**_TEXT, "description": "Prompt type: baseline, chain_of_thought, optimal, flawed."},
            },
        },
    },
    {
        "name": EPISODE_FINISH,
        "description": "Report that the task is complete; ends the episode and returns its score.",
        "inputSchema": {
            "type": "object",
            "properties": {"answer": {**_TEXT, "description": "The answer, or what was done, in words."}},
        },
    },
)


def mcp_server(find: Callable[[str], EpisodeHost]) -> Any:
    """Return a server of the package `mcp` for episodes that are found by the name in their URL.

    On stdio the name is "", at the address for every session a slash and the session's id, if its protocol has one.

    Raises:
        MissingExtraError: The package `mcp` is not installed.
    """
    lowlevel: Any = import_extra("mcp.server.lowlevel", "serving MCP clients needs", "mcp")
    types: Any = import_extra("mcp.types", "serving MCP clients needs", "mcp")
    mcp: Any = import_extra("mcp", "serving MCP clients needs", "mcp")

    def host_of(context: Any) -> EpisodeHost:
        if context.request is None:
            return find("")
        name = context.request.path_params.get("name")
        return find(f"/{context.request.headers.get('mcp-session-id', '')}" if name is None else str(name))

    async def list_tools(context: Any, params: Any) -> Any:
        listed = [
            types.Tool(name=tool["name"], description=tool["description"], input_schema=tool["inputSchema"])
            for tool in host_of(context).tools
        ]
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: Any) -> Any:
        try:
            answer = await host_of(context).call(params.name, params.arguments or {})
        except ResiliSimError as error:  # no place for another episode
            answer = Answer(" ".join(str(error).split()), is_error=True)
        if answer.manner.is_cut and context.request is not None:
            context.request.scope[TASK].cancel()  # a response that ends in its middle makes the server hang up
        content = [types.TextContent(type="text", text=_encodable(answer.text))]
        data = None if answer.data is None else dict(answer.data)
        return types.CallToolResult(content=content, is_error=answer.is_error, structured_content=data)

    async def list_prompts(context: Any, params: Any) -> Any:
        described = "What there is to do; begins the next episode if none is under way."
        arguments = [
            types.PromptArgument(name=name, description=schema["description"], required=False)
            for name, schema in _EPISODE_TOOLS[0]["inputSchema"]["properties"].items()
        ]
        return types.ListPromptsResult(
            prompts=[types.Prompt(name=WORK_ORDER, description=described, arguments=arguments)]
        )

    async def get_prompt(context: Any, params: Any) -> Any:
        try:
            if params.name != WORK_ORDER:
                raise unknown_name("prompt", params.name[:100], [WORK_ORDER])
            words = await host_of(context).work_order(_read_arguments(params.arguments or {}))
        except ResiliSimError as error:
            raise mcp.MCPError(types.INVALID_PARAMS, " ".join(str(error).split())) from None
        content = types.TextContent(type="text", text=_encodable(words))
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    return lowlevel.Server(
        "resilisim",
        version=__version__,
        instructions=f"Call {START} to learn what there is to do, then the tools, then {EPISODE_FINISH}.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _read_arguments(arguments: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a prompt, which are texts, as the tool takes them."""
    return {name: int(text) if name == "seed" and text.isdecimal() else text for name, text in arguments.items()}


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Hosts:
    """Episodes by the name in their URL; a name that is new is a new episode.

    Args:
        make: Makes the host of a name.
    """

    def __init__(self, make: Callable[[str], EpisodeHost]) -> None:
        self._make = make
        self._hosts: dict[str, EpisodeHost] = {}

    def __call__(self, name: str) -> EpisodeHost:
        """Return the host of a name."""
        if name not in self._hosts:
            if len(self._hosts) >= _MOST_EPISODES:
                raise InvalidInputError(f"this server has seen {_MOST_EPISODES:,} episodes: start another one")
            self._hosts[name] = self._make(name)
        return self._hosts[name]

    def add(self, name: str, host: EpisodeHost) -> None:
        """Know a name."""
        self._hosts[name] = host

    def forget(self, name: str) -> None:
        """Forget a name, whose URL nobody will ask for again."""
        self._hosts.pop(name, None)

    async def left(self, name: str) -> None:
        """End the episode of a name, whose client is gone."""
        host = self._hosts.get(name)
        if host is not None:
            await host.left()

    def abandon(self, how: str) -> None:
        """Give up whatever is under way."""
        for host in self._hosts.values():
            host.abandon(how)


@contextlib.asynccontextmanager
async def http_server(
    hosts: Hosts, host: str = "127.0.0.1", port: int = 0, token: str | None = None
) -> AsyncIterator[tuple[str, Awaitable[None]]]:
    """Serve clients over HTTP while the block lasts, each episode at its own URL, or all at one, by their sessions.

    A client that ends its session at the one URL has left its episode.

    Args:
        hosts: The episodes by their names.
        host: Where to listen.
        port: Port; 0 takes a free one.
        token: What clients must send as bearer token; None lets everybody in.

    Yields:
        What `listening` yields.

    Raises:
        InvalidInputError: The address is taken, or is none.
    """
    routing: Any = import_extra("starlette.routing", "serving MCP clients needs", "mcp")
    app = mcp_server(hosts).streamable_http_app(streamable_http_path=EPISODE_PATH, host=host)
    app.router.routes.append(routing.Route(SESSION_PATH, endpoint=app.router.routes[0].endpoint))
    async with listening(_WithEnds(app, hosts), host, port, token) as served:
        yield served


@contextlib.asynccontextmanager
async def listening(
    app: Any, host: str, port: int, token: str | None = None
) -> AsyncIterator[tuple[str, Awaitable[None]]]:
    """Serve an ASGI application while the block lasts.

    Args:
        app: The application.
        host: Where to listen.
        port: Port; 0 takes a free one.
        token: What clients must send as bearer token; None lets everybody in.

    Yields:
        The URL up to the path, such as http://127.0.0.1:8000, and what ends when the server does.

    Raises:
        InvalidInputError: The address is taken, or is none.
    """
    uvicorn: Any = import_extra("uvicorn", "serving MCP clients needs", "mcp")
    bound = _bound_socket(host, port)
    app = _WithTask(app)
    if token is not None:
        app = _WithToken(app, token)
    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # signals are for whoever runs the loop
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{bound.getsockname()[1]}", serving
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        bound.close()


def _bound_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise InvalidInputError(f"cannot listen on {host}:{port}: {error}") from error
    return listening


class _WithEnds:
    """An application that ends the episode of a session when its client ends that."""

    def __init__(self, app: Any, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or scope["method"] != "DELETE" or scope["path"] != SESSION_PATH:
            await self._app(scope, receive, send)
            return
        statuses: list[int] = []

        async def answer(message: dict[str, Any]) -> None:
            statuses.append(message.get("status", 200))
            await send(message)

        await self._app(scope, receive, answer)
        if statuses and max(statuses) < 300:
            await self._hosts.left(f"/{dict(scope['headers']).get(b'mcp-session-id', b'').decode('latin-1')}")


class _WithTask:
    """An application whose requests know the task that answers them, so that they can be cut (`TASK`)."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on."""
        scope[TASK] = asyncio.current_task()
        await self._app(scope, receive, send)


class _WithToken:
    """An application that answers only who sends its token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            header = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(header, self._wanted):
                await send(
                    {"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]}
                )
                await send({"type": "http.response.body", "body": b"a bearer token is needed"})
                return
        await self._app(scope, receive, send)
