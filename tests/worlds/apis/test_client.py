"""The real call against servers that behave badly: the same code as for the real hosts, with other addresses."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.worlds.apis import Address, ApiClient, find_api
from resilisim.worlds.apis.api import PublicApi
from resilisim.worlds.apis.api_client import LARGEST_ANSWER, ApiCall
from tests.worlds.apis.conftest import Behaviour, api_at, server

GOOD = b'{"ip": "192.0.2.7"}'


def answering(body: bytes = GOOD, status: str = "200 OK", more: str = "Content-Type: application/json") -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    return behave


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send something all the time and never come to an end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.01)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
    while True:
        writer.write(b"0," * 50_000)
        await writer.drain()


async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


async def truncating(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n" + GOOD)
    await writer.drain()


async def no_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"220 mail.example ESMTP ready\r\n")
    await writer.drain()


def circling(port_in_header: str) -> Behaviour:
    return answering(b"", "302 Found", f"Location: {port_in_header}")


JSON = "Content-Type: application/json"
BEHAVIOURS: list[tuple[str, Behaviour, str | None, str]] = [
    ("good", answering(), None, ""),
    ("good without a type", answering(more="X: y"), None, ""),
    ("good with a byte order mark", answering(b"\xef\xbb\xbf" + GOOD), None, ""),
    ("good and compressed", answering(gzip.compress(GOOD), more=f"{JSON}\r\nContent-Encoding: gzip"), None, ""),
    ("silent", silent, "TIMEOUT", "no answer within 0.25 seconds"),
    ("slow", dripping, "TIMEOUT", "no answer within 0.25 seconds"),
    ("hanging up", hanging_up, "NETWORK_ERROR", ""),
    ("truncated", truncating, "NETWORK_ERROR", ""),
    ("no HTTP", no_http, "NETWORK_ERROR", ""),
    ("huge", endless, "INVALID_RESPONSE", f"longer than {LARGEST_ANSWER:,} bytes"),
    ("empty", answering(b""), "INVALID_RESPONSE", "is empty"),
    ("a page", answering(b"<html>", more="Content-Type: text/html; charset=utf-8"), "INVALID_RESPONSE", "'text/html'"),
    ("another form", answering(b'{"address": 7}'), "INVALID_RESPONSE", "documented form"),
    ("another type", answering(b'{"ip": 7}'), "INVALID_RESPONSE", "documented form"),
    ("malformed", answering(b'{"ip": "192.0'), "OPERATION_FAILED", "not valid JSON"),
    ("nested too deeply", answering(b"[" * 5000), "OPERATION_FAILED", "nested too deeply"),
    ("no text", answering(b'{"ip": "\xff"}'), "OPERATION_FAILED", "not UTF-8"),
    ("broken encoding", answering(GOOD, more=f"{JSON}\r\nContent-Encoding: gzip"), "OPERATION_FAILED", ""),
    ("redirecting without end", answering(b"", "302 Found", "Location: /x"), "OPERATION_FAILED", "redirects"),
    ("400", answering(b'{"reason": "bad"}', "400 Bad Request"), "INVALID_INPUT", 'status 400: {"reason": "bad"}'),
    ("404", answering(b"<html>", "404 Not Found"), "OPERATION_FAILED", "status 404"),
    ("429", answering(b"", "429 Too Many Requests"), "RATE_LIMIT_ERROR", "status 429"),
    ("503", answering(b"", "503 Service Unavailable"), "OPERATION_FAILED", "status 503"),
]


async def called(api: PublicApi) -> ApiCall:
    async with ApiClient() as client:
        return await client.call(api)


@pytest.mark.parametrize(
    ("behave", "error", "said"), [row[1:] for row in BEHAVIOURS], ids=[row[0] for row in BEHAVIOURS]
)
def test_what_a_server_does_is_an_error_code_and_a_line(behave: Behaviour, error: str | None, said: str) -> None:
    async def run() -> ApiCall:
        async with server(behave) as port:
            limit = 0.25 if error == "TIMEOUT" else 30.0
            return await called(api_at(f"http://127.0.0.1:{port}/", timeout_seconds=limit))

    call = asyncio.run(run())
    assert call.error == error, call
    assert call.ok == (error is None)
    assert call.output == ({"ip": "192.0.2.7"} if call.ok else None)
    assert said in call.message
    assert "\n" not in call.message


def test_a_name_that_does_not_exist_and_a_port_that_nobody_listens_on_are_network_errors() -> None:
    assert asyncio.run(called(api_at("http://no-such-host.invalid/"))).error == "NETWORK_ERROR"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        refused = asyncio.run(called(api_at(f"http://127.0.0.1:{taken.getsockname()[1]}/")))
    assert (refused.error, refused.status) == ("NETWORK_ERROR", None)


def test_a_server_that_speaks_no_tls_is_a_network_error() -> None:
    async def run() -> ApiCall:
        async with server(no_http) as port:
            return await called(api_at(f"https://127.0.0.1:{port}/"))

    assert asyncio.run(run()).error == "NETWORK_ERROR"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
def test_a_certificate_that_nobody_vouches_for_is_a_network_error(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def run() -> ApiCall:
        async with server(answering(), ssl=context) as port:
            return await called(api_at(f"https://localhost:{port}/"))

    call = asyncio.run(run())
    assert call.error == "NETWORK_ERROR"
    assert "certificate" in call.message.lower()


def test_at_most_so_many_calls_of_a_host_run_at_once_and_waiting_is_not_their_time() -> None:
    running, most = 0, 0

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        await answering()(reader, writer)

    async def run() -> list[ApiCall]:
        async with server(counting) as port, ApiClient(per_host=3) as client:
            # Ten calls of three at a time take four rounds: more than the limit of any single one would allow them.
            api = api_at(f"http://127.0.0.1:{port}/", timeout_seconds=10.0)
            return await asyncio.gather(*(client.call(api) for _ in range(10)))

    assert all(call.ok for call in asyncio.run(run()))
    assert most == 3


def test_a_call_that_is_cancelled_gives_its_turn_back() -> None:
    async def run() -> ApiCall:
        async with server(silent) as quiet, server(answering()) as port, ApiClient(per_host=1) as client:
            stuck = asyncio.create_task(client.call(api_at(f"http://127.0.0.1:{quiet}/")))
            await asyncio.sleep(0.05)
            stuck.cancel()
            await asyncio.gather(stuck, return_exceptions=True)
            assert not client._turns[f"127.0.0.1:{quiet}"].locked()
            return await client.call(api_at(f"http://127.0.0.1:{port}/"))

    assert asyncio.run(run()).ok


def test_parameters_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    async def run() -> None:
        async with ApiClient() as client:
            await client.call(find_api("weather_fetcher"), {"latitude": 91, "longitude": 0})

    with pytest.raises(InvalidInputError, match="does not meet maximum 90"):
        asyncio.run(run())


def test_without_httpx2_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt '\.\[apis\]'"):
        ApiClient()


BAD_ADDRESSES: list[tuple[dict[str, Any], str]] = [
    ({"twin": "127.0.0.1:8750"}, "expected a URL"),
    ({"twin": "http://127.0.0.1:1", "speed": 0}, "speed is 0"),
    ({"speed": 2.0}, "the clock of real hosts cannot be changed"),
]


@pytest.mark.parametrize(("given", "said"), BAD_ADDRESSES)
def test_what_is_no_address_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        Address(**given)
