"""Plan-and-Execute's plans: steps, how they refer to results, what becomes of them, and how replies give them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from resilisim.chat.json_answers import LONGEST_READ, NotALiteral, json_value_at, texts_in
from resilisim.policies.llm.agents.react import read_end
from resilisim.policies.llm.reply_reading import (
    EXCERPT_LENGTH,
    Unreadable,
    excerpt,
    read_action,
    read_arguments,
    visible,
)
from resilisim.policies.llm.tools import ToolSpec

# Why a step failed, and whose doing it is.
_COMPONENT_OF_ERROR: Final[Mapping[str, str]] = {
    "arguments": "planner",  # the plan's arguments could not be read, or are none that the tool takes
    "reference": "planner",  # it needs a step that failed, does not exist or comes later
    "resolution_unreadable": "extractor",  # the reply that should have turned references into values
    "resolution_empty": "extractor",  # it could be read, and held no value where one was needed
    "resolution_incomplete": "extractor",  # it lacks an argument, or references are left in it
    "tool": "tool",
    "turns": "planner",  # the environment runs nothing any more
    "executor": "executor",  # the executor came to no result
}

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
_NO_WORDS = " \t\r\n.`*"
_NO_TOOL = ("", "none", "null", "n/a", "no tool")
_TASK_NAMES = ("task", "description", "instruction", "step")
_TOOL_NAMES = ("tool", "tool_name", "action")
_ANSWER_NAMES = ("answer", "final_answer", "response")

# For instance: result_1, output of step 1.
_RESULT = r"(?:results?|outputs?)(?:[\s_.-]{1,2}(?:of|from))?(?:[\s_.-]{1,2}steps?)?[\s_.#-]{1,3}"
_STEP = r"steps?[\s_.#-]{0,3}"
# Everything that begins like a reference is one, so that a misspelt one is noticed and never reaches a tool.
_REFERENCE = re.compile(
    r"\{\s*step(?![a-z])[^{}]{0,100}\}"
    rf"|\{{\s*(?:{_RESULT}|{_STEP})[\[(]?\d[^{{}}]{{0,100}}\}}"
    r"|\{\{[^{}]{0,100}(?<![a-z])steps?(?![a-z])[^{}]{0,100}\}\}"
    rf"|<\s*(?:{_RESULT}|{_STEP})\d[^<>]{{0,40}}>"
    rf"|\$(?:{_RESULT}|{_STEP})\d{{1,4}}(?!\d)",
    re.IGNORECASE,
)
# What stands in brackets may count from 0 or from 1, so it names no step.
_REFERRED = re.compile(rf"\A[{{<$]{{1,2}}\s*(?:{_RESULT}|{_STEP})(\d{{1,4}})(?!\d)", re.IGNORECASE)
_ABSENT: Final[Any] = object()


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a plan, under a number that no other step of the attempt has, by which others refer to it.

    `needs` are the steps whose results it needs; None if the plan does not say, then it is given all there are.
    `arguments` may hold references to results; `problem` says why those of the plan could not be read.
    """

    number: int
    task: str
    needs: tuple[int, ...] | None = None
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    problem: Unreadable | None = None

    @property
    def call(self) -> tuple[str | None, dict[str, Any]]:
        """The tool and what it is passed."""
        return self.tool, dict(self.arguments)

    def does_the_same_as(self, other: PlanStep) -> bool:
        """Tell whether two steps have the same to do, whatever their numbers and the steps that they need."""
        return (self.task, self.call) == (other.task, other.call)

    def to_mapping(self) -> dict[str, Any]:
        """Return the step as JSON values."""
        mapping: dict[str, Any] = {"step": self.number, "task": self.task}
        if self.needs is not None:
            mapping["needs"] = list(self.needs)
        if self.tool is not None:
            mapping |= {"tool": self.tool, "arguments": dict(self.arguments)}
        return mapping

    def to_line(self) -> str:
        """Return the step as one line for a prompt."""
        call = "" if self.tool is None else f" [{self.tool} {json.dumps(dict(self.arguments), ensure_ascii=False)}]"
        needs = "" if not self.needs else f" (needs {', '.join(map(str, self.needs))})"
        return f"{self.number}. {' '.join(self.task.split())}{call}{needs}"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a planner or replanner wrote: steps still to do in their order, or the answer to the whole task."""

    steps: tuple[PlanStep, ...]
    answer: str | None = None


def are_the_same(steps: Sequence[PlanStep], others: Sequence[PlanStep]) -> bool:
    """Tell whether two lists of steps have the same to do and need the same, whatever the numbers in the first."""
    pairs = list(zip(steps, others, strict=False))
    renamed = {step.number: other.number for step, other in pairs}

    def needs(step: PlanStep, names: Mapping[int, int]) -> set[int] | None:
        return None if step.needs is None else {names.get(number, number) for number in step.needs}

    return len(steps) == len(others) and all(
        step.does_the_same_as(other) and needs(step, renamed) == needs(other, {}) for step, other in pairs
    )


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of a step: what it brought, or which kind of failure, what is wrong, and the words in question."""

    step: PlanStep
    result: str = ""
    kind: str = ""
    error: str | None = None  # on one line
    excerpt: str = ""

    @property
    def component(self) -> str:
        """The part of the agent that failed."""
        return _COMPONENT_OF_ERROR[self.kind]

    def to_mapping(self) -> dict[str, Any]:
        """Return step and outcome as JSON values."""
        if self.error is None:
            return {**self.step.to_mapping(), "status": "done", "result": self.result}
        error = {"error": self.error, "kind": self.kind, "excerpt": self.excerpt}
        return {**self.step.to_mapping(), "status": "failed", **error}

    def to_text(self, longest: int) -> str:
        """Return step and outcome for a prompt, the result cut."""
        said = f"Result: {excerpt(self.result, longest)}"
        if self.error is not None:
            said = f"FAILED: {excerpt(self.error, longest)}"
        return f"{self.step.to_line()}\n   {said}"


