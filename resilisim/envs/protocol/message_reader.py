"""How an agent's message is read: the text protocol and native tool calls (SPEC section 4).

Both lead to the same `Message`, so both give the same episodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from resilisim.chat import ToolCall
from resilisim.chat.call_forms import FoundCalls, StrangeCall, find_calls, has_call_mark
from resilisim.chat.json_answers import NotALiteral, split_thoughts
from resilisim.chat.unwrapping import WrittenCall, named_call, spellings, text_of_parts, unwrapped
from resilisim.envs.protocol.completion_signal import signals_completion
from resilisim.envs.protocol.native_messages import JSON_DECODER, native_calls
from resilisim.envs.protocol.native_tools import FUNCTION_PROPERTIES, NATIVE_FUNCTIONS, NATIVE_NEEDS, WAIT_FUNCTION
from resilisim.errors import nearest_name
from resilisim.simulator.messages import Message, MessageKind
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import ParameterMode, accepts, check_parameters, parameter_schema

_OPEN_TAG = re.compile(r"<(tool_search|tool_info|tool_call)>", re.IGNORECASE)
_WAIT_MARK = re.compile(r"<wait\s*/>|<wait>\s*</wait>", re.IGNORECASE)
# Where an answer is asked for, it stands between the tags; one that is never closed goes to the end.
_ANSWER = re.compile(r"<finish>(.*?)(?:</finish>|\Z)", re.DOTALL | re.IGNORECASE)
_CALL = re.compile(r"[\s*`\"']*([^\s{(:*`\"']+)[*`\"']*:?[*`\"']*\s*(.*)\Z", re.DOTALL)
_FENCE = re.compile(r"```[\w+-]{0,20}[^\S\n]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_NAME_FIRST = re.compile(r"(?![{\[<`])(?!.*<arg_key>)", re.DOTALL)  # what stands in a tag of this protocol's own
_EXCERPT_LENGTH = 200


def read_text(
    text: str,
    library: ToolLibrary,
    mode: ParameterMode,
    answers: bool = False,
    offers_wait: bool = False,
    call_word: str = "tag",
) -> Message:
    """Read a message of the text protocol: the first tag's meaning, else the completion signal, else a format error.

    With `answers` completion is signalled with one, `<finish>answer</finish>`, which is a tag like the others. Where it
    is offered, `<wait/>` is understood in a message without another tag. A call in a form that some models write
    (`chat.call_forms`) is a tag, too. `call_word` is what its writer knows a call as.
    """
    thoughts, visible = _split_thoughts(text)
    answer = _ANSWER.search(visible) if answers else None
    if answer is not None and answer[1].strip():
        before = visible[: answer.start()]
        if not has_tag(before) and not isinstance(find_calls(before, lambda call: False), FoundCalls):
            return Message("finish", text=visible, thoughts=thoughts, answer=answer[1].strip())
    tags, unclosed = _find_tags(visible)
    offered = (*NATIVE_FUNCTIONS, WAIT_FUNCTION) if offers_wait else NATIVE_FUNCTIONS
    reader = _Reader(library, mode, visible, thoughts, max(len(tags) - 1, 0), offered)
    other = _other_form(visible, reader, tags)
    if isinstance(other, FoundCalls):
        behind = sum(tag.start >= other.end for tag in tags)
        return replace(reader, ignored=len(other.calls) - 1 + behind).written(other.calls[0])
    if tags:
        kind, content, _ = tags[0]
        if kind == "tool_search":
            return reader.search(content)
        return reader.info(content) if kind == "tool_info" else reader.tagged_call(content)
    if unclosed is not None:
        return reader.error(f"the tag <{unclosed}> is never closed: expected </{unclosed}>")
    if offers_wait and _WAIT_MARK.search(visible):
        return reader.message("wait")
    if signals_completion(visible):
        return reader.message("finish")
    seen = "" if other is None else f"; seen was {other.seen}"
    if thoughts and not visible:
        seen = "; seen was nothing but thoughts"
    return reader.error(f"no {call_word} and no completion signal was found{seen}")


def _other_form(text: str, reader: _Reader, tags: Sequence[_Tag]) -> FoundCalls | StrangeCall | None:
    """Return the calls of a message in a form that is not this protocol's, unless one of its own tags comes first.

    Where they have no mark, a message that says that the task is complete only quotes them.
    """
    names_first = bool(tags) and (_NAME_FIRST.match(tags[0].content) or reader.named_at_the_start(tags[0].content))
    if names_first and not has_call_mark(text[: tags[0].start]):
        return None  # as nearly always, which is faster
    calls = find_calls(text, reader.is_meant)
    if not isinstance(calls, FoundCalls):
        return calls
    if tags and tags[0].start < calls.start:
        return None
    return None if not calls.form.mark and signals_completion(text[: calls.start]) else calls


class _Tag(NamedTuple):
    """A closed tag of the protocol: its name, what stands in it, where it begins."""

    name: str
    content: str
    start: int


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the first call of a message, whose words, thoughts and ignored further calls are part of what comes out."""

    library: ToolLibrary
    mode: ParameterMode
    text: str
    thoughts: str
    ignored: int
    offered: Sequence[str]

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions of the environment that are understood, offered by name or not."""
        return (*NATIVE_FUNCTIONS, WAIT_FUNCTION) if WAIT_FUNCTION in self.offered else NATIVE_FUNCTIONS

    def message(self, kind: MessageKind, **fields: Any) -> Message:
        return Message(kind, **{"text": self.text, "thoughts": self.thoughts, "ignored": self.ignored, **fields})

    def error(self, problem: str, more: str = "") -> Message:
        return Message("format_error", problems=(problem,), text=self.text + more, thoughts=self.thoughts)

    def search(self, query: str) -> Message:
        if not query:
            return self.error("the search query is empty: expected a few words")
        return self.message("search", query=query)

    def info(self, name: str) -> Message:
        canonical = self.library.resolve(name)
        problems = () if canonical is not None else (self._unknown_tool(name),)
        return self.message("info", tool=canonical or name, problems=problems)

    def tagged_call(self, content: str) -> Message:
        """Read a call in tags: `name {json}`, an object, a name in backticks, arguments fenced or in parentheses."""
        named = self.named_at_the_start(content.strip())
        content = _unfenced(content)
        if named is not None:
            name, arguments = named
        elif content.startswith("{"):
            value, problem = _read_object(content)
            called = None if problem else named_call(value)
            if called is None:
                reason = problem or "expected an object with the tool's 'name' and its 'arguments'"
                return self.error(f"the tag <tool_call> does not begin with a name: {reason}")
            name, arguments = called.name, called.arguments
        else:
            call = _CALL.match(content)
            if call is None:
                problem = "expected the tool's name, then its parameters" if content else "expected a tool name"
                return self.error(f"the tag <tool_call> does not begin with a name: {problem}")
            name, arguments = call.group(1), _unfenced(call.group(2))
            if arguments.startswith("(") and arguments.endswith(")"):
                arguments = _unfenced(arguments[1:-1])
        name = self.meant_name(name)
        return self.function(name, arguments) if self.is_function(name) else self.call(name, arguments)

    def is_meant(self, call: WrittenCall) -> bool:
        """Return whether a call is of something that there is: a tool, or a function of the environment."""
        return self._exists(self.meant_name(call.name))

    def meant_name(self, name: str) -> str:
        """Return the name of what there is that a name means; as it is if there is no such thing."""
        return name if self._exists(name) else next(filter(self._exists, spellings(name)), name)

    def _exists(self, name: str) -> bool:
        return name in self.functions or self.library.resolve(name) is not None

    def is_function(self, name: str) -> bool:
        """Return whether a name means a function of the environment; a tool of this name comes first."""
        return name in self.functions and self.library.resolve(name) is None

    def written(self, call: WrittenCall) -> Message:
        """Read a call in a form that is not this protocol's."""
        call = replace(call, name=self.meant_name(call.name))
        try:
            arguments = call.arguments_for(self._properties(call))
        except NotALiteral as error:
            if self.mode == "ignore" and not self.is_function(call.name):
                return self.call(call.name, None)
            problem = f"the parameters cannot be read ({error}): {str(call.arguments)[:_EXCERPT_LENGTH]!r}"
            return self.message("rejected", tool=self.library.resolve(call.name), problems=(problem,))
        return self.function(call.name, arguments) if self.is_function(call.name) else self.call(call.name, arguments)

    def _properties(self, call: WrittenCall) -> Mapping[str, Any]:
        """Return the schemas of what a call may be given; parameters of a tool may stand beside its name."""
        own = FUNCTION_PROPERTIES.get(call.name, {}) if self.is_function(call.name) else {}
        named = call.arguments.get("name") if isinstance(call.arguments, Mapping) else None
        name = self.library.resolve(str(named).strip() if call.name == "tool_call" else call.name)
        return own if name is None else {**parameter_schema(self.library[name], strict=False)["properties"], **own}

    def named_at_the_start(self, content: str) -> tuple[str, str] | None:
        """Return a name that no rule of form finds the end of, and what stands behind it; None if there is none."""
        for odd_name in self.library.odd_names:  # the longest first
            for quote in ("", "`", '"', "'"):
                named = f"{quote}{odd_name}{quote}"
                begin, rest = content[: len(named)], content[len(named) :]
                if begin.lower() == named.lower() and (not rest or rest[0] in " \t\n\r({:"):
                    arguments = _unfenced(rest.lstrip().removeprefix(":"))
                    in_brackets = arguments.startswith("(") and arguments.endswith(")")
                    name = begin[len(quote) : len(begin) - len(quote)]
                    return name, _unfenced(arguments[1:-1]) if in_brackets else arguments
        return None

    def function(self, name: str, raw: object) -> Message:
        arguments, problem = _read_object(raw)
        if problem is not None:
            if name == "tool_call":
                return self.message("rejected", problems=(problem,), text=str(raw))
            return self.error(f"arguments of {name}: {problem}", str(raw))
        if name == "finish":
            return self.message("finish", answer=_answer_in(arguments))
        if name == WAIT_FUNCTION and name in self.offered:
            return self.message("wait")
        if name == "tool_search" and isinstance(arguments.get("query"), str):
            return self.search(arguments["query"].strip())
        if name == "tool_info" and isinstance(arguments.get("name"), str):
            return self.info(arguments["name"].strip())
        if name == "tool_call" and isinstance(arguments.get("name"), str):
            return self.call(arguments["name"].strip(), self._with_others(arguments))
        near = nearest_name(name, self.offered)
        if near != name:
            hint = f"did you mean {near!r}?" if near else "expected one of " + ", ".join(self.offered)
            return self.error(f"unknown function {name[:_EXCERPT_LENGTH]!r}: {hint}")
        return self.error(f"function {name!r} needs its {NATIVE_NEEDS[name]!r} as a string")

    def call(self, name: str, raw: object) -> Message:
        canonical = self.library.resolve(name)
        if canonical is None:
            return self.message("rejected", tool=name, problems=(self._unknown_tool(name),))
        if self.mode == "ignore":
            return self.message("execute", tool=canonical)
        parameters, unreadable = _read_object(raw)
        tool = self.library[canonical]
        is_fine = unreadable is None and accepts(tool, parameters, self.mode)  # as nearly all are, which is faster
        problems = [unreadable] if unreadable else [] if is_fine else check_parameters(tool, parameters, self.mode)
        kind: MessageKind = "rejected" if problems else "execute"
        return self.message(kind, tool=canonical, parameters=parameters, problems=tuple(problems))

    def _with_others(self, arguments: Mapping[str, Any]) -> Any:
        """Return the parameters of a call by name, and with them those of the tool that stand beside its name."""
        canonical = self.library.resolve(arguments["name"].strip())
        known = {} if canonical is None else parameter_schema(self.library[canonical], strict=False)["properties"]
        others = {
            name: value for name, value in arguments.items() if name in known and name not in ("name", "parameters")
        }
        parameters, problem = _read_object(arguments.get("parameters")) if others else ({}, "none beside it")
        return arguments.get("parameters") if problem is not None else {**parameters, **others}

    def _unknown_tool(self, name: str) -> str:
        near = nearest_name(name, self.library.names)
        return f"unknown tool {name[:_EXCERPT_LENGTH]!r}" + (f": did you mean {near!r}?" if near else "")


