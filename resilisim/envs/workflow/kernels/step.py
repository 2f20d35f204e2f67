"""What an action does to an episode of Workflow-v0: scalar functions over its records, for the loops of `batch_loops`.

The transition is that of `simulator.rulebook`, the one which Conversation-v0 plays: the same functions, compiled. The
training law has chances, ends and actions of its own; its rulebook has no sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from resilisim.envs.workflow.kernels.mask import (
    allow_acceptance,
    allow_execution,
    pattern_confidence,
    show_confidences,
    write_mask,
)
from resilisim.envs.workflow.kernels.observation import (
    show_counters,
    show_dependency_counts,
    show_due,
    show_sections,
    show_serving,
    show_shared,
)
from resilisim.envs.workflow.kernels.records import (
    Episode,
    EpisodeBlocks,
    Sections,
    SectionsBlocks,
    TaskBlocks,
    TaskRecord,
    World,
    copy_words,
)
from resilisim.envs.workflow.kernels.rewards import (
    execution_reward,
    longest_ascending_run,
    progress_without_list,
    step_reward,
)
from resilisim.envs.workflow.kernels.training_law import MAX_STAGE, STAGES, training_base, training_probability
from resilisim.envs.workflow.spaces import (
    BLOCK_REFUSED,
    CHECK_DEPENDENCIES,
    CREATE_CHECKPOINT,
    INVOKE_TOOL,
    NO_OP,
    OUTPUT_TYPE,
    PARALLEL_EXECUTE,
    PART_BLOCK,
    RECOVER_ERROR,
    RESTORE_CHECKPOINT,
    RETRY_TOOL,
    STATUS_DEPENDENCY_FAILED,
    STATUS_FAILED,
    STATUS_NOT_ATTEMPTED,
    STATUS_QUEUED,
    STATUS_RUNNING,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
    TASK_DATA_FLOW,
    TOOL_EXECUTIONS,
    TOOL_LAST_STEP,
    TOOL_RETRIES,
    TOOL_STATUS,
    TOOL_SUCCESS_ORDER,
    VALIDATE_OUTPUT,
    saturated,
)
from resilisim.seeding import PURPOSE_ERROR_CODE, PURPOSE_FAILURE, PURPOSE_SUCCESS, WORD_MASK
from resilisim.simulator.compiled import inlined, inlined_bits, inlined_threefry, scalar, unlikely
from resilisim.simulator.rulebook.drawn_results import (
    OF_DEPENDENCIES,
    OTHER_ERROR,
    UNIT,
    draw_result,
    write_first_hidden,
    write_next_down,
)
from resilisim.simulator.rulebook.entering import enter_result, finish_value, signature_of_call
from resilisim.simulator.rulebook.lost_answers import shown_result
from resilisim.simulator.rulebook.rules import (
    AS_HIDDEN,
    CORRUPT,
    FAILURE,
    NONE,
    SLOW,
    SUCCESS,
    clean_threshold,
    is_opened,
    is_time_up,
    law_threshold,
    pass_message,
)
from resilisim.simulator.state import (
    COMPLETION,
    CONSECUTIVE,
    CONSECUTIVE_FAILURES,
    DEADLOCK,
    ENDED,
    NO_LOOP,
    NUM_FAILURES,
    RUNNING,
    SPOILT,
    TIME,
    TURNS,
    TURNS_USED,
    record_turn,
)
from resilisim.simulator.tool_status import SUCCEEDED, count_unmet, success_threshold

DRAWN = -1  # instead of a number that is given: luck decides

MAX_ERRORS = tuple(stage.max_errors for stage in STAGES)  # Table 12 as a plain tuple, which compiled code reads

# Of one execution: the tool's luck key, two words, and the 53 bits that decide whether it succeeds.
Luck: TypeAlias = tuple[int, int, int]
# What executions are made to bring: a result of `rulebook.rules` or DRAWN, its ticks, the status that a failure shows.
Outcome: TypeAlias = tuple[int, int, int]
BY_LUCK: Outcome = (DRAWN, 0, 0)


@scalar
def luck_of(episode: Episode, tool: int, world: World) -> Luck:
    """Return the luck of a tool's next execution."""
    key0, key1 = inlined_threefry(episode.key0, episode.key1, world.tool_word0[tool], world.tool_word1[tool])
    return key0, key1, inlined_bits(key0, key1, int(episode.executions[tool]), PURPOSE_SUCCESS)


