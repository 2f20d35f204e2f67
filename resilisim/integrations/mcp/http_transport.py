"""A server that listens, spoken to over HTTP in a way that each request has an answer.

The client of the MCP library waits for ever where a connection is reset, and drops what it cannot read. So its HTTP
transport is wrapped: whatever breaks or cannot be read reaches it as an error of JSON-RPC, with the request's id.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import httpx2
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, ErrorData, JSONRPCError, RequestId

from resilisim.errors import one_line
from resilisim.integrations.mcp.wire import MOST_MESSAGE_BYTES, Unreadable, answers, encoded, read_messages

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_EVENTS: Final = "text/event-stream"


class AnsweringTransport(httpx2.AsyncBaseTransport):
    """Sends requests, and answers those that the server does not answer in a form that can be read.

    Args:
        inner: What really sends them.
        note: Told on one line what could not be read and was no answer.
        lost: Told that the server cannot be reached.
    """

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, note: Callable[[str], None], lost: Callable[[str], None]
    ) -> None:
        self._inner = inner
        self._note = note
        self._lost = lost

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the server's response, or one that says what is wrong with it."""
        asked = _request_in(request)
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            self._lost(_said(error))
            return self._instead(asked, f"the server cannot be reached: {_said(error)}")
        except httpx2.HTTPError as error:
            if request.method != "POST":
                raise
            return self._instead(asked, f"the server has not answered: {_said(error)}")
        response.request = request
        if request.method not in ("POST", "GET") or response.status_code != 200:
            return response
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == _EVENTS:
            return _with_body(response, _Events(self, response, asked))
        if asked is not None and kind == "application/json":
            return await self._json(response, asked)
        return response

    async def aclose(self) -> None:
        """Close what sends."""
        await self._inner.aclose()

    async def _json(self, response: httpx2.Response, asked: RequestId) -> httpx2.Response:
        body = bytearray()
        try:
            async for block in response.aiter_raw() if not _is_packed(response) else response.aiter_bytes():
                body += block
                if len(body) > MOST_MESSAGE_BYTES:
                    return self._instead(asked, f"the server's answer is longer than {MOST_MESSAGE_BYTES // 2**20} MiB")
        except httpx2.HTTPError as error:
            return self._instead(asked, f"the server has ended its answer before its end: {_said(error)}")
        finally:
            await response.aclose()
        messages = sorted(
            read_messages(bytes(body)), key=lambda each: answers(each, asked)
        )  # behind it nobody reads on
        read = [self.readable(each, asked) for each in messages]
        events = b"".join(b"data: " + each + b"\n" for each in read if each is not None)
        if not events or not any(answers(each, asked) or _is_nameless(each) for each in messages):
            words = (
                f"the server's answer is none to this request: {one_line(bytes(body[:200]).decode(errors='replace'))}"
            )
            events += b"data: " + _error(asked, INTERNAL_ERROR, words) + b"\n"
        headers = {**_kept(response), "content-type": _EVENTS}
        return httpx2.Response(200, headers=headers, content=events, request=response.request)

    def readable(self, message: Any, asked: RequestId | None) -> bytes | None:
        """Return a message as one that can be read, None if there is nothing to make of it."""
        identity = getattr(message, "id", None)
        is_answer = getattr(message, "method", None) is None
        if is_answer and asked is not None and identity not in (asked, None):
            self._note(f"the server has answered {identity!r:.80} where {asked!r:.80} was asked")
            return None
        if not isinstance(message, Unreadable):
            return encoded(message)
        words = f"the server's message cannot be read: {message.words}"
        request = asked if identity is None else identity
        if is_answer and request is not None:
            return _error(request, INTERNAL_ERROR, words)
        self._note(words)
        return None

    def _instead(self, asked: RequestId | None, words: str) -> httpx2.Response:
        if asked is None:
            self._note(words)
            return httpx2.Response(202)
        headers = {"content-type": "application/json"}
        return httpx2.Response(200, headers=headers, content=_error(asked, CONNECTION_CLOSED, words))


class _Events(httpx2.AsyncByteStream):
    """A stream of events, in which each message can be read, and at whose end a request has its answer."""

    def __init__(self, transport: AnsweringTransport, response: httpx2.Response, asked: RequestId | None) -> None:
        self._transport = transport
        self._response = response
        self._asked = asked
        self._is_answered = False
        self._can_be_resumed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the events."""
        rest, why = b"", "the stream has ended"
        try:
            blocks = self._response.aiter_bytes() if _is_packed(self._response) else self._response.aiter_raw()
            async for block in blocks:
                rest += block
                ends = [end.end() for end in _EVENT_END.finditer(rest)]
                if ends:
                    whole, rest = rest[: ends[-1]], rest[ends[-1] :]
                    for event in _EVENT_END.split(whole):
                        yield self._event(event)
                if len(rest) > MOST_MESSAGE_BYTES:
                    why = f"an event is longer than {MOST_MESSAGE_BYTES // 2**20} MiB"
                    break
        except httpx2.HTTPError as error:
            why = _said(error)
        if self._asked is not None and not self._is_answered and not self._can_be_resumed:
            words = f"the server has ended its answer before its end: {why}"
            yield b"data: " + _error(self._asked, CONNECTION_CLOSED, words) + b"\n"

    async def aclose(self) -> None:
        """Close the stream."""
        await self._response.aclose()

    def _event(self, event: bytes) -> bytes:
        others, data, name = [], [], b"message"
        for line in _LINE_END.split(event):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif line:
                others.append(line)
                name = value if field == b"event" else name
                self._can_be_resumed = self._can_be_resumed or field == b"id"
        if not data or name != b"message":
            return event + b"\n\n" if event.strip() else b""
        lines = []
        for message in read_messages(b"\n".join(data)):
            text = self._transport.readable(message, self._asked)
            if self._asked is not None and (answers(message, self._asked) or _is_nameless(message)):
                self._is_answered = True
            if text is not None:
                lines.append(text)
        head = b"".join(line + b"\n" for line in others)
        return head + (b"data: \n\n" if not lines else (b"\n" + head).join(b"data: " + text for text in lines) + b"\n")


def _is_nameless(message: Any) -> bool:
    """Return whether a message is an answer, or nothing that can be read, without an id."""
    return getattr(message, "method", None) is None and getattr(message, "id", None) is None


def _request_in(request: httpx2.Request) -> RequestId | None:
    """Return the id of the request that is sent, None if what is sent asks for no answer."""
    if request.method != "POST":
        return None
    try:
        message = json.loads(request.content)
    except (ValueError, RecursionError, httpx2.RequestNotRead):
        return None
    if not isinstance(message, Mapping) or "method" not in message:
        return None
    identity = message.get("id")
    return identity if isinstance(identity, str | int) else None


def _error(request: RequestId, code: int, words: str) -> bytes:
    return encoded(JSONRPCError(jsonrpc="2.0", id=request, error=ErrorData(code=code, message=one_line(words, 500))))


def _said(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__


def _is_packed(response: httpx2.Response) -> bool:
    return "content-encoding" in response.headers


def _kept(response: httpx2.Response) -> dict[str, str]:
    """Return the headers that stay when the body is another one."""
    dropped = ("content-length", "content-encoding", "transfer-encoding")
    return {name: value for name, value in response.headers.items() if name not in dropped}


def _with_body(response: httpx2.Response, body: httpx2.AsyncByteStream) -> httpx2.Response:
    return httpx2.Response(response.status_code, headers=_kept(response), stream=body, extensions=response.extensions)
