"""From what planner and replanner write to a plan: the fields of each task, read one by one.

Problems are collected, so that one more call can mend them all. What the tasks have to do with each other is checked in
`plan_checks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from resilisim.errors import nearest_name
from resilisim.policies.llm.kpi_chain.entity_types import ANY, ARRAY, DICT, STRING, canonical_type, is_missing, literal
from resilisim.policies.llm.kpi_chain.plan_checks import PlanRules, check_plan
from resilisim.policies.llm.kpi_chain.references import has_references
from resilisim.policies.llm.kpi_chain.types import (
    FINAL_ANSWER,
    OUTPUT,
    REASONING,
    TOOL_CALL,
    EntitySpec,
    InputParameter,
    Plan,
    PlanTask,
    TaskType,
)
from resilisim.policies.llm.kpi_chain.yaml_text import UnreadableReplyError, yaml_with

MAX_TASKS: Final = 50
_MAX_PROBLEMS: Final = 10
_ENTITY_FIELDS: Final = ("expected_output_entities", "expected_output_parameters")
_TASK_FIELDS: Final = (
    "task_id",
    "task_description",
    "task_type",
    "tool_name",
    "input_parameters",
    *_ENTITY_FIELDS,
    "dependencies",
    # What a plan says about its own execution is not believed.
    "execution_status",
    "execution_result",
    "failure_reason",
)
_TASK_TYPES: Final[dict[str, TaskType]] = {"tool call": TOOL_CALL, "toolcall": TOOL_CALL, "reasoning": REASONING}
_NAME = re.compile(r"[\w-]{1,100}\Z")
_TYPES = "string, number, boolean, array or dict"


def read_plan(text: str, rules: PlanRules) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan that a reply holds, and warnings about what had to be put right.

    Args:
        text: The visible part of the reply.
        rules: What the plan has to fit.

    Raises:
        UnreadableReplyError: There is no plan, or it breaks a rule; the text lists what is wrong.
    """
    typed, written = (mapping["tasks"] for mapping in yaml_with(text, "tasks"))
    if not isinstance(typed, list) or not typed:
        raise UnreadableReplyError("'tasks' has to be a list with at least one task")
    if len(typed) > MAX_TASKS:
        raise UnreadableReplyError(f"the plan has {len(typed)} tasks; expected at most {MAX_TASKS}")
    reader = _Reader(rules)
    tasks = [
        reader.task(number, task, raw) for number, (task, raw) in enumerate(zip(typed, written, strict=True), start=1)
    ]
    whole = [task for task in tasks if task is not None]
    if len(whole) == len(tasks):
        whole = check_plan(whole, rules, reader.problems, reader.warnings)
    if reader.problems:
        raise UnreadableReplyError(_listed(reader.problems))
    return Plan(tuple(whole)), tuple(reader.warnings)


def _listed(problems: list[str]) -> str:
    shown = [f"- {problem}" for problem in dict.fromkeys(problems)]
    if len(shown) > _MAX_PROBLEMS:
        shown[_MAX_PROBLEMS:] = [f"- and {len(shown) - _MAX_PROBLEMS} more"]
    return "\n".join(["the plan breaks these rules:", *shown])