@inlined
def thresholds(episode: Episode, tool: int, task: TaskRecord, world: World) -> tuple[int, int]:
    """Return what an execution's bits must stay below to succeed, and what with all dependencies in place."""
    if unlikely(world.training_law != 0):
        base, confidence = training_base(episode.running_success), float(task.task_confidence[tool])
        retries, unmet = int(episode.retries[tool]), count_unmet(episode.status, world.rules.dependencies[tool])
        chance = training_probability(base, unmet[0] + unmet[1], retries, confidence)
        return success_threshold(chance), success_threshold(training_probability(base, 0, retries, confidence))
    rules, tables, counters = world.rules, world.tables, episode.counters
    clean = clean_threshold(rules, tables, counters, tool)
    return law_threshold(rules, tables, episode.status, counters, tool), clean


@inlined
def draw_outcome(
    episode: Episode, sections: Sections, tool: int, digest: int, luck: Luck, task: TaskRecord, world: World
) -> Outcome:
    """Return what luck brings to an execution; `digest` stands for its parameters."""
    rules, status, attempt = world.rules, episode.status, int(episode.executions[tool])
    key0, key1, bits = luck
    threshold, clean = thresholds(episode, tool, task, world)
    parts, hidden = sections.parts, sections.hidden
    result, ticks, error = draw_result(
        rules, world.luck, status, parts, hidden, tool, digest, threshold, clean, key0, key1, attempt, bits
    )
    if result in (SUCCESS, CORRUPT):
        return result, ticks, STATUS_SUCCESS
    if shown_result(result) == SLOW:
        return result, ticks, STATUS_TIMEOUT
    if error == OF_DEPENDENCIES:
        return result, ticks, STATUS_DEPENDENCY_FAILED
    is_timeout = False
    if error != OTHER_ERROR:
        is_timeout = error == world.luck.timeout_error[tool, 1 if is_opened(rules, status) else 0]
    elif shown_result(result) == FAILURE and status[tool] != SUCCEEDED:  # else nobody is shown it
        is_timeout = _is_timeout(key0, key1, attempt, tool, world)
    return result, ticks, STATUS_TIMEOUT if is_timeout else STATUS_FAILED


@scalar
def _is_timeout(key0: int, key1: int, attempt: int, tool: int, world: World) -> bool:
    """Return whether a failure without a kind shows a TIMEOUT; the error is the one that Conversation-v0 would name."""
    if world.weighs_errors[tool]:
        uniform = inlined_bits(key0, key1, attempt, PURPOSE_ERROR_CODE) * UNIT
        return bool(world.timeout_from[tool] <= uniform < world.timeout_below[tool])
    drawn = inlined_bits(key0, key1, attempt, PURPOSE_FAILURE) % world.num_errors[tool]
    return bool(drawn == world.timeout_error[tool])


@inlined
def execute(
    episode: Episode,
    sections: Sections,
    action_type: int,
    tool: int,
    outcome: Outcome,
    luck: Luck,
    task: TaskRecord,
    world: World,
) -> float:
    """Execute a tool, and return what the two-phase reward pays for it."""
    rules, counters, status = world.rules, episode.counters, episode.status
    digest = 0
    if unlikely(rules.at_block >= 0):
        digest = _call_digest(sections, action_type, tool, world)
    result, ticks, shown = outcome
    if result == DRAWN:
        result, ticks, shown = draw_outcome(episode, sections, tool, digest, luck, task, world)
    before, parts, hidden = status[tool], sections.parts, sections.hidden
    success = result in (SUCCESS, CORRUPT)
    enter_result(
        rules,
        task,
        world.tables,
        status,
        counters,
        parts,
        hidden,
        True,
        tool,
        result,
        ticks,
        digest,
        AS_HIDDEN,
        AS_HIDDEN,
    )
    if world.training_law and not success and counters[CONSECUTIVE_FAILURES] == MAX_ERRORS[episode.stage] + 1:
        counters[ENDED] = CONSECUTIVE
    return _show_execution(episode, sections, tool, success, before, shown, task, world)


@scalar
def _call_digest(sections: Sections, action_type: int, tool: int, world: World) -> int:
    """Return what stands for the parameters of a call; INVOKE_TOOL changes those that were refused."""
    if action_type == INVOKE_TOOL and sections.tool_parts[tool, PART_BLOCK] == BLOCK_REFUSED:
        sections.variant[tool] = 1 - sections.variant[tool]
    return int(world.digests[tool, sections.variant[tool]])


