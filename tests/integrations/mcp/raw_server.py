"""A server of MCP that writes any bytes, and a client that does: in one process, with the proxy's relay between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilisim import inject
from resilisim.integrations.mcp.proxy import Proxied, ProxyConnection
from resilisim.integrations.mcp.streams import Lines
from resilisim.integrations.mcp.wire import Unreadable, encoded

SURE = {"base": 1.0, "history": 1.0, "not_executed": 1.0, "failed": 1.0}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
# Whatever a server says to a message: lines as it writes them.
Answers = Callable[[dict[str, Any]], Iterable[str | bytes | dict[str, Any]]]


def result(message: dict[str, Any], **said: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": said}


def text(message: dict[str, Any], words: str) -> dict[str, Any]:
    return result(message, content=[{"type": "text", "text": words}])


def tools(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


def usual(message: dict[str, Any], listed: Any = None) -> Iterable[dict[str, Any]]:
    """What a plain server answers; `listed` is its list of tools."""
    method = message.get("method")
    if method == "initialize":
        info = {"name": "raw", "version": "1"}
        yield result(message, protocolVersion="2025-11-25", capabilities={"tools": {}}, serverInfo=info)
    elif method == "tools/list":
        yield result(message, tools=tools("add") if listed is None else listed)
    elif method == "tools/call":
        yield text(message, f"did {message['params']['name']}")
    elif "id" in message and method is not None:
        yield result(message)


class _Wire:
    """The server's end: it hears lines, and what it writes is read as the proxy reads it."""

    def __init__(self, answers: Answers) -> None:
        self.heard: list[dict[str, Any]] = []
        self._answers = answers
        self._lines = Lines()
        self._said: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, item: Any) -> None:
        message = json.loads(encoded(item.message))
        self.heard.append(message)
        for said in self._answers(message):
            self.say(said)

    def say(self, said: str | bytes | dict[str, Any] | None) -> None:
        if said is None:
            self._said.put_nowait(None)
            return
        line = json.dumps(said) if isinstance(said, dict) else said
        for item in self._lines.take((line.encode() if isinstance(line, str) else line) + b"\n"):
            self._said.put_nowait(item)

    async def read(self) -> AsyncIterator[Any]:
        while (item := await self._said.get()) is not None:
            yield item


@dataclass(frozen=True)
class RawServer(Proxied):
    """A server in this process that answers as a function says."""

    wire: Any = None

    @asynccontextmanager
    async def connect(self, *_: Any) -> AsyncIterator[Any]:
        yield self.wire.read(), self.wire


class RawClient:
    """A client that says any bytes, and what it has heard by id."""

    def __init__(self, connection: ProxyConnection, wire: Any, heard: list[Any]) -> None:
        self.connection = connection
        self.wire = wire
        self.heard = heard
        self._lines = Lines()

    async def say(self, said: str | bytes | dict[str, Any]) -> None:
        line = json.dumps(said) if isinstance(said, dict) else said
        for item in self._lines.take((line.encode() if isinstance(line, str) else line) + b"\n"):
            await self.connection.relay.from_agent(item if isinstance(item, Unreadable) else item.message)

    async def ask(self, method: str, request: int | str, **params: Any) -> dict[str, Any]:
        await self.say({"jsonrpc": "2.0", "id": request, "method": method, "params": params})
        return await self.answer(request)

    async def call(self, name: Any, request: int | str, **arguments: Any) -> dict[str, Any]:
        return await self.ask("tools/call", request, name=name, arguments=arguments)

    async def answer(self, request: int | str, number: int = 1) -> dict[str, Any]:
        while len(found := self.answers(request)) < number:
            await asyncio.sleep(0.002)
        return found[number - 1]

    def answers(self, request: Any) -> list[dict[str, Any]]:
        return [said for said in self.heard if said.get("id") == request and "method" not in said]

    @property
    def calls(self) -> list[tuple[str, str, str | None, bool]]:
        return [(call.tool, call.outcome, call.error, call.ran) for call in self.connection.relay.calls]


@asynccontextmanager
async def raw(
    answers: Answers = usual, *, seconds: float | None = None, record: Path | None = None, **asked: Any
) -> AsyncIterator[RawClient]:
    """A connection between a raw client and a raw server, which has begun."""
    settings = inject(**({"law": SURE, "seed": 5, "record": record} | asked)).settings
    wire, heard = _Wire(answers), []
    server = RawServer(settings, ("raw",), call_seconds=seconds, wire=wire)

    async def to_agent(message: Any, related: Any) -> None:
        heard.append(json.loads(encoded(message)))

    connection = ProxyConnection(server, 5, None, to_agent)
    await connection.open()
    client = RawClient(connection, wire, heard)
    await client.ask("initialize", "hello", **HELLO)
    await client.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
    yield client
    await connection.close(is_orderly=True)
