"""Hostile lines of MCP, from servers and from clients: nothing hangs, is lost, or goes unrecorded in the proxy."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.integrations.mcp import relay
from resilisim.integrations.mcp.listing import read_tools
from resilisim.integrations.mcp.streams import Lines
from resilisim.integrations.mcp.wire import Unreadable, read_messages
from tests.guards import no_endless_wait
from tests.integrations.mcp.raw_server import raw, tools, usual

SECONDS = 0.1  # that a server has for an answer; one that is silent is given up then
GUARD_SECONDS = 60.0


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.sampled_from(["", "2.0", "add", "tools/call", "result", "\ud800", "\u2028", "\x00", "x" * 300])
    | st.text(max_size=6)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("jsonrpc", "id", "method", "params", "result", "error", "content", "isError", "tools", "nextCursor", "name")
objects = st.dictionaries(st.sampled_from(FIELDS), values | st.just("ID") | st.just("2.0"), max_size=5)
# What a server says to a call, the text ID standing for the call's own.
answers = st.one_of(
    st.just('{"jsonrpc": "2.0", "id": ID, "result": {"content": []}}'),
    st.builds(lambda value: f'{{"jsonrpc": "2.0", "id": ID, "result": {json.dumps(value)}}}', values),
    st.builds(lambda value: f'{{"jsonrpc": "2.0", "id": ID, "error": {json.dumps(value)}}}', values),
    st.builds(
        lambda code, words: json.dumps({"jsonrpc": "2.0", "id": "ID", "error": {"code": code, "message": words}}),
        scalars,
        scalars,
    ),
    st.builds(lambda value: json.dumps(value), objects),
    st.builds(lambda several: json.dumps(several), st.lists(objects, max_size=3)),
    st.builds(lambda depth: f'{{"jsonrpc": "2.0", "id": ID, "result": {"[" * depth}', st.integers(1, 5000)),
    st.just('{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}'),
    st.just('{"jsonrpc": "2.0", "id": "ask", "method": "elicitation/create", "params": {}}'),
    st.just(""),
    st.text(max_size=20),
)
lists = st.lists(
    st.dictionaries(st.sampled_from(["name", "inputSchema", "description"]), values, max_size=3), max_size=3
)


def said(template: str, request: Any) -> bytes:
    text = template.replace('"ID"', json.dumps(request)).replace("ID", json.dumps(request))
    return text.encode("utf-8", "surrogatepass").replace(b"\n", b" ")


def through(
    replies: list[list[str]], listed: list[Any], requests: list[str], law: dict[str, Any] | None = None
) -> None:
    """Play: a client says lines, a server answers its calls as `replies` say; then look whether all is in order."""
    left = [list(each) for each in replies]

    def answer(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/call" and left:
            return [said(template, message["id"]) for template in left.pop(0)]
        return usual(message, [*listed, *tools("add")])

    async def play() -> None:
        asked = {} if law is None else {"law": law}
        async with raw(answer, seconds=SECONDS, **asked) as client:
            expected = []
            for number, template in enumerate(requests):
                line = said(template, number)
                for message in Lines().take(line + b"\n"):
                    found = message if isinstance(message, Unreadable) else message.message
                    if getattr(found, "method", None) is not None and getattr(found, "id", None) is not None:
                        expected.append(found.id)
                await client.say(line)
            for request in {(type(each), each) for each in expected}:
                await client.answer(request[1], expected.count(request[1]))
            last = await client.call("add", "last")
            assert "result" in last or "error" in last
            await asyncio.sleep(0)
            for request in expected:
                same = [each for each in expected if each == request and type(each) is type(request)]
                assert len(client.answers(request)) == len(same), (request, client.heard)
            made = [message for message in client.wire.heard if message.get("method") == "tools/call"]
            assert len([call for call in client.connection.relay.calls if call.ran or call.outcome == "misuse"]) >= len(
                made
            ), "each call that has reached the server is in the record"

    with no_endless_wait(GUARD_SECONDS), patch.object(relay, "ANSWER_SECONDS", SECONDS):
        asyncio.run(play())


def call(name: str = "add") -> str:
    return json.dumps({"jsonrpc": "2.0", "id": "ID", "method": "tools/call", "params": {"name": name}})


@pytest.mark.long
@given(st.lists(st.lists(answers, max_size=3), max_size=4), lists)
def test_whatever_a_server_says_each_call_has_one_answer_and_is_in_the_record(
    replies: list[list[str]], listed: list[Any]
) -> None:
    through(replies, listed, [call()] * len(replies))


requests = st.one_of(
    st.just(call()),
    st.builds(call, st.text(max_size=5)),
    st.builds(
        lambda value: json.dumps({"jsonrpc": "2.0", "id": "ID", "method": "tools/call", "params": value}), values
    ),
    st.builds(lambda value: json.dumps({"jsonrpc": "2.0", "id": "ID", "method": value, "params": {}}), scalars),
    st.just('{"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": {"name": "add"}}'),
    st.just('{"jsonrpc": "2.0", "id": 0, "method": "ping"}'),
    st.builds(lambda value: json.dumps(value), objects),
    st.builds(lambda several: json.dumps(several), st.lists(objects, max_size=3)),
    st.text(max_size=20),
)


@given(st.lists(requests, max_size=5))
def test_whatever_a_client_says_each_request_has_one_answer(lines: list[str]) -> None:
    through([], [], lines)


@given(st.text(max_size=60) | st.binary(max_size=60) | st.builds(json.dumps, values))
def test_any_text_is_read_as_messages_or_told(text: str | bytes) -> None:
    for message in read_messages(text):
        assert not isinstance(message, Unreadable) or message.words


@given(st.lists(values, max_size=4) | lists)
def test_any_list_of_tools_is_read(items: list[Any]) -> None:
    found = read_tools(items, None, lambda words: None)
    assert len({listed.tool.name for listed in found.values()}) == len(found)


@pytest.mark.fuzz
@settings(max_examples=3000)
@given(
    st.lists(st.lists(answers, max_size=3), max_size=5),
    lists,
    st.lists(requests, max_size=6),
    st.sampled_from([None, {"base": 0.5}, {"base": 1e-9}]),
)
def test_hostile_lines_in_both_directions_for_longer(
    replies: list[list[str]], listed: list[Any], lines: list[str], law: dict[str, Any] | None
) -> None:
    through(replies, listed, lines, law)
