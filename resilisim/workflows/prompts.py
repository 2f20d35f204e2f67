"""Prompts: what an agent reads at the start of an episode, and how plan and work order are read out of it again.

Each type is the baseline, and all but that add one part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.seeding import Draws
from resilisim.simulator.end_rules import EndRules
from resilisim.tasks import Task
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import ParameterMode
from resilisim.workflows.flaws import FLAW_TYPES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import DEFAULT_SEVERITY, FlawRefusal, check_flaw
from resilisim.workflows.mcp_task import mcp_task_start, read_mcp_task_steps, render_mcp_task
from resilisim.workflows.plan_text import (
    plan_start,
    read_compact_steps,
    read_markdown_steps,
    render_compact_plan,
    render_plan,
)
from resilisim.workflows.templating import (
    PromptTemplates,
    escape_line,
    escape_text,
    inline_json,
    load_templates,
    packaged_templates,
    unescape_text,
)
from resilisim.workflows.workflow import PlannedStep, Workflow, critical_tools

# Tags in a text, the functions tool_search, tool_info, tool_call and finish, or each tool a function of its own.
Calling = Literal["text", "native", "functions"]
# How completion is signalled, in words; with "answer" it is given in the tag.
FINISH_FORMS: Mapping[str, str] = {
    "text": "<finish/>",
    "answer": "<finish>answer</finish>",
    "native": "the function finish",
    "functions": "the function finish",
}
PlanFormat = Literal["markdown", "xml"]
PromptStyle = Literal["full", "compact", "terse"]

PROMPT_TYPES = ("baseline", "chain_of_thought", "optimal", "flawed")
# Types that show a workflow. Both do it by the same templates, so that nothing gives away that a plan is flawed.
PLANNED_PROMPT_TYPES = ("optimal", "flawed")
PLAN_FORMATS: tuple[str, ...] = get_args(PlanFormat)
PROMPT_STYLES: tuple[str, ...] = get_args(PromptStyle)
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
        plan_format: One of `PLAN_FORMATS`, or "compact" or "terse"; None without a workflow.
        flaw: What is wrong with the workflow (`FlawedWorkflow.flaw_mapping`), None if nothing was done to it.
        work: The text without what it says about finding and calling tools, for agents that have their own way of
            calling, which it would mislead; None where nobody has told it apart.
    """

    text: str
    type: str
    planner: str | None = None
    workflow: Workflow | None = None
    tools_listed: bool = False
    plan_format: str | None = None
    flaw: Mapping[str, Any] | None = None
    work: str | None = None


