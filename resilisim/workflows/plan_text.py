"""A plan as text, and how it is read back: Markdown with numbered steps and details, or one line a step.

Compact lines look so; in terse ones the brackets are left out:

    3 network_validator(data, schema={}, options) after 2, network_fetcher; 2 tries, until 5

In brackets of the compact form stand the parameters, `name=JSON`. A name alone passes what anybody would pass there:
the input of that name; where there is none, `data` and `source` are the result of the step before, all others "as in
the work order". Behind "after" stand the tools that the step depends on, those that are steps by the number of the
first of these. Limits: two tries without success (`max_tries`), and none after the fifth message (`skip_from` is 6).
In all forms a name of a tool that a blank, a comma or the like stands in is written as JSON, in double quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from resilisim.workflows.steps import FLOWING_PARAMETERS, UNSTATED_TEXT, reference
from resilisim.workflows.templating import escape_line, inline_json
from resilisim.workflows.workflow import PlannedStep, Step

QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_PLAIN = re.compile(r"[^\W\d][\w./@+-]*|[A-Za-z0-9][A-Za-z0-9_.-]*")  # names that need no quotes
# A step of a plan is one line; everything that is not ours is escaped so that it cannot look like one.
_STEP_LINE = re.compile(
    rf"^[^\S\n]*\d+\.[^\S\n]+Execute[^\S\n]+`?({QUOTED}|[^\s`\"][^\s`]*)`?[^\S\n]*$", re.MULTILINE | re.IGNORECASE
)
_LISTED = re.compile(rf"{QUOTED}|[^,\s]+")  # a name in a list
_DETAIL_LINE = re.compile(r"^[^\S\n]*-[^\S\n]+(Requires|Parameters|Limit):[^\S\n]*(.*?)[^\S\n]*$", re.MULTILINE)
# The two halves of a limit, as `describe_limits` writes them.
_MAX_TRIES = re.compile(r"\bat most (\d{1,9}) tr(?:y|ies)\b", re.IGNORECASE)
_SKIP_FROM = re.compile(r"\bfrom message (\d{1,9}) on\b", re.IGNORECASE)
_HEADING_LINE = re.compile(r"^#{1,6} ", re.MULTILINE)


def render_plan(steps: Sequence[Step]) -> str:
    """Return the numbered steps of a plan, from which `parse_steps` reads them back."""
    lines: list[str] = []
    for number, step in enumerate(steps, start=1):
        match = "" if step.semantic_match is None else f"{step.semantic_match:.2f}"
        outcome = f"{escape_line(step.expected_outcome)} (confidence {step.confidence:.2f})"
        details = {
            "Reason": escape_line(step.reason),
            "Semantic match": match,
            "Limit": describe_limits(step),
            "Requires": ", ".join(map(written_name, step.requires)),
            "Parameters": inline_json(step.parameters) if step.parameters else "",
            "Alternatives": ", ".join(map(written_name, step.alternatives)),
            "Expected": outcome if step.expected_outcome else "",
        }
        lines.append(f"{number}. Execute {written_name(step.tool)}")
        lines += [f"   - {name}: {text}" for name, text in details.items() if text]
    return "\n".join(lines)


def describe_limits(step: Step) -> str:
    """Return in words when to go on without a step's success; empty if never."""
    tries = "" if step.max_tries is None else f"at most {step.max_tries} {'try' if step.max_tries == 1 else 'tries'}"
    message = "" if step.skip_from is None else f"from message {step.skip_from} on"
    limit = f"{tries}, and none {message}" if tries and message else tries or (message and f"no try {message}")
    return f"{limit}; then go on to the next step without it" if limit else ""


def read_markdown_steps(text: str) -> list[PlannedStep]:
    """Return the steps of the Markdown plan in a text, wherever they stand; empty if it holds none."""
    matches = list(_STEP_LINE.finditer(text))
    if not matches:
        return []
    heading = _HEADING_LINE.search(text, matches[-1].end())
    ends = [match.start() for match in matches[1:]] + [heading.start() if heading else len(text)]
    steps = []
    for match, end in zip(matches, ends, strict=True):
        details = {detail.group(1): detail.group(2) for detail in _DETAIL_LINE.finditer(text, match.end(), end)}
        requires = None
        if "Requires" in details:
            requires = tuple(map(read_name, _LISTED.findall(details["Requires"])))
        limits = (_stated_limit(pattern, details.get("Limit", "")) for pattern in (_MAX_TRIES, _SKIP_FROM))
        parameters, problem = read_stated_parameters(details.get("Parameters", ""))
        steps.append(PlannedStep(read_name(match.group(1)), requires, parameters, problem, *limits))
    return steps


def written_name(name: str) -> str:
    """Return the name of a tool as plans have it: as it is, or in quotes where it would not end with a word."""
    return name if _PLAIN.fullmatch(name) else inline_json(name)


def read_name(text: str) -> str:
    """Return the name of a tool that stands in a plan (`written_name`)."""
    if not text.startswith('"'):
        return text
    try:
        name = json.loads(text)
    except ValueError:
        return text
    return name if isinstance(name, str) else text


def _stated_limit(pattern: re.Pattern[str], text: str, start: int = 0) -> int | None:
    limit = pattern.search(text, start)
    return max(int(limit.group(1)), 1) if limit else None


