"""A session as an agent sees it: tools as plain functions, for any framework or none, and a loop of its own.

Token counts need no line in the agent: a hook on its `openai` client notes them in the session under way.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import inspect
import json
import keyword
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, TypeVar

from resilisim.chat import ChatReply, ChatRequest, TokenUsage
from resilisim.envs.feedback import FINISH_HINT
from resilisim.envs.protocol import WAIT_FUNCTION
from resilisim.envs.session import AssistantMessage, EpisodeEnded, Reply, Session, tells_the_end
from resilisim.errors import (
    InvalidInputError,
    ResiliSimError,
    check_number,
    fault_of,
    one_line,
    told_error,
    unknown_name,
)
from resilisim.policies.llm.conversation import finish_message, native_arguments, result_of
from resilisim.policies.llm.record import AgentRecord, Transcript, empty_part
from resilisim.policies.llm.tools import ToolResult
from resilisim.redaction import fit_to_show
from resilisim.tool_library.names import RESERVED_FUNCTIONS

OnFailure = Literal["return", "raise"]

# Python's name for each type of a JSON Schema.
_TYPES: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_ENCODER: Final = json.JSONEncoder()
_CALL: Final = (
    '{{"role": "assistant", "content": null, "tool_calls": [{{"id": "call_1", "type": "function", '
    '"function": {{"name": {}, "arguments": {}}}}}]}}'
)
_MOST_TOKENS: Final = 10**12  # of one call
_MOST_OF_A_CALL: Final = 100_000.0  # dollars, and seconds: sums over an episode stay in the range of a record
_LONGEST_ANSWER: Final = 100_000  # characters of an answer that the record keeps


class CallResult(str):
    """What a call came to: the words that the agent reads, and what they say as values.

    Attributes:
        ok: Whether the call succeeded.
        error: What went wrong, on one line; None if it succeeded.
        data: The result as a JSON value; None if there is none.

    Example:
        >>> from resilisim import open_session
        >>> with open_session("task_c64444cae27fab46", base=1.0) as session:
        ...     result = session.call("file_operations_scanner")
        >>> result.ok, result.data["success"]
        (True, True)
    """

    ok: bool
    error: str | None
    data: Any

    @classmethod
    def of(cls, result: ToolResult) -> CallResult:
        """Return the result of a tool as a text."""
        text = cls(result.observation)
        text.ok, text.error, text.data = result.ok, result.error, result.value
        return text


class ToolFailed(Exception):
    """A call failed, in a session that raises what fails (`on_failure="raise"`); its text is what the agent reads.

    Attributes:
        result: What came of the call.
    """

    def __init__(self, result: CallResult) -> None:
        super().__init__(str(result))
        self.result = result


class SessionTool(Protocol):
    """A tool of a session: a function with a signature, as frameworks turn into a tool of their own.

    Attributes:
        name: Its name.
        description: What it does.
        parameters: JSON Schema of its arguments.

    Example:
        >>> from resilisim import open_session
        >>> session = open_session("task_c64444cae27fab46", parameters="strict")
        >>> session.tools[5].name, session.tools[5].parameters["required"]
        ('file_operations_reader', ['source'])
    """

    name: str
    description: str
    parameters: dict[str, Any]

    def __call__(self, *args: Any, **arguments: Any) -> CallResult:
        """Call it; EpisodeEnded if the episode is over."""
        ...

    async def acall(self, *args: Any, **arguments: Any) -> CallResult:
        """Call it where other agents run in the same event loop."""
        ...


RecordMaker: TypeAlias = Callable[[Session, AgentRecord], Mapping[str, Any]]


class AgentSession:
    """One episode, for an agent with a loop of its own (`open_session`).

    Every call is one message and uses a turn. Calls that arrive at once, from threads or tasks, are served one after
    the other. A call after the end raises `EpisodeEnded`, which is no `Exception`, so that no framework takes it for an
    error of a tool and goes on for ever; the `with` block and `evaluate` catch it.

    Attributes:
        prompt: What there is to do.

    Example:
        >>> from resilisim import open_session
        >>> with open_session("task_c64444cae27fab46", prompt="optimal", seed=4, base=1.0) as session:
        ...     for tool in session.tools[:2]:
        ...         print(tool.name, tool().ok)
        ...     session.turns_left
        data_processing_parser True
        data_processing_transformer True
        8
    """

    def __init__(self, session: Session, on_failure: OnFailure = "return", record: RecordMaker | None = None) -> None:
        if on_failure not in ("return", "raise"):
            raise unknown_name("on_failure", on_failure, ("return", "raise"))
        if "functions" not in session.reply.info:
            raise InvalidInputError("a session of functions needs the native protocol: expected protocol='native'")
        self._session = session
        self._on_failure = on_failure
        self._make_record = record
        self._functions: list[dict[str, Any]] = list(session.reply.info["functions"])
        self._transcript = Transcript()
        self._lock = threading.Lock()
        self._is_closed = False
        self._answer: str | None = None
        self._contexts: list[contextvars.Token[AgentSession | None]] = []
        self.prompt = session.reply.text

    def __getstate__(self) -> dict[str, Any]:
        # A copy is entered by a `with` block of its own, and its tools call it.
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_contexts", "tools")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._contexts = []

    @functools.cached_property
    def tools(self) -> list[SessionTool]:
        """The tools; `finish` is the last of them."""
        return [self._as_tool(entry["function"]) for entry in self.openai_tools()]

    def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> CallResult:
        """Call a tool by its name; arguments that are None count as left out.

        They may be the text of a JSON object, as a model wrote it: the environment refuses what cannot be read.

        Raises:
            EpisodeEnded: The episode is over.
            ToolFailed: The call failed, and the session raises what fails.
        """
        given = _given(arguments)
        if name == "finish" and not self.ended:
            return self.finish(None if isinstance(given, str) else given.get("answer"))
        message = call_text(name, given)
        with self._lock:
            reply = self._send(message)
        result = CallResult.of(result_of(reply, FINISH_HINT["functions"]))
        if not result.ok and self._on_failure == "raise":
            raise ToolFailed(result)
        return result

    async def acall(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> CallResult:
        """Call a tool by its name, and let others in the event loop run before, and while a world's tool is at work."""
        return await self._session.beside(lambda: self.call(name, arguments))

    def send(self, message: AssistantMessage) -> list[dict[str, Any]]:
        """Send a model's reply as it stands: its text, or an OpenAI-style assistant message with its calls.

        It is one message of Conversation-v0 whatever it holds: words that say that the task is complete end the
        episode, others use a turn, and of several calls only the first is made.

        Returns:
            The messages that answer it, as OpenAI-compatible endpoints take them.

        Raises:
            EpisodeEnded: The episode is over.
        """
        with self._lock:
            answers: list[dict[str, Any]] = json.loads(self._send(message).observation)
        return answers

    def _send(self, message: AssistantMessage) -> Reply:
        """Send what is sent with the lock held: whoever waited for it may find the episode closed."""
        if self._is_closed:
            raise EpisodeEnded(self._session.reply)
        return self._session.send(message)

    def finish(self, answer: object = None) -> CallResult:
        """Report that the task is complete, with an answer; changes nothing if the episode is over.

        The answer is kept in the record; in a world it is what the episode is graded by.
        """
        with self._lock:
            if answer is not None and self._answer is None:
                self._answer = str(answer)[:_LONGEST_ANSWER]
            if not self.ended:
                given = self._answer if self._session.reply.info.get("answers") else None
                self._session.send(finish_message(native=True, answer=given))
            return CallResult.of(ToolResult(self._session.reply.text))

    def wait(self) -> CallResult:
        """Let a turn pass; where the failure model has no part in which that can help, it is a call of no tool.

        Raises:
            EpisodeEnded: The episode is over.
            ToolFailed: It is none here, and the session raises what fails.
        """
        return self.call(WAIT_FUNCTION)

    def stop(self) -> None:
        """End the episode without saying that the task is complete; changes nothing if it is over."""
        with self._lock:
            if not self.ended:
                self._session.send(None)

    def lose(self, why: str) -> None:
        """End the episode as lost, since its agent broke or is given up; changes nothing if it is over.

        `why` stands in the record, as how the agent broke.
        """
        self._session.lose(why)

    def close(self) -> None:
        """Refuse every further call, where whoever calls cannot be stopped otherwise; the episode stays unfinished."""
        self._is_closed = True

    @property
    def is_broken(self) -> bool:
        """Whether the environment itself has broken, which is not the agent's doing: there is no score then."""
        return self._session.broken is not None

    @property
    def ended(self) -> bool:
        """Whether the episode is over."""
        return self._is_closed or self._session.ended

    @property
    def turns_left(self) -> int:
        """Messages that can still be sent, the closing one not counted."""
        return self._session.turns_left

    @property
    def score(self) -> dict[str, Any] | None:
        """The score (level, and the criteria that held); None before the end."""
        return self._session.score

    @property
    def rewards(self) -> list[float]:
        """What each message was paid, for a trainer (`open_session(..., reward="advantage")`)."""
        return list(self._session.rewards)

    @property
    def reward(self) -> float | None:
        """The sum of the rewards; None for an episode that did not end, so one that broke has none."""
        return self._session.reward

    def record(self) -> dict[str, Any]:
        """Return the record of the episode, the same that `evaluate` writes.

        Raises:
            ResiliSimError: The episode is not over.
        """
        if not self._session.ended or self._make_record is None:
            raise ResiliSimError("there is no record before the episode has ended: call finish() first")
        return dict(self._make_record(self._session, self.part("session")))

    def openai_tools(self) -> list[dict[str, Any]]:
        """Return the tools as OpenAI-compatible endpoints take them; they are the caller's, to change as they like."""
        return copy.deepcopy(self._functions)

    def mcp_tools(self) -> list[dict[str, Any]]:
        """Return the tools as MCP lists them: name, description, inputSchema.

        They have their own names, but for those that are also names of functions of the environment.
        """
        library = self._session.problem.library
        names = {library.function_name(name): name for name in library.names if name not in RESERVED_FUNCTIONS}
        return [
            {"name": names.get(tool.name, tool.name), "description": tool.description, "inputSchema": tool.parameters}
            for tool in self.tools
        ]

    def note_usage(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float | None = None,
        *,
        model: str = "",
        seconds: float = 0.0,
    ) -> None:
        """Note one call of a model: its tokens, US dollars if known, and how long it took.

        Raises:
            InvalidInputError: A number is negative, none, or more than a call can have.
        """
        usage = TokenUsage(
            int(check_number("prompt_tokens", prompt_tokens, 0, _MOST_TOKENS)),
            int(check_number("completion_tokens", completion_tokens, 0, _MOST_TOKENS)),
        )
        cost = None if cost is None else check_number("cost", cost, 0, _MOST_OF_A_CALL)
        seconds = check_number("seconds", seconds, 0, _MOST_OF_A_CALL)
        reply = ChatReply("", usage=usage, model=str(model), latency_seconds=seconds)
        turn = int(self._session.reply.info.get("turn", 0))
        with self._lock:
            self._transcript.add_call(ChatRequest((), role="agent"), reply, model, turn, cost)

    def part(self, architecture: str) -> AgentRecord:
        """Return the agent's part of the record."""
        transcript = self._transcript
        ending = self._session.score or {}
        part = empty_part(architecture, _ENDED_BY.get(str(ending.get("ended_by")), "environment"))
        part["messages"], part["calls"], part["events"] = transcript.messages, transcript.calls, transcript.events
        part["components"], part["answer"] = transcript.components(("agent",)), self._answer
        return part

    def __enter__(self) -> Self:
        """Make this the session that a watched client notes its usage in (`track_usage`)."""
        self._contexts.append(_CURRENT.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop an episode that was not finished; what is raised goes on, but for the news that it is over.

        What the agent raised has lost it the episode, unless it may come of an endpoint or the network (`fault_of`).
        """
        with contextlib.suppress(ValueError, IndexError):  # a generator may be closed in another context
            _CURRENT.reset(self._contexts.pop())
        if error is None:
            self.stop()
        elif isinstance(error, Exception) and self._session.broken is None and fault_of(error) == "agent":
            self.lose(fit_to_show(told_error(error), one_line=True))
        return error is not None and self.ended and tells_the_end(error)

    def _as_tool(self, function: Mapping[str, Any]) -> SessionTool:
        """Return a function of the environment as one of Python: frameworks look at its name, text and signature."""
        name = function["name"]
        schema = _WITH_ANSWER if name == "finish" else dict(function["parameters"])
        signature = _signature(schema)

        def tool(*args: Any, **arguments: Any) -> CallResult:
            return self.call(name, _bound(signature, args, arguments))

        async def acall(*args: Any, **arguments: Any) -> CallResult:
            return await self.acall(name, _bound(signature, args, arguments))

        for one in (tool, acall):
            made: Any = one
            made.__name__ = made.__qualname__ = made.name = name
            made.__doc__ = _docstring(function["description"], schema)
            made.__signature__ = signature
            made.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
            made.__annotations__["return"] = str
            made.description = function["description"]
            made.parameters = schema
        finished: Any = tool
        finished.acall = acall
        shown: SessionTool = finished
        return shown


# The session in whose `with` block or agent function the running code stands.
_CURRENT: contextvars.ContextVar[AgentSession | None] = contextvars.ContextVar("resilisim_session", default=None)
_ENDED_BY: Final = {"completion": "answer", "stopped": "gave_up", "agent_error": "agent_error"}
_WITH_ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"answer": {"type": "string", "description": "The answer, or what was done, in words."}},
    "additionalProperties": False,
}


def current_session() -> AgentSession | None:
    """Return the session in whose `with` block or agent function the running code stands; None outside."""
    return _CURRENT.get()


def _given(arguments: object) -> dict[str, Any] | str:
    """Return arguments without those that are None; a text that is no JSON object stays as it is."""
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
        if not isinstance(read, dict):
            return arguments
        arguments = read
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        return f"no JSON: arguments of type {type(arguments).__name__}"
    return {key: value for key, value in arguments.items() if value is not None}


def call_text(name: str, given: Mapping[str, Any] | str) -> str:
    """Return a call as the JSON text of a message, which is quicker put together than encoded.

    Arguments that JSON has no form for become some that the environment refuses.
    """
    if not isinstance(given, str):
        try:
            given = native_arguments(given)
        except Exception as error:  # whatever the agent's own objects raise when they are written down
            given = f"no JSON: {one_line(error)}"
    return _CALL.format(_ENCODER.encode(str(name)), _ENCODER.encode(given))


def _signature(schema: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature of a function that takes what a JSON Schema says; what may be left out is None then.

    What Python has no name for, such as "from", is among `**others`.
    """
    required = schema.get("required", ())
    names = sorted(schema["properties"], key=lambda name: name not in required)  # stable: those without a default first
    parameters = []
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            continue
        kind = _TYPES.get(schema["properties"][name].get("type"), Any)
        default = inspect.Parameter.empty if name in required else None
        annotation = kind if name in required or kind is Any else kind | None
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
        )
    if len(parameters) < len(names):
        parameters.append(inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD, annotation=Any))
    return inspect.Signature(parameters, return_annotation=str)


