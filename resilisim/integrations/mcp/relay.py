"""One connection of an agent to a real MCP server, of either protocol era, whose tool calls stand under a law.

Messages pass as they are, in both directions: the agent and the server agree on protocol and capabilities with each
other. Only `tools/call` meets the law. It is drawn first, then really made; the server's own failures are passed on.
What becomes of a call is written down as `resilisim.inject` does, and that it is made before it is made.

Nothing waits for ever: the server has a limit for each answer. Nothing is dropped: what cannot be read is answered and
told, and an oddity of the server concerns the one answer that it stands in.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
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

from resilisim.errors import InfrastructureError, InvalidInputError, ResiliSimError, nearest_name, one_line
from resilisim.injection.call import DrawnCall, InjectedCall, InjectedFailure, OpenCall
from resilisim.injection.call_arguments import CallArguments
from resilisim.injection.folder import InjectionFolder
from resilisim.injection.inject_options import InjectionSettings
from resilisim.injection.injected_episode import InjectedEpisode
from resilisim.injection.wrong_answers import WrongAnswers
from resilisim.integrations.mcp.listing import ListedTool, Listing, read_tools, says_unknown
from resilisim.integrations.mcp.wire import Read, Unreadable, failed, failure_of, meta_of, request_id
from resilisim.schema_check import CHECK_SECONDS, TooSlowError, is_harmless, schema_problem
from resilisim.simulator import FINISH
from resilisim.simulator.messages import STOP
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.names import given_name

# What a call failed with that was neither injected nor the client's mistake: its kind, and words.
Failure: TypeAlias = tuple[str, str]
Answer: TypeAlias = "JSONRPCResponse | JSONRPCError"

CLIENT_GONE: Final[Failure] = ("gone", "the client has gone before the answer came")
CANCELLED: Final[Failure] = ("cancelled", "the client has cancelled the call")
ABANDONED: Final[Failure] = ("abandoned", "the client has not given the input that the call waits for")
_MAY_HAVE_RUN: Final = ("hung", "died", "cancelled", "gone", "abandoned", "unreadable")  # kinds of failure
ANSWER_SECONDS: Final = 600.0  # that a server may take for an answer, unless somebody says otherwise
_LIST_SECONDS: Final = 60.0  # that it may take for its list of tools, at most
_LASTING: Final = ("subscriptions/listen",)  # requests that are meant to stay open
_UNREADABLE: Final = "unreadable"  # kind of failure of a call whose answer is no message


@dataclass(slots=True, eq=False)
class _Call:
    """A call of a tool, from its arrival to its answer."""

    request: JSONRPCRequest
    name: str  # as the agent says it
    known_as: str  # in the record
    arguments: Mapping[str, Any]
    shown: CallArguments
    changes: int  # of the list of tools, which has to be known as it is since then
    refusal: Failure | None = None  # why the server never sees it
    is_answered: bool = False  # whether somebody else has told the agent so
    mistake: Failure | None = None  # what the list of tools says against it
    drawn: DrawnCall | None = None
    opened: OpenCall | None = None  # where it was written down before it was made
    began: float | None = None  # when it was sent to the server
    since: float = 0.0  # when it began, sent or not
    is_injected: bool = False  # whether nothing but its drawn failure is left to come, which may hang


class Relay:
    """Passes messages between an agent and a server, and puts tool calls under a law.

    Args:
        settings: Law, seed, goal and all else that `inject` takes.
        library: Describes tools of the server as far as it has them: dependencies, success probabilities, errors.
        folder: Where calls and episodes are written.
        to_agent: Sends a message to the agent, with the request that it has to do with, if it has to do with one.
        to_server: Sends a message to the server.
        call_seconds: How long the server may take for an answer.
        note: Told on one line what somebody has to know who runs the proxy.
        cut: Cuts the connection by which a request came, where each has one of its own.

    Attributes:
        calls: The calls so far, in the order in which they ended.
        tools: The server's tools by the names that it has for them, once they are known.
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
        note: Callable[[str], None] = lambda words: None,
        cut: Callable[[RequestId], Awaitable[None]] | None = None,
    ) -> None:
        self.calls: list[InjectedCall] = []
        self.tools: dict[str, ListedTool] = {}
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settings, self._library = settings, library
        self._folder = folder
        self._to_agent, self._to_server = to_agent, to_server
        self._seconds = call_seconds or ANSWER_SECONDS
        self._note, self._cut = note, cut
        self._answers = None if settings.law.corrupt is None else WrongAnswers(settings.law.corrupt.kinds)
        self._episode: InjectedEpisode | None = None
        self._outside: dict[str, str] = {}  # tools that came by and that the law cannot take in, and why
        self._lost: str | None = None  # why the server will answer nothing any more
        self._list_meta: dict[str, Any] | None = None  # of the first request for tools; None before it
        self._listing: Listing | None = None  # the list that is being fetched
        self._changes = 0  # how often the server has said that its list has changed
        self._known_changes = -1  # up to where it is known; -1: not at all
        self._held: deque[_Call] = deque()
        self._running: dict[RequestId, _Call] = {}
        self._paused: list[_Call] = []  # the server wants input of the agent before it goes on (protocol 2026-07-28)
        self._waiting: dict[RequestId, str] = {}  # the agent's requests without an answer, in order of arrival
        self._timers: dict[RequestId, asyncio.TimerHandle] = {}
        self._asked: dict[RequestId, float] = {}  # what the server has asked the agent, and when
        self._tokens: dict[RequestId, RequestId] = {}  # progress tokens, and the requests that they are of
        self._tasks, self._making = set[asyncio.Task[None]](), cast("asyncio.Task[None] | None", None)

    @property
    def episode(self) -> InjectedEpisode | None:
        """The episode; None before the server's tools are known."""
        return self._episode

    @property
    def is_busy(self) -> bool:
        """Whether requests of the agent have no answer yet, but for those that are meant to stay open."""
        return any(method not in _LASTING for method in self._waiting.values())

    @property
    def has_calls(self) -> bool:
        """Whether the agent has called a tool."""
        return bool(self.calls or self._running or self._held)

    def is_waiting(self, request: RequestId) -> bool:
        """Return whether a request of the agent has no answer yet."""
        return request in self._waiting

    def fail(self, error: Exception) -> None:
        """Say that the connection cannot go on."""
        if not self.broken.done():
            self.broken.set_exception(error)

    async def from_agent(self, message: Read) -> None:
        """Take a message of the agent."""
        try:
            await self._take(message)
        except Exception as error:  # a record that cannot be written, say; the agent is told with what it waits for
            self.fail(error)

    async def _take(self, message: Read) -> None:
        if isinstance(message, Unreadable):
            await self._take_unreadable(message)
        elif isinstance(message, JSONRPCRequest):
            await self._take_request(message)
        elif isinstance(message, JSONRPCNotification):
            if message.method == "notifications/cancelled":
                await self._cancel(message)
                return
            await self._to_server(message)
            if message.method == "notifications/initialized":
                await self._list({})
        else:
            if message.id is not None:
                self._asked.pop(message.id, None)
            await self._to_server(message)

    async def _take_request(self, request: JSONRPCRequest) -> None:
        if self._lost is not None:
            await self._send_error(request.id, CONNECTION_CLOSED, self._lost)
            return
        is_call = request.method == "tools/call"
        if request.id in self._waiting:
            words = f"the id {request.id!r:.80} is that of a request that has no answer yet: expected another id"
            self._note(f"the client has used an id twice: {words}")
            if is_call:
                await self._take_call(request, ("id_used_twice", words))
            else:
                await self._send_error(request.id, INVALID_REQUEST, words)
            return
        meta = meta_of(request)
        self._waiting[request.id] = request.method
        token = request_id(meta.get("progressToken"))
        if token is not None:
            self._tokens[token] = request.id
        if is_call:
            await self._list(meta)
            await self._take_call(request)
            return
        self._wait_for(request.id)
        await self._to_server(request)
        if PROTOCOL_VERSION_META_KEY in meta and request.method != "server/discover":
            await self._list(meta)

    async def _take_unreadable(self, unreadable: Unreadable) -> None:
        """Answer what the agent has sent and nobody can read."""
        words = f"the client's message cannot be read: {unreadable.words}"
        self._note(words)
        if unreadable.method is None and unreadable.id is not None:  # an answer that the server waits for
            self._asked.pop(unreadable.id, None)
            error = ErrorData(code=INVALID_REQUEST, message=words)
            await self._to_server(JSONRPCError(jsonrpc="2.0", id=unreadable.id, error=error))
        elif unreadable.id is None and unreadable.method is not None:
            return  # a notification
        elif unreadable.id is not None and unreadable.method == "tools/call" and self._lost is None:
            params = {"name": unreadable.tool or ""}
            request = JSONRPCRequest(jsonrpc="2.0", id=unreadable.id, method="tools/call", params=params)
            await self._list({})
            await self._take_call(request, (_UNREADABLE, words))
        else:
            await self._send_error(unreadable.id, PARSE_ERROR if unreadable.id is None else INVALID_REQUEST, words)

    async def from_server(self, message: Read) -> None:
        """Take a message of the server."""
        if isinstance(message, Unreadable):
            await self._from_server_unreadable(message)
        elif isinstance(message, JSONRPCRequest):
            self._asked[message.id] = time.monotonic()
            await self._to_agent(message, self._latest())
        elif isinstance(message, JSONRPCNotification):
            await self._to_agent(message, self._related(message))
            if message.method == "notifications/tools/list_changed":
                self._changes += 1
                if self._list_meta is not None and self._listing is None:
                    await self._ask_for_tools(Listing(self._changes))
        elif self._listing is not None and message.id == self._listing.request:
            await self._listed(self._listing, message)
        elif message.id is None:
            await self._to_agent(message, None)
        elif message.id in self._waiting:
            call = self._running.get(message.id)
            if call is not None:
                await self._answer_in_time(call, message)
                return
            if any(held.request.id == message.id for held in self._held):
                self._note(f"the server has answered the request {message.id!r:.80}, which it has not been sent")
                return
            await self._answer(message)
            self._release()
        # else an answer that comes after its request was given up, which is no answer

    async def _from_server_unreadable(self, unreadable: Unreadable) -> None:
        words = f"the server's message cannot be read: {unreadable.words}"
        self._note(words)
        if unreadable.id is None:
            return
        if unreadable.method is not None:  # a question, which the server waits to be answered
            error = ErrorData(code=INVALID_REQUEST, message=words)
            await self._to_server(JSONRPCError(jsonrpc="2.0", id=unreadable.id, error=error))
        elif self._listing is not None and unreadable.id == self._listing.request:
            await self._know(self._listing)
        elif unreadable.id in self._waiting:
            call = self._running.pop(unreadable.id, None)
            if call is not None:
                self._record(call, (_UNREADABLE, words))
            await self._refuse(unreadable.id, INTERNAL_ERROR, words)
            self._release()

    async def lose_server(self, words: str) -> None:
        """Write down and answer what the server will not answer any more; the episode has no score."""
        self._lost = words
        try:
            self._record_all(("died", words))
        except ResiliSimError as error:
            self._note(str(error))  # who waits for an answer gets one all the same
        refused = [call.request.id for call in self._held if call.refusal is not None and not call.is_answered]
        self._held.clear()
        self._stop_timers()
        if self._episode is not None:
            self._episode.close()
        for request in refused:
            await self._send_error(request, CONNECTION_CLOSED, words)
        for request in tuple(self._waiting):
            await self._refuse(request, CONNECTION_CLOSED, words)

    def end(self, is_orderly: bool = True) -> None:
        """End the episode, because the agent is done or gone; what is under way has no answer any more."""
        if self._lost is not None:
            return
        for task in self._tasks:
            task.cancel()
        self._stop_timers()
        is_done = not self._running and not self._paused
        self._record_all(CLIENT_GONE)
        if self._episode is not None:
            self._episode.end(FINISH if is_orderly and is_done else STOP)

    def _record_all(self, failure: Failure) -> None:
        """Write down whatever is under way as failed."""
        left = [*self._running.values(), *self._paused]
        self._running.clear()
        self._paused.clear()
        for call in left:
            self._record(call, failure)

    async def _list(self, meta: Mapping[str, Any]) -> None:
        """Ask the server for its tools, once for a connection."""
        if self._list_meta is None:
            self._list_meta = {name: value for name, value in meta.items() if name != "progressToken"}
            await self._ask_for_tools(Listing(self._changes))

    async def _ask_for_tools(self, listing: Listing, cursor: str | None = None) -> None:
        self._listing = listing
        request = listing.next_request()
        params: dict[str, Any] = {"_meta": self._list_meta} if self._list_meta else {}
        if cursor is not None:
            params["cursor"] = cursor
        self._wait_for(request)
        await self._to_server(JSONRPCRequest(jsonrpc="2.0", id=request, method="tools/list", params=params))

    async def _listed(self, listing: Listing, message: Answer) -> None:
        self._stop_waiting_for(listing.request)
        if isinstance(message, JSONRPCResponse):
            cursor = listing.take(message.result, self._note)
            if cursor is not None:
                await self._ask_for_tools(listing, cursor)
                return
        elif message.error.code != METHOD_NOT_FOUND:  # as a server without tools says
            words = f"the server does not list its tools: {one_line(message.error.message)}"
            if self._known_changes < 0:
                raise InfrastructureError(words)
            self._note(words)
            listing.items = []
        await self._know(listing)

    async def _know(self, listing: Listing) -> None:
        """Go on with a list of tools, or with the former one where there is none."""
        self._stop_waiting_for(listing.request)
        self._listing = None
        if listing.items or self._known_changes < 0:
            self.tools = read_tools(listing.items, self._library, self._note)
        self._known_changes = listing.changes
        if listing.changes < self._changes:  # it has changed again, and calls that came since then wait for that
            await self._ask_for_tools(Listing(self._changes))
        self._release()

    def _new_episode(self, unlisted: Tool | None = None) -> InjectedEpisode:
        tools = {listed.tool.name: listed.tool for listed in self.tools.values()}
        if unlisted is not None:
            tools[unlisted.name] = unlisted
        dependencies = {name: [other for other in tool.dependencies if other in tools] for name, tool in tools.items()}
        settings = replace(self._settings, dependencies=dependencies)
        return InjectedEpisode(settings, ToolLibrary(settings.with_dependencies(tools)), self._folder)

    async def refused_elsewhere(self, name: str, arguments: object, kind: str, words: str) -> None:
        """Write down a call that somebody has refused before it came here, in its turn."""
        params = {"name": name, "arguments": arguments}
        request = JSONRPCRequest(jsonrpc="2.0", id="", method="tools/call", params=params)
        await self._list({})
        await self._take_call(request, (kind, words), is_answered=True)

    async def _take_call(
        self, request: JSONRPCRequest, refusal: Failure | None = None, is_answered: bool = False
    ) -> None:
        params = request.params or {}
        name, call_arguments = str(params.get("name")), params.get("arguments")
        if refusal is None and ("inputResponses" in params or "requestState" in params):
            paused = next((call for call in self._paused if call.name == name), None)
            if paused is not None:  # the same call goes on; it has been drawn
                self._paused.remove(paused)
                paused.request = request
                await self._send(paused)
                return
        arguments = call_arguments if isinstance(call_arguments, Mapping) else {}
        shown = CallArguments.of(kwargs=arguments)
        changes = self._changes
        self._held.append(_Call(request, name, given_name(name), arguments, shown, changes, refusal, is_answered))
        self._release()

    def _release(self) -> None:
        """Make the calls that can be made: with a goal one after the other, because it depends on their order."""
        if self._making is None or self._making.done():
            self._making = self._spawn(self._make_held())

    async def _make_held(self) -> None:
        if self._episode is None and self._known_changes >= 0 and (self.tools or self._settings.required):
            # In a thread, because the first optimum of a process compiles.
            self._episode = await asyncio.to_thread(self._new_episode)
        while self._held and self._known_changes >= 0 and not (self._settings.required and self._running):
            if self._held[0].changes > self._known_changes and self._held[0].refusal is None:
                return  # the list of tools has changed, and this call may be of one that has come by
            call = self._held[0]
            call.mistake = None if call.refusal is not None else await self._mistake(call)
            if self._held and self._held[0] is call:
                self._held.popleft()
                await self._make(call)

    async def _make(self, call: _Call) -> None:
        if self._episode is None:  # the server lists no tools; the call may run all the same
            self._episode = self._new_episode(_unlisted(call))
        episode = self._episode
        if call.refusal is not None:
            if not episode.is_over:
                self.calls.append(episode.misused(call.known_as, call.shown, *call.refusal))
            if not call.is_answered:
                await self._send_error(call.request.id, INVALID_REQUEST, call.refusal[1])
            return
        if self._settings.required:
            for paused in self._paused:
                self._record(paused, ABANDONED)
            self._paused.clear()
        self._take_in([listed.tool for listed in self.tools.values()])
        if episode.is_over:
            await self._answer(failed(call.request, episode.why_over))
            return
        outside = self._outside.get(call.known_as)
        if outside is not None and call.name in self.tools:
            self.calls.append(episode.misused(call.known_as, call.shown, "not_covered", outside))
            await self._answer(failed(call.request, outside))
            return
        if call.mistake is None:
            call.drawn = episode.draw(call.known_as, call.shown)
            if not call.drawn.runs:
                call.since = time.perf_counter()
                self._running[call.request.id] = call
                await self._answer_in_time(call, None)
                return
        await self._send(call)

    def _take_in(self, tools: Sequence[Tool]) -> None:
        """Put tools that have come by under the law, as far as it can take them in."""
        if self._episode is None:
            return
        names = {*self._episode.tool_names, *(tool.name for tool in tools)}
        new = [tool for tool in tools if tool.name not in {*self._outside, *self._episode.tool_names}]
        own = [replace(tool, dependencies=tuple(name for name in tool.dependencies if name in names)) for tool in new]
        try:
            self._episode.add_tools(own)
        except InvalidInputError as error:
            for tool in new:
                self._outside[tool.name] = str(error)
                self._note(f"calls of {tool.name!r:.80} are refused: {error}")

    async def _send(self, call: _Call) -> None:
        if call.began is None:
            if self._episode is not None:  # a call that may have run is in the record before it is made
                call.opened = self._episode.open_call(call.known_as, call.shown, call.drawn)
            call.began = call.since = time.perf_counter()
        self._running[call.request.id] = call
        self._wait_for(call.request.id)
        await self._to_server(call.request)

    async def _mistake(self, call: _Call) -> Failure | None:
        listed = self.tools.get(call.name)
        if listed is None:
            near = nearest_name(call.name, self.tools)
            return "unknown_tool", f"unknown tool {call.name!r:.100}" + (f": did you mean {near!r}?" if near else "")
        call.known_as = listed.tool.name
        if not listed.schema:
            return None
        try:
            if is_harmless(listed.schema):
                problem = schema_problem(listed.schema, dict(call.arguments))
            else:
                problem = await asyncio.to_thread(schema_problem, listed.schema, dict(call.arguments), CHECK_SECONDS)
        except TooSlowError as error:
            self._note(f"the arguments of {call.name!r:.80} cannot be checked against its schema: {error}")
            return None
        return None if problem is None else ("invalid_arguments", problem)

    async def _answer_in_time(self, call: _Call, message: Answer | None) -> None:
        """Answer a call that the server has answered, or that it never sees, as late as the law or a hang wants it."""
        failure = None if call.drawn is None else call.drawn.failure
        seconds = 0.0 if failure is None else self._settings.manner(failure[0]).hang_seconds
        if not seconds and self._settings.wait and call.drawn is not None:
            seconds = call.drawn.duration or 0.0
        call.is_injected = failure is not None and (message is None or failure_of(message) is None)
        left = call.since + seconds - time.perf_counter()
        if seconds and left > 0.0:
            self._stop_waiting_for(call.request.id)
            self._spawn(self._answer_after(left, call, message))
        else:
            await self._finish(call, message)

    async def _answer_after(self, seconds: float, call: _Call, message: Answer | None) -> None:
        await asyncio.sleep(seconds)
        if self._running.get(call.request.id) is call:  # else its client has given it up
            await self._finish(call, message)

    async def _finish(self, call: _Call, message: Answer | None) -> None:
        """Write down what has become of a call, and answer it, unless its failure is that the connection is cut."""
        self._running.pop(call.request.id, None)
        if message is None:
            self._record(call, None)
            answer: Answer = _injected(call)
        else:
            answer = self._answered(call, message)
        failure = None if call.drawn is None or answer is message else call.drawn.failure
        if failure is not None and self._settings.manner(failure[0]).is_cut and self._cut is not None:
            self._forget(call.request.id)
            await self._cut(call.request.id)
        else:
            await self._answer(answer)
        self._release()

    def _answered(self, call: _Call, message: Answer) -> Answer:
        """Write down a call that the server has answered, and return what the agent is told."""
        if isinstance(message, JSONRPCResponse) and message.result.get("resultType") == "input_required":
            self._stop_waiting_for(call.request.id)
            self._paused.append(call)
            return message
        failure = failure_of(message)
        if (
            call.mistake is not None
            and failure is None
            and not (call.name not in self.tools and says_unknown(call.name, message))
        ):
            # The server takes what its list or a schema forbids: the law draws what it would have drawn first.
            if call.name not in self.tools:
                self._take_in_unlisted(call)
            if self._episode is not None and call.known_as not in self._outside:
                call.mistake, call.drawn = None, self._episode.draw(call.known_as, call.shown)
        corruption = None
        if self._answers is not None and failure is None and isinstance(message, JSONRPCResponse):
            message, corruption = self._altered(call, self._answers, message)
        settled = self._record(call, failure, corruption)
        return _injected(call) if settled is not None and settled.outcome == "injected" else message

    def _altered(
        self, call: _Call, answers: WrongAnswers, message: JSONRPCResponse
    ) -> tuple[JSONRPCResponse, str | None]:
        """Return the answer of a server as its client gets it, and in which way it was made wrong."""
        drawn, listed = call.drawn, self.tools.get(call.name)
        if drawn is None or not drawn.is_corrupt:
            if drawn is not None and drawn.failure is None:
                answers.keep_result(call.known_as, message.result)
            return message, None
        schema = None if listed is None else listed.answers
        result, kind = answers.wrong_result(call.known_as, message.result, drawn.bits, schema, drawn.corruption)
        return JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result), kind or "none"

    def _take_in_unlisted(self, call: _Call) -> None:
        self._note(f"the server answers calls of {call.name!r:.80}, which it does not list")
        self._take_in([_unlisted(call)])

    def _record(self, call: _Call, failure: Failure | None, corruption: str | None = None) -> InjectedCall | None:
        self._stop_waiting_for(call.request.id)
        failure, episode = None if call.is_injected else failure, self._episode  # to give up a hang is to meet it
        if episode is None:
            return None
        ran = call.began is not None
        if call.drawn is not None:
            seconds = 0.0 if call.began is None else time.perf_counter() - call.began
            settled = episode.settle(
                call.known_as, call.shown, call.drawn, failure, ran, seconds, call.opened, corruption
            )
        else:
            # What the server refuses has not run; what it has taken without a word, or was lost with, may have.
            kind = call.mistake or ("unknown", "")
            has_run = ran and (failure is None or failure[0] in _MAY_HAVE_RUN)
            settled = episode.misused(call.known_as, call.shown, *kind, call.opened, has_run)
        self.calls.append(settled)
        return settled

    def _wait_for(self, request: RequestId) -> None:
        """Give the server its time for an answer, from now."""
        self._stop_waiting_for(request)
        if self._waiting.get(request) in _LASTING:
            return
        is_own = self._listing is not None and request == self._listing.request
        seconds = min(self._seconds, _LIST_SECONDS) if is_own else self._seconds
        loop = asyncio.get_running_loop()
        self._timers[request] = loop.call_later(seconds, lambda: self._spawn(self._give_up(request, seconds)))

    def _stop_waiting_for(self, request: RequestId) -> None:
        timer = self._timers.pop(request, None)
        if timer is not None:
            timer.cancel()

    def _stop_timers(self) -> None:
        for request in tuple(self._timers):
            self._stop_waiting_for(request)

    async def _give_up(self, request: RequestId, seconds: float) -> None:
        words = f"the server has not answered within {seconds:g} s"
        if self._listing is not None and request == self._listing.request:
            if self._known_changes < 0:
                raise InfrastructureError(f"the server does not list its tools: {words}")
            self._note(f"the server does not list its tools anew: {words}")
            self._listing.items = []
            await self._know(self._listing)
            return
        if any(
            time.monotonic() - asked < ANSWER_SECONDS for asked in self._asked.values()
        ):  # the server waits for the agent, not the other way round
            self._wait_for(request)
            return
        method = self._waiting.get(request)
        call = self._running.pop(request, None)
        if method is None:
            return
        if call is not None:
            self._record(call, ("hung", words))
        await self._refuse(request, REQUEST_TIMEOUT, f"{method if call is None else call.name}: {words}")
        cancelled = {"requestId": request, "reason": words}
        await self._to_server(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=cancelled))
        self._release()

    async def _cancel(self, message: JSONRPCNotification) -> None:
        request = request_id((message.params or {}).get("requestId"))
        if request is None:
            return await self._to_server(message)  # it cancels nothing
        self._forget(request)
        held = next((call for call in self._held if call.request.id == request and call.refusal is None), None)
        if held is not None:
            self._held.remove(held)  # it was neither drawn nor made
            return
        call = self._running.pop(request, None)
        if call is not None:
            self._record(call, CANCELLED)
        if call is None or not call.is_injected:
            await self._to_server(message)
        self._release()

    async def _refuse(self, request: RequestId, code: int, words: str) -> None:
        error = ErrorData(code=code, message=words)
        await self._answer(JSONRPCError(jsonrpc="2.0", id=request, error=error))

    async def _send_error(self, request: RequestId | None, code: int, words: str) -> None:
        """Answer with an error what is not waited for by its id."""
        error = ErrorData(code=code, message=words)
        await self._to_agent(JSONRPCError(jsonrpc="2.0", id=request, error=error), None)

    async def _answer(self, message: Answer) -> None:
        if message.id is not None:
            self._forget(message.id)
        await self._to_agent(message, None)

    def _forget(self, request: RequestId) -> None:
        """Wait no more for the answer to a request of the agent."""
        self._waiting.pop(request, None)
        self._stop_waiting_for(request)
        for token in [token for token, meant in self._tokens.items() if meant == request]:
            del self._tokens[token]

    def _related(self, message: JSONRPCNotification) -> RequestId | None:
        """Return the request that a notification of the server has to do with, for agents behind HTTP."""
        subscription = request_id(meta_of(message).get(SUBSCRIPTION_ID_META_KEY))
        if subscription is not None:
            return subscription
        if message.method == "notifications/progress":
            token = request_id((message.params or {}).get("progressToken"))
            request = None if token is None else self._tokens.get(token)
            if request in self._timers:
                self._wait_for(request)  # who reports progress does not hang
            return request
        return self._latest() if message.method == "notifications/message" else None

    def _latest(self) -> RequestId | None:
        return next(reversed(self._waiting), None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # nobody waits for this task; the connection tells it
                self.fail(error)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # one that is cancelled before it begins has not begun that
        return task


def _unlisted(call: _Call) -> Tool:
    return Tool(call.known_as, f"The tool {call.known_as}, which the server does not list.")


def _injected(call: _Call) -> JSONRPCResponse:
    if call.drawn is None or call.drawn.failure is None:
        raise InvalidInputError(f"{call.name} was not drawn to fail")
    return failed(call.request, str(InjectedFailure(call.name, *call.drawn.failure)))
