"""Prompts: what an agent reads at the start of an episode. Each type is the baseline, and all but that add one part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.simulator.rules import EndRules
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import ParameterMode
from resilisim.workflows.escaping import escape_line, escape_text, inline_json
from resilisim.workflows.insights import critical_tools
from resilisim.workflows.markdown_plan import render_plan
from resilisim.workflows.mcp_task.writing import render_mcp_task
from resilisim.workflows.prompt_reading import parse_plan, parse_steps, parse_work_order
from resilisim.workflows.templating import PromptTemplates, load_templates, packaged_templates
from resilisim.workflows.types import PlannedStep, Workflow

__all__ = [
    "PLANNED_PROMPT_TYPES",
    "PLAN_FORMATS",
    "PROMPT_TYPES",
    "PlanFormat",
    "PlannedStep",
    "Prompt",
    "Protocol",
    "critical_tools",
    "parse_plan",
    "parse_steps",
    "parse_work_order",
    "render_plan",
    "render_prompt",
]

Protocol = Literal["text", "native"]
PlanFormat = Literal["markdown", "xml"]

PROMPT_TYPES = ("baseline", "chain_of_thought", "optimal", "flawed")
# Types that show a workflow. Both do it by the same templates, so that nothing gives away that a plan is flawed.
PLANNED_PROMPT_TYPES = ("optimal", "flawed")
PLAN_FORMATS: tuple[str, ...] = get_args(PlanFormat)
_FILLED_IN = "those that are left out are filled in"
_PARAMETERS: Mapping[ParameterMode, str] = {
    "lenient": _FILLED_IN,
    "strict": "those that the tool requires must be given",
    "ignore": _FILLED_IN,
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        text: What the agent reads.
        type: One of `PROMPT_TYPES`; where an environment put a flaw in, with the flaw's names ("flawed:tool_misuse").
        planner: Name of the planner whose workflow it shows, None without one.
        workflow: That workflow.
        tools_listed: Whether the names of the library stand in it.
        plan_format: One of `PLAN_FORMATS`, None without a workflow.
        flaw: What is wrong with the workflow (`FlawedWorkflow.flaw_mapping`), None if nothing was done to it.
    """

    text: str
    type: str
    planner: str | None = None
    workflow: Workflow | None = None
    tools_listed: bool = False
    plan_format: str | None = None
    flaw: Mapping[str, Any] | None = None


def render_prompt(
    task: Task,
    prompt_type: str,
    workflow: Workflow | None = None,
    library: ToolLibrary | None = None,
    *,
    plan_format: PlanFormat = "markdown",
    tools_listed: bool = False,
    rules: EndRules | None = None,
    protocol: Protocol = "text",
    parameters: ParameterMode = "lenient",
    templates: PromptTemplates | str | Path | None = None,
) -> Prompt:
    """Render the prompt of a task.

    Args:
        task: The task.
        prompt_type: One of `PROMPT_TYPES`.
        workflow: The plan to show; needed by the types in `PLANNED_PROMPT_TYPES`, not shown by the others.
        library: The tool library; needed with `tools_listed` only.
        plan_format: Whether the plan is shown as Markdown or as an `<mcp_task>` element.
        tools_listed: Whether to put the library's names into the prompt.
        rules: End rules that the prompt states; the benchmark's if omitted.
        protocol: Whether calls are tags in a text or function calls.
        parameters: How the parameters of calls are checked.
        templates: Templates, or a folder of those that replace packaged ones.

    Raises:
        InvalidInputError: An unknown prompt type, plan format or protocol, no workflow where one is needed, an unusable
            template, a workflow that XML cannot show.
    """
    _check("prompt type", prompt_type, PROMPT_TYPES)
    _check("plan format", plan_format, PLAN_FORMATS)
    _check("protocol", protocol, get_args(Protocol))
    if tools_listed and library is None:
        raise InvalidInputError("a prompt that lists the tools needs a library: expected the argument library")
    if templates is None:
        templates = packaged_templates()
    elif not isinstance(templates, PromptTemplates):
        templates = load_templates(templates)
    listed = library if tools_listed else None
    baseline = _render_baseline(templates, task, listed, rules or EndRules(), protocol, parameters)
    if prompt_type not in PLANNED_PROMPT_TYPES:
        reasoning = prompt_type == "chain_of_thought"
        part = "\n\n" + templates.fill(f"chain_of_thought.{protocol}.md", {}) if reasoning else ""
        return Prompt(f"{baseline}{part}\n", prompt_type, tools_listed=tools_listed)
    if workflow is None:
        raise InvalidInputError(f"a prompt of type {prompt_type!r} needs a workflow: expected what a planner returns")
    part = _render_planned(templates, workflow, plan_format)
    return Prompt(f"{baseline}\n\n{part}\n", prompt_type, workflow.planner, workflow, tools_listed, plan_format)


def _check(what: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise unknown_name(what, value, valid)


def _render_planned(templates: PromptTemplates, workflow: Workflow, plan_format: PlanFormat) -> str:
    critical = ", ".join(critical_tools(workflow.steps)) or "none, as no step depends on another"
    values = {
        "critical_tools": escape_line(critical),
        "success_probability": f"{workflow.predicted_success_probability:.3f}",
        "planner": escape_line(workflow.planner),
    }
    if plan_format == "xml":
        return templates.fill("optimal.xml.md", {"mcp_task": render_mcp_task(workflow, templates), **values})
    return templates.fill("optimal.md", {"plan": render_plan(workflow.steps), **values})


def _render_baseline(
    templates: PromptTemplates,
    task: Task,
    listed: ToolLibrary | None,
    rules: EndRules,
    protocol: Protocol,
    parameters: ParameterMode,
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
            "calling_tools": templates.fill(f"calling_tools.{protocol}.md", {"parameters": _PARAMETERS[parameters]}),
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