def _find_tags(text: str) -> tuple[list[_Tag], str | None]:
    """Return each closed tag in order, and the name of the first one that is never closed.

    A content reaches to the next closing tag. Linear: a closing tag that is missing once is missing for all later ones.
    """
    lowered = text.lower()
    if len(lowered) != len(text):  # a few letters change their length; then only lower-case closing tags are found
        lowered = text
    tags: list[_Tag] = []
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
        tags.append(_Tag(name, text[opened.end() : closed].strip(), opened.start()))
        position = closed
    return tags, missing[0] if missing else None


def has_tag(text: str) -> bool:
    """Return whether a message opens a tag of the protocol."""
    return _OPEN_TAG.search(text) is not None


def through_first_call(text: str) -> str:
    """Return a message up to the end of its first call: what comes behind was not carried out, or was made up."""
    opened = _OPEN_TAG.search(text)
    calls = find_calls(text, lambda call: False)
    if isinstance(calls, FoundCalls) and (opened is None or calls.start <= opened.start()):
        return text[: calls.end]
    closed = None if opened is None else re.compile(f"</{opened.group(1)}>", re.IGNORECASE).search(text, opened.end())
    return text if closed is None else text[: closed.end()]


def _unfenced(text: str) -> str:
    """Return a text without the fence or the backticks around it."""
    fence = _FENCE.match(text.strip())
    return (text if fence is None else fence.group(1)).strip().strip("`").strip()


