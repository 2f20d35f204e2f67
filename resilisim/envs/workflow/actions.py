"""The actions of Workflow-v0 (appendix D.2): nine types, each with a tool or none, and four meta actions.

With T tools an action is an integer below 9 x (T + 1) + 4, which is 283 for 30 tools:

* `type * (T + 1) + tool` for an action type and a tool, `type * (T + 1) + T` for a type without a tool
* `9 * (T + 1) + meta` for a meta action
"""

from __future__ import annotations

from resilisim.simulator.compiled import scalar

INVOKE_TOOL = 0
VALIDATE_OUTPUT = 1
RETRY_TOOL = 2
RECOVER_ERROR = 3
CHECK_DEPENDENCIES = 4
CREATE_CHECKPOINT = 5
RESTORE_CHECKPOINT = 6
NO_OP = 7
PARALLEL_EXECUTE = 8
NUM_ACTION_TYPES = 9
ACTION_TYPES = (
    "INVOKE_TOOL",
    "VALIDATE_OUTPUT",
    "RETRY_TOOL",
    "RECOVER_ERROR",
    "CHECK_DEPENDENCIES",
    "CREATE_CHECKPOINT",
    "RESTORE_CHECKPOINT",
    "NO_OP",
    "PARALLEL_EXECUTE",
)

# The types of the meta actions, which have no tool; their none-tool duplicates are never legal.
META_ACTIONS = (NO_OP, CREATE_CHECKPOINT, RESTORE_CHECKPOINT, RECOVER_ERROR)
META_NO_OP = 0
META_CREATE_CHECKPOINT = 1
META_RESTORE_CHECKPOINT = 2
META_RECOVER_ERROR = 3
NUM_META_ACTIONS = 4


@scalar
def num_actions(num_tools: int) -> int:
    """Return the number of actions with a library of `num_tools` tools: 283 for 30."""
    return NUM_ACTION_TYPES * (num_tools + 1) + NUM_META_ACTIONS


@scalar
def action_index(action_type: int, tool: int, num_tools: int) -> int:
    """Return the action of a type and a tool (`num_tools` for none)."""
    return action_type * (num_tools + 1) + tool


@scalar
def meta_action_index(meta: int, num_tools: int) -> int:
    """Return the action of a meta action, 0 to 3."""
    return NUM_ACTION_TYPES * (num_tools + 1) + meta


@scalar
def action_type_of(action: int, num_tools: int) -> int:
    """Return the type of an action; that of a meta action is the type without a tool."""
    if action < NUM_ACTION_TYPES * (num_tools + 1):
        return action // (num_tools + 1)
    return META_ACTIONS[action - NUM_ACTION_TYPES * (num_tools + 1)]


@scalar
def tool_of(action: int, num_tools: int) -> int:
    """Return the tool of an action, or -1 if it has none."""
    if action >= NUM_ACTION_TYPES * (num_tools + 1):
        return -1
    tool = action % (num_tools + 1)
    return tool if tool < num_tools else -1
