"""When an episode of Workflow-v0 has ended, whether it was a success, and what is written down of it."""

from __future__ import annotations

from resilisim.envs.workflow.arrays import Episode, TaskRecord, World
from resilisim.envs.workflow.curriculum import STAGES
from resilisim.envs.workflow.laws import DEADLOCK
from resilisim.envs.workflow.rewards import longest_ascending_run
from resilisim.simulator.compiled import scalar
from resilisim.simulator.state import COMPLETION, ENDED, RUNNING, TURNS, TURNS_USED

COMPLETE_PROGRESS = 0.95
TIMEOUT_PROGRESS = 0.5

# Table 12 as plain tuples, which compiled code reads.
MIN_PROGRESS = tuple(stage.min_progress for stage in STAGES)
REQUIRED_COVERAGE = tuple(stage.required_coverage for stage in STAGES)


@scalar
def coverage_of(episode: Episode, task: TaskRecord, world: World) -> float:
    """Return the share of required tools that have succeeded; as printed, that have been executed."""
    if not world.printed_rules:
        return float(episode.places_length / task.num_required)
    count = 0
    for place in range(task.num_required):
        count += 1 if episode.executions[task.required[place]] > 0 else 0
    return float(count / task.num_required)


@scalar
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
