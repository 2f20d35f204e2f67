"""Reading what models write, with distrust and in linear time: thoughts, actions, JSON.

Nothing here raises for what a model wrote, and nothing is guessed where an argument cannot be read: it is `Unreadable`,
with what is wrong and the words in question. Only replies of models are read, never what tools say.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from resilisim.chat.json_answers import json_object_in
from resilisim.policies.llm.argument_reading import FENCE, arguments_at, bare_argument
from resilisim.policies.llm.literals import (
    LONGEST_READ,
    NotALiteral,
    json_value_at,
    object_at,
    without_surrogates,
)
from resilisim.policies.llm.tools import ToolSpec

EXCERPT_LENGTH: Final = 300
LONGEST_THOUGHT: Final = 4_000  # characters of a thought that are kept

_THOUGHT_TAGS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"</think>", re.IGNORECASE)

_LABEL = r"^[ \t>*#_`-]{0,20}%s(?:[ \t]{1,5}\d{1,3})?[ \t*_]{0,20}:"
_FLAGS = re.IGNORECASE | re.MULTILINE
_ACTION = re.compile(_LABEL % "action", _FLAGS)
_ACTION_IN_LINE = re.compile(r"\baction:", re.IGNORECASE)
_INPUT = re.compile(_LABEL % r"action[ \t_]input", _FLAGS)
_ANSWER = re.compile(_LABEL % r"final[ \t]answer", _FLAGS)
_OBSERVATION = re.compile(_LABEL % "observation", _FLAGS)
_NEXT = re.compile(_LABEL % "(?:thought|action|observation|final[ \t]answer)", _FLAGS)
_LEADING_LABEL = re.compile(r"\A\s{0,20}[*#_]{0,5}thought(?:[ \t]{1,5}\d{1,3})?[*_]{0,5}:[*_ \t]{0,20}", re.IGNORECASE)

_BLOCK = re.compile(
    r"```[\w-]{0,20}[^\S\n]*\n(.*?)(?:```|\Z)|<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL | re.IGNORECASE
)
_OBJECT_LINE = re.compile(r"^[^\S\n]{0,20}\{", re.MULTILINE)
_MOST_BLOCKS: Final = 16  # fences of a reply that are looked into for an action
_NAME = re.compile(r"[\s*`\"']{0,50}([A-Za-z_][\w.\-]{0,199})[`\"'*]{0,5}")
_GAP = re.compile(r"[^\S\n]*:?\s*")

_NAME_KEYS = ("action", "tool", "name", "tool_name", "function")
_ARGUMENT_KEYS = ("action_input", "arguments", "parameters", "args", "input", "tool_input")


@dataclass(frozen=True, slots=True)
class Action:
    """What a model wants to do.

    Attributes:
        name: The tool's name, as the model wrote it.
        arguments: By parameter name, JSON values.
        thought: What it wrote before.
    """

    name: str
    arguments: dict[str, Any] = field(hash=False)
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the work, said in a form of its own and not by an action.

    Attributes:
        answer: The answer, which may be empty.
    """

    answer: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What could not be read.

    Attributes:
        problem: What is wrong, in a few words.
        excerpt: The beginning of the words in question.
        name: The tool that was named, if only its arguments could not be read.
        thought: What the model wrote before.
    """

    problem: str
    excerpt: str
    name: str | None = None
    thought: str = ""


def excerpt(text: str, length: int = EXCERPT_LENGTH) -> str:
    """Return the beginning of a text, with a mark if it is cut, fit to be written down anywhere."""
    cut = text if len(text) <= length else text[: length - 3] + "..."
    return without_surrogates(cut)


def visible(text: str) -> str:
    """Return what a model wrote outside of its `<think>` blocks, which may be unclosed, or closed but never opened."""
    headless = _THOUGHT_END.search(text)
    if headless is not None and "<think>" not in text[: headless.start()].lower():
        text = text[headless.end() :]
    return without_surrogates(_THOUGHT_TAGS.sub("", text)).strip()


def read_json(text: str, keys: Sequence[str] = ()) -> dict[str, Any] | Unreadable:
    """Find the JSON object that a reply gives, bare, fenced, or with prose around it.

    Args:
        text: The reply.
        keys: Names that the object must have.
    """
    shown = visible(text)
    found = json_object_in(shown, keys)
    return Unreadable(found, excerpt(shown)) if isinstance(found, str) else found


def read_arguments(raw: str) -> dict[str, Any] | Unreadable:
    """Read the arguments of a native call; none at all (nothing, or null) are the empty object."""
    if len(raw) > LONGEST_READ:
        return Unreadable(f"more than {LONGEST_READ:,} characters", excerpt(raw))
    if raw.strip() in ("", "null"):
        return {}
    try:
        value, end = object_at(raw, len(raw) - len(raw.lstrip()))
    except NotALiteral as error:
        return Unreadable(f"the arguments are no JSON object: {error}", excerpt(raw))
    if raw[end:].strip():
        return Unreadable("there is more than one JSON object in the arguments", excerpt(raw))
    return value


def read_action(text: str, tools: Sequence[ToolSpec] = ()) -> Action | Unreadable:
    """Find the first action in a reply.

    Read are `Action: NAME {json}`, and what models write instead: `NAME[...]`, `NAME(key="value")`, a separate line
    `Action Input:`, fences, an object that names the tool and stands alone, `Final Answer:`, a bare text for a tool
    with one parameter.

    Args:
        text: The reply; what it says from "Observation:" on is passed over.
        tools: The tools on offer, for arguments without names.
    """
    shown = visible(text)[:LONGEST_READ]
    invented = _OBSERVATION.search(shown)
    if invented is not None:
        shown = shown[: invented.start()]
    marker = _first_marker(shown)
    if marker is None:
        return _without_marker(shown, tools)
    start, end, is_answer = marker
    thought = _thought(shown[:start])
    if is_answer:
        return Action("finish", {"answer": _region(shown, end).strip(" \t\n*")}, thought)
    return _action_at(shown, end, thought, tools)


def _first_marker(text: str) -> tuple[int, int, bool] | None:
    """Return where an action is announced: start and end of the words, and whether they announce an answer."""
    action = _ACTION.search(text)
    answer = _ANSWER.search(text)
    if answer is not None and (action is None or answer.start() < action.start()):
        return answer.start(), answer.end(), True
    found = action or _ACTION_IN_LINE.search(text)
    return None if found is None else (found.start(), found.end(), False)


def _without_marker(text: str, tools: Sequence[ToolSpec]) -> Action | Unreadable:
    """Read a reply that announces no action: it may be one all the same, or an object that names a tool."""
    start = _after_fence(text, 0)
    named = _NAME.match(text, start)
    if named is not None and _named(named.group(1), tools)[1] is not None:
        rest = text[named.end() :].lstrip()
        if not rest or rest[0] in "{([":
            return _action_at(text, 0, "", tools)
    for shape, thought in _objects_alone(text):
        action = _action_from_object(shape, thought, tools)
        if action is not None:
            return action
    problem = "the reply is empty" if not text.strip() else "the reply holds no action"
    return Unreadable(problem, excerpt(text), thought=_thought(text))


def _objects_alone(text: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield objects that stand for themselves, and the words before: one in the midst of a sentence is only quoted.

    That is one that fills a fence or a tag, or one that is all of the reply, but for a line that is labelled a thought.
    """
    blocks = itertools.islice(_BLOCK.finditer(text), _MOST_BLOCKS)
    parts = [(found.group(1) or found.group(2) or "", text[: found.start()]) for found in blocks]
    first_line = _OBJECT_LINE.search(text) if _LEADING_LABEL.match(text) else None
    begin = 0 if first_line is None else first_line.start()
    for part, before in [*parts, (text[begin:], text[:begin])]:
        inside = part.strip()
        try:
            value, end = object_at(inside, 0)
        except NotALiteral:
            continue
        if end == len(inside):
            yield value, _thought(before)


