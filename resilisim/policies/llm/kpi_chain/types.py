"""A plan as data: tasks, what goes into each, and what each has to bring. Nothing here does anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

TaskType = Literal["Tool call", "Reasoning"]
TOOL_CALL: Final = "Tool call"
REASONING: Final = "Reasoning"

TaskStatus = Literal["pending", "done", "failed"]
PENDING: Final = "pending"
DONE: Final = "done"
FAILED: Final = "failed"

FINAL_ANSWER: Final = "final_answer"
# The whole output of a task, where tasks have no entities of their own (the ablation).
OUTPUT: Final = "output"


@dataclass(frozen=True, slots=True)
class InputParameter:
    """What a task is given.

    Attributes:
        name: For a tool, exactly the name of its parameter.
        type: The type that the plan states; empty if it states none.
        value: JSON value; `<JSON_PATH>task.entity</JSON_PATH>` in its texts stands for what an earlier task found.
        is_reference: Whether the plan calls it a reference; what counts is whether there are tags.
    """

    name: str
    type: str
    value: Any = field(hash=False)
    is_reference: bool = False


@dataclass(frozen=True, slots=True)
class EntitySpec:
    """Something that a task has to find.

    Attributes:
        name: Its name, by which later tasks refer to it.
        type: Canonical type (`entity_types`).
        description: What guides the extraction.
        required: Whether the task fails without it.
    """

    name: str
    type: str
    description: str = ""
    required: bool = True

    def to_mapping(self) -> dict[str, Any]:
        """Return the entity as a plan writes it."""
        mapping: dict[str, Any] = {"name": self.name, "type": self.type, "description": self.description}
        return mapping if self.required else {**mapping, "required": False}


@dataclass(frozen=True, slots=True)
class PlanTask:
    """A step of a plan.

    Attributes:
        task_id: Its name in the plan.
        description: What is to be done.
        task_type: Whether a tool or the reasoner does it.
        tool_name: The tool; empty for the reasoner.
        inputs: What it is given.
        entities: What it has to bring; the test of its success.
        dependencies: Ids of the tasks that must be done before.
        status: How far it is.
        result: Entity -> value, once it is done.
        failure: Why it failed, or None.
    """

    task_id: str
    description: str
    task_type: TaskType
    tool_name: str
    inputs: tuple[InputParameter, ...]
    entities: tuple[EntitySpec, ...]
    dependencies: tuple[str, ...] = ()
    status: TaskStatus = PENDING
    result: Mapping[str, Any] = field(default_factory=dict, hash=False)
    failure: str | None = None

    @property
    def entity_names(self) -> tuple[str, ...]:
        """Names of the entities."""
        return tuple(entity.name for entity in self.entities)

    def to_mapping(self) -> dict[str, Any]:
        """Return the task as a plan writes it, JSON values."""
        mapping: dict[str, Any] = {
            "task_id": self.task_id,
            "task_description": self.description,
            "task_type": self.task_type,
            "tool_name": self.tool_name,
            "input_parameters": [
                {"name": given.name, "type": given.type, "value": given.value, "is_reference": given.is_reference}
                for given in self.inputs
            ],
            "expected_output_entities": [entity.to_mapping() for entity in self.entities],
            "dependencies": list(self.dependencies),
            "execution_status": self.status,
            "execution_result": dict(self.result),
        }
        return mapping if self.failure is None else {**mapping, "failure_reason": self.failure}


@dataclass(frozen=True, slots=True)
class Plan:
    """Tasks in the order in which they are done."""

    tasks: tuple[PlanTask, ...] = ()

    def get(self, task_id: str) -> PlanTask | None:
        """Return a task, or None if there is none of that name."""
        return next((task for task in self.tasks if task.task_id == task_id), None)

    def next_task(self) -> PlanTask | None:
        """Return the first task that is still to be done; what it depends on stands before it."""
        return next((task for task in self.tasks if task.status == PENDING), None)

    def done(self, task_id: str, result: Mapping[str, Any]) -> Plan:
        """Return the plan with a task done."""
        return self._with(task_id, status=DONE, result=dict(result))

    def failed(self, task_id: str, reason: str) -> Plan:
        """Return the plan with a task failed."""
        return self._with(task_id, status=FAILED, failure=reason)

    def _with(self, task_id: str, **changes: Any) -> Plan:
        return Plan(tuple(replace(task, **changes) if task.task_id == task_id else task for task in self.tasks))

    def to_mapping(self) -> dict[str, Any]:
        """Return the plan as models write it, JSON values."""
        return {"tasks": [task.to_mapping() for task in self.tasks]}


def descendants(tasks: Iterable[PlanTask], task_id: str) -> set[str]:
    """Return the ids of all tasks that depend on one, directly or through others."""
    found: set[str] = set()
    for task in tasks:  # dependencies stand before what depends on them, so one pass is enough
        if task_id in task.dependencies or found.intersection(task.dependencies):
            found.add(task.task_id)
    return found