def _docstring(description: str, schema: Mapping[str, Any]) -> str:
    """Return a docstring in the form that frameworks read descriptions of parameters from."""
    described = {name: each.get("description", "") for name, each in schema["properties"].items()}
    if not described:
        return description
    return "\n".join([description, "", "Args:", *(f"    {name}: {text}" for name, text in described.items())])


def _bound(signature: inspect.Signature, args: tuple[Any, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name; names that no parameter has are passed on, for the environment to refuse."""
    if len(args) > len(signature.parameters):
        raise TypeError(f"expected at most {len(signature.parameters)} arguments, got {len(args)}")
    return {**dict(zip(signature.parameters, args, strict=False)), **arguments}


Client = TypeVar("Client")


def track_usage(client: Client) -> Client:
    """Let an `openai` client note the tokens of each reply in the session under way, and return the client.

    One client may serve many sessions at once: a reply belongs to the session in whose `with` block, or agent function,
    it was asked for. Chat completions and responses are counted, streams of them if they end with their usage
    (`stream_options={"include_usage": True}`).

    Args:
        client: An `openai.OpenAI` or `openai.AsyncOpenAI`.

    Raises:
        InvalidInputError: It is none.

    Example:
        >>> from openai import OpenAI
        >>> from resilisim import track_usage
        >>> client = track_usage(OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"))
    """
    request = getattr(client, "request", None)  # what every call of every resource goes through
    if not callable(request) or not hasattr(client, "chat"):
        raise InvalidInputError(f"a client of type {type(client).__name__}: expected openai.OpenAI or AsyncOpenAI")
    if not getattr(request, "tracks_usage", False):
        tracked: Any = _asynchronous(request) if inspect.iscoroutinefunction(request) else _synchronous(request)
        tracked.tracks_usage = True
        setattr(client, "request", tracked)  # noqa: B010  (an attribute of the object, in front of the method)
    return client


def _synchronous(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    def tracked(*args: Any, **arguments: Any) -> Any:
        session, begun = current_session(), time.monotonic()
        reply = request(*args, **arguments)
        if session is not None:
            _note(session, reply, begun)
        return reply

    return tracked


def _asynchronous(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    async def tracked(*args: Any, **arguments: Any) -> Any:
        session, begun = current_session(), time.monotonic()
        reply = await request(*args, **arguments)
        if session is not None:
            _note(session, reply, begun)
        return reply

    return tracked


def _note(session: AgentSession, reply: Any, begun: float) -> None:
    """Note the usage of a reply; that of a stream, or of a raw response, once somebody has read it."""
    iterator = getattr(reply, "_iterator", None)
    if iterator is not None:
        wrapped = _read_later if isinstance(iterator, Iterator) else _read_later_asynchronously
        reply._iterator = wrapped(iterator, session, begun)
        return
    parse = getattr(reply, "parse", None)
    if not hasattr(reply, "usage") and callable(parse) and not inspect.iscoroutinefunction(parse):
        reply = parse()
    _note_usage(session, reply, begun)


def _note_usage(session: AgentSession, reply: Any, begun: float) -> None:
    usage = getattr(reply, "usage", None)
    if usage is None:
        usage = getattr(getattr(reply, "response", None), "usage", None)  # the last event of streamed responses
    if usage is None:
        return
    prompt = getattr(usage, "prompt_tokens", None)
    completion = getattr(usage, "completion_tokens", None)
    session.note_usage(
        int(getattr(usage, "input_tokens", 0) if prompt is None else prompt),
        int(getattr(usage, "output_tokens", 0) if completion is None else completion),
        model=str(getattr(reply, "model", "") or ""),
        seconds=time.monotonic() - begun,
    )


def _read_later(iterator: Iterator[Any], session: AgentSession, begun: float) -> Iterator[Any]:
    for chunk in iterator:
        _note_usage(session, chunk, begun)
        yield chunk


async def _read_later_asynchronously(
    iterator: AsyncIterator[Any], session: AgentSession, begun: float
) -> AsyncIterator[Any]:
    async for chunk in iterator:
        _note_usage(session, chunk, begun)
        yield chunk