def _action_at(text: str, position: int, thought: str, tools: Sequence[ToolSpec]) -> Action | Unreadable:
    position = _after_fence(text, position)
    begun = text[position : position + 50].lstrip()
    if begun.startswith("{"):
        return _object_action(text, text.index("{", position), thought, tools)
    named = _NAME.match(text, position)
    if named is None:
        return Unreadable("the action begins with no name", excerpt(text[position:].strip()), thought=thought)
    return _with_arguments(text, named.end(), *_named(named.group(1), tools), thought)


def _named(name: str, tools: Sequence[ToolSpec]) -> tuple[str, ToolSpec | None]:
    """Return the tool that a name means, whatever its case, and the name as the tool has it."""
    exact = next((tool for tool in tools if tool.name == name), None)
    spec = exact or next((tool for tool in tools if tool.name.lower() == name.lower()), None)
    return (name, None) if spec is None else (spec.name, spec)


def _object_action(text: str, position: int, thought: str, tools: Sequence[ToolSpec]) -> Action | Unreadable:
    words = excerpt(text[position:])
    try:
        value, _ = object_at(text, position)
    except NotALiteral as error:
        return Unreadable(f"the action is no JSON object: {error}", words, thought=thought)
    action = _action_from_object(value, thought, tools)
    return Unreadable("the object names no action", words, thought=thought) if action is None else action


