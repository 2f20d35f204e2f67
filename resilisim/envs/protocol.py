"""How an agent's message is read: the text protocol and native tool calls (SPEC section 4).

Both lead to the same `Message`, so both give the same episodes.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from resilisim.errors import nearest_name
from resilisim.simulator.messages import Message
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import ParameterMode, check_parameters

_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"\A(.*?)</think>", re.DOTALL | re.IGNORECASE)
_OPEN_TAG = re.compile(r"<(tool_search|tool_info|tool_call)>", re.IGNORECASE)
_FINISH_TAG = re.compile(r"<finish\s*/>|<finish>\s*</finish>", re.IGNORECASE)
_FINISH_PHRASE = re.compile(
    r"finished executing|\btask( is| has been)? (complete|completed|done|finished)\b", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?;\n]|\b(?:but|however|although|though)\b", re.IGNORECASE)
_NEGATION = re.compile(r"\b(?:not|never|cannot|neither|nor|without|unable|hardly|yet to)\b|n['’]t\b", re.IGNORECASE)
_CALL = re.compile(r"\s*([^\s{]+)\s*(.*)\Z", re.DOTALL)
_EXCERPT_LENGTH = 200
CUT_MARK = "\n[cut: too long]"  # ends a text that had to be cut


def read_text(text: str, library: ToolLibrary, mode: ParameterMode) -> Message:
    """Read a message of the text protocol.

    Args:
        text: The assistant's message.
        library: Tool library of the episode.
        mode: How parameters are checked.

    Returns:
        The first tag's meaning; without any tag, the completion signal if it holds one, else a format error.
    """
    thoughts, visible = _split_thoughts(text)
    tags, unclosed = _find_tags(visible)
    if tags:
        kind, content = tags[0]
        ignored = len(tags) - 1
        if kind == "tool_search":
            return _search(content, visible, thoughts, ignored)
        if kind == "tool_info":
            return _info(content, library, visible, thoughts, ignored)
        call = _CALL.match(content)
        if call is None:
            problem = "expected the tool's name, then its parameters" if content else "expected a tool name"
            return _format_error(f"the tag <tool_call> does not begin with a name: {problem}", visible, thoughts)
        name, arguments = call.group(1), call.group(2).strip()
        return _call(name, arguments, library, mode, visible, thoughts, ignored)
    if unclosed is not None:
        return _format_error(f"the tag <{unclosed}> is never closed: expected </{unclosed}>", visible, thoughts)
    if signals_completion(visible):
        return Message("finish", text=visible, thoughts=thoughts)
    return _format_error("no tag and no completion signal was found", visible, thoughts)


def _find_tags(text: str) -> tuple[list[tuple[str, str]], str | None]:
    """Return (name, content) of each closed tag in order, and the name of the first one that is never closed.

    A tag's content reaches to its next closing tag; tags within the content are part of it. The search is linear: a
    closing tag that is missing once is missing for every later tag of that name.
    """
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters change their length; then only lower-case closing tags are found
        lowered = text
    tags: list[tuple[str, str]] = []
    missing: list[str] = []
    position = 0
    for opened in _OPEN_TAG.finditer(text):
        name = opened.group(1).lower()
        if opened.start() < position or name in missing:
            continue
        closed = lowered.find(f"</{name}>", opened.end())
        if closed < 0:
            missing.append(name)
            continue
        tags.append((name, text[opened.end() : closed].strip()))
        position = closed
    return tags, missing[0] if missing else None


def signals_completion(text: str) -> bool:
    """Return whether a message without tags says that the task is complete, and does not deny it in that sentence."""
    for sentence in _SENTENCE_END.split(text):
        phrase = _FINISH_PHRASE.search(sentence)
        if phrase is not None and not _NEGATION.search(sentence):
            return True
        mark = _FINISH_TAG.search(sentence)
        if mark is not None and not _NEGATION.search(sentence, 0, mark.start()):
            return True
    return False


def read_native(message: Mapping[str, Any], library: ToolLibrary, mode: ParameterMode) -> Message:
    """Read an assistant message with native tool calls, as OpenAI-compatible endpoints return it.

    Args:
        message: `{"content": text or None, "tool_calls": [{"id", "function": {"name", "arguments"}}, ...]}`; of several
            calls the first counts. Without calls the content is read like a message of the text protocol.
        library: Tool library of the episode.
        mode: How parameters are checked.
    """
    content = message.get("content")
    content = content if isinstance(content, str) else ""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return read_text(content, library, mode)
    return replace(_read_calls(content, calls, library, mode), native=True)


def _read_calls(content: str, calls: list[Any], library: ToolLibrary, mode: ParameterMode) -> Message:
    thoughts, visible = _split_thoughts(content)
    ignored = len(calls) - 1
    function = calls[0].get("function") if isinstance(calls[0], Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return _format_error(f"the tool call names no function: {calls[0]!r:.{_EXCERPT_LENGTH}}", visible, thoughts)
    name, raw = function["name"], function.get("arguments")
    arguments, problem = _read_object(raw)
    if problem is not None:
        if name == "tool_call":
            return Message("rejected", problems=(problem,), text=str(raw), thoughts=thoughts, ignored=ignored)
        return _format_error(f"arguments of {name}: {problem}", visible + str(raw), thoughts)
    if name == "finish":
        return Message("finish", text=visible, thoughts=thoughts, ignored=ignored)
    if name == "tool_search" and isinstance(arguments.get("query"), str):
        return _search(arguments["query"].strip(), visible, thoughts, ignored)
    if name == "tool_info" and isinstance(arguments.get("name"), str):
        return _info(arguments["name"].strip(), library, visible, thoughts, ignored)
    if name == "tool_call" and isinstance(arguments.get("name"), str):
        return _call(arguments["name"].strip(), arguments.get("parameters"), library, mode, visible, thoughts, ignored)
    near = nearest_name(name, NATIVE_FUNCTIONS)
    if near != name:
        hint = f"did you mean {near!r}?" if near else "expected one of " + ", ".join(NATIVE_FUNCTIONS)
        return _format_error(f"unknown function {name[:_EXCERPT_LENGTH]!r}: {hint}", visible, thoughts)
    return _format_error(f"function {name!r} needs its {_NATIVE_NEEDS[name]!r} as a string", visible, thoughts)


def native_text(message: Mapping[str, Any]) -> str:
    """Return an assistant message as JSON text; one that JSON has no form for becomes one that cannot be read."""
    try:
        return json.dumps(message, allow_nan=False, default=_plain_mapping)
    except (TypeError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return json.dumps({"content": None, "tool_calls": [f"a message that is no JSON ({reason:.{_EXCERPT_LENGTH}})"]})


def _plain_mapping(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds a {type(value).__name__}")


def decode_native(action: str) -> Mapping[str, Any]:
    """Return an assistant message from its JSON text; a text that is none is an answer without calls."""
    try:
        message = json.loads(action, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return {"content": action}
    return message if isinstance(message, dict) else {"content": action}


def call_ids(message: Mapping[str, Any]) -> list[str]:
    """Return the id of each call of an assistant message; empty for what is no call or has no id."""
    calls = message.get("tool_calls")
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in (calls if isinstance(calls, list) else [])]
    return [str(call_id) if isinstance(call_id, str | int) else "" for call_id in ids]


def encode_native(text: str, ids: list[str], max_length: int) -> str:
    """Return what the environment says as a JSON list of messages that answer the calls; the first is the answer.

    Args:
        text: What it says.
        ids: Ids of the calls.
        max_length: Most characters of the list. If need be, the last calls are left without an answer, then the text
            is cut, and says so.
    """
    encoded = _answers(text, ids)
    if len(encoded) <= max_length:
        return encoded
    lengths = itertools.accumulate(len(_answers("ignored", [call_id])) for call_id in ids)
    kept = [call_id for call_id, length in zip(ids, lengths, strict=True) if length <= max_length // 2]
    # A character less in the text is at least one less in its JSON.
    excess = len(_answers(text + CUT_MARK, kept)) - max_length
    return _answers(text[: len(text) - max(excess, 0)] + CUT_MARK, kept)


def _answers(text: str, ids: list[str]) -> str:
    if not ids:
        return json.dumps([{"role": "user", "content": text}], ensure_ascii=False)
    replies = [{"role": "tool", "tool_call_id": ids[0], "content": text}]
    replies += [{"role": "tool", "tool_call_id": call_id, "content": "ignored"} for call_id in ids[1:]]
    return json.dumps(replies, ensure_ascii=False)


def _split_thoughts(text: str) -> tuple[str, str]:
    """Return what stands in <think> blocks (also unclosed, or closed without being opened), and the rest."""
    thoughts = [match.group(1).strip() for match in _THOUGHT.finditer(text)]
    visible = _THOUGHT.sub("", text)
    headless = _THOUGHT_END.match(visible)
    if headless is not None:
        thoughts.insert(0, headless.group(1).strip())
        visible = visible[headless.end() :]
    return "\n".join(thoughts), visible.strip()


def _format_error(problem: str, text: str, thoughts: str) -> Message:
    return Message("format_error", problems=(problem,), text=text, thoughts=thoughts)


def _search(query: str, text: str, thoughts: str, ignored: int) -> Message:
    if not query:
        return _format_error("the search query is empty: expected a few words", text, thoughts)
    return Message("search", query=query, text=text, thoughts=thoughts, ignored=ignored)


def _info(name: str, library: ToolLibrary, text: str, thoughts: str, ignored: int) -> Message:
    canonical = library.resolve(name)
    problems = () if canonical is not None else (_unknown_tool(name, library),)
    return Message("info", tool=canonical or name, problems=problems, text=text, thoughts=thoughts, ignored=ignored)


def _call(
    name: str, raw: object, library: ToolLibrary, mode: ParameterMode, text: str, thoughts: str, ignored: int
) -> Message:
    canonical = library.resolve(name)
    if canonical is None:
        problem = _unknown_tool(name, library)
        return Message("rejected", tool=name, problems=(problem,), text=text, thoughts=thoughts, ignored=ignored)
    if mode == "ignore":
        return Message("execute", tool=canonical, text=text, thoughts=thoughts, ignored=ignored)
    parameters, unreadable = _read_object(raw)
    problems = [unreadable] if unreadable else check_parameters(library[canonical], parameters, mode)
    return Message(
        "rejected" if problems else "execute",
        tool=canonical,
        parameters=parameters,
        problems=tuple(problems),
        text=text,
        thoughts=thoughts,
        ignored=ignored,
    )


def _unknown_tool(name: str, library: ToolLibrary) -> str:
    near = nearest_name(name, library.names)
    return f"unknown tool {name[:_EXCERPT_LENGTH]!r}" + (f": did you mean {near!r}?" if near else "")


def _read_object(raw: object) -> tuple[dict[str, Any], str | None]:
    """Return the JSON object that was given (none at all is the empty object), or what is wrong with it."""
    if raw is None or raw == "":
        return {}, None
    value = raw
    if isinstance(raw, str):
        try:
            value = json.loads(raw, parse_float=_finite, parse_constant=_finite)
        except json.JSONDecodeError as error:
            return {}, f"the parameters are not valid JSON ({error.msg}): {raw[:_EXCERPT_LENGTH]!r}"
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else "a number is out of range"
            return {}, f"the parameters are not valid JSON ({reason}): {raw[:_EXCERPT_LENGTH]!r}"
    if not isinstance(value, dict):
        return (
            {},
            f"the parameters are a JSON {type(value).__name__}, expected an object: {str(raw)[:_EXCERPT_LENGTH]!r}",
        )
    return value, None


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(number)
    return value


_NATIVE_NEEDS = {"tool_search": "query", "tool_info": "name", "tool_call": "name"}
NATIVE_FUNCTIONS = (*_NATIVE_NEEDS, "finish")


def native_tools() -> list[dict[str, Any]]:
    """Return the functions of the native protocol as OpenAI-compatible endpoints expect them, with JSON Schemas."""
    text = {"type": "string"}
    return [
        _function("tool_search", "Find tools for a need; lists five with their relevance.", {"query": text}),
        _function("tool_info", "Show one tool: parameters, returns, possible errors, dependencies.", {"name": text}),
        _function(
            "tool_call",
            "Execute a tool. Parameters are optional unless the tool requires them.",
            {"name": text, "parameters": {"type": "object"}},
            optional=("parameters",),
        ),
        _function("finish", "Report that the task is complete.", {}),
    ]


def _function(
    name: str, description: str, properties: dict[str, Any], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key not in optional],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
