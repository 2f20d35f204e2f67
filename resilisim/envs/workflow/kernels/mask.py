"""Which actions of Workflow-v0 are legal: scalar functions that rewrite the mask where a step changed it.

What is legal is said in appendix D.2.1 and D.2.2. Without filters every action is legal that has a meaning. Three
filters narrow down which tools may be executed:

* constraint: the tool has not succeeded, failed fewer than three times since its last recovery, and nothing runs beside
  it that it depends on or that depends on it
* dependency: all direct dependencies of the tool have succeeded
* semantic: its composite confidence is above 0.3

If no tool without success can be executed and none runs, Algorithm 1 steps in: the two best retrieved candidates
without success, with the confidence 0.35; if there is none, the tools without dependencies (before step 10), with 0.30;
else nothing but error recovery, where there is something to recover. These confidences stand in the place of the
composite one, which let none of them pass. A mask is never empty: NO_OP is what remains.

Under every law but the training law only executions are legal, and NO_OP where there is none or where waiting can help.
After a tool's input was refused, INVOKE_TOOL calls it with a parameter changed, and RETRY_TOOL as it was.
VALIDATE_OUTPUT without a tool accepts outputs that only look sound, and so completes the episode.
"""

from __future__ import annotations

from resilisim.envs.workflow.kernels.records import Episode, Sections, TaskRecord, World
from resilisim.envs.workflow.spaces import (
    BLOCK_REFUSED,
    CHECK_DEPENDENCIES,
    CREATE_CHECKPOINT,
    INVOKE_TOOL,
    META_CREATE_CHECKPOINT,
    META_NO_OP,
    META_RECOVER_ERROR,
    META_RESTORE_CHECKPOINT,
    PARALLEL_EXECUTE,
    PART_BLOCK,
    RECOVER_ERROR,
    RESTORE_CHECKPOINT,
    RETRY_TOOL,
    STATUS_DEPENDENCY_FAILED,
    STATUS_FAILED,
    STATUS_NOT_ATTEMPTED,
    STATUS_RUNNING,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    TOOL_CONFIDENCE,
    TOOL_STATUS,
    VALIDATE_OUTPUT,
    WEIGHT_PATTERN,
    action_index,
    meta_action_index,
    num_actions,
    quantised,
)
from resilisim.simulator.compiled import scalar, unlikely
from resilisim.simulator.rulebook.entering import finish_value
from resilisim.simulator.state import CONSECUTIVE_FAILURES, TURNS_USED
from resilisim.simulator.tool_status import count_unmet

SEMANTIC_THRESHOLD = 0.3  # tau_threshold, without a value in the paper (SPEC section 5)

MAX_RETRIES = 3
FALLBACK_CANDIDATES = 2
FALLBACK_STEPS = 10
# Which line of Algorithm 1 made a mask, and the confidence of what it offers.
NO_FALLBACK, CANDIDATES, ROOTS, RECOVERY = range(4)
FALLBACK_CONFIDENCE = (0.0, 0.35, 0.30, 0.0)

# Patterns have two or three tools; a key has 20 bits for each, counted from 1, so that 0 means none.
PATTERN_TOOL_BITS = 20


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
    return shown in (STATUS_FAILED, STATUS_TIMEOUT, STATUS_DEPENDENCY_FAILED)


@scalar
def confidence(episode: Episode, tool: int, task: TaskRecord, world: World) -> float:
    """Return the confidence of a tool, 0 to 1: the composite one, or what Algorithm 1 gives to what it offers."""
    if episode.fallback != NO_FALLBACK and is_offered(episode, tool, world):
        return FALLBACK_CONFIDENCE[episode.fallback]
    static = float(task.static_confidence[tool])
    return min(1.0, static + WEIGHT_PATTERN * pattern_confidence(episode, tool, world))


