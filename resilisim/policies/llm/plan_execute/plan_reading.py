"""Reading plans: JSON, or numbered lines, from a planner that was told how and may write otherwise."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from resilisim.policies.llm.agents.react import read_end
from resilisim.policies.llm.literals import LONGEST_READ, NotALiteral, json_value_at
from resilisim.policies.llm.plan_execute.plan import Plan, PlanStep
from resilisim.policies.llm.reading import Action, Unreadable, excerpt, read_action, read_arguments, visible
from resilisim.policies.llm.tools import ToolSpec

Place = Literal["end", "quoted", "loose"]
MOST_STEPS: Final = 50
_MOST_ATTEMPTS = 16  # places at which a JSON value is looked for

_FENCE = re.compile(r"```[\w-]{0,20}[^\S\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_PLAN_START = re.compile(r"\{\s*[\"'](?:steps|plan|remaining_steps|answer)[\"']|\[\s*\{")
_OPENING = re.compile(r"[\[{]")
_LINE = re.compile(
    r"^[ \t]{0,8}(?:[*-][ \t])?\*{0,2}(?:step[ \t]{1,3})?(\d{1,4})[.):]\*{0,2}[ \t]+(\S.*)$", re.I | re.M
)
_NEEDS = re.compile(r"[ \t]*\(needs?:?([^()]{0,200})\)[ \t]*\Z", re.IGNORECASE)
_ANSWER = re.compile(r"^[*#\s]{0,5}(?:final[ \t])?answer[*]{0,2}:[*]{0,2}", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(r"\s*(?:step|task|[a-z#])?[\s_.-]{0,3}(\d{1,4})[.:)]?\s*\Z", re.IGNORECASE)
_DIGITS = re.compile(r"\d{1,4}")
_CALL = re.compile(r"[A-Za-z_][\w.\-]*[ \t]*[({]")

_STEPS_KEYS = ("steps", "plan", "remaining_steps")
_ANSWER_KEYS = ("answer", "final_answer", "response")
_NUMBER_KEYS = ("step", "number", "id", "step_id")
_TASK_KEYS = ("task", "description", "instruction", "step")
_TOOL_KEYS = ("tool", "tool_name", "action")
_ARGUMENT_KEYS = ("arguments", "args", "parameters", "input", "action_input")
_NEEDS_KEYS = ("needs", "depends_on", "dependencies", "requires")
_NO_WORDS = " \t\r\n.`*"
_NO_TOOL = ("", "none", "null", "n/a", "no tool")


def read_plan(text: str, tools: Sequence[ToolSpec], taken: Collection[int] = ()) -> Plan | Unreadable:
    """Read what a planner or replanner wrote.

    A step whose arguments cannot be read is still a step of the plan, and says so; it will fail when its turn comes. An
    answer that is not the end of the reply counts only where there are no steps, and one in the midst of a sentence,
    which may be quoted from anywhere, not at all.

    Args:
        text: The reply.
        tools: The tools that steps call; empty if steps name none.
        taken: Numbers of the steps that were done, which no step can have.

    Returns:
        The plan, possibly with neither steps nor answer, if the reply says so; or why it cannot be read.
    """
    shown = visible(text)[:LONGEST_READ]
    loose: Plan | None = None
    for value, place in _values(shown):
        if isinstance(value, Unreadable):
            return value
        plan = _plan_from(value, taken)
        if isinstance(plan, Unreadable) or (plan is not None and (plan.steps or place == "end")):
            return plan
        loose = loose or (plan if place == "loose" else None)
    lines = [(int(found.group(1)), found.group(2).strip()) for found in _LINE.finditer(shown)]
    if lines:
        return _plan([_step_from_line(number, line, tools) for number, line in lines], None, taken, shown)
    if loose is not None:
        return loose
    answer = _ANSWER.search(shown)
    if answer is not None:
        return Plan((), shown[answer.end() :].strip(" \t\n*"))
    end = read_end(shown)
    if end is not None:
        return Plan((), end.answer)
    problem = "the reply is empty" if not shown else "the reply holds no plan"
    return Unreadable(problem, excerpt(shown))


def _values(text: str) -> Iterator[tuple[Any, Place]]:
    """Yield the JSON values of a reply that could be a plan, those in fences first; `Unreadable` for a broken plan.

    With each comes its place: on lines of its own at the reply's end, in the midst of a sentence, or anywhere else.
    """
    fenced = [(found.group(1), not text[found.end() :].strip()) for found in _fences(text)]
    for part, ends_reply in [*fenced, (text, True)]:
        position = 0
        for _ in range(_MOST_ATTEMPTS):
            opening = _OPENING.search(part, position)
            if opening is None:
                break
            try:
                value, position = json_value_at(part, opening.start())
            except NotALiteral as error:
                if _PLAN_START.match(part, opening.start()):
                    # What stands inside of a broken plan could be taken for another plan, or for the answer.
                    yield Unreadable(f"the plan is no JSON: {error}", excerpt(part[opening.start() :])), "loose"
                position = opening.end()
            else:
                before = part[: opening.start()].rpartition("\n")[2].strip()
                after = part[position:].strip(_NO_WORDS)
                if ends_reply and not before and not after:
                    yield value, "end"
                else:
                    in_line = part[position:].partition("\n")[0].strip(_NO_WORDS)
                    yield value, "quoted" if before and in_line else "loose"


def _fences(text: str) -> Iterator[re.Match[str]]:
    return itertools.islice(_FENCE.finditer(text), _MOST_ATTEMPTS)


def _plan_from(value: Any, taken: Collection[int]) -> Plan | Unreadable | None:
    """Return the plan that a JSON value is; None if it is none."""
    if isinstance(value, list):
        entries, answer = value, None
        if not entries or not all(isinstance(entry, str) or _looks_like_step(entry) for entry in entries):
            return None
    elif isinstance(value, Mapping):
        found = _first(value, _STEPS_KEYS)
        answer = _answer_of(_first(value, _ANSWER_KEYS))
        if found is None and answer is None:
            return None
        entries = found if isinstance(found, list) else [] if found is None else [found]
    else:
        return None
    steps = [_step_from(entry) for entry in entries]
    unreadable = [entry for entry, step in zip(entries, steps, strict=True) if step is None]
    if unreadable:
        return Unreadable("a step is neither a text nor an object with a task", excerpt(repr(unreadable[0])))
    return _plan([step for step in steps if step is not None], answer, taken, repr(value))


def _looks_like_step(entry: Any) -> bool:
    return isinstance(entry, Mapping) and any(key in entry for key in (*_TASK_KEYS, *_TOOL_KEYS))


def _plan(
    steps: Sequence[tuple[int | None, PlanStep]], answer: str | None, taken: Collection[int], words: str
) -> Plan | Unreadable:
    """Return the plan of these steps, numbers checked; steps without one get the next."""
    if len(steps) > MOST_STEPS:
        return Unreadable(f"the plan has {len(steps)} steps: expected at most {MOST_STEPS}", excerpt(words))
    numbered: dict[int, PlanStep] = {}
    following = 1 + max(taken, default=0)
    for given, step in steps:
        number = following if given is None else given
        if number in numbered:
            return Unreadable(f"two steps have the number {number}", excerpt(words))
        if number in taken:
            problem = f"step {number} was done already: other steps have numbers above {max(taken)}"
            return Unreadable(problem, excerpt(words))
        numbered[number] = PlanStep(number, step.task, step.needs, step.tool, step.arguments, step.problem)
        following = number + 1
    return Plan(tuple(numbered.values()), answer)


def _step_from(entry: Any) -> tuple[int | None, PlanStep] | None:
    if isinstance(entry, str):
        return (None, PlanStep(0, entry.strip())) if entry.strip() else None
    if not isinstance(entry, Mapping):
        return None
    tool = _first(entry, _TOOL_KEYS)
    tool = tool.strip() if isinstance(tool, str) and tool.strip().lower() not in _NO_TOOL else None
    task = next((entry[key] for key in _TASK_KEYS if isinstance(entry.get(key), str) and entry[key].strip()), None)
    if task is None and tool is None:
        return None
    arguments, problem = _arguments_of(_first(entry, _ARGUMENT_KEYS))
    step = PlanStep(0, task or f"Call {tool}", _needs_of(entry), tool, arguments, problem)
    return _number_of(_first(entry, _NUMBER_KEYS)), step


def _step_from_line(number: int, line: str, tools: Sequence[ToolSpec]) -> tuple[int | None, PlanStep]:
    needed = _NEEDS.search(line)
    needs = None if needed is None else tuple(int(digits) for digits in _DIGITS.findall(needed.group(1)))
    task = line if needed is None else line[: needed.start()]
    if not tools or not _CALL.match(task):
        return number, PlanStep(0, task, needs)
    wish = read_action(f"Action: {task}", tools)
    if isinstance(wish, Action):
        return number, PlanStep(0, task, needs, wish.name, wish.arguments)
    if wish.name is None:
        return number, PlanStep(0, task, needs)
    return number, PlanStep(0, task, needs, wish.name, problem=wish)


def _arguments_of(given: Any) -> tuple[Mapping[str, Any], Unreadable | None]:
    if given is None:
        return {}, None
    if isinstance(given, Mapping):
        return given, None
    read = read_arguments(given) if isinstance(given, str) else None
    if isinstance(read, dict):
        return read, None
    problem = read.problem if read is not None else "the arguments are no JSON object"
    return {}, Unreadable(problem, excerpt(given if isinstance(given, str) else repr(given)))


def _needs_of(entry: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = _first(entry, _NEEDS_KEYS)
    if given is None:
        return None
    parts = given if isinstance(given, list) else [given]
    return tuple(int(digits) for part in parts for digits in _DIGITS.findall(str(part)))


def _number_of(given: Any) -> int | None:
    if isinstance(given, bool):
        return None
    if isinstance(given, int):
        return given
    named = _NUMBER.match(given) if isinstance(given, str) else None
    return None if named is None else int(named.group(1))


def _answer_of(given: Any) -> str | None:
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    return given.strip() if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _first(entry: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((entry[key] for key in keys if entry.get(key) is not None), None)
