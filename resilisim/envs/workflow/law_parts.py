"""Workflow-v0 under laws with parts: what it shows of them, and what an action does then.

The transition is that of `simulator.rulebook`, the one which Conversation-v0 plays: the same functions, compiled.
Beside the arrays of `columns`, observations hold two more, of the same small integers, and only under laws with parts:

* `tool_parts`: uint8 (num_tools, NUM_PART_COLUMNS), what an agent can know of each tool
* `law`: uint8 (NUM_LAW_COLUMNS,), what it can know of the law and of the episode as a whole

Chances are those by what an agent can know. The columns are the same under every such law, so one policy reads
them all. In the arrays of `columns`, a tool whose output is known to be corrupt is shown as FAILED, and its place is
due again.

Which actions have a meaning beside executions:

* NO_OP lets a turn pass, where waiting can help
* after a tool's input was refused, INVOKE_TOOL calls it with a parameter changed, and RETRY_TOOL as it was
* VALIDATE_OUTPUT without a tool accepts outputs that only look sound, and so completes the episode. Completion is
  signalled by itself once they are known to be sound, and with the closing message
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.actions import (
    INVOKE_TOOL,
    META_NO_OP,
    NO_OP,
    RETRY_TOOL,
    VALIDATE_OUTPUT,
    action_index,
    action_type_of,
    meta_action_index,
    tool_of,
    write_mask,
)
from resilisim.envs.workflow.arrays import (
    Episode,
    Records,
    TaskRecord,
    World,
    block_of_lines,
    copy_records,
    make_records,
)
from resilisim.envs.workflow.columns import LARGEST, names_between, quantised, saturated
from resilisim.simulator.compiled import scalar
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.messages import FINISH, WAIT, Message, execution
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.build import as_record
from resilisim.simulator.rulebook.luck import LuckTables, write_first_hidden
from resilisim.simulator.rulebook.play import parameter_digest
from resilisim.simulator.rulebook.rules import (
    CLOSED,
    CORRUPT,
    NEVER_SEEN,
    NUM_RESULTS,
    OPEN,
    SUCCESS,
    UNSOUND,
    Rulebook,
    Tables,
    chance_broken,
    chance_down,
    chance_slow,
    fill_chances,
    finish_value,
    is_opened,
    messages_until_free,
    table_row,
    time_limit,
)
from resilisim.simulator.state import COMPLETION, ENDED, RUNNING, TIME, TURNS, TURNS_USED, EpisodeState
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.parameters import changed_parameters

if TYPE_CHECKING:
    from resilisim.envs.workflow.arrays import Layout

# Columns of `tool_parts`.
CHANCE = 0  # chance that a call succeeds now, or reports so; with a parameter changed, if the input was refused
BLOCK = 1  # 0: open, 1: closed until a tool that opens has succeeded, 2: surely fails with the parameters of last time
SOUNDNESS = 2  # of the output; 0: there is none, 1: sound, 2: corrupt, 3: only a validator can tell
CORRUPT_CHANCE = 3  # chance that the output of a success is corrupt
FREE_IN = 4  # messages until the rate limit lets a call through; 0: now
RATE_CALLS_MADE = 5  # which of the latest eight messages count for the limit of this tool; bit 0: the latest
GROUP_SEEN = 6  # what was last seen of its group of outages; 0: nothing, or no group, 1: up, 2: down
SEEN_AGO = 7  # messages since then
CHANCE_DOWN = 8  # chance that the group is down now
CHANCE_BROKEN = 9  # chance that the tool is broken
INPUT_SHARE = 10  # share of failures after which a parameter has to change
ACCESS_SHARE = 11  # share of failures that close the tool
IS_VALIDATOR = 12  # 1: its success tells which outputs are corrupt
IS_OPENER = 13  # 1: its success opens what is closed
RATE_NUM_DUE = 14  # tools that are due and counted by the same limit, this one included
RATE_FIRST_DUE = 15  # the first of them, as DUE has it; 0: none
GROUP_NUM_DUE = 16  # tools that are due and in the same group of outages, this one included
GROUP_FIRST_DUE = 17  # the first of them; 0: none
NUM_PART_COLUMNS = 18
PART_COLUMNS = tuple(name.lower() for name in names_between(globals(), "CHANCE", "GROUP_FIRST_DUE"))

# Columns of `law`.
CAN_WAIT = 0  # 1: waiting can help
FINISH_CHANCE = 1  # chance that everything required is done
TIME_LEFT = 2  # share of the time that is left; 255 without a budget
CALL_TIME = 3  # mean duration of a call, as a share of the budget
CHANCE_SLOW = 4  # chance that a call takes longer than it may now
RATE_CALLS = 5  # calls that the rate limit lets through; 0: there is none
RATE_WINDOW = 6  # messages in which they are counted
OUTAGE_BEGINS = 7  # chance that a group that is up is down at the next message
OUTAGE_ENDS = 8  # chance that one that is down is up
RISES = 9  # twenty times what each message adds to the base; 0 if it falls
OPENED = 10  # 1: a tool that opens has succeeded
NOT_EXECUTED_FACTOR = 11  # factor of the law for each dependency never executed
FAILED_FACTOR = 12  # factor for each dependency that failed
FALLS = 13  # twenty times what each message takes from the base; 0 if it rises
NUM_LAW_COLUMNS = 14
LAW_COLUMNS = tuple(name.lower() for name in names_between(globals(), "CAN_WAIT", "FALLS"))

CLOSED_TOOL, REFUSED_INPUT = 1, 2  # values of BLOCK
DRIFT_SCALE = 20.0

DRAWN = -1  # instead of a result, where luck decides


class PartTables(NamedTuple):
    """What compiled code reads and writes under a law with parts, beside the records of `arrays`.

    Attributes:
        rules: (num_tasks,) the fields of `Rulebook`, the law's constants, and what it adds to the base by message; with
            the places of each task's required list.
        tables: The law, tabulated.
        luck: What luck is drawn by.
        episodes: (num_envs,) records of `part_dtype`.
        finals: (num_envs,) or fewer, last observations, as blocks of words.
        given: int64 (3,), what the next step is made to bring, or DRAWN.
        digests: int64 (num_tools, 2), what stands for a tool's two sets of parameters (`call_parameters`).
    """

    rules: Records
    tables: Tables
    luck: LuckTables
    episodes: Records
    finals: NDArray[np.int64]
    given: NDArray[np.int64]
    digests: NDArray[np.int64]

    def of(self, envs: slice) -> PartTables:
        """Return those of some environments."""
        return self._replace(episodes=self.episodes[envs], finals=self.finals[envs])

    def copied(self) -> PartTables:
        """Return a copy of what episodes change, with the same tables."""
        return self._replace(
            episodes=copy_records(self.episodes),
            finals=self.finals.copy(),
            given=self.given.copy(),
        )


def part_dtype(layout: Layout) -> np.dtype[Any]:
    """Return the record of what one environment's episode has under a law with parts."""
    tools = (layout.tools,)
    return block_of_lines(
        [("tool_parts", np.uint8, (layout.tools, NUM_PART_COLUMNS)), ("law", np.uint8, (NUM_LAW_COLUMNS,))],
        [
            # More than the sections of `Rulebook` can take: rate keys, groups twice, tools three times, time.
            ("parts", np.int64, (7 * layout.tools,)),
            ("hidden", np.int64, (3 * layout.tools,)),
            ("variant", np.int8, tools),  # which of its two sets of parameters a tool was called with last
            ("chances", np.float64, (NUM_RESULTS,)),  # scratch
        ],
    )


