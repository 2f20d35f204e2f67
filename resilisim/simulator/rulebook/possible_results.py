"""Everything that a message can bring, with its chance, in a scalar function for compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import scalar
from resilisim.simulator.rulebook.lost_answers import DOUBT, MOST_RUNS, RUN_BITS, chance_told
from resilisim.simulator.rulebook.rules import (
    DOWN,
    LIMITED,
    NUM_RESULTS,
    REFUSED,
    SLOW,
    SUCCESS,
    UNANSWERED_LATE,
    UNCHECKED,
    Tables,
    clear_chances,
    fill_chances,
    time_limit,
)
from resilisim.simulator.tool_status import IntVector

# Columns of what is listed; STEP has a bit for each group that is down afterwards, where what is hidden is known.
CHANCE, RESULT, TICKS, FINDINGS, TOLD, STEP, NUM_OF_RESULT = range(7)


def most_results(rules: Any, informed: bool) -> int:
    """Return how many results of one message `list_results` can list."""
    findings = 1
    for tool in range(int(rules.num_tools)) if rules.at_unsound >= 0 else ():
        if (rules.place[tool] >= 0 or rules.is_enumerated == 1) and rules.corrupt_chance[tool] > 0.0:
            findings *= 2
    told = np.bincount([other for other in rules.checker[: rules.num_tools] if other >= 0] or [0]).max()
    if rules.at_lost >= 0:
        findings *= (MOST_RUNS + 1) ** int(told)
    steps = 1 << int(rules.num_groups) if rules.at_down >= 0 and informed else 1
    return int(rules.num_durations) * (findings + NUM_RESULTS) * steps


@scalar
def list_results(
    rules: Any,
    places: IntVector,
    is_timeless: IntVector,
    tells_all: bool,
    tables: Tables,
    informed: bool,
    status: IntVector,
    counters: IntVector,
    parts: IntVector,
    hidden: IntVector,
    tool: int,
    digest: int,
    chances: NDArray[np.float64],
    unchecked: IntVector,
    listed: NDArray[np.float64],
) -> int:
    """List what a message can bring, with its chance, and return how much that is; successes come first.

    Args:
        rules: The law.
        places: (num_tools,) the place of each in the required list, or -1.
        is_timeless: (num_tools,) whether a call of the tool takes no time.
        tells_all: Whether findings of outputs that nobody requires count.
        tables: Its tables.
        informed: Whether what is hidden is known.
        status: As in `enter_result`; so are the next three.
        counters: (NUM_COUNTERS,).
        parts: (num_parts,).
        hidden: (num_hidden,).
        tool: The tool that is executed; below 0 a message that executes nothing, which is listed as a success.
        digest: What stands for its parameters.
        chances: (NUM_RESULTS,) for scratch.
        unchecked: (2 * num_tools,) for scratch.
        listed: (most_results, NUM_OF_RESULT or more) with the columns above.
    """
    count = 0
    if tool < 0:
        clear_chances(chances)
        chances[SUCCESS] = 1.0
    else:
        fill_chances(rules, tables, status, counters, parts, hidden, informed, tool, digest, chances)
    limit = time_limit(rules, parts)
    num_steps = 1
    if informed and rules.at_down >= 0:
        num_steps = 1 << rules.num_groups
    for number in range(NUM_RESULTS):
        result = (number + SUCCESS) % NUM_RESULTS
        if chances[result] <= 0.0:
            continue
        timed = rules.at_time >= 0 and tool >= 0 and result not in (LIMITED, DOWN, REFUSED)
        if timed and is_timeless[tool]:
            timed = False
        in_time = 1.0
        is_late = result in (SLOW, UNANSWERED_LATE)
        if timed and not is_late:
            in_time = 0.0
            for duration in range(rules.num_durations):
                if rules.duration_ticks[duration] <= limit:
                    in_time += rules.duration_chance[duration]
        num_unchecked = 0
        if result == SUCCESS and tool >= 0 and rules.is_validator[tool] and not rules.shows_payload:
            for other in range(rules.num_tools):
                is_asked_for = places[other] >= 0 or tells_all
                if parts[rules.at_sound + other] == UNCHECKED and is_asked_for:
                    unchecked[num_unchecked] = other
                    num_unchecked += 1
        num_told, num_doubted, tells = 1, 0, 0
        if result == SUCCESS and tool >= 0 and rules.at_ran >= 0 and rules.is_checker[tool]:
            for other in range(rules.num_tools):
                if rules.checker[other] == tool:
                    if parts[rules.at_ran + other] >= DOUBT:
                        # The tool, and its number among those of which the call tells.
                        unchecked[rules.num_tools + num_doubted] = other * rules.num_tools + tells
                        num_doubted += 1
                        num_told *= MOST_RUNS + 1
                    tells += 1
        for duration in range(rules.num_durations if timed and not is_late else 1):
            chance, ticks = chances[result], 0
            if timed:
                ticks = limit
                if not is_late:
                    ticks = rules.duration_ticks[duration]
                    if ticks > limit:
                        continue
                    chance *= rules.duration_chance[duration] / in_time
            for subset in range(1 << num_unchecked):
                odds, findings = chance, 0
                for place in range(num_unchecked):
                    other = unchecked[place]
                    corrupt = (subset >> place) & 1
                    if informed:
                        odds *= 1.0 if hidden[rules.at_unsound + other] == corrupt else 0.0
                    else:
                        share = rules.corrupt_chance[other]
                        odds *= share if corrupt else 1.0 - share
                    findings |= corrupt << other
                if odds <= 0.0:
                    continue
                for case in range(num_told):
                    told_chance, told, rest = odds, 0, case
                    for place in range(num_doubted):
                        runs, rest = rest % (MOST_RUNS + 1), rest // (MOST_RUNS + 1)
                        other = unchecked[rules.num_tools + place] // rules.num_tools
                        number = unchecked[rules.num_tools + place] % rules.num_tools
                        told_chance *= chance_told(rules, parts, hidden, informed, other, runs)
                        told |= runs << (RUN_BITS * number)
                    if told_chance <= 0.0:
                        continue
                    for step in range(num_steps):
                        step_chance = told_chance
                        if num_steps > 1:
                            for group in range(rules.num_groups):
                                goes_down = 1.0 - rules.ends if hidden[rules.at_down + group] == 1 else rules.begins
                                step_chance *= goes_down if (step >> group) & 1 else 1.0 - goes_down
                        if step_chance > 0.0:
                            listed[count, CHANCE] = step_chance
                            listed[count, RESULT] = result
                            listed[count, TICKS] = ticks
                            listed[count, FINDINGS] = findings
                            listed[count, TOLD] = told
                            listed[count, STEP] = step
                            count += 1
    return count
