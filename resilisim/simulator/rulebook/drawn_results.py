"""What luck brings to an execution, in scalar functions over plain vectors, as in `rulebook.rules`.

Everything is a function of a luck key and a number: of the tool and the execution for what a call brings, of the
episode and the message for outages, of the episode alone for broken tools. So luck is the same for every agent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.seeding import PURPOSE_CORRUPT, PURPOSE_DURATION, PURPOSE_ERROR_CODE, PURPOSE_LOST, UNIFORM_BITS
from resilisim.simulator.compiled import draw_bits, inlined, inlined_bits, inlined_threefry, kernel, scalar, unlikely
from resilisim.simulator.rulebook.rules import (
    CORRUPT,
    DOWN,
    FAILURE,
    LIMITED,
    REFUSED,
    SLOW,
    SUCCESS,
    UNANSWERED,
    UNANSWERED_LATE,
    Rulebook,
    is_opened,
    is_refused,
    messages_until_free,
    time_limit,
)
from resilisim.simulator.tool_status import IntVector

UNIT = 2.0**-UNIFORM_BITS
CERTAIN = 1 << UNIFORM_BITS  # the threshold below which all bits are
HALF_BITS = 27  # of a number of bits, so that products of halves stay below 2^63
LOW_HALF = (1 << HALF_BITS) - 1

# Which error a failure shows, where it is not one of the errors that are drawn.
OTHER_ERROR = -1
OF_DEPENDENCIES = -2

ANY_RESULT = -1  # of the errors that a failure can show

NAMES_AT_ONCE = 8  # whose luck is computed side by side


class LuckTables(NamedTuple):
    """What luck is drawn by, beside a rulebook.

    Attributes:
        group_words: int64 (num_groups, 2), hash words of the names by which outages are drawn; zeros behind, up to a
            multiple of NAMES_AT_ONCE.
        broken_words: int64 (num_tools, 2), likewise for broken tools.
        error_weight: float64 (num_tools, 2, most_errors), weights of the errors that a failure can show: before a tool
            that opens has succeeded, and after.
        error_result: int64, same shape: the result that each is.
        num_errors: int64 (num_tools, 2).
        total_weight: float64 (num_tools, 2).
        timeout_error: int64 (num_tools, 2), which of the errors is a TIMEOUT, or OTHER_ERROR.
    """

    group_words: NDArray[np.int64]
    broken_words: NDArray[np.int64]
    error_weight: NDArray[np.float64]
    error_result: NDArray[np.int64]
    num_errors: NDArray[np.int64]
    total_weight: NDArray[np.float64]
    timeout_error: NDArray[np.int64]


@kernel
def draw_of_names(key0: int, key1: int, words: Any, num_names: int, number: int, bits: Any) -> None:
    """Write what names, (num_names, 2) hash words, draw for a number under the key of an episode: UNIFORM_BITS bits.

    Both `words` and `bits`, (num_names,), go on up to a multiple of NAMES_AT_ONCE.
    """
    for first in range(0, num_names, NAMES_AT_ONCE):
        for name in range(first, first + NAMES_AT_ONCE):
            name0, name1 = inlined_threefry(key0, key1, words[name, 0], words[name, 1])
            bits[name] = inlined_bits(name0, name1, number, 0)


@scalar
def write_first_hidden(
    rules: Rulebook, luck: LuckTables, key0: int, key1: int, hidden: IntVector, scratch: IntVector
) -> None:
    """Write what is hidden, (num_hidden,), when an episode with a luck key begins.

    `scratch` is an int64 array for what is drawn, as long as the words of names in `luck`; so it is below.
    """
    for place in range(rules.num_hidden):
        hidden[place] = 0
    if rules.at_down >= 0:
        draw_of_names(key0, key1, luck.group_words, rules.num_groups, 0, scratch)
        for group in range(rules.num_groups):
            hidden[rules.at_down + group] = 1 if scratch[group] * UNIT < rules.share_down else 0
    if rules.at_broken >= 0:
        draw_of_names(key0, key1, luck.broken_words, rules.num_tools, 0, scratch)
        for tool in range(rules.num_tools):
            hidden[rules.at_broken + tool] = 1 if scratch[tool] * UNIT < rules.broken_prior[tool] else 0


@scalar
def write_next_down(
    rules: Rulebook, luck: LuckTables, key0: int, key1: int, turns_used: int, hidden: IntVector, scratch: IntVector
) -> None:
    """Write which groups are down at the message after the next, of which `turns_used` came before."""
    if rules.at_down < 0:
        return
    draw_of_names(key0, key1, luck.group_words, rules.num_groups, turns_used + 1, scratch)
    for group in range(rules.num_groups):
        uniform, place = scratch[group] * UNIT, rules.at_down + group
        if hidden[place] == 1:
            hidden[place] = 1 if uniform >= rules.ends else 0
        else:
            hidden[place] = 1 if uniform < rules.begins else 0


@scalar
def share_of_bits(bits: int, width: int) -> int:
    """Return (bits * width) >> UNIFORM_BITS of two numbers up to 2^53, which no intermediate result exceeds by much."""
    high, low = bits >> HALF_BITS, bits & LOW_HALF
    width_high, width_low = width >> HALF_BITS, width & LOW_HALF
    crossed = high * width_low + low * width_high + ((low * width_low) >> HALF_BITS)
    return 2 * high * width_high + (crossed >> (HALF_BITS - 1))


@scalar
def draw_duration(rules: Rulebook, key0: int, key1: int, attempt: int) -> int:
    """Return how many ticks an execution would take."""
    last = rules.num_durations - 1
    if last > 0:
        uniform = draw_bits(key0, key1, attempt, PURPOSE_DURATION) * UNIT
        for number in range(last):
            uniform -= rules.duration_chance[number]
            if uniform < 0.0:
                return int(rules.duration_ticks[number])
    return int(rules.duration_ticks[last])


@inlined
def draw_result(
    rules: Rulebook,
    luck: LuckTables,
    status: IntVector,
    parts: IntVector,
    hidden: IntVector,
    tool: int,
    digest: int,
    threshold: int,
    clean_threshold: int,
    key0: int,
    key1: int,
    attempt: int,
    bits: int,
) -> tuple[int, int, int]:
    """Return what luck brings to an execution: its result, its ticks, and the number of the error that it shows.

    Args:
        rules: The law.
        luck: What is drawn by.
        status: (num_tools,) as in `EpisodeState`; so are the next two, `hidden` as it really is.
        parts: (num_parts,).
        hidden: (num_hidden,).
        tool: The tool.
        digest: What stands for its parameters.
        threshold: What the bits must stay below to win the draw of success (`law.success_threshold`).
        clean_threshold: The same with all dependencies in place.
        key0: Luck key of the tool.
        key1: Its second word.
        attempt: Executions of the tool so far.
        bits: The execution's luck bits of PURPOSE_SUCCESS.
    """
    met, ticks, is_broken = SUCCESS, 0, False
    if unlikely(rules.num_sections > 0):
        met, ticks = _before_draw(rules, status, parts, hidden, tool, digest, key0, key1, attempt)
        is_broken = rules.at_broken >= 0 and hidden[rules.at_broken + tool] == 1
    if met != SUCCESS:
        if unlikely(met == SLOW) and not is_broken and is_lost(rules, tool, key0, key1, attempt):
            met = UNANSWERED_LATE
        return met, ticks, OTHER_ERROR
    if bits < threshold and not is_broken:
        is_corrupt = rules.at_sound >= 0 and _is_corrupt(rules, tool, key0, key1, attempt)
        return CORRUPT if is_corrupt else SUCCESS, ticks, OTHER_ERROR
    if is_broken:  # it fails as an unlucky tool does, so that its errors tell nothing
        bits = failing_bits(bits, threshold)
    failure = UNANSWERED if not is_broken and is_lost(rules, tool, key0, key1, attempt) else FAILURE
    if bits < clean_threshold:
        return failure, ticks, OF_DEPENDENCIES
    if rules.at_block < 0:
        return failure, ticks, OTHER_ERROR
    number = draw_error(rules, luck, status, tool, key0, key1, attempt, ANY_RESULT)
    opened = 1 if is_opened(rules, status) else 0
    result = int(luck.error_result[tool, opened, number])
    return failure if result == FAILURE else result, ticks, number


@scalar
def _before_draw(
    rules: Rulebook,
    status: IntVector,
    parts: IntVector,
    hidden: IntVector,
    tool: int,
    digest: int,
    key0: int,
    key1: int,
    attempt: int,
) -> tuple[int, int]:
    """Return SUCCESS if an execution comes to the draw, else what it meets before; and how long it takes."""
    if rules.at_rate >= 0 and messages_until_free(rules, parts, tool) > 0:
        return LIMITED, 0
    group = rules.group[tool]
    if group >= 0 and hidden[rules.at_down + group] == 1:
        return DOWN, 0
    if rules.at_block >= 0 and is_refused(rules, status, parts, tool, digest):
        return REFUSED, 0
    ticks, limit = draw_duration(rules, key0, key1, attempt), time_limit(rules, parts)
    if 0 <= limit < ticks:
        return SLOW, limit
    return SUCCESS, ticks


@scalar
def _is_corrupt(rules: Rulebook, tool: int, key0: int, key1: int, attempt: int) -> bool:
    chance = rules.corrupt_chance[tool]
    return bool(chance > 0.0 and draw_bits(key0, key1, attempt, PURPOSE_CORRUPT) * UNIT < chance)


@scalar
def is_lost(rules: Rulebook, tool: int, key0: int, key1: int, attempt: int) -> bool:
    """Return whether a failure that is no refusal comes after the run."""
    share = rules.lost_share[tool]
    return bool(share > 0.0 and draw_bits(key0, key1, attempt, PURPOSE_LOST) * UNIT < share)


@scalar
def draw_error(
    rules: Rulebook, luck: LuckTables, status: IntVector, tool: int, key0: int, key1: int, attempt: int, result: int
) -> int:
    """Return the number of the error that a failure shows which is not of dependencies.

    `result` is what the error has to be, or ANY_RESULT; where the tool documents none such, OF_DEPENDENCIES.
    """
    opened = 1 if is_opened(rules, status) else 0
    total, last = luck.total_weight[tool, opened], luck.num_errors[tool, opened] - 1
    if result != ANY_RESULT:
        total, last = 0.0, OF_DEPENDENCIES
        for number in range(luck.num_errors[tool, opened]):
            if luck.error_result[tool, opened, number] == result:
                total += luck.error_weight[tool, opened, number]
                last = number
    target = draw_bits(key0, key1, attempt, PURPOSE_ERROR_CODE) * UNIT * total
    for number in range(last):
        if result == ANY_RESULT or luck.error_result[tool, opened, number] == result:
            target -= luck.error_weight[tool, opened, number]
            if target < 0.0:
                return int(number)
    return int(last)


@scalar
def failing_bits(bits: int, threshold: int) -> int:
    """Return the bits of a draw that failed, for one that has to: what they say of its reason is as likely as then.

    Of a sure tool, which has no failing part, the draw goes past the end, where no failure is of dependencies.
    """
    return threshold + share_of_bits(bits, CERTAIN - threshold)
