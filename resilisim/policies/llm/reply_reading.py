"""Reading what models write, with distrust and in linear time: thoughts, actions, JSON.

Nothing here raises for what a model wrote, and nothing is guessed where an argument cannot be read: it is `Unreadable`,
with what is wrong and the words in question. Only replies of models are read, never what tools say.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from resilisim.chat.call_forms import FoundCalls, StrangeCall, calls_at, find_calls, find_form
from resilisim.chat.json_answers import (
    LONGEST_READ,
    NotALiteral,
    json_object_in,
    listed_values,
    object_at,
    without_thoughts,
)
from resilisim.chat.unwrapping import WrittenCall, arguments_object, by_position, calls_of_value, spellings
from resilisim.envs.protocol.completion_signal import has_finish_mark
from resilisim.policies.llm.tools import ToolSpec
from resilisim.provenance import without_surrogates

EXCERPT_LENGTH: Final = 300
LONGEST_THOUGHT: Final = 4_000  # characters of a thought that are kept
LONGEST_WORDS: Final = 2_000  # characters that a conversation keeps of a reply that could not be used
NO_WORDS: Final = "(an empty reply)"

_FLAGS = re.IGNORECASE | re.MULTILINE


def _label(name: str) -> re.Pattern[str]:
    """Return what finds a label: plain, bold with its colon in or outside of the stars, or a heading without one."""
    numbered = rf"{name}(?:[ \t]{{1,5}}\d{{1,3}})?"
    with_colon = rf"[ \t>*#_`-]{{0,20}}{numbered}[ \t*_`]{{0,20}}:(?:\*{{1,3}}|_{{1,3}}(?=\s))?"
    heading = rf"(?:\#{{1,6}}[ \t]{{0,5}}|\*\*|__){numbered}(?:\*\*|__)?[ \t]{{0,20}}$"
    return re.compile(rf"^(?:{with_colon}|{heading})", _FLAGS)


_ACTION = _label("action")
_ACTION_IN_LINE = re.compile(r"\baction:", re.IGNORECASE)
_INPUT = re.compile(_label("(?:action[ \\t_])?(?:input|arguments|parameters|args)").pattern.removeprefix("^"), _FLAGS)
_ANSWER = _label(r"final[ \t]answer")
_OBSERVATION = _label("observation")
_NEXT = _label("(?:thought|action|observation|final[ \\t]answer)")
_LEADING_LABEL = re.compile(r"\A\s{0,20}[*#_]{0,5}thought(?:[ \t]{1,5}\d{1,3})?[*_]{0,5}:[*_ \t]{0,20}", re.IGNORECASE)

_BLOCK = re.compile(
    r"```[\w-]{0,20}[^\S\n]*\n(.*?)(?:```|\Z)|<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL | re.IGNORECASE
)
_TAG = re.compile(r"\s*<tool_call>", re.IGNORECASE)
_FINISH = re.compile(r"<finish>([^<]{0,20000})</finish>", re.IGNORECASE)
_OBJECT_LINE = re.compile(r"^[^\S\n]{0,20}\{", re.MULTILINE)
_MOST_BLOCKS: Final = 16  # fences of a reply that are looked into for an action
_NAME = re.compile(r"[\s*`\"']{0,50}([A-Za-z_][\w.\-]{0,199})[`\"'*]{0,5}")
_GAP = re.compile(r"[^\S\n]*:?\s*")
_FENCE: Final = re.compile(r"\s*```((?:json|python|text|yaml|tool|action|sql)\b|)[^\S\n]*\n?", re.IGNORECASE)
_BEFORE_BRACKET: Final = re.compile(r"\s*(?:[*`]{1,5}\s*)?(?=[{(\[])")


@dataclass(frozen=True, slots=True)
class Action:
    """What a model wants to do: a tool's name, JSON values by parameter name, and what it wrote before."""

    name: str
    arguments: dict[str, Any] = field(hash=False)
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the work, said in a form of its own and not by an action, with an answer that may be empty."""

    answer: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What could not be read: what is wrong, the beginning of the words in question, what the model wrote before."""

    problem: str
    excerpt: str
    name: str | None = None  # the tool that was named, if only its arguments could not be read
    thought: str = ""
    is_strange: bool = False  # whether it looks like a call in a form that is not known


