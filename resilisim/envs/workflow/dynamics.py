"""What an action does to an episode of Workflow-v0, as scalar functions over its record."""

from __future__ import annotations

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    CHECK_DEPENDENCIES,
    CREATE_CHECKPOINT,
    INVOKE_TOOL,
    NO_OP,
    PARALLEL_EXECUTE,
    RECOVER_ERROR,
    RESTORE_CHECKPOINT,
    RETRY_TOOL,
    VALIDATE_OUTPUT,
    action_type_of,
    tool_of,
)
from resilisim.envs.workflow.arrays import Episode, TaskRecord, World
from resilisim.envs.workflow.copying import copy_row, copy_table, fill
from resilisim.envs.workflow.curriculum import STAGES
from resilisim.envs.workflow.laws import DEADLOCK, pattern_confidence, thresholds
from resilisim.envs.workflow.masking import allow_execution, write_mask
from resilisim.envs.workflow.observing import (
    saturated,
    show_confidences,
    show_counters,
    show_dependency_counts,
    show_due,
    show_start,
)
from resilisim.envs.workflow.rewards import execution_reward, longest_ascending_run, step_reward
from resilisim.seeding import PURPOSE_FAILURE, PURPOSE_SUCCESS, WORD_MASK, threefry2x32, uniform_bits
from resilisim.simulator.compiled import scalar
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.transition import (
    COMPLETION,
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NO_LOOP,
    ORDER_BROKEN,
    RUNNING,
    TURNS,
    TURNS_USED,
    record_execution,
    record_turn,
)

OUTPUT_TYPE = 4  # columns.OPERATION_TYPE of an output
IN_ORDER_BONUS = 0.1  # beta_sequence
COMPLETE_PROGRESS = 0.95
TIMEOUT_PROGRESS = 0.5

# Table 12 as plain tuples, which compiled code reads.
MIN_PROGRESS = tuple(stage.min_progress for stage in STAGES)
MAX_ERRORS = tuple(stage.max_errors for stage in STAGES)
REQUIRED_COVERAGE = tuple(stage.required_coverage for stage in STAGES)

DRAWN = -1  # outcome of an execution that luck decides; any other value is the status that it is made to show

_threefry2x32 = scalar(threefry2x32)
_uniform_bits = scalar(uniform_bits)


@scalar
def begin_episode(episode: Episode, index: int, seed: int, task: TaskRecord, world: World) -> None:
    """Put an environment at the start of the episode of task number `index` under a seed."""
    episode.task = index
    episode.seed = seed
    key0, key1 = _threefry2x32(task.word0, task.word1, seed & WORD_MASK, seed >> 32)
    episode.key0 = key0
    episode.key1 = key1
    episode.running_success = world.running_success
    episode.stage = world.stage
    fill(episode.status, 0)
    fill(episode.counters, 0)
    episode.counters[LOOP_SIGNATURE] = NO_LOOP
    fill(episode.executions, 0)
    fill(episode.successes, 0)
    fill(episode.retries, 0)
    fill(episode.sequence, -1)
    episode.sequence_length = 0
    episode.places_length = 0
    episode.types_reached = 0
    episode.output_reached = 0
    episode.progress = 0.0
    episode.episode_return = 0.0
    episode.last_type = -1
    episode.needs_reset = 0
    episode.episode += 1
    episode.running = -1
    if world.training_law:
        fill(episode.validated, 0)
        fill(episode.checkpoint, -1)
        episode.checkpoint_row = -1
    show_start(episode, task, world)
    write_mask(episode, task, world)


