"""What Workflow-v0 shows: scalar functions that rewrite the columns where a step changed them.

`spaces` says what each column means; `mask` says which actions are legal.
"""

from __future__ import annotations

from resilisim.envs.workflow.kernels.mask import allow_execution
from resilisim.envs.workflow.kernels.records import Episode, Int, Sections, TaskRecord, World
from resilisim.envs.workflow.kernels.training_law import phase_of, training_base, training_probability
from resilisim.envs.workflow.spaces import (
    BLOCK_CLOSED,
    BLOCK_OPEN,
    BLOCK_REFUSED,
    LARGEST,
    LAW_CALL_TIME,
    LAW_CAN_WAIT,
    LAW_CHANCE_SLOW,
    LAW_FAILED_FACTOR,
    LAW_FALLS,
    LAW_FINISH_CHANCE,
    LAW_HISTORY_FACTOR,
    LAW_NOT_EXECUTED_FACTOR,
    LAW_OPENED,
    LAW_OUTAGE_BEGINS,
    LAW_OUTAGE_ENDS,
    LAW_RATE_CALLS,
    LAW_RATE_WINDOW,
    LAW_RISES,
    LAW_TIME_LEFT,
    PART_ACCESS_SHARE,
    PART_BLOCK,
    PART_CHANCE,
    PART_CHANCE_BROKEN,
    PART_CHANCE_DOWN,
    PART_CORRUPT_CHANCE,
    PART_FREE_IN,
    PART_GROUP_NUM_DUE,
    PART_GROUP_SEEN,
    PART_INPUT_SHARE,
    PART_IS_OPENER,
    PART_IS_VALIDATOR,
    PART_RATE_CALLS_MADE,
    PART_RATE_NUM_DUE,
    PART_SEEN_AGO,
    PART_SERVES_CHANCE,
    PART_SERVES_DISTANCE,
    PART_SERVES_DUE,
    PART_SERVES_NUM,
    PART_SERVES_WEIGHT,
    PART_SOUNDNESS,
    STATUS_FAILED,
    STATUS_SUCCESS,
    TASK_BASE_PROBABILITY,
    TASK_CONSECUTIVE_FAILURES,
    TASK_HAS_CHECKPOINT,
    TASK_HISTORY_FACTOR,
    TASK_LOOP_COUNT,
    TASK_MILESTONES,
    TASK_NUM_DUE,
    TASK_NUM_RUNNING,
    TASK_ORDER_BROKEN,
    TASK_PHASE,
    TASK_PROGRESS,
    TASK_STAGE,
    TASK_STEPS_LEFT,
    TASK_STEPS_USED,
    TASK_TOTAL_FAILURES,
    TOOL_CLEAN_PROBABILITY,
    TOOL_DUE,
    TOOL_FIRST_DEPENDENT_DUE,
    TOOL_FIRST_DESCENDANT_DUE,
    TOOL_NUM_DEPENDENTS_DUE,
    TOOL_NUM_FAILED,
    TOOL_NUM_NOT_EXECUTED,
    TOOL_STATUS,
    quantised,
    saturated,
)
from resilisim.simulator.compiled import inlined, scalar, unlikely
from resilisim.simulator.rulebook.rules import (
    CLOSED,
    NEVER_SEEN,
    NONE,
    OPEN,
    UNSOUND,
    chance_broken,
    chance_down,
    chance_of_draw,
    chance_slow,
    chance_works,
    is_opened,
    is_refused,
    law_probability,
    messages_until_free,
    table_row,
    time_limit,
)
from resilisim.simulator.state import CONSECUTIVE_FAILURES, LOOP_COUNT, NUM_FAILURES, SPOILT, TURNS_USED
from resilisim.simulator.tool_status import FAILED, SUCCEEDED, count_unmet

DRIFT_SCALE = 20.0