def excerpt(text: str, length: int = EXCERPT_LENGTH) -> str:
    """Return the beginning of a text, with a mark if it is cut, fit to be written down anywhere."""
    cut = text if len(text) <= length else text[: length - 3] + "..."
    return without_surrogates(cut)


def visible(text: str) -> str:
    """Return what a model wrote outside of its `<think>` blocks, which may be unclosed, or closed but never opened."""
    return without_surrogates(without_thoughts(text)).strip()


def kept_words(text: str) -> str:
    """Return what a conversation keeps of a reply that could not be used."""
    return excerpt(visible(text), LONGEST_WORDS) or NO_WORDS


def read_json(text: str, keys: Sequence[str] = ()) -> dict[str, Any] | Unreadable:
    """Find the JSON object that a reply gives, bare, fenced, or with prose around it; it must have the keys."""
    shown = visible(text)
    value = json_object_in(shown, keys)
    return Unreadable(value, excerpt(shown)) if isinstance(value, str) else value


def read_arguments(raw: object) -> dict[str, Any] | Unreadable:
    """Read the arguments of a native call, in whatever wrapping they came; none at all are the empty object."""
    try:
        return arguments_object(raw)
    except NotALiteral as error:
        return Unreadable(f"the arguments are no JSON object: {error}", excerpt(str(raw)))


def read_action(text: str, tools: Sequence[ToolSpec] = ()) -> Action | Unreadable:
    """Find the first action in a reply.

    Read are `Action: NAME {json}`, and what models write instead: bold labels, `NAME[...]`, `NAME(key="value")`, a
    separate line `Action Input:`, fences and backticks, an object that names the tool and stands alone or in the tags
    `<tool_call>`, arguments in tags of the tool's name, `Final Answer:`, `<finish/>`, a bare text for a tool with one
    parameter. What the reply makes up from "Observation:" on is passed over; the `tools` on offer are for arguments
    without names and for tags.
    """
    said = visible(text)[:LONGEST_READ]
    if text.strip() and not said:
        return Unreadable("the reply is empty but for thoughts", excerpt(text.strip()))
    shown = without_invented(said)
    if said.strip() and not shown.strip():
        return Unreadable("the reply begins with an observation, which only the environment makes", excerpt(said))
    marker = _first_marker(shown)
    form = find_calls(shown, functools.partial(_is_meant, tools))
    if isinstance(form, FoundCalls) and form.form.mark and _is_first(form.start, marker, shown):
        action = _from_form(form.calls[0], _thought(shown[: form.start]), tools)
        if isinstance(action, Action):
            return action
    if marker is None:
        return _told(_without_marker(shown, tools), form)
    start, end, kind = marker
    thought = _thought(shown[:start])
    if kind == "answer":
        return Action("finish", {"answer": _region(shown, end).strip(" \t\n*")}, thought)
    action = _action_at(shown, end, thought, tools)
    if kind == "words" and isinstance(action, Unreadable) and action.name is None:
        elsewhere = _without_marker(shown, tools)
        return elsewhere if isinstance(elsewhere, Action) else action
    return _told(action, form)


def _is_first(start: int, marker: tuple[int, int, str] | None, text: str) -> bool:
    """Return whether neither a label nor a tag of a plain name stands before a place."""
    return (marker is None or start < marker[0]) and _TAG.search(text, 0, start) is None


def _told(action: Action | Unreadable, form: FoundCalls | StrangeCall | None) -> Action | Unreadable:
    """Say of a reply without an action what was seen in it that looks like one in another form."""
    if not isinstance(action, Unreadable) or action.name is not None or not isinstance(form, StrangeCall):
        return action
    return replace(action, problem=f"{action.problem}; seen was {form.seen}", is_strange=True)


