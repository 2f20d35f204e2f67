"""What the runs of a profile are compared with, each exact for every task: the optimum, and following a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import ExactLimitError
from resilisim.simulator import Problem, build_problem
from resilisim.simulator.exact import solved_references
from resilisim.statistics.estimates import FloatArray
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import resolve_planner

BoolArray = NDArray[np.bool_]
Cell = tuple[str, str]  # flaw and severity

THREADS = 2  # the compiled solver releases the interpreter lock, so they run side by side


@dataclass(frozen=True, slots=True, eq=False)
class SettingReferences:
    """The references of all tasks under one setting; shape (num_tasks,) each."""

    optimum: FloatArray  # V* of each task's start
    plan_following: FloatArray  # the chance of the required tools in order, each repeated until it succeeds
    # V* after the fewest searches that show the task's tools; V* where they are unknown or nobody has to search
    after_search: FloatArray
    gap: float  # by how much any V* may be too low; 0 where all are exact


@dataclass(frozen=True, slots=True, eq=False)
class ProfileReferences:
    """What is exact about the tasks of a profile."""

    settings: Mapping[EnvironmentSettings, SettingReferences]  # the standard one and those of the axes of numbers
    sound_obey: FloatArray  # chance of success by doing the sound plan to the letter; shape (num_tasks,)
    obey: Mapping[Cell, FloatArray]  # the same for each flaw and severity; NaN where a plan cannot carry the flaw
    carried: Mapping[str, BoolArray]  # for each flaw the tasks whose plans carry it at every severity


def setting_references(
    tasks: Sequence[Task],
    settings: EnvironmentSettings,
    library: ToolLibrary,
    on_task: Callable[[int], None],
    searches: Sequence[int | None],
) -> SettingReferences:
    """Solve all tasks under a setting; `on_task` gets the number solved since last time.

    `searches` are for each task the fewest that show its tools; None where that is unknown or does not matter. An
    ExactLimitError names a task that is too large to be solved.
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
    """Return the chances of full success of doing plans to the letter, with retries: of sound ones, and of each cell.

    The plans are those of the prompts that episodes begin with, and calls are refused as the setting says (a plan
    without required parameters can be followed where they may be left out). Where a plan cannot carry the flaw of a
    cell there is NaN; shape (num_tasks,).
    """
    rules = settings.rules()
    planner, perturber = (
        resolve_planner(settings.planner, library, settings.planning_law(), rules),
        settings.perturber(library),
    )
    names = [(*cell, None) for cell in cells]  # the method is drawn, as in the prompts
    sound = np.empty(len(tasks))
    flawed = {cell: np.full(len(tasks), np.nan) for cell in cells}
    for place, task in enumerate(tasks):
        workflow, problem = planner.plan(task), _problem(task, settings, library)
        sound[place] = follow_steps(problem, workflow.steps, settings.parameters).success
        for (flaw, severity, _), found in perturber.carried(workflow, task.required_tools, names):
            chance = follow_steps(problem, found.workflow.steps, settings.parameters).success
            flawed[flaw, severity][place] = chance
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
    return build_problem(library, task.required_tools, settings.failure_model(), settings.rules())
