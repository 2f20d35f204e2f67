"""An execution in Workflow-v0: luck decides, the record follows."""

from __future__ import annotations

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.arrays import Episode, TaskRecord, World
from resilisim.envs.workflow.curriculum import STAGES
from resilisim.envs.workflow.laws import pattern_confidence, thresholds
from resilisim.envs.workflow.observing import saturated, show_confidences, show_dependency_counts, show_due
from resilisim.envs.workflow.rewards import execution_reward
from resilisim.seeding import PURPOSE_FAILURE, PURPOSE_SUCCESS, threefry2x32, uniform_bits
from resilisim.simulator.compiled import scalar
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.state import record_execution

DRAWN = -1  # outcome of an execution that luck decides; any other value is the status that it is made to show
OUTPUT_TYPE = 4  # columns.OPERATION_TYPE of an output

MAX_ERRORS = tuple(stage.max_errors for stage in STAGES)  # Table 12 as a plain tuple, which compiled code reads

_threefry2x32 = scalar(threefry2x32)
_uniform_bits = scalar(uniform_bits)


@scalar
def execute(episode: Episode, tool: int, outcome: int, task: TaskRecord, world: World) -> float:
    """Let a tool be executed, enter the outcome, and return what it pays under the two-phase reward.

    Args:
        episode: The episode's record, changed in place.
        tool: Which tool.
        outcome: DRAWN, or the status that the execution is made to show.
        task: The task's record.
        world: What all environments share.
    """
    attempt = int(episode.executions[tool])
    key0, key1 = _threefry2x32(episode.key0, episode.key1, world.tool_word0[tool], world.tool_word1[tool])
    bits = _uniform_bits(key0, key1, attempt, PURPOSE_SUCCESS)
    threshold, clean = thresholds(episode, tool, task, world)
    success = bits < threshold if outcome == DRAWN else outcome == columns.SUCCESS
    before = episode.status[tool]
    max_row = MAX_ERRORS[episode.stage] + 1 if world.training_law else world.max_consecutive_failures
    record_execution(episode.status, episode.counters, task.place[tool], tool, success, max_row)
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
            shown = _failure_status(bits < clean, key0, key1, attempt, tool, world)
            row[columns.STATUS] = shown if outcome == DRAWN else outcome
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


@scalar
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
    drawn = _uniform_bits(key0, key1, attempt, PURPOSE_FAILURE) % world.num_errors[tool]
    return columns.TIMEOUT if drawn == world.timeout_error[tool] else columns.FAILED
