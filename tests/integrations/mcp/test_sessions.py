"""One address for session after session, lists of tools that change, names as they come, the work order as a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.routing import Route

from resilisim import inject
from resilisim.evaluation import read_records
from resilisim.integrations.mcp.host import EPISODE_PATH, SESSION_PATH, http_server, listening
from resilisim.integrations.mcp.proxy import ProxyEpisodes
from resilisim.integrations.mcp.server import Episodes, Hosts, ServedRun
from tests.integrations.mcp.test_proxy import ERAS, HALF, SURE, InProcess, in_a_loop, outcomes, proxied, said


@asynccontextmanager
async def proxy_at_one_address(folder: Path, **asked: Any) -> AsyncIterator[tuple[str, list[str]]]:
    told: list[str] = []
    settings = inject(**({"law": HALF, "seed": 5, "record": folder, "required": ["add"]} | asked)).settings
    episodes = ProxyEpisodes(InProcess(settings, command=("own",)), True, told.append)
    app = Starlette(routes=[Route(path, endpoint=episodes) for path in (EPISODE_PATH, SESSION_PATH)])
    async with listening(app, "127.0.0.1", 0) as (url, _):
        yield url, told
        await episodes.close()


async def adds(url: str, mode: str) -> list[bool]:
    async with Client(f"{url}/mcp", mode=mode) as client:
        return [(await said(client, "add", a=1, b=2))[0] for _ in range(8)]


@pytest.mark.long
@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_session_after_session_at_one_address_is_episode_after_episode(mode: str, tmp_path: Path) -> None:
    async with proxy_at_one_address(tmp_path, turns=20) as (url, told):
        at_one = [await adds(url, mode) for _ in range(3)]
        if mode == "legacy":  # at once, too: sessions keep them apart
            at_one += await asyncio.gather(*(adds(url, mode) for _ in range(3)))
    async with proxy_at_one_address(tmp_path, turns=20) as (url, told):  # and a new proxy goes on behind them
        at_one.append(await adds(url, mode))
    seeds = [record["seed"] for record in read_records(tmp_path)]
    assert sorted(seeds) == list(range(5, 5 + len(at_one)))
    assert len(told) == 1
    async with proxy_at_one_address(tmp_path.with_name("named"), turns=20) as (url, _):
        alone = []
        for number in range(len(at_one)):
            async with Client(f"{url}/episodes/{number}/mcp", mode=mode) as client:
                alone.append([(await said(client, "add", a=1, b=2))[0] for _ in range(8)])
    assert sorted(at_one) == sorted(alone)


@in_a_loop
async def test_a_session_that_is_closed_and_requests_of_none_begin_nothing(tmp_path: Path) -> None:
    import httpx2

    accept = {"accept": "application/json, text/event-stream"}
    async with proxy_at_one_address(tmp_path) as (url, told), httpx2.AsyncClient() as http:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await http.post(f"{url}/mcp", headers=accept, json=ping)).status_code == 404
        gone = await http.post(f"{url}/mcp", headers=accept | {"mcp-session-id": "gone"}, json=ping)
        assert gone.status_code == 404
        assert (await http.delete(f"{url}/mcp", headers={"mcp-session-id": "gone"})).status_code == 404
        assert told == []


class Growing:
    """A server whose list of tools has pages, and changes while they are read."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.asked, self.called = names, 0, list[str]()

    def server(self) -> Server[Any]:
        async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
            start = int(params.cursor) if params is not None and params.cursor else 0
            self.asked += 1
            if self.asked == 20:  # in the middle of the pages
                self.names.append("came later")
                await context.session.send_tool_list_changed()
            page = self.names[start : start + 3]
            tools = [types.Tool(name=name, input_schema={"type": "object"}) for name in page]
            end = start + 3
            return types.ListToolsResult(tools=tools, next_cursor=str(end) if end < len(self.names) else None)

        async def call_tool(context: Any, params: Any) -> types.CallToolResult:
            self.called.append(params.name)
            return types.CallToolResult(content=[types.TextContent(type="text", text=params.name)])

        return Server("growing", on_list_tools=list_tools, on_call_tool=call_tool)


@in_a_loop
async def test_pages_of_a_list_that_changes_meanwhile_and_names_of_any_alphabet() -> None:
    own = ["fs/read", "search the web", "поиск", "検索", "Read", "read", "a.b-c_d:e"]
    growing = Growing([*own, *(f"tool {number}" for number in range(150))])
    async with proxied("legacy", server=growing.server(), law=SURE, required=["検索", "fs/read"], turns=30) as (
        client,
        connection,
    ):
        for name in ["検索", *own, "tool 149"]:
            assert await said(client, name) == (False, name)
        while "came later" not in connection.relay.tools:
            await asyncio.sleep(0.01)
        assert await said(client, "came later") == (False, "came later")
    assert set(outcomes(connection)) == {"ok"}
    assert len(connection.relay.tools) == len(own) + 151
    assert connection.relay.episode.score["level"] == "full_success"


@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_the_work_order_is_a_prompt_and_sessions_play_on(mode: str, tmp_path: Path) -> None:
    with_tasks = Episodes(ServedRun(tasks=4, prompts="optimal", out=tmp_path))
    hosts = Hosts(lambda name: with_tasks.host(repeats=name.startswith("/")))
    async with http_server(hosts) as (url, _):
        orders = []
        for _ in range(2):
            async with Client(f"{url}/mcp", mode=mode) as client:
                (prompt,) = (await client.list_prompts()).prompts
                assert prompt.name == "work_order"
                assert {argument.name for argument in prompt.arguments} == {"task", "seed", "prompt"}
                order = (await client.get_prompt("work_order")).messages[0].content.text
                assert order == (await client.get_prompt("work_order")).messages[0].content.text  # the one under way
                orders.append(order)
                with pytest.raises(MCPError, match="under way"):
                    await client.get_prompt("work_order", {"seed": "0"})
                with pytest.raises(MCPError, match="did you mean 'work_order'"):
                    await client.get_prompt("work_ordr")
                score = await client.call_tool("episode_finish", {})
                assert score.structured_content["level"] == "failure"
        assert orders[0] != orders[1]
        if mode == "legacy":  # who ends a session has left its episode, and the next session begins another one
            for _ in range(2):
                async with Client(f"{url}/mcp", mode=mode) as client:
                    await client.call_tool("episode_start", {})
            assert with_tasks.num_played == 4
    with_tasks.close()
    records = list(read_records(tmp_path))
    assert [record["ended_by"] for record in records] == ["completion"] * 2 + ["stopped"] * 2 * (mode == "legacy")
