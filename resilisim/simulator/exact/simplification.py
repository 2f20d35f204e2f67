"""What the solver of laws with parts does with a state: value it at once, forget what makes no difference, look ahead.

Scalar functions and kernels over the vectors of a stage (`stage.Stage`), in which neutral tools stand behind those that
are told apart. Which calls are left out, and why nothing is lost by it, stands at `is_worth_a_thought`.
"""

from __future__ import annotations

from typing import Any

from resilisim.simulator.compiled import scalar
from resilisim.simulator.exact.stage import pack
from resilisim.simulator.rulebook.entering import finish_value
from resilisim.simulator.rulebook.rules import (
    CLOSED,
    NEVER_SEEN,
    NO_OUTPUT,
    OPEN,
    SOUND,
    UNCHECKED,
    UNSOUND,
    count_bits,
    is_opened,
    is_refused,
    is_time_up,
    messages_until_free,
)
from resilisim.simulator.rulebook.runs import (
    DOUBT,
    SURELY,
    chance_not_run,
    chance_run_well,
    enter_sure_run,
    is_answer_lost,
    is_missing,
)
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NO_LOOP,
    SPOILT,
    TURNS_USED,
)
from resilisim.simulator.tool_status import FAILED, NOT_EXECUTED, SUCCEEDED, IntVector

REFUSED_INPUT = 2  # in a stage: some input of the tool is refused surely; another one is always there
NEW_INPUT = 0  # stands for the parameters of a call that was not refused

# Marks of a tool: what calling it from now on can be good for.
USEFUL = 1  # a success that is missing profits from its success
ASIDE = 2  # to break a row of failures, to look whether a group is up, or to prepare another call for that

NOT_KNOWN = -1.0

# Sections with an entry for each tool.
NUM_OF_TOOLS, NUM_HIDDEN_OF_TOOLS = 4, 3


@scalar
def value_at_once(
    rules: Any, status: IntVector, counters: IntVector, parts: IntVector, hidden: IntVector, informed: bool
) -> float:
    """Return V* of a running state where it follows without looking ahead, else NOT_KNOWN."""
    if counters[SPOILT]:
        return 0.0
    turns_left = rules.max_turns - counters[TURNS_USED]
    missing = rules.num_required - counters[NEXT_PLACE]
    if rules.at_ran >= 0:
        for tool in range(rules.num_tools):
            if rules.is_once[tool] and chance_run_well(rules, parts, hidden, informed, tool) <= 0.0:
                return 0.0
        if rules.is_effects:
            return _value_of_effects(rules, counters, parts, hidden, informed)
    if missing == 0:
        value = finish_value(rules, rules, counters, parts, hidden, informed)
        is_over = value == 1.0 or turns_left == 0 or is_time_up(rules, parts)
        return value if is_over or not rules.counts_sound else NOT_KNOWN
    if turns_left < missing or is_time_up(rules, parts):
        return 0.0
    if rules.counts_sound or rules.at_ran >= 0 or (informed and rules.at_broken >= 0):
        repairs = missing
        for place in range(rules.num_required):
            hopeless = is_missing(rules, rules, status, counters, parts, place)
            corrupt = not hopeless
            for tool in range(rules.num_tools):
                if rules.place[tool] == place:
                    if rules.counts_sound and parts[rules.at_sound + tool] != UNSOUND and status[tool] == SUCCEEDED:
                        corrupt = False
                    is_broken = informed and rules.at_broken >= 0 and hidden[rules.at_broken + tool] == 1
                    if not is_broken and not is_answer_lost(rules, status, parts, hidden, informed, tool):
                        hopeless = False
            if hopeless:
                return 0.0
            if corrupt and rules.counts_sound:
                repairs += 1
        if turns_left < repairs:
            return 0.0
    return NOT_KNOWN


