"""The numbers of Workflow-v0: its actions, and every column of its observations (SPEC section 5).

With T tools an action is an integer below 9 x (T + 1) + 4, which is 283 for 30 tools (appendix D.2: nine types, each
with a tool or none, and four meta actions):

* `type * (T + 1) + tool` for an action type and a tool, `type * (T + 1) + T` for a type without a tool
* `9 * (T + 1) + meta` for a meta action

An observation is a dict of arrays of small integers, so that thousands of environments are copied quickly:

* `tools`: uint8 (num_tools, NUM_TOOL_COLUMNS), one row for each tool of the library, in its order
* `task`: uint8 (NUM_TASK_COLUMNS,), what concerns the episode as a whole
* `action_mask`: int8 (num_actions,), 1 for each legal action
* `tool_parts`: uint8 (num_tools, NUM_PART_COLUMNS), what an agent can know of each tool beside; only under laws with
  parts, or with `detailed=True`, and so is
* `law`: uint8 (NUM_LAW_COLUMNS,), what it can know of the law and of the episode as a whole

Counts saturate at 255. Probabilities, scores and shares in [0, 1] are stored as round(255 x). Places count from 1, 0
means that there is none. Chances are those by what an agent can know. With `required="hidden"` the columns in
HIDDEN_TOOL_COLUMNS and HIDDEN_TASK_COLUMNS are 0. The columns are the same under every law, so one policy reads them
all. A tool whose output is known to be corrupt is shown as failed, and its place is due again.
"""

from __future__ import annotations

from collections.abc import Mapping

from resilisim.simulator.compiled import scalar


def _names_of(constants: Mapping[str, object], prefix: str) -> tuple[str, ...]:
    """Return the names of a module's constants that begin with a prefix, without it, in their order."""
    return tuple(name.removeprefix(prefix) for name in constants if name.startswith(prefix))


# The types of actions.
INVOKE_TOOL = 0
VALIDATE_OUTPUT = 1
RETRY_TOOL = 2
RECOVER_ERROR = 3
CHECK_DEPENDENCIES = 4
CREATE_CHECKPOINT = 5
RESTORE_CHECKPOINT = 6
NO_OP = 7
PARALLEL_EXECUTE = 8
ACTION_TYPES = (
    "INVOKE_TOOL",
    "VALIDATE_OUTPUT",
    "RETRY_TOOL",
    "RECOVER_ERROR",
    "CHECK_DEPENDENCIES",
    "CREATE_CHECKPOINT",
    "RESTORE_CHECKPOINT",
    "NO_OP",
    "PARALLEL_EXECUTE",
)
NUM_ACTION_TYPES = len(ACTION_TYPES)

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


# The seven statuses of a tool, in the order of appendix D.1.
STATUS_NOT_ATTEMPTED = 0
STATUS_QUEUED = 1  # named by CHECK_DEPENDENCIES as an unmet dependency, not attempted yet (training law)
STATUS_RUNNING = 2  # started by PARALLEL_EXECUTE, outcome at the next step (training law)
STATUS_SUCCESS = 3
STATUS_FAILED = 4
STATUS_TIMEOUT = 5  # failed, and the error was a TIMEOUT
STATUS_DEPENDENCY_FAILED = 6  # failed, and would have succeeded with all its dependencies in place
STATUSES = _names_of(globals(), "STATUS_")