@scalar
def _execute(
    episode: Episode,
    tool: int,
    outcome: int,
    task: TaskRecord,
    world: World,
) -> float:
    """Let a tool draw its luck, enter the outcome, and return what it pays under the two-phase reward."""
    attempt = int(episode.executions[tool])
    key0, key1 = _threefry2x32(episode.key0, episode.key1, world.tool_word0[tool], world.tool_word1[tool])
    bits = _uniform_bits(key0, key1, attempt, PURPOSE_SUCCESS)
    threshold, clean = thresholds(episode, tool, task, world)
    success = bits < threshold if outcome == DRAWN else outcome == columns.SUCCESS
    before = episode.status[tool]
    max_row = world.max_consecutive_failures
    if world.training_law:
        max_row = MAX_ERRORS[episode.stage] + 1
    record_execution(episode.status, episode.counters, task.place[tool], tool, success, max_row)
    episode.executions[tool] = attempt + 1
    first_success = success and before != SUCCEEDED
    row = episode.tools[tool]
    if success:
        pattern = pattern_confidence(episode, tool, world)
        _enter_success(episode, tool, first_success, task, world)
        row[columns.STATUS] = columns.SUCCESS
    else:
        pattern = 0.0
        episode.retries[tool] += 1
        row[columns.RETRIES] = saturated(episode.retries[tool])
        if before != SUCCEEDED:
            shown = _failure_status(bits < clean, key0, key1, attempt, tool, world)
            row[columns.STATUS] = shown if outcome == DRAWN else outcome
    row[columns.EXECUTIONS] = saturated(attempt + 1)
    if first_success:
        row[columns.SUCCESS_ORDER] = saturated(episode.sequence_length)
        if task.place[tool] >= 0:
            show_due(episode, task, world)
        if world.operation_type[tool] <= OUTPUT_TYPE:
            flow = episode.task_columns[columns.DATA_FLOW]
            episode.task_columns[columns.DATA_FLOW] = max(flow, world.operation_type[tool])
    if episode.status[tool] != before:
        for dependent in world.dependents[tool]:
            if dependent >= 0:
                show_dependency_counts(episode, dependent, task, world)
    if success and world.num_patterns > 0:
        show_confidences(episode, task, world)
    episode.tool = tool
    episode.tool_success = success
    episode.pattern = pattern
    if world.two_phase:
        return execution_reward(episode, tool, success, attempt == 0, first_success, pattern, task, world)
    return 0.0


@scalar
def _enter_success(episode: Episode, tool: int, first: bool, task: TaskRecord, world: World) -> None:
    episode.successes[tool] += 1
    length = episode.sequence_length
    episode.sequence[length] = tool
    episode.sequence_length = length + 1
    place = task.place[tool]
    if first and place >= 0:
        episode.places[episode.places_length] = place
        episode.places_length += 1
        if world.operation_type[tool] > 0:
            episode.types_reached |= 1 << int(world.operation_type[tool])
        if world.operation_type[tool] == OUTPUT_TYPE:
            episode.output_reached = 1


@scalar
def _failure_status(dependencies_to_blame: bool, key0: int, key1: int, attempt: int, tool: int, world: World) -> int:
    """Return which of the three failures an execution shows; the error is the one that Conversation-v0 would name."""
    if dependencies_to_blame:
        return columns.DEPENDENCY_FAILED
    drawn = _uniform_bits(key0, key1, attempt, PURPOSE_FAILURE) % world.num_errors[tool]
    return columns.TIMEOUT if drawn == world.timeout_error[tool] else columns.FAILED


@scalar
def _do_other(episode: Episode, action_type: int, tool: int, world: World) -> None:
    """Let an action that executes nothing happen (training law).

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
        if tool >= 0:
            episode.checkpoint[tool] = episode.retries[tool]
        else:
            copy_row(episode.checkpoint, episode.retries)
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


@scalar
def _coverage(episode: Episode, task: TaskRecord, world: World) -> float:
    """Return the share of required tools that have succeeded; as printed, that have been executed."""
    if not world.printed_rules:
        return float(episode.places_length / task.num_required)
    count = 0
    for place in range(task.num_required):
        count += 1 if episode.executions[task.required[place]] > 0 else 0
    return float(count / task.num_required)


@scalar
def _milestones(episode: Episode) -> int:
    count = int(episode.output_reached)
    reached = int(episode.types_reached)
    while reached > 0:
        count += reached & 1
        reached >>= 1
    return count


@scalar
def _ended_training(episode: Episode, coverage: float, way_forward: bool, world: World) -> int:
    """Return how the episode has ended under the training law, or RUNNING (appendix D.4.1)."""
    if episode.counters[ENDED] != RUNNING:
        return int(episode.counters[ENDED])
    if coverage >= 1.0 or (world.printed_rules and episode.progress >= 1.0):
        return COMPLETION
    if episode.counters[TURNS_USED] >= world.max_steps:
        return TURNS
    return RUNNING if way_forward else DEADLOCK


@scalar
def _succeeded_training(episode: Episode, ended: int, coverage: float, world: World) -> bool:
    """Return success in the training law's sense; the stage of the curriculum sets the least progress and coverage."""
    stage = episode.stage
    progress = episode.progress
    if world.printed_rules:
        if progress >= COMPLETE_PROGRESS or coverage >= 1.0:
            return True
        return (ended in (TURNS, DEADLOCK)) and progress >= TIMEOUT_PROGRESS
    if progress < MIN_PROGRESS[stage] or coverage < REQUIRED_COVERAGE[stage]:
        return False
    if coverage >= 1.0:
        return True
    return (ended in (TURNS, DEADLOCK)) and progress >= TIMEOUT_PROGRESS


