"""The records that stand for library, law and tasks: what compiled code of Workflow-v0 reads and never changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.settings import TRAINING_LAW
from resilisim.envs.workflow.context import TaskContext, types_of_skeleton
from resilisim.envs.workflow.kernels.observation import show_clocks, show_constant_sections, show_tool
from resilisim.envs.workflow.kernels.records import (
    Layout,
    Records,
    make_episodes,
    make_records,
    sections_dtype,
    task_dtype,
    world_dtype,
)
from resilisim.envs.workflow.kernels.rewards import num_milestones
from resilisim.envs.workflow.kernels.training_law import MAX_STAGE
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.spaces import (
    LARGEST,
    NUM_TASK_FEATURES,
    TASK_BASE_PROBABILITY,
    TASK_HISTORY_FACTOR,
    TASK_MILESTONES_EXPECTED,
    TASK_NUM_REQUIRED,
    TOOL_CONFIDENCE,
    TOOL_IS_CANDIDATE,
    TOOL_LEVEL,
    TOOL_NUM_DEPENDENCIES,
    TOOL_OPERATION_TYPE,
    TOOL_PLACE,
    TOOL_SIMILARITY,
    action_type_of,
    num_actions,
    quantised,
    saturated,
    tool_of,
)
from resilisim.seeding import hash_words
from resilisim.simulator.law import Law
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.rulebook.build import LawNumbers, as_record
from resilisim.simulator.rulebook.dynamics import parameter_digest
from resilisim.simulator.rulebook.rules import chance_down, chance_slow, time_limit
from resilisim.tasks import Task
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import changed_parameters


def call_parameters(tool: Tool, variant: int) -> dict[str, Any]:
    """Return the parameters that a call stands for: none, or, where those were refused, one that is changed."""
    return changed_parameters(tool, {}) if variant else {}


def build_tables(
    library: ToolLibrary, tasks: Sequence[Task], options: WorkflowOptions, context: TaskContext
) -> tuple[Layout, Records, Records]:
    """Return layout, tasks' records (num_tasks,) and the world's (1,), without what `write_starts` computes."""
    law, rules = options.failure_model(), options.end_rules()
    problems = [build_problem(library, task.required_tools, law, rules) for task in tasks]
    dependencies = problems[0].dependencies
    dependents: list[list[int]] = [[] for _ in library]
    for tool, needed in enumerate(dependencies):
        for dependency in needed:
            dependents[dependency].append(tool)
    numbers = problems[0].dynamics.numbers
    layout = Layout(
        tools=len(library),
        dependencies=max(map(len, dependencies)),
        dependents=max(map(len, dependents)),
        required=max(len(problem.required) for problem in problems),
        closure=max(len(problem.closure) for problem in problems),
        steps=rules.max_turns + 1,
        rows=len(numbers.tables.probability),
        errors=numbers.luck.error_weight.shape[2],
    )
    worlds = _make_worlds(layout, numbers, options)
    _write_options(worlds, options)
    worlds["stage"], worlds["max_turns"] = MAX_STAGE, options.turns_at(MAX_STAGE)
    start = make_episodes(1, layout)
    start["needs_reset"] = 0
    worlds["start_state"] = start["state"]
    _write_library(worlds, library, dependents, context, numbers.law)
    _write_law(worlds, numbers)
    if worlds["has_sections"][0]:
        _write_start_sections(worlds[0], start[0], layout, numbers.law)
    records = make_records(len(tasks), task_dtype(layout))
    _write_tasks(records, tasks, problems, context, options)
    _write_constant_columns(records, worlds, problems, context)
    return layout, records, worlds


def _make_worlds(layout: Layout, numbers: LawNumbers, options: WorkflowOptions) -> Records:
    """Return the world's record (1,), with the law in it; its goal is left to the tasks."""
    rules = numbers.rulebook._asdict()
    del rules["place"], rules["num_required"]
    if options.law == TRAINING_LAW:  # it has end rules of its own
        rules |= {"max_consecutive_failures": 0, "loop_length": 0}
    counts = (layout.counts, layout.counts, layout.steps)
    errors = (layout.tools, 2, layout.errors)
    lengths = {
        "probability": (layout.rows, *counts),
        "threshold": (layout.rows, *counts),
        "evidence": (layout.rows, *counts),
        "group_words": (layout.tools, 2),
        "broken_words": (layout.tools, 2),
        "error_weight": errors,
        "error_result": errors,
        "num_errors": (layout.tools, 2),
        "total_weight": (layout.tools, 2),
        "timeout_error": (layout.tools, 2),
    }
    law = {
        "rules": as_record(rules, layout.tools, layout.dependencies),
        "tables": _padded_record(numbers.tables._asdict(), lengths),
        "luck": _padded_record(numbers.luck._asdict(), lengths),
    }
    worlds = make_records(1, world_dtype(layout, **{name: record.dtype for name, record in law.items()}))
    for name, record in law.items():
        worlds[name] = record
    return worlds