@inlined
def show_dependency_counts(episode: Episode, tool: int, task: TaskRecord, world: World) -> None:
    """Rewrite what a tool's row says of its direct dependencies."""
    row, status, rules = episode.tools[tool], episode.status, world.rules
    num_not_executed, num_failed = count_unmet(status, rules.dependencies[tool])
    row[TOOL_NUM_NOT_EXECUTED] = saturated(num_not_executed)
    row[TOOL_NUM_FAILED] = saturated(num_failed)
    if unlikely(world.training_law != 0):
        base = training_base(episode.running_success)
        chance = training_probability(base, num_not_executed + num_failed, 0, float(task.task_confidence[tool]))
        row[TOOL_CLEAN_PROBABILITY] = quantised(chance)
    else:
        place = table_row(rules, episode.counters, tool)
        row[TOOL_CLEAN_PROBABILITY] = world.shown_probability[place, num_not_executed, num_failed]


@inlined
def is_believed(episode: Episode, sections: Sections, tool: int, world: World) -> bool:
    """Return whether a tool has an output that is not known to be corrupt."""
    at_sound = world.rules.at_sound
    return bool(episode.status[tool] == SUCCEEDED and (at_sound < 0 or sections.parts[at_sound + tool] != UNSOUND))


@inlined
def show_due(episode: Episode, sections: Sections, task: TaskRecord, world: World) -> None:
    """Count the places that are done, and rewrite TOOL_DUE and what depends on it; an output has changed."""
    tools, closure, required = episode.tools, task.closure, task.required
    if not world.hidden:
        for index in range(task.closure_size):
            row = tools[closure[index]]
            row[TOOL_DUE] = 0
            row[TOOL_NUM_DEPENDENTS_DUE] = 0
            row[TOOL_FIRST_DEPENDENT_DUE] = 0
            row[TOOL_FIRST_DESCENDANT_DUE] = 0
    due, end = 0, 0
    for place in range(task.num_required):
        first, is_done = end, False
        while end < len(required) and required[end] >= 0 and task.place[required[end]] == place:
            is_done = is_done or is_believed(episode, sections, required[end], world)
            end += 1
        if is_done:
            continue
        due += 1
        if world.hidden:
            continue
        for index in range(first, end):
            wanted = required[index]
            tools[wanted, TOOL_DUE] = due
            for dependency in world.rules.dependencies[wanted]:
                if dependency >= 0:
                    tools[dependency, TOOL_NUM_DEPENDENTS_DUE] += 1
                    if tools[dependency, TOOL_FIRST_DEPENDENT_DUE] == 0:
                        tools[dependency, TOOL_FIRST_DEPENDENT_DUE] = due
            for other in range(task.closure_size):
                helper = closure[other]
                if world.descends[helper, wanted] and tools[helper, TOOL_FIRST_DESCENDANT_DUE] == 0:
                    tools[helper, TOOL_FIRST_DESCENDANT_DUE] = due
    episode.num_done = task.num_required - due
    if not world.hidden:
        episode.task_columns[TASK_NUM_DUE] = due
        if unlikely(world.has_sections != 0):
            show_shared(episode, sections, task, world)


@inlined
def show_counters(episode: Episode, world: World) -> None:
    """Rewrite the columns of `task` that can change with any step."""
    counters, shown = episode.counters, episode.task_columns
    steps = counters[TURNS_USED]
    failures = counters[NUM_FAILURES]
    shown[TASK_STEPS_USED] = saturated(steps)
    shown[TASK_STEPS_LEFT] = saturated(episode.max_turns - steps)
    shown[TASK_TOTAL_FAILURES] = saturated(failures)
    shown[TASK_CONSECUTIVE_FAILURES] = saturated(counters[CONSECUTIVE_FAILURES])
    shown[TASK_LOOP_COUNT] = saturated(counters[LOOP_COUNT])
    if world.training_law:
        shown[TASK_HAS_CHECKPOINT] = 1 if episode.checkpoint_row >= 0 else 0
        shown[TASK_NUM_RUNNING] = 1 if episode.running >= 0 else 0
    else:
        shown[TASK_HISTORY_FACTOR] = world.history_factor[failures]
    if not world.hidden or world.without_list:
        shown[TASK_MILESTONES] = saturated(episode.milestones)
        shown[TASK_PROGRESS] = quantised(episode.progress)
    if not world.hidden:
        shown[TASK_ORDER_BROKEN] = counters[SPOILT]


