"""What the runs of a profile are compared with, each exact for every task: the optimum, and following a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import ExactLimitError
from resilisim.evaluation.robustness.points import flawed_prompt
from resilisim.simulator import Problem, build_problem
from resilisim.simulator.exact import solved_references
from resilisim.statistics.estimates import FloatArray
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.flaws import FlawedWorkflow
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import resolve_planner
from resilisim.workflows.prompts import parse_prompt_choice

BoolArray = NDArray[np.bool_]
Cell = tuple[str, str]  # flaw and severity

THREADS = 2  # the compiled solver releases the interpreter lock, so they run side by side


@dataclass(frozen=True, slots=True, eq=False)
class SettingReferences:
    """The references of all tasks under one setting."""

    optimum: FloatArray  # V* of each task's start; shape (num_tasks,)
    # The chance of the required tools in order, each again until it succeeds; shape (num_tasks,)
    plan_following: FloatArray
    # V* after the fewest searches that show the task's tools, and V* where they are unknown or nobody has to search;
    # shape (num_tasks,)
    after_search: FloatArray
    gap: float  # by how much any V* may be too low; 0 where all are exact


@dataclass(frozen=True, slots=True, eq=False)
class ProfileReferences:
    """What is exact about the tasks of a profile."""

    # V*, V* after searches and plan following of each task, for each setting of the axes of numbers and the standard
    # one
    settings: Mapping[EnvironmentSettings, SettingReferences]
    sound_obey: FloatArray  # chance of success by doing the sound plan to the letter; shape (num_tasks,)
    obey: Mapping[Cell, FloatArray]  # the same for each flaw and severity; NaN where a plan cannot carry the flaw
    # For each flaw the tasks whose plans carry it at every severity; shape (num_tasks,)
    carried: Mapping[str, BoolArray]


def setting_references(
    tasks: Sequence[Task],
    settings: EnvironmentSettings,
    library: ToolLibrary,
    on_task: Callable[[int], None],
    searches: Sequence[int | None],
) -> SettingReferences:
    """Solve all tasks under a setting.

    Args:
        tasks: The tasks.
        settings: The setting.
        library: Their tool library.
        on_task: Called with the number of tasks solved since the last call.
        searches: For each task the fewest searches that show its tools; None where that is unknown or does not matter.

    Raises:
        ExactLimitError: A task is too large to be solved; the text names it.
    """
    places: dict[Problem, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(_problem(task, settings, library), []).append(place)
    optimum, plan_following, after_search = np.empty((3, len(tasks)))
    gap = 0.0
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(solved_references, places)
        for own in places.values():
            try:
                solved = next(answers)
            except ExactLimitError as error:
                name = tasks[own[0]].instance_id
                raise ExactLimitError(f"task {name}, {settings.max_turns} turns: {error}") from error
            optimum[own] = solved.known_probabilities
            plan_following[own] = solved.plan_following
            after_search[own] = [solved.after_search[searches[place] or 0] for place in own]
            gap = max(gap, solved.known_probabilities_gap)
            on_task(len(own))
    return SettingReferences(optimum, plan_following, after_search, gap)


def obedience(
    tasks: Sequence[Task],
    settings: EnvironmentSettings,
    library: ToolLibrary,
    cells: Sequence[Cell],
    on_task: Callable[[int], None],
) -> tuple[FloatArray, dict[Cell, FloatArray]]:
    """Compute the chance of full success of doing plans to the letter, with retries: sound ones and flawed ones.

    The plans are those of the prompts that episodes begin with, and calls are refused as the setting says (a plan
    without required parameters can be followed where they may be left out).

    Returns:
        The chances of the sound plans, shape (num_tasks,), and for each cell those of the flawed ones, NaN where a
        plan cannot carry the flaw.
    """
    rules = settings.rules()
    planner = resolve_planner(settings.planner, library, settings.law(), rules)
    perturber = settings.perturber(library)
    sound = np.empty(len(tasks))
    flawed = {cell: np.full(len(tasks), np.nan) for cell in cells}
    for place, task in enumerate(tasks):
        workflow, problem = planner.plan(task), _problem(task, settings, library)
        sound[place] = follow_steps(problem, workflow.steps, settings.parameters).success
        for cell in cells:
            # Read from the prompt's name, so that it is the very plan that the prompt shows.
            found = parse_prompt_choice(flawed_prompt(*cell)).flawed(perturber, workflow, task)
            if isinstance(found, FlawedWorkflow):
                flawed[cell][place] = follow_steps(problem, found.workflow.steps, settings.parameters).success
        on_task(1)
    return sound, flawed


def carried_at_every_severity(
    chances: Mapping[Cell, FloatArray], flaws: Sequence[str], severities: Sequence[str]
) -> dict[str, BoolArray]:
    """Return for each flaw which plans can carry it at all severities; shape (num_tasks,)."""
    return {
        flaw: np.logical_and.reduce([~np.isnan(chances[flaw, severity]) for severity in severities]) for flaw in flaws
    }


def _problem(task: Task, settings: EnvironmentSettings, library: ToolLibrary) -> Problem:
    """Return a task's problem under a setting; equal ones are the same object."""
    return build_problem(library, task.required_tools, settings.law(), settings.rules())