@scalar
def step_environment(
    episode: Episode,
    action: int,
    outcome: int,
    task: TaskRecord,
    world: World,
) -> None:
    """Let one action happen in one environment and write what it did into its record.

    An action that the mask forbids is like a rejected call: it uses a step and does nothing else. `outcome` is DRAWN,
    or the status (columns) that an execution is made to show: SUCCESS or one of the failures.
    """
    num_tools = world.num_tools
    action_type, tool = action_type_of(action, num_tools), tool_of(action, num_tools)
    counters = episode.counters
    legal = episode.action_mask[action] == 1
    executes = legal and (action_type in (INVOKE_TOOL, RETRY_TOOL))
    signature = NO_LOOP
    if not legal:
        signature = num_tools + 1 + action
    elif action_type == NO_OP:
        signature = num_tools
    elif executes and episode.status[tool] == SUCCEEDED:
        signature = tool

    milestones_before = _milestones(episode)
    episode.tool = -1
    episode.tool_success = False
    episode.pattern = 0.0
    episode.named_similarity = task.similarity[tool] if tool >= 0 else 0.0
    reward = 0.0
    started = episode.running
    if legal and action_type == PARALLEL_EXECUTE:
        episode.running = tool
        episode.tools[tool, columns.STATUS] = columns.RUNNING
    elif started >= 0:
        episode.running = -1
    if started >= 0:
        reward += _execute(episode, started, outcome, task, world)
    if executes and counters[ENDED] == RUNNING:
        reward += _execute(episode, tool, outcome, task, world)
    elif legal and action_type != PARALLEL_EXECUTE and action_type != NO_OP and not executes:
        _do_other(episode, action_type, tool, world)
    if legal and tool >= 0:
        episode.tools[tool, columns.LAST_STEP] = saturated(counters[TURNS_USED] + 1)
    record_turn(counters, signature, 0 if world.training_law else world.loop_length)

    coverage = _coverage(episode, task, world)
    in_order = counters[ORDER_BROKEN] == 0 and episode.places_length > 0
    progress = coverage + (IN_ORDER_BONUS if in_order or world.printed_rules else 0.0)
    gain = max(0.0, min(1.0, progress) - episode.progress)
    episode.progress += gain
    full_success = counters[ORDER_BROKEN] == 0 and counters[NEXT_PLACE] == task.num_required

    way_forward = True
    if world.training_law or world.semantic_filter or world.dependency_filter or world.constraint_filter:
        way_forward = write_mask(episode, task, world)
    elif episode.tool >= 0:
        allow_execution(episode, episode.tool, True, world)
    if world.training_law:
        counters[ENDED] = _ended_training(episode, coverage, way_forward, world)
    elif counters[ENDED] == RUNNING:
        if full_success:
            counters[ENDED] = COMPLETION
        elif counters[TURNS_USED] >= world.max_steps:
            counters[ENDED] = TURNS
    show_counters(episode, world)
    milestones = _milestones(episode)
    if not world.hidden:
        episode.task_columns[columns.MILESTONES] = milestones

    ended = counters[ENDED] != RUNNING
    success = full_success
    if world.training_law and ended:
        success = _succeeded_training(episode, counters[ENDED], coverage, world)
    if world.two_phase:
        sequence = longest_ascending_run(episode.places, episode.places_length) / task.num_required
        stagnated = action_type == NO_OP and episode.last_type == NO_OP
        reward += step_reward(
            episode,
            action_type != NO_OP,
            stagnated,
            ended,
            success,
            gain,
            milestones - milestones_before,
            sequence,
            coverage,
            task,
            world,
        )
    elif ended and full_success:
        reward = 1.0
    episode.last_type = action_type
    episode.episode_return += reward
    episode.reward = reward
    episode.terminated = ended
    if ended:
        episode.needs_reset = 1
        _write_end(episode, success, full_success, coverage, task)


@scalar
def _write_end(episode: Episode, success: bool, full_success: bool, coverage: float, task: TaskRecord) -> None:
    ordered = longest_ascending_run(episode.places, episode.places_length)
    episode.success = success
    episode.full_success = full_success
    episode.score = episode.progress
    episode.coverage = coverage
    episode.order = ordered / task.num_required
    episode.steps = episode.counters[TURNS_USED]
    episode.ended = episode.counters[ENDED]
    episode.total = episode.episode_return
    episode.final_task = episode.task
    copy_row(episode.final_sequence, episode.sequence)
    copy_table(episode.final_tools, episode.tools)
    copy_row(episode.final_task_columns, episode.task_columns)
    copy_row(episode.final_mask, episode.action_mask)
