"""Arguments passed by reference: "result of step 2" in a plan's parameters, and which steps can then not be done.

A parameter refers to a step by its number: as a text, "result of step 2", or as an object, `{"result_of": "step 2"}`,
where an object is wanted; alone, or anywhere within the value. Whoever carries out a plan puts a result there. Where it
cannot, because nothing can be read out of the reference or the step does not exist, comes later or was not done, the
call is not made. A reference by a tool's name, "result of network_fetcher", is words that are passed on as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from resilisim.tasks import Task
from resilisim.workflows.steps import RESULT_KEY, RESULT_TEXT, reference
from resilisim.workflows.workflow import Workflow

STEP_WORD = "step "
_NUMBER = r"\d{1,4}"
# What begins like a reference is one, so that a misspelt one is noticed: "result of {step_2". A tool may be called
# step_counter, so nothing of a name follows.
_WRITTEN = re.compile(rf"{RESULT_TEXT.strip()}[\s{{<\[]*step[\s_#.-]*(?:{_NUMBER})?[}}>\]]*(?!\w)", re.IGNORECASE)
_READABLE = re.compile(rf"{RESULT_TEXT}{STEP_WORD}({_NUMBER})")
_NAMED = re.compile(rf"[\s{{<\[]*step[\s_#.-]*(?:{_NUMBER})?[}}>\]\s]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ArgumentReference:
    """One reference in a parameter's value.

    Attributes:
        words: As it is written.
        number: Number of the step that it names, from 1; None if it names none that can be read.
        is_whole: Whether the value is the reference and nothing else.
    """

    words: str
    number: int | None
    is_whole: bool


def step_reference(number: int, as_object: bool) -> Any:
    """Return what passes on the result of a step."""
    return reference(f"{STEP_WORD}{number}", as_object)


def argument_references(value: Any, data: Sequence[str] = ()) -> list[ArgumentReference]:
    """Return the references to steps in a parameter's value, at any depth.

    What stands in the `data`, texts that the plan was not written for, and only looks like a reference is none.
    """
    return [found for found in _references(value, True) if not any(found.words in text for text in data)]


def _references(value: Any, is_whole: bool) -> Iterator[ArgumentReference]:
    if isinstance(value, str):
        for match in _WRITTEN.finditer(value):
            readable = _READABLE.fullmatch(match.group())
            number = None if readable is None else int(readable.group(1))
            yield ArgumentReference(match.group(), number, is_whole and match.group() == value)
    elif isinstance(value, Mapping) and list(value) == [RESULT_KEY]:
        named = value[RESULT_KEY]
        words = json.dumps(dict(value), ensure_ascii=False)
        if not isinstance(named, str):
            yield ArgumentReference(words, None, is_whole)
        elif _NAMED.fullmatch(named):
            readable = _READABLE.fullmatch(RESULT_TEXT + named)
            yield ArgumentReference(words, None if readable is None else int(readable.group(1)), is_whole)
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _references(part, False)


def undone_steps(parameters: Sequence[Mapping[str, Any] | None], data: Sequence[str] = ()) -> dict[int, str]:
    """Return the steps of a plan that cannot be done because of what their parameters refer to, and why.

    Args:
        parameters: Of each step; None for none.
        data: As in `argument_references`.

    Returns:
        By index, from 0, in the order of the steps.
    """
    undone: dict[int, str] = {}
    for index, values in enumerate(parameters):
        for name, value in (values or {}).items():
            for found in argument_references(value, data):
                problem = _problem(found, index, len(parameters), undone)
                if problem is not None:
                    undone.setdefault(index, f"{name!r} {problem}")
    return undone


def _problem(found: ArgumentReference, index: int, num_steps: int, undone: Mapping[int, str]) -> str | None:
    number = found.number
    if number is None:
        return f"holds {found.words[:100]}, which names no step"
    if not 1 <= number <= num_steps:
        return f"refers to step {number}, which does not exist"
    if number == index + 1:
        return f"refers to step {number}, which is the step itself"
    if number > index:
        return f"refers to step {number}, which comes later"
    return f"refers to step {number}, which is not done" if number - 1 in undone else None


def mended_references(
    parameters: Sequence[Mapping[str, Any] | None], tools: Sequence[str], data: Sequence[str] = ()
) -> list[Mapping[str, Any] | None]:
    """Return the parameters of a plan's steps, with the result of the step before in place of what is not there.

    The first step, which has none before it, goes without such a parameter.

    Args:
        parameters: Of each step; None for none.
        tools: Of each step.
        data: As in `argument_references`.
    """
    mended = list(parameters)
    for index, values in enumerate(parameters):
        if values is None:
            continue
        kept: dict[str, Any] = {}
        for name, value in values.items():
            found = argument_references(value, data)
            # What comes before is done, as it is mended already.
            if all(_problem(each, index, len(mended), {}) is None for each in found):
                kept[name] = value
            elif index:
                kept[name] = reference(tools[index - 1], as_object=not isinstance(value, str))
        mended[index] = kept
    return mended


def texts_of(task: Task) -> tuple[str, ...]:
    """Return the texts of a task that no plan was written for: what looks like a reference there is none."""
    return task.description, json.dumps(dict(task.inputs), ensure_ascii=False)


def by_number(workflow: Workflow) -> Workflow:
    """Return a workflow whose parameters refer to earlier steps by number where they did so by the tool's name."""
    numbered = numbered_parameters(workflow.tools, [step.parameters for step in workflow.steps], is_later_named=False)
    pairs = zip(workflow.steps, numbered, strict=True)
    steps = [step if values == step.parameters else replace(step, parameters=values) for step, values in pairs]
    return replace(workflow, steps=tuple(steps))


