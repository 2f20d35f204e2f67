"""What is known of which tools have run, where failures can come after the run; scalar functions as in `rules`.

Section `at_ran` of `parts` holds for each tool that is tracked what agents can know: whether it has surely run, and how
many of its failures since leave open whether it has (*doubts*). Each doubt was a run with the tool's `lost_share`,
independently, unless the tool is broken: those never run. Section `at_lost` of `hidden` holds how many doubts were
runs: 0, 1, or 2 for more. So beliefs about tools are independent of each other, each a function of `parts`.
"""

from __future__ import annotations

from typing import Any

from resilisim.simulator.compiled import scalar
from resilisim.simulator.rulebook.rules import (
    AS_HIDDEN,
    CORRUPT,
    FAILURE,
    OWN_FAILURE,
    SLOW,
    SUCCESS,
    UNANSWERED,
    UNANSWERED_LATE,
    WORKS,
    Rulebook,
    chance_broken,
    doubt_of,
)
from resilisim.simulator.state import NEXT_PLACE, RAN_AGAIN, SPOILT
from resilisim.simulator.tool_status import SUCCEEDED, IntVector

# Entries of the section `at_ran`: flags, and doubts as multiples.
SURELY = 1
AGAIN = 2  # it has surely run twice
DOUBT = 4
MOST_RUNS = 2  # that are told apart of what is hidden
RUN_BITS = 2  # of each tool in what a call tells of runs
NO_DOUBT = 1e-20  # chance of being broken, below which a tool works


@scalar
def shown_result(result: int) -> int:
    """Return a result as agents see it, who are not told whether a failure came after the run."""
    if result == UNANSWERED:
        return FAILURE
    return SLOW if result == UNANSWERED_LATE else result


@scalar
def has_run(result: int) -> bool:
    """Return whether a tool has run, by the result of its execution."""
    return result in (SUCCESS, CORRUPT, OWN_FAILURE, UNANSWERED, UNANSWERED_LATE)


@scalar
def _none_ran(share: float, doubts: int) -> float:
    """Return the chance that none of so many doubts was a run of a tool that works."""
    chance = 1.0
    for _ in range(doubts):
        chance *= 1.0 - share
    return chance


@scalar
def _one_ran(share: float, doubts: int) -> float:
    """Return the chance that one of so many doubts was."""
    return doubts * share * _none_ran(share, doubts - 1) if doubts > 0 else 0.0


