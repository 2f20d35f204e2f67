"""Files of traces: found, told apart by what they hold, and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from resilisim.errors import InvalidInputError
from resilisim.injection.traces.logs import (
    MOST_TRACE_BYTES,
    is_call,
    json_in_lines,
    rpc_message,
    traces_of_calls,
    traces_of_eval_file,
    traces_of_inspect,
    traces_of_rpc,
)
from resilisim.injection.traces.spans import is_span, traces_of_spans
from resilisim.injection.traces.traced import Trace, calls_of_messages
from resilisim.inputs import nearest_path, read_text, shown

_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".log", ".eval", ".txt")
_MOST_CALLS: Final = 1_000_000
_EXPECTED: Final = (
    "expected spans of OpenTelemetry (OTLP JSON; GenAI or OpenInference), logs of Inspect (.json, .eval), MCP messages "
    "(JSON-RPC lines), conversations with `messages`, or JSON Lines of calls"
)


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that paths mean: themselves, or those of a folder.

    Raises:
        InvalidInputError: There is no such file, or none in a folder.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file())
            if not inside:
                raise InvalidInputError(f"folder {str(path)!r} holds no traces: expected files {', '.join(_SUFFIXES)}")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            near = nearest_path(path, or_folder=True)
            hint = f"did you mean {str(near)!r}?" if near else "expected a file or a folder of traces"
            raise InvalidInputError(f"{str(path)!r} does not exist; {hint}")
    return list(dict.fromkeys(files))


def read_traces(files: Sequence[Path], read: Callable[[], None] = lambda: None) -> list[Trace]:
    r"""Return the traces of files.

    Args:
        files: The files.
        read: Called after each of them.

    Raises:
        InvalidInputError: One of them holds none, or cannot be read; the line says which.
    """
    traces: list[Trace] = []
    num_calls = 0
    for file in files:
        made = _traces_of(file)
        num_calls += sum(len(trace.calls) for trace in made)
        if num_calls > _MOST_CALLS:
            raise InvalidInputError(f"{file}: with it there are more than {_MOST_CALLS:,} calls; expected fewer")
        traces += made
        read()
    traces = [trace for trace in traces if trace.calls]
    if not traces:
        raise InvalidInputError(f"the traces hold no call of a tool: {_EXPECTED}")
    return traces


def _traces_of(file: Path) -> list[Trace]:
    if file.stat().st_size > MOST_TRACE_BYTES:
        raise InvalidInputError(f"{file}: has {file.stat().st_size:,} bytes; expected at most {MOST_TRACE_BYTES:,}")
    if file.suffix == ".eval":
        return traces_of_eval_file(file)
    source, text = str(file), read_text(file, "trace", _EXPECTED)
    values = list(_values(text))
    if values:
        return _told_apart(values, source)
    messages = [
        (message[0], when or message[1]) for value, when in json_in_lines(text) if (message := rpc_message(value))
    ]
    if messages:
        return traces_of_rpc(messages, source)
    lines = [value for value, _ in json_in_lines(text)]
    if lines:
        return _told_apart(lines, source)
    raise InvalidInputError(f"{source}: holds no JSON; {_EXPECTED}")


def _values(text: str) -> Iterator[Any]:
    """Yield the values of JSON, JSON Lines, or JSON texts one behind the other; none if a text is not that."""
    decoder = json.JSONDecoder()
    place, made = 0, []
    try:
        while (place := _next_character(text, place)) < len(text):
            value, place = decoder.raw_decode(text, place)
            made.append(value)
    except (ValueError, RecursionError):
        return
    for value in made:
        yield from value if isinstance(value, list) and len(made) == 1 else [value]


def _next_character(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n,\ufeff":
        place += 1
    return place


def _told_apart(values: list[Any], source: str) -> list[Trace]:
    first = values[0]
    if isinstance(first, dict) and "samples" in first and "eval" in first:
        return [trace for log in values for trace in traces_of_inspect(log, source)]
    if any(map(is_span, values)):
        return traces_of_spans(values, source)
    if isinstance(first, dict) and isinstance(first.get("data"), list) and any(map(is_span, first["data"])):
        return traces_of_spans(first["data"], source)
    messages = [message for value in values if (message := rpc_message(value))]
    if messages:
        return traces_of_rpc(messages, source)
    if any(isinstance(value, dict) and isinstance(value.get("messages"), list) for value in values):
        return [
            Trace(f"{source}, item {number}", calls_of_messages(value["messages"]))
            for number, value in enumerate(values, start=1)
            if isinstance(value, dict) and isinstance(value.get("messages"), list)
        ]
    if isinstance(first, dict) and first.get("role") in ("system", "user", "developer", "assistant"):
        return [Trace(source, calls_of_messages(values))]
    if is_call(first):
        return traces_of_calls(values, source)
    seen = ", ".join(map(str, first)) if isinstance(first, dict) else shown(first)
    raise InvalidInputError(f"{source}: its first value ({seen[:100]}) is in no known format; {_EXPECTED}")
