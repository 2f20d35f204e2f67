"""What reads each form of a call behind its mark: objects, names with objects, tags, Python's calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from resilisim.chat.json_answers import NotALiteral, listed_values, object_at, value_at
from resilisim.chat.unwrapping import Words, WrittenCall, calls_of_value

Reader = Callable[[str, int], tuple[list[WrittenCall], int]]  # text, where the mark ends -> calls, where they end

MOST_CALLS_IN_TEXT: Final = 256  # of a text that are read

SPACE = re.compile(r"\s*")
_PYTHON_NAME = re.compile(r"\s*([A-Za-z_][\w.]{0,199})\s?\(")
_FENCE = re.compile(r"\s*```[\w-]{0,20}[^\S\n]*\n?")
_FENCE_END = re.compile(r"\s*```")
_BETWEEN = re.compile(r"[\s;,]*")
DSML: Final = r"(?:[|｜]DSML[|｜]\s?)?"


def _skip(text: str, position: int, pattern: re.Pattern[str] = SPACE) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def json_calls(closing: str = "") -> Reader:
    """Return what reads objects that name tools, one after another or in a list, up to a closing mark if there is."""
    end_mark = re.compile(rf"\s*(?:{closing})") if closing else None

    def read(text: str, position: int) -> tuple[list[WrittenCall], int]:
        calls: list[WrittenCall] = []
        fence = _FENCE.match(text, position)
        end = position if fence is None else fence.end()
        while len(calls) < MOST_CALLS_IN_TEXT:
            start = _skip(text, end, _BETWEEN if calls else SPACE)
            if text[start : start + 1] not in ("{", "["):
                break
            try:
                value, after = value_at(text, start)
                named = calls_of_value(value) or _keyed(value)
            except NotALiteral:
                if not calls:
                    raise
                break
            if not named:
                if not calls:
                    raise NotALiteral("the object names no tool")
                break
            calls += named
            end = after
        if not calls:
            raise NotALiteral("expected a JSON object with the tool's name and its arguments")
        if fence is not None:
            end = _skip(text, end, _FENCE_END)
        return calls, end if end_mark is None else _skip(text, end, end_mark)

    return read


def _keyed(value: object) -> list[WrittenCall]:
    """Return the calls of a list of objects whose only key is the tool's name: Apertus' form."""
    entries = value if isinstance(value, list) else []
    pairs = [next(iter(entry.items())) for entry in entries if isinstance(entry, Mapping) and len(entry) == 1]
    if not pairs or len(pairs) < len(entries) or not all(isinstance(arguments, Mapping) for _, arguments in pairs):
        return []
    return [WrittenCall(name, arguments) for name, arguments in pairs]


def _arguments_behind(text: str, position: int) -> tuple[Any, int]:
    """Return the object of arguments at a position, bare or fenced, and where it ends."""
    fence = _FENCE.match(text, position)
    start = _skip(text, position) if fence is None else _skip(text, fence.end())
    value, end = object_at(text, start)
    return value, end if fence is None else _skip(text, end, _FENCE_END)


def name_and_object(opening: str, between: str, closing: str, name: Callable[[str], str] = str.strip) -> Reader:
    """Return what reads calls that are a name, something between, and an object, each behind an opening of its own."""
    call = re.compile(rf"\s*(?:{opening})?\s*([^\n<>{{}}\[\]|｜`]{{1,200}}?)\s*(?:{between})")
    end_mark = re.compile(rf"\s*(?:{closing})")
    again = re.compile(rf"\s*(?:{opening})") if opening else None

    def read(text: str, position: int) -> tuple[list[WrittenCall], int]:
        calls: list[WrittenCall] = []
        end = position
        while len(calls) < MOST_CALLS_IN_TEXT:
            named = call.match(text, end)
            if named is None or (calls and (again is None or again.match(text, end) is None)):
                break
            try:
                arguments, after = _arguments_behind(text, named.end())
            except NotALiteral as error:
                if calls:
                    break
                raise NotALiteral(f"the arguments of {named.group(1)[:100]}: {error}") from None
            calls.append(WrittenCall(name(named.group(1)), arguments))
            end = _skip(text, after, end_mark)
        if not calls:
            raise NotALiteral("expected the tool's name and an object of arguments")
        return calls, end

    return read


_FUNCTION_PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,200})>")
_FUNCTION_END = re.compile(r"\s*</function>(?:\s{0,50}</(?:seed:)?tool_call>)?|\s*</(?:seed:)?tool_call>")
_FUNCTION_VALUE_END = re.compile(r"(</parameter>)|<parameter=|</function>|</tool_call>")
_INVOKE_VALUE_END = re.compile(rf"(</{DSML}parameter>)|<{DSML}parameter name=|</{DSML}invoke>")
_GLM_VALUE_END = re.compile(r"(</arg_value>)|<arg_key>|</tool_call>")
_INVOKE_PARAMETER = re.compile(rf"\s*<{DSML}parameter name=[\"']?([^\"'>\n]{{1,200}})[\"']?([^>\n]{{0,100}})>")
_INVOKE = re.compile(rf"\s*<{DSML}invoke name=")
_INVOKE_END = re.compile(rf"\s*</{DSML}invoke>")
_INVOKES_END = re.compile(rf"\s*</{DSML}(?:minimax:tool_call|function_calls|tool_calls|tool_call)>")
_GLM_PARAMETER = re.compile(r"\s*<arg_key>([^<>\n]{1,200})</arg_key>\s*<arg_value>")


def _text_until(text: str, position: int, ends: re.Pattern[str]) -> tuple[str, int]:
    """Return the value up to its closing tag (the group of the pattern), or to another tag where it lacks one."""
    end = ends.search(text, position)
    if end is None:
        raise NotALiteral("a value is never closed")
    return text[position : end.start()], end.end() if end.group(1) else end.start()


def _unlined(value: str) -> Words:
    """Return a value without the line end that templates put before it, and that behind it."""
    return Words(value.removeprefix("\n").removesuffix("\n"))


def read_function(text: str, position: int) -> tuple[list[WrittenCall], int]:
    """Read `NAME>`, behind `<function=`, and parameters in tags of their own, or an object."""
    closed = text.find(">", position, position + 202)
    name = text[position:closed].strip().strip("\"'") if closed >= 0 else ""
    if not name:
        raise NotALiteral("expected <function=NAME>")
    end = closed + 1
    if text.startswith("{", _skip(text, end)):
        inner, end = object_at(text, _skip(text, end))
        return [WrittenCall(name, inner)], _skip(text, end, _FUNCTION_END)
    arguments: dict[str, Any] = {}
    while (named := _FUNCTION_PARAMETER.match(text, end)) is not None:
        value, end = _text_until(text, named.end(), _FUNCTION_VALUE_END)
        arguments[named.group(1).strip().strip("\"'")] = _unlined(value)
    closing = _FUNCTION_END.match(text, end)
    if closing is None and not arguments:
        raise NotALiteral("expected <parameter=NAME> or </function>")
    return [WrittenCall(name, arguments)], end if closing is None else closing.end()


def read_invoke(text: str, position: int) -> tuple[list[WrittenCall], int]:
    """Read `"NAME">`, behind `<invoke name=`, and parameters in tags of their own; more of them may follow."""
    calls: list[WrittenCall] = []
    end = position
    while len(calls) < MOST_CALLS_IN_TEXT:
        closed = text.find(">", end, end + 202)
        name = text[end:closed].strip().strip("\"'") if closed >= 0 else ""
        if not name:
            raise NotALiteral('expected <invoke name="NAME">')
        end = closed + 1
        arguments: dict[str, Any] = {}
        while (named := _INVOKE_PARAMETER.match(text, end)) is not None:
            value, end = _text_until(text, named.end(), _INVOKE_VALUE_END)
            is_text = 'string="true"' in named.group(2)
            arguments[named.group(1).strip()] = value if is_text else _unlined(value)
        closing = _INVOKE_END.match(text, end)
        if closing is None and not arguments:
            raise NotALiteral("expected <parameter name=...> or </invoke>")
        calls.append(WrittenCall(name, arguments))
        end = end if closing is None else closing.end()
        following = _INVOKE.match(text, end)
        if following is None:
            break
        end = following.end()
    return calls, _skip(text, end, _INVOKES_END)


def read_glm(text: str, position: int) -> tuple[list[WrittenCall], int]:
    """Read a name, and keys and values in tags of their own, behind `<tool_call>`."""
    end = text.index("<", position)
    name = text[position:end].strip()
    arguments: dict[str, Any] = {}
    while (named := _GLM_PARAMETER.match(text, end)) is not None:
        value, end = _text_until(text, named.end(), _GLM_VALUE_END)
        arguments[named.group(1).strip()] = Words(value)
    if not arguments and text.startswith("<arg_key>", end):
        raise NotALiteral("expected <arg_key>NAME</arg_key><arg_value>VALUE</arg_value>")
    return [WrittenCall(name, arguments)], _skip(text, end, re.compile(r"\s*</tool_call>"))


def python_calls(closing: str = "") -> Reader:
    """Return what reads Python's calls, in a list or one after another, `print(...)` around them or not."""
    end_mark = re.compile(rf"\s*(?:{closing})") if closing else None

    def read(text: str, position: int) -> tuple[list[WrittenCall], int]:
        start = _skip(text, position)
        is_list = text.startswith("[", start)
        calls: list[WrittenCall] = []
        end = start + 1 if is_list else start
        while len(calls) < MOST_CALLS_IN_TEXT:
            named = _PYTHON_NAME.match(text, _skip(text, end, _BETWEEN) if calls else end)
            if named is None:
                break
            call, end = _python_call(text, named)
            calls.append(call)
        if not calls:
            raise NotALiteral("expected calls such as NAME(parameter=value)")
        if is_list:
            end = _skip(text, end, _BETWEEN)
            if not text.startswith("]", end):
                raise NotALiteral("the list of calls is never closed")
            end += 1
        return calls, end if end_mark is None else _skip(text, end, end_mark)

    return read