@scalar
def _value_of_effects(rules: Any, counters: IntVector, parts: IntVector, hidden: IntVector, informed: bool) -> float:
    """Return V* of a running state in which effects count and failures can come after the run, or NOT_KNOWN."""
    turns_left = rules.max_turns - counters[TURNS_USED]
    value = finish_value(rules, rules, counters, parts, hidden, informed)
    is_over = value == 1.0 or turns_left == 0 or is_time_up(rules, parts)
    if is_over or counters[NEXT_PLACE] == rules.num_required:  # whatever else is done, nothing gets better by it
        return value
    missing = 0
    for place in range(rules.num_required):
        not_run, hopeless = 1.0, True
        for tool in range(rules.num_tools):
            if rules.place[tool] == place:
                not_run *= chance_not_run(rules, parts, hidden, informed, tool)
                hopeless = hopeless and informed and rules.at_broken >= 0 and hidden[rules.at_broken + tool] == 1
        missing += int(not_run >= 1.0)
        if hopeless and not_run >= 1.0:
            return 0.0
    return 0.0 if turns_left < missing else NOT_KNOWN


@scalar
def row_matters(rules: Any, counters: IntVector) -> bool:
    """Return whether the row of failures can still become long enough to end the episode."""
    turns_left = rules.max_turns - counters[TURNS_USED]
    limit = rules.max_consecutive_failures
    return bool(limit > 0 and counters[CONSECUTIVE_FAILURES] + turns_left >= limit)


@scalar
def is_wanted_again(rules: Any, tool: int) -> bool:
    """Return whether calling a tool that has succeeded can be good for more than to break a row or see a group."""
    if rules.at_ran >= 0 and rules.is_checker[tool]:
        return True
    return bool(rules.counts_sound and (rules.place[tool] >= 0 or (rules.at_unsound >= 0 and rules.is_validator[tool])))


@scalar
def tells_of_runs(rules: Any, parts: IntVector, informed: bool, tool: int, later: bool) -> bool:
    """Return whether a success tells something of what has run, now or `later`."""
    if informed or rules.at_ran < 0 or not rules.is_checker[tool]:
        return False
    for other in range(rules.num_tools):
        if rules.checker[other] == tool:
            ran = parts[rules.at_ran + other]
            if ran >= DOUBT or (later and ran != SURELY):
                return True
    return False


@scalar
def mark_tools(
    rules: Any, status: IntVector, counters: IntVector, parts: IntVector, informed: bool, marks: IntVector
) -> None:
    """Write into `marks` (num_tools,) what calling each tool can be good for from now on: USEFUL and ASIDE, added."""
    num_tools = rules.num_tools
    any_closable = False
    for tool in range(num_tools):
        marks[tool] = 0
    for number in range(num_tools):
        tool = rules.order[number]
        place = rules.place[tool]
        if place >= 0 and (
            is_missing(rules, rules, status, counters, parts, place)
            or (rules.counts_sound and parts[rules.at_sound + tool] != SOUND)
        ):
            marks[tool] = USEFUL
        if rules.at_unsound >= 0 and rules.counts_sound and rules.is_validator[tool]:
            marks[tool] = USEFUL
        if tells_of_runs(rules, parts, informed, tool, True):
            marks[tool] = USEFUL
        if is_watched(rules, status, marks, tool):
            marks[tool] = USEFUL
        if marks[tool] and rules.access_share[tool] > 0.0:
            any_closable = any_closable or status[tool] != SUCCEEDED or is_wanted_again(rules, tool)
    if rules.at_block >= 0 and any_closable and not is_opened(rules, status):
        for tool in range(num_tools):
            if rules.is_opener[tool]:
                marks[tool] = USEFUL
        for number in range(num_tools):  # and what those depend on
            tool = rules.order[number]
            for dependent in rules.dependents[tool]:
                if dependent < 0:
                    break
                if marks[dependent] and status[dependent] != SUCCEEDED:
                    marks[tool] = USEFUL
    if not rules.is_enumerated:
        return
    everything = rules.failing_helps == 1 or row_matters(rules, counters)
    for number in range(num_tools):
        tool = rules.order[number]
        aside = everything or shows_group(rules, status, marks, informed, tool)
        for dependent in rules.dependents[tool]:
            if dependent < 0:
                break
            aside = aside or marks[dependent] >= ASIDE
        if aside:
            marks[tool] += ASIDE


@scalar
def is_called_for(rules: Any, status: IntVector, marks: IntVector, tool: int) -> bool:
    """Return whether a call of a tool can be good for something from now on."""
    is_useful = marks[tool] & USEFUL and (status[tool] != SUCCEEDED or is_wanted_again(rules, tool))
    return bool(is_useful or marks[tool] >= ASIDE)


