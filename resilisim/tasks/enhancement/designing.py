"""The mode `design`: a new task of the same kind and setting, its tools chosen by the model among retrieved ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from resilisim.chat import ChatMessage
from resilisim.chat.json_answers import json_object_in
from resilisim.inputs import json_problem, shown
from resilisim.provenance import canonical_json
from resilisim.tasks.enhancement.design_brief import (
    DesignBrief,
    brief_of,
    carried_operations,
    described_steps,
    described_tools,
)
from resilisim.tasks.enhancement.outcomes import Refusal
from resilisim.tasks.enhancement.prompting import question
from resilisim.tasks.enhancement.text_checks import (
    identifying_values,
    longest_description,
    order_problem,
    text_problem,
    tidied,
)
from resilisim.tasks.templates import TEMPLATE_OF_TYPE
from resilisim.tasks.types import Task, instance_id_of, sorted_by_dependencies
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.model import Tool
from resilisim.tool_library.parameters import check_parameters
from resilisim.tool_library.retrieval import ToolRetriever

FIELDS = ("description", "tools", "inputs", "expected_outputs")
LONGEST_DATA = 20_000  # characters of the JSON of inputs, and of expected outputs
MOST_PROBLEMS_TOLD = 3


class DesignMode:
    """Asks for a task and accepts one that fits the tools that it takes and can be solved from its text.

    Args:
        library: The tools to choose from.
        retriever: Retrieval over them.
    """

    name = "design"

    def __init__(self, library: ToolLibrary, retriever: ToolRetriever) -> None:
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
            "steps": described_steps(brief),
            "tools": described_tools(brief, self._library),
            "description": task.description,
        }
        return question(self.name, rules, facts)

    def read(self, task: Task, answer: str) -> Task | Refusal:
        """Return the task that an answer designs, or why it cannot be used."""
        design = json_object_in(answer, FIELDS)
        if isinstance(design, str):
            return Refusal("not_json", design)
        problem = _form_problem(design)
        if problem is not None:
            return problem
        brief = self._brief(task)
        names = self._chosen_tools(design["tools"], brief)
        if isinstance(names, Refusal):
            return names
        inputs, expected_outputs = design["inputs"], design["expected_outputs"]
        description = tidied(design["description"])
        operations = carried_operations(names, brief, self._library)
        if operations is None:
            steps = ", ".join(step.operation for step in brief.steps)
            return Refusal("wrong_steps", f"the tools do not carry out one step each; the steps are {steps}")
        told = tuple(value for item in inputs.values() if isinstance(item, str) for value in identifying_values(item))
        problem = (
            inputs_problem(self._library[names[0]], inputs)
            or outputs_problem(self._library[names[-1]], expected_outputs)
            or text_problem(description, task.description, self._library, told)
            or order_problem(description, names, self._library, self._retriever)
        )
        return problem or _designed(task, names, operations, inputs, expected_outputs, description)

    def _brief(self, task: Task) -> DesignBrief:
        if task.task_type not in TEMPLATE_OF_TYPE:
            return brief_of(task, self._library, self._retriever)
        if task.task_type not in self._brief_of_type:
            self._brief_of_type[task.task_type] = brief_of(task, self._library, self._retriever)
        return self._brief_of_type[task.task_type]

    def _chosen_tools(self, given: list[str], brief: DesignBrief) -> tuple[str, ...] | Refusal:
        """Return the tools by their names, in an order that respects their dependencies."""
        names: list[str] = []
        for text in given:
            name = self._library.resolve(text)
            if name is None or name not in brief.tools:
                return Refusal("unknown_tool", f"{shown(text)} is none of the proposed tools")
            if name in names:
                return Refusal("unknown_tool", f"the tool {name!r} stands twice among the tools")
            names.append(name)
        if not brief.fewest <= len(names) <= brief.most:
            return Refusal("wrong_number_of_tools", f"{len(names)} tools; expected {brief.number_in_words}")
        return sorted_by_dependencies(names, self._library)


def _form_problem(design: Mapping[str, Any]) -> Refusal | None:
    """Say which field has the wrong type, or return None."""
    if not isinstance(design["description"], str):
        return Refusal("wrong_fields", "'description' is no text")
    tools = design["tools"]
    if not isinstance(tools, list) or not all(isinstance(name, str) for name in tools):
        return Refusal("wrong_fields", "'tools' is no list of names")
    for field in ("inputs", "expected_outputs"):
        value = design[field]
        if not isinstance(value, dict):
            return Refusal("wrong_fields", f"{field!r} is no object")
        problem = json_problem(value)
        if problem is None and len(canonical_json(value)) > LONGEST_DATA:
            problem = f"more than {LONGEST_DATA:,} characters"
        if problem is not None:
            return Refusal("wrong_fields", f"{field!r} cannot be used: {problem}")
    return None


def inputs_problem(tool: Tool, inputs: Mapping[str, Any]) -> Refusal | None:
    """Say why inputs are not a whole call of the first tool, or return None."""
    problems = check_parameters(tool, inputs, "strict")
    return Refusal("wrong_inputs", "; ".join(problems[:MOST_PROBLEMS_TOLD])) if problems else None


def outputs_problem(tool: Tool, outputs: Mapping[str, Any]) -> Refusal | None:
    """Say why expected outputs are nothing that the last tool returns when all went well, or return None."""
    from jsonschema import Draft202012Validator  # a tenth of a second, and only designs need it

    types = {value.name: value.type for value in tool.returns}
    if not outputs:
        return Refusal("wrong_outputs", f"no expected outputs; the tool {tool.name!r} returns {', '.join(types)}")
    for name, value in outputs.items():
        if name not in types:
            known = ", ".join(types)
            return Refusal(
                "wrong_outputs", f"the tool {tool.name!r} returns no {shown(name)}; expected some of {known}"
            )
        if not Draft202012Validator({"type": types[name]}).is_valid(value):
            return Refusal("wrong_outputs", f"the expected output {name!r} is {shown(value)}; expected {types[name]}")
    if outputs.get("success", True) is not True:
        return Refusal("wrong_outputs", "the expected output 'success' is not true")
    return None


def _designed(
    task: Task,
    names: tuple[str, ...],
    operations: list[str],
    inputs: dict[str, Any],
    expected_outputs: dict[str, Any],
    description: str,
) -> Task:
    kept = {key: value for key, value in task.metadata.items() if key != "layout"}  # no layout of ours was filled in
    return dataclasses.replace(
        task,
        instance_id=instance_id_of(task.task_type, names, inputs, expected_outputs, description),
        description=description,
        original_description=description,
        inputs=inputs,
        expected_outputs=expected_outputs,
        required_tools=names,
        metadata={**kept, "operations": operations, "inputs_generated_from": "llm"},
    )
