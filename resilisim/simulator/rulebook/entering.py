"""How what an execution brought enters a state, and what that is worth at the end: scalar functions as in `rules`."""

from __future__ import annotations

from typing import Any

from resilisim.simulator.compiled import inlined, scalar, unlikely
from resilisim.simulator.rulebook.lost_answers import chance_of_runs, enter_run, shown_result
from resilisim.simulator.rulebook.rules import (
    ACCESS_FAILURE,
    AS_HIDDEN,
    CLOSED,
    CORRUPT,
    DOWN,
    FAILURE,
    INPUT_FAILURE,
    LIMITED,
    NONE,
    OF_THE_TOOL,
    OPEN,
    OWN_FAILURE,
    SEEN_DOWN,
    SEEN_UP,
    SLOW,
    SOUND,
    SUCCESS,
    UNCHECKED,
    UNSOUND,
    WORKS,
    Rulebook,
    Tables,
    chance_broken,
    pass_message,
    table_row,
)
from resilisim.simulator.state import NEXT_PLACE, NO_LOOP, NUM_FAILURES, SPOILT, record_execution, record_turn
from resilisim.simulator.tool_status import SUCCEEDED, IntVector, count_unmet


@scalar
def enter_execution(
    rules: Rulebook,
    tables: Tables,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tool: int,
    result: int,
    ticks: int,
    digest: int,
    findings: int,
    told: int,
    signature: int,
) -> None:
    """Enter what an execution brought, with the message that it was; `signature` is what the loop rule knows it by.

    The other arguments are those of `enter_result`; with OF_THE_TOOL the signature is that of the tool.
    """
    if signature == OF_THE_TOOL:
        signature = signature_of_call(rules, status, parts, tool)
    enter_result(
        rules, rules, tables, status, counters, parts, hidden, informed, tool, result, ticks, digest, findings, told
    )
    record_turn(counters, signature, rules.loop_length)


@inlined
def signature_of_call(rules: Rulebook, status: IntVector, parts: IntVector, tool: int) -> int:
    """Return what the loop rule knows a call by: a tool that has succeeded, unless its output may be wrong."""
    is_finished = status[tool] == SUCCEEDED and (rules.at_sound < 0 or parts[rules.at_sound + tool] == SOUND)
    return tool if is_finished else NO_LOOP


@inlined
def enter_result(
    rules: Rulebook,
    goal: Any,
    tables: Tables,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tool: int,
    result: int,
    ticks: int,
    digest: int,
    findings: int,
    told: int,
) -> None:
    """Enter what an execution brought, but for the turn that it used (`record_turn`).

    Args:
        rules: The law.
        goal: What has to succeed: `place` and `num_required`, as in a rulebook, which is one.
        tables: The law's tables.
        status: (num_tools,) as in `EpisodeState`; so are the next three.
        counters: (NUM_COUNTERS,).
        parts: (num_parts,).
        hidden: (num_hidden,), read and written only for the informed.
        informed: Whether `hidden` is known.
        tool: The executed tool.
        result: One of the codes above.
        ticks: How long it took.
        digest: What stands for its parameters.
        findings: If a validator succeeds where outputs only look sound: bit i is set if it found tool i's corrupt;
            AS_HIDDEN if `hidden` says so.
        told: If it succeeds and tells how often others have run, that (`lost_answers`); AS_HIDDEN if `hidden` says so.
    """
    place = goal.place[tool]
    drawn, result = result, shown_result(result)
    succeeds = result in (SUCCESS, CORRUPT)
    if unlikely(rules.at_evidence >= 0):
        if succeeds:
            parts[rules.at_evidence + tool] = 0  # it works: nothing is left to doubt
        elif result == OWN_FAILURE:
            parts[rules.at_evidence + tool] = WORKS
        elif result in (FAILURE, INPUT_FAILURE, ACCESS_FAILURE) and chance_broken(rules, status, parts, tool) > 0.0:
            num_not_executed, num_failed = count_unmet(status, rules.dependencies[tool])
            parts[rules.at_evidence + tool] += tables.evidence[
                table_row(rules, counters, tool), num_not_executed, num_failed, counters[NUM_FAILURES]
            ]
    if unlikely(rules.is_more_than_order != 0):
        place = enter_run(rules, goal, status, counters, parts, hidden, informed, tool, drawn, told)
    record_execution(status, counters, place, tool, succeeds, rules.max_consecutive_failures)
    if unlikely(rules.num_sections > 0):
        _enter_sections(rules, parts, hidden, informed, tool, result, ticks, digest, findings)