@scalar
def show_trainer(episode: Episode, world: World) -> None:
    """Write the columns of `task` that follow from what a trainer has set."""
    shown = episode.task_columns
    shown[TASK_STEPS_LEFT] = saturated(episode.max_turns)
    if world.training_law:
        shown[TASK_BASE_PROBABILITY] = quantised(training_base(episode.running_success))
    if world.training_law or world.two_phase:
        shown[TASK_PHASE] = phase_of(episode.running_success)
        shown[TASK_STAGE] = episode.stage


# What a law with sections shows beside.


@scalar
def show_constant_sections(
    sections: Sections, not_executed: float, failed: float, history: float, drift: float, world: World
) -> None:
    """Write what no message changes; the numbers are the law's factors, and what it adds by message."""
    rules, shown = world.rules, sections.law
    shown[LAW_CAN_WAIT] = rules.waiting_is_productive
    shown[LAW_RATE_CALLS] = rules.rate_calls
    shown[LAW_RATE_WINDOW] = rules.rate_window if rules.rate_calls > 0 else 0
    shown[LAW_OUTAGE_BEGINS] = quantised(rules.begins)
    shown[LAW_OUTAGE_ENDS] = quantised(rules.ends)
    shown[LAW_RISES] = quantised(max(0.0, DRIFT_SCALE * drift))
    shown[LAW_FALLS] = quantised(max(0.0, -DRIFT_SCALE * drift))
    shown[LAW_NOT_EXECUTED_FACTOR] = quantised(not_executed)
    shown[LAW_FAILED_FACTOR] = quantised(failed)
    shown[LAW_HISTORY_FACTOR] = quantised(history)
    if rules.budget >= 0:
        mean = 0.0
        for number in range(rules.num_durations):
            mean += rules.duration_chance[number] * rules.duration_ticks[number]
        shown[LAW_CALL_TIME] = quantised(mean / rules.budget)
    for tool in range(rules.num_tools):
        row = sections.tool_parts[tool]
        if rules.at_block >= 0:
            row[PART_IS_OPENER] = rules.is_opener[tool]
        if rules.at_sound >= 0:
            row[PART_CORRUPT_CHANCE] = quantised(rules.corrupt_chance[tool])
            row[PART_IS_VALIDATOR] = rules.is_validator[tool]


@scalar
def show_clocks(sections: Sections, finish_chance: float, opened: bool, slow: float, world: World) -> None:
    """Rewrite what is shown of the episode as a whole under a law with sections."""
    rules, shown = world.rules, sections.law
    shown[LAW_FINISH_CHANCE] = quantised(finish_chance) if not world.hidden else 0
    shown[LAW_OPENED] = 1 if opened else 0
    shown[LAW_CHANCE_SLOW] = quantised(slow)
    shown[LAW_TIME_LEFT] = LARGEST
    if rules.budget >= 0:
        shown[LAW_TIME_LEFT] = quantised(1.0 - sections.parts[rules.at_time] / rules.budget)


@scalar
def show_tool(
    episode: Episode, sections: Sections, tool: int, opened: bool, down: float, slow: float, world: World
) -> None:
    """Rewrite what is shown of a tool under a law with sections.

    Args:
        episode: The episode.
        sections: Its record of these.
        tool: The tool.
        opened: Whether a tool that opens has succeeded.
        down: Chance that its group is down.
        slow: Chance that a call takes longer than it may.
        world: The rest.
    """
    rules, parts, row = world.rules, sections.parts, sections.tool_parts[tool]
    if rules.at_block >= 0:
        block = parts[rules.at_block + tool]
        row[PART_BLOCK] = BLOCK_OPEN
        if block == CLOSED:
            row[PART_BLOCK] = BLOCK_CLOSED if not opened else BLOCK_OPEN
        elif block != OPEN:
            row[PART_BLOCK] = BLOCK_REFUSED
        row[PART_INPUT_SHARE] = quantised(rules.opened_input_share[tool] if opened else rules.input_share[tool])
        row[PART_ACCESS_SHARE] = quantised(0.0 if opened else rules.access_share[tool])
    if rules.at_sound >= 0:
        row[PART_SOUNDNESS] = parts[rules.at_sound + tool]
        if row[PART_SOUNDNESS] == UNSOUND and episode.tools[tool, TOOL_STATUS] == STATUS_SUCCESS:
            episode.tools[tool, TOOL_STATUS] = STATUS_FAILED
            allow_execution(episode, sections, tool, True, world)
    if rules.at_evidence >= 0:
        row[PART_CHANCE_BROKEN] = quantised(chance_broken(rules, episode.status, parts, tool))
    show_clocks_of_tool(episode, sections, tool, down, slow, world)


