"""The memory of an episode: what each task found, in its type, by task and entity."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from resilisim.policies.llm.kpi_chain.references import Found, NotFound, Reference
from resilisim.policies.llm.kpi_chain.types import DONE, FAILED, OUTPUT, Plan


class Memory:
    """Entities by task, and how references to them are looked up.

    Args:
        keeps_entities: Whether entities are remembered (the ablation without memory does not): if not, a reference
            stands for the whole output of its task, as text.
    """

    def __init__(self, keeps_entities: bool = True) -> None:
        self.keeps_entities = keeps_entities
        self._entities: dict[str, dict[str, Any]] = {}
        self._outputs: dict[str, str] = {}

    def store(self, task_id: str, entities: Mapping[str, Any], output: str) -> None:
        """Remember what a task found; its raw output only where nothing else is remembered."""
        if self.keeps_entities:
            self._entities[task_id] = copy.deepcopy(dict(entities))
        else:
            self._outputs[task_id] = output

    def to_mapping(self) -> dict[str, Any]:
        """Return task -> entity -> value, JSON values."""
        if self.keeps_entities:
            return copy.deepcopy(self._entities)
        return {task_id: {OUTPUT: output} for task_id, output in self._outputs.items()}

    def lookup(self, reference: Reference, plan: Plan) -> Found | NotFound:
        """Say what a reference stands for; every problem names the task."""
        task = plan.get(reference.task_id)
        if task is None:
            return NotFound(f"{reference} refers to task {reference.task_id}, which is not in the plan")
        if task.status == FAILED:
            return NotFound(f"{reference} refers to task {task.task_id}, which failed: {task.failure}")
        if task.status != DONE:
            return NotFound(f"{reference} refers to task {task.task_id}, which has not been done yet")
        if not self.keeps_entities:
            return Found(self._outputs[task.task_id])
        entities = self._entities[task.task_id]
        if reference.entity not in entities:
            known = ", ".join(entities) or "nothing"
            return NotFound(f"{reference} refers to task {task.task_id}, which found only: {known}")
        return Found(copy.deepcopy(entities[reference.entity]))