def read_native(
    message: Mapping[str, Any],
    library: ToolLibrary,
    mode: ParameterMode,
    offered: Sequence[str] = (),
    answers: bool = False,
) -> Message:
    """Read an assistant message of an OpenAI-compatible endpoint: its first call, or its text if it makes none.

    `offered` are the names of the functions that could be called; those of the environment if omitted. `answers` is as
    in `read_text`.
    """
    content = message.get("content")
    content = content if isinstance(content, str) else text_of_parts(content) or ""
    calls = native_calls(message)
    if not calls:
        call_word = "function call" if offered and "tool_call" not in offered else "tag"
        return read_text(content, library, mode, answers, WAIT_FUNCTION in offered, call_word)
    thoughts, visible = _split_thoughts(content)
    reader = _Reader(library, mode, visible, thoughts, len(calls) - 1, offered or NATIVE_FUNCTIONS)
    return replace(_first_call(reader, calls), native=True)


def read_call(call: ToolCall, library: ToolLibrary, mode: ParameterMode, offered: Sequence[str] = ()) -> Message:
    """Read one native call, as `read_native` reads a message that makes it and says nothing else."""
    reader = _Reader(library, mode, "", "", 0, offered or NATIVE_FUNCTIONS)
    if not call.name.strip():
        message = reader.error(f"the tool call names no function: {call.to_openai()!r:.{_EXCERPT_LENGTH}}")
        return replace(message, native=True)
    return replace(_named(reader, call.name.strip(), call.arguments), native=True)


