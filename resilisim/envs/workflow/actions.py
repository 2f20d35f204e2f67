"""The actions of Workflow-v0 (appendix D.2): nine types, each with a tool or none, and four meta actions.

With T tools an action is an integer below 9 x (T + 1) + 4, which is 283 for 30 tools:

* `type * (T + 1) + tool` for an action type and a tool, `type * (T + 1) + T` for a type without a tool
* `9 * (T + 1) + meta` for a meta action

Which actions are legal is said in appendix D.2.1 and D.2.2. Without filters every action is legal that has a meaning.
Three filters narrow down which tools may be executed:

* constraint: the tool has not succeeded, failed fewer than three times since its last recovery, and nothing runs beside
  it that it depends on or that depends on it
* dependency: all direct dependencies of the tool have succeeded
* semantic: its composite confidence is above 0.3

If no tool without success can be executed and none runs, Algorithm 1 steps in: the two best retrieved candidates
without success; if there is none, the tools without dependencies (before step 10); else error recovery. A mask is never
empty: NO_OP is what remains.

Under the benchmark law only executions are legal, and NO_OP where there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilisim.envs.workflow.columns import (
    CONFIDENCE,
    DEPENDENCY_FAILED,
    FAILED,
    NOT_ATTEMPTED,
    RUNNING,
    STATUS,
    SUCCESS,
    TIMEOUT,
    names_between,
    quantised,
)
from resilisim.envs.workflow.context import WEIGHT_PATTERN
from resilisim.simulator.compiled import scalar
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.state import CONSECUTIVE_FAILURES, TURNS_USED

if TYPE_CHECKING:
    from resilisim.envs.workflow.arrays import Episode, TaskRecord, World

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
ACTION_TYPES = names_between(globals(), "INVOKE_TOOL", "PARALLEL_EXECUTE")

# The types of the meta actions, which have no tool; their none-tool duplicates are never legal.
META_ACTIONS = (NO_OP, CREATE_CHECKPOINT, RESTORE_CHECKPOINT, RECOVER_ERROR)
META_NO_OP, META_CREATE_CHECKPOINT, META_RESTORE_CHECKPOINT, META_RECOVER_ERROR = range(4)
NUM_META_ACTIONS = len(META_ACTIONS)


@scalar
def num_actions(num_tools: int) -> int:
    """Return the number of actions with a library of `num_tools` tools: 283 for 30."""
    return NUM_ACTION_TYPES * (num_tools + 1) + NUM_META_ACTIONS


def num_tools_of(num_actions: int) -> int:
    """Return the number of tools of a library with so many actions."""
    return (num_actions - NUM_META_ACTIONS) // NUM_ACTION_TYPES - 1


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


SEMANTIC_THRESHOLD = 0.3  # tau_threshold, without a value in the paper (SPEC section 5)

MAX_RETRIES = 3
FALLBACK_CANDIDATES = 2
FALLBACK_STEPS = 10

# Patterns have two or three tools; a key has 20 bits for each, counted from 1, so that 0 means none.
PATTERN_TOOL_BITS = 20


@scalar
def count_unmet(episode: Episode, tool: int, world: World) -> int:
    """Return how many direct dependencies of a tool have not succeeded."""
    count = 0
    for dependency in world.dependencies[tool]:
        if dependency < 0:
            break
        count += 1 if episode.status[dependency] != SUCCEEDED else 0
    return count


@scalar
def pattern_key(first: int, second: int, third: int) -> int:
    """Return the key of a pattern of three tools, or of two (`first` is -1)."""
    return ((first + 1) << (2 * PATTERN_TOOL_BITS)) | ((second + 1) << PATTERN_TOOL_BITS) | (third + 1)


@scalar
def pattern_score(key: int, world: World) -> float:
    """Return the score of a pattern, 0 if it was never mined."""
    low, high = 0, world.num_patterns
    while low < high:
        middle = (low + high) // 2
        if world.pattern_keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < world.num_patterns and world.pattern_keys[low] == key:
        return float(world.pattern_scores[low])
    return 0.0


@scalar
def pattern_confidence(episode: Episode, tool: int, world: World) -> float:
    """Return c_pattern: the best score of a pattern that a tool would extend after the latest successful tools."""
    length = episode.sequence_length
    if world.num_patterns == 0 or length == 0:
        return 0.0
    last = int(episode.sequence[length - 1])
    best = pattern_score(pattern_key(-1, last, tool), world)
    if length > 1:
        best = max(best, pattern_score(pattern_key(int(episode.sequence[length - 2]), last, tool), world))
    return best


@scalar
def has_failed(shown: int) -> bool:
    """Return whether a shown status is one of the three failures, so that the tool is retried, not invoked."""
    return shown in (FAILED, TIMEOUT, DEPENDENCY_FAILED)


@scalar
def confidence(episode: Episode, tool: int, task: TaskRecord, world: World) -> float:
    """Return the composite confidence of a tool, 0 to 1."""
    static = float(task.static_confidence[tool])
    return min(1.0, static + WEIGHT_PATTERN * pattern_confidence(episode, tool, world))


@scalar
def show_confidences(episode: Episode, task: TaskRecord, world: World) -> None:
    """Rewrite CONFIDENCE of every tool: the latest successful tools, and so the patterns to extend, have changed."""
    for tool in range(world.num_tools):
        episode.tools[tool, CONFIDENCE] = quantised(confidence(episode, tool, task, world))


@scalar
def passes_filters(episode: Episode, tool: int, task: TaskRecord, world: World) -> bool:
    """Return whether the filters that are on let a tool be executed."""
    if world.constraint_filter:
        if episode.tools[tool, STATUS] == SUCCESS or episode.retries[tool] >= MAX_RETRIES:
            return False
        other = episode.running
        if other >= 0 and (world.descends[other, tool] or world.descends[tool, other]):
            return False
    if world.dependency_filter and count_unmet(episode, tool, world) > 0:
        return False
    return not world.semantic_filter or confidence(episode, tool, task, world) > SEMANTIC_THRESHOLD


@scalar
def allow_execution(episode: Episode, tool: int, allowed: bool, world: World) -> None:
    """Write a tool's executions into the mask: INVOKE or, after a failure, RETRY; PARALLEL under the training law."""
    num_tools = world.num_tools
    shown = episode.tools[tool, STATUS]
    failed = has_failed(shown)
    allowed = allowed and shown != RUNNING
    mask = episode.action_mask
    mask[action_index(INVOKE_TOOL, tool, num_tools)] = 1 if allowed and not failed else 0
    mask[action_index(RETRY_TOOL, tool, num_tools)] = 1 if allowed and failed else 0
    if world.training_law:
        mask[action_index(PARALLEL_EXECUTE, tool, num_tools)] = 1 if allowed and shown != SUCCESS else 0


