"""mcp-server-sqlite (mcp 1.x), unmodified, behind the proxy: clients of the former protocol, and the page's example."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from pages import run_blocks
from proxies import PYTHON, SEEDS, calls_of, expected, over_http, proxy

CALLS = [
    ("create_table", {"query": "CREATE TABLE IF NOT EXISTS items (name TEXT)"}),
    ("write_query", {"query": "INSERT INTO items VALUES ('lamp')"}),
    ("append_insight", {"insight": "lamps sell"}),
    ("read_query", {"query": "SELECT name FROM items"}),
    ("list_tables", {}),
    ("describe_table", {"table_name": "items"}),
] * 3


@asynccontextmanager
async def over_stdio(command: list[str], heard: list[Any]) -> AsyncIterator[ClientSession]:
    """Connect to a server of the client's own."""

    async def hear(message: Any) -> None:
        heard.append(message)

    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams, message_handler=hear) as client:
        await client.initialize()
        yield client


async def everything(client: ClientSession) -> list[Any]:
    """Return what a client sees of a server before it calls a tool."""
    found = [
        await client.list_tools(),
        await client.list_prompts(),
        await client.get_prompt("mcp-demo", {"topic": "shops"}),
        await client.list_resources(),
        await client.read_resource("memo://insights"),
    ]
    return [each.model_dump(mode="json") for each in found]


async def played(client: ClientSession) -> list[tuple[bool, str]]:
    """Make all calls, and return for each whether it failed, and the words."""
    results = [await client.call_tool(name, arguments) for name, arguments in CALLS]
    return [(bool(result.isError), result.content[0].text) for result in results]


async def directly(folder: Path, passed: list[bool]) -> list[str]:
    """Return what the server says to the calls that pass."""
    async with over_stdio(["mcp-server-sqlite", "--db-path", str(folder / "direct.db")], []) as client:
        told = [
            (await client.call_tool(name, arguments)).content[0].text
            for (name, arguments), passes in zip(CALLS, passed, strict=True)
            if passes
        ]
    (folder / "direct.db").unlink()
    return told


async def check(folder: Path, names: list[str], seed: int, said: list[tuple[bool, str]]) -> None:
    """Compare the answers of one episode with the draws and with the server's own answers."""
    passed = expected(names, seed, [name for name, _ in CALLS])
    assert [not failed for failed, _ in said] == passed, (seed, said)
    assert [words for failed, words in said if not failed] == await directly(folder, passed)


async def main() -> None:
    """Play over both transports, in front of a command and of a URL."""
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        async with over_stdio(["mcp-server-sqlite", "--db-path", str(folder / "first.db")], []) as client:
            plain = await everything(client)
        names = [tool["name"] for tool in plain[0]["tools"]]
        for seed in SEEDS:
            server = ["mcp-server-sqlite", "--db-path", str(folder / f"{seed}.db")]
            heard: list[Any] = []
            async with over_stdio(proxy(folder / "stdio", seed, server), heard) as client:
                assert await everything(client) == plain
                said = await played(client)
            await check(folder, names, seed, said)
            insights = sum(
                not failed for (failed, _), call in zip(said, CALLS, strict=True) if call[0] == "append_insight"
            )
            updates = [each for each in heard if "ResourceUpdated" in type(getattr(each, "root", each)).__name__]
            assert len(updates) == insights, (updates, insights)
        kinds = {call["outcome"] for call in calls_of(folder / "stdio")}
        print(
            f"mcp-server-sqlite behind the proxy, stdio: {len(SEEDS)} episodes of {len(CALLS)} calls, {sorted(kinds)}"
        )

        sure = proxy(folder / "inner", 0, ["mcp-server-sqlite", "--db-path", ":memory:"])
        (folder / "sure.json").write_text('{"name": "sure", "base": 1.0, "history": 1.0}')
        sure[sure.index("--law") + 1] = str(folder / "sure.json")

        async def one(url: str, seed: int) -> list[tuple[bool, str]]:
            async with (
                streamablehttp_client(f"{url}/{seed}/mcp") as (read, write, _),
                ClientSession(read, write) as client,
            ):
                await client.initialize()
                assert await everything(client) == plain
                return await played(client)

        # In front of another proxy, whose law lets everything through: HTTP on both sides.
        with over_http(sure) as inner, over_http(proxy(folder / "http", 0, ["--url", f"{inner}/a/mcp"])) as url:
            for seed in SEEDS[:2]:
                said = await one(url, seed)
                assert [not failed for failed, _ in said] == expected(names, seed, [name for name, _ in CALLS])
        print(f"the same over HTTP, in front of a URL: {len(SEEDS[:2])} episodes")
        example(folder)


def example(folder: Path) -> None:
    """Run the guide's example, whose client is one of mcp 2.x."""
    path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    run_blocks("mcp-servers", {}, lambda name, text: (folder / name).write_text(text))
    for command in (["python", "orders.py"], ["resilisim", "report", "orders-after"]):
        done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        print(done.stdout)
    assert (folder / "orders-after" / "report.html").exists()


if __name__ == "__main__":
    asyncio.run(main())