@scalar
def is_watched(rules: Any, status: IntVector, marks: IntVector, tool: int) -> bool:
    """Return whether the status of a tool makes a difference to others."""
    for dependent in rules.dependents[tool]:
        if dependent < 0:
            break
        if is_called_for(rules, status, marks, dependent):
            return True
    return False


@scalar
def shows_group(rules: Any, status: IntVector, marks: IntVector, informed: bool, tool: int) -> bool:
    """Return whether calling a tool shows if another one can work that is useful."""
    group = rules.group[tool]
    if informed or group < 0:
        return False
    for other in range(rules.num_tools):
        is_useful = marks[other] & USEFUL and (status[other] != SUCCEEDED or is_wanted_again(rules, other))
        if other != tool and rules.group[other] == group and is_useful:
            return True
    return False


@scalar
def is_worth_a_thought(
    rules: Any, status: Any, counters: Any, parts: Any, hidden: Any, informed: bool, marks: Any, tool: int
) -> bool:
    """Return whether calling a tool can be the best message; else another one is at least as good, surely.

    What a call can bring is: a success that something missing profits from; a row of failures broken; a look whether a
    group is up; a tool turned from never executed into failed, which raises the chances of those that depend on it;
    and, of these, the preparation of another call. It costs a turn, and if it fails a failure more. Fewer failures and
    more turns are never worse, as long as no success is unwelcome: the same calls then succeed at least as often. So a
    call that can bring nothing is no better than to let the turn pass, which is no better than the best message. Where
    a success can be unwelcome (`failing_helps`: a tool that others wait for is required only later, and one that failed
    counts for more than one never tried) that does not hold, and an enumerated stage leaves nothing out.

    In a stage that is not enumerated neutral tools break rows and look at groups. They do it as well as any call that
    is left out, or better, which is what an upper bound is for; or they are surely there, as for a lower bound.
    """
    failures = counters[CONSECUTIVE_FAILURES] if rules.max_consecutive_failures > 0 else 0
    if rules.is_neutral[tool]:
        least = rules.least_row[tool]
        return bool(rules.group[tool] >= 0 and not informed if least == 0 else failures >= least)
    if rules.is_enumerated and rules.failing_helps:
        return True
    if status[tool] == SUCCEEDED and 0 < rules.recall_row <= failures:
        return True
    if not marks[tool]:
        return False
    is_free = messages_until_free(rules, parts, tool) == 0
    can_succeed = is_free and not is_refused(rules, status, parts, tool, NEW_INPUT)
    if informed and rules.at_broken >= 0 and hidden[rules.at_broken + tool] == 1:
        can_succeed = False
    if is_answer_lost(rules, status, parts, hidden, informed, tool):
        can_succeed = False
    breaks_order = rules.is_ordered == 1 and status[tool] != SUCCEEDED and rules.place[tool] > counters[NEXT_PLACE]
    # Executed in vain, it may still have been executed.
    is_seen_failing = status[tool] == NOT_EXECUTED and is_watched(rules, status, marks, tool)
    if rules.is_enumerated and marks[tool] >= ASIDE:
        if is_free and shows_group(rules, status, marks, informed, tool):
            return True
        if is_free and not informed and rules.group[tool] >= 0 and row_matters(rules, counters):
            return True  # any other tool of the group may be wanted to break a row
        if can_succeed and not breaks_order:
            if failures > 0:
                return True
            if status[tool] != SUCCEEDED:  # to prepare that
                opens = rules.at_block >= 0 and rules.is_opener[tool] == 1 and not is_opened(rules, status)
                is_doubted = rules.at_evidence >= 0 and rules.broken_prior[tool] > 0.0
                if opens or is_doubted or is_watched(rules, status, marks, tool):
                    return True
    if is_seen_failing:
        return True
    if not marks[tool] & USEFUL:
        return False
    if status[tool] == SUCCEEDED:
        if tells_of_runs(rules, parts, informed, tool, False):
            return True
        if not rules.counts_sound:
            return False
        validates = rules.at_unsound >= 0 and rules.is_validator[tool] == 1
        return bool(validates or (rules.place[tool] >= 0 and parts[rules.at_sound + tool] != SOUND))
    if rules.group[tool] >= 0 and not informed:
        return True
    return bool(can_succeed and not breaks_order)


