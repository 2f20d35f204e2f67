"""Library, law and tasks of Workflow-v0 as the records that the kernel reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import action_type_of, num_actions, tool_of
from resilisim.envs.workflow.arrays import Layout, layout_for, make_episodes, make_records, task_dtype, world_dtype
from resilisim.envs.workflow.context import TaskContext
from resilisim.envs.workflow.executing import OUTPUT_TYPE
from resilisim.envs.workflow.kernel import TaskRecords, Worlds
from resilisim.envs.workflow.observing import LARGEST, quantised, saturated
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.seeding import hash_words
from resilisim.simulator.problem import Problem, build_problem
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary

TIMEOUT_ERROR = "TIMEOUT"


def build_tables(
    library: ToolLibrary, tasks: Sequence[Task], options: WorkflowOptions, context: TaskContext
) -> tuple[Layout, TaskRecords, Worlds]:
    """Return the layout, the tasks' records (num_tasks,), and the one (1,) of what all environments share.

    The first observations still lack what `kernel.write_starts` computes.

    Args:
        library: Tool library of the tasks.
        tasks: The tasks, at least one.
        options: Options of the environment.
        context: What retrieval says of the tasks.

    Raises:
        InvalidInputError: The required list of a task is empty or does not fit the library.
    """
    law, rules = options.benchmark_law(), options.end_rules()
    problems = [build_problem(library, task.required_tools, law, rules) for task in tasks]
    dependencies = problems[0].dependencies
    dependents: list[list[int]] = [[] for _ in library]
    for tool, needed in enumerate(dependencies):
        for dependency in needed:
            dependents[dependency].append(tool)
    layout = layout_for(
        tools=len(library),
        dependencies=max(map(len, dependencies)),
        dependents=max(map(len, dependents)),
        required=max(len(problem.required) for problem in problems),
        closure=max(len(problem.closure) for problem in problems),
        steps=rules.max_turns,
        bases=len(problems[0].table.bases),
    )
    worlds = make_records(1, world_dtype(layout))
    _write_options(worlds, options)
    _write_actions(worlds, len(library))
    _write_start_state(worlds, layout)
    _write_library(worlds, library, dependencies, dependents, context)
    _write_law(worlds, problems[0], law.history)
    records = make_records(len(tasks), task_dtype(layout))
    _write_tasks(records, tasks, problems, context, options.salt)
    _write_constant_columns(records, worlds, problems, context)
    return layout, records, worlds


def _write_options(worlds: Worlds, options: WorkflowOptions) -> None:
    rules = options.end_rules()
    worlds["training_law"] = options.law == "training"
    worlds["two_phase"] = options.reward == "two_phase"
    worlds["printed_rules"] = options.printed_rules
    for name in ("semantic", "dependency", "constraint"):
        worlds[f"{name}_filter"] = name in options.filters
    worlds["hidden"] = options.required == "hidden"
    worlds["rewrites_mask"] = options.law == "training" or len(options.filters) > 0
    worlds["max_steps"] = rules.max_turns
    worlds["max_consecutive_failures"] = rules.max_consecutive_failures
    worlds["loop_length"] = rules.loop_length


def _write_actions(worlds: Worlds, num_tools: int) -> None:
    every = range(num_actions(num_tools))
    worlds["action_type"][0, : len(every)] = [action_type_of(action, num_tools) for action in every]
    worlds["action_tool"][0, : len(every)] = [tool_of(action, num_tools) for action in every]


def _write_start_state(worlds: Worlds, layout: Layout) -> None:
    episode = make_episodes(1, layout)
    episode["needs_reset"] = 0
    worlds["start_state"] = episode["state"]


def _write_library(
    worlds: Worlds,
    library: ToolLibrary,
    dependencies: Sequence[Sequence[int]],
    dependents: Sequence[Sequence[int]],
    context: TaskContext,
) -> None:
    num_tools = len(library)
    world = worlds[0]
    world.num_tools = num_tools
    _write_padded(world.dependencies, dependencies)
    _write_padded(world.dependents, dependents)
    for tool, name in enumerate(library.names):
        for ancestor in library.closure((name,)):
            if ancestor != name:
                world.descends[library.index(ancestor), tool] = 1
        word0, word1 = hash_words(name)
        world.tool_word0[tool], world.tool_word1[tool] = word0, word1
        codes = [error.code for error in library[name].failure_errors]
        world.num_errors[tool] = len(codes)
        world.timeout_error[tool] = codes.index(TIMEOUT_ERROR) if TIMEOUT_ERROR in codes else -1
    world.operation_type[:num_tools] = context.operation_type


def _write_law(worlds: Worlds, problem: Problem, history: float) -> None:
    world = worlds[0]
    bases, needed, _, failures = problem.table.probability.shape
    world.base_index[: problem.num_tools] = problem.base_index
    world.probability[:bases, :needed, :needed, :failures] = problem.table.probability
    world.threshold[:bases, :needed, :needed, :failures] = problem.table.threshold
    shown = [quantised(chance) for chance in problem.table.probability[..., 0].flat]
    world.shown_probability[:bases, :needed, :needed] = np.reshape(shown, (bases, needed, needed))
    world.history_factor[:failures] = [quantised(history**count) for count in range(failures)]


def _write_tasks(
    records: TaskRecords, tasks: Sequence[Task], problems: Sequence[Problem], context: TaskContext, salt: str
) -> None:
    num_tools = problems[0].num_tools
    words = np.array([hash_words(salt, task.instance_id) for task in tasks], dtype=np.int64)
    records["word0"], records["word1"] = words[:, 0], words[:, 1]
    records["num_required"] = [len(problem.required) for problem in problems]
    records["closure_size"] = [len(problem.closure) for problem in problems]
    _write_padded(records["required"], [problem.required for problem in problems])
    _write_padded(records["closure"], [problem.closure for problem in problems])
    records["place"] = -1
    records["place"][:, :num_tools] = [problem.place for problem in problems]
    records["candidates"] = -1
    records["candidates"][:, :num_tools] = _ranked_candidates(context)
    records["similarity"][:, :num_tools] = context.similarity
    records["static_confidence"][:, :num_tools] = context.static_confidence
    records["task_confidence"][:, :num_tools] = context.task_confidence


def _write_padded(target: NDArray[Any], rows: Sequence[Sequence[int]]) -> None:
    """Write lists as the first rows of an array, padded with -1."""
    target[:] = -1
    for index, row in enumerate(rows):
        target[index, : len(row)] = row


def _milestones(problem: Problem, context: TaskContext) -> int:
    """Return how many milestones a task has: its operation types, and its first output."""
    types = {int(context.operation_type[tool]) for tool in problem.required} - {0}
    return len(types) + int(OUTPUT_TYPE in types)


def _ranked_candidates(context: TaskContext) -> NDArray[np.int64]:
    """Return the candidates of each task, (num_tasks, num_tools), the most similar first, padded with -1."""
    similarity = np.where(context.candidates, context.similarity, -np.inf)
    order = np.argsort(-similarity, axis=1, kind="stable")
    return np.where(np.take_along_axis(context.candidates, order, axis=1), order, -1)


def _write_constant_columns(
    records: TaskRecords, worlds: Worlds, problems: Sequence[Problem], context: TaskContext
) -> None:
    """Write the columns of the first observation that `write_starts` does not compute."""
    library, num_tools = problems[0].library, problems[0].num_tools
    hidden = bool(worlds["hidden"][0])
    shown = records["tools"][:, :num_tools]
    shown[:, :, columns.LEVEL] = [saturated(tool.metadata["dependency_level"]) for tool in library]
    shown[:, :, columns.NUM_DEPENDENCIES] = [saturated(len(tool.dependencies)) for tool in library]
    shown[:, :, columns.OPERATION_TYPE] = context.operation_type
    shown[:, :, columns.SIMILARITY] = _quantised(context.similarity)
    shown[:, :, columns.CONFIDENCE] = _quantised(context.static_confidence)
    shown[:, :, columns.IS_CANDIDATE] = context.candidates
    task_columns = records["task_columns"]
    task_columns[:, : columns.NUM_TASK_FEATURES] = context.features
    task_columns[:, columns.STEPS_LEFT] = saturated(problems[0].rules.max_turns)
    task_columns[:, columns.HISTORY_FACTOR] = quantised(1.0)
    task_columns[:, columns.BASE_PROBABILITY] = quantised(problems[0].law.base)
    if not hidden:
        shown[:, :, columns.PLACE] = np.array([problem.place for problem in problems]) + 1
        task_columns[:, columns.NUM_REQUIRED] = records["num_required"]
        task_columns[:, columns.MILESTONES_EXPECTED] = [_milestones(problem, context) for problem in problems]


def _quantised(shares: NDArray[np.float32]) -> NDArray[np.uint8]:
    return (LARGEST * np.clip(shares, 0.0, 1.0) + 0.5).astype(np.uint8)
