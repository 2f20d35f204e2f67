"""What the tasks of a plan have to do with each other and with the tools: order, references, signatures, the answer."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from resilisim.errors import nearest_name
from resilisim.policies.llm.kpi_chain.references import Reference, is_interpolated, references_in
from resilisim.policies.llm.kpi_chain.types import DONE, FAILED, FINAL_ANSWER, TOOL_CALL, PlanTask
from resilisim.policies.llm.tools import ToolSpec


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

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The tools by name."""
        return {spec.name: spec for spec in self.specs}


def check_plan(tasks: list[PlanTask], rules: PlanRules, problems: list[str], warnings: list[str]) -> list[PlanTask]:
    """Check a plan as a whole, and return it with the dependencies that its references imply, in their order.

    Args:
        tasks: The tasks as they were written.
        rules: What they have to fit.
        problems: Gets a line for each rule that is broken.
        warnings: Gets a line for everything that was put right.
    """
    ids = [task.task_id for task in tasks]
    problems += _id_problems(ids, rules)
    earlier = {task.task_id: task for task in rules.kept}
    checked: list[PlanTask] = []
    for task in _sorted([_with_implied_dependencies(task, warnings) for task in tasks], rules, warnings):
        problems += _dependency_problems(task, earlier, ids)
        problems += _reference_problems(task, earlier, rules)
        problems += _signature_problems(task, rules)
        checked.append(task)
        earlier[task.task_id] = task
    problems += _answer_problems(checked)
    return checked


def _sorted(tasks: list[PlanTask], rules: PlanRules, warnings: list[str]) -> list[PlanTask]:
    """Return tasks behind those that they depend on, otherwise as they were written, the answer last.

    Tasks that depend on each other in a circle stay last, where they are found out.
    """
    waiting = sorted(tasks, key=lambda task: FINAL_ANSWER in task.entity_names)
    ordered: list[PlanTask] = []
    missing = {task.task_id for task in tasks}
    while waiting:
        ready = (task for task in waiting if not missing & (set(task.dependencies) - {task.task_id}))
        following = next(ready, None)
        if following is None:
            break
        waiting.remove(following)
        ordered.append(following)
        missing = {task.task_id for task in waiting}
    ordered += waiting
    if not rules.entities:  # what the last one brings is the answer
        ordered[-1] = replace(ordered[-1], entities=(replace(ordered[-1].entities[0], name=FINAL_ANSWER),))
    if [task.task_id for task in ordered] != [task.task_id for task in tasks]:
        warnings.append(f"the tasks were sorted by their dependencies: {', '.join(task.task_id for task in ordered)}")
    return ordered


def _id_problems(ids: list[str], rules: PlanRules) -> Iterable[str]:
    taken = {*ids, *rules.used_ids}
    for task_id in dict.fromkeys(ids):
        if ids.count(task_id) > 1:
            yield f"the task_id {task_id!r} stands twice"
        if task_id in rules.used_ids:
            free = next(name for name in _ids_like(task_id) if name not in taken)
            yield f"the task_id {task_id!r} is used already; write only tasks still to do, under ids such as {free}"


def _ids_like(task_id: str) -> Iterator[str]:
    """Yield ids of the same lineage: T3a, T3b, and at last T3z1, T3z2."""
    yield from (task_id + letter for letter in string.ascii_lowercase)
    yield from (f"{task_id}z{number}" for number in itertools.count(1))


def _with_implied_dependencies(task: PlanTask, warnings: list[str]) -> PlanTask:
    referred = dict.fromkeys(reference.task_id for reference in _references(task))
    added = [task_id for task_id in referred if task_id not in task.dependencies]
    if not added:
        return task
    warnings.append(f"{task.task_id}: refers to {', '.join(added)} without depending on it; the dependency was added")
    return replace(task, dependencies=(*task.dependencies, *added))


def _references(task: PlanTask) -> list[Reference]:
    return [reference for given in task.inputs for reference in references_in(given.value)[0]]


def _dependency_problems(task: PlanTask, earlier: Mapping[str, PlanTask], ids: list[str]) -> Iterable[str]:
    for needed in task.dependencies:
        if needed == task.task_id:
            yield f"{task.task_id}: depends on itself"
        elif needed not in earlier:
            word = "depends on it in its turn" if needed in ids else "does not exist"
            yield f"{task.task_id}: depends on or refers to {needed!r}, which {word}"
        elif earlier[needed].status == FAILED:
            yield f"{task.task_id}: depends on or refers to {needed!r}, which failed and has no results"


def _reference_problems(task: PlanTask, earlier: Mapping[str, PlanTask], rules: PlanRules) -> Iterable[str]:
    for given in task.inputs:
        for problem in references_in(given.value)[1]:
            yield f"{task.task_id}: {given.name!r}: {problem}"
        if not rules.interpolation and is_interpolated(given.value):
            yield (
                f"{task.task_id}: {given.name!r} mixes a reference with other text; expected either a literal or one "
                "reference alone"
            )
    if not (rules.entities and rules.memory):
        return
    for reference in _references(task):
        source = earlier.get(reference.task_id)
        if source is None or source.status == FAILED or source.task_id == task.task_id:
            continue  # said as a dependency
        names = tuple(source.result) if source.status == DONE else source.entity_names
        if reference.entity not in names:
            near = nearest_name(reference.entity, names)
            hint = f"did you mean {near!r}?" if near else f"it has {', '.join(names) or 'none'}"
            yield f"{task.task_id}: refers to {reference}, and {source.task_id} has no such entity: {hint}"


def _signature_problems(task: PlanTask, rules: PlanRules) -> Iterable[str]:
    spec = rules.tools.get(task.tool_name) if task.task_type == TOOL_CALL else None
    if spec is None or not spec.parameters:
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