def make_part_tables(num_envs: int, num_finals: int, layout: Layout, problems: list[Problem]) -> PartTables:
    """Return the tables of the problems of some tasks, which have one law with parts."""
    parts, library = problems[0].dynamics, problems[0].library
    law = parts.numbers.law
    shown = {**law.constants.to_mapping(), "drift": law.drift.per_message if law.drift is not None else 0.0}
    record = as_record({**parts.rules._asdict(), **shown}, layout.tools, layout.dependencies)
    rules = make_records(len(problems), record.dtype)
    rules[:] = record
    rules["num_required"] = [len(problem.required) for problem in problems]
    rules["place"][:, : problems[0].num_tools] = [problem.place for problem in problems]
    episodes = make_records(num_envs, part_dtype(layout))
    finals = np.zeros((num_finals, episodes["observation"].shape[1]), dtype=np.int64)
    digests = [[parameter_digest(tool, call_parameters(tool, variant)) for variant in range(2)] for tool in library]
    given = np.full(3, DRAWN, dtype=np.int64)
    return PartTables(
        rules, parts.numbers.tables, parts.numbers.luck, episodes, finals, given, np.array(digests, dtype=np.int64)
    )


def call_parameters(tool: Tool, variant: int) -> dict[str, Any]:
    """Return the parameters that a call stands for: none, or, where those were refused, one that is changed."""
    return changed_parameters(tool, {}) if variant else {}


