"""What an action does to an episode of Workflow-v0: scalar functions over its record, for the loops of `loops`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

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
    allow_execution,
    count_unmet,
    pattern_confidence,
    show_confidences,
    write_mask,
)
from resilisim.envs.workflow.arrays import Episode, TaskRecord, World, copy_words
from resilisim.envs.workflow.columns import saturated, show_counters, show_dependency_counts, show_due
from resilisim.envs.workflow.law_parts import (
    PartTables,
    allow_under_parts,
    call_digest,
    coverage_under_parts,
    end_under_parts,
    is_waiting,
    show_parts,
)
from resilisim.envs.workflow.training import (
    STAGES,
    execution_reward,
    longest_ascending_run,
    step_reward,
    training_base,
    training_probability,
)
from resilisim.seeding import (
    PURPOSE_ERROR_CODE,
    PURPOSE_FAILURE,
    PURPOSE_SUCCESS,
    UNIFORM_BITS,
    WORD_MASK,
)
from resilisim.simulator.compiled import inlined, inlined_bits, inlined_threefry, scalar
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.rulebook.luck import OF_DEPENDENCIES, draw_result, is_down_next
from resilisim.simulator.rulebook.rules import (
    AS_HIDDEN,
    CORRUPT,
    FAILURE,
    NONE,
    OF_THE_TOOL,
    SLOW,
    SUCCESS,
    Rulebook,
    enter_execution,
    is_opened,
    is_time_up,
    pass_message,
)
from resilisim.simulator.state import (
    COMPLETION,
    CONSECUTIVE_FAILURES,
    ENDED,
    ENDED_BY,
    NEXT_PLACE,
    NO_LOOP,
    NUM_FAILURES,
    RUNNING,
    SPOILT,
    TURNS,
    TURNS_USED,
    record_execution,
    record_turn,
)

# How an episode of the training law can end, besides the codes of simulator.state.
DEADLOCK = 6  # where no law ends an episode for its time, whose code that is elsewhere
TWO_TO_THE_BITS = 2.0**UNIFORM_BITS

DRAWN = -1  # outcome of an execution that luck decides; any other value is the status that it is made to show
OUTPUT_TYPE = 4  # columns.OPERATION_TYPE of an output

MAX_ERRORS = tuple(stage.max_errors for stage in STAGES)  # Table 12 as a plain tuple, which compiled code reads


@inlined
def thresholds(episode: Episode, tool: int, task: TaskRecord, world: World) -> tuple[int, int]:
    """Return the integers below which an execution's 53 luck bits succeed, and would with all dependencies in place."""
    if world.training_law:
        base = training_base(episode.running_success)
        confidence = float(task.task_confidence[tool])
        retries = int(episode.retries[tool])
        chance = training_probability(base, count_unmet(episode, tool, world), retries, confidence)
        clean = training_probability(base, 0, retries, confidence)
        return math.ceil(chance * TWO_TO_THE_BITS), math.ceil(clean * TWO_TO_THE_BITS)
    dependencies = world.dependencies[tool]
    status = episode.status
    row = world.base_index[tool]
    failures = episode.counters[NUM_FAILURES]
    num_not_executed = count_not_executed(status, dependencies)
    num_failed = count_failed_dependencies(status, dependencies)
    return world.threshold[row, num_not_executed, num_failed, failures], world.threshold[row, 0, 0, failures]


# Of one execution: the tool's luck key, two words, and the 53 bits that decide whether it succeeds.
Luck: TypeAlias = tuple[int, int, int]


@scalar
def luck_of(episode: Episode, tool: int, world: World) -> Luck:
    """Return the luck of a tool's next execution."""
    key0, key1 = inlined_threefry(episode.key0, episode.key1, world.tool_word0[tool], world.tool_word1[tool])
    return key0, key1, inlined_bits(key0, key1, int(episode.executions[tool]), PURPOSE_SUCCESS)


@inlined
def execute(episode: Episode, tool: int, outcome: int, luck: Luck, task: TaskRecord, world: World) -> float:
    """Execute a tool, with the outcome DRAWN or a status to show, and return what the two-phase reward pays for it."""
    attempt = int(episode.executions[tool])
    key0, key1, bits = luck
    threshold, clean = thresholds(episode, tool, task, world)
    success = bits < threshold if outcome == DRAWN else outcome == columns.SUCCESS
    before = episode.status[tool]
    max_row = MAX_ERRORS[episode.stage] + 1 if world.training_law else world.max_consecutive_failures
    record_execution(episode.status, episode.counters, task.place[tool], tool, success, max_row)
    shown = outcome
    if not success and before != SUCCEEDED and outcome == DRAWN:
        shown = _failure_status(bits < clean, key0, key1, attempt, tool, world)
    return _show_execution(episode, tool, success, before, shown, task, world)


