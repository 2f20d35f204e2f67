"""`resilisim mcp proxy` where servers and clients say what nobody expects: all is answered, told and recorded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.guards import WAITING_SECONDS
from tests.integrations.mcp.raw_server import HELLO, raw, result, text, tools, usual
from tests.integrations.mcp.test_proxy import in_a_loop

ODD_ANSWERS = {
    "half of a surrogate pair": '"result": {"content": [{"type": "text", "text": "\\ud83d"}]}',
    "NaN": '"result": {"content": [], "structuredContent": {"v": NaN}}',
    "an infinite number": '"result": {"v": 1e400}',
    "201 levels": '"result": {"v": ' + "[" * 230 + "]" * 230 + "}",
    "100,000 levels": '"result": {"v": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "null": '"result": null',
    "a list": '"result": []',
    "a code in words": '"error": {"code": "E1", "message": "boom"}',
    "half a code": '"error": {"code": 1.5, "message": "boom"}',
    "no code": '"error": {"message": "boom"}',
    "no message": '"error": {"code": 1}',
    "an error that is a text": '"error": "boom"',
    "nothing": '"x": 1',
    "no end": '"result": {"v": 1',
    "raw control characters": '"result": {"v": "a\x01b"}',
}


@pytest.mark.parametrize("kind", ODD_ANSWERS)
@in_a_loop
async def test_an_answer_that_cannot_be_read_is_told_answered_and_recorded(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def answers(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/call" and message["params"]["arguments"]:
            yield f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, {ODD_ANSWERS[kind]}}}'
        else:
            yield from usual(message)

    async with raw(answers) as client:
        odd = await client.call("add", 7, odd=True)
        assert "cannot be read" in odd["error"]["message"], odd
        assert (await client.call("add", 8))["result"]["content"][0]["text"] == "did add", "the connection goes on"
        assert client.calls == [("add", "real", "unreadable", True), ("add", "ok", None, True)]
    assert "cannot be read" in capsys.readouterr().err


ODD_LISTS: dict[str, Any] = {
    "null": None,
    "a text": "tools",
    "an object": {"add": {}},
    "nulls": [None, *tools("add")],
    "no names": [{}, {"name": 5}, {"name": None}, *tools("add")],
    "no schema": [{"name": "add"}],
    "a schema that is null": [{"name": "add", "inputSchema": None}],
    "a schema that is true": [{"name": "add", "inputSchema": True}],
    "properties that are a list": [{"name": "add", "inputSchema": {"properties": ["a"], "required": 5}}],
    "properties that are null": [{"name": "add", "inputSchema": {"properties": None, "required": None}}],
    "types that are lists": [{"name": "add", "inputSchema": {"properties": {"a": {"type": ["string", "null"]}}}}],
    "a schema that is none": [{"name": "add", "inputSchema": {"type": "wish", "properties": {"a": {"type": 5}}}}],
    "a description that is a number": [{"name": "add", "description": 5, "inputSchema": {}}],
    "twice": tools("add", "add"),
    "deep": [{"name": "add", "inputSchema": json.loads('{"items":' * 90 + "{}" + "}" * 90)}],
}


@pytest.mark.parametrize("kind", ODD_LISTS)
@in_a_loop
async def test_whatever_a_server_lists_its_tools_can_be_called(kind: str) -> None:
    def answers(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/list":
            yield result(message, tools=ODD_LISTS[kind])
        else:
            yield from usual(message)

    async with raw(answers) as client:
        for number in range(2):
            assert (await client.call("add", number))["result"]["content"][0]["text"] == "did add"
        assert client.calls == [("add", "ok", None, True)] * 2


@pytest.mark.parametrize(
    "said", ["null", "[]", '{"tools": 3, "nextCursor": 5}', '{"tools": [], "nextCursor": "again"}']
)
@in_a_loop
async def test_a_list_of_another_shape_or_without_end_is_told(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    def answers(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/list":
            yield f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, "result": {said}}}'
        else:
            yield from usual(message)

    async with raw(answers) as client:
        assert (await client.call("add", 1))["result"]["content"][0]["text"] == "did add"
        assert client.calls == [("add", "ok", None, True)]
    assert "list" in capsys.readouterr().err


NAMES = ["_x", "fs/read", "naïve", "search the web", "读取文件", "Get", "get", "x" * 128, "-", "a.b:c", "...", "é"]
HOSTILE_NAMES = ["", " ", "two\nlines", "x" * 5000, "\x1b[2J", "a\u2028b", "tools/call", "resilisim", "__proto__"]


@pytest.mark.parametrize("names", [NAMES, HOSTILE_NAMES, *([name] for name in NAMES)], ids=lambda names: names[0][:9])
@in_a_loop
async def test_tools_are_called_by_the_names_that_the_server_has_for_them(names: list[str]) -> None:
    def answers(message: dict[str, Any]) -> Any:
        yield from usual(message, tools(*names))

    async with raw(answers) as client:
        for number, name in enumerate(names):
            assert (await client.call(name, number))["result"]["content"][0]["text"] == f"did {name}"
        assert [call[1:] for call in client.calls] == [("ok", None, True)] * len(names)
        recorded = [call[0] for call in client.calls]
        assert len(set(recorded)) == len(names), "each has a name of its own"
        assert names == HOSTILE_NAMES or recorded == names


@pytest.mark.parametrize("content", [None, 5, "text", [None, 5, {"text": 5}], {"text": "x"}])
@pytest.mark.parametrize("is_error", [True, False])
@in_a_loop
async def test_an_odd_content_passes_and_the_call_is_recorded(content: Any, is_error: bool) -> None:
    def answers(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/call":
            yield result(message, isError=is_error, content=content)
        else:
            yield from usual(message)

    async with raw(answers) as client:
        assert (await client.call("add", 1))["result"] == {"isError": is_error, "content": content}
        assert client.calls == [("add", "real" if is_error else "ok", "isError" if is_error else None, True)]


@in_a_loop
async def test_a_tool_called_between_the_change_of_the_list_and_the_new_list_is_drawn() -> None:
    lists = [tools("add"), tools("add", "extra")]

    def answers(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/list":
            yield result(message, tools=lists.pop(0))
        else:
            yield from usual(message)

    async with raw(answers) as client:
        await client.call("add", 1)
        client.wire.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        assert (await client.call("extra", 2))["result"]["content"][0]["text"] == "did extra"
        assert client.calls == [("add", "ok", None, True), ("extra", "ok", None, True)]


@in_a_loop
async def test_after_many_changes_the_second_page_is_still_known() -> None:
    def answers(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/list":
            is_second = message["params"].get("cursor") == "2"
            page = {"tools": tools("second")} if is_second else {"tools": tools("add"), "nextCursor": "2"}
            yield result(message, **page)
        else:
            yield from usual(message)

    async with raw(answers) as client:
        await client.call("add", 0)
        for _ in range(1200):
            client.wire.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            await asyncio.sleep(0)
        await client.call("second", 1)
        assert client.calls[-1] == ("second", "ok", None, True)


@in_a_loop
async def test_a_tool_that_is_not_listed_but_answers_is_drawn_and_one_that_is_unknown_is_misuse() -> None:
    def answers(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/call" and message["params"]["name"] == "nothing":
            yield text(message, "Unknown tool: nothing")
        else:
            yield from usual(message)

    async with raw(answers) as client:
        await client.call("hidden", 1)
        await client.call("nothing", 2)
        await client.call("hidden", 3)
        assert client.calls[0] == client.calls[2] == ("hidden", "ok", None, True)
        assert client.calls[1][:2] == ("nothing", "misuse")
        assert [call.attempt for call in client.connection.relay.calls] == [1, None, 2]


@in_a_loop
async def test_an_id_that_is_used_twice_is_answered_twice_and_no_call_is_lost() -> None:
    held: list[dict[str, Any]] = []

    def answers(message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/call":
            held.append(message)
        else:
            yield from usual(message)

    async with raw(answers) as client:
        for _ in range(2):
            await client.say({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}})
        assert "that of a request that has no answer yet" in (await client.answer(1))["error"]["message"]
        client.wire.say(text(held[0], "did add"))
        assert (await client.answer(1, 2))["result"]["content"][0]["text"] == "did add"
        assert client.calls == [("add", "misuse", "id_used_twice", False), ("add", "ok", None, True)]
        assert len(held) == 1


ODD_REQUESTS = {
    "half of a surrogate pair": '"method": "tools/call", "params": {"name": "add", "arguments": {"a": "\\ud83d"}}',
    "NaN": '"method": "tools/call", "params": {"name": "add", "arguments": {"a": NaN}}',
    "300 levels": '"method": "tools/call", "params": {"name": "add", "arguments": {"a": '
    + "[" * 300
    + "]" * 300
    + "}}",
    "a list": '"method": "tools/call", "params": ["add"]',
    "a method in numbers": '"method": 5',
    "no method": '"params": {}',
}


@pytest.mark.parametrize("kind", ODD_REQUESTS)
@in_a_loop
async def test_a_request_that_cannot_be_read_is_told_answered_and_recorded(kind: str) -> None:
    async with raw() as client:
        await client.say(f'{{"jsonrpc": "2.0", "id": 9, {ODD_REQUESTS[kind]}}}')
        if kind != "no method" and kind != "a method in numbers":
            assert "cannot be read" in (await client.answer(9))["error"]["message"]
            assert client.calls[0][1:] == ("misuse", "unreadable", False)
        assert (await client.call("add", 10))["result"]["content"][0]["text"] == "did add"
        assert not any(message.get("id") == 9 and "method" in message for message in client.wire.heard)


@in_a_loop
async def test_batches_are_taken_apart_in_both_directions() -> None:
    def answers(message: dict[str, Any]) -> Any:
        said = list(usual(message))
        yield json.dumps([*said, {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x"}}])

    async with raw(answers) as client:
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add"}}
        await client.say(json.dumps([call | {"id": 1}, call | {"id": 2}]))
        assert [(await client.answer(number))["result"]["content"][0]["text"] for number in (1, 2)] == ["did add"] * 2


@in_a_loop
async def test_what_is_no_message_is_told_and_answered_without_an_id() -> None:
    async with raw() as client:
        for line in ("nonsense", "[]", "{}", '"text"', "\xff".encode("latin-1"), "{" * 100_000):
            await client.say(line)
        assert [said["error"]["code"] for said in client.answers(None)] == [-32700] * 6
        assert (await client.call("add", 1))["result"]["content"][0]["text"] == "did add"


SLOW_SCHEMAS: dict[str, Any] = {
    "a pattern": {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
    "a pattern of names": {"patternProperties": {"^(a+)+$": {}}},
    "references": {
        "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)} | {"d60": {}},
        "$ref": "#/$defs/d0",
    },
    "a ring": {"$ref": "#"},
    "another document": {"$ref": "http://127.0.0.1:9/schema.json"},
}


@pytest.mark.long
@pytest.mark.parametrize("kind", SLOW_SCHEMAS)
@in_a_loop
async def test_a_schema_that_takes_for_ever_holds_nobody_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilisim.integrations.mcp.relay.CHECK_SECONDS", 0.2)

    def answers(message: dict[str, Any]) -> Any:
        yield from usual(message, [{"name": "add", "inputSchema": {"type": "object"} | SLOW_SCHEMAS[kind]}])

    async with raw(answers) as client:
        said = await client.call("add", 1, a="a" * 50 + "!", **{"a" * 50 + "!": 1})
        assert said["result"]["content"][0]["text"] == "did add"
        assert client.calls == [("add", "ok", None, True)]


@pytest.mark.parametrize("silent", ["tools/list", "resources/read", "tools/call"])
@in_a_loop
async def test_the_limit_of_time_holds_for_everything_that_the_server_is_asked(silent: str) -> None:
    def answers(message: dict[str, Any]) -> Any:
        return () if message.get("method") == silent else usual(message)

    async with raw(answers, seconds=0.2) as client:
        if silent == "resources/read":
            said = await client.ask(silent, 1, uri="own://x")
        else:
            said = await client.call("add", 1)
        assert "has not answered within 0.2 s" in said["error"]["message"]


@in_a_loop
async def test_a_beginning_that_is_not_answered_is_given_up() -> None:
    async with raw(lambda message: (), seconds=0.2) as client:
        assert "initialize: the server has not answered within 0.2 s" in client.heard[0]["error"]["message"]


def test_a_killed_proxy_leaves_the_call_that_was_under_way_and_no_process(tmp_path: Path, python: list[str]) -> None:
    """kill -9 in a call: the call may have run, so it is in the record, and its server ends."""
    server = tmp_path / "server.py"
    server.write_text(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    if m.get('method') == 'tools/list':\n"
        "        r = {'tools': [{'name': 'add', 'inputSchema': {}}]}\n"
        "    elif m.get('method') == 'tools/call':\n"
        "        open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "        time.sleep(60)\n"
        "    else:\n"
        "        r = {'protocolVersion': '2025-11-25', 'capabilities': {}, 'serverInfo': {'name': '', 'version': ''}}"
        "\n"
        "    if 'id' in m: print(json.dumps({'jsonrpc': '2.0', 'id': m['id'], 'result': r}), flush=True)\n"
    )
    command = [*python, "-m", "resilisim", "mcp", "proxy", "--law", "benchmark", "--record", str(tmp_path / "r")]
    command += ["--seed", "1", "--", sys.executable, str(server), str(tmp_path / "pid")]
    requests = [
        {"id": 1, "method": "initialize", "params": HELLO},
        {"method": "notifications/initialized"},
        *({"id": number, "method": "tools/call", "params": {"name": "add"}} for number in range(2, 20)),
    ]
    (tmp_path / "said").write_text("".join(json.dumps({"jsonrpc": "2.0"} | each) + "\n" for each in requests))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write((tmp_path / "said").read_bytes())
        process.stdin.flush()
        until_exists(tmp_path / "pid")
        process.send_signal(signal.SIGKILL)
        process.wait(WAITING_SECONDS)
    lines = [json.loads(line) for line in (tmp_path / "r" / "calls.jsonl").read_text().splitlines()]
    assert any((line["outcome"], line["error"], line["ran"]) == ("real", "unknown", True) for line in lines)
    until_gone(int((tmp_path / "pid").read_text()))


def until_exists(path: Path) -> None:
    for _ in range(int(100 * WAITING_SECONDS)):
        if path.exists() and path.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")


def until_gone(pid: int) -> None:
    for _ in range(int(100 * WAITING_SECONDS)):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} is still there")
