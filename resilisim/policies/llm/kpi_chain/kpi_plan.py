"""A plan: its tasks, the references between them, how it goes on after a failure, and how it is read from a reply.

Problems of what planner and replanner write are collected, so that one more call can mend them all.
"""

from __future__ import annotations

import itertools
import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from resilisim.bounds import Share
from resilisim.chat.json_answers import texts_in
from resilisim.errors import nearest_name
from resilisim.options import option
from resilisim.policies.llm.agent_options import AgentOptions
from resilisim.policies.llm.given_plan import first_plan_option
from resilisim.policies.llm.kpi_chain.entities import (
    ANY_TYPE,
    ARRAY,
    DICT,
    FINAL_ANSWER,
    STRING,
    EntitySpec,
    Name,
    Text,
    canonical_type,
    fits,
    is_missing,
    wanted_value,
)
from resilisim.policies.llm.kpi_chain.model_yaml import UnreadableReplyError, field_problems, read_yaml, yaml_with
from resilisim.policies.llm.tools import ToolSpec
from resilisim.yaml_text import typed

TaskType = Literal["Tool call", "Reasoning"]
TOOL_CALL: Final = "Tool call"
REASONING: Final = "Reasoning"

TaskStatus = Literal["pending", "done", "failed"]
PENDING: Final = "pending"
DONE: Final = "done"
TASK_FAILED: Final = "failed"

OUTPUT: Final = "output"  # the whole output of a task, where tasks have no entities of their own (the ablation)
MAX_TASKS: Final = 50

_MAX_PROBLEMS: Final = 10
_MAX_EXCERPT: Final = 200
_TASK_TYPES: Final = {"tool call": TOOL_CALL, "toolcall": TOOL_CALL, "reasoning": REASONING}

