"""The mode `design`: a new task of the same kind and setting, its tools chosen by the model among retrieved ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilisim.chat import ChatMessage
from resilisim.chat.checked_answers import RefusedAnswer
from resilisim.inputs import shown
from resilisim.tasks.enhancement.questions import ANSWER_FIELDS, fields_in, question
from resilisim.tasks.enhancement.rewrite import (
    check_order,
    check_text,
    identifying_values,
    longest_description,
    purpose,
)
from resilisim.tasks.matching import match_step
from resilisim.tasks.task import TEMPLATE_OF_TYPE, Task, TaskTemplate, instance_id_of, sorted_by_dependencies
from resilisim.tasks.wording import SEARCH_SIZE, clauses
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.tool_library.retrieval import Retriever
from resilisim.tool_library.tool import Parameter, Tool

PREREQUISITE = "prerequisite"  # what a tool that others depend on is called among the operations
FREE_STEP = "work"  # the one step of a task whose type has no template
MOST_FREE_TOOLS = 7  # as many as any template allows
MOST_PROBLEMS_TOLD = 3


class DesignMode:
    """Asks for a task and accepts one that fits the tools that it takes and can be solved from its text."""

    name = "design"

    def __init__(self, library: ToolLibrary, retriever: Retriever) -> None:
        self._library = library
        self._retriever = retriever
        self._brief_of_type: dict[str, DesignBrief] = {}

    def ask(self, task: Task) -> tuple[ChatMessage, ...]:
        """Return the question whose answer is to stand in a task's place."""
        brief = self._brief(task)
        rules = {
            "num_tools": brief.number_in_words,
            "further_tool": brief.further_tool,
            "limit": longest_description(task.description),
        }
        facts = {
            "task_type": task.task_type.replace("_", " "),
            "complexity": task.complexity,
            "steps": "\n".join(
                f"{place}. {step.operation} ({step.about}): {', '.join(step.tools)}"
                for place, step in enumerate(brief.steps, start=1)
            ),
            "tools": "\n".join(json.dumps(_card(name, self._library), ensure_ascii=False) for name in brief.tools),
            "description": task.description,
        }
        return question(self.name, rules, facts)

    def read(self, task: Task, answer: str) -> Task:
        """Return the task that an answer designs; raises `RefusedAnswer` where it cannot be used."""
        design = fields_in(answer, tuple(ANSWER_FIELDS))
        description, inputs, outputs = design["description"], design["inputs"], design["expected_outputs"]
        brief = self._brief(task)
        names = self._chosen_tools(design["tools"], brief)
        operations = carried_operations(names, brief, self._library)
        if operations is None:
            steps = ", ".join(step.operation for step in brief.steps)
            raise RefusedAnswer("wrong_steps", f"the tools do not carry out one step each; the steps are {steps}")
        problems = check_parameters(self._library[names[0]], inputs, "strict")
        if problems:  # the inputs are not a whole call of the first tool
            raise RefusedAnswer("wrong_inputs", "; ".join(problems[:MOST_PROBLEMS_TOLD]))
        _check_outputs(self._library[names[-1]], outputs)
        told_names = tuple(
            value for item in inputs.values() if isinstance(item, str) for value in identifying_values(item)
        )
        check_text(description, task.description, self._library, told_names)
        check_order(description, names, self._library, self._retriever)
        kept = {key: value for key, value in task.metadata.items() if key != "layout"}  # none of ours was filled in
        return dataclasses.replace(
            task,
            instance_id=instance_id_of(task.task_type, names, inputs, outputs, description),
            description=description,
            original_description=description,
            inputs=inputs,
            expected_outputs=outputs,
            required_tools=names,
            metadata={**kept, "operations": operations, "inputs_generated_from": "llm"},
        )

    def _brief(self, task: Task) -> DesignBrief:
        template = TEMPLATE_OF_TYPE.get(task.task_type)
        if template is None:
            return free_brief(task, self._retriever)
        if template.task_type not in self._brief_of_type:
            brief = template_brief(template, self._library, self._retriever)
            self._brief_of_type[template.task_type] = brief
        return self._brief_of_type[template.task_type]

    def _chosen_tools(self, listed: list[str], brief: DesignBrief) -> tuple[str, ...]:
        """Return the tools by their names, in an order that respects their dependencies."""
        names: list[str] = []
        for text in listed:
            name = self._library.resolve(text)
            if name is None or name not in brief.tools:
                raise RefusedAnswer("unknown_tool", f"{shown(text)} is none of the proposed tools")
            if name in names:
                raise RefusedAnswer("unknown_tool", f"the tool {name!r} stands twice among the tools")
            names.append(name)
        if not brief.fewest <= len(names) <= brief.most:
            detail = f"{len(names)} tools; expected {brief.number_in_words}"
            raise RefusedAnswer("wrong_number_of_tools", detail)
        return sorted_by_dependencies(names, self._library)


