"""Traces of production: read in the layouts that instrumentation writes today, judged like a program under `inject`."""

from __future__ import annotations

import json
import random
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import resilisim
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.evaluation.episode.rejudging import compare_records
from resilisim.evaluation.run.store import read_records
from resilisim.injection.replay import replay_calls
from resilisim.injection.traces.faults import faults_of
from resilisim.injection.traces.reading import read_traces, trace_files
from resilisim.injection.traces.recording import record_traces
from resilisim.injection.traces.traced import Trace, TracedCall, code_of, kind_of_failure, seconds_to_wait

BEGIN = 1_790_000_000


def otlp_span(name: str, number: int, told: dict[str, Any], parent: str = "01", **more: Any) -> dict[str, Any]:
    return {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        "parentSpanId": parent,
        "name": name,
        "kind": "SPAN_KIND_INTERNAL",
        "startTimeUnixNano": str((BEGIN + number) * 10**9),
        "endTimeUnixNano": str((BEGIN + number) * 10**9 + 250_000_000),
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in told.items()],
        **more,
    }


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    service = [{"key": "service.name", "value": {"stringValue": "unknown_service"}}]
    return {
        "resourceSpans": [{"resource": {"attributes": service}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]
    }


def genai(name: str, number: int, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.agent.name": "OpenAI Agent",
        "gen_ai.tool.call.arguments": json.dumps(arguments),
    }
    return otlp_span(f"execute_tool {name}", number, told, **more)


def openinference(name: str, number: int, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    schema = json.dumps({"properties": {"amount": {"type": "integer"}}})
    told = {"openinference.span.kind": "TOOL", "tool.name": name, "input.value": json.dumps(arguments)}
    return otlp_span(name, number, told | {"tool.parameters": schema}, **more)


def failed(words: str = "gateway timed out", kind: str = "TimeoutError") -> dict[str, Any]:
    raised = {"exception.type": kind, "exception.message": words}
    told = [{"key": key, "value": {"stringValue": value}} for key, value in raised.items()]
    return {"status": {"code": "STATUS_CODE_ERROR"}, "events": [{"name": "exception", "attributes": told}]}


def as_console(span: dict[str, Any]) -> str:
    """A span as the SDK's console exporter prints it."""
    status = span.get("status")
    return json.dumps(
        {
            "name": span["name"],
            "context": {"trace_id": "0x" + span["traceId"], "span_id": "0x" + span["spanId"], "trace_state": "[]"},
            "parent_id": "0x" + span["parentSpanId"],
            "start_time": f"2026-11-27T00:00:{int(span['startTimeUnixNano'][:-9]) - BEGIN:02d}.000000Z",
            "end_time": f"2026-11-27T00:00:{int(span['startTimeUnixNano'][:-9]) - BEGIN:02d}.250000Z",
            "status": {"status_code": "ERROR"} if status else {"status_code": "OK"},
            "attributes": {pair["key"]: pair["value"]["stringValue"] for pair in span["attributes"]},
            "events": [
                {
                    "name": event["name"],
                    "attributes": {pair["key"]: pair["value"]["stringValue"] for pair in event["attributes"]},
                }
                for event in span.get("events", [])
            ],
            "resource": {"attributes": {"service.name": "unknown_service"}},
        },
        indent=4,
    )


AGENT = otlp_span("invoke_agent shop", 1, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "shop"}, "")
GENAI = [
    genai("find", 2, {"q": "x"}),
    genai("pay", 3, {"amount": 5}, **failed()),
    genai("pay", 4, {"amount": 5}),
    AGENT,
]
INNER = otlp_span("tools/call pay", 5, {"mcp.method.name": "tools/call", "gen_ai.tool.name": "pay"}, f"{4:016x}")
MODEL = otlp_span("agent", 1, {"openinference.span.kind": "AGENT", "agent.name": "shop"}, "")
OPENINFERENCE = [
    openinference("find", 2, {"q": "x"}),
    openinference("pay", 3, {"amount": 5}, **failed()),
    openinference("pay", 4, {"amount": 5}),
    MODEL,
]
CALLED = [("find", {"q": "x"}, None), ("pay", {"amount": 5}, "TimeoutError"), ("pay", {"amount": 5}, None)]
SAMPLE = {
    "id": 1,
    "epoch": 1,
    "events": [
        {"event": "model"},
        *(
            {
                "event": "tool",
                "function": name,
                "arguments": arguments,
                "timestamp": f"2026-11-27T00:00:{second:02d}.000000+00:00",
                "completed": f"2026-11-27T00:00:{second:02d}.250000+00:00",
                "working_time": 0.25,
                **({"error": {"type": "TimeoutError", "message": "gateway timed out"}} if error else {}),
            }
            for second, (name, arguments, error) in enumerate(CALLED)
        ),
    ],
    "messages": [],
}
INSPECT = {"version": 2, "eval": {"task": "t", "model": "mockllm/model", "solver": "shop"}, "samples": [SAMPLE]}


def plain_lines() -> str:
    return "\n".join(
        json.dumps(
            {
                "tool": name,
                "args": arguments,
                "ts": BEGIN + place,
                "duration_ms": 250,
                "ok": error is None,
                "agent": "shop",
            }
            | ({} if error is None else {"error": error, "message": "gateway timed out"})
        )
        for place, (name, arguments, error) in enumerate(CALLED)
    )


FILES = {
    "otlp.json": json.dumps(otlp(*GENAI, INNER)),
    "lines.jsonl": "\n".join(json.dumps(otlp(span)) for span in OPENINFERENCE),
    "console.json": "\n".join(map(as_console, OPENINFERENCE)),
    "inspect.json": json.dumps(INSPECT, indent=1),
    "calls.jsonl": plain_lines(),
}


@pytest.mark.parametrize("name", FILES)
def test_what_instrumentation_writes_is_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(FILES[name])
    (trace,) = read_traces([file])
    assert [(call.tool, call.arguments, call.error) for call in trace.calls] == CALLED
    assert [call.seconds for call in trace.calls] == pytest.approx([0.25] * 3)
    assert trace.calls[1].kind == "lost"
    assert (trace.calls[1].words, trace.agent, trace.error) == ("gateway timed out", "shop", None)
    assert [call.start for call in trace.calls] == sorted(call.start or 0.0 for call in trace.calls)


def zstandard_zip(path: Path, files: dict[str, str]) -> None:
    """Write a ZIP file whose members are packed with Zstandard, as Inspect does; Python 3.11 cannot."""
    body, directory = b"", b""
    for name, text in files.items():
        stream = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(stream, "zstd") as packing:
            packing.write(text.encode())
        packed = stream.getvalue().to_pybytes()
        about = struct.pack(
            "<HHHHHIIIHH", 20, 0, 93, 0, 33, zlib.crc32(text.encode()), len(packed), len(text), len(name), 0
        )
        directory += (
            b"PK\x01\x02" + struct.pack("<H", 20) + about + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        )
        body += b"PK\x03\x04" + about + name.encode() + packed
    end = struct.pack("<HHHHIIH", 0, 0, len(files), len(files), len(directory), len(body), 0)
    path.write_bytes(body + directory + b"PK\x05\x06" + end)


@pytest.mark.parametrize("is_zstandard", [True, False])
def test_a_packed_log_of_inspect(is_zstandard: bool, tmp_path: Path) -> None:
    head = {name: value for name, value in INSPECT.items() if name != "samples"}
    files = {"header.json": json.dumps(head), "samples/1_epoch_1.json": json.dumps(SAMPLE)}
    path = tmp_path / "log.eval"
    if is_zstandard:
        zstandard_zip(path, files)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, text in files.items():
                packed.writestr(name, text)
    (trace,) = read_traces([path])
    assert [(call.tool, call.arguments, call.error) for call in trace.calls] == CALLED
    path.write_bytes(b"PK nothing")
    with pytest.raises(InvalidInputError, match="cannot be read as a log of Inspect"):
        read_traces([path])


def test_mcp_messages_with_words_before_them(tmp_path: Path) -> None:
    def said(second: int, **message: Any) -> str:
        return f"2026-01-01T10:00:{second:02d}.000Z [shop] [info] Message: {json.dumps({'jsonrpc': '2.0', **message})}"

    def asked(second: int, number: int, name: str = "pay") -> str:
        return said(second, id=number, method="tools/call", params={"name": name, "arguments": {"amount": 5}})

    hello = {"clientInfo": {"name": "desk", "version": "1"}}
    limited = {"content": [{"type": "text", "text": "Rate limit reached, retry after 30 s"}], "isError": True}
    file = tmp_path / "mcp.log"
    lines = [
        said(0, id=0, method="initialize", params=hello),
        asked(1, 1),
        said(3, id=1, result=limited),
        "2026-01-01T10:00:04.000Z [shop] [info] Server started and connected successfully",
        asked(5, 2),
        said(6, id=2, result={"content": []}),
        asked(7, 3, "pya"),
        said(8, id=3, error={"code": -32602, "message": "Unknown tool: pya"}),
        asked(9, 4),
        said(10, id=0, method="initialize", params=hello),
        asked(11, 1),
    ]
    file.write_text("\n".join(lines))
    first, second = read_traces([file])
    assert [(call.error, call.kind, call.is_misuse) for call in first.calls] == [
        ("RATE_LIMIT_ERROR", "wait", False),
        (None, None, False),
        ("INVALID_INPUT", "input", True),
        ("unknown", "lost", False),
    ]
    assert (first.agent, first.calls[0].seconds, len(second.calls)) == ("desk", 2.0, 1)
    assert [(fault.kind, fault.call) for fault in faults_of([first]).agent] == [
        ("did_not_wait", 2),
        ("invalid_call", 3),
    ]


CONVERSATIONS = {
    "chat": [
        {"role": "user", "content": "Pay."},
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 5}'}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "paid"},
    ],
    "blocks": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "pay", "input": {"amount": 5}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "paid"}]},
    ],
    "parts": [
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "a", "name": "pay", "arguments": {"amount": 5}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "a", "response": "paid"}]},
    ],
}


