"""Options, libraries and tasks that the tests of Workflow-v0 share, and how they play it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.core import Observation
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.options import FILTERS
from resilisim.envs.workflow.spaces import INVOKE_TOOL, RETRY_TOOL, action_index
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import ToolLibrary
from tests.envs.workflow.reference import Reference
from tests.simulator.brute_force import small_library

# Every type of task, short and long lists.
TASKS = benchmark_tasks("benchmark-v1")[::315]  # with them every action and status is met in few episodes

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


LARGE_TASKS = (
    toy_task(LARGE, "tool_44", "tool_01"),
    toy_task(LARGE, *(f"tool_{number:02}" for number in range(0, 45, 2))),
)


def every_filter() -> Iterator[tuple[str, ...]]:
    """Yield all subsets of the filters."""
    for size in range(len(FILTERS) + 1):
        yield from combinations(FILTERS, size)


def reference_of(env: WorkflowEnv, **trainer: Any) -> Reference:
    """Return the plain model of the episode that an environment has just begun."""
    core = env.core
    row, seed = int(core.episodes["task"][0]), int(core.episodes["seed"][0])
    return Reference(core.library, core.tasks[row], core.options, core.context, row, seed, **trainer)


def random_legal(mask: NDArray[np.int8], generator: np.random.Generator) -> NDArray[np.int64]:
    """Return a legal action for each row of a mask (num_envs, num_actions), uniformly; every row must have one."""
    reached = np.cumsum(mask, axis=1, dtype=np.int64)
    wanted = (generator.random(len(mask)) * reached[:, -1]).astype(np.int64) + 1
    return np.argmax(reached >= wanted[:, None], axis=1)


def random_actions(mask: NDArray[np.int8], generator: np.random.Generator, illegal: float = 0.2) -> NDArray[np.int64]:
    """Return actions of which a share is drawn from all, most of them illegal."""
    actions = random_legal(mask, generator)
    wild = generator.random(len(mask)) < illegal
    actions[wild] = generator.integers(mask.shape[1], size=int(wild.sum()))
    return actions


def execute(env: WorkflowEnv, tool: int) -> int:
    """Return the legal action that executes a tool: INVOKE, or RETRY after a failure."""
    invoke, retry = (action_index(kind, tool, len(env.core.library)) for kind in (INVOKE_TOOL, RETRY_TOOL))
    chosen = invoke if env.action_masks()[invoke] else retry
    assert env.action_masks()[chosen]
    return chosen


def assert_same(shown: Mapping[str, NDArray[Any]], expected: Observation, where: object = "") -> None:
    """Check that two observations are equal, and name the columns that are not."""
    assert list(shown) == list(expected) == ["tools", "task", "action_mask"]
    for name, array in expected.items():
        assert shown[name].shape == array.shape
        assert shown[name].dtype == array.dtype
        different = np.argwhere(shown[name] != array)
        values = [(place.tolist(), int(shown[name][tuple(place)]), int(array[tuple(place)])) for place in different[:5]]
        assert not len(different), (where, name, values)
