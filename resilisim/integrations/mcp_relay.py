"""One connection of an agent to a real MCP server, of either protocol era, whose tool calls stand under a law.

Messages pass as they are, in both directions: the agent and the server agree on protocol and capabilities with each
other. Only `tools/call` meets the law. It is drawn first, then really made; the server's own failures are passed on.
What becomes of a call is written down as `resilisim.inject` does.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from referencing import Registry
from referencing.exceptions import Unresolvable

from resilisim.errors import InfrastructureError, InvalidInputError, count_of, nearest_name
from resilisim.evaluation.call_arguments import CallArguments
from resilisim.evaluation.injected_episode import (
    DrawnCall,
    InjectedCall,
    InjectedEpisode,
    InjectedFailure,
    InjectionFolder,
    InjectionSettings,
)
from resilisim.simulator import FINISH, STOP
from resilisim.tool_library import Parameter, Tool, ToolLibrary
from resilisim.tool_library.model import VALUE_TYPES

# What a call failed with that was neither injected nor the client's mistake: its kind, and words.
Failure: TypeAlias = tuple[str, str]

GONE: Final[Failure] = ("gone", "the client has gone before the answer came")
CANCELLED: Final[Failure] = ("cancelled", "the client has cancelled the call")
ABANDONED: Final[Failure] = ("abandoned", "the client has not given the input that the call waits for")
_MOST_PAGES: Final = 1000  # of a list of tools


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as the server lists it, and what checks its arguments (None if its schema is none)."""

    tool: Tool
    schema: Mapping[str, Any]
    validator: Any


@dataclass(slots=True)
class _Call:
    """A call of a tool, from its arrival to its answer."""

    request: JSONRPCRequest
    name: str
    arguments: Mapping[str, Any]
    shown: CallArguments
    mistake: Failure | None = None  # what the list of tools says against it
    drawn: DrawnCall | None = None
    began: float | None = None  # when it was sent to the server
    timer: asyncio.TimerHandle | None = None