@scalar
def show_clocks_of_tool(
    episode: Episode, sections: Sections, tool: int, down: float, slow: float, world: World
) -> None:
    """Rewrite what of a tool changes from message to message by itself, and its chances."""
    rules, status, parts, row = world.rules, episode.status, sections.parts, sections.tool_parts[tool]
    key, group, standing = rules.rate_key[tool], rules.group[tool], 0.0
    if key >= 0:
        row[PART_FREE_IN] = messages_until_free(rules, parts, tool)
        row[PART_RATE_CALLS_MADE] = parts[rules.at_rate + key] & LARGEST
    if group >= 0:
        seen = parts[rules.at_outage + 2 * group]
        row[PART_GROUP_SEEN] = seen
        row[PART_SEEN_AGO] = saturated(parts[rules.at_outage + 2 * group + 1]) if seen != NEVER_SEEN else 0
        row[PART_CHANCE_DOWN] = quantised(down)
    if row[PART_FREE_IN] == 0 and not is_refused(rules, status, parts, tool, 0):
        standing = chance_of_draw(down, slow, chance_works(rules, status, parts, sections.hidden, False, tool))
    sections.standing[tool] = standing
    show_chance(episode, sections, tool, world)


@scalar
def show_chance(episode: Episode, sections: Sections, tool: int, world: World) -> None:
    """Rewrite what is shown of a tool's chances under a law with sections."""
    rules, counters = world.rules, episode.counters
    probability = law_probability(rules, world.tables, episode.status, counters, tool)
    sections.tool_parts[tool, PART_CHANCE] = quantised(sections.standing[tool] * probability)
    if rules.rows_by_turn:
        place, missing = table_row(rules, counters, tool), episode.tools[tool]
        missing[TOOL_CLEAN_PROBABILITY] = world.shown_probability[
            place, missing[TOOL_NUM_NOT_EXECUTED], missing[TOOL_NUM_FAILED]
        ]


@scalar
def show_sections(
    episode: Episode, sections: Sections, num_failures: int, is_first: bool, finish_chance: float, world: World
) -> None:
    """Rewrite what a step can have changed under a law with sections.

    Args:
        episode: The episode.
        sections: Its record of these.
        num_failures: How many there were before the step.
        is_first: Whether it brought the first success of `episode.tool`.
        finish_chance: Chance that everything required is done.
        world: The rest.
    """
    rules, parts, executed = world.rules, sections.parts, episode.tool
    slow = chance_slow(rules, time_limit(rules, parts))
    opened = rules.at_block >= 0 and is_opened(rules, episode.status)
    every = opened != (sections.law[LAW_OPENED] == 1) or rules.budget >= 0
    if rules.at_sound >= 0 and executed >= 0:  # it tells of the others
        every = every or (episode.tool_success and rules.is_validator[executed] == 1)
    every_chance = rules.rows_by_turn == 1 or num_failures != episode.counters[NUM_FAILURES]
    group, down = NONE, 0.0
    for tool in range(rules.num_tools):
        if rules.group[tool] != group:  # tools of a group mostly follow each other
            group = rules.group[tool]
            down = chance_down(rules, parts, group) if group >= 0 else 0.0
        if every or tool == executed:
            show_tool(episode, sections, tool, opened, down, slow, world)
        elif _has_clock(sections, tool, world):
            show_clocks_of_tool(episode, sections, tool, down, slow, world)
        elif every_chance:
            show_chance(episode, sections, tool, world)
    if is_first:
        for dependent in world.dependents[executed]:
            if dependent < 0:
                break
            show_chance(episode, sections, dependent, world)
    show_clocks(sections, finish_chance, opened, slow, world)


