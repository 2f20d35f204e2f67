"""Spans of OpenTelemetry: those of the GenAI conventions, of MCP, and of OpenInference.

Three layouts are read: OTLP as JSON (what a collector's file exporter writes), the JSON of the SDK's console exporter,
and rows of flat spans. Where a tool's call has no span of its own, the messages of the model's spans tell of it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from resilisim.errors import one_line
from resilisim.injection.traces.traced import Trace, TracedCall, calls_of_messages, code_of, value_of

_GENAI_MESSAGES: Final = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt", "gen_ai.completion")
_NAME: Final = ("gen_ai.tool.name", "tool.name", "tool_call.function.name", "mcp.tool.name")
_ARGUMENTS: Final = ("gen_ai.tool.call.arguments", "input.value", "tool_call.function.arguments")
_AGENT: Final = ("gen_ai.agent.name", "agent.name", "graph.node.id", "service.name")
_NO_SERVICE: Final = "unknown_service"  # how the SDK calls one that nobody has named
_STEP: Final = re.compile(r"llm\.(?P<way>input|output)_messages\.(?P<number>[0-9]+)\.message\.(?P<rest>.+)")
_CALL: Final = re.compile(r"tool_calls\.(?P<number>[0-9]+)\.tool_call\.(?P<rest>.+)")


@dataclass(slots=True)
class Span:
    """One span, whatever its layout was."""

    trace: str
    id: str
    parent: str
    name: str
    start: float | None
    end: float | None
    attributes: dict[str, Any]
    is_error: bool
    words: str
    events: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_tool(self) -> bool:
        """Whether it is the call of a tool."""
        told = self.attributes
        return (
            told.get("gen_ai.operation.name") == "execute_tool"
            or str(told.get("openinference.span.kind", "")).upper() == "TOOL"
            or told.get("mcp.method.name") == "tools/call"
            or str(told.get("traceloop.span.kind", "")) == "tool"
        )

    @property
    def is_agent(self) -> bool:
        """Whether it is the run of an agent."""
        told = self.attributes
        kind = str(told.get("openinference.span.kind", "")).upper()
        return told.get("gen_ai.operation.name") == "invoke_agent" or kind == "AGENT"

    @property
    def is_model(self) -> bool:
        """Whether it is the call of a model."""
        told = self.attributes
        return (
            told.get("gen_ai.operation.name") in ("chat", "generate_content", "text_completion")
            or str(told.get("openinference.span.kind", "")).upper() == "LLM"
        )


def is_span(value: Any) -> bool:
    """Tell a value that holds spans: OTLP, or one span by itself."""
    return isinstance(value, Mapping) and (
        any(key in value for key in ("resourceSpans", "resource_spans"))
        or ("attributes" in value and ("context" in value or "trace_id" in value or "traceId" in value))
    )


def traces_of_spans(values: Iterable[Any], source: str) -> list[Trace]:
    """Return the traces that spans make up, in the order of their beginnings."""
    traces: dict[str, list[Span]] = {}
    for value in values:
        for span in _spans(value):
            traces.setdefault(span.trace, []).append(span)
    made = [(_start(spans), _trace(spans, f"{source}, trace {name[:40]}")) for name, spans in traces.items()]
    return [trace for _, trace in sorted(made, key=lambda each: each[0]) if trace.calls]


def _start(spans: Iterable[Span]) -> float:
    return min((span.start for span in spans if span.start is not None), default=0.0)


def _spans(value: Any) -> Iterator[Span]:
    if not isinstance(value, Mapping):
        return
    resources = value.get("resourceSpans", value.get("resource_spans"))
    if isinstance(resources, list):
        for resource in _mappings(resources):
            about = _attributes(_get(resource, "resource", "attributes"))
            for scope in _mappings(_first(resource, *_SCOPES)):
                for span in _mappings(scope.get("spans")):
                    yield _span(span, about)
    elif "attributes" in value:
        yield _span(value, _attributes(_get(value, "resource", "attributes")))


_SCOPES: Final = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")


def _mappings(values: Any) -> Iterator[Mapping[str, Any]]:
    for value in values if isinstance(values, list) else ():
        if isinstance(value, Mapping):
            yield value


def _get(value: Mapping[str, Any], *path: str) -> Any:
    here: Any = value
    for step in path:
        here = here.get(step) if isinstance(here, Mapping) else None
    return here


def _span(raw: Mapping[str, Any], about: Mapping[str, Any]) -> Span:
    context = raw.get("context")
    ids = context if isinstance(context, Mapping) else raw
    status = raw.get("status")
    told = status if isinstance(status, Mapping) else {}
    state = str(told.get("code", told.get("status_code", raw.get("status_code", ""))))
    events = list(_mappings(raw.get("events")))
    words = told.get("message") or told.get("description") or raw.get("status_message") or ""
    return Span(
        trace=str(_first(ids, "traceId", "trace_id") or ""),
        id=str(_first(ids, "spanId", "span_id") or ""),
        parent=str(_first(raw, "parentSpanId", "parent_span_id", "parent_id") or ""),
        name=str(raw.get("name") or ""),
        start=_time(_first(raw, "startTimeUnixNano", "start_time_unix_nano", "start_time")),
        end=_time(_first(raw, "endTimeUnixNano", "end_time_unix_nano", "end_time")),
        attributes={**about, **_attributes(raw.get("attributes"))},
        is_error=state.upper() in ("2", "STATUS_CODE_ERROR", "ERROR", "STATUSCODE.ERROR"),
        words=str(words),
        events=events,
    )


def _first(holder: Mapping[str, Any], *keys: str) -> Any:
    return next((holder[key] for key in keys if holder.get(key) is not None), None)


def _time(value: Any) -> float | None:
    """Return a time in seconds: nanoseconds as a number or a text, or a date."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()):
        number = float(value)
        return number / 1e9 if number > 1e15 else number
    try:
        return datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _attributes(listed: Any) -> dict[str, Any]:
    """Return attributes by name, from the pairs of OTLP or from a mapping, which may be nested."""
    if isinstance(listed, list):
        return {str(pair["key"]): _value(pair.get("value")) for pair in _mappings(listed) if "key" in pair}
    if not isinstance(listed, Mapping):
        return {}
    flat: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [(str(name), value) for name, value in listed.items()]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping) and name.count(".") < 8:
            waiting += [(f"{name}.{inner}", each) for inner, each in value.items()]
        flat[name] = value
    return flat