# Columns of `tools`.
TOOL_STATUS = 0  # one of the statuses above
TOOL_PLACE = 1  # place in the required list, from 1; 0: not required
TOOL_DUE = 2  # 1: the next required tool, 2: the one after it, ...; 0: not required, or has succeeded
TOOL_EXECUTIONS = 3  # executions so far in this episode
TOOL_RETRIES = 4  # failed executions since the last RECOVER_ERROR or RESTORE_CHECKPOINT of the tool
TOOL_NUM_NOT_EXECUTED = 5  # direct dependencies never executed (Nu)
TOOL_NUM_FAILED = 6  # direct dependencies executed, not yet successful (Nf)
TOOL_CLEAN_PROBABILITY = 7  # chance that an execution would succeed now, but for the factor for earlier failures
TOOL_NUM_DEPENDENTS_DUE = 8  # required tools without success that depend on it directly
TOOL_FIRST_DEPENDENT_DUE = 9  # `due` of the earliest of these; 0: none
TOOL_FIRST_DESCENDANT_DUE = 10  # `due` of the earliest of those that depend on it, also indirectly
TOOL_LEVEL = 11  # depth in the dependency graph; 0: no dependencies
TOOL_NUM_DEPENDENCIES = 12  # direct dependencies
TOOL_OPERATION_TYPE = 13  # semantic operation type: 1 source, 2 processor, 3 aggregator, 4 output, 5 utility; 0: none
TOOL_SIMILARITY = 14  # best similarity of the tool's text and a clause of the task's description, 255 max(0, x)
TOOL_CONFIDENCE = 15  # composite confidence of the semantic filter (appendix D.2.1)
TOOL_IS_CANDIDATE = 16  # 1: among the retrieved candidates of one of the task's operations
TOOL_LAST_STEP = 17  # step (from 1) at which the tool was last selected; 0: never
TOOL_SUCCESS_ORDER = 18  # successful executions in the episode up to the tool's first one, from 1; 0: no success
TOOL_COLUMNS = tuple(name.lower() for name in _names_of(globals(), "TOOL_"))
NUM_TOOL_COLUMNS = len(TOOL_COLUMNS)
HIDDEN_TOOL_COLUMNS = (
    TOOL_PLACE,
    TOOL_DUE,
    TOOL_NUM_DEPENDENTS_DUE,
    TOOL_FIRST_DEPENDENT_DUE,
    TOOL_FIRST_DESCENDANT_DUE,
)

OUTPUT_TYPE = 4  # TOOL_OPERATION_TYPE of an output

# Columns of `task`; the first NUM_TASK_FEATURES are the task features of `context`.
NUM_TASK_FEATURES = 20
TASK_PROGRESS = 20  # progress p of SPEC section 5
TASK_STEPS_USED = 21
TASK_STEPS_LEFT = 22
TASK_NUM_REQUIRED = 23  # length of the required list
TASK_NUM_DUE = 24  # required tools that have not succeeded
TASK_MILESTONES = 25  # operation types of required tools, and the first output, once they succeeded
TASK_MILESTONES_EXPECTED = 26
TASK_TOTAL_FAILURES = 27  # failed executions so far (Nh)
TASK_CONSECUTIVE_FAILURES = 28  # failed executions since the last successful one
TASK_HISTORY_FACTOR = 29  # factor of the law for the failures so far; 255 under the training law, which has none
TASK_ORDER_BROKEN = 30  # 1: a required tool succeeded before an earlier required one
TASK_LOOP_COUNT = 31  # equal unproductive steps in a row
TASK_BASE_PROBABILITY = 32  # base success probability of the law
TASK_PHASE = 33  # 0: coverage phase, 1: sequence phase of the reward
TASK_STAGE = 34  # stage of the curriculum, 0 to 4
TASK_HAS_CHECKPOINT = 35  # 1: CREATE_CHECKPOINT has been used
TASK_NUM_RUNNING = 36  # tools started by PARALLEL_EXECUTE whose outcome is open
TASK_DATA_FLOW = 37  # furthest operation type that has succeeded: 0 none, 1 source, 2 processor, 3 aggregator, 4 output
TASK_COLUMNS = (
    *(f"task_feature_{index}" for index in range(NUM_TASK_FEATURES)),
    *(name.lower() for name in _names_of(globals(), "TASK_")),
)
NUM_TASK_COLUMNS = len(TASK_COLUMNS)
HIDDEN_TASK_COLUMNS = (
    TASK_PROGRESS,
    TASK_NUM_REQUIRED,
    TASK_NUM_DUE,
    TASK_MILESTONES,
    TASK_MILESTONES_EXPECTED,
    TASK_ORDER_BROKEN,
)

# Weights of the composite confidence (D.2.1).
WEIGHT_RULE = 0.25
WEIGHT_EMBEDDING = 0.30
WEIGHT_PATTERN = 0.25
WEIGHT_TASK = 0.20

