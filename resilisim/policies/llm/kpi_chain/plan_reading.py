"""From what planner and replanner write to a plan: its form, then what its tasks have to do with each other.

Problems are collected, so that one more call can mend them all.
"""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from resilisim.errors import nearest_name
from resilisim.policies.llm.kpi_chain.chain_plan import (
    DONE,
    FAILED,
    OUTPUT,
    REASONING,
    TOOL_CALL,
    ChainPlan,
    InputParameter,
    PlanTask,
    has_references,
    is_interpolated,
    references_in,
)
from resilisim.policies.llm.kpi_chain.entities import (
    ANY,
    ARRAY,
    DICT,
    FINAL_ANSWER,
    STRING,
    EntitySpec,
    canonical_type,
    fits,
    wanted_value,
)
from resilisim.policies.llm.kpi_chain.yaml_text import UnreadableReplyError, field_problems, read_yaml, typed, yaml_with
from resilisim.policies.llm.tools import ToolSpec

MAX_TASKS: Final = 50
_MAX_PROBLEMS: Final = 10
_ENTITIES, _ENTITIES_TOO = "expected_output_entities", "expected_output_parameters"
# What a plan says about its own execution is not believed.
_NOT_BELIEVED: Final = ("execution_status", "execution_result", "failure_reason")
_TASK_FIELDS: Final = (*(field.alias or name for name, field in PlanTask.model_fields.items()), _ENTITIES_TOO)


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What a plan has to fit.

    Attributes:
        specs: The tools; those that are not among them are left to the toolbox.
        interpolation: Whether a reference may stand within a longer text.
        entities: Whether tasks have entities (the ablation has none).
        memory: Whether a reference stands for an entity; if not, for the whole output of its task.
        kept: For a continuation, the tasks that stay.
        used_ids: For a continuation, every id of any plan so far.
    """

    specs: Sequence[ToolSpec] = ()
    interpolation: bool = True
    entities: bool = True
    memory: bool = True
    kept: tuple[PlanTask, ...] = ()
    used_ids: tuple[str, ...] = ()


def read_plan(text: str, rules: PlanRules) -> tuple[ChainPlan, tuple[str, ...]]:
    """Return the plan that a reply holds, and warnings about what had to be put right.

    Args:
        text: The visible part of the reply.
        rules: What the plan has to fit.

    Raises:
        UnreadableReplyError: There is no plan, or it breaks a rule; the text lists what is wrong.
    """
    entries = yaml_with(text, "tasks")["tasks"]
    if not isinstance(entries, list) or not entries:
        raise UnreadableReplyError("'tasks' has to be a list with at least one task")
    if len(entries) > MAX_TASKS:
        raise UnreadableReplyError(f"the plan has {len(entries)} tasks; expected at most {MAX_TASKS}")
    reader = _Reader(rules)
    plan = reader.plan(entries)
    if reader.problems:
        raise UnreadableReplyError(_listed(reader.problems))
    return plan, tuple(reader.warnings)


def _listed(problems: list[str]) -> str:
    shown = [f"- {problem}" for problem in dict.fromkeys(problems)]
    if len(shown) > _MAX_PROBLEMS:
        shown[_MAX_PROBLEMS:] = [f"- and {len(shown) - _MAX_PROBLEMS} more"]
    return "\n".join(["the plan breaks these rules:", *shown])


class _Reader:
    """Reads the tasks of one plan; collects a line for each rule that is broken, and for all that was put right."""

    def __init__(self, rules: PlanRules) -> None:
        self._rules = rules
        self._specs = {spec.name: spec for spec in rules.specs}
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def plan(self, entries: list[Any]) -> ChainPlan:
        """Return the plan; of no use if there are problems."""
        tasks = [task for number, entry in enumerate(entries, 1) for task in self._tasks(number, entry)]
        if len(tasks) < len(entries):
            return ChainPlan()
        ids = [task.task_id for task in tasks]
        self.problems += _id_problems(ids, self._rules.used_ids)
        earlier = {task.task_id: task for task in self._rules.kept}
        tasks = self._sorted([self._put_right(task) for task in tasks])
        for task in tasks:
            self.problems += _own_problems(task)
            self.problems += _dependency_problems(task, earlier, ids)
            self.problems += self._reference_problems(task, earlier)
            self.problems += _signature_problems(task, self._specs.get(task.tool_name))
            earlier[task.task_id] = task
        self.problems += _answer_problems(tasks)
        return ChainPlan(tuple(tasks))

    def _tasks(self, number: int, entry: Any) -> Iterator[PlanTask]:
        """Yield a task, if it can be read."""
        if not isinstance(entry, dict):
            self.problems.append(f"task number {number} is no mapping with task_id, task_type and the rest")
            return
        stated = entry.get("task_id")
        name = stated[:100] if isinstance(stated, str) and stated.strip() else f"task number {number}"
        self._check_names(name, entry)
        fields = {field: value for field, value in entry.items() if field not in _NOT_BELIEVED}
        fields[_ENTITIES] = self._entities(name, entry)
        try:
            yield PlanTask.model_validate(fields)
        except ValidationError as error:
            self.problems += (f"{name}: {problem}" for problem in field_problems(error))

    def _check_names(self, task_id: str, entry: Mapping[str, Any]) -> None:
        for name in entry:
            if name in _TASK_FIELDS:
                continue
            near = nearest_name(name, _TASK_FIELDS)
            if near is not None and near not in entry:
                self.problems.append(f"{task_id}: unknown field {name!r}, did you mean {near!r}?")
            else:
                self.warnings.append(f"{task_id}: the field {name[:50]!r} is none of a task's and is passed over")

    def _entities(self, task_id: str, entry: Mapping[str, Any]) -> Any:
        if not self._rules.entities:
            return (EntitySpec(name=OUTPUT, type=ANY, description="What the task brings."),)
        given = [entry[name] for name in (_ENTITIES, _ENTITIES_TOO) if entry.get(name) is not None]
        if len(given) == 2 and given[0] != given[1]:
            self.problems.append(f"{task_id}: {_ENTITIES} and {_ENTITIES_TOO} differ; write only the first")
        return given[0] if given else ()

    def _put_right(self, task: PlanTask) -> PlanTask:
        """Return a task with typed inputs, and with the dependencies that its references imply."""
        task = task.with_changes(inputs=tuple(self._input(task.task_id, given) for given in task.inputs))
        needed = tuple(dict.fromkeys(task.dependencies))
        referred = dict.fromkeys(reference.task_id for reference in task.references)
        added = [task_id for task_id in referred if task_id not in needed]
        if added:
            words = f"refers to {', '.join(added)} without depending on it; the dependency was added"
            self.warnings.append(f"{task.task_id}: {words}")
        return task.with_changes(dependencies=(*needed, *added))

    def _input(self, task_id: str, given: InputParameter) -> InputParameter:
        kind = canonical_type(given.type)
        if given.type and kind is None:
            self.warnings.append(
                f"{task_id}: {given.name!r} has the unknown type {given.type[:50]!r}, which is passed over"
            )
        tagged = has_references(given.value)
        stated = str(given.is_reference).strip().lower() == "true"
        if given.is_reference is not None and stated is not tagged:
            word = "has tags" if tagged else "has no tags"
            self.warnings.append(f"{task_id}: {given.name!r} {word}, and is_reference says otherwise; the tags count")
        # An object or a list that is written as a block of text is one, and the references stand within it.
        is_value = tagged and kind not in (ARRAY, DICT)
        value = typed(given.value) if is_value else _literal(given.value, kind)
        return given.model_copy(update={"value": value, "is_reference": tagged})

    def _sorted(self, tasks: list[PlanTask]) -> list[PlanTask]:
        """Return tasks behind those that they depend on, otherwise as they were written, the answer last.

        Tasks that depend on each other in a circle stay last, where they are found out.
        """
        waiting = sorted(tasks, key=lambda task: FINAL_ANSWER in task.entity_names)
        ordered: list[PlanTask] = []
        while waiting:
            missing = {task.task_id for task in waiting}
            ready = (task for task in waiting if not missing & (set(task.dependencies) - {task.task_id}))
            following = next(ready, None)
            if following is None:
                break
            waiting.remove(following)
            ordered.append(following)
        ordered += waiting
        if not self._rules.entities:  # what the last one brings is the answer
            answer = ordered[-1].entities[0].model_copy(update={"name": FINAL_ANSWER})
            ordered[-1] = ordered[-1].with_changes(entities=(answer,))
        ids = [task.task_id for task in ordered]
        if ids != [task.task_id for task in tasks]:
            self.warnings.append(f"the tasks were sorted by their dependencies: {', '.join(ids)}")
        return ordered

    def _reference_problems(self, task: PlanTask, earlier: Mapping[str, PlanTask]) -> Iterable[str]:
        for given in task.inputs:
            for problem in references_in(given.value)[1]:
                yield f"{task.task_id}: {given.name!r}: {problem}"
            if not self._rules.interpolation and is_interpolated(given.value):
                yield (
                    f"{task.task_id}: {given.name!r} mixes a reference with other text; expected either a literal or "
                    "one reference alone"
                )
        if not (self._rules.entities and self._rules.memory):
            return
        for reference in task.references:
            source = earlier.get(reference.task_id)
            if source is None or source.status == FAILED or source.task_id == task.task_id:
                continue  # said as a dependency
            names = tuple(source.result) if source.status == DONE else source.entity_names
            if reference.entity not in names:
                near = nearest_name(reference.entity, names)
                hint = f"did you mean {near!r}?" if near else f"it has {', '.join(names) or 'none'}"
                yield f"{task.task_id}: refers to {reference}, and {source.task_id} has no such entity: {hint}"


def _literal(tree: Any, kind: str | None) -> Any:
    """Return the literal of an input parameter in the type that the plan states, if it can be read so.

    Plans write literals in blocks of text, in which a number is a text as well.
    """
    value = wanted_value(tree, kind)
    if not isinstance(value, str) or kind in (None, STRING, ANY):
        return value
    try:
        read = read_yaml(value)
    except UnreadableReplyError:
        return value
    return read if fits(read, kind) else value


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _id_problems(ids: list[str], used_ids: Sequence[str]) -> Iterable[str]:
    for task_id in _twice(ids):
        yield f"the task_id {task_id!r} stands twice"
    for task_id in dict.fromkeys(ids):
        if task_id in used_ids:
            free = next(name for name in _ids_like(task_id) if name not in (*ids, *used_ids))
            yield f"the task_id {task_id!r} is used already; write only tasks still to do, under ids such as {free}"


def _ids_like(task_id: str) -> Iterator[str]:
    """Yield ids of the same lineage: T3a, T3b, and at last T3z1, T3z2."""
    yield from (task_id + letter for letter in string.ascii_lowercase)
    yield from (f"{task_id}z{number}" for number in itertools.count(1))


def _own_problems(task: PlanTask) -> Iterable[str]:
    if not task.description:
        yield f"{task.task_id}: task_description is missing"
    if task.task_type == TOOL_CALL and not task.tool_name:
        yield f"{task.task_id}: a {TOOL_CALL!r} task needs a tool_name"
    if task.task_type == REASONING and task.tool_name:
        yield f"{task.task_id}: a {REASONING!r} task has the tool_name {task.tool_name!r}; expected an empty one"
    if not task.entities:
        yield f"{task.task_id}: {_ENTITIES} has to be a list with name, type and description"
    for name in _twice([given.name for given in task.inputs]):
        yield f"{task.task_id}: the input parameter {name!r} stands twice"
    for name in _twice(task.entity_names):
        yield f"{task.task_id}: the entity {name!r} stands twice"


def _dependency_problems(task: PlanTask, earlier: Mapping[str, PlanTask], ids: list[str]) -> Iterable[str]:
    for needed in task.dependencies:
        if needed == task.task_id:
            yield f"{task.task_id}: depends on itself"
        elif needed not in earlier:
            word = "depends on it in its turn" if needed in ids else "does not exist"
            yield f"{task.task_id}: depends on or refers to {needed!r}, which {word}"
        elif earlier[needed].status == FAILED:
            yield f"{task.task_id}: depends on or refers to {needed!r}, which failed and has no results"


def _signature_problems(task: PlanTask, spec: ToolSpec | None) -> Iterable[str]:
    if spec is None or task.task_type != TOOL_CALL or not spec.parameters:
        return
    given = [parameter.name for parameter in task.inputs]
    for name in given:
        if name not in spec.parameter_names and not spec.parameters.get("additionalProperties"):
            yield f"{task.task_id}: {spec.name} has no parameter {name!r}; its signature is {spec.signature()}"
    for name in spec.required:
        if name not in given:
            yield f"{task.task_id}: {spec.name} needs the parameter {name!r}; its signature is {spec.signature()}"


def _answer_problems(tasks: list[PlanTask]) -> Iterable[str]:
    last = tasks[-1]
    if last.entity_names != (FINAL_ANSWER,):
        names = ", ".join(last.entity_names) or "none"
        yield f"{last.task_id}: the last task has to bring exactly one entity, {FINAL_ANSWER!r}; it has {names}"
    for task in tasks[:-1]:
        if FINAL_ANSWER in task.entity_names:
            yield f"{task.task_id}: only the last task brings {FINAL_ANSWER!r}"