def _python_call(text: str, named: re.Match[str]) -> tuple[WrittenCall, int]:
    name = named.group(1)
    if name == "print":
        inner = _PYTHON_NAME.match(text, named.end())
        if inner is None:
            raise NotALiteral("expected a call within print(...)")
        call, end = _python_call(text, inner)
        return call, _skip(text, end, re.compile(r"\s*\)"))
    unnamed, arguments, end = listed_values(text, named.end(), ")")
    return WrittenCall(name.removeprefix("default_api.").removesuffix(".call"), arguments, tuple(unnamed)), end


_GEMMA_TEXT = re.compile(r"<escape>(.*?)<escape>|<\|\"\|>(.*?)<\|\"\|>|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_GEMMA_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]{0,199})(?=\s*:)")
_GEMMA_END = re.compile(r"\s*(?:<end_function_call>|<tool_call\|>)")


def read_gemma_call(text: str, position: int) -> tuple[list[WrittenCall], int]:
    """Read `NAME{key:value}`, behind `call:`, whose texts stand between marks and whose names are bare."""
    brace = text.find("{", position, position + 202)
    name = text[position:brace].strip() if brace >= 0 else ""
    ends = [place for mark in ("<end_function_call>", "<tool_call|>") if (place := text.find(mark, position)) >= 0]
    end = min(ends, default=len(text))
    if not name or brace > end:
        raise NotALiteral("expected call:NAME{...}")
    written: list[str] = []
    place = brace
    for match in _GEMMA_TEXT.finditer(text, brace, end):
        written.append(_GEMMA_KEY.sub(r'\1"\2"', text[place : match.start()]))
        words = match.group(1) if match.group(1) is not None else match.group(2)
        written.append(match.group() if words is None else json.dumps(words))
        place = match.end()
    written.append(_GEMMA_KEY.sub(r'\1"\2"', text[place:end]))
    arguments, _ = object_at("".join(written), 0)
    return [WrittenCall(name, arguments)], _skip(text, end, _GEMMA_END)


def read_mistral(text: str, position: int) -> tuple[list[WrittenCall], int]:
    """Read a list of objects, or a name and an object, behind `[TOOL_CALLS]`."""
    if text[_skip(text, position) :][:1] in ("[", "{"):
        return _LISTED(text, position)
    return _NAMED(text, position)


_LISTED: Final = json_calls()
_NAMED: Final = name_and_object("", r"(?:\[CALL_ID\]\s?[\w-]{1,100})?\s?(?:\[ARGS\])?\s*(?=[{`])", "")


def kimi_name(header: str) -> str:
    """Return the name in `functions.NAME:0`."""
    name, colon, number = header.strip().rpartition(":")
    return (name if colon and number.isdigit() else header.strip()).removeprefix("functions.")
