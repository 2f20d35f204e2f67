"""What the solver of laws with parts does with a state: value it at once, forget what makes no difference, look ahead.

Scalar functions and kernels over the vectors of a stage (`stage.Stage`), in which neutral tools stand behind those that
are told apart. Which calls are left out, and why nothing is lost by it, stands at `is_worth_a_thought`.
"""

from __future__ import annotations

from typing import Any

from resilisim.simulator.compiled import scalar
from resilisim.simulator.exact.stage import pack
from resilisim.simulator.rulebook.entering import finish_value
from resilisim.simulator.rulebook.lost_answers import (
    DOUBT,
    SURELY,
    chance_not_run,
    chance_run_well,
    enter_sure_run,
    is_answer_lost,
    is_missing,
)
from resilisim.simulator.rulebook.rules import (
    CLOSED,
    NEVER_SEEN,
    NO_OUTPUT,
    OPEN,
    SOUND,
    UNCHECKED,
    UNSOUND,
    Tables,
    count_bits,
    is_opened,
    is_refused,
    is_time_up,
    messages_until_free,
    reported_chance,
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
    """Return whether the row of failures can still end an episode which the turns alone would not have lost by then.

    Each failure takes one of the turns that are left beside those that the missing tools need. (Where effects count and
    answers are lost, it is not known how many are missing.)
    """
    spare, limit = rules.max_turns - counters[TURNS_USED], rules.max_consecutive_failures
    if not rules.is_effects or rules.at_ran < 0:
        spare -= rules.num_required - counters[NEXT_PLACE]
    return bool(limit > 0 and counters[CONSECUTIVE_FAILURES] + spare >= limit)


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
    row = row_matters(rules, counters)
    everything = rules.is_enumerated == 1 and (rules.failing_helps == 1 or row)
    for number in range(num_tools):
        tool = rules.order[number]
        aside = everything
        if rules.is_enumerated or (rules.is_neutral[tool] and rules.dependencies[tool, 0] >= 0):
            aside = aside or row or shows_group(rules, status, marks, informed, tool)
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
        return _is_neutral_worth_a_thought(rules, status, counters, parts, informed, marks, failures, tool)
    if rules.is_enumerated and rules.failing_helps:
        return True
    if status[tool] == SUCCEEDED and 0 < rules.recall_row[tool] <= failures:
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
    if not rules.is_enumerated and marks[tool] >= ASIDE and status[tool] != SUCCEEDED:
        return bool(can_succeed and not breaks_order)
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
def _is_neutral_worth_a_thought(
    rules: Any, status: Any, counters: Any, parts: Any, informed: bool, marks: Any, failures: int, tool: int
) -> bool:
    """Return the same of a neutral call: to break a row, to look at a group, or to prepare another neutral one."""
    group, needed, least = rules.group[tool], rules.needs[tool], rules.least_row[tool]
    if needed >= 0 and status[needed] != SUCCEEDED:
        return False
    if group >= 0 and rules.group_twin[group] >= 0:  # of groups of which the same is known any one will do
        first, other = rules.at_outage + 2 * group, rules.at_outage + 2 * rules.group_twin[group]
        if parts[first] == parts[other] and parts[first + 1] == parts[other + 1]:
            return False
    if least > 0 and failures >= least:
        return True
    if marks[tool] >= ASIDE and status[tool] != SUCCEEDED and is_watched(rules, status, marks, tool):
        return True
    if not rules.is_looker[tool] or informed:
        return False
    # A group can be worth knowing for a tool that is useful, or for the row of failures that may come.
    breaks = least > 0 and row_matters(rules, counters)
    return breaks or shows_group(rules, status, marks, informed, tool)


@scalar
def is_outdone(
    rules: Any,
    tables: Tables,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    marks: IntVector,
    tool: int,
) -> bool:
    """Return whether a call that can only break a row, or look at a group, is surely no better than a useful one.

    That is one of the same group, at least as likely to succeed now, whose success something missing profits from. Both
    show the same of the group, and given that it is up or down one succeeds at least as often as the other; its success
    is worth at least as much, since the row is broken as well; its failure costs as much, and a tool that failed counts
    for at least as much as one never tried. It holds where calls meet nothing else that tells tools apart
    (`Stage.rules.outdoes`): no limits, no evidence, no closed tools, no corrupt outputs, no runs that are counted.
    """
    if not rules.outdoes or (marks[tool] & USEFUL and status[tool] != SUCCEEDED):
        return False
    if status[tool] != SUCCEEDED and is_watched(rules, status, marks, tool):
        return False
    own = -1.0
    for other in range(rules.num_tools):
        if other == tool or rules.is_neutral[other] or rules.group[other] != rules.group[tool]:
            continue
        if not marks[other] & USEFUL or status[other] == SUCCEEDED:
            continue
        if rules.is_ordered and rules.place[other] > counters[NEXT_PLACE]:
            continue
        if own < 0.0:
            own = reported_chance(rules, tables, status, counters, parts, hidden, informed, tool, NEW_INPUT)
        if reported_chance(rules, tables, status, counters, parts, hidden, informed, other, NEW_INPUT) >= own:
            return True
    return False


@scalar
def tool_of(rules: Any, action: int) -> int:
    """Return the tool that a choice calls, or -1: each tool, then to wait, then each with its refused input again."""
    if action < rules.num_tools:
        return action
    return int(action - rules.num_tools - 1)


@scalar
def is_choice(
    rules: Any,
    tables: Tables,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    marks: IntVector,
    action: int,
) -> bool:
    """Return whether a call, a message that calls nothing, or the same input again is worth a thought."""
    tool = tool_of(rules, action)
    if action == tool:
        if not is_worth_a_thought(rules, status, counters, parts, hidden, informed, marks, tool):
            return False
        return not is_outdone(rules, tables, status, counters, parts, hidden, informed, marks, tool)
    if tool >= 0:  # it is refused: the group shows itself, and nothing runs
        return bool(rules.repeats_refused and parts[rules.at_block + tool] == REFUSED_INPUT)
    # A message that calls nothing is worth a thought where time helps, or to leave a row of equal calls.
    helps = rules.waiting_is_productive == 1 or (rules.is_enumerated == 1 and rules.failing_helps == 1)
    return bool(helps or (counters[LOOP_COUNT] > 0 and counters[LOOP_COUNT] + 1 >= rules.loop_length))


@scalar
def simplify(
    rules: Any,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    sorts: bool,
    marks: IntVector,
) -> None:
    """Forget in place what makes no difference to the value of a state; `marks` is for scratch.

    With `sorts` what is alike is brought into one order, too: then a tool's place may be another one's.
    """
    mark_tools(rules, status, counters, parts, informed, marks)
    turns_left = rules.max_turns - counters[TURNS_USED]
    row = row_matters(rules, counters)
    if not row:
        counters[CONSECUTIVE_FAILURES] = 0
    opened = rules.at_block >= 0 and is_opened(rules, status)
    for tool in range(rules.num_tools):
        is_recalled = rules.recall_row[tool] > 0 and row and status[tool] == SUCCEEDED
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
        matters = rules.group_breaks_rows[group] == 1 and row
        for tool in range(rules.num_tools):
            if rules.group[tool] == group:
                matters = matters or is_called_for(rules, status, marks, tool)
                matters = matters or (rules.recall_row[tool] > 0 and row and status[tool] == SUCCEEDED)
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
        if sorts:
            _sort_twins(rules, status, parts, hidden, informed)
    if sorts:
        _sort_groups(rules, parts)


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
def _sort_groups(rules: Any, parts: IntVector) -> None:
    """Bring groups of which only neutral tools are called, all alike, into one order."""
    changed = True
    while changed:
        changed = False
        for group in range(rules.num_groups):
            twin = rules.group_twin[group]
            if twin < 0:
                continue
            first, other = rules.at_outage + 2 * group, rules.at_outage + 2 * twin
            order = parts[first] - parts[other]
            if order == 0:
                order = parts[first + 1] - parts[other + 1]
            if order < 0:
                changed = True
                for at in range(2):
                    parts[first + at], parts[other + at] = parts[other + at], parts[first + at]


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
    watched = is_watched(rules, status, marks, tool)
    if rules.is_neutral[tool]:
        # Where tools may be broken, a neutral one that works is worth knowing.
        works = status[tool] == SUCCEEDED and rules.at_evidence >= 0 and rules.broken_prior[tool] > 0.0
        return bool(works or watched)
    if status[tool] == FAILED:
        return watched
    if rules.place[tool] >= 0 or marks[tool] & USEFUL:
        return True
    if (rules.is_enumerated or marks[tool] >= ASIDE) and (watched or not is_over):
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
    sorts: bool,
    scratch: IntVector,
    row: IntVector,
) -> float:
    """Return V* of a state where it follows at once; else simplify it, write its row and return NOT_KNOWN."""
    known = value_at_once(rules, status, counters, parts, hidden, informed)
    if known == NOT_KNOWN:
        simplify(rules, status, counters, parts, hidden, informed, sorts, scratch)
        pack(rules, status, counters, parts, hidden, informed, row)
    return known