def _arguments_behind(text: str, position: int) -> tuple[int, bool]:
    """Return where arguments begin behind a tool's name, and whether `Action Input:` announces them."""
    gap = _GAP.match(text, position)
    start = gap.end() if gap is not None else position
    labelled = _INPUT.match(text, text.rfind("\n", 0, start) + 1)
    return (labelled.end(), True) if labelled is not None and labelled.end() > position else (start, False)


def _with_arguments(text: str, name_end: int, name: str, spec: ToolSpec | None, thought: str) -> Action | Unreadable:
    start, labelled = _arguments_behind(text, name_end)
    words = _region(text, start)
    if not words.strip():
        return Action(name, {}, thought)
    try:
        return Action(name, arguments_at(text, start, words, spec, attached=start == name_end), thought)
    except NotALiteral as error:
        if spec is None and not labelled and words.lstrip()[:1] not in "{([`":
            return Unreadable("the action begins with no tool's name", excerpt(words), thought=thought)
        return Unreadable(f"the arguments of {name} cannot be read: {error}", excerpt(words), name, thought)


def _action_from_object(
    value: Mapping[str, Any], thought: str, tools: Sequence[ToolSpec]
) -> Action | Unreadable | None:
    """Return the action of an object that names a tool and its arguments; None if it names none."""
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), None)
    key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    name, spec = _named((name or "").strip()[:200], tools)
    if not name or (key is None and spec is None):
        return None
    given = value.get(key) if key is not None else None
    if given is None:
        return Action(name, {}, thought)
    if isinstance(given, dict):
        return Action(name, given, thought)
    raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    read = read_arguments(raw) if raw.lstrip().startswith("{") else None
    if isinstance(read, dict):
        return Action(name, read, thought)
    try:
        return Action(name, bare_argument(raw, spec), thought)
    except NotALiteral as error:
        problem = read.problem if read is not None else str(error)
        return Unreadable(f"the arguments of {name} cannot be read: {problem}", excerpt(raw), name, thought)


def _after_fence(text: str, position: int) -> int:
    fence = FENCE.match(text, position)
    return position if fence is None else fence.end()


def _region(text: str, position: int) -> str:
    """Return the text from a position to the next label, such as "Thought:"."""
    following = _NEXT.search(text, position)
    return text[position:] if following is None else text[position : following.start()]


def _thought(text: str) -> str:
    return excerpt(_LEADING_LABEL.sub("", text, count=1).strip().removesuffix("```").strip(), LONGEST_THOUGHT)


__all__ = [
    "EXCERPT_LENGTH",
    "Action",
    "Unreadable",
    "excerpt",
    "json_value_at",
    "read_action",
    "read_arguments",
    "read_json",
    "visible",
]
