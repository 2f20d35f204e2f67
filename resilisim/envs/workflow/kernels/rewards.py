"""What the steps of Workflow-v0 pay: the paper's two-phase reward (appendix D.3), and the progress that it pays for.

The other reward is `full_success`, 1 at the end or 0. The weights below are the paper's; those that it leaves without a
value are chosen here, with the reason beside each. How the paper's formulas are read is the table in SPEC section 5,
repeated in docs/decisions; `printed_rules` takes them as printed.
"""

from __future__ import annotations

from resilisim.envs.workflow.kernels.records import Episode, Small, TaskRecord, World
from resilisim.envs.workflow.kernels.training_law import ADAPTATION_THRESHOLD, LOW_SUCCESS, phase_of
from resilisim.envs.workflow.spaces import OUTPUT_TYPE
from resilisim.simulator.compiled import scalar
from resilisim.simulator.state import NUM_FAILURES, TURNS_USED

ATTEMPT_PAY = 3.0
NOVEL_ATTEMPT_PAY = 30.0
REQUIRED_SUCCESS = 50.0
PROGRESS_PAY = 100.0
MILESTONE = 40.0
PERFECT_ORDER = 15.0
NEAR_ORDER = 5.0
WRONG_PLACE = 5.0
TERMINAL_COVERAGE = (150.0, 50.0)  # at success in the coverage phase: the first, and the second times r_coverage
TERMINAL_SEQUENCE = (100.0, 50.0)  # likewise in the sequence phase, times r_sequence
TERMINAL_FAILURE = 50.0  # times p
ERROR_MIDDLE = 2.0  # at a running success from 0.1 to 0.3; nothing below
ERROR_HIGH = 5.0
REPETITION_COVERAGE = 1.0
REPETITION_SEQUENCE = 5.0
STAGNATION = 10.0

# Without a value in the paper.
EFFICIENCY_STEPS = 20.0  # eta_step: a perfectly short episode earns a little more than one correct place (15)
EFFICIENCY_NO_ERRORS = 10.0  # eta_error: as two errors of 5 cost
PROGRESS_BASE_PRINTED = 10.0  # gamma_base: 0 as read, because progress is paid as gamma_progress already
PROGRESS_EARLY = 10.0  # gamma_early: a tenth of gamma_progress, so that haste never beats completing
PROGRESS_LATE = 20.0  # gamma_late: twice that, because the last tools are the hard ones
SEMANTIC_RETRIEVAL = 2.0  # lambda_rag: together below 3, the pay of an attempt, so that hints never beat results
SEMANTIC_PATTERN = 0.5  # lambda_pattern
SEMANTIC_TASK = 0.5  # lambda_task
EFFICIENCY_STEPS_PER_TOOL = 1.5  # k_target = 1.5 x closure size
EARLY_STEPS = 10
LATE_PROGRESS = 0.8


# Progress of a task without required tools (D.4.1): shares, and how many tools and steps make a whole one.
PROGRESS_SHARES = (0.3, 0.4, 0.3)  # of milestones, tools and steps
WHOLE_TOOLS = 5
WHOLE_STEPS = 20


@scalar
def num_milestones(types: int) -> int:
    """Return how many milestones a bit mask of operation types stands for: each, and the first output."""
    count = 0
    for code in range(OUTPUT_TYPE + 2):
        count += types >> code & 1
    return count + (types >> OUTPUT_TYPE & 1)


@scalar
def progress_without_list(episode: Episode, task: TaskRecord, world: World) -> float:
    """Return D.4.1's progress of a task without required tools; where nothing is a milestone, all are reached."""
    expected, tools = num_milestones(task.types), 0
    for tool in range(world.rules.num_tools):
        tools += 1 if episode.successes[tool] > 0 else 0
    milestones = episode.milestones / expected if expected > 0 else 1.0
    steps = episode.counters[TURNS_USED] / WHOLE_STEPS
    of_milestones, of_tools, of_steps = PROGRESS_SHARES
    return float(of_milestones * milestones + of_tools * min(1.0, tools / WHOLE_TOOLS) + of_steps * min(1.0, steps))


@scalar
def longest_ascending_run(places: Small, length: int) -> int:
    """Return the length of the longest ascending run, not necessarily adjacent, of the distinct `places[:length]`."""
    ascending = True
    for last in range(1, length):
        ascending = ascending and places[last - 1] < places[last]
    if ascending:  # as nearly always; what follows needs memory
        return length
    best = 0
    lengths = [0] * length
    for last in range(length):
        for earlier in range(last):
            if places[earlier] < places[last]:
                lengths[last] = max(lengths[last], lengths[earlier])
        lengths[last] += 1
        best = max(best, lengths[last])
    return best


