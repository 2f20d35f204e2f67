"""Plans of the benchmark, and flaws in them, for the tests of this folder."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from resilisim import benchmark_tasks, default_library
from resilisim.tasks import Task
from resilisim.tool_library.retrieval import default_retriever
from resilisim.workflows import ExactPlanner, Workflow
from resilisim.workflows.flaws import (
    FLAW_METHODS,
    SEVERITIES,
    FlawedWorkflow,
    FlawRefusal,
    Perturber,
    ToolSimilarity,
    tool_similarity,
)

LIBRARY = default_library()
# A prime, so that the sample does not walk in step with how the tasks lie in the benchmark.
STRIDE = 83

METHODS = [(flaw, method) for flaw, methods in FLAW_METHODS.items() for method in methods]


@functools.cache
def similarity() -> ToolSimilarity:
    return tool_similarity(default_retriever(LIBRARY))


@functools.cache
def perturber() -> Perturber:
    return Perturber(similarity=similarity)


@functools.cache
def planned(stride: int = STRIDE) -> tuple[tuple[Task, Workflow], ...]:
    planner = ExactPlanner()
    return tuple((task, planner.plan(task)) for task in benchmark_tasks()[::stride])


def distinct_plans(stride: int) -> list[tuple[Task, Workflow]]:
    """Return every `stride`-th of the benchmark's required lists, one task of each."""
    planner = ExactPlanner()
    distinct = {task.required_tools: task for task in benchmark_tasks()}
    return [(task, planner.plan(task)) for task in list(distinct.values())[::stride]]


def outcomes(
    flaw: str, method: str, severity: str, seed: int = 0
) -> Iterator[tuple[Task, FlawedWorkflow | FlawRefusal]]:
    for task, workflow in planned():
        yield task, perturber().perturb(workflow, task.required_tools, flaw, severity, method, seed)


@functools.cache
def flawed(flaw: str, method: str, severity: str) -> tuple[tuple[Task, FlawedWorkflow], ...]:
    """Return the flawed workflows of the sample's tasks whose plans can carry the flaw."""
    found = outcomes(flaw, method, severity)
    return tuple((task, outcome) for task, outcome in found if isinstance(outcome, FlawedWorkflow))


def all_flawed(flaw: str, method: str) -> Iterator[tuple[Task, FlawedWorkflow]]:
    for severity in SEVERITIES:
        yield from flawed(flaw, method, severity)