def _from_form(call: WrittenCall, thought: str, tools: Sequence[ToolSpec]) -> Action | Unreadable:
    """Return the action that a call is, whose name and arguments were read apart."""
    name, spec = _named(call.name[:200], tools)
    try:
        return Action(name, call.arguments_for(_properties_of(spec)), thought)
    except NotALiteral as error:
        arguments = call.arguments
        words = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
        if not words.lstrip().startswith("{") and not call.unnamed:
            with contextlib.suppress(NotALiteral):
                return Action(name, _bare_argument(words, spec), thought)
        return Unreadable(f"the arguments of {name} cannot be read: {error}", excerpt(words), name, thought)


def _is_meant(tools: Sequence[ToolSpec], call: WrittenCall) -> bool:
    """Return whether a call that has no mark is one: of a tool on offer, or of another one with named arguments."""
    has_names = isinstance(call.arguments, Mapping) and bool(call.arguments) and not call.unnamed
    return has_names or _named(call.name, tools)[1] is not None


def _properties_of(spec: ToolSpec | None) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = {} if spec is None else spec.parameters.get("properties", {})
    return properties


def without_invented(text: str) -> str:
    """Return a reply up to the observation that it makes up."""
    invented = _OBSERVATION.search(text)
    return text if invented is None else text[: invented.start()]


def announces_action(text: str) -> bool:
    """Return whether a line of a reply begins with the label of an action."""
    return _ACTION.search(text) is not None


def _first_marker(text: str) -> tuple[int, int, Literal["label", "words", "answer"]] | None:
    """Return where an action is announced: start and end of the words, and how they announce it."""
    action = _ACTION.search(text)
    answer = _ANSWER.search(text)
    if answer is not None and (action is None or answer.start() < action.start()):
        return answer.start(), answer.end(), "answer"
    if action is not None:
        return action.start(), action.end(), "label"
    words = _ACTION_IN_LINE.search(text)
    return None if words is None else (words.start(), words.end(), "words")


def _without_marker(text: str, tools: Sequence[ToolSpec]) -> Action | Unreadable:
    """Read a reply that announces no action: it may be a call all the same, hold one that stands alone, or finish."""
    refused: Unreadable | None = None
    for part, before, is_tagged in _parts(text, tools):
        action: Action | Unreadable | None = None
        if is_tagged or _begins_with_call(part, tools):
            action = _action_at(part, 0, _thought(before), tools)
        else:
            with contextlib.suppress(NotALiteral):
                value, end = object_at(part, 0)
                action = _action_from_object(value, _thought(before), tools) if end == len(part) else None
            if action is None:
                form = find_calls(part, functools.partial(_is_meant, tools))
                if isinstance(form, FoundCalls) and not form.form.mark:
                    action = _from_form(form.calls[0], _thought(before + part[: form.start]), tools)
        if isinstance(action, Action):
            return action
        refused = refused or action
    finish = _finish_in(text)
    if finish is not None:
        return finish
    problem = "the reply is empty" if not text.strip() else "the reply holds no action"
    return refused or Unreadable(problem, excerpt(text), thought=_thought(text))


def _parts(text: str, tools: Sequence[ToolSpec]) -> Iterator[tuple[str, str, bool]]:
    """Yield what may stand for itself, the words before it, and whether it is tagged as a call.

    That is all of the reply, what fills a fence or a tag, a tool's name and what fills the tag of that name, and what
    follows a line that is labelled a thought. An object in the midst of a sentence is only quoted.
    """
    yield text.strip(), "", False
    for block in itertools.islice(_BLOCK.finditer(text), _MOST_BLOCKS):
        is_tagged = block.group(2) is not None
        yield (block.group(2 if is_tagged else 1) or "").strip(), text[: block.start()], is_tagged
    for tool in tools:
        before, opening, rest = text.partition(f"<{tool.name}>")
        filling, closing, _ = rest.partition(f"</{tool.name}>")
        if opening and closing:
            yield f"{tool.name} {filling.strip()}", before, True
    first_line = _OBJECT_LINE.search(text) if _LEADING_LABEL.match(text) else None
    if first_line is not None:
        yield text[first_line.start() :].strip(), text[: first_line.start()], False


