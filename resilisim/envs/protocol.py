"""How an agent's message is read: the text protocol and native tool calls (SPEC section 4).

Both lead to the same `Message`, so both give the same episodes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from resilisim.chat import ToolCall
from resilisim.chat.call_forms import FoundCalls, StrangeCall, find_calls, has_call_mark
from resilisim.chat.json_answers import NotALiteral, split_thoughts
from resilisim.chat.unwrapping import WrittenCall, named_call, spellings, text_of_parts, unwrapped
from resilisim.errors import nearest_name, one_line
from resilisim.inputs import finite_number
from resilisim.simulator.messages import Message, MessageKind
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import ParameterMode, accepts, check_parameters, parameter_schema

# A message to the environment: a text, one native call, or an OpenAI-style assistant message with native calls.
AssistantMessage: TypeAlias = str | ToolCall | Mapping[str, Any]

_OPEN_TAG = re.compile(r"<(tool_search|tool_info|tool_call)>", re.IGNORECASE)
_FINISH_MARK = re.compile(
    r"<finish\s*/>|<finish>\s*</finish>"
    r"|\A[ \t>*#_`-]{0,20}action[ \t*_]{0,20}:[ \t*_`]{0,20}finish\b[ \t*_`]{0,20}(?=[({]|\Z)",
    re.IGNORECASE,
)
_WAIT_MARK = re.compile(r"<wait\s*/>|<wait>\s*</wait>", re.IGNORECASE)
# Where an answer is asked for, it stands between the tags; one that is never closed goes to the end.
_ANSWER = re.compile(r"<finish>(.*?)(?:</finish>|\Z)", re.DOTALL | re.IGNORECASE)
_ACTION_LABEL = re.compile(r"[ \t>*#_`-]{0,20}action[ \t*_]{0,20}:", re.IGNORECASE)
_FINISH_PHRASE = re.compile(
    r"finished executing|\btask( is| has been)? (complete|completed|done|finished)\b", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?;\n]|\b(?:but|however|although|though)\b", re.IGNORECASE)
_NEGATION = re.compile(r"\b(?:not|never|cannot|neither|nor|without|unable|hardly|yet to)\b|n['’]t\b", re.IGNORECASE)
# A sentence that says when the task will be complete, or that this will be told, says nothing about now.
_ANNOUNCEMENT = re.compile(
    r"\b(?:when(?:ever)?|once|if|until|unless|as soon as|whether|will|shall|going to|"
    r"to (?:check|confirm|ensure|make sure|see|verify))\b|['’]ll\b",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"\b(?:when(?:ever)?|once|if|until|unless|as soon as|before|after)\b", re.IGNORECASE)
_NEW_CLAUSE = re.compile(r"[,:]\s*(?:and|so|now|therefore|thus|hence)\b|\bnow\b", re.IGNORECASE)
_CONDITION_BEHIND = re.compile(r"\W{0,3}(?:only\s)?(?:when|once|if|until|unless|as soon as|after)\b", re.IGNORECASE)
_CALL = re.compile(r"[\s*`\"']*([^\s{(:*`\"']+)[*`\"']*:?[*`\"']*\s*(.*)\Z", re.DOTALL)
_FENCE = re.compile(r"```[\w+-]{0,20}[^\S\n]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_NAME_FIRST = re.compile(r"(?![{\[<`])(?!.*<arg_key>)", re.DOTALL)  # what stands in a tag of this protocol's own
_EXCERPT_LENGTH = 200
CUT_MARK = "\n[cut: too long]"  # ends a text that had to be cut


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
        own = _FUNCTION_PROPERTIES.get(call.name, {}) if self.is_function(call.name) else {}
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
        return self.error(f"function {name!r} needs its {_NATIVE_NEEDS[name]!r} as a string")

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


def signals_completion(text: str) -> bool:
    """Return whether a message without tags says that the task is complete, neither denied nor only announced."""
    for sentence in _SENTENCE_END.split(text):
        phrase = _FINISH_PHRASE.search(sentence)
        if phrase is not None and not _NEGATION.search(sentence) and not _is_announced(sentence, phrase):
            return True
    return has_finish_mark(text)


def has_finish_mark(text: str) -> bool:
    """Return whether a message says `<finish/>`, or `Action: finish` as its first action, and means it now."""
    follows_action = False
    for sentence in _SENTENCE_END.split(text):
        mark = _FINISH_MARK.search(sentence)
        label = _ACTION_LABEL.match(sentence)
        if label is not None and follows_action:
            continue
        follows_action = follows_action or label is not None
        if mark is not None and not _NEGATION.search(sentence, 0, mark.start()):
            conditions = _CONDITION.search(sentence, 0, mark.start()) or _CONDITION_BEHIND.match(sentence, mark.end())
            if conditions is None:
                return True
    return False


def _is_announced(sentence: str, phrase: re.Match[str]) -> bool:
    """Return whether words such as "when" or "will" stand before a phrase in its clause, or a condition behind it."""
    begin = 0
    for clause in _NEW_CLAUSE.finditer(sentence, 0, phrase.start()):
        begin = clause.end()
    since_comma = max(begin, sentence.rfind(",", 0, phrase.start()) + 1)  # "After all that, the task is complete"
    matches = (
        _ANNOUNCEMENT.search(sentence, begin, phrase.start()),
        _CONDITION.search(sentence, since_comma, phrase.start()),
        _CONDITION_BEHIND.match(sentence, phrase.end()),
    )
    return any(match is not None for match in matches)


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


def native_calls(message: Mapping[str, Any]) -> list[Any]:
    """Return the calls of an assistant message: a list, a single one, or the one in the older field."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    single = calls if isinstance(calls, Mapping) and calls else message.get("function_call")
    return [single] if isinstance(single, Mapping) and single else []


