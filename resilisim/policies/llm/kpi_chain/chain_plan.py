"""A plan and what it found: tasks, references between them, memory, and how often they may be planned anew."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from resilisim.policies.llm.kpi_chain.entities import FINAL_ANSWER, EntitySpec, Name, Text, is_missing

TaskType = Literal["Tool call", "Reasoning"]
TOOL_CALL: Final = "Tool call"
REASONING: Final = "Reasoning"

TaskStatus = Literal["pending", "done", "failed"]
PENDING: Final = "pending"
DONE: Final = "done"
FAILED: Final = "failed"

# The whole output of a task, where tasks have no entities of their own (the ablation).
OUTPUT: Final = "output"

_TASK_TYPES: Final = {"tool call": TOOL_CALL, "toolcall": TOOL_CALL, "reasoning": REASONING}

# No path holds a "<", so a tag without its partner is found out without looking further than the next one.
_TAG = re.compile(r"<JSON_PATH>([^<]*)</JSON_PATH>", re.IGNORECASE)
_HALF_TAG = re.compile(r"</?\s*JSON_PATH\b", re.IGNORECASE)
_PATH = re.compile(r"\s*(?:\$\.)?(?P<task>[\w-]+)\.(?P<entity>[\w-]+)(?P<all>\[\*\])?\s*\Z")
_MAX_EXCERPT: Final = 200

# Letters and number at the beginning of an id: T3 in T3a, T3b, T3_retry and T3a2, but not in T31.
_NUMBERED = re.compile(r"([A-Za-z_-]*?[0-9]+)(?![0-9]).*\Z")
_SEPARATED = re.compile(r"[_-]")


def _task_type(stated: Any) -> str:
    word = re.sub(r"[\s_-]+", " ", stated.strip()).lower() if isinstance(stated, str) else ""
    if word not in _TASK_TYPES:
        raise ValueError(f"has to be {TOOL_CALL!r} or {REASONING!r}")
    return _TASK_TYPES[word]


def _ids(given: Any) -> Any:
    if is_missing(given) or given == "":
        return ()
    return [given] if isinstance(given, str) else given


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
        return [reference for given in self.inputs for reference in references_in(given.value)[0]]

    def with_changes(self, **changes: Any) -> PlanTask:
        """Return the task with other values of some attributes."""
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

    def get(self, task_id: str) -> PlanTask | None:
        """Return a task, or None if there is none of that name."""
        return next((task for task in self.tasks if task.task_id == task_id), None)

    def next_task(self) -> PlanTask | None:
        """Return the first task that is still to be done."""
        return next((task for task in self.tasks if task.status == PENDING), None)

    def done(self, task_id: str, result: Mapping[str, Any]) -> ChainPlan:
        """Return the plan with a task done."""
        return self._with(task_id, status=DONE, result=dict(result))

    def failed(self, task_id: str, reason: str) -> ChainPlan:
        """Return the plan with a task failed."""
        return self._with(task_id, status=FAILED, failure=reason)

    def _with(self, task_id: str, **changes: Any) -> ChainPlan:
        return ChainPlan(
            tuple(task.with_changes(**changes) if task.task_id == task_id else task for task in self.tasks)
        )

    def descendants(self, task_id: str) -> set[str]:
        """Return the ids of all tasks that depend on one, directly or through others."""
        found: set[str] = set()
        for task in self.tasks:
            if task_id in task.dependencies or found.intersection(task.dependencies):
                found.add(task.task_id)
        return found

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

    def continued(self, failed_id: str, continuation: ChainPlan) -> ChainPlan:
        """Return the plan that goes on after a failure: what stays, then what is new."""
        return ChainPlan((*self.kept_after(failed_id), *continuation.tasks))

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
    """A value with its references replaced.

    Attributes:
        value: The value; None, and of no use, if there are problems.
        problems: What could not be resolved, a line each.
        interpolated: References that were put into a longer text, as they were written.
    """

    value: Any = field(hash=False)
    problems: tuple[str, ...] = ()
    interpolated: tuple[str, ...] = ()


def has_references(value: Any) -> bool:
    """Return whether tags, whole or half, stand anywhere in a value."""
    return any(_HALF_TAG.search(text) for text, _ in _texts(value))


def references_in(value: Any) -> tuple[list[Reference], list[str]]:
    """Return every reference in a JSON value, at any depth, and what is wrong with those that cannot be read."""
    references: list[Reference] = []
    problems: list[str] = []
    for text, is_name in _texts(value):
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
    return any(_TAG.search(text) and not _TAG.fullmatch(text.strip()) for text, _ in _texts(value))


def resolve(value: Any, lookup: Callable[[Reference], Any]) -> Resolution:
    """Return a value with every reference in it replaced.

    A text that is one reference becomes the entity in its own type; one within a longer text is written into it, which
    only texts, numbers and booleans can be. What is put in is never looked at again, so an output that happens to hold
    tags stays what it is.

    Args:
        value: JSON value.
        lookup: Returns what a reference stands for, or raises `UnresolvedError`.
    """
    problems = references_in(value)[1]
    interpolated: list[str] = []

    def looked_up(path: str) -> Any:
        try:
            return _checked(_reference(path), lookup)
        except UnresolvedError as problem:
            problems.append(str(problem))

    def written(match: re.Match[str]) -> str:
        found, path = looked_up(match[1]), match[1].strip()
        if isinstance(found, dict | list):
            problems.append(f"{path} is no single value and cannot be written into a text")
        interpolated.append(path)
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    def resolved(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: resolved(item) for name, item in part.items()}
        if isinstance(part, list):
            return [resolved(item) for item in part]
        if not isinstance(part, str):
            return part
        whole = _TAG.fullmatch(part.strip())
        return _TAG.sub(written, part) if whole is None else looked_up(whole[1])

    found = resolved(value)
    return Resolution(None if problems else found, tuple(dict.fromkeys(problems)), tuple(interpolated))


def _reference(path: str) -> Reference:
    match = _PATH.match(path)
    if match is None:
        expected = "expected task_id.entity_name, or task_id.entity_name[*]"
        raise UnresolvedError(f"the path {_excerpt(path)} cannot be read: {expected}")
    return Reference(match["task"], match["entity"], match["all"] is not None)


def _checked(reference: Reference, lookup: Callable[[Reference], Any]) -> Any:
    found = lookup(reference)
    if reference.is_array and not isinstance(found, list):
        wanted = f"{reference} asks for the elements of an array"
        raise UnresolvedError(f"{wanted}, and {reference.task_id} found no array there")
    return found


def _texts(value: Any) -> Iterator[tuple[str, bool]]:
    """Yield every text in a value and whether it is a name of a dict."""
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name, True
            yield from _texts(item)


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _MAX_EXCERPT else text[:_MAX_EXCERPT] + "...")


class Memory:
    """What each task found, in its type, by task and entity.

    Args:
        keeps_entities: Whether entities are remembered (the ablation without memory does not): if not, a reference
            stands for the whole output of its task, as text.
    """

    def __init__(self, keeps_entities: bool = True) -> None:
        self._keeps_entities = keeps_entities
        self._entities: dict[str, dict[str, Any]] = {}

    def store(self, task_id: str, entities: Mapping[str, Any], output: str) -> None:
        """Remember what a task found; its raw output only where nothing else is remembered."""
        self._entities[task_id] = copy.deepcopy(dict(entities)) if self._keeps_entities else {OUTPUT: output}

    def to_mapping(self) -> dict[str, dict[str, Any]]:
        """Return task -> entity -> value, JSON values."""
        return copy.deepcopy(self._entities)

    def lookup(self, reference: Reference, plan: ChainPlan) -> Any:
        """Return what a reference stands for.

        Raises:
            UnresolvedError: Its task is not in the plan, has no results, or none of that name.
        """
        task = plan.get(reference.task_id)
        where = f"{reference} refers to task {reference.task_id}"
        if task is None:
            raise UnresolvedError(f"{where}, which is not in the plan")
        if task.status == FAILED:
            raise UnresolvedError(f"{where}, which failed: {task.failure}")
        if task.status != DONE:
            raise UnresolvedError(f"{where}, which has not been done yet")
        entities = self._entities[task.task_id]
        name = reference.entity if self._keeps_entities else OUTPUT
        if name not in entities:
            raise UnresolvedError(f"{where}, which found only: {', '.join(entities) or 'nothing'}")
        return copy.deepcopy(entities[name])


def lineage_of(task_id: str, earlier: Mapping[str, str]) -> str:
    """Return what a task of a continuation descends from.

    It inherits from the longest earlier id that its own extends: `T3a` from `T3`, `T1_2_retry` from `T1_2`,
    `find_film_again` from `find_film`. If it extends none, letters and number at its beginning are the lineage, or
    without a number the whole id. `earlier` has the ids of tasks of earlier plans, with their lineages.
    """
    if task_id in earlier:
        return earlier[task_id]
    extended = [known for known in earlier if _extends(task_id, known)]
    if extended:
        return earlier[max(extended, key=len)]
    numbered = _NUMBERED.match(task_id)
    return task_id if numbered is None else numbered[1]


def _extends(task_id: str, earlier: str) -> bool:
    rest = task_id.removeprefix(earlier)
    if not earlier or not rest or rest == task_id:
        return False
    if _NUMBERED.match(earlier) is None:  # of words, only a whole word more is an extension
        return _SEPARATED.match(rest) is not None
    return not (earlier[-1].isdigit() and rest[0].isdigit())


class ReplanCounts:
    """How often each lineage was planned anew: ids change with every continuation, so attempts count by lineage."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()
        self._lineages: dict[str, str] = {}

    def register(self, task_ids: Iterable[str]) -> None:
        """Take up the tasks of the first plan, which descend from themselves, or those of a continuation."""
        earlier = dict(self._lineages)
        for task_id in task_ids:
            self._lineages[task_id] = lineage_of(task_id, earlier) if earlier else task_id

    @property
    def used_ids(self) -> tuple[str, ...]:
        """Every id of any plan so far, in the order in which they came."""
        return tuple(self._lineages)

    def lineage(self, task_id: str) -> str:
        """Return what a registered task descends from."""
        return self._lineages[task_id]

    def left(self, task_id: str) -> int:
        """Return how often the task's lineage may still be planned anew."""
        return max(0, self._limit - self._counts[self.lineage(task_id)])

    def spend(self, task_id: str) -> None:
        """Count one more plan for the task's lineage."""
        self._counts[self.lineage(task_id)] += 1

    def to_mapping(self) -> dict[str, int]:
        """Return lineage -> replans, those that had any."""
        return dict(self._counts)
