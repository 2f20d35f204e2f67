"""Options, libraries and tasks that the tests of Workflow-v0 share, and how they play it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.context import TaskContext, build_context
from resilisim.envs.workflow.core import Observation
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.options import FILTERS, WorkflowKeywords, WorkflowOptions
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import ToolLibrary
from tests.envs.workflow.reference import Reference
from tests.simulator.libraries import small_library

# Every type of task, short and long lists.
TASKS = benchmark_tasks()[::315]

TOY = small_library({"read": [], "parse": ["read"], "write": ["parse", "read"]}, {"parse": 0.6, "write": 1.0})
# Compiled code is made for a layout: what is large is large in the same test library, and plays as many turns.
LARGE_TURNS = 300
LARGE = small_library({f"tool_{number:02}": [f"tool_{number // 3:02}"] if number > 2 else [] for number in range(45)})


def toy_task(library: ToolLibrary, *required: str, description: str = "Do it.", identifier: str = "") -> Task:
    """Return a task that asks for some tools of a library."""
    mapping = {
        "instance_id": identifier or f"toy_{'_'.join(required)}",
        "task_type": "toy",
        "complexity": "easy",
        "description": description,
        "required_tools": list(required),
        "inputs": {},
        "expected_outputs": {},
    }
    with warnings.catch_warnings():  # of an order against the dependencies, which some tests want
        warnings.simplefilter("ignore")
        return Task.from_mapping(mapping, library)


def every_filter() -> Iterator[tuple[str, ...]]:
    """Yield all subsets of the filters."""
    for size in range(len(FILTERS) + 1):
        yield from combinations(FILTERS, size)


@functools.lru_cache
def _context(library: ToolLibrary, tasks: tuple[Task, ...], similarity: Any) -> TaskContext:
    return build_context(library, tasks, similarity)


def reference_of(env: WorkflowEnv, keywords: WorkflowKeywords, **trainer: Any) -> Reference:
    """Return the plain model of the episode that an environment has just begun."""
    core = env.core
    options = WorkflowOptions.from_keywords(keywords)
    context = _context(core.library, tuple(core.tasks), options.similarity)
    row, seed = int(core.episodes["task"][0]), int(core.episodes["seed"][0])
    return Reference(core.library, core.tasks[row], options, context, row, seed, **trainer)


def some_actions(mask: NDArray[Any], generator: np.random.Generator, legal_share: float = 0.9) -> NDArray[np.int64]:
    """Draw actions for `mask` (..., num_actions): legal ones with the given share, else any."""
    weights = generator.random(mask.shape) * np.where(generator.random(mask.shape[:-1]) < legal_share, 1, 0)[..., None]
    chosen = np.where(weights.any(axis=-1), (weights * mask).argmax(axis=-1), 0)
    anything = generator.integers(mask.shape[-1], size=mask.shape[:-1])
    actions: NDArray[np.int64] = np.where(weights.any(axis=-1), chosen, anything)
    return actions


def assert_same(shown: Mapping[str, NDArray[Any]], expected: Observation, where: object = "") -> None:
    """Check that two observations are equal, and name the columns that are not."""
    assert list(shown) == list(expected) == ["tools", "task", "action_mask"]
    for name, array in expected.items():
        assert shown[name].shape == array.shape
        assert shown[name].dtype == array.dtype
        different = np.argwhere(shown[name] != array)
        values = [(place.tolist(), int(shown[name][tuple(place)]), int(array[tuple(place)])) for place in different[:5]]
        assert not len(different), (where, name, values)
