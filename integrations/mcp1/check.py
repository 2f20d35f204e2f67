"""Clients of the former protocol (mcp 1.x) play on the server, which has mcp 2.x in the project's own environment."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

from resilisim import benchmark_tasks, open_session
from resilisim.workflows import parse_plan

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("SERVER_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
NUM_TASKS, SEEDS = 8, (0, 1, 2, 3)
SCORES = ("outcome", "optimum", "regret", "luck", "losses", "score", "ended_by")


def served(out: Path, *options: str) -> list[str]:
    """Return the command line of a server that records into a folder."""
    chosen = ["--tasks", str(NUM_TASKS), "--seeds", str(len(SEEDS)), "--prompt", "optimal", "--out", str(out)]
    return ["-m", "resilisim", "mcp", "serve", *chosen, *options]


async def play(client: ClientSession, task: str, seed: int) -> dict[str, Any]:
    """Follow the plan, each step until it succeeds, and return the score."""
    begun = await client.call_tool("episode_start", {"task": task, "seed": seed})
    for name in parse_plan(begun.content[0].text):
        while True:
            result = await client.call_tool(name, {})
            words = result.content[0].text
            left = re.search(r"; (\d+) turns? left", words)
            if not result.isError or left is None or left[1] == "0":
                break
    score: dict[str, Any] = json.loads((await client.call_tool("episode_finish", {})).content[0].text)
    return score


def expected(task: str, seed: int) -> dict[str, Any]:
    """Return the record of the same calls in a session."""
    with open_session(task, seed, "optimal") as session:
        for name in parse_plan(session.prompt):
            while not session.call(name).ok and session.turns_left and not session.ended:
                pass
        session.finish()
    return session.record()


@asynccontextmanager
async def over_stdio(out: Path) -> AsyncIterator[ClientSession]:
    """Connect to a server of the client's own."""
    server = StdioServerParameters(command=PYTHON, args=served(out), env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams) as client:
        await client.initialize()
        yield client


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[ClientSession]:
    """Connect to the URL of an episode."""
    async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write) as client:
        await client.initialize()
        yield client


async def main() -> None:
    """Play all episodes over both transports, and compare."""
    tasks = [task.instance_id for task in benchmark_tasks()[:NUM_TASKS]]
    episodes = [(task, seed) for task in tasks for seed in SEEDS]
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "stdio", Path(folder) / "http"
        async with over_stdio(first) as client:
            assert len((await client.list_tools()).tools) == 32
            for task, seed in episodes:
                await play(client, task, seed)
        compare(first, "stdio")
        server = subprocess.Popen([PYTHON, *served(second, "--http", "127.0.0.1:0")], stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            found = re.search(r"http://[\d.:]+", server.stderr.readline())
            assert found is not None

            async def one(number: int, task: str, seed: int) -> None:
                async with over_http(f"{found[0]}/episodes/{number}/mcp") as client:
                    await play(client, task, seed)

            await asyncio.gather(*(one(number, *episode) for number, episode in enumerate(episodes)))
        finally:
            server.terminate()
            server.wait()
        compare(second, "HTTP, all at once")


def compare(folder: Path, door: str) -> None:
    """Compare the episodes in a folder with those of sessions."""
    records = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    assert len(records) == NUM_TASKS * len(SEEDS), len(records)
    for record in records:
        mine = expected(record["instance_id"], record["seed"])
        for name in SCORES:
            assert record[name] == mine[name], (door, record["instance_id"], record["seed"], name)
    print(f"mcp 1.x over {door}: {len(records)} episodes equal those of sessions in {', '.join(SCORES)}")


if __name__ == "__main__":
    asyncio.run(main())