# No path holds a "<", so a tag without its partner is found out without looking further than the next one.
_TAG = re.compile(r"<JSON_PATH>([^<]*)</JSON_PATH>", re.IGNORECASE)
_HALF_TAG = re.compile(r"</?\s*JSON_PATH\b", re.IGNORECASE)
_PATH = re.compile(r"\s*(?:\$\.)?(?P<task>[\w-]+)\.(?P<entity>[\w-]+)(?P<all>\[\*\])?\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class KpiChainOptions(AgentOptions):
    """What KPI-Chain can be told; the defaults are the paper's."""

    theta: Share = option(0.7, "confidence that is enough for an entity")
    replans: Annotated[int, Ge(0)] = option(3, "how often a task and its successors (T3, T3a, T3b) may be planned anew")
    retries: Annotated[int, Ge(0)] = option(3, "how often a component is asked again after a reply that cannot be read")
    chunk_tokens: Annotated[int, Ge(1)] = option(3000, "tokens after which an output is extracted piece by piece")
    interpolation: bool = option(True, "whether a reference may stand within a longer text")
    reasoner_confidence: bool = option(True, "whether the reasoner says how sure it is, which theta tests, too")
    unite_arrays: bool = option(False, "whether arrays found in several pieces are put together")
    raw_response_to_replanner: bool = option(False, "whether the replanner sees the tool's response")
    entities: bool = option(True, "false: tasks pass on their output as text, with no test (Plan-and-Execute)")
    first_plan: str = first_plan_option()
    replanning: bool = option(True, "false: the first failed task ends the episode")
    memory: bool = option(True, "false: later tasks get the whole outputs of earlier ones instead of entities")


def _task_type(stated: Any) -> str:
    word = re.sub(r"[\s_-]+", " ", stated.strip()).lower() if isinstance(stated, str) else ""
    if word not in _TASK_TYPES:
        raise ValueError(f"has to be {TOOL_CALL!r} or {REASONING!r}")
    return _TASK_TYPES[word]


def _ids(ids: Any) -> Any:
    if is_missing(ids) or ids == "":
        return ()
    return [ids] if isinstance(ids, str) else ids


class _Written(BaseModel):
    """A part of a plan, read from what a model wrote and written for prompts and the record."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True, populate_by_name=True)


class InputParameter(_Written):
    """What a task is given: for a tool, under exactly the name of its parameter, and of the type that the plan states.

    `<JSON_PATH>task.entity</JSON_PATH>` in the texts of the JSON value stands for what an earlier task found, whether
    the plan calls it a reference or not.
    """

    name: Annotated[Text, Field(min_length=1)]
    type: Text = ""
    value: Any
    is_reference: Any = None


class PlanTask(_Written):
    """A step of a plan, done by its tool or, without one, by the reasoner.

    `entities` are what it has to bring, the test of its success, and `result` has their values once it is done.
    """

    task_id: Name
    description: Text = Field("", alias="task_description")
    task_type: Annotated[TaskType, BeforeValidator(_task_type)]
    tool_name: Annotated[Text, BeforeValidator(lambda name: "" if is_missing(name) else name)] = ""
    inputs: tuple[InputParameter, ...] = Field((), alias="input_parameters")
    entities: tuple[EntitySpec, ...] = Field((), alias="expected_output_entities")
    dependencies: Annotated[tuple[str, ...], BeforeValidator(_ids)] = ()
    status: TaskStatus = Field(PENDING, alias="execution_status")
    result: dict[str, Any] = Field({}, alias="execution_result")
    failure: str | None = Field(None, alias="failure_reason")

    @property
    def entity_names(self) -> tuple[str, ...]:
        """Names of the entities."""
        return tuple(entity.name for entity in self.entities)

    @property
    def references(self) -> list[Reference]:
        """References in what it is given."""
        return [reference for parameter in self.inputs for reference in references_in(parameter.value)[0]]

    def with_changes(self, **changes: Any) -> PlanTask:
        """Return the task with other values of some fields."""
        return self.model_copy(update=changes)

    def to_mapping(self) -> dict[str, Any]:
        """Return the task as a plan writes it, JSON values."""
        mapping = self.model_dump(mode="json", by_alias=True)
        if self.failure is None:
            del mapping["failure_reason"]
        return mapping


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """Tasks in the order in which they are done; what a task depends on stands before it."""

    tasks: tuple[PlanTask, ...] = ()

    def next_task(self) -> PlanTask | None:
        """Return the first task that is still to be done."""
        return next((task for task in self.tasks if task.status == PENDING), None)

    def with_task(self, task_id: str, **changes: Any) -> ChainPlan:
        """Return the plan with other values of some fields of a task."""
        return ChainPlan(
            tuple(task.with_changes(**changes) if task.task_id == task_id else task for task in self.tasks)
        )

    def descendants(self, task_id: str) -> set[str]:
        """Return the ids of all tasks that depend on one, directly or through others."""
        descendants: set[str] = set()
        for task in self.tasks:
            if task_id in task.dependencies or descendants.intersection(task.dependencies):
                descendants.add(task.task_id)
        return descendants

    def kept_after(self, failed_id: str) -> tuple[PlanTask, ...]:
        """Return the tasks that stay when one has failed, itself as history.

        Pending tasks that depend on it go, and so does a pending task with the final answer: the continuation brings
        its own. Pending tasks that do not depend on it stay and are done first.
        """
        gone = self.descendants(failed_id)
        return tuple(
            task
            for task in self.tasks
            if task.status != PENDING or (task.task_id not in gone and FINAL_ANSWER not in task.entity_names)
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the plan as models write it, JSON values."""
        return {"tasks": [task.to_mapping() for task in self.tasks]}


@dataclass(frozen=True, slots=True)
class Reference:
    """What stands between the tags: a task and an entity; a path that ends in `[*]` means the elements of an array."""

    task_id: str
    entity: str
    is_array: bool = False

    def __str__(self) -> str:
        return f"{self.task_id}.{self.entity}{'[*]' if self.is_array else ''}"


class UnresolvedError(LookupError):
    """A reference stands for nothing; the text says why and names the task."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A value with its references replaced, None if there are problems, and references put into longer texts."""

    value: Any = field(hash=False)
    problems: tuple[str, ...] = ()
    interpolated: tuple[str, ...] = ()


def has_references(value: Any) -> bool:
    """Return whether tags, whole or half, stand anywhere in a value."""
    return any(_HALF_TAG.search(text) for text, _ in texts_in(value))


def references_in(value: Any) -> tuple[list[Reference], list[str]]:
    """Return every reference in a JSON value, at any depth, and what is wrong with those that cannot be read."""
    references: list[Reference] = []
    problems: list[str] = []
    for text, is_name in texts_in(value):
        if is_name and _HALF_TAG.search(text):
            problems.append(f"{_excerpt(text)} is a name: references can only stand in values")
            continue
        for path in _TAG.findall(text):
            try:
                references.append(_reference(path))
            except UnresolvedError as problem:
                problems.append(str(problem))
        if _HALF_TAG.search(_TAG.sub("", text)):
            problems.append(f"{_excerpt(text)} holds an opening or closing tag without its partner")
    return references, problems


def is_interpolated(value: Any) -> bool:
    """Return whether a reference stands within a longer text anywhere in a value."""
    return any(_TAG.search(text) and not _TAG.fullmatch(text.strip()) for text, _ in texts_in(value))


def resolve(value: Any, lookup: Callable[[Reference], Any]) -> Resolution:
    """Return a JSON value with every reference in it replaced; `lookup` may raise `UnresolvedError`.

    A text that is one reference becomes the entity in its own type; one within a longer text is written into it, which
    only texts, numbers and booleans can be. What is put in is never looked at again, so an output that happens to hold
    tags stays what it is.
    """
    problems = references_in(value)[1]
    interpolated: list[str] = []

    def looked_up(path: str) -> Any:
        try:
            reference = _reference(path)
            resolution = lookup(reference)
            if reference.is_array and not isinstance(resolution, list):
                wanted = f"{reference} asks for the elements of an array"
                raise UnresolvedError(f"{wanted}, and {reference.task_id} found no array there")
        except UnresolvedError as problem:
            problems.append(str(problem))
            return None
        return resolution

    def written(match: re.Match[str]) -> str:
        resolution, path = looked_up(match[1]), match[1].strip()
        if isinstance(resolution, dict | list):
            problems.append(f"{path} is no single value and cannot be written into a text")
        interpolated.append(path)
        return resolution if isinstance(resolution, str) else json.dumps(resolution, ensure_ascii=False)

    def resolved(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: resolved(item) for name, item in part.items()}
        if isinstance(part, list):
            return [resolved(item) for item in part]
        if not isinstance(part, str):
            return part
        whole = _TAG.fullmatch(part.strip())
        return _TAG.sub(written, part) if whole is None else looked_up(whole[1])

    resolution = resolved(value)
    return Resolution(None if problems else resolution, tuple(dict.fromkeys(problems)), tuple(interpolated))


def _reference(path: str) -> Reference:
    match = _PATH.match(path)
    if match is None:
        expected = "expected task_id.entity_name, or task_id.entity_name[*]"
        raise UnresolvedError(f"the path {_excerpt(path)} cannot be read: {expected}")
    return Reference(match["task"], match["entity"], match["all"] is not None)


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _MAX_EXCERPT else text[:_MAX_EXCERPT] + "...")


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What a plan has to fit: what the options allow, the tools, and for a continuation what there is already.

    Tools that are not among `specs` are left to the toolbox. `kept` are the tasks that stay, `used_ids` those of any
    plan so far.
    """

    options: KpiChainOptions = KpiChainOptions()
    specs: Sequence[ToolSpec] = ()
    kept: tuple[PlanTask, ...] = ()
    used_ids: tuple[str, ...] = ()


_ENTITIES, _ENTITIES_TOO = "expected_output_entities", "expected_output_parameters"
# What a plan says about its own execution is not believed.
_NOT_BELIEVED: Final = ("execution_status", "execution_result", "failure_reason")
_TASK_FIELDS: Final = (*(field.alias or name for name, field in PlanTask.model_fields.items()), _ENTITIES_TOO)


def read_plan(text: str, rules: PlanRules) -> tuple[ChainPlan, tuple[str, ...]]:
    """Return the plan that the visible part of a reply holds, and warnings about what had to be put right.

    Raises:
        UnreadableReplyError: There is no plan, or it breaks a rule; the text lists what is wrong.
    """
    entries = yaml_with(text, "tasks")["tasks"]
    if not isinstance(entries, list) or not entries:
        raise UnreadableReplyError("'tasks' has to be a list with at least one task")
    if len(entries) > MAX_TASKS:
        raise UnreadableReplyError(f"the plan has {len(entries)} tasks; expected at most {MAX_TASKS}")
    problems: list[str] = []
    warnings: list[str] = []
    read = [_task(number, entry, rules, problems, warnings) for number, entry in enumerate(entries, 1)]
    tasks = [task for task in read if task is not None]
    if len(tasks) == len(entries):
        ids = [task.task_id for task in tasks]
        tasks = _sorted([_put_right(task, warnings) for task in tasks], rules.options.entities, warnings)
        problems += _plan_problems(tasks, ids, rules)
    if problems:
        shown = [f"- {problem}" for problem in dict.fromkeys(problems)]
        if len(shown) > _MAX_PROBLEMS:
            shown[_MAX_PROBLEMS:] = [f"- and {len(shown) - _MAX_PROBLEMS} more"]
        raise UnreadableReplyError("\n".join(["the plan breaks these rules:", *shown]))
    return ChainPlan(tuple(tasks)), tuple(warnings)


def _task(number: int, entry: Any, rules: PlanRules, problems: list[str], warnings: list[str]) -> PlanTask | None:
    """Return a task; None if it cannot be read."""
    if not isinstance(entry, dict):
        problems.append(f"task number {number} is no mapping with task_id, task_type and the rest")
        return None
    stated = entry.get("task_id")
    task_id = stated[:100] if isinstance(stated, str) and stated.strip() else f"task number {number}"
    for name in entry:
        near = None if name in _TASK_FIELDS else nearest_name(name, _TASK_FIELDS)
        if near is not None and near not in entry:
            problems.append(f"{task_id}: unknown field {name!r}, did you mean {near!r}?")
        elif name not in _TASK_FIELDS:
            warnings.append(f"{task_id}: the field {name[:50]!r} is none of a task's and is passed over")
    fields = {name: value for name, value in entry.items() if name not in _NOT_BELIEVED}
    entity_lists = [entry[name] for name in (_ENTITIES, _ENTITIES_TOO) if entry.get(name) is not None]
    if not rules.options.entities:
        fields[_ENTITIES] = (EntitySpec(name=OUTPUT, type=ANY_TYPE, description="What the task brings."),)
    elif len(entity_lists) == 2 and entity_lists[0] != entity_lists[1]:
        problems.append(f"{task_id}: {_ENTITIES} and {_ENTITIES_TOO} differ; write only the first")
    else:
        fields[_ENTITIES] = entity_lists[0] if entity_lists else ()
    try:
        return PlanTask.model_validate(fields)
    except ValidationError as error:
        problems += (f"{task_id}: {problem}" for problem in field_problems(error))
        return None


def _put_right(task: PlanTask, warnings: list[str]) -> PlanTask:
    """Return a task with typed inputs, and with the dependencies that its references imply."""
    task = task.with_changes(inputs=tuple(_input(task.task_id, parameter, warnings) for parameter in task.inputs))
    needed = tuple(dict.fromkeys(task.dependencies))
    referred = dict.fromkeys(reference.task_id for reference in task.references)
    added = [task_id for task_id in referred if task_id not in needed]
    if added:
        words = f"refers to {', '.join(added)} without depending on it; the dependency was added"
        warnings.append(f"{task.task_id}: {words}")
    return task.with_changes(dependencies=(*needed, *added))


def _input(task_id: str, parameter: InputParameter, warnings: list[str]) -> InputParameter:
    kind = canonical_type(parameter.type)
    if parameter.type and kind is None:
        warnings.append(
            f"{task_id}: {parameter.name!r} has the unknown type {parameter.type[:50]!r}, which is passed over"
        )
    tagged = has_references(parameter.value)
    stated = str(parameter.is_reference).strip().lower() == "true"
    if parameter.is_reference is not None and stated is not tagged:
        word = "has tags" if tagged else "has no tags"
        warnings.append(f"{task_id}: {parameter.name!r} {word}, and is_reference says otherwise; the tags count")
    # An object or a list that is written as a block of text is one, and the references stand within it.
    is_value = tagged and kind not in (ARRAY, DICT)
    value = typed(parameter.value) if is_value else _literal(parameter.value, kind)
    return parameter.model_copy(update={"value": value, "is_reference": tagged})


def _literal(tree: Any, kind: str | None) -> Any:
    """Return the literal of an input parameter in the type that the plan states, if it can be read so.

    Plans write literals in blocks of text, in which a number is a text as well.
    """
    value = wanted_value(tree, kind)
    if not isinstance(value, str) or kind in (None, STRING, ANY_TYPE):
        return value
    try:
        read = read_yaml(value)
    except UnreadableReplyError:
        return value
    return read if fits(read, kind) else value


def _sorted(tasks: list[PlanTask], entities: bool, warnings: list[str]) -> list[PlanTask]:
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
    if not entities:  # what the last one brings is the answer
        answer = ordered[-1].entities[0].model_copy(update={"name": FINAL_ANSWER})
        ordered[-1] = ordered[-1].with_changes(entities=(answer,))
    ids = [task.task_id for task in ordered]
    if ids != [task.task_id for task in tasks]:
        warnings.append(f"the tasks were sorted by their dependencies: {', '.join(ids)}")
    return ordered


def _plan_problems(tasks: list[PlanTask], ids: list[str], rules: PlanRules) -> Iterator[str]:
    """Yield a line for each rule that is broken; `ids` are those of the tasks as they were written."""
    yield from _id_problems(ids, rules.used_ids)
    specs = {spec.name: spec for spec in rules.specs}
    earlier = {task.task_id: task for task in rules.kept}
    for task in tasks:
        problems = [
            *_own_problems(task),
            *_dependency_problems(task, earlier, ids),
            *_reference_problems(task, earlier, rules),
            *_signature_problems(task, specs.get(task.tool_name)),
        ]
        yield from (f"{task.task_id}: {problem}" for problem in problems)
        earlier[task.task_id] = task
    last = tasks[-1]
    if last.entity_names != (FINAL_ANSWER,):
        names = ", ".join(last.entity_names) or "none"
        yield f"{last.task_id}: the last task has to bring exactly one entity, {FINAL_ANSWER!r}; it has {names}"
    for task in tasks[:-1]:
        if FINAL_ANSWER in task.entity_names:
            yield f"{task.task_id}: only the last task brings {FINAL_ANSWER!r}"


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _id_problems(ids: list[str], used_ids: Sequence[str]) -> Iterator[str]:
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


def _own_problems(task: PlanTask) -> Iterator[str]:
    if not task.description:
        yield "task_description is missing"
    if task.task_type == TOOL_CALL and not task.tool_name:
        yield f"a {TOOL_CALL!r} task needs a tool_name"
    if task.task_type == REASONING and task.tool_name:
        yield f"a {REASONING!r} task has the tool_name {task.tool_name!r}; expected an empty one"
    if not task.entities:
        yield f"{_ENTITIES} has to be a list with name, type and description"
    for name in _twice(parameter.name for parameter in task.inputs):
        yield f"the input parameter {name!r} stands twice"
    for name in _twice(task.entity_names):
        yield f"the entity {name!r} stands twice"


def _dependency_problems(task: PlanTask, earlier: Mapping[str, PlanTask], ids: list[str]) -> Iterator[str]:
    for needed in task.dependencies:
        if needed == task.task_id:
            yield "depends on itself"
        elif needed not in earlier:
            word = "depends on it in its turn" if needed in ids else "does not exist"
            yield f"depends on or refers to {needed!r}, which {word}"
        elif earlier[needed].status == TASK_FAILED:
            yield f"depends on or refers to {needed!r}, which failed and has no results"


def _reference_problems(task: PlanTask, earlier: Mapping[str, PlanTask], rules: PlanRules) -> Iterator[str]:
    for parameter in task.inputs:
        for problem in references_in(parameter.value)[1]:
            yield f"{parameter.name!r}: {problem}"
        if not rules.options.interpolation and is_interpolated(parameter.value):
            expected = "expected either a literal or one reference alone"
            yield f"{parameter.name!r} mixes a reference with other text; {expected}"
    for reference in task.references if rules.options.entities and rules.options.memory else ():
        source = earlier.get(reference.task_id)
        if source is None or source.status == TASK_FAILED or source.task_id == task.task_id:
            continue  # said as a dependency
        names = tuple(source.result) if source.status == DONE else source.entity_names
        if reference.entity not in names:
            near = nearest_name(reference.entity, names)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(names) or 'none'}"
            yield f"refers to {reference}, and {source.task_id} has no such entity: {hint}"


def _signature_problems(task: PlanTask, spec: ToolSpec | None) -> Iterator[str]:
    if spec is None or task.task_type != TOOL_CALL or not spec.parameters:
        return
    names = [parameter.name for parameter in task.inputs]
    for name in names:
        if name not in spec.parameter_names and not spec.parameters.get("additionalProperties"):
            yield f"{spec.name} has no parameter {name!r}; its signature is {spec.signature()}"
    for name in spec.required:
        if name not in names:
            yield f"{spec.name} needs the parameter {name!r}; its signature is {spec.signature()}"
