"""The forms in which models write calls of tools, and what reads a call in any of them: one table.

Where an endpoint does not parse calls, they arrive as text in the form that the model was trained on. A form is known
by a mark that begins it, whatever stands before; two forms have none, and are only calls where they are all of a text.
The forms are those of the models' public chat templates. Nothing here raises for what a model wrote.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from resilisim.chat.call_readers import (
    DSML,
    MOST_CALLS_IN_TEXT,
    SPACE,
    Reader,
    json_calls,
    kimi_name,
    name_and_object,
    python_calls,
    read_function,
    read_gemma_call,
    read_glm,
    read_invoke,
    read_mistral,
)
from resilisim.chat.json_answers import LONGEST_READ, NotALiteral, object_at
from resilisim.chat.unwrapping import WrittenCall, calls_of_value, has_arguments

Call = tuple[str, Mapping[str, Any]]  # what a form writes: a name, and JSON values by parameter name

_MOST_MARKS: Final = 64  # of a text that are tried
_LONGEST_SEEN: Final = 60  # characters of an unknown mark that are repeated

_B = r"[|｜]"  # DeepSeek's bar, and what some servers make of it
_U = r"(?:[▁_ ]|\\_)"  # and of its underscore


@dataclass(frozen=True, slots=True)
class CallForm:
    """A form in which some models write calls.

    Attributes:
        name: What records call it.
        models: Who writes it.
        expected: The form in a few words, for whoever is told what was seen.
        mark: What begins it, as a regular expression; empty for a form that has to be all of a text.
        read: Reads the calls behind the mark.
        write: Writes calls in it.
        samples: Calls of `get_weather` with the arguments city "Paris" and days 2, as templates write them.
        python_names: Whether it can only write names that are Python's.
    """

    name: str
    models: str
    expected: str
    mark: str
    read: Reader
    write: Callable[[Sequence[Call]], str]
    samples: tuple[str, ...]
    python_names: bool = False


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """Calls that were found in a text, at least one, and where they stand.

    Attributes:
        form: Their form.
        calls: The calls, in order.
        start: Where the first one begins, its mark included.
        end: Where the last one ends.
    """

    form: CallForm
    calls: tuple[WrittenCall, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StrangeCall:
    """What looks like a call and is none that can be read.

    Attributes:
        seen: What was seen, and what is wrong with it.
        form: The form whose mark it has; None for a mark that is not known.
        start: Where it begins.
    """

    seen: str
    form: CallForm | None
    start: int


def find_calls(text: str, is_meant: Callable[[WrittenCall], bool]) -> FoundCalls | StrangeCall | None:
    """Find the first calls in what a model wrote outside of its thoughts; None where nothing looks like one.

    A form without a mark has to be all of the text or of a fence that ends it, and its calls such as can be meant
    (`is_meant`), of tools that there are: an object or a list that is quoted in a sentence is no call.
    """
    text = text[:LONGEST_READ]
    strange: StrangeCall | None = None
    for mark in itertools.islice(_MARKS.finditer(text), _MOST_MARKS):
        form = _MARKED[int(str(mark.lastgroup)[1:])]
        try:
            calls, end = _read_on(form, text, mark.end())
        except NotALiteral as error:
            problem = f"the form of {form.models} ({_seen(mark.group())}), which cannot be read: {error}"
            strange = strange or StrangeCall(problem, form, mark.start())
            continue
        return FoundCalls(form, tuple(calls), mark.start(), end)
    return _standing_alone(text, is_meant) or strange or _unknown(text)


def calls_at(text: str, position: int) -> FoundCalls | None:
    """Return the calls in a form with a mark that begins at a position, white space aside; None if there is none."""
    space = SPACE.match(text, position)
    mark = _MARKS.match(text, position if space is None else space.end())
    if mark is None:
        return None
    form = _MARKED[int(str(mark.lastgroup)[1:])]
    try:
        calls, end = _read_on(form, text, mark.end())
    except NotALiteral:
        return None
    return FoundCalls(form, tuple(calls), mark.start(), end)


def has_call_mark(text: str) -> bool:
    """Return whether something in a text looks like the mark of a form."""
    return _MARKS.search(text[:LONGEST_READ]) is not None


def find_form(name: str) -> CallForm:
    """Return the form of a name; `KeyError` if there is none."""
    return _BY_NAME[name]


def _read_on(form: CallForm, text: str, position: int) -> tuple[list[WrittenCall], int]:
    """Read the calls behind a mark, and those behind further marks of the form that follow at once."""
    calls, end = form.read(text, position)
    while len(calls) < MOST_CALLS_IN_TEXT:
        space = SPACE.match(text, end)
        mark = _MARKS.match(text, end if space is None else space.end())
        if mark is None or _MARKED[int(str(mark.lastgroup)[1:])] is not form:
            break
        try:
            more, end = form.read(text, mark.end())
        except NotALiteral:
            break
        calls += more
    return calls, end


def _standing_alone(text: str, is_meant: Callable[[WrittenCall], bool]) -> FoundCalls | None:
    """Read a text that is nothing but calls in a form without a mark, or that ends with a fence that is."""
    start, words = len(text) - len(text.lstrip()), text.strip()
    if words.endswith("```"):
        opened = words.rfind("```", 0, -3)
        line = words.find("\n", opened)
        if opened < 0 or line < 0 or len(words[opened + 3 : line].strip()) > 20:
            return None
        inner = words[line:-3]
        start, words = start + opened, inner.strip()
    for form in _BARE:
        try:
            calls, end = form.read(words, 0)
        except NotALiteral:
            continue
        if not words[end:].strip() and all(map(is_meant, calls)):
            return FoundCalls(form, tuple(calls), start, len(text))
    return None


# What looks like a mark of some form that is not in the table.
_STRANGE = re.compile(
    r"<[|｜][^<>\n|｜]{0,30}(?:tool|call|func|action|plugin)[^<>\n|｜]{0,30}[|｜]>"
    r"|</?[\w:.-]{0,20}(?:tool|function|invoke)[\w:.-]{0,20}(?:[ =][^<>\n]{0,60})?>"
    r"|\[/?(?:[A-Z]{2,12}_){0,2}(?:TOOL|FUNCTION|CALL)S?(?:_[A-Z]{2,12}){0,2}\]"
    r"|```(?:tool|function|action)[\w-]{0,12}\b",
    re.IGNORECASE,
)


def _unknown(text: str) -> StrangeCall | None:
    """Return what looks like a call in a form that is not known."""
    mark = _STRANGE.search(text)
    if mark is not None:
        return StrangeCall(f"{_seen(mark.group())}, which begins no call that is known here", None, mark.start())
    words = text.strip()
    if not words.startswith("{"):
        return None
    try:
        value, end = object_at(words, 0)
    except NotALiteral:
        return None
    if words[end:].strip() or not value:
        return None
    named = calls_of_value(value)
    if named and has_arguments(value):
        return StrangeCall(f"an object that names {_seen(named[0].name)}, which is no tool here", None, 0)
    keys = ", ".join(_seen(key) for key in itertools.islice(value, 5))
    return StrangeCall(f"an object with the keys {keys}, which names no tool", None, 0)


def _seen(words: str) -> str:
    cut = " ".join(words.split())
    return repr(cut if len(cut) <= _LONGEST_SEEN else cut[: _LONGEST_SEEN - 3] + "...")


# Writers.


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _objects(calls: Sequence[Call], key: str = "arguments", name: str = "name") -> list[str]:
    return [json.dumps({name: tool, key: dict(arguments)}, ensure_ascii=False) for tool, arguments in calls]


def _write_python(calls: Sequence[Call]) -> str:
    written = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" for name, arguments in calls
    )
    return f"[{', '.join(written)}]"


def _each(write: Callable[[str, Mapping[str, Any]], str], before: str = "", after: str = "") -> Callable[..., str]:
    return lambda calls: before + "\n".join(write(name, arguments) for name, arguments in calls) + after


def _each_object(before: str, after: str, **keys: str) -> Callable[[Sequence[Call]], str]:
    return lambda calls: "\n".join(f"{before}{written}{after}" for written in _objects(calls, **keys))


def _all_objects(before: str, after: str, **keys: str) -> Callable[[Sequence[Call]], str]:
    return lambda calls: f"{before}[{', '.join(_objects(calls, **keys))}]{after}"


def _write_function(name: str, arguments: Mapping[str, Any]) -> str:
    inner = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def _write_invoke(name: str, arguments: Mapping[str, Any]) -> str:
    inner = "".join(f'<parameter name="{key}">{_lined(_text(value))}</parameter>\n' for key, value in arguments.items())
    return f'<invoke name="{name}">\n{inner}</invoke>'


def _lined(value: str) -> str:
    """Return a value between line ends if it has one at either end, since one each is taken away."""
    return f"\n{value}\n" if value.startswith("\n") or value.endswith("\n") else value


def _write_dsml(name: str, arguments: Mapping[str, Any]) -> str:
    inner = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{_text(value)}</｜DSML｜parameter>\n"
        for key, value in arguments.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{inner}</｜DSML｜invoke>'


def _write_glm(name: str, arguments: Mapping[str, Any]) -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{inner}</tool_call>"


def _write_gemma(value: object) -> str:
    if isinstance(value, str):
        return f"<escape>{value}<escape>"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_write_gemma(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_write_gemma(inner) for inner in value) + "]"
    return json.dumps(value)


def _kimi(calls: Sequence[Call]) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{_text(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def _deepseek(before: str, between: str, after: str) -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        inner = "".join(
            f"<｜tool▁call▁begin｜>{before}{name}{between}{_text(arguments)}{after}<｜tool▁call▁end｜>"
            for name, arguments in calls
        )
        return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"

    return write


_SEPARATOR = rf"<{_B}tool{_U}sep{_B}>"
_DEEPSEEK_CALL = rf"<{_B}tool{_U}call{_U}begin{_B}>"
_DEEPSEEK_ENDS = rf"<{_B}tool{_U}call{_U}end{_B}>(?:\s*<{_B}tool{_U}calls{_U}end{_B}>)?"
_HEADER_END = r"(?:<\|channel\|>\s?commentary)?\s*(?:<\|constrain\|>)?\s*(?:json)?\s*(?:<\|message\|>)?\s*(?=\{)"
_WEATHER = '{"city": "Paris", "days": 2}'
_AS_OBJECT = f'{{"name": "get_weather", "arguments": {_WEATHER}}}'
_AS_PARAMETERS = f'{{"name": "get_weather", "parameters": {_WEATHER}}}'
_AS_PYTHON = 'get_weather(city="Paris", days=2)'
_AS_INVOKE = (
    '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>'
)

FORMS: Final[tuple[CallForm, ...]] = (
    CallForm(
        "hermes",
        "Hermes, Qwen and Granite 4",
        '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>',
        r"<tool_call>(?=\s{0,50}(?:```\w{0,10}\s{0,5})?[{\[]\s{0,50}[{\"'])",
        json_calls("</tool_call>"),
        _each_object("<tool_call>\n", "\n</tool_call>"),
        (
            f"<tool_call>\n{_AS_OBJECT}\n</tool_call>",
            f"<tool_call>\n{_AS_OBJECT}",  # where the endpoint stops at the closing tag
            f"<tool_call>[{_AS_OBJECT}]</tool_call>",
        ),
    ),
    CallForm(
        "qwen-xml",
        "Qwen3-Coder, Seed-OSS and Llama 3.1",
        "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>",
        r"(?:<(?:seed:)?tool_call>\s{0,50})?<function=(?!\s)",
        read_function,
        _each(_write_function),
        (
            (
                "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n"
                "</parameter>\n</function>\n</tool_call>"
            ),
            (
                "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
                "</function>\n</tool_call>"
            ),  # without the opening tag, which these models often leave out
            (
                "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</function>\n"
                "</tool_call>"
            ),
            (
                "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
                "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>"
            ),
            f"<function=get_weather>{_WEATHER}</function>",
        ),
    ),
    CallForm(
        "glm",
        "GLM 4.5 to 4.7",
        "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>",
        r"<tool_call>(?=[^<>{}\[\]]{1,200}<arg_key>)",
        read_glm,
        _each(_write_glm),
        (
            (
                "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
                "<arg_value>2</arg_value>\n</tool_call>"
            ),
            (
                "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key>"
                "<arg_value>2</arg_value></tool_call>"
            ),
        ),
    ),
    CallForm(
        "invoke",
        "MiniMax M2 and Claude",
        '<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>',
        r"(?:<(?:minimax:tool_call|function_calls|tool_calls|tool_call)>\s{0,50})?<invoke name=",
        read_invoke,
        _each(_write_invoke, "<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        (
            f"<minimax:tool_call>\n{_AS_INVOKE}\n</minimax:tool_call>",
            f"<function_calls>\n{_AS_INVOKE}\n</function_calls>",
            _AS_INVOKE,
        ),
    ),
    CallForm(
        "dsml",
        "DeepSeek V3.2",
        '<｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>',
        rf"(?:<{DSML}(?:function_calls|tool_calls)>\s{{0,50}})?<{DSML}invoke name=",
        read_invoke,
        _each(_write_dsml, "<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
        (
            (
                '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
                '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
                "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
            ),
        ),
    ),
    CallForm(
        "kimi",
        "Kimi K2",
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>",
        r"<\|tool_calls_section_begin\|>|(?=<\|tool_call_begin\|>[^<]{1,250}<\|tool_call_argument_begin\|>)",
        name_and_object(
            r"<\|tool_call_begin\|>",
            r"<\|tool_call_argument_begin\|>",
            r"<\|tool_call_end\|>(?:\s*<\|tool_calls_section_end\|>)?",
            kimi_name,
        ),
        _kimi,
        (
            (
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
                f"{_WEATHER}<|tool_call_end|><|tool_calls_section_end|>"
            ),
            f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{_WEATHER}<|tool_call_end|>",
        ),
    ),
    CallForm(
        "deepseek",
        "DeepSeek V3, R1 and V3.1",
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>",
        rf"<{_B}tool{_U}calls(?:{_U}begin)?{_B}>|(?={_DEEPSEEK_CALL})",
        name_and_object(
            rf"(?:{_DEEPSEEK_CALL}\s*)?(?:function\s*{_SEPARATOR}(?!\s*[{{`]))?", rf"{_SEPARATOR}|\s", _DEEPSEEK_ENDS
        ),
        _deepseek("", "<｜tool▁sep｜>", ""),
        (
            (
                f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{_WEATHER}<｜tool▁call▁end｜>"
                "<｜tool▁calls▁end｜>"
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
                f"{_WEATHER}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            (
                "<｜tool▁calls｜>function<｜tool▁sep｜>get_weather\n```json\n"
                f"{_WEATHER}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
            ),
            f"<|tool_calls_begin|><|tool_call_begin|>get_weather<|tool_sep|>{_WEATHER}<|tool_call_end|>",
        ),
    ),
    CallForm(
        "mistral",
        "Mistral",
        "[TOOL_CALLS]NAME[ARGS]{...}",
        r"\[TOOL_CALLS\]",
        read_mistral,
        _each(lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{_text(given)}"),
        (
            f"[TOOL_CALLS]get_weather[ARGS]{_WEATHER}",
            f"[TOOL_CALLS]get_weather[CALL_ID]9FhK2mQxZ[ARGS]{_WEATHER}",
            f"[TOOL_CALLS]get_weather{_WEATHER}",
            f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {_WEATHER}, "id": "9FhK2mQxZ"}}]</s>',
        ),
    ),
    CallForm(
        "granite",
        "Granite 3 and Phi-4-mini",
        '<|tool_call|>[{"name": NAME, "arguments": {...}}]',
        r"<\|tool_call\|>|<function_call>(?=\s{0,50}[{\[])",
        json_calls(r"<\|/tool_call\|>|</tool_call>|</function_call>"),
        _all_objects("<|tool_call|>", ""),
        (
            f"<|tool_call|>[{_AS_OBJECT}]",
            f"<|tool_call|>[{_AS_OBJECT}]<|/tool_call|>",
            f"<function_call> {_AS_OBJECT}",
        ),
    ),
    CallForm(
        "phi",
        "Phi-4",
        'functools[{"name": NAME, "arguments": {...}}]',
        r"\bfunctools(?=\[\s{0,50}\{)",
        json_calls(),
        _all_objects("functools", ""),
        (f"functools[{_AS_OBJECT}]",),
    ),
    CallForm(
        "tool-calls",
        "MiniMax M1, Hunyuan, Jamba and Nemotron",
        '<tool_calls>{"name": NAME, "arguments": {...}}</tool_calls>',
        r"<(?:tool_calls|TOOLCALL)>(?=\s{0,50}[{\[])|<\|tools_prefix\|>",
        json_calls(r"</tool_calls>|</TOOLCALL>|<\|tools_suffix\|>"),
        lambda calls: "<tool_calls>\n" + "\n".join(_objects(calls)) + "\n</tool_calls>",
        (
            f"<tool_calls>\n{_AS_OBJECT}\n</tool_calls>",
            f"<tool_calls>[{_AS_OBJECT}]</tool_calls>",
            f"<TOOLCALL>[{_AS_OBJECT}]</TOOLCALL>",
            f'<|tools_prefix|>[{{"get_weather": {_WEATHER}}}]<|tools_suffix|>',  # Apertus
        ),
    ),
    CallForm(
        "command",
        "Command R, A and InternLM 2",
        '<|START_ACTION|>[{"tool_name": NAME, "parameters": {...}}]<|END_ACTION|>',
        r"<\|START_ACTION\|>|<\|action_start\|>\s{0,50}<\|(?:plugin|interpreter)\|>",
        json_calls(r"<\|END_ACTION\|>|<\|action_end\|>"),
        _all_objects("<|START_ACTION|>", "<|END_ACTION|>", key="parameters", name="tool_name"),
        (
            (
                f'<|START_ACTION|>[\n {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {_WEATHER}}}\n]'
                "<|END_ACTION|>"
            ),
            f"<|action_start|><|plugin|>\n{_AS_PARAMETERS}<|action_end|>",
        ),
    ),
    CallForm(
        "harmony",
        "gpt-oss",
        "<|channel|>commentary to=functions.NAME<|constrain|>json<|message|>{...}<|call|>",
        r"(?:<\|start\|>assistant\s?)?(?:<\|channel\|>)?\s?(?:commentary|analysis)?\s?\bto=functions\.",
        name_and_object("", _HEADER_END, r"<\|call\|>"),
        _each(
            lambda name, given: (
                f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_text(given)}<|call|>"
            )
        ),
        (
            f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{_WEATHER}<|call|>",
            (
                "<|start|>assistant to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>"
                f"{_WEATHER}<|call|>"
            ),
            f"commentary to=functions.get_weather json{_WEATHER}",  # where the endpoint leaves out special tokens
        ),
    ),
    CallForm(
        "python-tag",
        "Llama 3.1 to 3.3",
        '<|python_tag|>{"name": NAME, "parameters": {...}}',
        r"<\|python_tag\|>(?=\s{0,50}\{)",
        json_calls(r"<\|eom_id\|>|<\|eot_id\|>"),
        lambda calls: "<|python_tag|>" + "; ".join(_objects(calls, "parameters")),
        (f"<|python_tag|>{_AS_PARAMETERS}", f"<|python_tag|>{_AS_PARAMETERS}<|eom_id|>"),
    ),
    CallForm(
        "tool-code",
        "Gemma 3, Llama 4, LFM2 and Olmo 3",
        "[NAME(KEY=VALUE)]",
        r"```tool_code\b[^\S\n]{0,20}\n|<\|python_start\|>|<\|tool_call_start\|>|<\|python_tag\|>(?=\s{0,50}[\w.]{1,200}\()"
        r"|<function_calls>(?=\s{0,50}[\w.]{1,200}\()",
        python_calls(r"```|<\|python_end\|>|<\|tool_call_end\|>|</function_calls>|<\|eom_id\|>"),
        lambda calls: f"```tool_code\n{_write_python(calls)}\n```",
        (
            f"```tool_code\n{_AS_PYTHON}\n```",
            f"```tool_code\nprint(default_api.{_AS_PYTHON})\n```",
            f"<|python_start|>[{_AS_PYTHON}]<|python_end|>",
            f"<|tool_call_start|>[{_AS_PYTHON}]<|tool_call_end|>",
            f"<function_calls>\n{_AS_PYTHON}\n</function_calls>",
            '<|python_tag|>get_weather.call(city="Paris", days=2)',
        ),
        python_names=True,
    ),
    CallForm(
        "gemma-call",
        "FunctionGemma and Gemma 4",
        "<start_function_call>call:NAME{KEY:<escape>VALUE<escape>}<end_function_call>",
        r"(?:<start_function_call>|<\|tool_call>)\s{0,50}call:",
        read_gemma_call,
        _each(lambda name, given: f"<start_function_call>call:{name}{_write_gemma(given)}<end_function_call>"),
        (
            "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:2}<end_function_call>",
            '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>',
        ),
        python_names=True,
    ),
    CallForm(
        "fenced",
        "models that were told of fences",
        'a fence of the language tool_call with {"name": NAME, "arguments": {...}}',
        r"```tool_(?:calls?|use)\b(?=[^\S\n]{0,20}\n\s{0,50}[{\[])",
        json_calls("```"),
        lambda calls: "```tool_call\n" + "\n".join(_objects(calls)) + "\n```",
        (f"```tool_call\n{_AS_OBJECT}\n```", f"```tool_use\n{_AS_OBJECT}\n```"),
    ),
    CallForm(
        "json",
        "Llama 3 and xLAM",
        'nothing but {"name": NAME, "parameters": {...}}',
        "",
        json_calls(),
        lambda calls: "; ".join(_objects(calls, "parameters")),
        (
            _AS_PARAMETERS,
            f"```json\n{_AS_OBJECT}\n```",
            f"[{_AS_OBJECT}]",
            f'{{"type": "function", "function": {_AS_OBJECT}}}',
            f'{{"tool_calls": [{{"type": "function", "function": {_AS_OBJECT}}}]}}',
            '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 2}"}',
        ),
    ),
    CallForm(
        "python",
        "Llama 4 and Gemma 3",
        "nothing but [NAME(KEY=VALUE)]",
        "",
        python_calls(),
        _write_python,
        (f"[{_AS_PYTHON}]", _AS_PYTHON),
        python_names=True,
    ),
)

_MARKED: Final = tuple(form for form in FORMS if form.mark)
_BARE: Final = tuple(form for form in FORMS if not form.mark)
_BY_NAME: Final = {form.name: form for form in FORMS}
# How any mark begins: at most characters only this is tried, which takes a sixth of the time of trying all marks.
_BEGINNING = r"(?=[<`]|\[TOOL_CALLS|functools\[|\s?(?:commentary|analysis)?\s?to=functions\.)"
# One search for all marks; the group says whose it is.
_MARKS = re.compile(f"{_BEGINNING}(?:{'|'.join(f'(?P<f{n}>{form.mark})' for n, form in enumerate(_MARKED))})")
