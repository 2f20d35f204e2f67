"""A plan in few words: one line a step, and how it is read back.

    3 network_validator(data, schema={}, options) after 2, network_fetcher; 2 tries, until 5

In brackets stand the parameters, `name=JSON`. A name alone passes what anybody would pass there: the input of that
name; where there is none, `data` and `source` are the result of the step before, all others "as in the work order".
Behind "after" stand the tools that the step depends on, those that are steps by the number of the first of these.
Limits: two tries without success (`max_tries`), and none after the fifth message (`skip_from` is 6).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from resilisim.workflows.escaping import escape_line, inline_json
from resilisim.workflows.parameters import FLOWING_PARAMETERS, UNSTATED_TEXT
from resilisim.workflows.types import PlannedStep, Step

# Only what stands under these headings is read: text that is not ours cannot look like a heading.
_PLAN = re.compile(r"^## Plan[^\S\n]*\n(.*?)(?=^#{1,6} |\Z)", re.MULTILINE | re.DOTALL)
_INPUTS = re.compile(r"^## Input data[^\S\n]*\n+(\{.*\})[^\S\n]*$", re.MULTILINE)
_STEP = re.compile(r"^[^\S\n]*(\d+)\.?[^\S\n]+([^\s(]+)\((.*)$", re.MULTILINE)
_NAME = re.compile(r"[^\W\d][\w.-]*")
_REQUIRES = re.compile(r"\s+after\s+([^;]*)")
_TRIES = re.compile(r"\b(\d{1,9}) tr(?:y|ies)\b")
_LAST_MESSAGE = re.compile(r"\buntil (\d{1,9})\b")
_DECODER = json.JSONDecoder()


def render_compact_plan(steps: Sequence[Step], inputs: Mapping[str, Any]) -> str:
    """Return the lines of a plan, from which `read_compact_steps` reads the steps back.

    Args:
        steps: The steps.
        inputs: The task's inputs, which the prompt shows.
    """
    tools = [step.tool for step in steps]
    lines = []
    for place, step in enumerate(steps):
        before = tools[place - 1] if place else None
        line = f"{place + 1} {escape_line(step.tool)}({_arguments(step.parameters, inputs, before)})"
        if step.requires:
            numbers = [str(tools.index(name) + 1) if name in tools else _name(name) for name in step.requires]
            line += f" after {', '.join(numbers)}"
        limits = [] if step.max_tries is None else [f"{step.max_tries} {'try' if step.max_tries == 1 else 'tries'}"]
        limits += [] if step.skip_from is None else [f"until {step.skip_from - 1}"]
        lines.append(line + (f"; {', '.join(limits)}" if limits else ""))
    return "\n".join(lines)


def read_compact_steps(text: str) -> list[PlannedStep]:
    """Return the steps of the compact plan in a prompt; empty if it holds none."""
    section = _PLAN.search(text)
    matches = list(_STEP.finditer(section.group(1))) if section is not None else []
    if not matches:
        return []
    inputs = _inputs_in(text)
    tools = {match.group(1): match.group(2) for match in matches}
    steps = []
    before: str | None = None
    for match in matches:
        tool, rest = match.group(2), match.group(3)
        parameters, end, problem = _read_arguments(rest, inputs, before)
        requires = _REQUIRES.match(rest, end) if problem is None else _REQUIRES.search(rest)
        names = [name.strip() for name in requires.group(1).split(",")] if requires else []
        tries, last = _TRIES.search(rest, end), _LAST_MESSAGE.search(rest, end)
        steps.append(
            PlannedStep(
                tool,
                tuple(tools[name] if name in tools else _unquoted(name) for name in names) or None,
                parameters,
                problem,
                max(int(tries.group(1)), 1) if tries else None,
                int(last.group(1)) + 1 if last else None,
            )
        )
        before = tool
    return steps


def _usual_value(name: str, inputs: Mapping[str, Any], before: str | None) -> Any:
    """Return what a parameter of which only the name is stated is passed."""
    if name in inputs:
        return inputs[name]
    if name in FLOWING_PARAMETERS and before is not None:
        return {"result_of": before} if name == "data" else f"result of {before}"
    return UNSTATED_TEXT


def _arguments(parameters: Mapping[str, Any], inputs: Mapping[str, Any], before: str | None) -> str:
    parts = []
    for name, value in parameters.items():
        written = inline_json(value)
        # As texts, because True equals 1 and 1.0.
        usual = written == inline_json(_usual_value(name, inputs, before))
        parts.append(_name(name) if usual else f"{_name(name)}={written}")
    return ", ".join(parts)


def _name(name: str) -> str:
    return name if _NAME.fullmatch(name) else inline_json(name)


def _unquoted(name: str) -> str:
    return str(json.loads(name)) if re.fullmatch(r'"[^"\\]*"', name) else name


def _inputs_in(text: str) -> dict[str, Any]:
    found = _INPUTS.search(text)
    try:
        value = json.loads(found.group(1)) if found is not None else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_arguments(
    text: str, inputs: Mapping[str, Any], before: str | None
) -> tuple[Mapping[str, Any] | None, int, str | None]:
    """Read what stands between the brackets.

    Returns:
        The parameters (None if there are none to pass), the place behind the closing bracket, and what is wrong with
        the text (None if nothing is).
    """
    parameters: dict[str, Any] = {}
    place = 0
    try:
        while not text.startswith(")", place):
            if parameters:
                if not text.startswith(",", place):
                    raise ValueError("expected a comma")
                place = _skip_spaces(text, place + 1)
            if text.startswith('"', place):
                name, place = _DECODER.raw_decode(text, place)
            else:
                match = _NAME.match(text, place)
                if match is None:
                    raise ValueError("expected the name of a parameter")
                name, place = match.group(), match.end()
            if text.startswith("=", place):
                parameters[name], place = _DECODER.raw_decode(text, place + 1)
            else:
                parameters[name] = _usual_value(name, inputs, before)
            place = _skip_spaces(text, place)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        # What follows the last bracket still says when the step comes.
        return None, text.rfind(")") + 1, f"the parameters cannot be read ({reason}): {text[:200]!r}"
    return parameters or None, place + 1, None


def _skip_spaces(text: str, place: int) -> int:
    while text.startswith(" ", place):
        place += 1
    return place
