"""What Workflow-v0 shows, column by column (SPEC section 5).

An observation is a dict of three arrays of small integers, so that thousands of environments are copied quickly:

* `tools`: uint8 (num_tools, NUM_TOOL_COLUMNS), one row for each tool of the library, in its order
* `task`: uint8 (NUM_TASK_COLUMNS,), what concerns the episode as a whole
* `action_mask`: int8 (num_actions,), 1 for each legal action (`actions`)

Counts saturate at 255. Probabilities, scores and shares in [0, 1] are stored as round(255 x). Places count from 1, 0
means that there is none. With `required="hidden"` the columns in HIDDEN_TOOL_COLUMNS and HIDDEN_TASK_COLUMNS are 0. The
functions below rewrite the columns that a change can have touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from resilisim.envs.workflow.training import phase_of, training_base, training_probability
from resilisim.simulator import state
from resilisim.simulator.compiled import inlined, scalar
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed

if TYPE_CHECKING:
    from resilisim.envs.workflow.arrays import Episode, TaskRecord, World


def names_between(constants: Mapping[str, object], first: str, last: str) -> tuple[str, ...]:
    """Return the names of a module's constants from one to another, in the order in which they stand there."""
    names = list(constants)
    return tuple(names[names.index(first) : names.index(last) + 1])


# The seven statuses of a tool, in the order of appendix D.1.
NOT_ATTEMPTED = 0
QUEUED = 1  # named by CHECK_DEPENDENCIES as an unmet dependency, not attempted yet (training law)
RUNNING = 2  # started by PARALLEL_EXECUTE, outcome at the next step (training law)
SUCCESS = 3
FAILED = 4
TIMEOUT = 5  # failed, and the error was a TIMEOUT
DEPENDENCY_FAILED = 6  # failed, and would have succeeded with all its dependencies in place
STATUSES = names_between(globals(), "NOT_ATTEMPTED", "DEPENDENCY_FAILED")

# Columns of `tools`.
STATUS = 0  # 0 not attempted, 1 queued, 2 running, 3 success, 4 failed, 5 timeout, 6 dependency failed
PLACE = 1  # place in the required list, from 1; 0: not required
DUE = 2  # 1: the next required tool, 2: the one after it, ...; 0: not required, or has succeeded
EXECUTIONS = 3  # executions so far in this episode
RETRIES = 4  # failed executions since the last RECOVER_ERROR or RESTORE_CHECKPOINT of the tool
NUM_NOT_EXECUTED = 5  # direct dependencies never executed (Nu)
NUM_FAILED = 6  # direct dependencies executed, not yet successful (Nf)
CLEAN_PROBABILITY = 7  # chance that an execution would succeed now, leaving out the factor for earlier failures
NUM_DEPENDENTS_DUE = 8  # required tools without success that depend on it directly
FIRST_DEPENDENT_DUE = 9  # `due` of the earliest of these; 0: none
FIRST_DESCENDANT_DUE = 10  # `due` of the earliest required tool without success that depends on it, also indirectly
LEVEL = 11  # depth in the dependency graph; 0: no dependencies
NUM_DEPENDENCIES = 12  # direct dependencies
OPERATION_TYPE = 13  # semantic operation type: 1 source, 2 processor, 3 aggregator, 4 output, 5 utility; 0: none
SIMILARITY = 14  # best similarity of the tool's text and a clause of the task's description, 255 max(0, x)
CONFIDENCE = 15  # composite confidence of the semantic filter (appendix D.2.1)
IS_CANDIDATE = 16  # 1: among the retrieved candidates of one of the task's operations
LAST_STEP = 17  # step (from 1) at which the tool was last selected; 0: never
SUCCESS_ORDER = 18  # successful executions in the episode up to the tool's first one, from 1; 0: no success
NUM_TOOL_COLUMNS = 19
TOOL_COLUMNS = tuple(name.lower() for name in names_between(globals(), "STATUS", "SUCCESS_ORDER"))
HIDDEN_TOOL_COLUMNS = (PLACE, DUE, NUM_DEPENDENTS_DUE, FIRST_DEPENDENT_DUE, FIRST_DESCENDANT_DUE)