def _value(value: Any) -> Any:
    """Return the value of an attribute of OTLP."""
    if not isinstance(value, Mapping):
        return value
    for kind, inner in value.items():
        if kind == "intValue" and isinstance(inner, str) and inner.lstrip("-").isdecimal():
            return int(inner)
        if kind == "arrayValue":
            return [_value(each) for each in _mappings(_get(inner, "values"))] if isinstance(inner, Mapping) else []
        if kind == "kvlistValue":
            return _attributes(_get(inner, "values")) if isinstance(inner, Mapping) else {}
        return inner
    return None


def _trace(spans: list[Span], source: str) -> Trace:
    by_id = {span.id: span for span in spans}
    tools = [span for span in spans if span.is_tool and not _is_within_its_own(span, by_id)]
    tools.sort(key=lambda span: span.start or 0.0)
    calls = [_call(span) for span in tools]
    if not calls:
        calls = calls_of_messages(_messages(spans))
    roots = [span for span in spans if span.parent not in by_id]
    broken = next((span for span in roots if span.is_error and not span.is_tool), None)
    ordered = sorted(spans, key=lambda span: (not span.is_agent, span.start or 0.0))
    named = (str(span.attributes[key]) for key in _AGENT for span in ordered if span.attributes.get(key))
    agent = next((name for name in named if not name.startswith(_NO_SERVICE)), "agent")
    error = None if broken is None else one_line(_failure(broken)[1] or broken.name, 200)
    return Trace(source, calls, one_line(agent, 80), error)


def _is_within_its_own(span: Span, by_id: Mapping[str, Span]) -> bool:
    """Tell the span of a tool within that of the same call: of an MCP client, say, within that of a framework."""
    seen: set[str] = set()
    above = by_id.get(span.parent)
    while above is not None and above.id not in seen:
        seen.add(above.id)
        if above.is_tool and _tool_name(above) == _tool_name(span):
            return True
        above = by_id.get(above.parent)
    return False


def _tool_name(span: Span) -> str:
    named = _first(span.attributes, *_NAME)
    if isinstance(named, str) and named.strip():
        return named
    words = span.name
    for prefix in ("execute_tool ", "tools/call ", "running tool: ", "mcp.tool "):
        words = words.removeprefix(prefix)
    return words.strip() or "tool"


def _call(span: Span) -> TracedCall:
    code, words = _failure(span)
    took = None if span.start is None or span.end is None else max(span.end - span.start, 0.0)
    result = value_of(_first(span.attributes, "gen_ai.tool.call.result", "output.value"))
    if code is None and isinstance(result, Mapping) and result.get("isError") is True:
        words = one_line(str(result.get("content")), 500)
        code = code_of(None, words)
    return TracedCall(
        tool=_tool_name(span),
        arguments=value_of(_first(span.attributes, *_ARGUMENTS)),
        error=code,
        words=words,
        start=span.start,
        seconds=took,
    )


def _failure(span: Span) -> tuple[str | None, str]:
    """Return code and words of a span's failure."""
    kind = span.attributes.get("error.type")
    words = span.words
    for event in span.events:
        if event.get("name") == "exception":
            told = _attributes(event.get("attributes"))
            kind = kind or told.get("exception.type")
            words = words or str(told.get("exception.message") or "")
    if not span.is_error and "error.type" not in span.attributes:
        return None, ""
    return code_of(kind, words), one_line(words, 500)


def _messages(spans: Iterable[Span]) -> list[Any]:
    """Return what the models of a trace were told and said; the longest conversation holds the others."""
    told: list[list[Any]] = []
    for span in spans:
        if not span.is_model:
            continue
        messages: list[Any] = []
        for key in _GENAI_MESSAGES:
            listed = value_of(span.attributes.get(key))
            messages += listed if isinstance(listed, list) else []
        for event in span.events:
            body = _attributes(event.get("attributes"))
            for key in _GENAI_MESSAGES:
                listed = value_of(body.get(key))
                messages += listed if isinstance(listed, list) else []
        told.append(messages or _flat_messages(span.attributes))
    return max(told, key=len, default=[])


def _flat_messages(attributes: Mapping[str, Any]) -> list[Any]:
    """Return messages that OpenInference spreads over attributes, those of the input first."""
    messages: dict[tuple[bool, int], dict[str, Any]] = {}
    for name, value in attributes.items():
        step = _STEP.fullmatch(name)
        if step is None:
            continue
        message = messages.setdefault((step["way"] == "output", int(step["number"])), {"tool_calls": {}})
        call = _CALL.fullmatch(step["rest"])
        if call is None:
            message[step["rest"]] = value
        else:
            part = message["tool_calls"].setdefault(int(call["number"]), {})
            part["name" if call["rest"] == "function.name" else call["rest"].rpartition(".")[2]] = value
    return [
        {**message, "tool_calls": [calls[number] for number in sorted(calls)]}
        for _, message in sorted(messages.items())
        for calls in [message["tool_calls"]]
    ]