@inlined
def _show_execution(
    episode: Episode,
    sections: Sections,
    tool: int,
    success: bool,
    before: int,
    shown: int,
    task: TaskRecord,
    world: World,
) -> float:
    """Enter an execution into all but what the law reads, and return what the two-phase reward pays for it.

    `before` is the tool's status before it, and `shown` the one that a failure shows.
    """
    attempt = int(episode.executions[tool])
    episode.executions[tool] = attempt + 1
    first_success = success and before != SUCCEEDED
    pattern = 0.0
    row = episode.tools[tool]
    row[TOOL_EXECUTIONS] = saturated(attempt + 1)
    if success:
        pattern = pattern_confidence(episode, tool, world)
        _enter_success(episode, tool, first_success, task, world)
        row[TOOL_STATUS] = STATUS_SUCCESS
    else:
        episode.retries[tool] += 1
        row[TOOL_RETRIES] = saturated(episode.retries[tool])
        if before != SUCCEEDED:
            row[TOOL_STATUS] = shown
    if episode.status[tool] != before:
        for dependent in world.dependents[tool]:
            if dependent < 0:
                break
            show_dependency_counts(episode, dependent, task, world)
    if (first_success and task.place[tool] >= 0) or (success and world.rules.at_sound >= 0):
        show_due(episode, sections, task, world)
    if unlikely(success and world.num_patterns > 0):
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
    episode.tools[tool, TOOL_SUCCESS_ORDER] = saturated(length + 1)
    if operation_type <= OUTPUT_TYPE:
        flow = episode.task_columns[TASK_DATA_FLOW]
        episode.task_columns[TASK_DATA_FLOW] = max(int(flow), operation_type)
    if unlikely(world.without_list != 0):
        if task.types >> operation_type & 1:
            _reach_type(episode, operation_type)
        return
    place = task.place[tool]
    for earlier in range(episode.places_length):
        if episode.places[earlier] == place:
            return  # another tool has taken it
    if place >= 0:
        episode.places[episode.places_length] = place
        episode.places_length += 1
        if operation_type > 0:
            _reach_type(episode, operation_type)


@inlined
def _reach_type(episode: Episode, operation_type: int) -> None:
    """Count an operation type as a milestone, once; an output is two: its type, and the first output."""
    if not episode.types_reached >> operation_type & 1:
        episode.types_reached |= 1 << operation_type
        episode.milestones += 2 if operation_type == OUTPUT_TYPE else 1


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
        for dependency in world.rules.dependencies[tool]:
            if dependency >= 0 and episode.tools[dependency, TOOL_STATUS] == STATUS_NOT_ATTEMPTED:
                episode.tools[dependency, TOOL_STATUS] = STATUS_QUEUED
    elif action_type == CREATE_CHECKPOINT:
        for other in range(world.rules.num_tools):
            if tool < 0 or tool == other:
                episode.checkpoint[other] = episode.retries[other]
        if tool < 0:
            episode.checkpoint_row = episode.counters[CONSECUTIVE_FAILURES]
    elif action_type == RESTORE_CHECKPOINT:
        for other in range(world.rules.num_tools):
            saved = int(episode.checkpoint[other])
            if (tool < 0 or tool == other) and 0 <= saved < episode.retries[other]:
                _set_retries(episode, other, saved)
        if tool < 0 and 0 <= episode.checkpoint_row < episode.counters[CONSECUTIVE_FAILURES]:
            episode.counters[CONSECUTIVE_FAILURES] = episode.checkpoint_row


@scalar
def _set_retries(episode: Episode, tool: int, retries: int) -> None:
    episode.retries[tool] = retries
    episode.tools[tool, TOOL_RETRIES] = saturated(retries)


COMPLETE_PROGRESS = 0.95
TIMEOUT_PROGRESS = 0.5

WHOLE_TOOL = 1e-9  # shares of a list are no exact numbers: 0.7 of ten tools are seven

# Table 12 as plain tuples, which compiled code reads.
MIN_PROGRESS = tuple(stage.min_progress for stage in STAGES)
REQUIRED_COVERAGE = tuple(stage.required_coverage for stage in STAGES)


@inlined
def coverage_of(episode: Episode, task: TaskRecord, world: World) -> float:
    """Return the share of required tools that are done; as printed, that have been executed; none without a list."""
    if unlikely(world.without_list != 0):
        return 0.0
    count = int(episode.num_done)
    if world.printed_rules:
        count, place = 0, -1
        for tool in task.required:
            if tool >= 0 and task.place[tool] != place and episode.executions[tool] > 0:
                place = task.place[tool]
                count += 1
    return float(count / task.num_required)


