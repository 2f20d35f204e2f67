"""Playing Workflow-v0 in tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.actions import INVOKE_TOOL, RETRY_TOOL, action_index

NUM_TOOLS = 30


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


def execute(env, tool: int) -> int:
    """Return the legal action that executes a tool: INVOKE, or RETRY after a failure."""
    mask = env.action_masks()
    num_tools = len(env.core.library)
    for action_type in (INVOKE_TOOL, RETRY_TOOL):
        action = action_index(action_type, tool, num_tools)
        if mask[action]:
            return action
    raise AssertionError(f"no execution of tool {tool} is legal")