def render_prompt(
    task: Task,
    prompt_type: str,
    workflow: Workflow | None = None,
    library: ToolLibrary | None = None,
    *,
    plan_format: PlanFormat = "markdown",
    tools_listed: bool = False,
    rules: EndRules | None = None,
    protocol: Calling = "text",
    style: PromptStyle = "full",
    parameters: ParameterMode = "lenient",
    answers: bool = False,
    offers_wait: bool = False,
    once: Sequence[str] = (),
    finish: str | None = None,
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
        protocol: Whether calls are tags in a text, calls of the functions tool_search, tool_info, tool_call and finish
            ("native"), or calls of tools as functions of their own ("functions").
        style: "full", or "compact": the same in few words, for small models, with plans in a form of its own. "terse"
            is a line of instructions, the work order, and names of tools: nothing of parameters.
        parameters: How the parameters of calls are checked.
        answers: Whether an answer is asked for, as in worlds, where calls really do something.
        offers_wait: Whether to say how a turn is let pass, for laws in which that can help.
        once: Tools that must not run twice, which the limits name: who breaks a rule has to have been told of it.
        finish: How completion is signalled, in words, if not as the protocol has it.
        templates: Templates, or a folder of those that replace packaged ones.

    Raises:
        InvalidInputError: An unknown prompt type, plan format, protocol or style, no workflow where one is needed, an
            unusable template, a workflow that XML cannot show.
    """
    _check("prompt type", prompt_type, PROMPT_TYPES)
    _check("plan format", plan_format, PLAN_FORMATS)
    _check("protocol", protocol, get_args(Calling))
    check_style(style, plan_format)
    if tools_listed and library is None:
        raise InvalidInputError("a prompt that lists the tools needs a library: expected the argument library")
    if templates is None:
        templates = packaged_templates()
    elif not isinstance(templates, PromptTemplates):
        templates = load_templates(templates)
    if finish is None:
        finish = FINISH_FORMS["answer" if answers and protocol == "text" else protocol]
    rules_shown = (rules or EndRules(), tuple(once), protocol, parameters, answers, offers_wait, finish)
    sheet = _Sheet(templates, task, library if tools_listed else None, *rules_shown)
    if style == "terse":
        check_terse(protocol, parameters, answers)
        baseline = work = sheet.terse()
    else:
        say = sheet.compact if style == "compact" else sheet.full
        baseline, work = say(), say(tells_calls=False)
    if prompt_type not in PLANNED_PROMPT_TYPES:
        part = own_part = ""
        if prompt_type == "chain_of_thought":
            part, own_part = (f"\n\n{_reasoning(templates, protocol, style, tells)}" for tells in (True, False))
        return Prompt(f"{baseline}{part}\n", prompt_type, tools_listed=tools_listed, work=work + own_part)
    if workflow is None:
        raise InvalidInputError(f"a prompt of type {prompt_type!r} needs a workflow: expected what a planner returns")
    shown_as = plan_format if style == "full" else style
    part = _render_planned(templates, workflow, shown_as, task)
    text, work = f"{baseline}\n\n{part}\n", f"{work}\n\n{part}"
    return Prompt(text, prompt_type, workflow.planner, workflow, tools_listed, shown_as, work=work)


def _reasoning(templates: PromptTemplates, protocol: Calling, style: PromptStyle, tells_calls: bool) -> str:
    """Return how to reason first, and unless left out how the call follows."""
    if style != "full":
        return templates.fill(
            "compact.reasoning.functions.md" if protocol == "functions" else "compact.reasoning.md", {}
        )
    if not tells_calls:
        return templates.fill(f"chain_of_thought.{protocol}.md", {}, ["acting"])
    return templates.fill(f"chain_of_thought.{protocol}.md", {"acting": templates.fill(f"acting.{protocol}.md", {})})


def check_style(style: str, plan_format: str) -> None:
    """Refuse a style that does not exist, or one that has no such form of plans."""
    _check("prompt style", style, PROMPT_STYLES)
    if style != "full" and plan_format != "markdown":
        raise InvalidInputError(f"plan format {plan_format!r}: expected none with the {style} style, which has its own")


def check_terse(protocol: str, parameters: str, is_world: bool) -> None:
    """Refuse the terse style, which names tools and nothing else, where parameters and outputs matter."""
    reasons = {
        "no world, as the answer lies in what tools return": is_world,
        f"protocol 'text', not {protocol!r}": protocol != "text",
        f"parameters 'lenient' or 'ignore', not {parameters!r}": parameters == "strict",
    }
    for expected, is_so in reasons.items():
        if is_so:
            raise InvalidInputError(f"prompt style 'terse' shows names of tools and nothing else: expected {expected}")


def _check(what: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise unknown_name(what, value, valid)


def _render_planned(templates: PromptTemplates, workflow: Workflow, shown_as: str, task: Task) -> str:
    critical = ", ".join(critical_tools(workflow.steps)) or "none, as no step depends on another"
    values = {
        "critical_tools": escape_line(critical),
        "success_probability": f"{workflow.predicted_success_probability:.3f}",
        "planner": escape_line(workflow.planner),
    }
    if shown_as == "compact":
        return templates.fill("compact.plan.md", {"plan": render_compact_plan(workflow.steps, task.inputs), **values})
    if shown_as == "terse":
        return templates.fill("terse.plan.md", {"plan": render_compact_plan(workflow.steps, None), **values})
    if shown_as == "xml":
        return templates.fill("optimal.xml.md", {"mcp_task": render_mcp_task(workflow, templates), **values})
    return templates.fill("optimal.md", {"plan": render_plan(workflow.steps), **values})


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What every prompt of a task says, whatever its type."""

    templates: PromptTemplates
    task: Task
    listed: ToolLibrary | None  # whose names stand in the prompt; None where tools are searched for
    rules: EndRules
    once: tuple[str, ...]
    protocol: Calling
    parameters: ParameterMode
    answers: bool
    offers_wait: bool
    finish: str

    def full(self, tells_calls: bool = True) -> str:
        """Return it in full, or without how tools are found and called."""
        fill = self.templates.fill
        finding, calling = [], []
        if tells_calls and (
            self.listed is None or not self.answers
        ):  # all there is to know of a world's tools is listed
            finding.append(fill(f"finding_tools.{self.protocol}.md", {}))
        if self.listed is not None:
            names = "\n".join(f"- {self._shown(tool)}" for tool in self.listed)
            finding.append(fill("tools_listed.md", {"names": names}))
        if tells_calls:
            how = {"parameters": _PARAMETERS[self.parameters], "finish": self.finish}
            calling.append(fill(f"calling_tools.{self.protocol}.md", how) + self._waiting())
        if self.answers:
            calling.append(fill("answer.md", {}))
        parts = {
            "input_data": _render_values(self.task.inputs),
            "expected_output": _render_values(self.task.expected_outputs),
            "finding_tools": "\n\n".join(finding),
            "calling_tools": "\n\n".join(calling),
            "limits": _render_limits(self.rules, self.once, self.task.constraints),
        }
        left_out = [name for name in ("finding_tools", "calling_tools") if not parts[name]]
        return fill("world.md" if self.answers else "baseline.md", self._texts() | parts, left_out)

    def compact(self, tells_calls: bool = True) -> str:
        """Return it in few words, or without how tools are called."""
        calling = []
        if tells_calls:
            # That parameters may be left out is what a reader sees who leaves them out.
            needs = "" if _PARAMETERS[self.parameters] is _FILLED_IN else "; required parameters must be given"
            how = {"parameters": needs, "finish": self.finish}
            calling.append(
                self.templates.fill(f"compact.calling_tools.{self.protocol}.md", how) + self._waiting("compact.")
            )
        if self.answers:
            calling.append(self.templates.fill("answer.md", {}))
        if self.listed is not None:
            separator = "\n" if self.answers else ", "
            calling.append("## Tools\n\n" + separator.join(map(self._shown, self.listed)))
        parts = {
            "input_data": inline_json(dict(self.task.inputs)),
            "calling_tools": "\n\n".join(calling),
            "limits": self._limits(f"{self.rules.max_turns} messages, then a closing one that runs nothing"),
        }
        left_out = [] if calling else ["calling_tools"]
        return self.templates.fill("compact.md", self._texts() | parts, left_out)

    def terse(self) -> str:
        waiting = "; <wait/> lets a turn pass" if self.offers_wait else ""
        limits = self._limits(f"{self.rules.max_turns} messages")
        instructions = self.templates.fill("terse.instructions.md", {"limits": limits, "waiting": waiting})
        if self.listed is not None:
            instructions += "\n\nTools: " + ", ".join(map(self._shown, self.listed))
        return self.templates.fill("terse.md", self._texts() | {"instructions": instructions})

    def _limits(self, messages: str) -> str:
        failures, loop = self.rules.max_consecutive_failures, self.rules.loop_length
        endings = [f"{failures} failed runs"] if failures else []
        endings += [f"{loop} idle repeats"] if loop else []
        limits = messages + (f"; {' or '.join(endings)} in a row end the work." if endings else ".")
        return limits + (f" Must not run twice: {', '.join(self.once)}." if self.once else "")

    def _waiting(self, style: str = "") -> str:
        """Return how a turn is let pass; nothing where it cannot be."""
        if not self.offers_wait:
            return ""
        written = "text" if self.protocol == "text" else "functions"
        return ("\n" if style else "\n\n") + self.templates.fill(f"{style}waiting.{written}.md", {})

    def _shown(self, tool: Tool) -> str:
        """Return what a list says of a tool: in worlds all that it takes to call it."""
        if not self.answers:
            return tool.name
        taken = [f"{each.name}{'' if each.required else '?'}: {each.type}" for each in tool.parameters]
        return f"{tool.name}({', '.join(taken)}): {escape_line(tool.description)}"

    def _texts(self) -> dict[str, str]:
        return {"work_order": escape_text(self.task.description.strip()), "task_type": escape_line(self.task.task_type)}


def _render_values(values: Mapping[str, Any]) -> str:
    if not values:
        return "- none given"
    return "\n".join(f"- {escape_line(str(name))}: {inline_json(value)}" for name, value in values.items())


def _render_limits(rules: EndRules, once: Sequence[str], constraints: Mapping[str, Any]) -> str:
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
    if once:
        lines.append(f"- These tools must not run twice, also where no answer came: {', '.join(once)}.")
    if constraints:
        lines.append("- Constraints of the work order: " + inline_json(constraints))
    return "\n".join(lines)


_WORK_ORDER = re.compile(r"^## Work order[^\S\n]*\n(.*?)(?=^#{1,6} |\Z)", re.MULTILINE | re.DOTALL)


def parse_plan(text: str) -> list[str]:
    r"""Return the tools of the plan in a prompt, in order; empty if it holds no plan.

    Example:
        >>> from resilisim.workflows import parse_plan
        >>> parse_plan("1. Execute network_fetcher\n2. Execute data_processing_parser")
        ['network_fetcher', 'data_processing_parser']
    """
    return [step.tool for step in parse_steps(text)]


def parse_steps(text: str) -> list[PlannedStep]:
    r"""Return the steps of the plan in a prompt, with what the prompt says about each; empty if it holds no plan.

    Plans in Markdown, in an `<mcp_task>` element and in the compact style are read alike. A prompt that holds several,
    which none of ours does, is read by its element; an element that is not well-formed counts as none.
    """
    return read_mcp_task_steps(text) or read_compact_steps(text) or read_markdown_steps(text)


def text_before_plan(text: str) -> str:
    """Return what stands in a prompt before its plan, in whatever form that is; the whole text if it holds none."""
    return text[: min(place for place in (mcp_task_start(text), plan_start(text), len(text)) if place is not None)]


def parse_work_order(text: str) -> str:
    r"""Return the description of the task in a prompt; the whole text if it has no section for it (own templates)."""
    match = _WORK_ORDER.search(text)
    return unescape_text(match.group(1)).strip() if match is not None else text.strip()


# How people write which prompt an episode begins with: a type, and for a flawed one which flaw.

FLAWED = "flawed"
SEPARATOR = ":"


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """A prompt type; for "flawed" also which flaw."""

    type: str
    flaw: str | None = None  # None draws, for each task, one that its plan can carry
    severity: str = DEFAULT_SEVERITY
    method: str | None = None  # None draws it

    def flawed(
        self, perturber: Perturber, workflow: Workflow, task: Task, style: PromptStyle = "full"
    ) -> FlawedWorkflow | FlawRefusal:
        """Return the flawed workflow of a task, or why its plan, as a style shows it, cannot carry the flaw."""
        if self.flaw is not None:
            flawed = perturber.perturb(workflow, task.required_tools, self.flaw, self.severity, self.method)
            if style != "terse" or isinstance(flawed, FlawRefusal):
                return flawed
            shown, sound = (render_compact_plan(plan.steps, None) for plan in (flawed.workflow, flawed.original))
            reason = "the terse style shows no parameters, and nothing else of the plan would be flawed"
            refused = FlawRefusal(workflow.instance_id, self.flaw, self.method, self.severity, reason)
            return refused if shown == sound else flawed
        drawn = Draws("resilisim/flaw-type", task.instance_id).shuffled(FLAW_TYPES)
        return perturber.first_carried(workflow, task.required_tools, drawn, self.severity)


def parse_prompt_choice(text: str) -> PromptChoice:
    """Read "TYPE", "flawed:FLAW", "flawed:FLAW:SEVERITY" or "flawed:FLAW:SEVERITY:METHOD"."""
    prompt_type, *parts = text.split(SEPARATOR)
    if prompt_type not in PROMPT_TYPES:
        raise unknown_name("prompt type", prompt_type, PROMPT_TYPES)
    if not parts:
        return PromptChoice(prompt_type)
    if prompt_type != FLAWED or len(parts) > 3:
        raise InvalidInputError(
            f"prompt {text!r}: expected one of {', '.join(PROMPT_TYPES)}, or flawed:FLAW:SEVERITY:METHOD, "
            "of which the last two may be left out"
        )
    choice = PromptChoice(prompt_type, *parts)
    check_flaw(parts[0], choice.severity, choice.method)
    return choice