@scalar
def order_reward(places: Small, length: int, printed: bool) -> float:
    """Return R_order for the latest of `places[:length]`, the required places in the order of their first successes.

    Positions are ranks among these places. As printed, the amounts are summed over all tools so far.
    """
    inversions, off, total_off = 0, 0, 0
    for position in range(length):
        rank = 0
        for other in range(length):
            rank += 1 if places[other] < places[position] else 0
            inversions += 1 if other < position and places[other] > places[position] else 0
        off = abs(position - rank)
        total_off += off
    counted = length if printed else 1
    if inversions == 0:
        return PERFECT_ORDER * counted
    if inversions == 1:
        return NEAR_ORDER * counted
    return -WRONG_PLACE * (total_off if printed else off)


@scalar
def efficiency_reward(steps: int, closure_size: int, failures: int) -> float:
    """Return R_efficiency after `steps` steps with `failures` failed executions."""
    target = EFFICIENCY_STEPS_PER_TOOL * closure_size
    value = EFFICIENCY_STEPS * max(0.0, target - steps) / target
    return value + EFFICIENCY_NO_ERRORS if failures == 0 else value


@scalar
def progress_reward(gain: float, progress: float, steps: int, printed: bool) -> float:
    """Return R_progress for a gain in progress."""
    weight = PROGRESS_BASE_PRINTED if printed else 0.0
    if steps < EARLY_STEPS:
        weight += PROGRESS_EARLY
    if progress > LATE_PROGRESS:
        weight += PROGRESS_LATE
    return weight * gain


@scalar
def error_penalty(running_success: float) -> float:
    """Return what one failed execution costs."""
    if running_success < LOW_SUCCESS:
        return 0.0
    return ERROR_MIDDLE if running_success < ADAPTATION_THRESHOLD else ERROR_HIGH


@scalar
def terminal_reward(success: bool, phase: int, coverage: float, sequence: float, progress: float) -> float:
    """Return R_terminal."""
    if not success:
        return max(0.0, TERMINAL_FAILURE * progress)
    if phase == 0:
        return TERMINAL_COVERAGE[0] + TERMINAL_COVERAGE[1] * coverage
    return TERMINAL_SEQUENCE[0] + TERMINAL_SEQUENCE[1] * sequence


@scalar
def execution_reward(
    episode: Episode,
    tool: int,
    success: bool,
    first_attempt: bool,
    first_success: bool,
    pattern: float,
    task: TaskRecord,
    world: World,
) -> float:
    """Return what an execution pays by itself: exploration, discovery or order, semantics, error, repetition."""
    phase = phase_of(episode.running_success)
    required = task.place[tool] >= 0 and world.without_list == 0
    value = SEMANTIC_RETRIEVAL * max(0.0, float(task.similarity[tool]))
    value += SEMANTIC_PATTERN * pattern + SEMANTIC_TASK * float(task.task_confidence[tool])
    if phase == 0:
        value += ATTEMPT_PAY if not world.printed_rules else 0.0  # printed: paid for every action, by the caller
        value += NOVEL_ATTEMPT_PAY if first_attempt else 0.0
        if required and success and (first_success or world.printed_rules):
            value += REQUIRED_SUCCESS
    elif required and first_success and not world.printed_rules:
        value += order_reward(episode.places, episode.places_length, False)
    if not success:
        value -= error_penalty(episode.running_success)
    count = int(episode.executions[tool] if world.printed_rules else episode.successes[tool])
    if count >= 2:
        value -= (REPETITION_COVERAGE if phase == 0 else REPETITION_SEQUENCE) * (count - 1)
    return value


@scalar
def step_reward(
    episode: Episode,
    acted: bool,
    stagnated: bool,
    ended: bool,
    success: bool,
    gain: float,
    milestones: int,
    sequence: float,
    coverage: float,
    task: TaskRecord,
    world: World,
) -> float:
    """Return what a step pays besides its executions: progress, milestones, efficiency, the end, stagnation."""
    phase = phase_of(episode.running_success)
    printed = world.printed_rules == 1
    steps, failures = episode.counters[TURNS_USED], episode.counters[NUM_FAILURES]
    value = PROGRESS_PAY * gain + MILESTONE * milestones
    value += progress_reward(gain, episode.progress, steps, printed)
    if stagnated:
        value -= STAGNATION
    if phase == 0 and printed and acted:
        value += ATTEMPT_PAY
    if phase == 1:
        if printed and episode.places_length > 0:
            value += order_reward(episode.places, episode.places_length, True)
        if printed or (ended and success):
            value += efficiency_reward(steps, WHOLE_TOOLS if world.without_list else task.closure_size, failures)
    if ended:
        value += terminal_reward(success, phase, coverage, sequence, episode.progress)
    return value