@scalar
def simplify(
    rules: Any,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    marks: IntVector,
) -> None:
    """Forget in place what makes no difference to the value of a state; `marks` is for scratch."""
    mark_tools(rules, status, counters, parts, informed, marks)
    turns_left = rules.max_turns - counters[TURNS_USED]
    row = row_matters(rules, counters)
    if not row:
        counters[CONSECUTIVE_FAILURES] = 0
    opened = rules.at_block >= 0 and is_opened(rules, status)
    for tool in range(rules.num_tools):
        is_recalled = rules.recall_row > 0 and row and status[tool] == SUCCEEDED
        is_over = rules.is_neutral[tool] == 1 or not (is_called_for(rules, status, marks, tool) or is_recalled)
        if not _is_kept(rules, status, marks, is_over, tool):
            status[tool] = NOT_EXECUTED
        if rules.at_evidence >= 0 and (is_over or informed or status[tool] == SUCCEEDED):
            parts[rules.at_evidence + tool] = 0
        if rules.at_block >= 0:
            block = parts[rules.at_block + tool]
            is_input = block != OPEN and block != CLOSED
            if is_over or (opened and block == CLOSED) or (is_input and not rules.repeats_refused):
                parts[rules.at_block + tool] = OPEN
        is_beside = rules.place[tool] < 0 or not rules.counts_sound
        if rules.at_sound >= 0 and is_beside and (is_over or not rules.is_enumerated):
            # The loop rule alone asks for it; not to know a flaw of it is never better.
            parts[rules.at_sound + tool] = SOUND if status[tool] == SUCCEEDED else NO_OUTPUT
        if rules.at_ran >= 0 and rules.is_tracked[tool]:
            _simplify_runs(rules, status, counters, parts, hidden, informed, is_over, tool)
        if informed and rules.at_broken >= 0 and (is_over or status[tool] == SUCCEEDED):
            hidden[rules.at_broken + tool] = 0
        is_aside = informed and rules.at_unsound >= 0 and (rules.place[tool] < 0 or not rules.counts_sound)
        if is_aside and parts[rules.at_sound + tool] != UNCHECKED:
            hidden[rules.at_unsound + tool] = 0
        if is_over and rules.own_key[tool] >= 0:
            parts[rules.at_rate + rules.own_key[tool]] = 0
    for key in range(rules.num_rate_keys):
        if count_bits(parts[rules.at_rate + key]) + turns_left <= rules.rate_calls:
            parts[rules.at_rate + key] = 0  # the limit cannot be reached any more
    for group in range(rules.num_groups):
        matters = rules.group_breaks_rows[group] == 1 and rules.max_consecutive_failures > 0
        for tool in range(rules.num_tools):
            if rules.group[tool] == group:
                matters = matters or is_called_for(rules, status, marks, tool)
                matters = matters or (rules.recall_row > 0 and row and status[tool] == SUCCEEDED)
        if not matters or informed:
            parts[rules.at_outage + 2 * group] = NEVER_SEEN
            parts[rules.at_outage + 2 * group + 1] = 0
        if not matters and informed:
            hidden[rules.at_down + group] = 0
    looping = counters[LOOP_SIGNATURE]
    is_loop = looping >= 0 and rules.loop_length > 0 and rules.is_neutral[looping] == 0 and status[looping] == SUCCEEDED
    # Any message but the next call of the same tool leaves the loop, and it may be too short for the turns left.
    if is_loop and counters[LOOP_COUNT] + turns_left < rules.loop_length:
        is_loop = False
    if is_loop:
        is_loop = is_worth_a_thought(rules, status, counters, parts, hidden, informed, marks, looping)
    if not is_loop:
        counters[LOOP_SIGNATURE] = NO_LOOP
        counters[LOOP_COUNT] = 0
        _sort_twins(rules, status, parts, hidden, informed)


