"""What an agent that plays a session by itself is known to have done: its part of the record, and its tokens."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, TypeVar

from resilisim.chat import ChatRequest
from resilisim.envs.session import Session, current_session
from resilisim.errors import InvalidInputError
from resilisim.policies.agent_record import AgentRecord, Transcript, empty_part

_ENDED_BY: Final = {"completion": "answer", "stopped": "gave_up", "agent_error": "agent_error"}


def agent_part(session: Session, architecture: str) -> AgentRecord:
    """Return the part of the record of an agent that has played a session by itself, under its name."""
    transcript = Transcript()
    for turn, reply, cost in session.usage:
        transcript.add_call(ChatRequest((), role="agent"), reply, reply.model, turn, cost)
    ending = session.score or {}
    part = empty_part(architecture, _ENDED_BY.get(str(ending.get("ended_by")), "environment"))
    part["messages"], part["calls"], part["events"] = transcript.messages, transcript.calls, transcript.events
    part["components"], part["answer"] = transcript.components(("agent",)), session.answer
    part["oracle"] = session.oracle_was_asked
    return part


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


def _note(session: Session, reply: Any, begun: float) -> None:
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


def _note_usage(session: Session, reply: Any, begun: float) -> None:
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


def _read_later(iterator: Iterator[Any], session: Session, begun: float) -> Iterator[Any]:
    for chunk in iterator:
        _note_usage(session, chunk, begun)
        yield chunk


async def _read_later_asynchronously(
    iterator: AsyncIterator[Any], session: Session, begun: float
) -> AsyncIterator[Any]:
    async for chunk in iterator:
        _note_usage(session, chunk, begun)
        yield chunk