def _check_outputs(tool: Tool, outputs: Mapping[str, Any]) -> None:
    """Refuse expected outputs that are nothing that the last tool returns when all went well."""
    from jsonschema import Draft202012Validator  # a tenth of a second, and only designs need it

    types = {value.name: value.type for value in tool.returns}
    known = ", ".join(types)
    problem = None if outputs else f"no expected outputs; the tool {tool.name!r} returns {known}"
    for name, value in outputs.items():
        if name not in types:
            problem = f"the tool {tool.name!r} returns no {shown(name)}; expected some of {known}"
        elif not Draft202012Validator({"type": types[name]}).is_valid(value):
            problem = f"the expected output {name!r} is {shown(value)}; expected {types[name]}"
        if problem is not None:
            break
    if problem is None and outputs.get("success", True) is not True:
        problem = "the expected output 'success' is not true"
    if problem is not None:
        raise RefusedAnswer("wrong_outputs", problem)


@dataclass(frozen=True, slots=True)
class BriefStep:
    """One step: its operation, what it is about, and the tools retrieved for it, nearest first."""

    operation: str
    about: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DesignBrief:
    """What there is to choose from: the skeleton of the task's type, and how many tools there may be."""

    steps: tuple[BriefStep, ...]
    tools: tuple[str, ...]  # every tool that may be chosen, none twice
    fewest: int
    most: int
    has_template: bool  # the type says what the steps are; if not, any of the tools does any work
    repeats_last: bool  # a tool beyond the steps is a second one of the last (else: one that others depend on)

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


def template_brief(template: TaskTemplate, library: ToolLibrary, retriever: Retriever) -> DesignBrief:
    """Return the brief of all tasks of a template."""
    steps = tuple(
        BriefStep(step.operation, step.query, tuple(match_step(step, library, retriever))) for step in template.steps
    )
    most = max(template.num_tools)
    repeats_last = template.steps[-1].semantic_type == "processors"
    names = dict.fromkeys(name for step in steps for name in step.tools)
    if most > len(steps) and not repeats_last:
        names |= dict.fromkeys(library.closure(tuple(names)))
    return DesignBrief(steps, tuple(names), min(template.num_tools), most, True, repeats_last)


def free_brief(task: Task, retriever: Retriever) -> DesignBrief:
    """Return the brief of a task whose type has no template: what retrieval finds for its description's clauses."""
    hits = retriever.search_many(clauses(task.description), SEARCH_SIZE)
    names = tuple(dict.fromkeys(hit.name for row in hits for hit in row)) or task.required_tools
    most = min(len(names), max(MOST_FREE_TOOLS, len(task.required_tools)))
    return DesignBrief((BriefStep(FREE_STEP, "whatever the setting calls for", names),), names, 1, most, False, False)


def carried_operations(names: Sequence[str], brief: DesignBrief, library: ToolLibrary) -> list[str] | None:
    """Return the operation of each tool if each has a step of its own or is of use beyond them, else None."""
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


def _card(name: str, library: ToolLibrary) -> dict[str, Any]:
    """Return all of a tool that a design has to fit."""
    tool = library[name]
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