@pytest.mark.parametrize("form", CONVERSATIONS)
def test_conversations_tell_of_calls_and_not_whether_they_failed(form: str, tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps({"messages": CONVERSATIONS[form]}) + "\n" + json.dumps({"messages": []}))
    (trace,) = read_traces([file])
    assert trace.calls == [TracedCall("pay", {"amount": 5}, has_status=False)]
    assert any("not told whether they failed" in words for words in faults_of([trace]).untold)
    told = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(CONVERSATIONS[form])}
    file.write_text(json.dumps(otlp(otlp_span("chat m", 1, told, ""))))
    assert read_traces([file])[0].calls == trace.calls


def test_messages_that_openinference_spreads_over_attributes(tmp_path: Path) -> None:
    told = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "assistant",
        "llm.input_messages.0.message.tool_calls.0.tool_call.id": "a",
        "llm.input_messages.0.message.tool_calls.0.tool_call.function.name": "pay",
        "llm.input_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"amount": 5}',
        "llm.input_messages.1.message.role": "tool",
        "llm.input_messages.1.message.tool_call_id": "a",
        "llm.input_messages.1.message.content": "paid",
    }
    file = tmp_path / "spans.json"
    file.write_text(json.dumps(otlp(otlp_span("ChatCompletion", 1, told, ""))))
    assert read_traces([file])[0].calls == [TracedCall("pay", {"amount": 5}, has_status=False)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{}", "in no known format; expected spans of OpenTelemetry"),
        ("a.json", "no JSON at all", "holds no JSON; expected spans"),
        ("a.jsonl", '{"tool": "x"}\n{"tol": "x"}', "item 2 names no tool; expected each to have one of tool"),
        ("a.json", json.dumps(otlp(AGENT)), "the traces hold no call of a tool"),
    ],
)
def test_what_holds_no_calls_is_refused_in_one_line(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        read_traces(trace_files([tmp_path]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="did you mean"):
        trace_files([tmp_path / (name + "x")])


def test_kinds_of_failures() -> None:
    kinds = {
        "wait": [("RATE_LIMIT_ERROR", ""), ("HTTPError", "429 Too Many Requests")],
        "lost": [("TIMEOUT", ""), ("APITimeoutError", ""), ("ConnectionResetError", ""), ("ERROR", "HTTP 504")],
        "access": [("PERMISSION_DENIED", ""), ("E", "401 Unauthorized")],
        "input": [("ValidationError", ""), ("TypeError", "unexpected keyword argument"), ("E", "invalid id")],
        "other": [("OPERATION_FAILED", "it broke"), ("ERROR", "")],
    }
    for kind, failures in kinds.items():
        assert {kind_of_failure(*failure) for failure in failures} == {kind}, kind
    assert [seconds_to_wait(words) for words in ("wait 250ms", "retry in 2 minutes", "busy")] == [0.25, 120.0, None]
    assert [code_of("requests.exceptions.Timeout"), code_of(None, "429"), code_of("a b!")] == [
        "Timeout",
        "RATE_LIMIT_ERROR",
        "a_b",
    ]


def test_faults_of_agents_are_told_from_those_of_tools() -> None:
    refused = TracedCall("find", {"id": "x"}, "INVALID_INPUT", "id is no number")
    lost = TracedCall("pay", {"amount": 5}, "TIMEOUT")
    traces = [
        Trace("changed", [refused, TracedCall("find", {"id": 1})]),
        Trace("unchanged", [refused, refused, TracedCall("find", {"id": 1})]),
        Trace("paid twice", [lost, TracedCall("look"), TracedCall("pay", {"amount": 5})]),
        Trace("paid something else", [lost, TracedCall("pay", {"amount": 6})]),
        Trace("gave up", [TracedCall("pay", {"amount": 5}), TracedCall("post", None, "TIMEOUT")]),
        Trace("broke", [TracedCall("post", None, "TIMEOUT")], error="crashed"),
    ]
    faults = faults_of(traces, once=["pay"])
    assert [(fault.source, fault.kind) for fault in faults.agent] == [
        ("unchanged", "repeated_invalid_call"),
        ("paid twice", "ran_again"),
        ("gave up", "gave_up_early"),
    ]
    assert dict(faults.tools["pay"]) == {"calls": 5, "lost": 2}
    assert "ran_again" not in faults_of(traces).counted()


LAW = {"base": 0.8, "bases": {"pay": 0.6}, "history": 0.9, "errors": {"TIMEOUT": 1.0}}
GOAL: dict[str, Any] = {"required": ["find", "pay", "post"], "once": ["pay"]}


def test_a_trace_of_a_program_under_inject_is_judged_as_inject_judged_it(tmp_path: Path) -> None:
    def find(word: str) -> str:
        return word

    def pay(amount: int) -> int:
        return amount

    def post() -> None:
        """Post."""

    lines = []
    for seed in range(12):
        choose = random.Random(seed)
        with resilisim.inject([find, pay, post], law=LAW, seed=seed, turns=8, record=tmp_path / "own", **GOAL) as tools:
            for _ in range(choose.randint(3, 8)):
                name = choose.choice(["find", "pay", "pay", "post"])
                given = {"find": {"word": "a"}, "pay": {"amount": choose.randint(1, 2)}, "post": {}}[name]
                try:
                    tools[name](**given)
                    error = None
                except resilisim.InjectedFailure as failure:
                    error = failure.code
                lines.append(json.dumps({"run": seed, "tool": name, "arguments": given, "error": error}))
    file = tmp_path / "production.jsonl"
    file.write_text("\n".join(lines))
    result = record_traces(read_traces([file]), tmp_path / "read", law=LAW, turns=8, **GOAL)
    own, read = list(read_records(tmp_path / "own")), list(read_records(tmp_path / "read"))
    assert len(own) == len(read) == 12
    for mine, theirs in zip(own, read, strict=True):
        assert (mine["outcome"], mine["score"]["level"]) == (theirs["outcome"], theirs["score"]["level"])
        assert mine["optimum"] == pytest.approx(theirs["optimum"], abs=1e-12)
        for step, other in zip(mine["steps"], theirs["steps"], strict=True):
            assert (step["tool"], step["success"], step["label"]) == (other["tool"], other["success"], other["label"])
            assert [step[name] for name in ("value", "regret", "luck")] == pytest.approx(
                [other[name] for name in ("value", "regret", "luck")], abs=1e-12
            )
        assert identity_error(theirs) < 1e-9
        for folder, record in (("own", mine), ("read", theirs)):
            assert compare_records(record, replay_calls(tmp_path / folder, record), 0.0) == ("agreeing", None)
    lost = result.faults.lost
    assert lost is not None
    assert lost["lost"] == pytest.approx(lost["tools"] + lost["agent"], abs=1e-9)
    assert lost["agent"] == pytest.approx(100 * sum(record["regret"] for record in own) / 12)
    with pytest.raises(StoreError, match="holds something already"):
        record_traces(read_traces([file]), tmp_path / "read")


def test_the_law_that_fits_traces_covers_the_one_that_acted(tmp_path: Path) -> None:
    chances, luck, lines = {"find": 0.95, "pay": 0.7, "post": 0.85}, random.Random(3), []
    for run in range(150):
        for tool, chance in chances.items():
            for attempt in range(3):
                has_passed = luck.random() < chance
                lines.append(
                    {"run": run, "tool": tool, "arguments": {"n": attempt}, "ok": has_passed, "error": "TIMEOUT"}
                )
                if has_passed:
                    break
            else:
                break
    file = tmp_path / "production.jsonl"
    file.write_text("\n".join(json.dumps(line | ({"error": None} if line["ok"] else {})) for line in lines))
    result = record_traces(read_traces([file]), tmp_path / "read", required=list(chances), turns=9)
    assert result.fitted is not None
    assert all(tool.base.holds(chances[tool.tool]) for tool in result.fitted.tools)
    again = resilisim.fit_law(tmp_path / "read", name="traces")
    assert again.law == result.law
    assert {record["policy"] for record in result.records} == {"agent"}


def test_what_a_law_rules_out_and_names_that_no_trace_has_are_refused(tmp_path: Path) -> None:
    traces = [Trace("log", [TracedCall("pay", {}, "TIMEOUT"), TracedCall("pay", {})])]
    with pytest.raises(InvalidInputError, match=r"a call of pay failed with TIMEOUT, which law .* says cannot happen"):
        record_traces(traces, tmp_path / "sure", law=1.0)
    with pytest.raises(InvalidInputError, match="unknown tool 'pya': did you mean 'pay'"):
        record_traces(traces, tmp_path / "named", required=["pya"])
    with pytest.raises(InvalidInputError, match="turns is 1: expected at least 2"):
        record_traces(traces, tmp_path / "short", required=["pay"], turns=1)


def test_a_call_without_an_answer_fits_a_law_that_never_fails(tmp_path: Path) -> None:
    lost = TracedCall("pay", {}, "unknown", "no answer is told", has_status=False)
    result = record_traces([Trace("log", [lost, TracedCall("pay", {})])] * 3, tmp_path / "out", required=["pay"])
    assert [record["outcome"] for record in result.records] == [1, 1, 1]
    assert (result.law.bases["pay"], max(identity_error(record) for record in result.records)) == (1.0, 0.0)
    assert any(words.startswith("No answer is told of 3 calls") for words in result.faults.untold)


@pytest.mark.parametrize("goal", ["answers", "effects"])
def test_answers_that_were_lost_had_run_or_not_and_v_weighs_the_second_charge(goal: Any, tmp_path: Path) -> None:
    lost, paid, seen = TracedCall("charge", error="TIMEOUT"), TracedCall("charge"), TracedCall("list_charges")
    traces = [Trace("again", [lost, paid]), Trace("looked", [lost, seen]), *[Trace(str(i), [paid]) for i in range(8)]]
    read = {
        fail: record_traces(
            traces,
            tmp_path / fail,
            required=["charge"],
            goal=goal,
            once=["charge"],
            fail=fail,
            checks={"charge": "list_charges"},
            turns=4,
        )
        for fail in ("before", "after")
    }
    assert read["before"].law.lost_answer is None
    assert read["after"].law.lost_answer.share == 1.0
    outcomes = {fail: [record["outcome"] for record in result.records[:3]] for fail, result in read.items()}
    assert outcomes == {"before": [1, 0, 1], "after": [0, int(goal == "effects"), 1]}
    again, looked, _ = read["after"].records[:3]
    if goal == "effects":
        assert again["steps"][1]["label"] == "ran_again"
        assert again["regret"] > 0.5
        assert looked["regret"] == pytest.approx(0.0, abs=1e-9)
    else:  # whoever has to have the answer of a charge has lost with it
        assert again["optimum"] < read["before"].records[0]["optimum"]
    for result in read.values():
        for record in result.records:
            assert compare_records(record, replay_calls(result.directory, record), 0.0) == ("agreeing", None)
        assert [call["error"] for call in _calls(result.directory) if call["error"] and call["seed"] == 0] == [
            "TIMEOUT"
        ]
        assert "(--fail" in " ".join(result.faults.untold)


def _calls(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "calls.jsonl").read_text().splitlines()]