def numbered_parameters(
    tools: Sequence[str], parameters: Sequence[Mapping[str, Any] | None], is_later_named: bool = True
) -> list[dict[str, Any]]:
    """Return the parameters of a plan's steps with references by number where a step's tool was named.

    Args:
        tools: Of each step.
        parameters: Of each step; None for none.
        is_later_named: Whether a tool that only later steps run is given the number of the first of these, too.
    """
    later = {tool: number for number, tool in reversed([*enumerate(tools, start=1)])} if is_later_named else {}
    earlier: dict[str, int] = {}
    numbered = []
    for number, (tool, values) in enumerate(zip(tools, parameters, strict=True), start=1):
        own = dict(values or {})
        for name, value in own.items():
            referred = referred_tool(value)
            named = earlier.get(referred, later.get(referred)) if referred is not None else None
            if named is not None:
                own[name] = step_reference(named, as_object=not isinstance(value, str))
        numbered.append(own)
        earlier[tool] = number
    return numbered


def rewritten(value: Any, write: Callable[[ArgumentReference, bool], str], data: Sequence[str] = ()) -> Any:
    """Return a value with its references as somebody else writes them.

    Args:
        value: A parameter's value.
        write: What to write for a reference, told whether it stands for an object.
        data: As in `argument_references`.
    """
    if isinstance(value, str):

        def word(match: re.Match[str]) -> str:
            found = argument_references(match.group(), data)
            return write(found[0], False) if found else match.group()

        return _WRITTEN.sub(word, value)
    if isinstance(value, Mapping):
        found = argument_references(value, data) if list(value) == [RESULT_KEY] else []
        if found and found[0].is_whole:
            return write(found[0], True)
        return {name: rewritten(part, write, data) for name, part in value.items()}
    return [rewritten(part, write, data) for part in value] if isinstance(value, list | tuple) else value


def referred_tool(value: Any) -> str | None:
    """Return the tool whose result a parameter's value refers to, or None if it refers to none."""
    if isinstance(value, str) and value.startswith(RESULT_TEXT):
        return value.removeprefix(RESULT_TEXT)
    if isinstance(value, Mapping) and list(value) == [RESULT_KEY]:
        return str(value[RESULT_KEY])
    return None
