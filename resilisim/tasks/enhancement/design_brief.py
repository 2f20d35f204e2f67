"""What a model may choose from when it designs a task: retrieved tools for each step, and how many of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resilisim.tasks.enhancement.text_checks import purpose
from resilisim.tasks.matching import match_step
from resilisim.tasks.templates import TEMPLATE_OF_TYPE, TaskTemplate
from resilisim.tasks.types import Task
from resilisim.tasks.wording import SEARCH_SIZE, clauses
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.model import Parameter, Tool
from resilisim.tool_library.retrieval import ToolRetriever

PREREQUISITE = "prerequisite"  # what a tool that others depend on is called among the operations
FREE_STEP = "work"  # the one step of a task whose type has no template
MOST_FREE_TOOLS = 7  # as many as any template allows


@dataclass(frozen=True, slots=True)
class BriefStep:
    """One step: its operation, what it is about, and the tools retrieved for it, nearest first."""

    operation: str
    about: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DesignBrief:
    """What there is to choose from.

    Attributes:
        steps: The skeleton of the task's type, each step with its tools.
        tools: Every tool that may be chosen, none twice.
        fewest: Least number of tools.
        most: Largest number of tools.
        has_template: Whether the type says what the steps are; if not, any of the tools does any work.
        repeats_last: Whether more tools than steps means a second tool of the last step (else: of those that the chosen
            ones depend on).
    """

    steps: tuple[BriefStep, ...]
    tools: tuple[str, ...]
    fewest: int
    most: int
    has_template: bool
    repeats_last: bool

    @property
    def number_in_words(self) -> str:
        """How many tools may be chosen, for a reader."""
        return str(self.fewest) if self.fewest == self.most else f"{self.fewest} to {self.most}"

    @property
    def further_tool(self) -> str:
        """What a tool beyond the steps may be, for a reader."""
        if not self.has_template:
            return "Any of the tools may be taken."
        if self.most <= len(self.steps):
            return "There is no tool beyond the steps."
        if self.repeats_last:
            return f"A tool beyond the steps carries out a second time what {self.steps[-1].operation!r} asks for."
        return "A tool beyond the steps is one that another chosen tool depends on."


def template_brief(template: TaskTemplate, library: ToolLibrary, retriever: ToolRetriever) -> DesignBrief:
    """Return the brief of all tasks of a template."""
    steps = tuple(
        BriefStep(step.operation, step.query, match_step(step, library, retriever).tools) for step in template.steps
    )
    most = max(template.num_tools)
    repeats_last = template.steps[-1].semantic_type == "processors"
    names = dict.fromkeys(name for step in steps for name in step.tools)
    if most > len(steps) and not repeats_last:
        names |= dict.fromkeys(library.closure(tuple(names)))
    return DesignBrief(steps, tuple(names), min(template.num_tools), most, True, repeats_last)


def free_brief(task: Task, library: ToolLibrary, retriever: ToolRetriever) -> DesignBrief:
    """Return the brief of a task whose type has no template: what retrieval finds for its description's clauses."""
    hits = retriever.search_many(clauses(task.description), SEARCH_SIZE)
    names = tuple(dict.fromkeys(hit.name for row in hits for hit in row)) or task.required_tools
    most = min(len(names), max(MOST_FREE_TOOLS, len(task.required_tools)))
    return DesignBrief((BriefStep(FREE_STEP, "whatever the setting calls for", names),), names, 1, most, False, False)


def brief_of(task: Task, library: ToolLibrary, retriever: ToolRetriever) -> DesignBrief:
    """Return the brief of a task."""
    template = TEMPLATE_OF_TYPE.get(task.task_type)
    return free_brief(task, library, retriever) if template is None else template_brief(template, library, retriever)


def carried_operations(names: Sequence[str], brief: DesignBrief, library: ToolLibrary) -> list[str] | None:
    """Assign each tool a step of its own, as far as there are steps; the tools beyond them must be of use otherwise.

    Args:
        names: Tools of the brief, none twice.
        brief: The steps.
        library: Whose dependencies say what a further tool may be.

    Returns:
        The operation of each tool, in the order of `names`; None if there is no such assignment.
    """
    if not brief.has_template:
        return [FREE_STEP for _ in names]
    fitting = [set(step.tools) for step in brief.steps]
    operations = [step.operation for step in brief.steps]
    for _ in range(len(names) - len(brief.steps)):
        fitting.append(set(brief.steps[-1].tools) if brief.repeats_last else _needed_by_others(names, library))
        operations.append(operations[len(brief.steps) - 1] if brief.repeats_last else PREREQUISITE)
    holder: dict[int, str] = {}
    for name in names:
        if not _place(name, fitting, holder, set()):
            return None
    place_of = {name: place for place, name in holder.items()}
    return [operations[place_of[name]] for name in names]


def described_steps(brief: DesignBrief) -> str:
    """Return the steps with their tools, one a line."""
    return "\n".join(
        f"{place}. {step.operation} ({step.about}): {', '.join(step.tools)}"
        for place, step in enumerate(brief.steps, start=1)
    )


def described_tools(brief: DesignBrief, library: ToolLibrary) -> str:
    """Return the tools with all that a design has to fit, one JSON object a line."""
    return "\n".join(json.dumps(_card(library[name], library), ensure_ascii=False) for name in brief.tools)


def _place(name: str, fitting: Sequence[set[str]], holder: dict[int, str], tried: set[int]) -> bool:
    """Find a place for a tool, moving others where that helps (an augmenting path of a bipartite matching)."""
    for place, fits in enumerate(fitting):
        if name in fits and place not in tried:
            tried.add(place)
            if place not in holder or _place(holder[place], fitting, holder, tried):
                holder[place] = name
                return True
    return False


def _needed_by_others(names: Sequence[str], library: ToolLibrary) -> set[str]:
    return {name for other in names for name in library.closure((other,)) if name != other}


def _card(tool: Tool, library: ToolLibrary) -> dict[str, Any]:
    return {
        "name": tool.name,
        "purpose": purpose(tool),
        "depends_on": list(library.dependencies(tool.name)),
        "required_inputs": {entry.name: _told(entry) for entry in tool.parameters if entry.required},
        "optional_inputs": {entry.name: _told(entry) for entry in tool.parameters if not entry.required},
        "outputs": {value.name: value.type for value in tool.returns},
    }


def _told(parameter: Parameter) -> str:
    """Return type, meaning and limits of a parameter in one line; prompts are paid by length."""
    limits = json.dumps(dict(parameter.constraints), ensure_ascii=False) if parameter.constraints else ""
    return " ".join(part for part in (f"{parameter.type}.", parameter.description, limits) if part)