class _Reader:
    """Reads the fields of tasks and collects what is wrong with them."""

    def __init__(self, rules: PlanRules) -> None:
        self._rules = rules
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def task(self, number: int, task: Any, raw: Any) -> PlanTask | None:
        """Return a task, or None if too little of it can be read to go on."""
        if not isinstance(task, dict):
            self.problems.append(f"task number {number} is no mapping with task_id, task_type and the rest")
            return None
        task_id = self._text(raw.get("task_id"))
        if not _NAME.match(task_id):
            self.problems.append(f"task number {number} needs a task_id of letters, digits and underscores")
            return None
        self._check_fields(task_id, task)
        task_type = _TASK_TYPES.get(re.sub(r"[\s_-]+", " ", self._text(task.get("task_type"))).lower())
        if task_type is None:
            self.problems.append(f"{task_id}: task_type has to be {TOOL_CALL!r} or {REASONING!r}")
            return None
        description = self._text(task.get("task_description"))
        if not description:
            self.problems.append(f"{task_id}: task_description is missing")
        return PlanTask(
            task_id=task_id,
            description=description,
            task_type=task_type,
            tool_name=self._tool_name(task_id, task_type, task.get("tool_name")),
            inputs=self._inputs(task_id, task.get("input_parameters"), raw.get("input_parameters")),
            entities=self._entities(task_id, task),
            dependencies=self._dependencies(task_id, raw.get("dependencies")),
        )

    def _text(self, value: Any) -> str:
        return value.strip() if isinstance(value, str) else ""

    def _check_fields(self, task_id: str, task: Mapping[str, Any]) -> None:
        for name in task:
            if name in _TASK_FIELDS:
                continue
            near = nearest_name(name, _TASK_FIELDS)
            if near is not None and near not in task:
                self.problems.append(f"{task_id}: unknown field {name!r}, did you mean {near!r}?")
            else:
                self.warnings.append(f"{task_id}: the field {name[:50]!r} is none of a task's and is passed over")

    def _tool_name(self, task_id: str, task_type: TaskType, given: Any) -> str:
        name = "" if is_missing(given) else self._text(given)
        if task_type == TOOL_CALL and not name:
            self.problems.append(f"{task_id}: a {TOOL_CALL!r} task needs a tool_name")
        if task_type == REASONING and name:
            self.problems.append(f"{task_id}: a {REASONING!r} task has the tool_name {name!r}; expected an empty one")
        return name

    def _inputs(self, task_id: str, given: Any, raw: Any) -> tuple[InputParameter, ...]:
        if given is None:
            return ()
        if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
            self.problems.append(f"{task_id}: input_parameters has to be a list of name, type, value, is_reference")
            return ()
        parameters: list[InputParameter] = []
        for item, text in zip(given, raw, strict=True):
            name = self._text(text.get("name"))
            if not name or name in (parameter.name for parameter in parameters):
                self.problems.append(f"{task_id}: every input parameter needs a name of its own, not {name!r}")
            elif "value" not in item:
                self.problems.append(f"{task_id}: the input parameter {name!r} has no value")
            else:
                parameters.append(self._input(task_id, name, item, text))
        return tuple(parameters)

    def _input(self, task_id: str, name: str, item: Mapping[str, Any], text: Mapping[str, Any]) -> InputParameter:
        stated = self._text(item.get("type"))
        kind = canonical_type(stated)
        if stated and kind is None:
            self.warnings.append(f"{task_id}: {name!r} has the unknown type {stated[:50]!r}, which is passed over")
        tagged = has_references(item["value"])
        flag = item.get("is_reference", tagged)
        if isinstance(flag, str):
            flag = flag.strip().lower() == "true"
        if flag is not tagged:
            word = "has tags" if tagged else "has no tags"
            self.warnings.append(f"{task_id}: {name!r} {word}, and is_reference says otherwise; the tags count")
        # An object or a list that is written as a block of text is one, and the references stand within it.
        is_value = tagged and kind not in (ARRAY, DICT)
        value = item["value"] if is_value else literal(item["value"], text["value"], kind)
        return InputParameter(name, stated, value, tagged)

    def _entities(self, task_id: str, task: Mapping[str, Any]) -> tuple[EntitySpec, ...]:
        if not self._rules.entities:
            return (EntitySpec(OUTPUT, ANY, "What the task brings."),)
        given = [task[name] for name in _ENTITY_FIELDS if task.get(name) is not None]
        if len(given) == 2 and given[0] != given[1]:
            self.problems.append(f"{task_id}: {_ENTITY_FIELDS[0]} and {_ENTITY_FIELDS[1]} differ; write only the first")
        entries = given[0] if given else None
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
            self.problems.append(f"{task_id}: {_ENTITY_FIELDS[0]} has to be a list with name, type and description")
            return ()
        entities = [self._entity(task_id, entry) for entry in entries]
        names = [entity.name for entity in entities]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                self.problems.append(f"{task_id}: the entity {name!r} stands twice")
        return tuple(entities)

    def _entity(self, task_id: str, entry: Mapping[str, Any]) -> EntitySpec:
        name = self._text(entry.get("name"))
        if not _NAME.match(name):
            self.problems.append(
                f"{task_id}: an entity needs a name of letters, digits and underscores, not {name!r:.60}"
            )
        stated = self._text(entry.get("type"))
        kind = canonical_type(stated) if stated else None
        if kind is None:
            self.problems.append(f"{task_id}: the entity {name!r:.60} has the type {stated[:50]!r}; expected {_TYPES}")
        description = self._text(entry.get("description"))
        return EntitySpec(name, kind or STRING, description, name == FINAL_ANSWER or entry.get("required") is not False)

    def _dependencies(self, task_id: str, given: Any) -> tuple[str, ...]:
        if given in (None, "", "null"):
            return ()
        ids = [given] if isinstance(given, str) else given
        if not isinstance(ids, list) or not all(isinstance(entry, str) for entry in ids):
            self.problems.append(f"{task_id}: dependencies has to be a list of task ids")
            return ()
        return tuple(dict.fromkeys(entry.strip() for entry in ids))
