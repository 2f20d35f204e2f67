"""What the actions of Workflow-v0 do that execute nothing. They are legal under the training law only."""

from __future__ import annotations

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    CHECK_DEPENDENCIES,
    CREATE_CHECKPOINT,
    RECOVER_ERROR,
    RESTORE_CHECKPOINT,
    VALIDATE_OUTPUT,
)
from resilisim.envs.workflow.arrays import Episode, World
from resilisim.envs.workflow.observing import saturated
from resilisim.simulator.compiled import scalar
from resilisim.simulator.state import CONSECUTIVE_FAILURES


@scalar
def keep_books(episode: Episode, action_type: int, tool: int, world: World) -> None:
    """Let an action that executes nothing happen.

    VALIDATE_OUTPUT checks a result, once per tool, and RECOVER_ERROR without a tool clears the air: both end a row of
    failures. RECOVER_ERROR of a tool forgets its retries. CHECK_DEPENDENCIES marks dependencies not attempted as
    QUEUED. CREATE_CHECKPOINT keeps the retries of a tool, or of all tools and the row of failures; RESTORE_CHECKPOINT
    brings them back where they have grown since. A success is never lost.
    """
    if action_type == VALIDATE_OUTPUT:
        episode.validated[tool] = 1
        episode.counters[CONSECUTIVE_FAILURES] = 0
    elif action_type == RECOVER_ERROR:
        if tool >= 0:
            _set_retries(episode, tool, 0)
        else:
            episode.counters[CONSECUTIVE_FAILURES] = 0
    elif action_type == CHECK_DEPENDENCIES:
        for dependency in world.dependencies[tool]:
            if dependency >= 0 and episode.tools[dependency, columns.STATUS] == columns.NOT_ATTEMPTED:
                episode.tools[dependency, columns.STATUS] = columns.QUEUED
    elif action_type == CREATE_CHECKPOINT:
        for other in range(world.num_tools):
            if tool < 0 or tool == other:
                episode.checkpoint[other] = episode.retries[other]
        if tool < 0:
            episode.checkpoint_row = episode.counters[CONSECUTIVE_FAILURES]
    elif action_type == RESTORE_CHECKPOINT:
        for other in range(world.num_tools):
            saved = int(episode.checkpoint[other])
            if (tool < 0 or tool == other) and 0 <= saved < episode.retries[other]:
                _set_retries(episode, other, saved)
        if tool < 0 and 0 <= episode.checkpoint_row < episode.counters[CONSECUTIVE_FAILURES]:
            episode.counters[CONSECUTIVE_FAILURES] = episode.checkpoint_row


@scalar
def _set_retries(episode: Episode, tool: int, retries: int) -> None:
    episode.retries[tool] = retries
    episode.tools[tool, columns.RETRIES] = saturated(retries)