class Relay:
    """Passes messages between an agent and a server, and puts tool calls under a law.

    Args:
        settings: Law, seed, goal and all else that `inject` takes.
        library: Describes tools of the server as far as it has them: dependencies, success probabilities, errors.
        folder: Where calls and episodes are written.
        to_agent: Sends a message to the agent, with the request that it has to do with, if it has to do with one.
        to_server: Sends a message to the server.
        call_seconds: How long the server may take for a call; None does not limit it.

    Attributes:
        calls: The calls so far, in the order in which they ended.
        tools: The server's tools by name, once they are known.
        broken: Done when the connection cannot go on; its exception says why.
    """

    def __init__(
        self,
        settings: InjectionSettings,
        library: ToolLibrary | None,
        folder: InjectionFolder | None,
        to_agent: Callable[[JSONRPCMessage, RequestId | None], Awaitable[None]],
        to_server: Callable[[JSONRPCMessage], Awaitable[None]],
        call_seconds: float | None = None,
    ) -> None:
        self.calls: list[InjectedCall] = []
        self.tools: dict[str, ListedTool] = {}
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settings = settings
        self._library = library
        self._folder = folder
        self._to_agent = to_agent
        self._to_server = to_server
        self._call_seconds = call_seconds
        self._episode: InjectedEpisode | None = None
        self._lost: str | None = None  # why the server will answer nothing any more
        self._has_grown = False  # whether tools may have come by that the episode does not know
        self._is_ready = False  # whether the server's tools are known, so that calls can be drawn
        self._own: dict[RequestId, list[dict[str, Any]]] = {}  # own requests for tools, with what came before them
        self._own_ids = itertools.count()
        self._list_meta: dict[str, Any] | None = None  # of the first request for tools; None before it
        self._held: deque[_Call] = deque()
        self._running: dict[RequestId, _Call] = {}
        self._paused: list[_Call] = []  # the server wants input of the agent before it goes on (protocol 2026-07-28)
        self._waiting: dict[RequestId, None] = {}  # the agent's requests without an answer, in order of arrival
        self._asked: set[RequestId] = set()  # the server's
        self._tokens: dict[RequestId, RequestId] = {}  # progress tokens, and the requests that they are of
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def episode(self) -> InjectedEpisode | None:
        """The episode; None before the server's tools are known."""
        return self._episode

    def is_waiting(self, request: RequestId) -> bool:
        """Return whether a request of the agent has no answer yet."""
        return request in self._waiting

    def fail(self, error: Exception) -> None:
        """Say that the connection cannot go on."""
        if not self.broken.done():
            self.broken.set_exception(error)

    async def from_agent(self, message: JSONRPCMessage) -> None:
        """Take a message of the agent."""
        try:
            await self._take(message)
        except Exception as error:  # a record that cannot be written, say; the agent is told with what it waits for
            self.fail(error)

    async def _take(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest):
            if self._lost is not None:
                await self._refuse(message.id, CONNECTION_CLOSED, self._lost)
                return
            meta = _meta_of(message)
            self._waiting[message.id] = None
            token = request_id(meta.get("progressToken"))
            if token is not None:
                self._tokens[token] = message.id
            if message.method == "tools/call":
                await self._list(meta)
                await self._take_call(message)
                return
            await self._to_server(message)
            if PROTOCOL_VERSION_META_KEY in meta and message.method != "server/discover":
                await self._list(meta)
            return
        if isinstance(message, JSONRPCNotification):
            if message.method == "notifications/cancelled":
                await self._cancel(message)
                return
            await self._to_server(message)
            if message.method == "notifications/initialized":
                await self._list({})
            return
        if message.id is not None:
            self._asked.discard(message.id)
        await self._to_server(message)

    async def from_server(self, message: JSONRPCMessage) -> None:
        """Take a message of the server."""
        if isinstance(message, JSONRPCRequest):
            self._asked.add(message.id)
            await self._to_agent(message, self._latest())
        elif isinstance(message, JSONRPCNotification):
            await self._to_agent(message, self._related(message))
            if message.method == "notifications/tools/list_changed" and self._list_meta is not None:
                await self._ask_for_tools([], None)
        elif message.id in self._own:
            await self._listed(self._own.pop(message.id), message)
        elif message.id is None:
            await self._to_agent(message, None)
        elif message.id in self._waiting:  # an answer that comes after its request was given up is no answer
            call = self._running.pop(message.id, None)
            await self._answer(message if call is None else self._answered(call, message))
            await self._release()

    async def lose_server(self, words: str) -> None:
        """Write down and answer what the server will not answer any more; the episode has no score."""
        self._lost = words
        for call in (*self._running.values(), *self._paused):
            self._record(call, ("died", words))
        self._running.clear()
        self._paused.clear()
        self._held.clear()
        if self._episode is not None:
            self._episode.close()
        for request in tuple(self._waiting):
            await self._refuse(request, CONNECTION_CLOSED, words)

    def end(self, is_orderly: bool = True) -> None:
        """End the episode, because the agent is done or gone; what is under way has no answer any more."""
        if self._lost is not None:
            return
        for task in self._tasks:
            task.cancel()
        left = [*self._running.values(), *self._paused]
        for call in left:
            self._record(call, GONE)
        self._running.clear()
        self._paused.clear()
        if self._episode is not None:
            self._episode.end(FINISH if is_orderly and not left else STOP)

    async def _list(self, meta: Mapping[str, Any]) -> None:
        """Ask the server for its tools, once for a connection."""
        if self._list_meta is None:
            self._list_meta = {name: value for name, value in meta.items() if name != "progressToken"}
            await self._ask_for_tools([], None)

    async def _ask_for_tools(self, before: list[dict[str, Any]], cursor: str | None) -> None:
        request = f"resilisim-tools-{next(self._own_ids)}"
        self._own[request] = before
        params: dict[str, Any] = {"_meta": self._list_meta} if self._list_meta else {}
        if cursor is not None:
            params["cursor"] = cursor
        await self._to_server(JSONRPCRequest(jsonrpc="2.0", id=request, method="tools/list", params=params))

    async def _listed(self, before: list[dict[str, Any]], message: JSONRPCResponse | JSONRPCError) -> None:
        if isinstance(message, JSONRPCResponse):
            listed = [*before, *message.result.get("tools", [])]
            cursor = message.result.get("nextCursor")
            if isinstance(cursor, str) and next(self._own_ids) < _MOST_PAGES:
                await self._ask_for_tools(listed, cursor)
                return
            self.tools = {str(tool["name"]): _listed_tool(tool, self._library) for tool in listed}
        elif message.error.code != METHOD_NOT_FOUND:  # as a server without tools says
            raise InfrastructureError(f"the server does not list its tools: {message.error.message}")
        if self._episode is None:
            self._spawn(self._begin())
        self._has_grown = self._episode is not None

    async def _begin(self) -> None:
        """Begin the episode in a thread, because the first optimum of a process compiles, and go on with calls."""
        if self.tools or self._settings.required:
            self._episode = await asyncio.to_thread(self._new_episode)
        self._is_ready = True
        await self._release()

    def _new_episode(self) -> InjectedEpisode:
        tools = {name: listed.tool for name, listed in self.tools.items()}
        dependencies = {name: [other for other in tool.dependencies if other in tools] for name, tool in tools.items()}
        settings = replace(self._settings, dependencies=dependencies)
        return InjectedEpisode(settings, ToolLibrary(settings.with_dependencies(tools)), self._folder)

    async def _take_call(self, request: JSONRPCRequest) -> None:
        params = request.params or {}
        name, given = str(params.get("name")), params.get("arguments")
        if "inputResponses" in params or "requestState" in params:
            paused = next((call for call in self._paused if call.name == name), None)
            if paused is not None:  # the same call goes on; it has been drawn
                self._paused.remove(paused)
                paused.request = request
                await self._send(paused)
                return
        arguments = given if isinstance(given, Mapping) else {}
        self._held.append(_Call(request, name, arguments, CallArguments.of(kwargs=arguments)))
        await self._release()

    async def _release(self) -> None:
        """Make the calls that can be made: with a goal one after the other, because it depends on their order."""
        while self._held and self._is_ready and not (self._settings.required and self._running):
            await self._make(self._held.popleft())

    async def _make(self, call: _Call) -> None:
        episode = self._episode
        if episode is None:  # a server without tools says so itself
            await self._send(call)
            return
        if self._settings.required:
            for paused in self._paused:
                self._record(paused, ABANDONED)
            self._paused.clear()
        if self._has_grown:
            self._has_grown = False
            episode.add_tools([listed.tool for listed in self.tools.values()])
        if episode.is_over:
            turns = count_of(self._settings.turns, "call")
            await self._answer(_failed(call, f"the episode is over: it had {turns}, and all of them are used up"))
            return
        call.mistake = self._mistake(call)
        if call.mistake is None:
            call.drawn = episode.draw(call.name, call.shown)
            if call.drawn.failure is not None and self._settings.fail == "before":
                self._record(call, None)
                await self._answer(_injected(call))
                return
        await self._send(call)

    async def _send(self, call: _Call) -> None:
        self._running[call.request.id] = call
        if call.began is None:
            call.began = time.perf_counter()
        self._wait_for(call)
        await self._to_server(call.request)

    def _mistake(self, call: _Call) -> Failure | None:
        listed = self.tools.get(call.name)
        if listed is None:
            near = nearest_name(call.name, self.tools)
            return "unknown_tool", f"unknown tool {call.name!r:.100}" + (f": did you mean {near!r}?" if near else "")
        if listed.validator is None:
            return None
        try:
            problem = best_match(listed.validator.iter_errors(dict(call.arguments)))
        except (Unresolvable, RecursionError):  # a schema that refers to others, elsewhere
            return None
        return None if problem is None else ("invalid_arguments", problem.message)

    def _answered(self, call: _Call, message: JSONRPCResponse | JSONRPCError) -> JSONRPCResponse | JSONRPCError:
        """Write down a call that the server has answered, and return what the agent is told."""
        if isinstance(message, JSONRPCResponse) and message.result.get("resultType") == "input_required":
            self._stop_waiting_for(call)
            self._paused.append(call)
            return message
        failure = _failure_of(message)
        if call.mistake is not None and failure is None and self._episode is not None and call.name in self.tools:
            # The server takes what its own schema forbids: the law draws what it would have drawn first.
            call.mistake, call.drawn = None, self._episode.draw(call.name, call.shown)
        settled = self._record(call, failure)
        return _injected(call) if settled is not None and settled.outcome == "injected" else message

    def _record(self, call: _Call, failure: Failure | None) -> InjectedCall | None:
        self._stop_waiting_for(call)
        episode = self._episode
        if episode is None:
            return None
        if call.drawn is not None:
            seconds = 0.0 if call.began is None else time.perf_counter() - call.began
            settled = episode.settle(call.name, call.shown, call.drawn, failure, call.began is not None, seconds)
        else:
            settled = episode.misused(call.name, call.shown, *(call.mistake or ("unknown", "")))
        self.calls.append(settled)
        return settled

    def _wait_for(self, call: _Call) -> None:
        self._stop_waiting_for(call)
        if self._call_seconds is not None:
            loop = asyncio.get_running_loop()
            call.timer = loop.call_later(self._call_seconds, lambda: self._spawn(self._give_up(call)))

    def _stop_waiting_for(self, call: _Call) -> None:
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None

    async def _give_up(self, call: _Call) -> None:
        request = call.request.id
        if self._asked:  # the server waits for the agent, not the other way round
            self._wait_for(call)
            return
        if self._running.pop(request, None) is None:
            return
        words = f"the server has not answered within {self._call_seconds:g} s"
        self._record(call, ("hung", words))
        await self._refuse(request, REQUEST_TIMEOUT, f"{call.name}: {words}")
        told = {"requestId": request, "reason": words}
        await self._to_server(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=told))
        await self._release()

    async def _cancel(self, message: JSONRPCNotification) -> None:
        request = request_id((message.params or {}).get("requestId"))
        if request is None:
            return await self._to_server(message)  # it cancels nothing
        self._waiting.pop(request, None)
        for held in [call for call in self._held if call.request.id == request]:
            self._held.remove(held)  # it was neither drawn nor made
            return
        call = self._running.pop(request, None)
        if call is not None:
            self._record(call, CANCELLED)
        await self._to_server(message)
        await self._release()

    async def _refuse(self, request: RequestId, code: int, words: str) -> None:
        error = ErrorData(code=code, message=words)
        await self._answer(JSONRPCError(jsonrpc="2.0", id=request, error=error))

    async def _answer(self, message: JSONRPCResponse | JSONRPCError) -> None:
        if message.id is not None:
            self._waiting.pop(message.id, None)
        await self._to_agent(message, None)

    def _related(self, message: JSONRPCNotification) -> RequestId | None:
        """Return the request that a notification of the server has to do with, for agents behind HTTP."""
        subscription = request_id(_meta_of(message).get(SUBSCRIPTION_ID_META_KEY))
        if subscription is not None:
            return subscription
        if message.method == "notifications/progress":
            token = request_id((message.params or {}).get("progressToken"))
            request = None if token is None else self._tokens.get(token)
            if request in self._running:
                self._wait_for(self._running[request])  # who reports progress does not hang
            return request
        return self._latest() if message.method == "notifications/message" else None

    def _latest(self) -> RequestId | None:
        return next(reversed(self._waiting), None)

    def _spawn(self, work: Any) -> None:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # nobody waits for this task; the connection tells it
                self.fail(error)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def request_id(value: object) -> RequestId | None:
    """Return what a message names as a request or token; None if it can be neither, whatever the sender meant by it."""
    return value if isinstance(value, str | int) else None