def _answer_in(arguments: Mapping[str, Any]) -> str | None:
    """Return the answer that finish was called with, values that are no text as JSON."""
    answer = arguments.get("answer")
    if answer is None or isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False)


def native_text(message: Mapping[str, Any]) -> str:
    """Return an assistant message as JSON text; one that JSON has no form for becomes one that cannot be read."""
    try:
        return _ENCODER.encode(message)
    except (TypeError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return json.dumps({"content": None, "tool_calls": [f"a message that is no JSON ({reason:.{_EXCERPT_LENGTH}})"]})


def native_call(name: str, arguments: Mapping[str, Any] | str) -> ToolCall:
    """Return a call of a function of the environment, without arguments that are the empty object.

    Arguments that JSON has no form for become some that the environment refuses.
    """
    if not isinstance(arguments, str):
        try:
            arguments = _CALL_ENCODER.encode({key: value for key, value in arguments.items() if value != {}})
        except Exception as error:  # whatever the agent's own objects raise when they are written down
            arguments = f"no JSON: {one_line(error)}"
    return ToolCall("call_1", _with_whole_characters(str(name)), _with_whole_characters(arguments))


def _with_whole_characters(text: str) -> str:
    """Return a text as JSON reads it back: two surrogates that belong together are one character."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def call_text(call: ToolCall) -> str:
    """Return the text of a message that makes one call, as `native_text` has it, which is quicker put together."""
    encode = _ENCODER.encode
    return _CALL_MESSAGE.format(encode(call.id), encode(call.name), encode(call.arguments))


def openai_message(call: ToolCall) -> dict[str, Any]:
    """Return the assistant message that makes one call and says nothing else."""
    return {"role": "assistant", "content": None, "tool_calls": [call.to_openai()]}


def finish_message(native: bool, answer: str | None = None) -> str | ToolCall:
    """Return the message that signals completion, with an answer where one is asked for."""
    if native:
        return native_call("finish", {} if answer is None else {"answer": answer})
    return "<finish/>" if answer is None else f"<finish>{answer}</finish>"


def _plain_mapping(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds a {type(value).__name__}")


# Made once: `json.dumps` and `json.loads` with an option make one for every call.
_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain_mapping)
_CALL_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)
_CALL_MESSAGE = (
    '{{"role": "assistant", "content": null, "tool_calls": [{{"id": {}, "type": "function", '
    '"function": {{"name": {}, "arguments": {}}}}}]}}'
)


def decode_native(action: str) -> Mapping[str, Any]:
    """Return an assistant message from its JSON text; a text that is none is an answer without calls."""
    try:
        message = _DECODER.decode(action)
    except (ValueError, RecursionError):
        return {"content": action}
    return message if isinstance(message, dict) else {"content": action}


def call_ids(message: Mapping[str, Any]) -> list[str]:
    """Return the id of each call of an assistant message; empty for what is no call or has no id."""
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in native_calls(message)]
    return [str(call_id) if isinstance(call_id, str | int) else "" for call_id in ids]


def presentable(text: str, longest: int) -> str:
    """Return an observation that lies in the observation space and can be sent anywhere as UTF-8."""
    if len(text) > longest:
        text = text[: longest - len(CUT_MARK)] + CUT_MARK
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def native_answers(text: str, ids: list[str], max_length: int) -> tuple[list[dict[str, str]], str]:
    """Return the messages that answer the calls, the first of which is the answer, and the JSON list of them.

    If that is too long, the last calls are left without an answer, then the text is cut, and says so.
    """
    answers, encoded = _answers(text, ids)
    if len(encoded) <= max_length:
        return answers, encoded
    lengths = itertools.accumulate(len(_answers("ignored", [call_id])[1]) for call_id in ids)
    kept = [call_id for call_id, length in zip(ids, lengths, strict=True) if length <= max_length // 2]
    # A character less in the text is at least one less in its JSON.
    excess = len(_answers(text + CUT_MARK, kept)[1]) - max_length
    return _answers(text[: len(text) - max(excess, 0)] + CUT_MARK, kept)


def _answers(text: str, ids: list[str]) -> tuple[list[dict[str, str]], str]:
    if not ids:
        replies = [{"role": "user", "content": text}]
    else:
        replies = [{"role": "tool", "tool_call_id": ids[0], "content": text}]
        replies += [{"role": "tool", "tool_call_id": call_id, "content": "ignored"} for call_id in ids[1:]]
    return replies, _ANSWER_ENCODER.encode(replies)


def _split_thoughts(text: str) -> tuple[str, str]:
    """Return the thoughts of a message on lines of their own, and the rest."""
    thoughts, visible = split_thoughts(text)
    return "\n".join(thought.strip() for thought in thoughts), visible.strip()


def _read_object(raw: object) -> tuple[dict[str, Any], str | None]:
    """Return the JSON object that was given (none at all is the empty object), or what is wrong with it."""
    try:
        value = unwrapped(raw, _DECODER.decode)
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


_DECODER = json.JSONDecoder(parse_float=finite_number, parse_constant=finite_number)
_ANSWER_ENCODER = json.JSONEncoder(ensure_ascii=False)


_NATIVE_NEEDS = {"tool_search": "query", "tool_info": "name", "tool_call": "name"}
NATIVE_FUNCTIONS = (*_NATIVE_NEEDS, "finish")
_FUNCTION_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    **{name: {need: {"type": "string"}} for name, need in _NATIVE_NEEDS.items()},
    "tool_call": {"name": {"type": "string"}, "parameters": {"type": "object"}},
    "finish": {"answer": {"type": "string"}},
}
WAIT_FUNCTION = "wait"  # understood where the law has a part in which waiting can help


def tool_functions(
    library: ToolLibrary, mode: ParameterMode, answers: bool = False, offers_wait: bool = False
) -> list[dict[str, Any]]:
    """Return each tool of a library as a function of its own, and finish, as OpenAI-compatible endpoints expect them.

    Parameters are only required where calls without them are refused: who checks calls by the schema first would refuse
    what the environment takes.

    A tool whose name cannot be that of a function has another one (`ToolLibrary.function_name`), and its description
    says so.
    """
    functions = [
        {
            "type": "function",
            "function": {
                "name": library.function_name(tool.name),
                "description": _described(tool, library),
                "parameters": parameter_schema(tool, strict=mode == "strict"),
            },
        }
        for tool in library
    ]
    own = ("finish", WAIT_FUNCTION)
    return [
        *functions,
        *(function for function in native_tools(answers, offers_wait) if function["function"]["name"] in own),
    ]


def _described(tool: Tool, library: ToolLibrary) -> str:
    depends = f" Depends on {', '.join(tool.dependencies)}." if tool.dependencies else ""
    named = "" if library.function_name(tool.name) == tool.name else f" This is the tool {tool.name!r}."
    return f"{tool.description}{depends}{named}"


_FINAL_ANSWER = {"type": "string", "description": "The answer alone, in as few words as it takes."}


def native_tools(answers: bool = False, offers_wait: bool = False) -> list[dict[str, Any]]:
    """Return the functions of the native protocol as OpenAI-compatible endpoints expect them, with JSON Schemas.

    With `answers` finish takes one; `wait` is there only if it is offered.
    """
    waiting = [_function(WAIT_FUNCTION, "Let a turn pass without doing anything.", {})] if offers_wait else []
    text = {"type": "string"}
    return [
        _function("tool_search", "Find tools for a need; lists five with their relevance.", {"query": text}),
        _function("tool_info", "Show one tool: parameters, returns, possible errors, dependencies.", {"name": text}),
        _function(
            "tool_call",
            "Execute a tool by its name, with its parameters as an object.",
            {"name": text, "parameters": {"type": "object"}},
            optional=("parameters",),
        ),
        *waiting,
        _function("finish", "Report that the task is complete, with the answer.", {"answer": _FINAL_ANSWER})
        if answers
        else _function("finish", "Report that the task is complete.", {}),
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