@inlined
def _has_clock(sections: Sections, tool: int, world: World) -> bool:
    """Return whether what is shown of a tool changes from message to message by itself."""
    rules, parts, row = world.rules, sections.parts, sections.tool_parts[tool]
    key, group = rules.rate_key[tool], rules.group[tool]
    if key >= 0 and (parts[rules.at_rate + key] != 0 or row[PART_RATE_CALLS_MADE] != 0 or row[PART_FREE_IN] != 0):
        return True
    return bool(group >= 0 and parts[rules.at_outage + 2 * group] != NEVER_SEEN)


@scalar
def show_shared(episode: Episode, sections: Sections, task: TaskRecord, world: World) -> None:
    """Rewrite how many tools are due of those that share a limit or a group, and the first of them."""
    rules = world.rules
    if rules.at_rate >= 0:
        _show_sharers(episode, sections, task, rules.rate_key, rules.num_rate_keys, PART_RATE_NUM_DUE, world)
    if rules.at_outage >= 0:
        _show_sharers(episode, sections, task, rules.group, rules.num_groups, PART_GROUP_NUM_DUE, world)


@scalar
def _show_sharers(
    episode: Episode, sections: Sections, task: TaskRecord, shared: Int, num_shared: int, column: int, world: World
) -> None:
    """Rewrite two columns; `shared` (num_tools,) numbers what tools share, of which there are `num_shared`."""
    rows, sharers = sections.tool_parts, sections.scratch
    for number in range(num_shared):
        sharers[number, 0] = sharers[number, 1] = 0
    for index in range(task.closure_size):
        wanted = task.closure[index]
        due, number = int(episode.tools[wanted, TOOL_DUE]), shared[wanted]
        if due == 0 or number < 0:
            continue
        sharers[number, 0] += 1
        if sharers[number, 1] == 0 or due < sharers[number, 1]:
            sharers[number, 1] = due
    for tool in range(world.rules.num_tools):
        number = shared[tool]
        rows[tool, column] = saturated(sharers[number, 0]) if number >= 0 else 0
        rows[tool, column + 1] = sharers[number, 1] if number >= 0 else 0


@scalar
def show_serving(episode: Episode, sections: Sections, task: TaskRecord, world: World) -> None:
    """Rewrite what the success of each tool serves; the closure stands in an order of dependents first."""
    rows, weight, status, closure = sections.tool_parts, sections.weight, episode.status, task.closure
    for index in range(task.closure_size):
        tool = closure[index]
        for column in range(PART_SERVES_DUE, PART_SERVES_WEIGHT + 1):
            rows[tool, column] = 0
        weight[tool] = 1.0 if episode.tools[tool, TOOL_DUE] > 0 else 0.0
    for index in range(task.closure_size):
        tool = closure[index]
        due, distance = int(episode.tools[tool, TOOL_DUE]), 1
        if due == 0 and status[tool] != SUCCEEDED:
            due, distance = int(rows[tool, PART_SERVES_DUE]), int(rows[tool, PART_SERVES_DISTANCE]) + 1
        for dependency in world.rules.dependencies[tool]:
            if dependency < 0 or due == 0:
                break
            if status[dependency] == SUCCEEDED:
                continue
            row = rows[dependency]
            row[PART_SERVES_NUM] = saturated(int(row[PART_SERVES_NUM]) + 1)
            nearer = due == row[PART_SERVES_DUE] and distance < row[PART_SERVES_DISTANCE]
            if row[PART_SERVES_DUE] == 0 or due < row[PART_SERVES_DUE] or nearer:
                row[PART_SERVES_DUE], row[PART_SERVES_DISTANCE] = due, saturated(distance)
                row[PART_SERVES_CHANCE] = episode.tools[tool, TOOL_CLEAN_PROBABILITY]
            column = LAW_FAILED_FACTOR if status[dependency] == FAILED else LAW_NOT_EXECUTED_FACTOR
            weight[dependency] += weight[tool] * (1.0 - sections.law[column] / LARGEST)
    for index in range(task.closure_size):
        tool = closure[index]
        if rows[tool, PART_SERVES_DUE] > 0:
            rows[tool, PART_SERVES_WEIGHT] = quantised(0.5 * weight[tool])