@scalar
def is_place_done(episode: Episode, mine: Any, place: int, task: TaskRecord, rules: Rulebook) -> bool:
    """Return whether a required tool, or one in its place, has an output that is not known to be corrupt."""
    for index in range(task.closure_size):
        tool = task.closure[index]
        is_believed = rules.at_sound < 0 or mine.parts[rules.at_sound + tool] != UNSOUND
        if task.place[tool] == place and episode.status[tool] == SUCCEEDED and is_believed:
            return True
    return False


@scalar
def coverage_under_parts(episode: Episode, mine: Any, task: TaskRecord, rules: Rulebook) -> float:
    """Return the share of required tools that are done."""
    count = 0
    for place in range(task.num_required):
        count += 1 if is_place_done(episode, mine, place, task, rules) else 0
    return float(count / task.num_required)


@scalar
def show_due_places(episode: Episode, mine: Any, task: TaskRecord, world: World, rules: Rulebook) -> None:
    """Rewrite DUE and what depends on it, as `show_due` does, for places that several tools can take."""
    tools, closure = episode.tools, task.closure
    for index in range(task.closure_size):
        row = tools[closure[index]]
        row[columns.DUE] = 0
        row[columns.NUM_DEPENDENTS_DUE] = 0
        row[columns.FIRST_DEPENDENT_DUE] = 0
        row[columns.FIRST_DESCENDANT_DUE] = 0
    due = 0
    for place in range(task.num_required):
        if is_place_done(episode, mine, place, task, rules):
            continue
        due += 1
        for index in range(task.closure_size):
            wanted = closure[index]
            if task.place[wanted] != place:
                continue
            tools[wanted, columns.DUE] = due
            for dependency in world.dependencies[wanted]:
                if dependency >= 0:
                    tools[dependency, columns.NUM_DEPENDENTS_DUE] += 1
                    if tools[dependency, columns.FIRST_DEPENDENT_DUE] == 0:
                        tools[dependency, columns.FIRST_DEPENDENT_DUE] = due
            for other in range(task.closure_size):
                helper = closure[other]
                if world.descends[helper, wanted] and tools[helper, columns.FIRST_DESCENDANT_DUE] == 0:
                    tools[helper, columns.FIRST_DESCENDANT_DUE] = due
    episode.task_columns[columns.NUM_DUE] = due