def _begins_with_call(text: str, tools: Sequence[ToolSpec]) -> bool:
    """Return whether a text begins with the name of a tool, and with nothing but arguments behind it."""
    named = _NAME.match(text)
    if named is None or _named(named.group(1), tools)[1] is None:
        return False
    rest = text[named.end() :].lstrip()
    return not rest or rest[0] in "{(["


def _finish_in(text: str) -> Action | None:
    """Return the end that `<finish/>` or `<finish>answer</finish>` says, if the reply does not only speak of it."""
    closed = _FINISH.search(text)
    if closed is not None and closed.group(1).strip():
        return Action("finish", {"answer": closed.group(1).strip()}, _thought(text[: closed.start()]))
    return Action("finish", {}, _thought(text)) if has_finish_mark(text) else None


def _action_at(text: str, position: int, thought: str, tools: Sequence[ToolSpec]) -> Action | Unreadable:
    while (form := calls_at(text, position)) is None and (
        opening := _FENCE.match(text, position) or _TAG.match(text, position)
    ) is not None:
        position = opening.end()
    if form is not None:
        return _from_form(form.calls[0], thought, tools)
    begun = text[position : position + 50].lstrip()
    if begun.startswith("{"):
        return _object_action(text, text.index("{", position), thought, tools)
    for bare in ("json", "python") if begun.startswith("[") else ():
        with contextlib.suppress(NotALiteral):
            return _from_form(find_form(bare).read(text, position)[0][0], thought, tools)
    named = _NAME.match(text, position)
    if named is None:
        finish = _finish_in(_region(text, position))
        if finish is not None:
            return replace(finish, thought=thought)
        return Unreadable("the action begins with no name", excerpt(text[position:].strip()), thought=thought)
    return _with_arguments(text, named.end(), *_named(named.group(1), tools), thought)


def _named(name: str, tools: Sequence[ToolSpec]) -> tuple[str, ToolSpec | None]:
    """Return the tool that a name means, whatever its case, and the name as the tool has it."""
    for spelling in spellings(name):
        exact = next((tool for tool in tools if tool.name == spelling), None)
        spec = exact or next((tool for tool in tools if tool.name.lower() == spelling.lower()), None)
        if spec is not None:
            return spec.name, spec
    return name, None


def _object_action(text: str, position: int, thought: str, tools: Sequence[ToolSpec]) -> Action | Unreadable:
    words = excerpt(text[position:])
    try:
        value, _ = object_at(text, position)
    except NotALiteral as error:
        return Unreadable(f"the action is no JSON object: {error}", words, thought=thought)
    action = _action_from_object(value, thought, tools)
    return Unreadable("the object names no action", words, thought=thought) if action is None else action


def _with_arguments(text: str, name_end: int, name: str, spec: ToolSpec | None, thought: str) -> Action | Unreadable:
    gap = _GAP.match(text, name_end)
    start = gap.end() if gap is not None else name_end
    labelled = _INPUT.match(text, start)
    start = start if labelled is None else labelled.end()
    words = _region(text, start)
    if not words.strip():
        return Action(name, {}, thought)
    try:
        return Action(name, _arguments_at(text, start, words, spec, attached=start == name_end), thought)
    except NotALiteral as error:
        if spec is None and labelled is None and words.lstrip()[:1] not in "{([`":
            return Unreadable("the action begins with no tool's name", excerpt(words), thought=thought)
        return Unreadable(f"the arguments of {name} cannot be read: {error}", excerpt(words), name, thought)