# Columns of `task`; the first NUM_TASK_FEATURES are the task features of `context`.
NUM_TASK_FEATURES = 20
PROGRESS = 20  # progress p of SPEC section 5
STEPS_USED = 21
STEPS_LEFT = 22
NUM_REQUIRED = 23  # length of the required list
NUM_DUE = 24  # required tools that have not succeeded
MILESTONES = 25  # milestones reached: operation types of required tools, and the first output, once they succeeded
MILESTONES_EXPECTED = 26
TOTAL_FAILURES = 27  # failed executions so far (Nh)
CONSECUTIVE_FAILURES = 28  # failed executions since the last successful one
HISTORY_FACTOR = 29  # factor of the law for the failures so far; 255 under the training law, which has none
ORDER_BROKEN = 30  # 1: a required tool succeeded before an earlier required one
LOOP_COUNT = 31  # equal unproductive steps in a row
BASE_PROBABILITY = 32  # base success probability of the law
PHASE = 33  # 0: coverage phase, 1: sequence phase of the reward
STAGE = 34  # stage of the curriculum, 0 to 4
HAS_CHECKPOINT = 35  # 1: CREATE_CHECKPOINT has been used
NUM_RUNNING = 36  # tools started by PARALLEL_EXECUTE whose outcome is open
DATA_FLOW = 37  # furthest operation type that has succeeded: 0 none, 1 source, 2 processor, 3 aggregator, 4 output
NUM_TASK_COLUMNS = 38
TASK_COLUMNS = (
    *(f"task_feature_{index}" for index in range(NUM_TASK_FEATURES)),
    *(name.lower() for name in names_between(globals(), "PROGRESS", "DATA_FLOW")),
)
HIDDEN_TASK_COLUMNS = (PROGRESS, NUM_REQUIRED, NUM_DUE, MILESTONES, MILESTONES_EXPECTED, ORDER_BROKEN)


LARGEST = 255


@scalar
def saturated(count: int) -> int:
    """Return a count as a column stores it."""
    return min(count, LARGEST)


@scalar
def quantised(share: float) -> int:
    """Return a number in [0, 1] as a column stores it: round(255 x), halves up."""
    return int(LARGEST * min(1.0, max(0.0, share)) + 0.5)


@inlined
def show_dependency_counts(episode: Episode, tool: int, task: TaskRecord, world: World) -> None:
    """Rewrite what a tool's row says of its direct dependencies."""
    row = episode.tools[tool]
    status = episode.status
    dependencies = world.dependencies[tool]
    num_not_executed = count_not_executed(status, dependencies)
    num_failed = count_failed_dependencies(status, dependencies)
    row[NUM_NOT_EXECUTED] = saturated(num_not_executed)
    row[NUM_FAILED] = saturated(num_failed)
    if world.training_law:
        base = training_base(episode.running_success)
        chance = training_probability(base, num_not_executed + num_failed, 0, float(task.task_confidence[tool]))
        row[CLEAN_PROBABILITY] = quantised(chance)
    else:
        row[CLEAN_PROBABILITY] = world.shown_probability[world.base_index[tool], num_not_executed, num_failed]


@inlined
def show_due(episode: Episode, task: TaskRecord, world: World) -> None:
    """Rewrite DUE and what depends on it; which required tools are still without success has changed."""
    if world.hidden:
        return
    tools = episode.tools
    closure = task.closure
    for index in range(task.closure_size):
        row = tools[closure[index]]
        row[DUE] = 0
        row[NUM_DEPENDENTS_DUE] = 0
        row[FIRST_DEPENDENT_DUE] = 0
        row[FIRST_DESCENDANT_DUE] = 0
    due = 0
    for place in range(task.num_required):
        required = task.required[place]
        if episode.status[required] == SUCCEEDED:
            continue
        due += 1
        tools[required, DUE] = due
        for dependency in world.dependencies[required]:
            if dependency >= 0:
                tools[dependency, NUM_DEPENDENTS_DUE] += 1
                if tools[dependency, FIRST_DEPENDENT_DUE] == 0:
                    tools[dependency, FIRST_DEPENDENT_DUE] = due
        for index in range(task.closure_size):
            helper = closure[index]
            if world.descends[helper, required] and tools[helper, FIRST_DESCENDANT_DUE] == 0:
                tools[helper, FIRST_DESCENDANT_DUE] = due
    episode.task_columns[NUM_DUE] = due


@inlined
def show_counters(episode: Episode, world: World) -> None:
    """Rewrite the columns of `task` that can change with any step."""
    counters = episode.counters
    shown = episode.task_columns
    steps = counters[state.TURNS_USED]
    failures = counters[state.NUM_FAILURES]
    shown[STEPS_USED] = saturated(steps)
    shown[STEPS_LEFT] = saturated(world.max_steps - steps)
    shown[TOTAL_FAILURES] = saturated(failures)
    shown[CONSECUTIVE_FAILURES] = saturated(counters[state.CONSECUTIVE_FAILURES])
    shown[LOOP_COUNT] = saturated(counters[state.LOOP_COUNT])
    if world.training_law:
        shown[HAS_CHECKPOINT] = 1 if episode.checkpoint_row >= 0 else 0
        shown[NUM_RUNNING] = 1 if episode.running >= 0 else 0
    else:
        shown[HISTORY_FACTOR] = world.history_factor[failures]
    if not world.hidden:
        shown[MILESTONES] = saturated(episode.milestones)
        shown[PROGRESS] = quantised(episode.progress)
        shown[ORDER_BROKEN] = counters[state.SPOILT]


@scalar
def show_trainer(episode: Episode, world: World) -> None:
    """Write the columns of `task` that follow from what a trainer has set."""
    shown = episode.task_columns
    if world.training_law:
        shown[BASE_PROBABILITY] = quantised(training_base(episode.running_success))
    if world.training_law or world.two_phase:
        shown[PHASE] = phase_of(episode.running_success)
        shown[STAGE] = episode.stage