# Columns of `tool_parts`.
PART_CHANCE = 0  # chance that a call succeeds now, or reports so; with a parameter changed, if the input was refused
PART_BLOCK = 1  # one of the values of BLOCK below
PART_SOUNDNESS = 2  # of the output; 0: there is none, 1: sound, 2: corrupt, 3: only a validator can tell
PART_CORRUPT_CHANCE = 3  # chance that the output of a success is corrupt
PART_FREE_IN = 4  # messages until the rate limit lets a call through; 0: now
PART_RATE_CALLS_MADE = 5  # which of the latest eight messages count for the limit of this tool; bit 0: the latest
PART_GROUP_SEEN = 6  # what was last seen of its group of outages; 0: nothing, or no group, 1: up, 2: down
PART_SEEN_AGO = 7  # messages since then
PART_CHANCE_DOWN = 8  # chance that the group is down now
PART_CHANCE_BROKEN = 9  # chance that the tool is broken
PART_INPUT_SHARE = 10  # share of failures after which a parameter has to change
PART_ACCESS_SHARE = 11  # share of failures that close the tool
PART_IS_VALIDATOR = 12  # 1: its success tells which outputs are corrupt
PART_IS_OPENER = 13  # 1: its success opens what is closed
PART_RATE_NUM_DUE = 14  # tools that are due and counted by the same limit, this one included
PART_RATE_FIRST_DUE = 15  # the first of them, as TOOL_DUE has it; 0: none
PART_GROUP_NUM_DUE = 16  # tools that are due and in the same group of outages, this one included
PART_GROUP_FIRST_DUE = 17  # the first of them; 0: none
# What a success of a tool serves, with `detailed=True`, else 0; a tool is *wanted* if it is due, or if a wanted tool
# depends on it and it has not succeeded.
PART_SERVES_DUE = 18  # `due` of the earliest tool that is due and depends on it by wanted tools alone; 0: none
PART_SERVES_DISTANCE = 19  # dependencies on the shortest way to that tool; 1: it depends on it directly
PART_SERVES_NUM = 20  # wanted tools that depend on it directly
PART_SERVES_CHANCE = 21  # TOOL_CLEAN_PROBABILITY of the first tool on that way
PART_SERVES_WEIGHT = 22  # half the sum, over the wanted tools that lack it, of their weight times what it costs them
PART_COLUMNS = tuple(name.lower() for name in _names_of(globals(), "PART_"))
NUM_PART_COLUMNS = len(PART_COLUMNS)

BLOCK_OPEN = 0
BLOCK_CLOSED = 1  # until a tool that opens has succeeded
BLOCK_REFUSED = 2  # surely fails with the parameters of last time

# Columns of `law`.
LAW_CAN_WAIT = 0  # 1: waiting can help
LAW_FINISH_CHANCE = 1  # chance that everything required is done
LAW_TIME_LEFT = 2  # share of the time that is left; 255 without a budget
LAW_CALL_TIME = 3  # mean duration of a call, as a share of the budget
LAW_CHANCE_SLOW = 4  # chance that a call takes longer than it may now
LAW_RATE_CALLS = 5  # calls that the rate limit lets through; 0: there is none
LAW_RATE_WINDOW = 6  # messages in which they are counted
LAW_OUTAGE_BEGINS = 7  # chance that a group that is up is down at the next message
LAW_OUTAGE_ENDS = 8  # chance that one that is down is up
LAW_RISES = 9  # twenty times what each message adds to the base; 0 if it falls
LAW_OPENED = 10  # 1: a tool that opens has succeeded
LAW_NOT_EXECUTED_FACTOR = 11  # factor of the law for each dependency never executed
LAW_FAILED_FACTOR = 12  # factor for each dependency that failed
LAW_FALLS = 13  # twenty times what each message takes from the base; 0 if it rises
LAW_HISTORY_FACTOR = 14  # factor for each failure so far
LAW_COLUMNS = tuple(name.lower() for name in _names_of(globals(), "LAW_"))
NUM_LAW_COLUMNS = len(LAW_COLUMNS)

LARGEST = 255


@scalar
def saturated(count: int) -> int:
    """Return a count as a column stores it."""
    return min(count, LARGEST)


@scalar
def quantised(share: float) -> int:
    """Return a number in [0, 1] as a column stores it: round(255 x), halves up."""
    return int(LARGEST * min(1.0, max(0.0, share)) + 0.5)