@scalar
def write_mask(episode: Episode, task: TaskRecord, world: World) -> bool:
    """Write the mask and return whether a tool without success can be executed (as printed: before the fallback)."""
    num_tools = world.num_tools
    mask = episode.action_mask
    for action in range(num_actions(num_tools)):
        mask[action] = 0
    executable, way_forward = False, False
    for tool in range(num_tools):
        allowed = passes_filters(episode, tool, task, world)
        allow_execution(episode, tool, allowed, world)
        shown = episode.tools[tool, STATUS]
        if allowed and shown != RUNNING:
            executable = True
            way_forward = way_forward or shown != SUCCESS
    fallen_back = False
    if not way_forward and episode.running < 0:
        fallen_back = _fall_back(episode, task, world)
    if world.training_law:
        _allow_other_types(episode, world)
    elif not executable and not fallen_back:
        mask[meta_action_index(META_NO_OP, num_tools)] = 1
    if world.printed_rules:
        return way_forward
    return way_forward or fallen_back or episode.running >= 0


@scalar
def _fall_back(episode: Episode, task: TaskRecord, world: World) -> bool:
    """Algorithm 1; return whether it made an execution legal."""
    num_tools = world.num_tools
    added = 0
    for tool in task.candidates:
        if tool >= 0 and added < FALLBACK_CANDIDATES and episode.tools[tool, STATUS] != SUCCESS:
            allow_execution(episode, tool, True, world)
            added += 1
    if added == 0 and episode.counters[TURNS_USED] < FALLBACK_STEPS:
        for tool in range(num_tools):
            if world.dependencies[tool, 0] < 0 and episode.tools[tool, STATUS] != SUCCESS:
                allow_execution(episode, tool, True, world)
                added += 1
    return added > 0


@scalar
def _allow_other_types(episode: Episode, world: World) -> None:
    """Write the mask of what executes nothing; each of these has a meaning under the training law only (`kernel`)."""
    num_tools = world.num_tools
    mask = episode.action_mask
    restorable = False
    for tool in range(num_tools):
        shown = episode.tools[tool, STATUS]
        retries, saved = episode.retries[tool], episode.checkpoint[tool]
        if shown == SUCCESS:
            mask[action_index(VALIDATE_OUTPUT, tool, num_tools)] = 1 - episode.validated[tool]
            continue
        if has_failed(shown) and retries > 0:
            mask[action_index(RECOVER_ERROR, tool, num_tools)] = 1
        if saved != retries:
            mask[action_index(CREATE_CHECKPOINT, tool, num_tools)] = 1
        if 0 <= saved < retries:
            mask[action_index(RESTORE_CHECKPOINT, tool, num_tools)] = 1
            restorable = True
        for dependency in world.dependencies[tool]:
            if dependency >= 0 and episode.tools[dependency, STATUS] == NOT_ATTEMPTED:
                mask[action_index(CHECK_DEPENDENCIES, tool, num_tools)] = 1
    consecutive = episode.counters[CONSECUTIVE_FAILURES]
    mask[meta_action_index(META_NO_OP, num_tools)] = 1
    mask[meta_action_index(META_CREATE_CHECKPOINT, num_tools)] = 1
    if restorable or 0 <= episode.checkpoint_row < consecutive:
        mask[meta_action_index(META_RESTORE_CHECKPOINT, num_tools)] = 1
    if consecutive > 0:
        mask[meta_action_index(META_RECOVER_ERROR, num_tools)] = 1