def failed(step: PlanStep, kind: str, message: str, words: str = "") -> StepOutcome:
    """Return the outcome of a step that failed."""
    return StepOutcome(step, "", kind, " ".join(message.split()), excerpt(words, EXCERPT_LENGTH))


def unusable_step(step: PlanStep, needed: Iterable[int], done: Mapping[int, StepOutcome]) -> StepOutcome | None:
    """Return the failure of a step that needs what is not there; None if all that it needs is there."""
    problems = []
    for number in sorted(set(needed)):
        outcome = done.get(number)
        if outcome is None:
            problems.append(f"step {number}, which has not been done: it does not exist or comes later")
        elif outcome.error is not None:
            problems.append(f"step {number}, which failed ({excerpt(outcome.error, 100)})")
    if not problems:
        return None
    return failed(step, "reference", f"step {step.number} needs " + "; and ".join(problems), step.to_line())


@dataclass(frozen=True, slots=True)
class StepReferences:
    """The references in some arguments, `{step_N}` and what models write instead: `words`, as they are written.

    `numbers` are the steps that are referred to; what is `unclear` looks like a reference and names no step.
    """

    numbers: frozenset[int]
    unclear: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.words)


def step_references_in(value: Any, data: Sequence[str] = ()) -> StepReferences:
    """Return the references in a JSON value, in texts and names at any depth.

    What stands in the `data`, texts of the user and of tools, and only looks like a reference is none.
    """
    references = [match.group() for text, _ in texts_in(value) for match in _REFERENCE.finditer(text)]
    words = [reference for reference in references if not _stands_in(reference, data)]
    named = {reference: _REFERRED.match(reference) for reference in words}
    numbers = frozenset(int(match.group(1)) for match in named.values() if match is not None)
    return StepReferences(numbers, tuple(reference for reference in words if named[reference] is None), tuple(words))


def _stands_in(words: str, data: Sequence[str]) -> bool:
    if not any(words in known for known in data):
        return False
    whole = re.compile(rf"(?<!\w){re.escape(words)}(?!\w)")  # result_1 does not stand in result_10
    return any(whole.search(known) for known in data)