@inlined
def progress_gain(episode: Episode, coverage: float, task: TaskRecord, world: World) -> float:
    """Return by how much progress has grown with a step, which it never loses."""
    in_order = episode.counters[SPOILT] == 0 and episode.places_length > 0
    progress = coverage + (IN_ORDER_BONUS if in_order or world.printed_rules else 0.0)
    if unlikely(world.without_list != 0):
        progress = progress_without_list(episode, task, world)
    return max(0.0, min(1.0, progress) - episode.progress)


@inlined
def ended_by_law(
    episode: Episode,
    sections: Sections,
    accepts: bool,
    finish_chance: float,
    coverage: float,
    way_forward: bool,
    world: World,
) -> int:
    """Return the code of how the episode has ended after a step, or RUNNING.

    Completion is signalled by itself once everything is surely done, where an action `accepts` what only looks sound,
    and with the closing message.
    """
    ended, turns_are_used = int(episode.counters[ENDED]), episode.counters[TURNS_USED] >= episode.max_turns
    if ended != RUNNING:
        return ended
    if world.training_law:
        by_progress = world.printed_rules == 1 or world.without_list == 1
        if coverage >= 1.0 or (by_progress and episode.progress >= 1.0):
            return COMPLETION
        if turns_are_used:
            return TURNS
        return RUNNING if way_forward else DEADLOCK
    if accepts or finish_chance == 1.0:
        return COMPLETION
    if turns_are_used or is_time_up(world.rules, sections.parts):
        return COMPLETION if finish_chance > 0.0 else TURNS if turns_are_used else TIME
    return RUNNING


@scalar
def succeeded_at_stage(episode: Episode, ended: int, coverage: float, task: TaskRecord, world: World) -> bool:
    """Return whether the episode came to what the stage of the curriculum asks for; printed rules know no stages."""
    progress = episode.progress
    if world.printed_rules:
        if progress >= COMPLETE_PROGRESS or coverage >= 1.0:
            return True
        return (ended in (TURNS, DEADLOCK)) and progress >= TIMEOUT_PROGRESS
    stage = episode.stage
    if ended not in (COMPLETION, TURNS, DEADLOCK) or episode.counters[NUM_FAILURES] > MAX_ERRORS[stage]:
        return False
    if progress < MIN_PROGRESS[stage]:
        return False
    if world.without_list:
        return True
    return bool(episode.num_done >= max(1, int(REQUIRED_COVERAGE[stage] * task.num_required + WHOLE_TOOL)))


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


IN_ORDER_BONUS = 0.1  # beta_sequence


@scalar
def begin_episode(
    episode: EpisodeBlocks, sections: SectionsBlocks, index: int, seed: int, task: TaskBlocks, world: World
) -> None:
    """Put an environment at the start of the episode of task number `index` under a seed."""
    key0, key1 = inlined_threefry(task.word0, task.word1, seed & WORD_MASK, seed >> 32)
    episode.task = index
    episode.seed = seed
    episode.key0 = key0
    episode.key1 = key1
    episode.running_success = world.running_success
    episode.stage = world.stage
    episode.max_turns = world.max_turns
    episode.episode += 1
    copy_words(episode.state, world.start_state)
    episode.fallback = task.fallback
    copy_words(episode.observation, task.start_observation)
    if unlikely(world.has_sections != 0):
        _begin_sections(episode, sections, task, world)


@scalar
def _begin_sections(episode: Episode, sections: SectionsBlocks, task: TaskRecord, world: World) -> None:
    rules = world.rules
    for place in range(rules.num_parts):
        sections.parts[place] = 0
    for tool in range(rules.num_tools):
        sections.variant[tool] = 0
        sections.standing[tool] = world.start_standing[tool]
    write_first_hidden(rules, world.luck, episode.key0, episode.key1, sections.hidden, sections.scratch.ravel())
    copy_words(sections.observation, world.start_sections)
    if not world.hidden:
        show_shared(episode, sections, task, world)
        if world.detailed:
            show_serving(episode, sections, task, world)