@inlined
def _show_execution(
    episode: Episode, tool: int, success: bool, before: int, shown: int, task: TaskRecord, world: World
) -> float:
    """Enter an execution into all but `status` and `counters`, and return what the two-phase reward pays for it.

    `before` is the tool's status before it, and `shown` the one that a failure shows.
    """
    attempt = int(episode.executions[tool])
    episode.executions[tool] = attempt + 1
    first_success = success and before != SUCCEEDED
    pattern = 0.0
    row = episode.tools[tool]
    row[columns.EXECUTIONS] = saturated(attempt + 1)
    if success:
        pattern = pattern_confidence(episode, tool, world)
        _enter_success(episode, tool, first_success, task, world)
        row[columns.STATUS] = columns.SUCCESS
    else:
        episode.retries[tool] += 1
        row[columns.RETRIES] = saturated(episode.retries[tool])
        if before != SUCCEEDED:
            row[columns.STATUS] = shown
    if episode.status[tool] != before:
        for dependent in world.dependents[tool]:
            if dependent < 0:
                break
            show_dependency_counts(episode, dependent, task, world)
    if first_success and task.place[tool] >= 0:
        show_due(episode, task, world)
    if success and world.num_patterns > 0:
        show_confidences(episode, task, world)
    episode.tool = tool
    episode.tool_success = success
    episode.pattern = pattern
    if world.two_phase:
        return execution_reward(episode, tool, success, attempt == 0, first_success, pattern, task, world)
    return 0.0


@inlined
def _enter_success(episode: Episode, tool: int, first: bool, task: TaskRecord, world: World) -> None:
    """Append a success to the sequence; a tool's first one also counts for order, milestones and data flow."""
    episode.successes[tool] += 1
    length = episode.sequence_length
    episode.sequence[length] = tool
    episode.sequence_length = length + 1
    if not first:
        return
    operation_type = int(world.operation_type[tool])
    episode.tools[tool, columns.SUCCESS_ORDER] = saturated(length + 1)
    if operation_type <= OUTPUT_TYPE:
        flow = episode.task_columns[columns.DATA_FLOW]
        episode.task_columns[columns.DATA_FLOW] = max(int(flow), operation_type)
    place = task.place[tool]
    for earlier in range(episode.places_length):
        if episode.places[earlier] == place:
            return  # another tool has taken it
    if place >= 0:
        episode.places[episode.places_length] = place
        episode.places_length += 1
        if operation_type > 0 and not episode.types_reached >> operation_type & 1:
            # An output is two milestones: its operation type, and the first output.
            episode.types_reached |= 1 << operation_type
            episode.milestones += 2 if operation_type == OUTPUT_TYPE else 1


@scalar
def _failure_status(dependencies_to_blame: bool, key0: int, key1: int, attempt: int, tool: int, world: World) -> int:
    """Return which of the three failures an execution shows; the error is the one that Conversation-v0 would name."""
    if dependencies_to_blame:
        return columns.DEPENDENCY_FAILED
    if world.weighs_errors[tool]:
        uniform = inlined_bits(key0, key1, attempt, PURPOSE_ERROR_CODE) / TWO_TO_THE_BITS
        is_timeout = world.timeout_from[tool] <= uniform < world.timeout_below[tool]
        return columns.TIMEOUT if is_timeout else columns.FAILED
    drawn = inlined_bits(key0, key1, attempt, PURPOSE_FAILURE) % world.num_errors[tool]
    return columns.TIMEOUT if drawn == world.timeout_error[tool] else columns.FAILED


@scalar
def keep_books(episode: Episode, action_type: int, tool: int, world: World) -> None:
    """Let an action that executes nothing happen (`WorkflowEnv` says what each does); a success is never lost."""
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


COMPLETE_PROGRESS = 0.95
TIMEOUT_PROGRESS = 0.5

# Table 12 as plain tuples, which compiled code reads.
MIN_PROGRESS = tuple(stage.min_progress for stage in STAGES)
REQUIRED_COVERAGE = tuple(stage.required_coverage for stage in STAGES)


@inlined
def coverage_of(episode: Episode, task: TaskRecord, world: World) -> float:
    """Return the share of required tools that have succeeded; as printed, that have been executed."""
    if not world.printed_rules:
        return float(episode.places_length / task.num_required)
    count = 0
    for place in range(task.num_required):
        count += 1 if episode.executions[task.required[place]] > 0 else 0
    return float(count / task.num_required)