def fill_in(
    given: Any, resolved: Any, of_plan: Sequence[str] = (), of_values: Sequence[str] = ()
) -> tuple[Any, list[str]]:
    """Return a plan's arguments with values in place of references, and what is wrong with them.

    The values are taken from `resolved`, the same arguments as a model wrote them; the rest stays as the plan has it. A
    value is "missing", "empty" or "unresolved" at the path named. What stands in the texts `of_plan`, which whoever
    wrote the plan had, is no reference of the plan, and what stands in those `of_values` none that is left.
    """
    problems: list[str] = []

    def wrong(path: str, problem: str) -> None:
        problems.append(f"{path or 'arguments'}: {problem}")

    def filled(given: Any, resolved: Any, path: str) -> Any:
        if not step_references_in(given, of_plan):
            return given
        if resolved is _ABSENT or (isinstance(given, Mapping) and not isinstance(resolved, Mapping)):
            return wrong(path, "missing")
        if isinstance(given, Mapping):
            return {
                name: filled(entry, resolved.get(name, _ABSENT), f"{path}.{name}" if path else str(name))
                for name, entry in given.items()
            }
        if isinstance(given, list):
            same_length = isinstance(resolved, list) and len(resolved) == len(given)
            return [
                filled(entry, resolved[number] if same_length else _ABSENT, f"{path}[{number}]")
                for number, entry in enumerate(given)
            ]
        if resolved is None or (isinstance(resolved, str) and not resolved.strip()):
            return wrong(path, "empty")
        return wrong(path, "unresolved") if step_references_in(resolved, of_values) else resolved

    return filled(given, resolved, ""), problems


def read_step_plan(text: str, tools: Sequence[ToolSpec], taken: Collection[int] = ()) -> StepPlan | Unreadable:
    """Read what a planner or replanner wrote: JSON, or numbered lines, which may be calls of the tools given.

    A step whose arguments cannot be read is still a step of the plan, and says so; it will fail when its turn comes. An
    answer that is not the end of the reply counts only where there are no steps, and one in the midst of a sentence,
    which may be quoted from anywhere, not at all. `taken` are the numbers of steps that were done.
    """
    shown = visible(text)[:LONGEST_READ]
    loose: StepPlan | None = None
    for value, place in _values(shown):
        if isinstance(value, Unreadable):
            return value
        plan = _plan_from(value, taken)
        if isinstance(plan, Unreadable) or (plan is not None and (plan.steps or place == "end")):
            return plan
        loose = loose or (plan if place == "loose" else None)
    lines = [(int(match.group(1)), match.group(2).strip()) for match in _LINE.finditer(shown)]
    if lines:
        return _numbered([_step_from_line(number, line, tools) for number, line in lines], None, taken, shown)
    if loose is not None:
        return loose
    answer = _ANSWER.search(shown)
    if answer is not None:
        return StepPlan((), shown[answer.end() :].strip(" \t\n*"))
    end = read_end(shown)
    if end is not None:
        return StepPlan((), end.answer)
    problem = "the reply is empty" if not shown else "the reply holds no plan"
    return Unreadable(problem, excerpt(shown))


def _values(text: str) -> Iterator[tuple[Any, Literal["end", "quoted", "loose"]]]:
    """Yield the JSON values of a reply that could be a plan, those in fences first; `Unreadable` for a broken plan.

    With each comes its place: on lines of its own at the reply's end, in the midst of a sentence, or anywhere else.
    """
    fences = itertools.islice(_FENCE.finditer(text), _MOST_ATTEMPTS)
    fenced = [(fence.group(1), not text[fence.end() :].strip()) for fence in fences]
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