@scalar
def show_parts(episode: Episode, mine: Any, task: TaskRecord, world: World, rules: Rulebook, tables: Tables) -> None:
    """Rewrite every column that depends on the parts, by what an agent can know."""
    status, counters, parts, hidden = episode.status, episode.counters, mine.parts, mine.hidden
    opened = rules.at_block >= 0 and is_opened(rules, status)
    for tool in range(world.num_tools):
        row = mine.tool_parts[tool]
        fill_chances(rules, tables, status, counters, parts, hidden, False, tool, 0, mine.chances)
        row[CHANCE] = quantised(mine.chances[SUCCESS] + mine.chances[CORRUPT])
        if rules.at_block >= 0:
            block = parts[rules.at_block + tool]
            row[BLOCK] = 0
            if block == CLOSED:
                row[BLOCK] = CLOSED_TOOL if not opened else 0
            elif block != OPEN:
                row[BLOCK] = REFUSED_INPUT
            row[INPUT_SHARE] = quantised(rules.opened_input_share[tool] if opened else rules.input_share[tool])
            row[ACCESS_SHARE] = quantised(0.0 if opened else rules.access_share[tool])
            row[IS_OPENER] = rules.is_opener[tool]
        if rules.at_sound >= 0:
            row[SOUNDNESS] = parts[rules.at_sound + tool]
            row[CORRUPT_CHANCE] = quantised(rules.corrupt_chance[tool])
            row[IS_VALIDATOR] = rules.is_validator[tool]
            if row[SOUNDNESS] == UNSOUND and episode.tools[tool, columns.STATUS] == columns.SUCCESS:
                episode.tools[tool, columns.STATUS] = columns.FAILED
        if rules.rate_key[tool] >= 0:
            row[FREE_IN] = messages_until_free(rules, parts, tool)
            row[RATE_CALLS_MADE] = parts[rules.at_rate + rules.rate_key[tool]] & LARGEST
        group = rules.group[tool]
        if group >= 0:
            seen = parts[rules.at_outage + 2 * group]
            row[GROUP_SEEN] = seen
            row[SEEN_AGO] = saturated(parts[rules.at_outage + 2 * group + 1]) if seen != NEVER_SEEN else 0
            row[CHANCE_DOWN] = quantised(chance_down(rules, parts, group))
        if rules.at_evidence >= 0:
            row[CHANCE_BROKEN] = quantised(chance_broken(rules, status, parts, tool))
        if rules.rows_by_turn:
            missing = count_not_executed(status, rules.dependencies[tool])
            failed = count_failed_dependencies(status, rules.dependencies[tool])
            chance = tables.probability[table_row(rules, counters, tool), missing, failed, 0]
            episode.tools[tool, columns.CLEAN_PROBABILITY] = quantised(chance)
    shown = mine.law
    shown[FINISH_CHANCE] = quantised(finish_value(rules, counters, parts, hidden, False)) if not world.hidden else 0
    shown[OPENED] = 1 if opened else 0
    limit = time_limit(rules, parts)
    shown[CHANCE_SLOW] = quantised(chance_slow(rules, limit))
    shown[TIME_LEFT] = LARGEST
    if rules.budget >= 0:
        shown[TIME_LEFT] = quantised(1.0 - parts[rules.at_time] / rules.budget)
    if not world.hidden:
        show_due_places(episode, mine, task, world, rules)
        if rules.at_rate >= 0:
            show_shared(episode, mine, task, world, rules.rate_key, RATE_NUM_DUE)
        if rules.at_outage >= 0:
            show_shared(episode, mine, task, world, rules.group, GROUP_NUM_DUE)


@scalar
def show_shared(episode: Episode, mine: Any, task: TaskRecord, world: World, shared: Any, column: int) -> None:
    """Rewrite two columns: how many tools are due of those that share something with a tool, and the first of them."""
    rows = mine.tool_parts
    for tool in range(world.num_tools):
        rows[tool, column] = rows[tool, column + 1] = 0
    for index in range(task.closure_size):
        wanted = task.closure[index]
        due = episode.tools[wanted, columns.DUE]
        if due == 0 or shared[wanted] < 0:
            continue
        for tool in range(world.num_tools):
            if shared[tool] == shared[wanted]:
                rows[tool, column] += 1
                if rows[tool, column + 1] == 0 or due < rows[tool, column + 1]:
                    rows[tool, column + 1] = due


@scalar
def show_law(mine: Any, rules: Any) -> None:
    """Write the columns of the law that no message changes."""
    shown = mine.law
    shown[CAN_WAIT] = rules.waiting_is_productive
    shown[RATE_CALLS] = rules.rate_calls
    shown[RATE_WINDOW] = rules.rate_window if rules.rate_calls > 0 else 0
    shown[OUTAGE_BEGINS] = quantised(rules.begins)
    shown[OUTAGE_ENDS] = quantised(rules.ends)
    shown[RISES] = quantised(max(0.0, DRIFT_SCALE * rules.drift))
    shown[FALLS] = quantised(max(0.0, -DRIFT_SCALE * rules.drift))
    shown[NOT_EXECUTED_FACTOR] = quantised(rules.not_executed)
    shown[FAILED_FACTOR] = quantised(rules.failed)
    if rules.budget >= 0:
        mean = 0.0
        for number in range(rules.num_durations):
            mean += rules.duration_chance[number] * rules.duration_ticks[number]
        shown[CALL_TIME] = quantised(mean / rules.budget)