@inlined
def step_environment(
    episode: Episode,
    sections: Sections,
    action: int,
    outcome: Outcome,
    luck: Luck,
    task: TaskRecord,
    world: World,
) -> None:
    """Let one action happen in one environment and write what it did into its records.

    One that the mask forbids is like a rejected call: it uses a step. `luck` is that of the next execution of the
    action's tool.
    """
    rules, counters, parts, hidden = world.rules, episode.counters, sections.parts, sections.hidden
    action_type, tool = int(world.action_type[action]), int(world.action_tool[action])
    legal = episode.action_mask[action] == 1
    executes = legal and (action_type in (INVOKE_TOOL, RETRY_TOOL))
    accepts = legal and action_type == VALIDATE_OUTPUT and tool < 0
    signature = NO_LOOP
    if not legal:
        signature = rules.num_tools + 1 + action
    elif executes:
        signature = signature_of_call(rules, episode.status, parts, tool)
    elif action_type == NO_OP and not rules.waiting_is_productive:
        signature = rules.num_tools

    turns_used, num_failures = counters[TURNS_USED], counters[NUM_FAILURES]
    milestones_before = episode.milestones
    succeeded_before = executes and episode.status[tool] == SUCCEEDED
    episode.tool = -1
    episode.tool_success = False
    episode.pattern = 0.0
    reward = 0.0
    started = int(episode.running)
    episode.running = -1
    if legal and action_type == PARALLEL_EXECUTE:
        episode.running = tool
        episode.tools[tool, TOOL_STATUS] = STATUS_RUNNING
    executed, num_successes = 0, 0
    for later in range(2):  # what was started in the step before comes first; the mask forbids to call it in this one
        called, own_luck = tool, luck
        if not later:
            called = started
            if started >= 0:
                own_luck = luck_of(episode, started, world)
        elif not executes or counters[ENDED] != RUNNING:
            called = -1
        if called >= 0:
            reward += execute(episode, sections, action_type, called, outcome, own_luck, task, world)
            executed += 1
            num_successes += 1 if episode.tool_success else 0
    if unlikely(executed == 0 and rules.num_sections > 0):
        pass_message(rules, parts, NONE)
    if unlikely(legal and not executes and world.training_law != 0):
        keep_books(episode, action_type, tool, world)
    if legal and tool >= 0:
        episode.tools[tool, TOOL_LAST_STEP] = saturated(turns_used + 1)
    if unlikely(rules.at_down >= 0):
        write_next_down(rules, world.luck, episode.key0, episode.key1, turns_used, hidden, sections.scratch.ravel())
    record_turn(counters, signature, rules.loop_length)
    coverage, gain = 0.0, 0.0
    if num_successes > 0 or world.counts_every_step:
        coverage = coverage_of(episode, task, world)
        gain = progress_gain(episode, coverage, task, world)
        episode.progress += gain
    finish_chance = finish_value(rules, task, counters, parts, hidden, False)
    if unlikely(world.has_sections != 0):
        is_first = executes and episode.tool_success and not succeeded_before
        show_sections(episode, sections, num_failures, is_first, finish_chance, world)
        if world.detailed and not world.hidden and (executed > 0 or rules.rows_by_turn == 1):
            show_serving(episode, sections, task, world)
    way_forward = True
    if unlikely(world.rewrites_mask != 0):
        way_forward = write_mask(episode, sections, task, world)
    else:
        if episode.tool >= 0:
            allow_execution(episode, sections, episode.tool, True, world)
        if unlikely(rules.at_sound >= 0):
            allow_acceptance(episode, finish_chance, world)
    counters[ENDED] = ended_by_law(episode, sections, accepts, finish_chance, coverage, way_forward, world)
    show_counters(episode, world)
    _close_step(episode, sections, action_type, coverage, gain, reward, milestones_before, task, world)


@inlined
def _close_step(
    episode: Episode,
    sections: Sections,
    action_type: int,
    coverage: float,
    gain: float,
    reward: float,
    milestones_before: int,
    task: TaskRecord,
    world: World,
) -> None:
    """Write the reward, of which `reward` is what executions pay, and how the episode has come out if it has ended."""
    counters, rules = episode.counters, world.rules
    ended, is_over = counters[ENDED], counters[ENDED] != RUNNING
    full_success, success, order = False, False, 0.0
    is_early = episode.stage < MAX_STAGE and world.printed_rules == 0
    if is_over:
        coverage = coverage_of(episode, task, world)
        chance = finish_value(rules, task, counters, sections.parts, sections.hidden, True)
        full_success = (ended == COMPLETION or world.without_list == 1) and chance == 1.0
        success = full_success
        order = order_share(episode, task)
        if unlikely(world.training_law != 0 or is_early):
            success = succeeded_at_stage(episode, ended, coverage, task, world)
    if world.two_phase:
        reward += step_reward(
            episode,
            action_type != NO_OP,
            action_type == NO_OP and episode.last_type == NO_OP,
            is_over,
            success,
            gain,
            episode.milestones - milestones_before,
            order,
            coverage,
            task,
            world,
        )
    elif success if is_early else full_success:
        reward = 1.0
    episode.last_type = action_type
    episode.episode_return += reward
    episode.reward = reward
    episode.terminated = is_over
    if is_over:
        episode.needs_reset = 1
        write_end(episode, success, full_success, coverage, order)