def _plan_from(value: Any, taken: Collection[int]) -> StepPlan | Unreadable | None:
    """Return the plan that a JSON list or object is; None if it is none."""
    if isinstance(value, list):
        if not value or not all(isinstance(entry, str) or _looks_like_step(entry) for entry in value):
            return None
        value = {"steps": value}
    listed, answer = _first(value, "steps", "plan", "remaining_steps"), _first(value, *_ANSWER_NAMES)
    if isinstance(answer, str):
        answer = answer.strip() or None
    elif answer is not None:
        answer = json.dumps(answer, ensure_ascii=False)
    if listed is None and answer is None:
        return None
    steps = []
    for entry in _listed([] if listed is None else listed):
        step = _step_from({"task": entry} if isinstance(entry, str) else entry)
        if step is None:
            return Unreadable("a step is neither a text nor an object with a task", excerpt(repr(entry)))
        steps.append(step)
    return _numbered(steps, answer, taken, repr(value))


def _first(entry: Mapping[str, Any], *names: str) -> Any:
    """Return what stands under the first of some names that models use; null stands for nothing."""
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _looks_like_step(entry: Any) -> bool:
    return isinstance(entry, dict) and any(name in entry for name in (*_TASK_NAMES, *_TOOL_NAMES))


def _step_from(entry: Any) -> tuple[int | None, PlanStep] | None:
    """Return a step as a model wrote it, and its number if it has one; None if it has nothing to do."""
    if not isinstance(entry, dict):
        return None
    task, tool = _first(entry, *_TASK_NAMES), _first(entry, *_TOOL_NAMES)
    task = task if isinstance(task, str) and task.strip() else ""
    tool = tool.strip() if isinstance(tool, str) and tool.strip().lower() not in _NO_TOOL else None
    if not task and tool is None:
        return None
    needs = _first(entry, "needs", "depends_on", "dependencies", "requires")
    arguments, problem = _arguments_of(_first(entry, "arguments", "args", "parameters", "input", "action_input"))
    step = PlanStep(0, task or f"Call {tool}", None if needs is None else _numbers_in(needs), tool, arguments, problem)
    return _number_in(_first(entry, "step", "number", "id", "step_id")), step


def _number_in(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    named = _NUMBER.match(value) if isinstance(value, str) else None
    return None if named is None else int(named.group(1))


def _numbers_in(value: Any) -> tuple[int, ...]:
    return tuple(int(digits) for part in _listed(value) for digits in _DIGITS.findall(str(part)))


def _numbered(
    steps: Sequence[tuple[int | None, PlanStep]], answer: str | None, taken: Collection[int], words: str
) -> StepPlan | Unreadable:
    """Return the plan of these steps, numbers checked; steps without one get the next."""
    if len(steps) > MOST_STEPS:
        return Unreadable(f"the plan has {len(steps)} steps: expected at most {MOST_STEPS}", excerpt(words))
    numbered: dict[int, PlanStep] = {}
    latest = max(taken, default=0)
    following = latest + 1
    for stated_number, step in steps:
        number = following if stated_number is None else stated_number
        if number in numbered:
            return Unreadable(f"two steps have the number {number}", excerpt(words))
        if number in taken:
            problem = f"step {number} was done already: other steps have numbers above {latest}"
            return Unreadable(problem, excerpt(words))
        numbered[number] = replace(step, number=number)
        following = number + 1
    return StepPlan(tuple(numbered.values()), answer)


def _step_from_line(number: int, line: str, tools: Sequence[ToolSpec]) -> tuple[int, PlanStep]:
    needed = _NEEDS.search(line)
    needs = None if needed is None else _numbers_in(needed.group(1))
    task = line if needed is None else line[: needed.start()]
    wish = read_action(f"Action: {task}", tools) if tools and _CALL.match(task) else None
    if wish is None or wish.name is None:
        return number, PlanStep(0, task, needs)
    if isinstance(wish, Unreadable):
        return number, PlanStep(0, task, needs, wish.name, problem=wish)
    return number, PlanStep(0, task, needs, wish.name, wish.arguments)


def _arguments_of(value: Any) -> tuple[Mapping[str, Any], Unreadable | None]:
    if value is None or isinstance(value, dict):
        return value or {}, None
    read = read_arguments(value) if isinstance(value, str) else None
    if isinstance(read, dict):
        return read, None
    problem = read.problem if read is not None else "the arguments are no JSON object"
    return {}, Unreadable(problem, excerpt(value if isinstance(value, str) else repr(value)))