def _padded_record(arrays: Mapping[str, NDArray[Any]], lengths: Mapping[str, tuple[int, ...]]) -> Any:
    """Return arrays as the fields of one record, padded with zeros to the lengths that a layout has."""
    fields = [(name, array.dtype, lengths[name]) for name, array in arrays.items()]
    record = np.zeros(1, dtype=np.dtype((np.record, np.dtype(fields, align=True))))
    for name, array in arrays.items():
        record[0][name][tuple(slice(size) for size in array.shape)] = array
    return record[0]


def _write_options(worlds: Records, options: WorkflowOptions) -> None:
    worlds["training_law"] = options.law == TRAINING_LAW
    worlds["two_phase"] = options.reward == "two_phase"
    worlds["printed_rules"] = options.printed_rules
    for name in ("semantic", "dependency", "constraint"):
        worlds[f"{name}_filter"] = name in options.filters
    worlds["hidden"] = options.required != "shown"
    worlds["without_list"] = options.required == "none"
    worlds["rewrites_mask"] = options.law == TRAINING_LAW or len(options.filters) > 0
    worlds["counts_every_step"] = options.law == TRAINING_LAW or options.printed_rules
    worlds["has_sections"] = options.failure_model().has_sections or options.detailed
    worlds["detailed"] = options.detailed


def _write_library(
    worlds: Records, library: ToolLibrary, dependents: Sequence[Sequence[int]], context: TaskContext, law: Law
) -> None:
    num_tools = len(library)
    world = worlds[0]
    every = range(num_actions(num_tools))
    world.action_type[: len(every)] = [action_type_of(action, num_tools) for action in every]
    world.action_tool[: len(every)] = [tool_of(action, num_tools) for action in every]
    _write_padded(world.dependents, dependents)
    for tool, name in enumerate(library.names):
        for ancestor in library.closure((name,)):
            if ancestor != name:
                world.descends[library.index(ancestor), tool] = 1
        world.tool_word0[tool], world.tool_word1[tool] = hash_words(name)
        digests = [parameter_digest(library[name], call_parameters(library[name], variant)) for variant in range(2)]
        world.digests[tool] = digests
        codes = [error.code for error in library[name].failure_errors]
        world.num_errors[tool] = len(codes)
        world.timeout_error[tool] = codes.index("TIMEOUT") if "TIMEOUT" in codes else -1
        weights = [law.error_weight(code) for code in codes] if law.errors else []
        if sum(weights) > 0.0:
            before = codes.index("TIMEOUT") if "TIMEOUT" in codes else len(codes)
            world.weighs_errors[tool] = 1
            world.timeout_from[tool] = sum(weights[:before]) / sum(weights)
            world.timeout_below[tool] = sum(weights[: before + 1]) / sum(weights)
    world.operation_type[:num_tools] = context.operation_type


def _write_law(worlds: Records, numbers: LawNumbers) -> None:
    world, law = worlds[0], numbers.law
    rows, needed, _, failures = numbers.tables.probability.shape
    shown = [quantised(chance) for chance in numbers.tables.probability[..., 0].flat]
    world.shown_probability[:rows, :needed, :needed] = np.reshape(shown, (rows, needed, needed))
    world.history_factor[:failures] = [quantised(law.history**count) for count in range(failures)]


def _write_start_sections(world: Any, episode: Any, layout: Layout, law: Law) -> None:
    """Write what an episode shows of sections when it begins, but for what the task says."""
    sections, rules = make_records(1, sections_dtype(layout)), world.rules
    own, drift = sections[0], law.drift.per_message if law.drift is not None else 0.0
    show_constant_sections(own, law.not_executed, law.failed, law.history, drift, world)
    slow = chance_slow(rules, time_limit(rules, own.parts))
    for tool in range(rules.num_tools):
        group = rules.group[tool]
        down = chance_down(rules, own.parts, group) if group >= 0 else 0.0
        show_tool(episode, own, tool, False, down, slow, world)
    show_clocks(own, 0.0, False, slow, world)
    world.start_sections[:] = sections["observation"][0]
    world.start_standing[:] = own.standing


