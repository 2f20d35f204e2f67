"""Prompts: what an agent reads at the start of an episode, and how to read a plan out of it again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.simulator.rules import EndRules
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.escaping import escape_line, escape_text, inline_json, unescape_text
from resilisim.workflows.templating import PromptTemplates, load_templates, packaged_templates
from resilisim.workflows.types import Step, Workflow

PROMPT_TYPES = ("baseline", "optimal")
# Types that show a workflow.
PLANNED_PROMPT_TYPES = ("optimal",)

Protocol = Literal["text", "native"]

# A step of a plan is one line; everything that is not ours is escaped so that it cannot look like one.
_STEP_LINE = re.compile(r"^[^\S\n]*\d+\.[^\S\n]+Execute[^\S\n]+`?([^\s`]+)`?[^\S\n]*$", re.MULTILINE | re.IGNORECASE)
_DETAIL_LINE = re.compile(r"^[^\S\n]*-[^\S\n]+(Requires|Parameters):[^\S\n]*(.*?)[^\S\n]*$", re.MULTILINE)
_HEADING_LINE = re.compile(r"^#{1,6} ", re.MULTILINE)
_WORK_ORDER = re.compile(r"^## Work order[^\S\n]*\n(.*?)(?=^#{1,6} |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        text: What the agent reads.
        type: One of `PROMPT_TYPES`.
        planner: Name of the planner whose workflow it shows, None without one.
        workflow: That workflow.
        tools_listed: Whether the names of the library stand in it.
    """

    text: str
    type: str
    planner: str | None = None
    workflow: Workflow | None = None
    tools_listed: bool = False


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step as a reader finds it in a prompt.

    Attributes:
        tool: The tool to run.
        requires: The tools that the prompt says it depends on; None if it says nothing.
        parameters: Parameters to pass, as the prompt gives them; None if it gives none that can be read.
    """

    tool: str
    requires: tuple[str, ...] | None = None
    parameters: Mapping[str, Any] | None = None


def render_prompt(
    task: Task,
    prompt_type: str,
    workflow: Workflow | None = None,
    library: ToolLibrary | None = None,
    *,
    tools_listed: bool = False,
    rules: EndRules | None = None,
    protocol: Protocol = "text",
    templates: PromptTemplates | str | Path | None = None,
) -> Prompt:
    """Render the prompt of a task.

    Args:
        task: The task.
        prompt_type: One of `PROMPT_TYPES`.
        workflow: The plan to show; needed by the types in `PLANNED_PROMPT_TYPES`, not shown by the others.
        library: The tool library; needed with `tools_listed` only.
        tools_listed: Whether to put the library's names into the prompt.
        rules: End rules that the prompt states; the benchmark's if omitted.
        protocol: Whether calls are tags in a text or function calls.
        templates: Templates, or a folder of those that replace packaged ones.

    Raises:
        InvalidInputError: An unknown prompt type, no workflow where one is needed, an unusable template.
    """
    if prompt_type not in PROMPT_TYPES:
        raise unknown_name("prompt type", prompt_type, PROMPT_TYPES)
    if templates is None:
        templates = packaged_templates()
    elif not isinstance(templates, PromptTemplates):
        templates = load_templates(templates)
    text = _render_baseline(templates, task, library if tools_listed else None, rules or EndRules(), protocol)
    if tools_listed and library is None:
        raise InvalidInputError("a prompt that lists the tools needs a library: expected the argument library")
    if prompt_type not in PLANNED_PROMPT_TYPES:
        return Prompt(text + "\n", prompt_type, tools_listed=tools_listed)
    if workflow is None:
        raise InvalidInputError(f"a prompt of type {prompt_type!r} needs a workflow: expected what a planner returns")
    plan = templates.fill(
        f"{prompt_type}.md",
        {
            "plan": render_plan(workflow.steps),
            "critical_tools": ", ".join(critical_tools(workflow.steps)) or "none, as no step depends on another",
            "success_probability": f"{workflow.predicted_success_probability:.3f}",
            "planner": escape_line(workflow.planner),
        },
    )
    return Prompt(f"{text}\n\n{plan}\n", prompt_type, workflow.planner, workflow, tools_listed)


def render_plan(steps: Sequence[Step]) -> str:
    """Return the numbered steps of a plan, from which `parse_steps` reads them back."""
    lines: list[str] = []
    for number, step in enumerate(steps, start=1):
        lines.append(f"{number}. Execute {step.tool}")
        if step.reason:
            lines.append(f"   - Reason: {escape_line(step.reason)}")
        if step.requires:
            lines.append(f"   - Requires: {', '.join(step.requires)}")
        if step.parameters:
            lines.append(f"   - Parameters: {inline_json(step.parameters)}")
        if step.alternatives:
            lines.append(f"   - Alternatives: {', '.join(step.alternatives)}")
        if step.expected_outcome:
            lines.append(f"   - Expected: {escape_line(step.expected_outcome)} (confidence {step.confidence:.2f})")
    return "\n".join(lines)


def parse_plan(text: str) -> list[str]:
    """Return the tools of the plan in a prompt, in order; empty if it holds no plan."""
    return [match.group(1) for match in _STEP_LINE.finditer(text)]


def parse_steps(text: str) -> list[PlannedStep]:
    """Return the steps of the plan in a prompt, with what the prompt says about each; empty if it holds no plan."""
    matches = list(_STEP_LINE.finditer(text))
    if not matches:
        return []
    heading = _HEADING_LINE.search(text, matches[-1].end())
    ends = [match.start() for match in matches[1:]] + [heading.start() if heading else len(text)]
    steps = []
    for match, end in zip(matches, ends, strict=True):
        requires: tuple[str, ...] | None = None
        parameters: Mapping[str, Any] | None = None
        for detail in _DETAIL_LINE.finditer(text, match.end(), end):
            if detail.group(1) == "Requires":
                requires = tuple(name for name in re.split(r"[,\s]+", detail.group(2)) if name)
            else:
                parameters = _read_object(detail.group(2))
        steps.append(PlannedStep(match.group(1), requires, parameters))
    return steps


def parse_work_order(text: str) -> str:
    """Return the description of the task in a prompt; the whole text if it has no section for it (own templates)."""
    match = _WORK_ORDER.search(text)
    return unescape_text(match.group(1)).strip() if match is not None else text.strip()


def critical_tools(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the tools of a plan that a later step depends on directly, in plan order."""
    critical = []
    for place, step in enumerate(steps):
        if step.tool not in critical and any(step.tool in later.requires for later in steps[place + 1 :]):
            critical.append(step.tool)
    return tuple(critical)


