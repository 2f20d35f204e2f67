"""What a picture of Workflow-v0 shows (`envs.rendering`)."""

from __future__ import annotations

from resilisim.envs.rendering import Scene, ToolState
from resilisim.envs.workflow.core import WorkflowCore
from resilisim.envs.workflow.spaces import (
    ACTION_TYPES,
    STATUSES,
    TOOL_EXECUTIONS,
    TOOL_STATUS,
    action_type_of,
    tool_of,
)
from resilisim.simulator.state import ENDED_BY, TURNS_USED

_WORDS = tuple(status.lower().replace("_", " ") for status in STATUSES)


def action_words(core: WorkflowCore, action: int) -> str:
    """Return the type of an action and the name of its tool, or that it has none."""
    num_tools = len(core.library)
    tool = tool_of(action, num_tools)
    kind = ACTION_TYPES[action_type_of(action, num_tools)]
    return f"{kind} {core.library.names[tool] if tool >= 0 else 'no tool'}"


def scene_of(core: WorkflowCore, env: int, action: int | None) -> Scene:
    """Return what there is to see of an environment, whose last action is given, or None at the start.

    Where the next episode has begun at once, that is the one to see, beside what ended the one before.
    """
    episode, rows = core.episodes[env], core.observation["tools"][env]
    if episode.counters[TURNS_USED] == 0 and not episode.terminated:
        action = None
    tools = tuple(
        ToolState(name, _WORDS[row[TOOL_STATUS]], int(row[TOOL_EXECUTIONS]))
        for name, row in zip(core.library.names, rows, strict=True)
    )
    task = core.tasks[int(episode.task)]
    answer, status = task.description, "not attempted"
    if action is not None:
        executed = int(episode.tool)
        if executed < 0:
            answer = "nothing executed"
        else:
            status = "success" if episode.tool_success else "failed"
            shown = tools[executed].status
            answer = f"{core.library.names[executed]}: {status if shown == 'not attempted' else shown}"
    ending, is_success = "", bool(episode.full_success)
    if action is not None and episode.terminated:
        cause = ENDED_BY[int(episode.ended)]
        ending = "full success" if is_success else f"failure: {cause}"
        if not episode.needs_reset:  # the next one has begun
            answer, ending = f"{answer}; the episode before has ended: {ending}", ""
    title = f"{task.instance_id}, episode seed {int(episode.seed)}"
    turns = int(episode.max_turns)
    call = "" if action is None else action_words(core, action)
    return Scene(
        title, int(episode.counters[TURNS_USED]), turns, tools, task.required_tools, call, answer, status, ending,
        is_success,
    )  # fmt: skip