# Only what stands under these headings is read: text that is not ours cannot look like a heading.
_PLAN = re.compile(r"^## Plan[^\S\n]*\n(.*?)(?=^#{1,6} |\Z)", re.MULTILINE | re.DOTALL)
_INPUTS = re.compile(r"^## Input data[^\S\n]*\n+(\{.*\})[^\S\n]*$", re.MULTILINE)
_STEP = re.compile(rf"^[^\S\n]*(\d+)\.?[^\S\n]+({QUOTED}|[^\s(\"][^\s(]*)\((.*)$", re.MULTILINE)
_TERSE_STEP = re.compile(
    rf"^(\d+) ({QUOTED}|[^\s();\"][^\s();]*)((?: after (?:{QUOTED}|[^;\n\"])+)?(?:; [^\n]+)?)$", re.MULTILINE
)
_NAME = re.compile(r"[^\W\d][\w.-]*")
_REQUIRES = re.compile(rf"\s+after\s+((?:{QUOTED}|[^;\"])*)")
_REQUIRED = re.compile(rf"{QUOTED}|[^,\s][^,]*")
_TRIES = re.compile(r"\b(\d{1,9}) tr(?:y|ies)\b")
_LAST_MESSAGE = re.compile(r"\buntil (\d{1,9})\b")
_DECODER = json.JSONDecoder()


def render_compact_plan(steps: Sequence[Step], inputs: Mapping[str, Any] | None) -> str:
    """Return the lines of a plan, from which `read_compact_steps` reads the steps back; terse without inputs."""
    tools = [step.tool for step in steps]
    lines = []
    for place, step in enumerate(steps):
        line = f"{place + 1} {written_name(step.tool)}"
        if inputs is not None:
            line += f"({_arguments(step.parameters, inputs, tools[place - 1] if place else None)})"
        if step.requires:
            numbers = [str(tools.index(name) + 1) if name in tools else _name(name) for name in step.requires]
            line += f" after {', '.join(numbers)}"
        limits = [] if step.max_tries is None else [f"{step.max_tries} {'try' if step.max_tries == 1 else 'tries'}"]
        limits += [] if step.skip_from is None else [f"until {step.skip_from - 1}"]
        lines.append(line + (f"; {', '.join(limits)}" if limits else ""))
    return "\n".join(lines)


def read_compact_steps(text: str) -> list[PlannedStep]:
    """Return the steps of the compact or terse plan in a prompt; empty if it holds none."""
    section = _PLAN.search(text)
    if section is None:
        return []
    matches = list(_STEP.finditer(section.group(1))) or list(_TERSE_STEP.finditer(section.group(1)))
    inputs = _inputs_in(text)
    tools = {match.group(1): read_name(match.group(2)) for match in matches}
    steps = []
    before: str | None = None
    for match in matches:
        tool, rest = read_name(match.group(2)), match.group(3)
        is_terse = match.re is _TERSE_STEP
        parameters, end, problem = (None, 0, None) if is_terse else _read_arguments(rest, inputs, before)
        requirement = _REQUIRES.match(rest, end) if problem is None else _REQUIRES.search(rest)
        names = [name.strip() for name in _REQUIRED.findall(requirement.group(1))] if requirement else []
        requires = tuple(tools[name] if name in tools else read_name(name) for name in names) or None
        max_tries, last = _stated_limit(_TRIES, rest, end), _LAST_MESSAGE.search(rest, end)
        skip_from = int(last.group(1)) + 1 if last else None
        steps.append(PlannedStep(tool, requires, parameters, problem, max_tries, skip_from))
        before = tool
    return steps


def plan_start(text: str) -> int | None:
    """Return where the plan of a prompt begins, in Markdown or in the compact style; None if it holds none."""
    starts = [match.start() for match in (_STEP_LINE.search(text), _PLAN.search(text)) if match is not None]
    return min(starts, default=None)


def _usual_value(name: str, inputs: Mapping[str, Any], before: str | None) -> Any:
    """Return what a parameter of which only the name is stated is passed."""
    if name in inputs:
        return inputs[name]
    if name in FLOWING_PARAMETERS and before is not None:
        return reference(before, as_object=name == "data")
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


def _inputs_in(text: str) -> dict[str, Any]:
    match = _INPUTS.search(text)
    try:
        value = json.loads(match.group(1)) if match is not None else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_arguments(
    text: str, inputs: Mapping[str, Any], before: str | None
) -> tuple[Mapping[str, Any] | None, int, str | None]:
    """Read what stands between the brackets: the parameters if any, the place behind them, and what is wrong if any."""
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
        # What follows the last bracket still says when the step comes.
        problem = f"the parameters cannot be read ({_reason(error)}): {text[:_EXCERPT_LENGTH]!r}"
        return None, text.rfind(")") + 1, problem
    return parameters or None, place + 1, None


def _skip_spaces(text: str, place: int) -> int:
    while text.startswith(" ", place):
        place += 1
    return place


_EXCERPT_LENGTH = 200


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def read_stated_parameters(text: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """Read the parameters that a plan states: None if there are none to pass; and what is wrong with the text."""
    if not text.strip():
        return None, None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f"the parameters are not valid JSON ({_reason(error)}): {text[:_EXCERPT_LENGTH]!r}"
    if value is not None and not isinstance(value, dict):
        return None, f"the parameters are no JSON object: {text[:_EXCERPT_LENGTH]!r}"
    return value, None