@scalar
def is_offered(episode: Episode, tool: int, world: World) -> bool:
    """Return whether a tool without success can be executed; after a fallback those are what it offers."""
    num_tools, mask = world.rules.num_tools, episode.action_mask
    if episode.tools[tool, TOOL_STATUS] == STATUS_SUCCESS:
        return False
    return bool(mask[action_index(INVOKE_TOOL, tool, num_tools)] or mask[action_index(RETRY_TOOL, tool, num_tools)])


@scalar
def show_confidences(episode: Episode, task: TaskRecord, world: World) -> None:
    """Rewrite TOOL_CONFIDENCE of every tool: the latest successes, and so the patterns to extend, have changed."""
    for tool in range(world.rules.num_tools):
        episode.tools[tool, TOOL_CONFIDENCE] = quantised(confidence(episode, tool, task, world))


@scalar
def passes_filters(episode: Episode, tool: int, task: TaskRecord, world: World) -> bool:
    """Return whether the filters that are on let a tool be executed."""
    if world.constraint_filter:
        if episode.tools[tool, TOOL_STATUS] == STATUS_SUCCESS or episode.retries[tool] >= MAX_RETRIES:
            return False
        other = episode.running
        if other >= 0 and (world.descends[other, tool] or world.descends[tool, other]):
            return False
    if world.dependency_filter:
        num_not_executed, num_failed = count_unmet(episode.status, world.rules.dependencies[tool])
        if num_not_executed + num_failed > 0:
            return False
    return not world.semantic_filter or confidence(episode, tool, task, world) > SEMANTIC_THRESHOLD


@scalar
def allow_execution(episode: Episode, sections: Sections, tool: int, allowed: bool, world: World) -> None:
    """Write a tool's executions into the mask.

    INVOKE or, after a failure, RETRY; both after a refused input; under the training law also PARALLEL.
    """
    num_tools = world.rules.num_tools
    shown = episode.tools[tool, TOOL_STATUS]
    failed = has_failed(shown)
    refused = world.rules.at_block >= 0 and sections.tool_parts[tool, PART_BLOCK] == BLOCK_REFUSED
    allowed = allowed and shown != STATUS_RUNNING
    mask = episode.action_mask
    mask[action_index(INVOKE_TOOL, tool, num_tools)] = 1 if allowed and (not failed or refused) else 0
    mask[action_index(RETRY_TOOL, tool, num_tools)] = 1 if allowed and (failed or refused) else 0
    if world.training_law:
        mask[action_index(PARALLEL_EXECUTE, tool, num_tools)] = 1 if allowed and shown != STATUS_SUCCESS else 0


@scalar
def allow_acceptance(episode: Episode, finish_chance: float, world: World) -> None:
    """Write into the mask whether outputs that only look sound can be accepted."""
    num_tools = world.rules.num_tools
    episode.action_mask[action_index(VALIDATE_OUTPUT, num_tools, num_tools)] = 1 if 0.0 < finish_chance < 1.0 else 0


@scalar
def write_mask(episode: Episode, sections: Sections, task: TaskRecord, world: World) -> bool:
    """Write the mask and return whether a tool without success can be executed (as printed: before the fallback)."""
    rules, mask = world.rules, episode.action_mask
    num_tools = rules.num_tools
    was_fallback = episode.fallback
    episode.fallback = NO_FALLBACK
    for action in range(num_actions(num_tools)):
        mask[action] = 0
    executable, way_forward = False, False
    for tool in range(num_tools):
        allowed = passes_filters(episode, tool, task, world)
        allow_execution(episode, sections, tool, allowed, world)
        shown = episode.tools[tool, TOOL_STATUS]
        if allowed and shown != STATUS_RUNNING:
            executable = True
            way_forward = way_forward or shown != STATUS_SUCCESS
    fallen_back = False
    if not way_forward and episode.running < 0:
        fallen_back = _fall_back(episode, sections, task, world)
    if unlikely(episode.fallback != was_fallback or episode.fallback != NO_FALLBACK):
        show_confidences(episode, task, world)
    if world.training_law:
        _allow_other_types(episode, world)
        if unlikely(not (way_forward or fallen_back) and episode.running < 0):
            fallen_back = _force_recovery(episode, world)
    else:
        if rules.waiting_is_productive or not (executable or fallen_back):
            mask[meta_action_index(META_NO_OP, num_tools)] = 1
        chance = finish_value(rules, task, episode.counters, sections.parts, sections.hidden, False)
        allow_acceptance(episode, chance, world)
    if world.printed_rules:
        return way_forward
    return way_forward or fallen_back or episode.running >= 0