@scalar
def _simplify_runs(
    rules: Any,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    is_over: bool,
    tool: int,
) -> None:
    """Forget doubts of which the truth is known, and runs of what is not called any more."""
    if informed and rules.at_lost >= 0:
        parts[rules.at_ran + tool] &= SURELY
        if hidden[rules.at_lost + tool] > 0 and not parts[rules.at_ran + tool]:
            enter_sure_run(rules, rules, status, counters, parts, tool)
            hidden[rules.at_lost + tool] -= 1
        if not rules.is_once[tool]:
            hidden[rules.at_lost + tool] = 0
    is_asked_for = rules.is_effects and rules.place[tool] >= 0
    if is_over and not is_asked_for and (parts[rules.at_ran + tool] < DOUBT or not rules.is_once[tool]):
        parts[rules.at_ran + tool] = 0


@scalar
def _sort_twins(rules: Any, status: IntVector, parts: IntVector, hidden: IntVector, informed: bool) -> None:
    """Bring tools that are alike in everything into one order: exchanging what is known of them changes nothing."""
    changed = True
    while changed:
        changed = False
        for tool in range(rules.num_tools):
            twin = rules.twin[tool]  # the one before it
            if twin < 0:
                continue
            order = status[twin] - status[tool]
            for number in range(NUM_OF_TOOLS):
                at = _section_of_tools(rules, number)
                if at >= 0 and order == 0:
                    order = parts[at + twin] - parts[at + tool]
            for number in range(NUM_HIDDEN_OF_TOOLS if informed else 0):
                at = _hidden_of_tools(rules, number)
                if at >= 0 and order == 0:
                    order = hidden[at + twin] - hidden[at + tool]
            own, other = rules.own_key[tool], rules.own_key[twin]
            if order == 0 and own >= 0:
                order = parts[rules.at_rate + other] - parts[rules.at_rate + own]
            if order >= 0:
                continue
            changed = True
            status[tool], status[twin] = status[twin], status[tool]
            for number in range(NUM_OF_TOOLS):
                at = _section_of_tools(rules, number)
                if at >= 0:
                    parts[at + tool], parts[at + twin] = parts[at + twin], parts[at + tool]
            if own >= 0:
                first, second = rules.at_rate + own, rules.at_rate + other
                parts[first], parts[second] = parts[second], parts[first]
            for number in range(NUM_HIDDEN_OF_TOOLS if informed else 0):
                at = _hidden_of_tools(rules, number)
                if at >= 0:
                    hidden[at + tool], hidden[at + twin] = hidden[at + twin], hidden[at + tool]


@scalar
def _section_of_tools(rules: Any, number: int) -> int:
    """Return the place of a section of `parts` that has an entry for each tool, or one below 0."""
    if number == 0:
        return int(rules.at_block)
    if number == 1:
        return int(rules.at_sound)
    return int(rules.at_evidence if number == 2 else rules.at_ran)


@scalar
def _hidden_of_tools(rules: Any, number: int) -> int:
    """Return the place of a section of `hidden` that has an entry for each tool, or one below 0."""
    if number == 0:
        return int(rules.at_broken)
    return int(rules.at_unsound if number == 1 else rules.at_lost)


@scalar
def _is_kept(rules: Any, status: IntVector, marks: IntVector, is_over: bool, tool: int) -> bool:
    """Return whether the status of a tool makes a difference, beyond that it has not succeeded."""
    if rules.is_neutral[tool]:
        # Where tools may be broken, a neutral one that works is worth knowing.
        return bool(status[tool] == SUCCEEDED and rules.at_evidence >= 0 and rules.broken_prior[tool] > 0.0)
    watched = is_watched(rules, status, marks, tool)
    if status[tool] == FAILED:
        return watched
    if rules.place[tool] >= 0 or marks[tool] & USEFUL:
        return True
    if rules.is_enumerated and (watched or not is_over):
        return True
    return bool(rules.at_block >= 0 and status[tool] == SUCCEEDED and rules.is_opener[tool])


@scalar
def settle(
    rules: Any,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    scratch: IntVector,
    row: IntVector,
) -> float:
    """Return V* of a state where it follows at once; else simplify it, write its row and return NOT_KNOWN."""
    known = value_at_once(rules, status, counters, parts, hidden, informed)
    if known == NOT_KNOWN:
        simplify(rules, status, counters, parts, hidden, informed, scratch)
        pack(rules, status, counters, parts, hidden, informed, row)
    return known
