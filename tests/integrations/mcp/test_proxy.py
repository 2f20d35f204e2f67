"""`resilisim mcp proxy`: real clients and servers of the MCP library, of both eras, with a law between them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client._memory import InMemoryTransport
from mcp.server.lowlevel import Server
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from starlette.applications import Starlette
from starlette.routing import Route

from resilisim import inject, read_results
from resilisim.cli.main import app as command_line
from resilisim.errors import ResiliSimError, StoreError
from resilisim.evaluation import read_records
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.evaluation.episode.rejudging import compare_records
from resilisim.injection import fit_law
from resilisim.injection.folder import InjectionFolder
from resilisim.injection.replay import replay_calls
from resilisim.integrations.mcp.host import EPISODE_PATH, listening
from resilisim.integrations.mcp.proxy import Proxied, ProxyConnection, ProxyEpisodes, _innermost, read_agent
from resilisim.simulator import Law, RateLimit
from tests.guards import WAITING_SECONDS
from tests.integrations.mcp import own_server

SERVER = str(Path(own_server.__file__))
ERAS = ("legacy", "auto")
HALF = {"base": 0.5, "history": 1.0, "not_executed": 1.0, "failed": 1.0}
SURE = {"base": 1.0, "history": 1.0, "not_executed": 1.0, "failed": 1.0}


class Streams:
    """A transport of streams that are there already."""

    def __init__(self, streams: Any) -> None:
        self._streams = streams

    async def __aenter__(self) -> Any:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        await self._streams[1].aclose()


@dataclass(frozen=True)
class InProcess(Proxied):
    """A server in this process; `streams` takes its end of the wire, so that it can be cut."""

    server: Any = None
    streams: Any = None
    closing_seconds: float = 0.0

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        async with InMemoryTransport(self.server or own_server.make_server()) as streams:
            if self.streams is not None:
                self.streams.append(streams)
            yield streams
        await asyncio.sleep(self.closing_seconds)


@asynccontextmanager
async def proxied(
    mode: str = "auto",
    server: Any = None,
    url: str | None = None,
    call_seconds: float | None = None,
    streams: Any = None,
    **asked: Any,
) -> AsyncIterator[tuple[Client, ProxyConnection]]:
    asked = {"law": HALF, "seed": 5} | asked
    handlers = {name: asked.pop(name) for name in tuple(asked) if name.endswith(("_callback", "_handler"))}
    settings = inject(**asked).settings
    target = InProcess(settings, ("own",), call_seconds=call_seconds, server=server, streams=streams)
    if url is not None:
        target = Proxied(settings, url=url)
    async with create_client_server_memory_streams() as (client_streams, (read, write)):

        async def to_agent(message: Any, related: Any) -> None:
            await write.send(SessionMessage(message))

        connection = ProxyConnection(target, asked["seed"], None, to_agent)
        await connection.open()
        reading = asyncio.create_task(read_agent(read, connection.relay))
        async with Client(Streams(client_streams), mode=mode, cache=None, **handlers) as client:
            yield client, connection
        await reading
        await connection.close(is_orderly=True)


async def said(client: Client, name: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(name, arguments)
    return bool(result.is_error), result.content[0].text


@asynccontextmanager
async def given_up(client: Client, name: str, arguments: dict[str, Any]) -> AsyncIterator[None]:
    """Call a tool for as long as the block takes, then give the call up, as a client does whose patience is at its end.

    No seconds are counted, so that a busy machine makes no difference.
    """
    calling = asyncio.create_task(client.call_tool(name, arguments))
    yield
    assert not calling.done(), calling
    calling.cancel()
    await asyncio.wait([calling])
    assert calling.cancelled()


async def has_run(name: str, times: int = 1) -> None:
    """Wait until a tool of the server in this process has begun so many times."""
    while own_server.ran.count(name) < times:
        await asyncio.sleep(0.005)


def outcomes(connection: ProxyConnection) -> list[str]:
    return [call.outcome for call in connection.relay.calls]


def in_a_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        own_server.ran.clear()
        asyncio.run(asyncio.wait_for(test(*arguments, **named), WAITING_SECONDS))

    return run


async def everything(client: Client) -> list[Any]:
    found = [
        await client.list_tools(),
        await client.list_resources(),
        await client.list_resource_templates(),
        await client.read_resource("own://note"),
        await client.list_prompts(),
        await client.get_prompt("greet", {"name": "Ada"}),
    ]
    return [client.protocol_version, client.server_capabilities, *(each.model_dump(mode="json") for each in found)]


@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_everything_but_calls_passes_unchanged(mode: str) -> None:
    async with Client(InMemoryTransport(own_server.make_server()), mode=mode, cache=None) as direct:
        expected = await everything(direct)
    async with proxied(mode) as (client, connection):
        assert await everything(client) == expected
        with pytest.raises(MCPError) as refused:
            await client.read_resource("own://nothing")
        assert "own://nothing" in str(refused.value)
    assert connection.relay.calls == []


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("fail", ["before", "after"])
@in_a_loop
async def test_calls_are_drawn_as_by_inject_and_what_goes_wrong_is_kept_apart(
    mode: str, fail: Any, tmp_path: Path
) -> None:
    order = ["add", "fails", "add", "nothing", *(["add", "fails"] * 5)]
    async with proxied(mode, fail=fail, record=tmp_path) as (client, connection):
        for name in order:
            await said(client, name, **({"a": 1, "b": 2} if name == "add" else {}))
        assert await said(client, "add", a=1) == (True, await _direct_words(mode))
    for call in connection.relay.calls:
        assert call.ran == (call.outcome in ("ok", "real") or (fail == "after" and call.outcome == "injected"))
    real = [call for call in connection.relay.calls if call.outcome == "real"]
    assert real
    assert {(call.tool, call.error, call.message) for call in real} == {
        ("fails", "isError", "Error executing tool fails: nothing works here")
    }
    misused = [(call.tool, call.error) for call in connection.relay.calls if call.outcome == "misuse"]
    assert misused == [("nothing", "unknown_tool"), ("add", "invalid_arguments")]
    drawn = [(call.tool, call.attempt, call.passed) for call in connection.relay.calls if call.attempt]
    assert drawn == _by_inject([name for name in order if name != "nothing"], fail)
    lines = _lines(tmp_path / "calls.jsonl")
    assert [line["outcome"] for line in lines] == outcomes(connection)
    assert {line["seed"] for line in lines} == {5}
    ran = Counter(line["tool"] for line in lines if line["ran"])
    fitted = {row.tool: (row.calls, row.successes) for row in fit_law(tmp_path, failures="real").tools}
    assert fitted == {"add": (ran["add"], ran["add"]), "fails": (ran["fails"], 0)}


async def _direct_words(mode: str) -> str:
    async with Client(InMemoryTransport(own_server.make_server()), mode=mode, cache=None) as client:
        return (await said(client, "add", a=1))[1]


def _by_inject(order: list[str], fail: Any) -> list[Any]:
    """The same calls of functions: the draws depend on names, seed and number of the call only."""

    def add(a: int, b: int) -> int:
        return a + b

    def fails() -> None:
        raise ValueError("nothing works here")

    others = [_named(name) for name in ("dies", "waits", "asks", "grows")]
    tools = inject([add, fails, *others], law=HALF, seed=5, fail=fail)
    for name in order:
        try:
            tools[name](*((1, 2) if name == "add" else ()))
        except Exception:
            continue
    return [(call.tool, call.attempt, call.passed) for call in tools.calls]


def _named(name: str) -> Any:
    def other() -> None: ...

    other.__name__ = name
    return other


@in_a_loop
async def test_arguments_that_the_server_takes_against_its_schema_are_no_mistake() -> None:
    async with proxied(law=SURE) as (client, connection):
        assert await said(client, "add", a="1", b=2) == (False, "3")
    assert outcomes(connection) == ["ok"]


@pytest.mark.parametrize("mode", ERAS)
def test_a_goal_gives_v_star_regret_and_luck_and_ends_with_the_calls(mode: str, tmp_path: Path) -> None:
    async def test(seed: int) -> None:
        goal = {"required": ["add", "grows"], "turns": 4, "record": tmp_path, "seed": seed}
        async with proxied(mode, **goal) as (client, _):
            made = 0
            for name in ("add", "grows"):
                while made < 4 and (await said(client, name, **({"a": 1, "b": 1} if name == "add" else {})))[0]:
                    made += 1
                made += 1
            if made >= 4:
                assert await said(client, "add", a=1, b=1) == (
                    True,
                    "the episode is over: it had 4 calls, and all of them are used up",
                )

    for seed in range(4):
        in_a_loop(test)(seed)
    records = list(read_records(tmp_path))
    assert [record["index"] for record in records] == [0, 1, 2, 3]
    assert all(identity_error(record) < 1e-9 for record in records)
    for record in records:
        assert compare_records(record, replay_calls(tmp_path, record), tolerance=0.0) == ("agreeing", None)
    expected = inject([_named("add"), _named("grows")], law=HALF, required=["add", "grows"], turns=4)
    with expected:
        pass
    assert records[0]["optimum"] == pytest.approx(expected.record()["optimum"]) == 11 / 16
    assert read_results(tmp_path).rows[0].regret.value == pytest.approx(0.0)


@in_a_loop
async def test_a_goal_stands_under_a_law_with_parts(tmp_path: Path) -> None:
    law = Law(base=1.0, history=1.0, rate_limit=RateLimit(1, 2, "all"))
    goal = {"required": ["add", "grows"], "ordered": False, "turns": 5, "fail": "after"}
    async with proxied(law=law, record=tmp_path, **goal) as (client, connection):
        assert (await said(client, "add", a=1, b=1)) == (False, "2")
        is_error, words = await said(client, "grows")
        assert is_error
        assert "RATE_LIMIT_ERROR: Rate limit of all tools reached" in words
        assert not (await said(client, "grows"))[0]
    assert outcomes(connection) == ["ok", "injected", "ok"]
    assert [call.ran for call in connection.relay.calls] == [True, False, True], "what is refused does not run"
    (record,) = read_records(tmp_path)
    assert (record["outcome"], record["optimum"], record["law"]["rate_limit"]["calls"]) == (1, 1.0, 1)
    assert [step["label"] for step in record["steps"]] == [None] * 4, "a call costs no more than to wait"
    assert identity_error(record) < 1e-9


@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_progress_and_cancellation_pass(mode: str) -> None:
    seen: list[Any] = []

    async def progress(*told: Any) -> None:
        seen.append(told)

    async with proxied(mode, law=SURE) as (client, connection):
        await client.call_tool("waits", {"seconds": 0}, progress_callback=progress)
        while not seen:
            await asyncio.sleep(0.005)
        assert seen == [(1.0, 2.0, "half")]
        async with given_up(client, "waits", {}):
            await has_run("waits", 2)
        assert await said(client, "add", a=1, b=2) == (False, "3")
        assert own_server.ran == ["waits", "waits", "cancelled", "add"]
    calls = connection.relay.calls
    assert [(call.outcome, call.error) for call in calls] == [("ok", None), ("real", "cancelled"), ("ok", None)]


@pytest.mark.parametrize("nonsense", [[], {}, 0.5, None])
@in_a_loop
async def test_what_names_no_request_does_no_harm(nonsense: Any) -> None:

    def notification(method: str, params: dict[str, Any]) -> types.JSONRPCNotification:
        return types.JSONRPCNotification(jsonrpc="2.0", method=method, params=params)

    async with proxied("legacy", law=SURE) as (client, connection):
        for params in ({"requestId": nonsense}, {"_meta": nonsense}):
            await connection.relay.from_agent(notification("notifications/cancelled", params))
        for params in ({"progressToken": nonsense}, {"_meta": {SUBSCRIPTION_ID_META_KEY: nonsense}}):
            await connection.relay.from_server(notification("notifications/progress", params))
        for params in ({"_meta": {"progressToken": nonsense}}, {"_meta": [nonsense]}):
            asked = types.JSONRPCRequest(jsonrpc="2.0", id="own", method="ping", params=params)
            await connection.relay.from_agent(asked)
        assert await said(client, "add", a=1, b=2) == (False, "3")
    assert outcomes(connection) == ["ok"]


@pytest.mark.parametrize("goal", [(), ("waits", "add")])
@in_a_loop
async def test_with_a_goal_calls_are_made_one_after_the_other(goal: tuple[str, ...]) -> None:
    async with proxied("legacy", law=SURE, required=goal) as (client, connection):
        waiting = asyncio.create_task(said(client, "waits", until="released"))
        await has_run("waits")
        second = asyncio.create_task(said(client, "add", a=1, b=2))
        if goal:  # one that is given up before its turn is never made
            async with given_up(client, "fails", {}):
                while len(connection.relay._held) < 2:
                    await asyncio.sleep(0.005)
        else:
            assert (await said(client, "fails"))[0]
            assert await second == (False, "3")
        own_server.ran.append("released")
        assert (await waiting, await second) == ((False, "waited"), (False, "3"))
    ended = [call.tool for call in connection.relay.calls]
    assert ended == list(goal) if goal else (sorted(ended[:2]), ended[2:]) == (["add", "fails"], ["waits"])
    assert ("fails" in own_server.ran) == (not goal)


@in_a_loop
async def test_a_server_that_hangs_is_given_up_unless_it_reports_or_waits_for_the_client() -> None:
    async def slow(context: Any, params: Any) -> Any:
        await asyncio.sleep(0.8)
        return types.ElicitResult(action="accept", content={"word": "yes"})

    async with proxied("legacy", law=SURE, call_seconds=0.5, elicitation_callback=slow) as (client, connection):
        with pytest.raises(MCPError, match=r"waits: the server has not answered within 0.5 s"):
            await client.call_tool("waits", {})
        assert await said(client, "add", a=1, b=2) == (False, "3")
        assert await said(client, "asks") == (False, "accept yes")
    found = [(call.tool, call.outcome, call.error) for call in connection.relay.calls]
    assert found == [("waits", "real", "hung"), ("add", "ok", None), ("asks", "ok", None)]
    assert "cancelled" in own_server.ran


@in_a_loop
async def test_input_that_a_call_waits_for_is_the_same_call() -> None:
    """Protocol 2026-07-28: a server asks back with a result, and the client calls again."""

    async def list_tools(context: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=[types.Tool(name="asks", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> Any:
        if params.input_responses is None:
            schema = {"type": "object", "properties": {"word": {"type": "string"}}}
            asked = types.ElicitRequest(params=types.ElicitRequestFormParams(message="which?", requested_schema=schema))
            return types.InputRequiredResult(input_requests={"word": asked}, request_state="1")
        word = params.input_responses["word"].content["word"]
        return types.CallToolResult(content=[types.TextContent(type="text", text=word)])

    async def reply(context: Any, params: Any) -> Any:
        return types.ElicitResult(action="accept", content={"word": "yes"})

    server = Server("asks", on_list_tools=list_tools, on_call_tool=call_tool)
    asked = {"law": SURE, "required": ["asks"], "elicitation_callback": reply}
    async with proxied("auto", server=server, **asked) as (client, connection):
        assert await said(client, "asks") == (False, "yes")
    assert [(call.outcome, call.attempt) for call in connection.relay.calls] == [("ok", 1)]
    assert connection.relay.episode.score["level"] == "full_success"


@in_a_loop
async def test_tools_that_come_by_fall_under_the_law_too() -> None:
    changed = asyncio.Event()

    async def seen(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with proxied("legacy", law=SURE, required=["grows"], message_handler=seen) as (client, connection):
        assert await said(client, "grows") == (False, "grown")
        await changed.wait()
        assert "extra" in [tool.name for tool in (await client.list_tools()).tools]
        assert await said(client, "extra") == (False, "extra")
    assert [(call.tool, call.probability) for call in connection.relay.calls] == [("grows", 1.0), ("extra", 1.0)]


@pytest.mark.parametrize("goal", [(), ("waits",)])
@in_a_loop
async def test_a_server_that_ends_leaves_a_whole_record_and_no_score(goal: tuple[str, ...], tmp_path: Path) -> None:
    wires: list[Any] = []
    async with proxied("legacy", law=SURE, streams=wires, record=tmp_path, required=goal) as (client, connection):
        assert await said(client, "add", a=1, b=2) == (False, "3")
        waiting = asyncio.create_task(client.call_tool("waits", {}))
        await has_run("waits")
        await wires[0][0].aclose()
        with pytest.raises(MCPError, match="own: the server has ended"):
            await waiting
        assert await connection.task == "own: the server has ended"
    lines = _lines(tmp_path / "calls.jsonl")
    assert [(line["outcome"], line["error"]) for line in lines] == [("ok", None), ("real", "died")]
    assert (tmp_path / "episodes.jsonl").read_text() == ""


@in_a_loop
async def test_a_record_that_cannot_be_written_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: InjectionFolder, line: Any) -> None:
        raise StoreError("cannot write: the disk is full")

    for way in ("write_call", "write_open_call"):
        monkeypatch.setattr(InjectionFolder, way, full)
    for law in (SURE, {"base": 1e-9}):  # the call is answered by the server, or by the law
        async with proxied("legacy", law=law, record=tmp_path / str(len(law))) as (client, connection):
            while connection.relay.episode is None:
                await asyncio.sleep(0.005)
            with pytest.raises(MCPError, match="the disk is full"):
                await client.call_tool("add", {"a": 1, "b": 2})
            assert await connection.task == "cannot write: the disk is full"


@in_a_loop
async def test_a_goal_that_the_server_cannot_reach_is_refused_in_one_line() -> None:
    words = "unknown function 'ad': did you mean 'add'?"
    async with proxied("legacy", required=["ad"]) as (client, connection):
        with pytest.raises(MCPError, match="unknown function 'ad'"):
            await client.call_tool("add", {"a": 1, "b": 2})
        assert await connection.task == words


@in_a_loop
async def test_a_server_without_tools_passes_and_one_that_does_not_list_them_is_told() -> None:
    async def lists_none(context: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=[])

    async def refuses(context: Any, params: Any) -> Any:
        raise MCPError(-32603, "no list today")

    async def call_tool(context: Any, params: Any) -> Any:
        return types.CallToolResult(content=[types.TextContent(type="text", text="called")])

    server = Server("none", on_list_tools=lists_none, on_call_tool=call_tool)
    async with proxied("legacy", server=server, law=SURE) as (client, connection):
        assert await said(client, "whatever") == (False, "called")
    assert [(call.tool, call.ran) for call in connection.relay.calls] == [("whatever", True)]
    server = Server("refuses", on_list_tools=refuses, on_call_tool=call_tool)
    async with proxied("legacy", server=server) as (client, connection):
        with pytest.raises(MCPError, match="does not list its tools: no list today"):
            await client.call_tool("whatever", {})


@asynccontextmanager
async def over_http(folder: Path, **asked: Any) -> AsyncIterator[tuple[str, list[str]]]:
    told: list[str] = []
    streams = asked.pop("streams", None)
    settings = inject(**({"law": HALF, "seed": 5, "record": folder} | asked)).settings
    server = InProcess(settings, command=("own",), closing_seconds=0.1, streams=streams)
    episodes = ProxyEpisodes(server, True, told.append)
    app = Starlette(routes=[Route(EPISODE_PATH, endpoint=episodes)])
    async with listening(app, "127.0.0.1", 0) as (url, _):
        yield f"{url}/episodes", told
        await episodes.close()


@pytest.mark.long
@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_over_http_each_url_is_an_episode(mode: str, tmp_path: Path) -> None:
    async def play(url: str) -> list[bool]:
        seen: list[Any] = []

        async def progress(*told: Any) -> None:
            seen.append(told)

        async with Client(url, mode=mode) as client:
            failed = [(await said(client, "add", a=1, b=2))[0] for _ in range(6)]
            while (await client.call_tool("waits", {"seconds": 0.0}, progress_callback=progress)).is_error:
                pass
            assert seen == [(1.0, 2.0, "half")]
            assert (await client.read_resource("own://note")).contents[0].text == "a note"
            word = f"{url}, {own_server.ran.count('waits')}"
            async with given_up(client, "waits", {"until": word}):
                await has_run(f"until {word}")
        return failed

    law = HALF | {"bases": {"waits": 1.0}}
    async with over_http(tmp_path, law=law, required=["add"], turns=40) as (url, told):
        first, second, other = await asyncio.gather(*(play(f"{url}/{name}/mcp") for name in ("a", "b", "1")))
        if mode == "legacy":  # its sessions end with their clients, and the URL can be used again
            assert first == await play(f"{url}/a/mcp")
        assert first == second != other
        while own_server.ran.count("cancelled") < own_server.ran.count("waits") // 2:  # seen a little later
            await asyncio.sleep(0.01)
    seeds = ["seed 5"] * (3 if mode == "legacy" else 2) + ["seed 6"]
    assert sorted(line.split(", ")[1].split(":")[0] for line in told) == seeds
    assert all("full_success; V* 1.000" in line for line in told), told
    cancelled = [line["outcome"] for line in _lines(tmp_path / "calls.jsonl") if line["error"] == "cancelled"]
    assert cancelled == ["real"] * len(seeds)
    assert sorted(record["index"] for record in read_records(tmp_path)) == list(range(len(seeds)))


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_a_server_that_listens_is_reached_by_its_url(mode: str) -> None:
    async with listening(own_server.make_server().streamable_http_app(), "127.0.0.1", 0) as (url, _):
        async with Client(InMemoryTransport(own_server.make_server()), mode=mode, cache=None) as direct:
            expected = await everything(direct)
        async with proxied(mode, url=f"{url}/mcp", law=SURE, required=["add"]) as (client, connection):
            assert await everything(client) == expected
            assert await said(client, "add", a=1, b=2) == (False, "3")
    assert outcomes(connection) == ["ok"]
    assert connection.relay.episode.score["level"] == "full_success"
    with pytest.raises(ExceptionGroup) as refused:
        async with proxied(mode, url=f"{url}/mcp", law=SURE) as (client, _):
            await client.list_tools()
    assert "the server cannot be reached" in str(_innermost(refused.value))


@in_a_loop
async def test_a_session_over_http_ends_when_it_is_deleted_and_strangers_are_refused(tmp_path: Path) -> None:
    import httpx2

    async with over_http(tmp_path, required=["add"]) as (url, told), httpx2.AsyncClient() as http:
        async with Client(f"{url}/a/mcp", mode="auto") as client:
            await said(client, "add", a=1, b=2)
        async with Client(f"{url}/b/mcp", mode="legacy") as client:
            await said(client, "add", a=1, b=2)
        async with Client(f"{url}/b/mcp", mode="legacy") as client:  # while the first one is still being closed
            while await said(client, "waits", seconds=0.4) != (False, "waited"):
                pass
        assert [line[:2] for line in told] in (["b,"], ["b,", "b,"])
        told.clear()
        assert (await http.delete(f"{url}/a/mcp")).status_code == 200
        assert "a, seed 5" in " ".join(told)
        gone = await http.get(f"{url}/a/mcp", headers={"mcp-session-id": "x"})
        assert (gone.status_code, gone.json()["error"]["message"]) == (404, "no session 'a' is open")
        rebound = await http.post(f"{url}/b/mcp", headers={"host": "evil.example"}, json={})
        assert rebound.status_code in (403, 421)
    for record in read_records(tmp_path):
        assert record["required_tools"] == ["add"]


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"origin": "https://evil.example"}, HELLO, 403),
        ({"origin": "null"}, HELLO, 403),
        ({"host": "evil.example"}, HELLO, 421),
        ({"content-type": "text/plain"}, HELLO, 400),
        ({"content-type": "application/jsonp"}, HELLO, 415),
        ({}, "nonsense", 400),
        ({}, [], 400),
        ({}, {"x": "y" * 5_000_000}, 413),
    ],
)
@in_a_loop
async def test_no_server_is_started_for_a_request_that_is_refused(
    headers: dict[str, str], body: Any, status: int, tmp_path: Path
) -> None:
    import httpx2

    started: list[Any] = []
    async with over_http(tmp_path, streams=started) as (url, _), httpx2.AsyncClient() as http:
        for name in "abc":
            text = body if isinstance(body, str) else json.dumps(body)
            refused = await http.post(f"{url}/{name}/mcp", headers=ACCEPT | headers, content=text)
            assert refused.status_code == status, refused.text
        assert started == []
        assert (await http.post(f"{url}/a/mcp", headers=ACCEPT, json=HELLO)).status_code == 200
        assert len(started) == 1


@in_a_loop
async def test_there_is_a_limit_of_servers_and_idle_ones_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx2

    monkeypatch.setattr("resilisim.integrations.mcp.proxy.MOST_SERVERS", 2)
    async with over_http(tmp_path) as (url, told), httpx2.AsyncClient() as http:

        async def begin(name: str) -> int:
            return (await http.post(f"{url}/{name}/mcp", headers=ACCEPT, json=HELLO)).status_code

        assert [await begin(name) for name in "abc"] == [200, 200, 502]
        assert told == []
        monkeypatch.setattr("resilisim.integrations.mcp.proxy._SPARE_SECONDS", 0.0)
        assert await begin("c") == 200
        assert [line[:2] for line in told] == ["a,"]


@in_a_loop
async def test_over_http_an_id_that_is_in_use_is_refused_and_the_first_call_answered(tmp_path: Path) -> None:
    import httpx2

    law = {"base": 1.0, "history": 1.0, "not_executed": 1.0, "failed": 1.0}
    async with over_http(tmp_path, law=law) as (url, _), httpx2.AsyncClient(timeout=None) as http:
        hello = await http.post(f"{url}/a/mcp", headers=ACCEPT, json=HELLO)
        session = ACCEPT | {"mcp-session-id": hello.headers["mcp-session-id"]}
        begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await http.post(f"{url}/a/mcp", headers=session, json=begun)
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call"}
        call["params"] = {"name": "waits", "arguments": {"until": "released"}}
        first = asyncio.create_task(http.post(f"{url}/a/mcp", headers=session, json=call))
        await has_run("waits")
        second = await http.post(f"{url}/a/mcp", headers=session, json=call)
        assert (second.status_code, second.json()["id"]) == (400, 7)
        own_server.ran.append("released")
        assert "waited" in (await first).text
    assert [(line["outcome"], line["error"]) for line in _lines(tmp_path / "calls.jsonl")] == [
        ("ok", None),
        ("misuse", "id_used_twice"),
    ]


@in_a_loop
async def test_the_command_in_front_of_a_server_that_is_killed(tmp_path: Path, python: list[str]) -> None:
    """The real command between a real client and a real server, each a process."""
    command = [*python[1:], "-m", "resilisim", "mcp", "proxy", "--law", "benchmark", "--record", str(tmp_path)]
    server = [*command, "--required", "add,waits", "--", sys.executable, SERVER]
    with (tmp_path / "stderr").open("w") as heard:
        from mcp.client.stdio import stdio_client

        parameters = StdioServerParameters(command=python[0], args=server, env=dict(os.environ))
        async with Client(stdio_client(parameters, heard), mode="legacy") as client:
            while (await said(client, "add", a=1, b=2))[0]:
                pass
            with pytest.raises(MCPError, match="the server has ended"):
                await asyncio.gather(*(client.call_tool("dies", {}) for _ in range(20)))
    assert "the server has ended" in (tmp_path / "stderr").read_text().splitlines()[-1]
    last = _lines(tmp_path / "calls.jsonl")[-1]
    assert (last["tool"], last["outcome"], last["error"]) == ("dies", "real", "died")


@pytest.mark.long
def test_the_command_whose_client_is_killed_keeps_the_call_that_was_under_way(
    tmp_path: Path, python: list[str]
) -> None:
    command = [*python, "-m", "resilisim", "mcp", "proxy", "--law", "benchmark", "--record", str(tmp_path)]
    command += ["--required", "waits", "--call-timeout", "60", "--", sys.executable, SERVER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}

    def send(**message: Any) -> None:
        process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        process.stdin.flush()

    send(id=1, method="initialize", params=hello)
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "own"
    send(method="notifications/initialized")
    process.stdin.write("no message at all\n")
    token = {"_meta": {"progressToken": 7}}
    while True:  # until one passes, which says so
        send(id=2, method="tools/call", params={"name": "waits", "arguments": {}} | token)
        if json.loads(process.stdout.readline()).get("method") == "notifications/progress":
            break
    process.stdin.close()
    assert process.wait(WAITING_SECONDS) == 0
    assert (_lines(tmp_path / "calls.jsonl")[-1]["outcome"], _lines(tmp_path / "calls.jsonl")[-1]["error"]) == (
        "real",
        "gone",
    )
    assert [record["ended_by"] for record in read_records(tmp_path)] == ["stopped"]


@pytest.mark.long
def test_the_command_over_http_ends_its_episodes_when_it_is_told_to_stop(tmp_path: Path, python: list[str]) -> None:
    command = [*python, "-m", "resilisim", "mcp", "proxy", "--law", "benchmark", "--record", str(tmp_path)]
    command += ["--required", "add", "--http", "127.0.0.1:0", "--", sys.executable, SERVER]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    url = re.search(r"http://[\d.:]+", process.stderr.readline())[0]

    async def play() -> None:
        async with Client(f"{url}/episodes/a/mcp") as client:
            while (await said(client, "add", a=1, b=2))[0]:
                pass

    asyncio.run(play())
    process.send_signal(signal.SIGTERM)
    told = process.stderr.read()
    assert process.wait(WAITING_SECONDS) == 0
    assert "a, seed 0: full_success" in told
    assert len(list(read_records(tmp_path))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--law", "benchmark"], "expected a command after --"),
        (["--law", "benchmark", "--url", "http://127.0.0.1:1", "--", "x"], "expected a command after --"),
        (["--law", "nothing", "--", "x"], "'nothing'"),
        (["--law", "benchmark", "--turns", "4", "--", "x"], "turns limit the calls towards a goal"),
        (["--law", "benchmark", "--http", "0.0.0.0:1", "--", "x"], "which other machines may reach"),
        (["--law", "benchmark", "--", "no-such-server"], "no-such-server: the server cannot be started"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(ResiliSimError, match=re.escape(words)):
        command_line(["mcp", "proxy", *arguments], standalone_mode=False)
