"""How the observation arrays follow the state: each function rewrites the columns that a change can have touched."""

from __future__ import annotations

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.arrays import Episode, TaskRecord, World
from resilisim.envs.workflow.laws import phase_of, training_base, training_probability
from resilisim.envs.workflow.masking import confidence
from resilisim.simulator.compiled import scalar
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.state import CONSECUTIVE_FAILURES, LOOP_COUNT, NUM_FAILURES, ORDER_BROKEN, TURNS_USED

LARGEST = 255


@scalar
def saturated(count: int) -> int:
    """Return a count as a column stores it."""
    return min(count, LARGEST)


@scalar
def quantised(share: float) -> int:
    """Return a number in [0, 1] as a column stores it: round(255 x), halves up."""
    return int(LARGEST * min(1.0, max(0.0, share)) + 0.5)


@scalar
def show_dependency_counts(episode: Episode, tool: int, task: TaskRecord, world: World) -> None:
    """Rewrite what a tool's row says of its direct dependencies."""
    row = episode.tools[tool]
    status = episode.status
    dependencies = world.dependencies[tool]
    num_not_executed = count_not_executed(status, dependencies)
    num_failed = count_failed_dependencies(status, dependencies)
    row[columns.NUM_NOT_EXECUTED] = saturated(num_not_executed)
    row[columns.NUM_FAILED] = saturated(num_failed)
    if world.training_law:
        base = training_base(episode.running_success)
        chance = training_probability(base, num_not_executed + num_failed, 0, float(task.task_confidence[tool]))
        row[columns.CLEAN_PROBABILITY] = quantised(chance)
    else:
        row[columns.CLEAN_PROBABILITY] = world.shown_probability[world.base_index[tool], num_not_executed, num_failed]


@scalar
def show_due(episode: Episode, task: TaskRecord, world: World) -> None:
    """Rewrite DUE and what depends on it; which required tools are still without success has changed."""
    if world.hidden:
        return
    tools = episode.tools
    closure = task.closure
    for index in range(task.closure_size):
        row = tools[closure[index]]
        row[columns.DUE] = 0
        row[columns.NUM_DEPENDENTS_DUE] = 0
        row[columns.FIRST_DEPENDENT_DUE] = 0
        row[columns.FIRST_DESCENDANT_DUE] = 0
    due = 0
    for place in range(task.num_required):
        required = task.required[place]
        if episode.status[required] == SUCCEEDED:
            continue
        due += 1
        tools[required, columns.DUE] = due
        for dependency in world.dependencies[required]:
            if dependency >= 0:
                tools[dependency, columns.NUM_DEPENDENTS_DUE] += 1
                if tools[dependency, columns.FIRST_DEPENDENT_DUE] == 0:
                    tools[dependency, columns.FIRST_DEPENDENT_DUE] = due
        for index in range(task.closure_size):
            helper = closure[index]
            if world.descends[helper, required] and tools[helper, columns.FIRST_DESCENDANT_DUE] == 0:
                tools[helper, columns.FIRST_DESCENDANT_DUE] = due
    episode.task_columns[columns.NUM_DUE] = due


@scalar
def show_confidences(episode: Episode, task: TaskRecord, world: World) -> None:
    """Rewrite CONFIDENCE of every tool: the latest successful tools, and so the patterns to extend, have changed."""
    for tool in range(world.num_tools):
        episode.tools[tool, columns.CONFIDENCE] = quantised(confidence(episode, tool, task, world))


@scalar
def show_counters(episode: Episode, world: World) -> None:
    """Rewrite the columns of `task` that can change with any step."""
    counters = episode.counters
    shown = episode.task_columns
    steps = counters[TURNS_USED]
    failures = counters[NUM_FAILURES]
    shown[columns.STEPS_USED] = saturated(steps)
    shown[columns.STEPS_LEFT] = saturated(world.max_steps - steps)
    shown[columns.TOTAL_FAILURES] = saturated(failures)
    shown[columns.CONSECUTIVE_FAILURES] = saturated(counters[CONSECUTIVE_FAILURES])
    shown[columns.LOOP_COUNT] = saturated(counters[LOOP_COUNT])
    if world.training_law:
        shown[columns.HAS_CHECKPOINT] = 1 if episode.checkpoint_row >= 0 else 0
        shown[columns.NUM_RUNNING] = 1 if episode.running >= 0 else 0
    else:
        shown[columns.HISTORY_FACTOR] = world.history_factor[failures]
    if not world.hidden:
        shown[columns.MILESTONES] = saturated(episode.milestones)
        shown[columns.PROGRESS] = quantised(episode.progress)
        shown[columns.ORDER_BROKEN] = counters[ORDER_BROKEN]


@scalar
def show_trainer(episode: Episode, world: World) -> None:
    """Write the columns of `task` that follow from what a trainer has set."""
    shown = episode.task_columns
    if world.training_law:
        shown[columns.BASE_PROBABILITY] = quantised(training_base(episode.running_success))
    if world.training_law or world.two_phase:
        shown[columns.PHASE] = phase_of(episode.running_success)
        shown[columns.STAGE] = episode.stage