def _first_call(reader: _Reader, calls: list[Any]) -> Message:
    call = named_call(calls[0]) if isinstance(calls[0], Mapping) else None
    if call is None:
        return reader.error(f"the tool call names no function: {calls[0]!r:.{_EXCERPT_LENGTH}}")
    return _named(reader, call.name, call.arguments)


def _named(reader: _Reader, name: str, raw: object) -> Message:
    name = reader.meant_name(name)
    is_tool = (
        name not in reader.functions and reader.library.resolve(name) is not None
    )  # called as if it were a function
    return reader.call(name, raw) if is_tool else reader.function(name, raw)


def _answer_in(arguments: Mapping[str, Any]) -> str | None:
    """Return the answer that finish was called with, values that are no text as JSON."""
    answer = arguments.get("answer")
    if answer is None or isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False)


def _split_thoughts(text: str) -> tuple[str, str]:
    """Return the thoughts of a message on lines of their own, and the rest."""
    thoughts, visible = split_thoughts(text)
    return "\n".join(thought.strip() for thought in thoughts), visible.strip()


def _read_object(raw: object) -> tuple[dict[str, Any], str | None]:
    """Return the JSON object that was given (none at all is the empty object), or what is wrong with it."""
    try:
        value = unwrapped(raw, JSON_DECODER.decode)
    except json.JSONDecodeError as error:
        return {}, f"the parameters are not valid JSON ({error.msg}): {str(raw)[:_EXCERPT_LENGTH]!r}"
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number is out of range"
        return {}, f"the parameters are not valid JSON ({reason}): {str(raw)[:_EXCERPT_LENGTH]!r}"
    if not isinstance(value, dict):
        return (
            {},
            f"the parameters are a JSON {type(value).__name__}, expected an object: {str(raw)[:_EXCERPT_LENGTH]!r}",
        )
    return value, None