@inlined
def ended_by_law(episode: Episode, coverage: float, full_success: bool, way_forward: bool, world: World) -> int:
    """Return the code of how the episode has ended after a step, or RUNNING."""
    ended = int(episode.counters[ENDED])
    if ended != RUNNING:
        return ended
    complete = full_success
    if world.training_law:
        complete = coverage >= 1.0 or (world.printed_rules == 1 and episode.progress >= 1.0)
    if complete:
        return COMPLETION
    if episode.counters[TURNS_USED] >= world.max_steps:
        return TURNS
    return DEADLOCK if world.training_law and not way_forward else RUNNING


@scalar
def succeeded_in_training(episode: Episode, ended: int, coverage: float, world: World) -> bool:
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
def order_share(episode: Episode, task: TaskRecord) -> float:
    """Return r_sequence: the longest ascending run of required places / number required."""
    return float(longest_ascending_run(episode.places, episode.places_length) / task.num_required)


@scalar
def write_end(episode: Episode, success: bool, full_success: bool, coverage: float, order: float) -> None:
    """Write down how the episode came out."""
    episode.success = success
    episode.full_success = full_success
    episode.score = episode.progress
    episode.coverage = coverage
    episode.order = order
    episode.steps = episode.counters[TURNS_USED]
    episode.ended = episode.counters[ENDED]
    episode.total = episode.episode_return
    episode.final_task = episode.task
    for index in range(len(episode.sequence)):
        episode.final_sequence[index] = episode.sequence[index]


# Key of an info at the end of an episode -> field of the episode's record.
END_FIELDS: Mapping[str, str] = {
    "success": "success",
    "full_success": "full_success",
    "score": "score",
    "coverage": "coverage",
    "sequence": "order",
    "steps": "steps",
    "ended": "ended",
    "episode_return": "total",
    "task": "final_task",
}


def ended_by(code: int, training_law: bool) -> str | None:
    """Return what a code of `ended` means; None while the episode runs."""
    return "deadlock" if training_law and code == DEADLOCK else ENDED_BY[code]


IN_ORDER_BONUS = 0.1  # beta_sequence


@scalar
def begin_episode(episode: Episode, index: int, seed: int, task: TaskRecord, world: World) -> None:
    """Put an environment at the start of the episode of task number `index` under a seed."""
    key0, key1 = inlined_threefry(task.word0, task.word1, seed & WORD_MASK, seed >> 32)
    episode.task = index
    episode.seed = seed
    episode.key0 = key0
    episode.key1 = key1
    episode.running_success = world.running_success
    episode.stage = world.stage
    episode.episode += 1
    copy_words(episode.state, world.start_state)
    copy_words(episode.observation, task.start_observation)


@inlined
def step_environment(episode: Episode, action: int, outcome: int, luck: Luck, task: TaskRecord, world: World) -> None:
    """Let one action happen in one environment and write what it did into its record.

    One that the mask forbids is like a rejected call: it uses a step. `outcome` is DRAWN or a status to show, `luck`
    that of the next execution of the action's tool.
    """
    num_tools = world.num_tools
    action_type, tool = int(world.action_type[action]), int(world.action_tool[action])
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

    milestones_before = episode.milestones
    episode.tool = -1
    episode.tool_success = False
    episode.pattern = 0.0
    episode.named_similarity = task.similarity[tool] if tool >= 0 else 0.0
    reward = 0.0
    started = int(episode.running)
    episode.running = -1
    if legal and action_type == PARALLEL_EXECUTE:
        episode.running = tool
        episode.tools[tool, columns.STATUS] = columns.RUNNING
    if started >= 0:  # in the step before; the mask forbids to call it in this one
        reward += execute(episode, started, outcome, luck_of(episode, started, world), task, world)
    if executes and counters[ENDED] == RUNNING:
        reward += execute(episode, tool, outcome, luck, task, world)
    if legal and not executes and action_type != PARALLEL_EXECUTE and action_type != NO_OP:
        keep_books(episode, action_type, tool, world)
    if legal and tool >= 0:
        episode.tools[tool, columns.LAST_STEP] = saturated(counters[TURNS_USED] + 1)
    record_turn(counters, signature, 0 if world.training_law else world.loop_length)
    coverage = coverage_of(episode, task, world)
    full_success = counters[SPOILT] == 0 and counters[NEXT_PLACE] == task.num_required
    _close_step(episode, action_type, coverage, full_success, reward, milestones_before, task, world)


