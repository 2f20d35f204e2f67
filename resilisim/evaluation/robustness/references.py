"""What the runs of a profile are compared with, each exact for every task: the optimum, and following a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import ExactLimitError
from resilisim.evaluation.robustness.points import flawed_prompt
from resilisim.simulator import Problem, build_problem
from resilisim.simulator.exact import solved_references
from resilisim.statistics.estimates import FloatArray
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.workflows.flaws import FlawedWorkflow, Perturber
from resilisim.workflows.model import Workflow
from resilisim.workflows.plan_value import follow_steps
from resilisim.workflows.planner import resolve_planner
from resilisim.workflows.prompt_choice import parse_prompt_choice

THREADS = 2  # the compiled solver releases the interpreter lock, so they run side by side


@dataclass(frozen=True, slots=True, eq=False)
class SettingReferences:
    """The references of all tasks under one setting.

    Attributes:
        optimum: V* of each task's start; shape (num_tasks,).
        plan_following: The chance of the required tools in order, each again until it succeeds; shape (num_tasks,).
        after_search: V* after the fewest searches that show the task's tools, and V* where they are unknown or nobody
            has to search; shape (num_tasks,).
        gap: By how much any V* may be too low; 0 where all are exact.
    """

    optimum: FloatArray
    plan_following: FloatArray
    after_search: FloatArray
    gap: float


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
    problems = [problem_of(task, settings, library) for task in tasks]
    num_tasks = dict.fromkeys(problems, 0)
    for problem in problems:
        num_tasks[problem] += 1
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(solved_references, num_tasks)
        solved = {}
        for problem in num_tasks:
            try:
                solved[problem] = next(answers)
            except ExactLimitError as error:
                first = tasks[problems.index(problem)]
                raise ExactLimitError(f"task {first.instance_id}, {settings.max_turns} turns: {error}") from error
            on_task(num_tasks[problem])
    found = [solved[problem] for problem in problems]
    return SettingReferences(
        np.array([references.known_probabilities for references in found]),
        np.array([references.plan_following for references in found]),
        np.array([references.after_search[number or 0] for references, number in zip(found, searches, strict=True)]),
        max((references.known_probabilities_gap for references in found), default=0.0),
    )


def obedience(
    tasks: Sequence[Task],
    settings: EnvironmentSettings,
    library: ToolLibrary,
    cells: Sequence[tuple[str, str]],
    on_task: Callable[[int], None],
) -> tuple[FloatArray, dict[tuple[str, str], FloatArray]]:
    """Compute the chance of full success of doing plans to the letter, with retries: sound ones and flawed ones.

    The plans are those of the prompts that episodes begin with, and calls are refused as the setting says (a plan
    without required parameters can be followed where they may be left out).

    Returns:
        The chances of the sound plans, shape (num_tasks,), and for each cell those of the flawed ones, NaN where a
        plan cannot carry the flaw.
    """
    rules = settings.rules()
    planner, perturber = resolve_planner(settings.planner, library, settings.law(), rules), Perturber(library, rules)
    sound = np.empty(len(tasks))
    flawed = {cell: np.full(len(tasks), np.nan) for cell in cells}
    for place, task in enumerate(tasks):
        workflow = planner.plan(task)
        problem = problem_of(task, settings, library)
        sound[place] = _chance_of(workflow, problem, settings)
        for cell, carrying in _flawed(cells, perturber, workflow, task):
            flawed[cell][place] = _chance_of(carrying.workflow, problem, settings)
        on_task(1)
    return sound, flawed


def carried_at_every_severity(
    chances: Mapping[tuple[str, str], FloatArray], flaws: Sequence[str], severities: Sequence[str]
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Return for each flaw which plans can carry it at all severities; shape (num_tasks,)."""
    return {
        flaw: np.logical_and.reduce([~np.isnan(chances[flaw, severity]) for severity in severities]) for flaw in flaws
    }


def problem_of(task: Task, settings: EnvironmentSettings, library: ToolLibrary) -> Problem:
    """Return a task's problem under a setting; equal ones are the same object."""
    return build_problem(library, task.required_tools, settings.law(), settings.rules())


def _flawed(
    cells: Sequence[tuple[str, str]], perturber: Perturber, workflow: Workflow, task: Task
) -> Iterator[tuple[tuple[str, str], FlawedWorkflow]]:
    for flaw, severity in cells:
        # Read from the prompt's name, so that it is the very plan that the prompt shows.
        found = parse_prompt_choice(flawed_prompt(flaw, severity)).flawed(perturber, workflow, task)
        if isinstance(found, FlawedWorkflow):
            yield (flaw, severity), found


def _chance_of(workflow: Workflow, problem: Problem, settings: EnvironmentSettings) -> float:
    return follow_steps(problem, workflow.steps, settings.parameters).success
