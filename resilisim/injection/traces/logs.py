"""Logs that are no spans: those of Inspect AI, of MCP (JSON-RPC), conversations, and plain lines of calls."""

from __future__ import annotations

import datetime
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from resilisim.errors import InvalidInputError, one_line
from resilisim.injection.folder import UNKNOWN_END
from resilisim.injection.traces.traced import NO_ANSWER, Trace, TracedCall, calls_of_messages, code_of, value_of

MOST_TRACE_BYTES: Final = 512 * 1024 * 1024  # of a file, or of what is packed in it
_ZSTANDARD: Final = 93  # the method by which Inspect packs samples
_BAD_ARGUMENTS: Final = ("parsing", "approval")  # of errors of Inspect: the tool was not asked
_MISUSE_CODES: Final = (-32602, -32601)  # of JSON-RPC: no such tool, or not with these arguments
_BEFORE_JSON: Final = re.compile(r"^(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+Z?)?[^{]*")
_TOOL: Final = ("tool", "tool_name", "function", "function_name", "name")
_ARGUMENTS: Final = ("arguments", "args", "input", "tool_input", "parameters", "kwargs", "params")
_TRACE: Final = (
    *("trace", "trace_id", "run", "run_id", "session", "session_id", "conversation", "conversation_id", "thread_id"),
    *("episode", "task", "task_id"),
)
_START: Final = ("start", "started", "start_time", "timestamp", "time", "ts")
_SECONDS: Final = {
    **dict.fromkeys(("seconds", "duration", "duration_s", "duration_seconds", "elapsed", "latency"), 1.0),
    **dict.fromkeys(("duration_ms", "latency_ms", "elapsed_ms", "ms"), 0.001),
}
_FAILED: Final = ("error", "failed", "failure", "false", "timeout", "exception")


def traces_of_inspect(log: Mapping[str, Any], source: str) -> list[Trace]:
    """Return a trace for each sample of a log of Inspect."""
    told = log.get("eval")
    about = told if isinstance(told, Mapping) else {}
    agent = one_line(about.get("solver") or about.get("model") or "agent", 80)
    samples = log.get("samples")
    return [trace_of_sample(sample, agent, source) for sample in _mappings(samples)]


def trace_of_sample(sample: Mapping[str, Any], agent: str, source: str) -> Trace:
    """Return what was called in a sample of Inspect: its events tell more than its messages."""
    calls = [_of_inspect(event) for event in _mappings(sample.get("events")) if event.get("event") == "tool"]
    error = sample.get("error")
    return Trace(
        f"{source}, sample {sample.get('id')}, epoch {sample.get('epoch', 1)}",
        calls or calls_of_messages(sample.get("messages") or ()),
        agent,
        one_line(error.get("message"), 200) if isinstance(error, Mapping) else None,
    )


def _of_inspect(event: Mapping[str, Any]) -> TracedCall:
    error = event.get("error")
    told = error if isinstance(error, Mapping) else {}
    kind, words = told.get("type"), one_line(told.get("message") or "", 500)
    start, end, took = seconds_of(event.get("timestamp")), seconds_of(event.get("completed")), event.get("working_time")
    measured = None if start is None or end is None else end - start
    measured = float(took) if isinstance(took, int | float) else measured
    return TracedCall(
        str(event.get("function")),
        event.get("arguments"),
        None if error is None else code_of(None if kind == UNKNOWN_END else kind, words),
        words,
        start,
        measured,
        is_misuse=kind in _BAD_ARGUMENTS,
    )