@inlined
def _close_step(
    episode: Episode,
    action_type: int,
    coverage: float,
    full_success: bool,
    reward: float,
    milestones_before: int,
    task: TaskRecord,
    world: World,
) -> None:
    """Do what follows from a step: progress, mask, columns, the reward and the end; `reward` is that of executions."""
    counters = episode.counters
    in_order = counters[SPOILT] == 0 and episode.places_length > 0
    progress = coverage + (IN_ORDER_BONUS if in_order or world.printed_rules else 0.0)
    gain = max(0.0, min(1.0, progress) - episode.progress)
    episode.progress += gain
    way_forward = True
    if world.rewrites_mask:
        way_forward = write_mask(episode, task, world)
    elif episode.tool >= 0:
        allow_execution(episode, episode.tool, True, world)
    ended = ended_by_law(episode, coverage, full_success, way_forward, world)
    counters[ENDED] = ended
    show_counters(episode, world)

    success, order = full_success, 0.0
    if ended != RUNNING:
        order = order_share(episode, task)
        if world.training_law:
            success = succeeded_in_training(episode, ended, coverage, world)
    if world.two_phase:
        reward += step_reward(
            episode,
            action_type != NO_OP,
            action_type == NO_OP and episode.last_type == NO_OP,
            ended != RUNNING,
            success,
            gain,
            episode.milestones - milestones_before,
            order,
            coverage,
            task,
            world,
        )
    elif ended != RUNNING and full_success:
        reward = 1.0
    episode.last_type = action_type
    episode.episode_return += reward
    episode.reward = reward
    episode.terminated = ended != RUNNING
    if ended != RUNNING:
        episode.needs_reset = 1
        write_end(episode, success, full_success, coverage, order)


@scalar
def _execute_under_parts(
    episode: Episode, mine: Any, action_type: int, tool: int, parts: PartTables, task: TaskRecord, world: World
) -> float:
    """Execute a tool, and return what the two-phase reward pays for it."""
    rules, luck, counters, status = parts.rules[episode.task], parts.luck, episode.counters, episode.status
    attempt = int(episode.executions[tool])
    key0, key1 = inlined_threefry(episode.key0, episode.key1, world.tool_word0[tool], world.tool_word1[tool])
    digest = call_digest(mine, action_type, tool, parts.digests)
    result, ticks, shown = parts.given
    if result == DRAWN:
        opened = 1 if rules.at_block >= 0 and is_opened(rules, status) else 0
        result, ticks, error = draw_result(
            rules, parts.tables, luck, status, counters, mine.parts, mine.hidden, tool, digest, key0, key1, attempt
        )
        shown = columns.FAILED
        if result == SLOW or (error >= 0 and error == luck.timeout_error[tool, opened]):
            shown = columns.TIMEOUT
        elif error == OF_DEPENDENCIES:
            shown = columns.DEPENDENCY_FAILED
        elif result == FAILURE and rules.at_block < 0:
            shown = _failure_status(False, key0, key1, attempt, tool, world)
    before = status[tool]
    known, hidden = mine.parts, mine.hidden
    enter_execution(
        rules, parts.tables, status, counters, known, hidden, True, tool, result, ticks, digest, AS_HIDDEN, OF_THE_TOOL
    )
    return _show_execution(episode, tool, result in (SUCCESS, CORRUPT), before, shown, task, world)


@scalar
def step_under_parts(
    episode: Episode, mine: Any, action: int, parts: PartTables, task: TaskRecord, world: World
) -> None:
    """Let one action happen as `step_environment` does, under a law with parts."""
    rules: Rulebook = parts.rules[episode.task]
    num_tools, counters = world.num_tools, episode.counters
    action_type, tool = int(world.action_type[action]), int(world.action_tool[action])
    legal = episode.action_mask[action] == 1
    executes = legal and (action_type in (INVOKE_TOOL, RETRY_TOOL))
    accepts = legal and action_type == VALIDATE_OUTPUT
    turns_used, milestones_before = counters[TURNS_USED], episode.milestones
    episode.tool = -1
    episode.tool_success = False
    episode.pattern = 0.0
    episode.named_similarity = task.similarity[tool] if tool >= 0 else 0.0
    reward = 0.0
    if executes:
        reward = _execute_under_parts(episode, mine, action_type, tool, parts, task, world)
    else:
        signature = num_tools if legal else num_tools + 1 + action
        if accepts or (legal and is_waiting(action_type, rules)):
            signature = NO_LOOP
        pass_message(rules, mine.parts, NONE)
        record_turn(counters, signature, world.loop_length)
    if legal and tool >= 0:
        episode.tools[tool, columns.LAST_STEP] = saturated(turns_used + 1)
    for group in range(rules.num_groups):
        is_down = is_down_next(rules, parts.luck, episode.key0, episode.key1, turns_used, group, mine.hidden)
        mine.hidden[rules.at_down + group] = 1 if is_down else 0
    full_success = end_under_parts(counters, mine, accepts, world.max_steps, rules, is_time_up(rules, mine.parts))
    show_parts(episode, mine, task, world, rules, parts.tables)
    coverage = coverage_under_parts(episode, mine, task, rules)
    _close_step(episode, action_type, coverage, full_success, reward, milestones_before, task, world)
    allow_under_parts(episode, mine, task, world, rules)