def _action_from_object(
    value: Mapping[str, Any], thought: str, tools: Sequence[ToolSpec]
) -> Action | Unreadable | None:
    """Return the action of an object that names a tool and its arguments; None if it names none."""
    calls = calls_of_value(value)
    if not calls or (_named(calls[0].name[:200], tools)[1] is None and calls[0].arguments is None):
        return None
    return _from_form(calls[0], thought, tools)


def _region(text: str, position: int) -> str:
    """Return the text from a position to the next label, such as "Thought:"."""
    following = _NEXT.search(text, position)
    return text[position:] if following is None else text[position : following.start()]


def _thought(text: str) -> str:
    return excerpt(_LEADING_LABEL.sub("", text, count=1).strip().removesuffix("```").strip(), LONGEST_THOUGHT)


def _arguments_at(text: str, start: int, words: str, spec: ToolSpec | None, attached: bool) -> dict[str, Any]:
    """Read the arguments of a call, however they were written, or raise `NotALiteral`.

    They begin at `start` of the reply, and `words` is the reply from there to its next label; `attached` says whether
    they follow the tool's name without a gap.
    """
    fence = _FENCE.match(text, start)
    if fence is not None:
        return _fenced(text, fence.end(), fence.group(1).lower(), spec)
    bracket = _BEFORE_BRACKET.match(text, start)
    if bracket is None:
        return _bare_argument(words, spec)
    if text[bracket.end()] == "{":
        return object_at(text, bracket.end())[0]
    return _listed(text, bracket.end(), words, spec, attached)


def _fenced(text: str, start: int, language: str, spec: ToolSpec | None) -> dict[str, Any]:
    """Read what stands in a fence: an object, or a text such as code for a tool that takes nothing else."""
    closing = text.find("```", start)
    inside = text[start:] if closing < 0 else text[start:closing]
    if inside.lstrip().startswith("{"):
        try:
            value, end = object_at(text, text.index("{", start))
        except NotALiteral:
            if language in ("json", ""):
                raise
        else:
            if language in ("json", "") or not text[end : start + len(inside)].strip():
                return value
    return _bare_argument(inside, spec)


def _listed(text: str, start: int, words: str, spec: ToolSpec | None, attached: bool) -> dict[str, Any]:
    """Read `(...)` or `[...]`: names with values, values in the order of the parameters, or a bare text."""
    opening = text[start]
    closing = {"(": ")", "[": "]"}[opening]
    try:
        positional, named, _ = listed_values(text, start + 1, closing)
        return {**by_position(positional, _properties_of(spec)), **named}
    except NotALiteral:
        if spec is None or _bare_parameter(spec, "x") is None:
            raise
    if not attached:
        return _bare_argument(words, spec)
    inside = words.lstrip()[1:]
    first_line = inside.partition("\n")[0]
    within = first_line if closing in first_line else inside
    end = within.rfind(closing)
    if end < 0:
        raise NotALiteral(f"the opening {opening!r} is never closed")
    return _bare_argument(within[:end], spec)


def _bare_argument(text: str, spec: ToolSpec | None) -> dict[str, Any]:
    """Take a text without a name for the tool's parameter, if it is clear which one is meant."""
    words = text.strip()
    if len(words) > 1 and words[0] == words[-1] and words[0] in "\"'":
        words = words[1:-1]
    parameter = _bare_parameter(spec, words) if spec is not None else None
    if parameter is None:
        raise NotALiteral("expected a JSON object")
    return {parameter: words}


def _bare_parameter(spec: ToolSpec, words: str) -> str | None:
    """Return the parameter that a bare text is for: the only one, or the only needed one if it is a single word."""
    properties = spec.parameters.get("properties", {})
    names = spec.parameter_names
    if len(names) != 1:
        names = spec.required if words and not any(map(str.isspace, words)) else ()
    return names[0] if len(names) == 1 and _is_text(properties.get(names[0], {})) else None


def _is_text(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") in ("string", ["string", "null"])