@scalar
def chance_not_run(rules: Rulebook, parts: IntVector, hidden: IntVector, informed: bool, tool: int) -> float:
    """Return the chance that a tracked tool has not run."""
    ran = parts[rules.at_ran + tool]
    if ran & SURELY:
        return 0.0
    if informed and rules.at_lost >= 0:
        return 0.0 if hidden[rules.at_lost + tool] > 0 else 1.0
    if ran == 0:
        return 1.0
    broken = 0.0 if informed else doubt_of(rules, parts, tool)
    return broken + (1.0 - broken) * _none_ran(rules.lost_share[tool], ran // DOUBT)


@scalar
def chance_run_once(rules: Rulebook, parts: IntVector, hidden: IntVector, informed: bool, tool: int) -> float:
    """Return the chance that a tracked tool has run exactly once."""
    ran = parts[rules.at_ran + tool]
    is_sure, doubts, share = ran & SURELY, ran // DOUBT, rules.lost_share[tool]
    if informed and rules.at_lost >= 0:
        return 1.0 if is_sure + hidden[rules.at_lost + tool] == 1 else 0.0
    if is_sure:
        return _none_ran(share, doubts)
    broken = 0.0 if informed else doubt_of(rules, parts, tool)
    return (1.0 - broken) * _one_ran(share, doubts)


@scalar
def chance_run_well(rules: Rulebook, parts: IntVector, hidden: IntVector, informed: bool, tool: int) -> float:
    """Return the chance that a tracked tool has not run twice, if it may run only once."""
    if not rules.is_once[tool]:
        return 1.0
    not_run = chance_not_run(rules, parts, hidden, informed, tool)
    return not_run + chance_run_once(rules, parts, hidden, informed, tool)


@scalar
def is_answer_lost(
    rules: Rulebook, status: IntVector, parts: IntVector, hidden: IntVector, informed: bool, tool: int
) -> bool:
    """Return whether the answer of a tool is asked for, surely lost, and it may not run again."""
    if rules.at_ran < 0 or rules.is_effects or not rules.is_once[tool] or status[tool] == SUCCEEDED:
        return False
    return bool(chance_not_run(rules, parts, hidden, informed, tool) <= 0.0)


@scalar
def is_missing(
    rules: Rulebook, goal: Any, status: IntVector, counters: IntVector, parts: IntVector, place: int
) -> bool:
    """Return whether no tool of a place in the required list has surely done what it has to."""
    if rules.is_ordered:
        return bool(place >= counters[NEXT_PLACE])
    missing = True
    for tool in range(rules.num_tools):
        if goal.place[tool] == place:
            is_done = status[tool] == SUCCEEDED
            if rules.is_effects and rules.at_ran >= 0:
                is_done = is_done or parts[rules.at_ran + tool] & SURELY != 0
            missing = missing and not is_done
    return missing


@scalar
def chance_of_runs(rules: Rulebook, goal: Any, parts: IntVector, hidden: IntVector, informed: bool) -> float:
    """Return the chance that what has run is what should have, where failures can come after the run.

    Where answers are asked for that is nothing that may run only once twice; else also something for each place.
    """
    value = 1.0
    for tool in range(rules.num_tools):
        if rules.is_once[tool] and (not rules.is_effects or goal.place[tool] < 0):
            value *= chance_run_well(rules, parts, hidden, informed, tool)
    for place in range(goal.num_required if rules.is_effects else 0):
        well, none = 1.0, 1.0
        for tool in range(rules.num_tools):
            if goal.place[tool] == place:
                well *= chance_run_well(rules, parts, hidden, informed, tool)
                none *= chance_not_run(rules, parts, hidden, informed, tool)
        value *= well - none
    return value


@scalar
def enter_run(
    rules: Rulebook,
    goal: Any,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tool: int,
    result: int,
    told: int,
) -> int:
    """Enter what an execution says of runs, and return the place in the required list that its success fills.

    The arguments are those of `enter_result`; where effects count that is done here.
    """
    succeeds = result in (SUCCESS, CORRUPT)
    if rules.at_ran >= 0:
        if succeeds and rules.is_checker[tool]:
            _enter_told(rules, goal, status, counters, parts, hidden, informed, tool, told)
        if rules.is_tracked[tool]:
            _enter_tracked(rules, goal, status, counters, parts, hidden, informed, tool, result)
    elif rules.is_once[tool] and (succeeds or result == OWN_FAILURE) and status[tool] == SUCCEEDED:
        counters[SPOILT] |= RAN_AGAIN
    if rules.is_program:
        if succeeds and counters[NEXT_PLACE] < goal.num_required and rules.program[counters[NEXT_PLACE]] == tool:
            counters[NEXT_PLACE] += 1
        return -1
    if goal.place[tool] < 0 or (rules.is_effects and rules.at_ran >= 0):
        return -1
    if rules.is_ordered:
        return int(goal.place[tool])
    return int(counters[NEXT_PLACE]) if is_missing(rules, goal, status, counters, parts, goal.place[tool]) else -1


@scalar
def _enter_tracked(
    rules: Rulebook,
    goal: Any,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tool: int,
    result: int,
) -> None:
    share = rules.lost_share[tool]
    if result in (SUCCESS, CORRUPT):
        enter_sure_run(rules, goal, status, counters, parts, tool)
    elif result == OWN_FAILURE:  # it has run, and done nothing
        if rules.is_once[tool] and parts[rules.at_ran + tool] & SURELY:
            counters[SPOILT] |= RAN_AGAIN
    elif shown_result(result) in (FAILURE, SLOW) and share > 0.0:
        if share >= 1.0 and chance_broken(rules, status, parts, tool) < NO_DOUBT:
            enter_sure_run(rules, goal, status, counters, parts, tool)
        elif rules.is_once[tool] or not parts[rules.at_ran + tool] & SURELY:
            parts[rules.at_ran + tool] += DOUBT
            if informed and result in (UNANSWERED, UNANSWERED_LATE):
                hidden[rules.at_lost + tool] = min(hidden[rules.at_lost + tool] + 1, MOST_RUNS)


@scalar
def enter_sure_run(
    rules: Rulebook, goal: Any, status: IntVector, counters: IntVector, parts: IntVector, tool: int
) -> None:
    """Enter that a tool has run, which may have been in doubt; `goal` is as for `enter_result`."""
    place, ran = goal.place[tool], parts[rules.at_ran + tool]
    if rules.is_once[tool] and ran & SURELY:
        counters[SPOILT] |= RAN_AGAIN
        ran |= AGAIN
    if rules.is_effects and place >= 0 and is_missing(rules, goal, status, counters, parts, place):
        counters[NEXT_PLACE] += 1
    # Of one that may run again nothing is left to doubt.
    parts[rules.at_ran + tool] = ran | SURELY if rules.is_once[tool] else SURELY


@scalar
def _enter_told(
    rules: Rulebook,
    goal: Any,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    checker: int,
    told: int,
) -> None:
    """Enter what a successful call tells of other tools: RUN_BITS for each, how many of its doubts were runs."""
    number = 0
    for tool in range(rules.num_tools):
        if rules.checker[tool] != checker:
            continue
        doubts = parts[rules.at_ran + tool] // DOUBT
        if doubts > 0:
            runs = (told >> (RUN_BITS * number)) & ((1 << RUN_BITS) - 1)
            if told == AS_HIDDEN:
                runs = hidden[rules.at_lost + tool]
            parts[rules.at_ran + tool] %= DOUBT
            if rules.at_evidence >= 0 and runs > 0:
                parts[rules.at_evidence + tool] = WORKS
            elif rules.at_evidence >= 0 and chance_broken(rules, status, parts, tool) > 0.0:
                parts[rules.at_evidence + tool] += doubts * rules.unseen_run[tool]
            if runs > 0:
                enter_sure_run(rules, goal, status, counters, parts, tool)
                if runs > 1 and rules.is_once[tool]:
                    enter_sure_run(rules, goal, status, counters, parts, tool)
            if informed:
                hidden[rules.at_lost + tool] = 0
        number += 1


@scalar
def chance_told(rules: Rulebook, parts: IntVector, hidden: IntVector, informed: bool, tool: int, runs: int) -> float:
    """Return the chance that a call tells of so many runs among the doubts of a tool; more than one count as two.

    Of a tool that may run again, more than none count as one.
    """
    doubts, share = parts[rules.at_ran + tool] // DOUBT, rules.lost_share[tool]
    if informed:
        hidden_runs = hidden[rules.at_lost + tool]
        if not rules.is_once[tool]:
            hidden_runs = min(hidden_runs, 1)
        return 1.0 if hidden_runs == runs else 0.0
    broken = 0.0 if parts[rules.at_ran + tool] & SURELY else doubt_of(rules, parts, tool)
    none, one = _none_ran(share, doubts), _one_ran(share, doubts)
    if runs == 0:
        return broken + (1.0 - broken) * none
    if not rules.is_once[tool]:
        return (1.0 - broken) * (1.0 - none) if runs == 1 else 0.0
    return (1.0 - broken) * (one if runs == 1 else max(1.0 - none - one, 0.0))