def _meta_of(message: JSONRPCRequest | JSONRPCNotification) -> Mapping[str, Any]:
    meta = (message.params or {}).get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def _listed_tool(listed: Mapping[str, Any], library: ToolLibrary | None) -> ListedTool:
    name, schema = str(listed["name"]), listed.get("inputSchema") or {}
    if library is not None and name in library.names:
        tool = library[name]
    else:
        words = str(listed.get("description") or "").strip().splitlines()
        tool = Tool(name, words[0] if words else f"The tool {name}.", tuple(_parameters(schema)))
    kind = validator_for(schema, Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError:
        return ListedTool(tool, schema, None)
    return ListedTool(tool, schema, kind(schema, registry=Registry()))  # fetches nothing


def _parameters(schema: Mapping[str, Any]) -> list[Parameter]:
    required = schema.get("required") or ()
    found = []
    for name, said in (schema.get("properties") or {}).items():
        kind = said.get("type") if isinstance(said, Mapping) else None
        found.append(Parameter(name, kind if kind in VALUE_TYPES else "object", required=name in required))
    return found


def _failure_of(message: JSONRPCResponse | JSONRPCError) -> Failure | None:
    if isinstance(message, JSONRPCError):
        return f"JSON-RPC {message.error.code}", message.error.message
    if not message.result.get("isError"):
        return None
    texts = [str(part.get("text", "")) for part in message.result.get("content", []) if isinstance(part, Mapping)]
    return "isError", " ".join(texts)


def _injected(call: _Call) -> JSONRPCResponse:
    if call.drawn is None or call.drawn.failure is None:
        raise InvalidInputError(f"{call.name} was not drawn to fail")
    return _failed(call, str(InjectedFailure(call.name, *call.drawn.failure)))


def _failed(call: _Call, words: str) -> JSONRPCResponse:
    """Return the answer of a tool that has failed, in the form of the request's protocol."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": words}], "isError": True}
    if PROTOCOL_VERSION_META_KEY in ((call.request.params or {}).get("_meta") or {}):
        result["resultType"] = "complete"
    return JSONRPCResponse(jsonrpc="2.0", id=call.request.id, result=result)