@scalar
def _enter_sections(
    rules: Rulebook,
    parts: IntVector,
    hidden: IntVector,
    informed: bool,
    tool: int,
    result: int,
    ticks: int,
    digest: int,
    findings: int,
) -> None:
    if rules.at_block >= 0:
        if result == ACCESS_FAILURE:
            parts[rules.at_block + tool] = CLOSED
        elif result == INPUT_FAILURE:
            parts[rules.at_block + tool] = digest
        elif result in (SUCCESS, CORRUPT, FAILURE, SLOW, OWN_FAILURE):
            parts[rules.at_block + tool] = OPEN
    if rules.at_sound >= 0 and result in (SUCCESS, CORRUPT):
        _enter_output(rules, parts, hidden, informed, tool, result, findings)
    if rules.at_time >= 0:
        parts[rules.at_time] += ticks
    pass_message(rules, parts, NONE if result == LIMITED else rules.rate_key[tool])
    if result != LIMITED and rules.group[tool] >= 0:
        parts[rules.at_outage + 2 * rules.group[tool]] = SEEN_DOWN if result == DOWN else SEEN_UP
        parts[rules.at_outage + 2 * rules.group[tool] + 1] = 1


@scalar
def _enter_output(
    rules: Rulebook, parts: IntVector, hidden: IntVector, informed: bool, tool: int, result: int, findings: int
) -> None:
    at_sound = rules.at_sound
    if rules.shows_payload or rules.corrupt_chance[tool] <= 0.0:
        parts[at_sound + tool] = UNSOUND if result == CORRUPT else SOUND
        return_unseen = False
    else:
        parts[at_sound + tool] = UNCHECKED
        return_unseen = True
    if rules.at_unsound >= 0 and informed:
        hidden[rules.at_unsound + tool] = 1 if return_unseen and result == CORRUPT else 0
    if rules.is_validator[tool] and not rules.shows_payload:
        for other in range(rules.num_tools):
            if parts[at_sound + other] == UNCHECKED:
                found = hidden[rules.at_unsound + other] if findings == AS_HIDDEN else (findings >> other) & 1
                parts[at_sound + other] = UNSOUND if found else SOUND


@scalar
def chance_unsound(rules: Rulebook, parts: IntVector, hidden: IntVector, informed: bool, tool: int) -> float:
    """Return the chance that a tool has no sound output."""
    sound = parts[rules.at_sound + tool]
    if sound == UNCHECKED:
        return float(hidden[rules.at_unsound + tool]) if informed else float(rules.corrupt_chance[tool])
    return 0.0 if sound == SOUND else 1.0


@inlined
def finish_value(
    rules: Rulebook, goal: Any, counters: IntVector, parts: IntVector, hidden: IntVector, informed: bool
) -> float:
    """Return the chance of full success if the episode were finished now; `goal` is as for `enter_result`."""
    if counters[SPOILT]:
        return 0.0
    if unlikely(rules.at_ran >= 0):
        runs = chance_of_runs(rules, goal, parts, hidden, informed)
        if rules.is_effects:
            return runs
    else:
        runs = 1.0
    if counters[NEXT_PLACE] < goal.num_required:
        return 0.0
    return runs if not rules.counts_sound else runs * _chance_all_sound(rules, goal, parts, hidden, informed)


@scalar
def _chance_all_sound(rules: Rulebook, goal: Any, parts: IntVector, hidden: IntVector, informed: bool) -> float:
    value = 1.0
    for place in range(goal.num_required):
        none_sound = 1.0
        for tool in range(rules.num_tools):
            if goal.place[tool] == place:
                none_sound *= chance_unsound(rules, parts, hidden, informed, tool)
        value *= 1.0 - none_sound
    return value