def _render_baseline(
    templates: PromptTemplates, task: Task, listed: ToolLibrary | None, rules: EndRules, protocol: Protocol
) -> str:
    finding = templates.fill(f"finding_tools.{protocol}.md", {})
    if listed is not None:
        names = "\n".join(f"- {name}" for name in listed.names)
        finding += "\n\n" + templates.fill("tools_listed.md", {"names": names})
    return templates.fill(
        "baseline.md",
        {
            "work_order": escape_text(task.description.strip()),
            "input_data": _render_values(task.inputs),
            "expected_output": _render_values(task.expected_outputs),
            "finding_tools": finding,
            "calling_tools": templates.fill(f"calling_tools.{protocol}.md", {}),
            "limits": _render_limits(rules, task.constraints),
            "task_type": escape_line(task.task_type),
        },
    )


def _render_values(values: Mapping[str, Any]) -> str:
    if not values:
        return "- none given"
    return "\n".join(f"- {escape_line(str(name))}: {inline_json(value)}" for name, value in values.items())


def _render_limits(rules: EndRules, constraints: Mapping[str, Any]) -> str:
    failures, loop = rules.max_consecutive_failures, rules.loop_length
    lines = [
        f"- You have {rules.max_turns} messages. Each one uses a turn, whatever it holds.",
        "- After the last of them there is a closing message, which can report completion but runs nothing.",
    ]
    if failures:
        lines.append(f"- The work ends when {failures} tool runs have failed without a successful one between them.")
    if loop:
        lines.append(f"- It also ends when {loop} messages in a row are the same and bring nothing new.")
        lines.append("- Running a tool again that has not succeeded yet always counts as something new.")
    if constraints:
        lines.append("- Constraints of the work order: " + inline_json(constraints))
    return "\n".join(lines)


def _read_object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