def traces_of_eval_file(path: Path) -> list[Trace]:
    """Return the traces of a packed log of Inspect (.eval).

    Raises:
        InvalidInputError: It is none, or packed in a way that nothing installed here can read.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            members = {member.filename: member for member in packed.infolist()}
            if sum(member.file_size for member in members.values()) > MOST_TRACE_BYTES:
                raise InvalidInputError(f"{path}: unpacks into more than {MOST_TRACE_BYTES:,} bytes; expected fewer")
            head = next((name for name in ("header.json", "_journal/start.json") if name in members), None)
            if head is None:
                raise InvalidInputError(f"{path}: holds no header.json; expected a log of Inspect")
            about = json.loads(_unpacked(path, packed, members[head]))
            names = [name for name in members if name.startswith("samples/") and name.endswith(".json")]
            samples = [json.loads(_unpacked(path, packed, members[name])) for name in names]
    except (zipfile.BadZipFile, ValueError, OSError, RecursionError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{path}: cannot be read as a log of Inspect: {one_line(error)}") from None
    return traces_of_inspect({**about, "samples": samples}, str(path))


def _unpacked(path: Path, packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.compress_type != _ZSTANDARD:
        return packed.read(member)
    try:
        import pyarrow as arrow
    except ImportError:
        raise InvalidInputError(
            f"{path}: is packed with Zstandard, which needs the extra `datasets` here; expected that, or the log as "
            "JSON (inspect log convert --to json)"
        ) from None
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        lengths = int.from_bytes(file.read(2), "little") + int.from_bytes(file.read(2), "little")
        file.seek(member.header_offset + 30 + lengths)
        content = file.read(member.compress_size)
    unpacked = arrow.CompressedInputStream(arrow.BufferReader(content), "zstd").read(member.file_size + 1)
    return bytes(unpacked)


def json_in_lines(text: str) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """Yield the objects of lines that may begin with words, such as a date, and that date."""
    decoder = json.JSONDecoder()
    for line in text.split("\n"):
        before = _BEFORE_JSON.match(line)
        rest = line[before.end() :] if before else line
        if not rest.startswith("{"):
            continue
        try:
            value, _ = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, Mapping):
            yield value, before["time"] if before else None


def rpc_message(value: Any) -> tuple[Mapping[str, Any], Any] | None:
    """Return a message of JSON-RPC, by itself or within a line of a log, and when it came; None if there is none."""
    if not isinstance(value, Mapping):
        return None
    for holder in (value, *(value.get(key) for key in ("message", "payload", "data", "msg", "request", "response"))):
        held = value_of(holder)
        if isinstance(held, Mapping) and held.get("jsonrpc") == "2.0":
            return held, next((value[key] for key in _START if key in value), None)
    return None


def traces_of_rpc(messages: Iterable[tuple[Mapping[str, Any], Any]], source: str) -> list[Trace]:
    """Return the traces of an MCP log: each `initialize` begins one."""
    traces = [Trace(source)]
    waiting: dict[Any, tuple[int, Trace, float | None]] = {}
    for message, when in messages:
        method, identity = message.get("method"), str(message.get("id"))
        params = message.get("params")
        told = params if isinstance(params, Mapping) else {}
        time = seconds_of(when)
        if method == "initialize":
            client = told.get("clientInfo")
            name = client.get("name") if isinstance(client, Mapping) else None
            if traces[-1].calls:
                traces.append(Trace(f"{source}, session {len(traces) + 1}"))
            traces[-1].agent = one_line(name or "agent", 80)
        elif method == "tools/call" and isinstance(told.get("name"), str):
            trace = traces[-1]
            waiting[identity] = len(trace.calls), trace, time
            trace.calls.append(TracedCall(told["name"], told.get("arguments"), UNKNOWN_END, NO_ANSWER, time))
        elif method is None and identity in waiting:
            place, trace, begun = waiting.pop(identity)
            trace.calls[place] = _of_answer(trace.calls[place], message, begun, time)
    return [trace for trace in traces if trace.calls]


def _of_answer(call: TracedCall, message: Mapping[str, Any], begun: float | None, ended: float | None) -> TracedCall:
    seconds = None if begun is None or ended is None else max(ended - begun, 0.0)
    error, result = message.get("error"), message.get("result")
    if isinstance(error, Mapping):
        words = one_line(error.get("message") or "", 500)
        is_misuse = error.get("code") in _MISUSE_CODES
        code = "INVALID_INPUT" if is_misuse else code_of(None, words)
        return TracedCall(call.tool, call.arguments, code, words, begun, seconds, is_misuse)
    if isinstance(result, Mapping) and result.get("isError") is True:
        content = result.get("content")
        words = one_line(" ".join(str(part.get("text", "")) for part in _mappings(content)), 500)
        return TracedCall(call.tool, call.arguments, code_of(None, words), words, begun, seconds)
    return TracedCall(call.tool, call.arguments, None, "", begun, seconds)


def is_call(value: Any) -> bool:
    """Tell a plain line of a call."""
    return isinstance(value, Mapping) and any(isinstance(value.get(key), str) for key in _TOOL)


def traces_of_calls(lines: Sequence[Any], source: str) -> list[Trace]:
    """Return the traces of plain lines of calls, told apart by what names a trace in them."""
    traces: dict[str, Trace] = {}
    for number, line in enumerate(lines, start=1):
        if not is_call(line):
            raise InvalidInputError(
                f"{source}: item {number} names no tool; expected each to have one of {', '.join(_TOOL)}"
            )
        key = next((name for name in _TRACE if line.get(name) is not None), None)
        where = source if key is None else f"{source}, {key} {str(line[key])[:60]}"
        trace = traces.setdefault(where, Trace(where))
        agent = line.get("agent", line.get("agent_name"))
        trace.agent = one_line(agent, 80) if isinstance(agent, str) and agent else trace.agent
        trace.calls.append(_of_line(line))
    for trace in traces.values():
        if all(call.start is not None for call in trace.calls):
            trace.calls.sort(key=lambda call: call.start or 0.0)
    return list(traces.values())


def _of_line(line: Mapping[str, Any]) -> TracedCall:
    tool = next(line[key] for key in _TOOL if isinstance(line.get(key), str))
    arguments = next((value_of(line[key]) for key in _ARGUMENTS if key in line), None)
    start = next((seconds_of(line[key]) for key in _START if key in line), None)
    took = next(
        (float(line[key]) * unit for key, unit in _SECONDS.items() if isinstance(line.get(key), int | float)), None
    )
    error, outcome = line.get("error", line.get("exception")), line.get("outcome")
    status = line.get("status")
    marks = [line[key] for key in ("success", "ok") if isinstance(line.get(key), bool)]
    marks += [not line[key] for key in ("is_error", "isError") if isinstance(line.get(key), bool)]
    if isinstance(status, int) and not isinstance(status, bool):
        marks.append(status < 400)
    elif isinstance(status, str):
        marks.append(status.lower() not in _FAILED)
    told = error if isinstance(error, Mapping) else {}
    code = told.get("code", told.get("type")) if told else error if isinstance(error, str) else None
    words = one_line(line.get("message") or line.get("error_message") or told.get("message") or code or "", 500)
    has_failed = bool(error) if not marks else not all(marks)
    if not has_failed:
        return TracedCall(tool, arguments, None, "", start, took, has_status=bool(marks) or "error" in line)
    if isinstance(code, str) and len(code.split()) > 3:  # words, and no name
        code = None
    named = code if code is not None else status
    made = UNKNOWN_END if named == UNKNOWN_END else code_of(named, words)
    return TracedCall(tool, arguments, made, words, start, took, is_misuse=outcome == "misuse")


def seconds_of(value: Any) -> float | None:
    """Return a time in seconds: a number (of milliseconds, if it is that large), or a date."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return value / 1e9 if value > 1e15 else value / 1e3 if value > 1e11 else float(value)
    try:
        return datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _mappings(values: Any) -> Iterator[Mapping[str, Any]]:
    for value in values if isinstance(values, list) else ():
        if isinstance(value, Mapping):
            yield value
