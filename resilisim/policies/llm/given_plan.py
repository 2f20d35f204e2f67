"""The plan of a prompt in the forms in which agents write plans: what stands in for the first replies of a planner.

So an agent can be made to begin with a plan that somebody else chose, a flawed one for instance, and everything after
that is its own: how it reads the plan, what it does at a step that cannot be done, and whether it plans anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from resilisim.chat.json_answers import texts_in
from resilisim.options import option
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.workflows.argument_references import (
    ArgumentReference,
    argument_references,
    numbered_parameters,
    rewritten,
)
from resilisim.workflows.prompts import parse_steps, text_before_plan

OF_PLANNER, OF_PROMPT = "planner", "prompt"
CALLS_ANY_TOOL: Final = "tool_call"  # who has it may also call a tool of the library by its own name


def first_plan_option() -> Any:
    """Declare where an agent's first plan comes from."""
    return option(
        OF_PLANNER,
        "where its first plan comes from: its planner, or the plan in the prompt, in the planner's own form",
        choices=(OF_PLANNER, OF_PROMPT),
    )


@dataclass(frozen=True, slots=True)
class GivenStep:
    """A step of the plan in a prompt: its tool, and its parameters with references to steps by number."""

    number: int
    tool: str
    parameters: dict[str, Any]
    data: tuple[str, ...]  # what the prompt says before the plan: nothing in it is a reference

    @property
    def references(self) -> list[ArgumentReference]:
        """The references in its parameters."""
        return [found for value in self.parameters.values() for found in argument_references(value, self.data)]

    @property
    def needs(self) -> list[int]:
        """Numbers of the steps that it refers to."""
        return sorted({found.number for found in self.references if found.number is not None})

    def call(self, run: AgentRun, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the function by which an agent calls the tool, and its arguments."""
        if any(spec.name == CALLS_ANY_TOOL for spec in run.tools.specs):
            return CALLS_ANY_TOOL, {"name": self.tool, "parameters": parameters}
        return self.tool, parameters


def given_steps(run: AgentRun) -> list[GivenStep]:
    """Return the steps of the plan in a run's prompt; none, with a warning in the record, if it holds no plan."""
    steps = parse_steps(run.prompt)
    if not steps:
        run.note("warning", "planner", "the prompt holds no plan to begin with: the planner is asked for one")
    numbered = numbered_parameters([step.tool for step in steps], [step.parameters for step in steps])
    data = (text_before_plan(run.prompt),)
    return [
        GivenStep(number, step.tool, values, data)
        for number, (step, values) in enumerate(zip(steps, numbered, strict=True), start=1)
    ]


def step_plan_of(steps: Sequence[GivenStep], run: AgentRun, names_tools: bool) -> str:
    """Return a plan as Plan-and-Execute's planner writes it: steps that name their tools, or sentences for a sub-agent.

    References are `{step_N}`, and `{step_}` where the plan names no step.
    """

    def written(reference: ArgumentReference, as_object: bool) -> str:
        return f"{{step_{'' if reference.number is None else reference.number}}}"

    entries = []
    for step in steps:
        parameters = rewritten(step.parameters, written, step.data)
        entry = {"step": step.number, "task": f"Call the tool {step.tool}", "needs": step.needs}
        if names_tools:
            tool, arguments = step.call(run, parameters)
            entry |= {"tool": tool, "arguments": arguments}
        else:
            entry["task"] = f"{entry['task']} with these parameters: {json.dumps(parameters, ensure_ascii=False)}"
        entries.append(entry)
    return json.dumps({"steps": entries}, ensure_ascii=False)


RESULT_FIELDS, TEXT = "result", "text"  # entities that stand for what a task brought: as a whole, and in words


def chain_plan_of(steps: Sequence[GivenStep], run: AgentRun) -> dict[str, Any]:
    """Return a plan as KPI-Chain's planner writes it, JSON values for YAML: a task for each step, and the answer.

    References are `<JSON_PATH>TN.result</JSON_PATH>`, and without an entity where the plan names no step.
    """
    asked: dict[int, list[str]] = {}  # entities by number of the step that has to bring them

    def written(reference: ArgumentReference, as_object: bool) -> str:
        if reference.number is None:
            return "<JSON_PATH>step</JSON_PATH>"
        entity = RESULT_FIELDS if as_object else TEXT
        asked.setdefault(reference.number, []).append(entity)
        return f"<JSON_PATH>T{reference.number}.{entity}</JSON_PATH>"

    inputs = [step.call(run, rewritten(step.parameters, written, step.data)) for step in steps]
    tasks: list[dict[str, Any]] = []
    for step, (tool, arguments) in zip(steps, inputs, strict=True):
        entities = sorted(set(asked.get(step.number, [TEXT] if step.number == len(steps) else [RESULT_FIELDS])))
        if step.number == len(steps) and TEXT not in entities:
            entities.append(TEXT)
        tasks.append(
            {
                "task_id": f"T{step.number}",
                "task_description": f"Call the tool {step.tool} and take its result",
                "task_type": "Tool call",
                "tool_name": tool,
                "input_parameters": [
                    {"name": name, "type": _kind(value), "value": value} for name, value in arguments.items()
                ],
                "expected_output_entities": [
                    {
                        "name": entity,
                        "type": "dict" if entity == RESULT_FIELDS else "string",
                        "description": f"what {step.tool} returned",
                    }
                    for entity in entities
                ],
                "dependencies": [f"T{number}" for number in step.needs],
            }
        )
    last = f"T{len(steps)}"
    value = f"<JSON_PATH>{last}.{TEXT}</JSON_PATH>"
    answer = {
        "task_id": "ANSWER",
        "task_description": "State what was done",
        "task_type": "Reasoning",
        "tool_name": "",
        "input_parameters": [{"name": "result", "type": "string", "value": value}],
        "expected_output_entities": [
            {"name": "final_answer", "type": "string", "description": "a short statement of what was done"}
        ],
        "dependencies": [last],
    }
    return {"tasks": [*tasks, answer]}


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", dict: "dict", list: "array"}
    return kinds.get(type(value), "string")


_SUBQUESTION = "the result of sub-question"
_FOR_A_RESULT = re.compile(rf"{_SUBQUESTION}(?: \d{{1,4}})?", re.IGNORECASE)


def words_for_a_result(arguments: Mapping[str, Any], task: str) -> str | None:
    """Return words in a call's arguments that only stand for the result of a sub-question; None if there are none."""
    found = (match.group() for text, _ in texts_in(arguments) for match in _FOR_A_RESULT.finditer(text))
    return next((words for words in found if words not in task), None)


def questions_of(steps: Sequence[GivenStep], address: str = "") -> list[str]:
    """Return a plan as RP-ReAct's planner carries it out: one sub-question after the other, in plain English.

    References are "the result of sub-question N", without a number where the plan names no step. Each question begins
    with the `address` of an executor.
    """

    def written(reference: ArgumentReference, as_object: bool) -> str:
        return f"{_SUBQUESTION}{'' if reference.number is None else f' {reference.number}'}"

    questions = []
    for step in steps:
        parameters = json.dumps(rewritten(step.parameters, written, step.data), ensure_ascii=False)
        questions.append(f"{address}Call the tool {step.tool} with these parameters: {parameters}")
    return questions
