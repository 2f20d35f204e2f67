"""The conformance suite of MCP: a server behind the proxy passes what it passes alone; `mcp serve`; clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mcp import Client, StdioServerParameters
from proxies import PYTHON

HERE = Path(__file__).parent
NPM = Path(sys.prefix) / "npm"
PACKAGES = ("@modelcontextprotocol/conformance@0.1.16", "node@22")
LAW = "1.0"  # every call passes
# Of the suite what says something of a server that offers episodes: its other scenarios ask for tools of their own.
OF_EPISODES = ("server-initialize", "ping", "tools-list", "prompts-list", "dns-rebinding-protection")
OF_CLIENTS = ("initialize", "tools_call")
Results = dict[str, tuple[int, int]]


def suite() -> list[str]:
    """Return the command of the suite, which is installed if it is not."""
    script = NPM / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    if not script.exists():
        npm = shutil.which("npm")
        assert npm is not None, "the conformance suite is a package of npm: expected npm"
        subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", NPM, *PACKAGES], check=True)
    return [str(NPM / "node_modules" / ".bin" / "node"), str(script)]


def results(command: Sequence[str]) -> Results:
    """Run the suite, and return by scenario how many checks have passed, and how many have not."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "-o", folder], capture_output=True, text=True, timeout=600, check=False)
        found: Results = {}
        for path in Path(folder).rglob("checks.json"):
            name = re.sub(r"-\d{4}-\d\d-\d\dT.*", "", path.parent.name)
            counted = Counter(check["status"] for check in json.loads(path.read_text()))
            found[name] = (counted["SUCCESS"], counted["FAILURE"])
    assert found, done.stdout + done.stderr
    return found


@contextmanager
def listening() -> Iterator[str]:
    """Start the server, and yield its URL."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, HERE / "server.py", str(port)], stdout=quiet, stderr=quiet)
    try:
        for _ in range(200):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def resilisim(*words: str) -> Iterator[str]:
    """Start a command that listens, and yield the URL at which each session is the next episode."""
    command = [PYTHON, "-m", "resilisim", *words, "--http", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = re.search(r"http://[\d.:]+/mcp", process.stderr.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.stderr.read()
        process.wait()


def check_servers(command: list[str]) -> None:
    """Run the server scenarios: alone, behind the proxy, and on `mcp serve`."""
    with listening() as url:
        alone = results([*command, "server", "--url", url])
        with resilisim("mcp", "proxy", "--law", LAW, "--url", url) as proxied:
            behind = results([*command, "server", "--url", proxied])
    differ = {name: (alone[name], behind.get(name)) for name in alone if alone[name] != behind.get(name)}
    assert not differ, differ
    passed, failed = (sum(counts) for counts in zip(*alone.values(), strict=True))
    assert failed == 0, {name: counts for name, counts in alone.items() if counts[1]}
    print(f"behind the proxy: {passed} of {passed + failed} checks, as alone")
    with resilisim("mcp", "serve", "--tasks", "2") as served:
        for name in OF_EPISODES:
            counts = results([*command, "server", "--url", served, "--scenario", name])
            assert all(failed == 0 < passed for passed, failed in counts.values()), (name, counts)
    print(f"mcp serve: {', '.join(OF_EPISODES)}")


def check_clients(command: list[str]) -> None:
    """Run the client scenarios with a client behind which the proxy stands."""
    own = f"{sys.executable} {HERE / 'check.py'} client"
    for name in OF_CLIENTS:
        counts = results([*command, "client", "--command", own, "--scenario", name])
        assert all(failed == 0 < passed for passed, failed in counts.values()), (name, counts)
    print(f"clients through mcp proxy --url: {', '.join(OF_CLIENTS)}")


async def client(url: str) -> None:
    """Call each tool of a server through the proxy, as the suite's servers expect."""
    words = ["-m", "resilisim", "mcp", "proxy", "--law", LAW, "--url", url]
    async with Client(StdioServerParameters(command=PYTHON, args=words, env=dict(os.environ)), mode="legacy") as own:
        for tool in (await own.list_tools()).tools:
            names = tool.input_schema.get("properties", {})
            await own.call_tool(tool.name, dict.fromkeys(names, 3))


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        asyncio.run(client(sys.argv[2]))
    else:
        installed = suite()
        check_servers(installed)
        check_clients(installed)