@scalar
def allow_under_parts(episode: Episode, mine: Any, task: TaskRecord, world: World, rules: Rulebook) -> None:
    """Write the mask, with what has a meaning under this law only."""
    write_mask(episode, task, world)
    num_tools, mask = world.num_tools, episode.action_mask
    if rules.waiting_is_productive:
        mask[meta_action_index(META_NO_OP, num_tools)] = 1
    for tool in range(num_tools):
        if mine.tool_parts[tool, BLOCK] == REFUSED_INPUT:
            invoke, retry = action_index(INVOKE_TOOL, tool, num_tools), action_index(RETRY_TOOL, tool, num_tools)
            mask[invoke] = mask[retry] = max(mask[invoke], mask[retry])
    chance = finish_value(rules, episode.counters, mine.parts, mine.hidden, False)
    mask[action_index(VALIDATE_OUTPUT, num_tools, num_tools)] = 1 if 0.0 < chance < 1.0 else 0


@scalar
def begin_under_parts(
    episode: Episode, mine: Any, task: TaskRecord, world: World, rules: Rulebook, tables: Tables, luck: LuckTables
) -> None:
    """Complete the start of an episode."""
    for place in range(rules.num_parts):
        mine.parts[place] = 0
    for tool in range(world.num_tools):
        mine.variant[tool] = 0
    write_first_hidden(rules, luck, episode.key0, episode.key1, mine.hidden)
    show_law(mine, rules)
    show_parts(episode, mine, task, world, rules, tables)
    allow_under_parts(episode, mine, task, world, rules)


@scalar
def call_digest(mine: Any, action_type: int, tool: int, digests: Any) -> int:
    """Return what stands for the parameters of a call; INVOKE_TOOL changes those that were refused."""
    if action_type == INVOKE_TOOL and mine.tool_parts[tool, BLOCK] == REFUSED_INPUT:
        mine.variant[tool] = 1 - mine.variant[tool]
    return int(digests[tool, mine.variant[tool]])


@scalar
def end_under_parts(
    counters: Any, mine: Any, accepts: bool, max_turns: int, rules: Rulebook, out_of_time: bool
) -> bool:
    """Enter how the episode has ended, if it has, and return whether it is a full success."""
    if counters[ENDED] == RUNNING:
        chance = finish_value(rules, counters, mine.parts, mine.hidden, False)
        if accepts or chance == 1.0:
            counters[ENDED] = COMPLETION
        elif out_of_time or counters[TURNS_USED] >= max_turns:  # the closing message can accept, too
            counters[ENDED] = COMPLETION if chance > 0.0 else TURNS if counters[TURNS_USED] >= max_turns else TIME
    is_complete = counters[ENDED] == COMPLETION
    return bool(is_complete and finish_value(rules, counters, mine.parts, mine.hidden, True) == 1.0)


@scalar
def is_waiting(action_type: int, rules: Rulebook) -> bool:
    """Return whether an action lets a turn pass for a reason."""
    return bool(action_type == NO_OP and rules.waiting_is_productive == 1)


def state_of(episode: Any, parts: PartTables | None, env: int, num_tools: int) -> EpisodeState:
    """Return an episode as the state that the exact optimum reads."""
    known: tuple[tuple[int, ...], ...] = ()
    if parts is not None:
        mine, rules = parts.episodes[env], parts.rules[0]
        known = (tuple(mine.parts[: rules.num_parts].tolist()), tuple(mine.hidden[: rules.num_hidden].tolist()))
    return EpisodeState(
        tuple(episode.status[:num_tools].tolist()),
        tuple(episode.counters.tolist()),
        tuple(episode.executions[:num_tools].tolist()),
        *known,
    )


def message_of(
    library: ToolLibrary, parts: PartTables | None, episodes: Records, env: int, action: int
) -> Message | None:
    """Return what an action means in the present state of an episode; None if it does nothing and helps nobody."""
    num_tools, episode = len(library), episodes[env]
    kind, tool = action_type_of(action, num_tools), tool_of(action, num_tools)
    if not episode.action_mask[action]:
        return None
    if kind == VALIDATE_OUTPUT:
        return FINISH
    if kind == NO_OP:
        return WAIT if parts is not None and parts.episodes[env].law[CAN_WAIT] else None
    described = library[library.names[tool]]
    if parts is None:
        return execution(described.name)
    mine = parts.episodes[env]
    changes = kind == INVOKE_TOOL and mine.tool_parts[tool, BLOCK] == REFUSED_INPUT
    variant = 1 - mine.variant[tool] if changes else mine.variant[tool]
    return execution(described.name, call_parameters(described, variant))