def _write_tasks(
    records: Records, tasks: Sequence[Task], problems: Sequence[Problem], context: TaskContext, options: WorkflowOptions
) -> None:
    num_tools = problems[0].num_tools
    words = np.array([hash_words(options.salt, task.instance_id) for task in tasks], dtype=np.int64)
    records["word0"], records["word1"] = words[:, 0], words[:, 1]
    records["num_required"] = [len(problem.required) for problem in problems]
    records["closure_size"] = [len(problem.closure) for problem in problems]
    if options.required == "none":
        types = [types_of_skeleton(task.task_type) for task in tasks]
    else:
        types = [{int(context.operation_type[tool]) for tool in problem.required} - {0} for problem in problems]
    records["types"] = [sum(1 << code for code in of_task) for of_task in types]
    _write_padded(records["required"], [_by_place(problem) for problem in problems])
    _write_padded(records["closure"], [_dependents_first(problem) for problem in problems])
    records["place"] = -1
    records["place"][:, :num_tools] = [problem.place for problem in problems]
    records["candidates"] = -1
    records["candidates"][:, :num_tools] = _ranked_candidates(context)
    records["similarity"][:, :num_tools] = context.similarity
    records["static_confidence"][:, :num_tools] = context.static_confidence
    records["task_confidence"][:, :num_tools] = context.task_confidence


def _by_place(problem: Problem) -> list[int]:
    """Return the tools that can fill the places of a required list, by place."""
    tools = [tool for tool in problem.closure if problem.place[tool] >= 0]
    return sorted(tools, key=lambda tool: problem.place[tool])


def _dependents_first(problem: Problem) -> list[int]:
    """Return the closure in an order in which every tool stands before its dependencies."""
    ordered: dict[int, None] = {}
    for tool in problem.closure:
        pending = [tool]
        while pending:
            missing = [needed for needed in problem.dependencies[pending[-1]] if needed not in ordered]
            if missing and pending[-1] not in ordered:
                pending += missing
            else:
                ordered[pending.pop()] = None
    return list(ordered)[::-1]


def _write_padded(target: NDArray[Any], rows: Sequence[Sequence[int]]) -> None:
    """Write lists as the first rows of an array, padded with -1."""
    target[:] = -1
    for index, row in enumerate(rows):
        target[index, : len(row)] = row


def _ranked_candidates(context: TaskContext) -> NDArray[np.int64]:
    """Return the candidates of each task, (num_tasks, num_tools), the most similar first, padded with -1."""
    similarity = np.where(context.candidates, context.similarity, -np.inf)
    order = np.argsort(-similarity, axis=1, kind="stable")
    return np.where(np.take_along_axis(context.candidates, order, axis=1), order, -1)


def _write_constant_columns(
    records: Records, worlds: Records, problems: Sequence[Problem], context: TaskContext
) -> None:
    """Write the columns of the first observation that `write_starts` does not compute."""
    library, num_tools = problems[0].library, problems[0].num_tools
    hidden = bool(worlds["hidden"][0])
    shown = records["tools"][:, :num_tools]
    shown[:, :, TOOL_LEVEL] = [saturated(tool.metadata["dependency_level"]) for tool in library]
    shown[:, :, TOOL_NUM_DEPENDENCIES] = [saturated(len(tool.dependencies)) for tool in library]
    shown[:, :, TOOL_OPERATION_TYPE] = context.operation_type
    shown[:, :, TOOL_SIMILARITY] = _quantised(context.similarity)
    shown[:, :, TOOL_CONFIDENCE] = _quantised(context.static_confidence)
    shown[:, :, TOOL_IS_CANDIDATE] = context.candidates
    task_columns = records["task_columns"]
    task_columns[:, :NUM_TASK_FEATURES] = context.features
    task_columns[:, TASK_HISTORY_FACTOR] = quantised(1.0)
    task_columns[:, TASK_BASE_PROBABILITY] = quantised(problems[0].law.base)
    if not hidden:
        shown[:, :, TOOL_PLACE] = np.array([problem.place for problem in problems]) + 1
        task_columns[:, TASK_NUM_REQUIRED] = records["num_required"]
    if not hidden or worlds["without_list"][0]:
        task_columns[:, TASK_MILESTONES_EXPECTED] = [num_milestones(int(types)) for types in records["types"]]


def _quantised(shares: NDArray[np.float32]) -> NDArray[np.uint8]:
    return (LARGEST * np.clip(shares, 0.0, 1.0) + 0.5).astype(np.uint8)
