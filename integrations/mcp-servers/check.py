"""mcp-server-time and mcp-server-fetch (mcp 2.x), unmodified, behind the proxy: both eras and transports, and kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from mcp import Client, MCPError, StdioServerParameters
from proxies import SEEDS, calls_of, expected, over_http, proxy

NOON = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
CALLS = [("convert_time", NOON), ("get_current_time", {"timezone": "Europe/Berlin"})] * 6
TIME = ["mcp-server-time", "--local-timezone", "Europe/Berlin"]
CLIENT = """
import asyncio, os, sys
from mcp import Client, StdioServerParameters

async def main():
    proxy = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))
    async with Client(proxy) as client:
        await client.call_tool("fetch", {"url": "SLOW"})

asyncio.run(main())
"""


class Page(BaseHTTPRequestHandler):
    """Answers at once, or not for a long time; tells when it was asked for that."""

    asked = threading.Event()

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/slow":
            self.asked.set()
            time.sleep(60)
        body = b"<html><body><p>A page of this machine.</p></body></html>"
        self.send_response(404 if self.path == "/robots.txt" else 200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def pages() -> Iterator[str]:
    """Serve pages on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


async def slow_page_is_asked_for() -> None:
    """Wait until a server asks for the page that does not answer."""
    Page.asked.clear()
    assert await asyncio.to_thread(Page.asked.wait, 120)


def started(command: list[str]) -> StdioServerParameters:
    """Return what starts a command."""
    return StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))


async def play(client: Client) -> list[bool]:
    """Make all calls, and return which of them passed; those that did have the server's answer."""
    passed = []
    for name, arguments in CALLS:
        result = await client.call_tool(name, arguments)
        words = result.content[0].text
        assert ("datetime" in words) if not result.is_error else words.startswith(f"{name}: "), words
        passed.append(not result.is_error)
    return passed


async def both_eras(folder: Path) -> None:
    """Play over stdio, over HTTP, and in front of a URL."""
    names = ["get_current_time", "convert_time"]
    order = [name for name, _ in CALLS]
    for mode, version in (("auto", "2026-07-28"), ("legacy", "2025-11-25")):
        async with Client(started(TIME), mode=mode) as client:
            plain = (await client.list_tools()).model_dump(mode="json")
        for seed in SEEDS:
            async with Client(started(proxy(folder / mode, seed, TIME)), mode=mode) as client:
                assert client.protocol_version == version
                assert (await client.list_tools()).model_dump(mode="json") == plain
                assert await play(client) == expected(names, seed, order)

        async def one(url: str, seed: int, mode: str = mode, version: str = version) -> None:
            async with Client(f"{url}/{seed}/mcp", mode=mode) as client:
                assert client.protocol_version == version
                assert await play(client) == expected(names, seed, order)

        with over_http(proxy(folder / f"http-{mode}", 0, TIME)) as url:
            await asyncio.gather(*(one(url, seed) for seed in SEEDS))  # all at once
            # Another proxy in front of the first one's URL: both laws have a say, so at most as many calls pass.
            outer = proxy(folder / f"url-{mode}", 9, ["--url", f"{url}/a/mcp"])
            async with Client(started(outer), mode=mode) as client:
                results = [await client.call_tool(*call) for call in CALLS]
        mine = calls_of(folder / f"url-{mode}")
        assert [call["outcome"] == "injected" for call in mine] == [not each for each in expected(names, 9, order)]
        assert sum(not result.is_error for result in results) == sum(call["outcome"] == "ok" for call in mine)
        print(f"mcp-server-time behind the proxy, {version}: {len(SEEDS)} episodes a transport, one --url")


async def trouble(folder: Path) -> None:
    """Let a server hang, kill one, and kill a client."""
    (folder / "sure.json").write_text('{"name": "sure", "base": 1.0, "history": 1.0}')

    def sure(record: str, *options: str) -> list[str]:
        command = proxy(
            folder / record,
            0,
            ["sh", "-c", f"echo $$ > {folder / 'pid'}; exec mcp-server-fetch --allow-private-ips"],
            *options,
        )
        command[command.index("--law") + 1] = str(folder / "sure.json")
        return command

    with pages() as url:
        async with Client(started(sure("hangs", "--call-timeout", "20"))) as client:
            answer = await client.call_tool("fetch", {"url": url})
            assert "A page of this machine" in answer.content[0].text, answer
            refused = await client.call_tool("fetch", {"url": 3})
            assert refused.is_error, refused
            try:
                await client.call_tool("fetch", {"url": f"{url}/slow"})
            except MCPError as error:
                print(f"hangs: {error}")
        found = [(call["outcome"], call["error"]) for call in calls_of(folder / "hangs")]
        assert found == [("ok", None), ("misuse", "invalid_arguments"), ("real", "hung")], found

        async with Client(started(sure("killed"))) as client:
            call = asyncio.create_task(client.call_tool("fetch", {"url": f"{url}/slow"}))
            await slow_page_is_asked_for()
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
            try:
                await call
            except MCPError as error:
                print(f"killed server: {error}")
        assert [(call["outcome"], call["error"]) for call in calls_of(folder / "killed")] == [("real", "died")]

        program = CLIENT.replace("SLOW", f"{url}/slow")
        client = subprocess.Popen([sys.executable, "-c", program, *sure("left", "--required", "fetch")])
        await slow_page_is_asked_for()
        client.kill()
        client.wait()
        for _ in range(200):
            await asyncio.sleep(0.1)
            if (folder / "left" / "episodes.jsonl").exists() and (folder / "left" / "episodes.jsonl").stat().st_size:
                break
        assert [(call["outcome"], call["error"]) for call in calls_of(folder / "left")] == [("real", "gone")]
        print("killed client: its call is in the record, and the episode has ended")


async def main() -> None:
    """Do everything."""
    with tempfile.TemporaryDirectory() as folder:
        await both_eras(Path(folder))
        await trouble(Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
