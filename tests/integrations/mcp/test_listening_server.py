"""`resilisim mcp proxy --url`: a server that listens and breaks its answers off, or says what nobody expects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from resilisim import inject
from resilisim.cli.mcp import headers_of, with_user_as_header
from resilisim.errors import InvalidInputError
from resilisim.integrations.mcp.proxy import Proxied, ProxyConnection
from resilisim.redaction import without_secrets
from tests.integrations.mcp.raw_server import HELLO, SURE, RawClient, usual
from tests.integrations.mcp.test_proxy import in_a_loop

Write = Callable[[asyncio.StreamWriter, dict[str, Any]], None]


def reply(writer: asyncio.StreamWriter, body: str, kind: str = "application/json", more: str = "") -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{more}"
    writer.write(f"{head}content-length: {len(body.encode())}\r\n\r\n{body}".encode())


@asynccontextmanager
async def listening(calls: Write, heard: list[dict[str, str]]) -> AsyncIterator[str]:
    """A server that answers as usual, and calls of tools as a function writes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_connection = True
        while with_connection and (first := await reader.readline()):
            headers: dict[str, str] = {}
            while (line := (await reader.readline()).decode().strip()) != "":
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            heard.append(headers)
            if not first.startswith(b"POST"):
                writer.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
                continue
            message = json.loads(body)
            if message.get("method") == "tools/call":
                calls(writer, message)
                with_connection = not writer.is_closing()
            elif "id" in message:
                reply(writer, json.dumps(next(iter(usual(message)))))
            else:
                writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


def resets(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.transport.abort()


def closes(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.close()


def ends_within_json(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"jsonrpc"')
    writer.close()


def ends_within_events(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n")
    writer.close()


def ends_without_an_event(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    reply(writer, "", "text/event-stream")


def says_null(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    reply(writer, f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, "result": null}}')


def says_half_a_character_in_an_event(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    said = f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, "result": {{"v": "\\ud83d"}}}}'
    reply(writer, f"event: message\ndata: {said}\n\n", "text/event-stream")


def says_nonsense(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    reply(writer, "nonsense")


def answers_another(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    reply(writer, '{"jsonrpc": "2.0", "id": "another", "result": {}}')


def says_html(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    reply(writer, "<html>", "text/html")


def accepts(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")


def fails(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n")


def lies_about_its_encoding(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    reply(writer, '{"jsonrpc": "2.0"}', more="content-encoding: gzip\r\n")


def stays_silent(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    return


def drips(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: still here\n\n")


ODD = (
    *(resets, closes, ends_within_json, ends_within_events, ends_without_an_event, says_null, says_nonsense, drips),
    *(says_half_a_character_in_an_event, answers_another, says_html, accepts, fails, lies_about_its_encoding),
    stays_silent,
)


@asynccontextmanager
async def through(url: str, **asked: Any) -> AsyncIterator[RawClient]:
    heard: list[Any] = []
    settings = inject(law=SURE, seed=5).settings

    async def to_agent(message: Any, related: Any) -> None:
        heard.append(message.model_dump(by_alias=True, mode="json", exclude_unset=True))

    connection = ProxyConnection(Proxied(settings, url=url, **asked), 5, None, to_agent)
    await connection.open()
    client = RawClient(connection, None, heard)
    await client.ask("initialize", "hello", **HELLO)
    await client.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
    yield client
    await connection.close(is_orderly=True)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
@in_a_loop
async def test_each_call_has_an_answer_and_a_record_whatever_the_server_does(odd: Write) -> None:
    left = [odd]

    def calls(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        if left:
            left.pop()(writer, message)
        else:
            reply(writer, json.dumps(next(iter(usual(message)))))

    async with listening(calls, []) as url, through(url, call_seconds=1.0) as client:
        first = await client.call("add", 1)
        assert "error" in first, first
        assert (await client.call("add", 2))["result"]["content"][0]["text"] == "did add"
        assert [(call[1], call[3]) for call in client.calls] == [("real", True), ("ok", True)]
        assert len(client.answers(1)) == len(client.answers(2)) == 1


@in_a_loop
async def test_headers_go_with_each_request_and_secrets_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_VARIABLE", "hunter2hunter2")
    headers = headers_of(["X-Own: Bearer $OWN_VARIABLE", "X-Plain: ${OWN_VARIABLE}/x"])
    heard: list[dict[str, str]] = []
    async with listening(fails, heard) as plain:
        address, headers = with_user_as_header(plain.replace("http://", "http://ada:correct-horse@"), headers)
        assert address == plain
        async with through(str(address), headers=headers) as client:
            answer = await client.call("add", 1)
    assert all(each["x-own"] == "Bearer hunter2hunter2" and each["x-plain"] == "hunter2hunter2/x" for each in heard)
    assert {each["authorization"] for each in heard} == {"Basic YWRhOmNvcnJlY3QtaG9yc2U="}
    assert "correct-horse" not in json.dumps(answer)
    shown = without_secrets("hunter2hunter2 and correct-horse and YWRhOmNvcnJlY3QtaG9yc2U=")
    assert shown == "[secret] and [secret] and [secret]"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("no colon", "expected NAME: VALUE"),
        ("two words: x", "expected NAME: VALUE"),
        ("X: $NO_SUCH_VARIABLE_HERE", "needs the variable NO_SUCH_VARIABLE_HERE"),
        ("X: two\nlines", "expected one line"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(header: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        headers_of([header])


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://", "http://[::1", "http://x:99999/", "http://x:y/"])
def test_a_url_that_is_none_is_refused_in_one_line(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected http://HOST:PORT/PATH"):
        with_user_as_header(url, {})