@scalar
def _fall_back(episode: Episode, sections: Sections, task: TaskRecord, world: World) -> bool:
    """Algorithm 1 but for recovery; return whether it made an execution legal."""
    rules = world.rules
    added = 0
    for tool in task.candidates:
        if tool >= 0 and added < FALLBACK_CANDIDATES and episode.tools[tool, TOOL_STATUS] != STATUS_SUCCESS:
            allow_execution(episode, sections, tool, True, world)
            episode.fallback = CANDIDATES
            added += 1
    if added == 0 and episode.counters[TURNS_USED] < FALLBACK_STEPS:
        for tool in range(rules.num_tools):
            if rules.dependencies[tool, 0] < 0 and episode.tools[tool, TOOL_STATUS] != STATUS_SUCCESS:
                allow_execution(episode, sections, tool, True, world)
                episode.fallback = ROOTS
                added += 1
    return added > 0


@scalar
def _force_recovery(episode: Episode, world: World) -> bool:
    """The last line of Algorithm 1: make nothing legal but recovery, and return whether there is any.

    Where there is none the mask stays as it is: the episode is in a deadlock.
    """
    mask, any_recovery = episode.action_mask, False
    for action in range(num_actions(world.rules.num_tools)):
        if mask[action] and world.action_type[action] in (RECOVER_ERROR, RESTORE_CHECKPOINT):
            any_recovery = True
    if any_recovery:
        episode.fallback = RECOVERY
        for action in range(num_actions(world.rules.num_tools)):
            if world.action_type[action] not in (RECOVER_ERROR, RESTORE_CHECKPOINT):
                mask[action] = 0
    return any_recovery


@scalar
def _allow_other_types(episode: Episode, world: World) -> None:
    """Write the mask of what executes nothing; each of these has a meaning under the training law only."""
    num_tools, mask = world.rules.num_tools, episode.action_mask
    restorable = False
    for tool in range(num_tools):
        shown = episode.tools[tool, TOOL_STATUS]
        retries, saved = episode.retries[tool], episode.checkpoint[tool]
        if shown == STATUS_SUCCESS:
            mask[action_index(VALIDATE_OUTPUT, tool, num_tools)] = 1 - episode.validated[tool]
            continue
        if has_failed(shown) and retries > 0:
            mask[action_index(RECOVER_ERROR, tool, num_tools)] = 1
        if saved != retries:
            mask[action_index(CREATE_CHECKPOINT, tool, num_tools)] = 1
        if 0 <= saved < retries:
            mask[action_index(RESTORE_CHECKPOINT, tool, num_tools)] = 1
            restorable = True
        for dependency in world.rules.dependencies[tool]:
            if dependency >= 0 and episode.tools[dependency, TOOL_STATUS] == STATUS_NOT_ATTEMPTED:
                mask[action_index(CHECK_DEPENDENCIES, tool, num_tools)] = 1
    consecutive = episode.counters[CONSECUTIVE_FAILURES]
    mask[meta_action_index(META_NO_OP, num_tools)] = 1
    mask[meta_action_index(META_CREATE_CHECKPOINT, num_tools)] = 1
    if restorable or 0 <= episode.checkpoint_row < consecutive:
        mask[meta_action_index(META_RESTORE_CHECKPOINT, num_tools)] = 1
    if consecutive > 0:
        mask[meta_action_index(META_RECOVER_ERROR, num_tools)] = 1
