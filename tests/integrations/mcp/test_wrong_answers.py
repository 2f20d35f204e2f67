"""Wrong, slow and missing answers of a real server behind the proxy: the same code as for functions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.server.mcpserver import MCPServer

from resilisim import inject
from resilisim.errors import InvalidInputError
from resilisim.injection.wrong_answers import WrongAnswers
from resilisim.schema_check import schema_problem
from resilisim.simulator import Corrupt, Duration, Latency, Law
from tests.integrations.mcp.test_proxy import ERAS, SURE, given_up, in_a_loop, outcomes, over_http, proxied, said

ITEM = {"name": "lamp", "price": 40}


def shop() -> MCPServer:
    server = MCPServer("shop")

    @server.tool()
    def find(name: str) -> dict[str, Any]:
        """Finds an item, as structured content."""
        return {"name": name, "price": 40}

    @server.tool()
    def count(name: str) -> int:
        """Counts, and says what it answers with."""
        return 12

    @server.tool(structured_output=False)
    def text(name: str) -> str:
        """Says JSON in words alone."""
        return json.dumps({"name": name, "price": 40}, indent=2)

    return server


def corrupting(*kinds: Any) -> Law:
    return Law(**SURE, corrupt=Corrupt(probability=1.0, kinds=kinds or None))


@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_answers_are_wrong_as_those_of_functions_are(mode: str) -> None:
    async with proxied(mode, server=shop(), law=corrupting("missing_field"), required=["find"]) as (client, connection):
        found = (await client.call_tool("find", {"name": "lamp"})).structured_content
        said_so = await client.call_tool("text", {"name": "lamp"})
    values = {json.dumps(_without(key)) for key in ITEM}
    assert json.dumps(found) in values
    assert json.dumps(json.loads(said_so.content[0].text)) in values
    assert [call.corruption for call in connection.relay.calls] == ["missing_field"] * 2
    assert outcomes(connection) == ["ok", "ok"]

    def find(name: str) -> dict[str, Any]:
        return {"name": name, "price": 40}

    def count(name: str) -> int:
        return 12

    def text(name: str) -> str:
        return ""

    functions = inject([find, count, text], law=corrupting("missing_field"), seed=5, required=["find"])
    assert functions["find"]("lamp") == found
    record = connection.relay.episode.record
    assert (record["outcome"], record["steps"][0]["result"]) == (0, "corrupt")


def _without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ITEM.items() if name != key}


@in_a_loop
async def test_wrong_answers_are_valid_by_the_schema_that_the_server_lists() -> None:
    async with proxied("auto", server=shop(), law=corrupting(), required=["count"]) as (client, connection):
        listed = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        for _ in range(5):
            result = await client.call_tool("count", {"name": "lamp"})  # the client checks it, too
            assert result.structured_content != {"result": 12}
            assert schema_problem(listed["count"], result.structured_content) is None
            assert result.content[0].text == str(result.structured_content["result"])
    assert {call.corruption for call in connection.relay.calls} == {"changed_number"}


@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_stale_answers_and_durations(mode: str) -> None:
    law = Law(
        **SURE,
        corrupt=Corrupt(probability=0.5),
        latency=Latency((Duration(0.2, 1.0),)),
    )
    force = ["find#1=ok", "find#2=corrupt:stale", "find#3=ok"]
    asked: dict[str, Any] = {"law": law, "required": ["find"], "force": force, "wait": True}
    async with proxied(mode, server=shop(), **asked) as (client, connection):
        answers = [(await client.call_tool("find", {"name": each})).structured_content["name"] for each in "abc"]
    assert answers == ["a", "a", "c"]
    calls = connection.relay.calls
    assert [(call.corruption, call.duration) for call in calls] == [(None, 0.2), ("stale", 0.2), (None, 0.2)]
    assert all(call.seconds >= 0.15 for call in calls)
    assert connection.relay.episode.record["outcome"] == 1


@pytest.mark.parametrize("fail", ["before", "after"])
@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_a_call_hangs_until_its_client_gives_up(mode: str, fail: Any) -> None:
    asked = {"force": ["find#1=TIMEOUT", "find#2=ok"], "raises": {"TIMEOUT": "hang"}, "fail": fail}
    async with proxied(mode, server=shop(), required=["find"], **asked) as (client, connection):
        async with given_up(client, "find", {"name": "lamp"}):
            while not any(call.is_injected for call in connection.relay._running.values()):  # until it hangs
                await asyncio.sleep(0.005)
        while not connection.relay.calls:  # its cancellation is on the way
            await asyncio.sleep(0.005)
        assert (await client.call_tool("find", {"name": "lamp"})).structured_content == ITEM
    assert [call.error for call in connection.relay.calls] == ["TIMEOUT", None]
    assert outcomes(connection) == ["injected", "ok"]


@pytest.mark.parametrize("mode", ERAS)
@in_a_loop
async def test_a_connection_is_cut_and_the_next_call_goes_through(mode: str, tmp_path: Path) -> None:
    asked = {
        "force": ["add#1=OPERATION_FAILED", "add#2=ok"],
        "raises": {"OPERATION_FAILED": "cut"},
        "required": ["add"],
    }
    async with over_http(tmp_path, **asked) as (url, _), Client(f"{url}/a/mcp", mode=mode) as client:
        with pytest.raises((MCPError, ExceptionGroup)):
            await client.call_tool("add", {"a": 1, "b": 2}, read_timeout_seconds=5.0)
        assert await said(client, "add", a=1, b=2) == (False, "3")
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert [(line["outcome"], line["error"]) for line in lines] == [("injected", "OPERATION_FAILED"), ("ok", None)]


def test_a_budget_of_time_needs_a_goal_there_too() -> None:
    with pytest.raises(InvalidInputError, match="needs a goal"):
        inject(law=Law(**SURE, latency=Latency((Duration(1.0, 1.0),), budget=5.0)))


def test_a_text_that_is_json_is_cut_as_a_text() -> None:
    text = json.dumps(ITEM)
    result, way = WrongAnswers(["truncated"]).wrong_result("find", {"content": [{"type": "text", "text": text}]}, 7)
    assert way == "truncated"
    assert text.startswith(result["content"][0]["text"])
    assert result["content"][0]["text"] != text
