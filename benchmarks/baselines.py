"""Actors without a network for Workflow-v0: what a table of trained policies is read against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    INVOKE_TOOL,
    NUM_ACTION_TYPES,
    NUM_META_ACTIONS,
    RETRY_TOOL,
    action_index,
)
from resilisim.seeding import Draws

Observation = Mapping[str, NDArray[Any]]


class RandomActor:
    """Takes one of the legal actions, all equally likely.

    Args:
        name: Names the sequence of choices.
    """

    def __init__(self, *name: object) -> None:
        self._draws = Draws("random actor", *name)

    def act(self, observation: Observation, mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return actions, (num_envs,)."""
        actions = [self._draws.choice(np.flatnonzero(row).tolist()) for row in mask]
        return np.array(actions, dtype=np.int64)


class RequiredOrderActor:
    """Calls the next required tool until it succeeds, and nothing else: plan following."""

    def act(self, observation: Observation, mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return actions, (num_envs,)."""
        due = observation["tools"][:, :, columns.DUE]
        return _execution(np.where(due == 0, 256, due.astype(np.int64)).argmin(axis=1), mask)


class GreedyActor:
    """Calls what is most likely to succeed now, of the next required tool and the missing tools that lead to it.

    Among equals the required tool, then the order of the library. Missing dependencies therefore always run first.
    """

    def act(self, observation: Observation, mask: NDArray[Any]) -> NDArray[np.int64]:
        """Return actions, (num_envs,)."""
        tools = observation["tools"].astype(np.int64)
        required = tools[:, :, columns.DUE] == 1
        helps = (tools[:, :, columns.FIRST_DESCENDANT_DUE] == 1) & (tools[:, :, columns.PLACE] == 0)
        useful = required | (helps & (tools[:, :, columns.STATUS] != columns.SUCCESS))
        score = np.where(useful, 2 * tools[:, :, columns.CLEAN_PROBABILITY] + required, -1)
        return _execution(score.argmax(axis=1), mask)


def _execution(tools: NDArray[np.int64], mask: NDArray[Any]) -> NDArray[np.int64]:
    """Return the legal execution of each tool, (num_envs,): RETRY_TOOL after a failure, else INVOKE_TOOL."""
    num_tools = (mask.shape[1] - NUM_META_ACTIONS) // NUM_ACTION_TYPES - 1
    retry = np.array([action_index(RETRY_TOOL, int(tool), num_tools) for tool in tools])
    invoke = np.array([action_index(INVOKE_TOOL, int(tool), num_tools) for tool in tools])
    is_retry = mask[np.arange(len(tools)), retry] != 0
    return np.where(is_retry, retry, invoke)
