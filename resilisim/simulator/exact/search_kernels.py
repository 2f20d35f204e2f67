"""The compiled search for V* of a state: which calls are tried, which states are alike, what is kept (`search`).

States are those of an episode (`simulator.state`), of the tools that are told apart, and so is what a call leads to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.exact.relaxation import Relaxation, bound_of, count_tokens
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    LOOP_COUNT,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NO_LOOP,
    NUM_COUNTERS,
    NUM_FAILURES,
    TURNS_USED,
    record_execution,
    record_turn,
)
from resilisim.simulator.tool_status import FAILED, NOT_EXECUTED, SUCCEEDED, count_unmet

# Calls beside the members' numbers.
BREAK = -1  # the neutral tool
IDLE = -2  # a message that executes nothing

TOOLS_A_WORD = 31  # two bits each
# How a run of the search ends.
FINISHED = 0
MEMORY_FULL = 1
WANTS_BOUNDS = 2


class Field(NamedTuple):
    """What a search reads of its problem. *Members* are the tools that it tells apart, dependencies first."""

    place: NDArray[np.int64]  # (num_members,) in the required list, or -1
    dependencies: NDArray[np.int64]  # (num_members, max_dependencies) members, padded with -1
    base_index: NDArray[np.int64]  # (num_members,)
    probability: NDArray[np.float64]  # the law's table
    is_breaker: NDArray[np.bool_]  # (num_members,) worth calling just to break a row of failures
    # (2, num_required + 1, num_members), by level and required tools done:
    matters: NDArray[np.bool_]  # whether the status of a missing required tool counts before it succeeds
    twins: NDArray[np.int64]  # helpers of equal use have the same number, others -1
    numbers: NDArray[np.int64]  # by the columns below
    relaxation: Relaxation


NUM_REQUIRED, TURNS_ALLOWED, MOST_IN_ROW, LOOP_LENGTH, NEUTRAL_BASE = range(5)  # columns of `Field.numbers`


class Memo(NamedTuple):
    """Values of states: a hash table with open addressing."""

    keys: NDArray[np.uint64]  # (capacity, words), the last word 0 where the place is free
    values: NDArray[np.float64]  # (capacity,)
    used: NDArray[np.int64]  # (1,) number of values


class Space(NamedTuple):
    """Where a search stands: a row for each state on the way from the one that was asked for."""

    status: NDArray[np.int64]  # (max_turns + 2, num_members)
    counters: NDArray[np.int64]  # (max_turns + 2, NUM_COUNTERS)
    keys: NDArray[np.uint64]  # (max_turns + 2, words)
    calls: NDArray[np.float64]  # (max_turns + 2, num_members + 2, NUM_OF_CALL), the highest bound first
    tree: NDArray[np.int64]  # (max_turns + 2, 3): number of calls or -1 (not listed yet), the current one, the phase
    best: NDArray[np.float64]  # (max_turns + 2, 2): the best value so far, the part of the success of the current call
    marks: NDArray[np.int64]  # (2, num_members): whether the status matters, whether the tool can be called
    tally: NDArray[np.int64]  # (num_groups, 2)
    tokens: NDArray[np.int64]  # (2, NUM_TOKENS)
    neutral: NDArray[np.int64]  # (1,) status of the neutral tool, which nobody reads
    course: NDArray[np.int64]  # (5,) by the columns below
    result: NDArray[np.float64]  # (1,)


CALL, CHANCE_OF_CALL, AFTER_SUCCESS, AFTER_FAILURE, BOUND, IS_EXACT, NUM_OF_CALL = range(
    7
)  # last axis of `Space.calls`
NUM_CALLS, CURRENT, PHASE = range(3)
MATTERS, CALLABLE = range(2)
DEPTH, RETURNING, WANTING, BRANCH, UNDER_WAY = range(5)
# Phases of a state that is being valued.
CHOOSING, SUCCEEDING, FAILING = range(3)


@scalar
def _canonical(
    level: int,
    status: NDArray[np.int64],
    counters: NDArray[np.int64],
    key: NDArray[np.uint64],
    marks: NDArray[np.int64],
    tally: NDArray[np.int64],
    place: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    is_breaker: NDArray[np.bool_],
    matters: NDArray[np.bool_],
    twins: NDArray[np.int64],
    numbers: NDArray[np.int64],
) -> None:
    """Bring a state to the form that all states of its value share, mark what can be called, and write its key."""
    members, done, most = len(place), counters[NEXT_PLACE], numbers[MOST_IN_ROW]
    turns_left = numbers[TURNS_ALLOWED] - counters[TURNS_USED]
    spare = turns_left - (numbers[NUM_REQUIRED] - done)
    # Rows of failures that cannot end the episode before the turns do count for nothing, nor does breaking them.
    if most == 0 or spare < most - counters[CONSECUTIVE_FAILURES]:
        counters[CONSECUTIVE_FAILURES] = 0
    breaks = level == 1 and most > 0 and (spare >= most or counters[CONSECUTIVE_FAILURES] > 0)
    loop_length = numbers[LOOP_LENGTH]
    loops = breaks and counters[CONSECUTIVE_FAILURES] > 0 and counters[LOOP_SIGNATURE] >= 0 and loop_length > 0
    # The loop rule can only stand in the way if the row is not at its end before.
    if not loops or counters[CONSECUTIVE_FAILURES] + loop_length - 1 - counters[LOOP_COUNT] >= most:
        counters[LOOP_SIGNATURE], counters[LOOP_COUNT] = NO_LOOP, 0
    for tool in range(members):
        marks[MATTERS, tool] = 0
        marks[CALLABLE, tool] = 0
    for number in range(len(tally)):
        tally[number, 0] = 0
        tally[number, 1] = 0
    for tool in range(members - 1, -1, -1):
        active = place[tool] >= done
        if place[tool] < 0:
            active = marks[MATTERS, tool] == 1 and status[tool] != SUCCEEDED
        if active:
            marks[CALLABLE, tool] = 1
        if active or (breaks and is_breaker[tool]):
            for column in range(dependencies.shape[1]):
                dependency = dependencies[tool, column]
                if dependency < 0:
                    break
                if place[dependency] < 0:
                    marks[MATTERS, dependency] = 1
        if marks[MATTERS, tool] == 1 and status[tool] != NOT_EXECUTED and twins[level, done, tool] >= 0:
            tally[twins[level, done, tool], status[tool] - 1] += 1
    for word in range(len(key)):
        key[word] = np.uint64(0)
    for tool in range(members):
        code = status[tool]
        if place[tool] >= 0:
            if place[tool] < done:
                status[tool] = SUCCEEDED
                continue
            if not matters[level, done, tool]:
                code = NOT_EXECUTED
        elif marks[MATTERS, tool] == 0:
            # All that its status can still mean is that the loop rule watches it.
            if not (breaks and is_breaker[tool] and code == SUCCEEDED and loop_length > 0):
                code = NOT_EXECUTED
        elif twins[level, done, tool] >= 0:
            number = twins[level, done, tool]
            code = NOT_EXECUTED
            if tally[number, SUCCEEDED - 1] > 0:
                code = SUCCEEDED
            elif tally[number, FAILED - 1] > 0:
                code = FAILED
            if code != NOT_EXECUTED:
                tally[number, code - 1] -= 1
            marks[CALLABLE, tool] = 1 if code != SUCCEEDED else 0
        status[tool] = code
        key[tool // TOOLS_A_WORD] |= np.uint64(code) << np.uint64(2 * (tool % TOOLS_A_WORD))
    packed = (done << 1) | (counters[NUM_FAILURES] << 11) | (turns_left << 22)
    packed |= (counters[CONSECUTIVE_FAILURES] << 33) | ((counters[LOOP_SIGNATURE] + 1) << 44)
    packed |= counters[LOOP_COUNT] << 56
    key[len(key) - 1] = np.uint64(packed | 1)


@scalar
def mix_bits(value: np.uint64) -> np.uint64:
    """Return the finaliser of SplitMix64: every bit of the argument moves every bit of the result."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@scalar
def _find(keys: NDArray[np.uint64], key: NDArray[np.uint64]) -> int:
    """Return the place of a key, or -1 - the free place where it belongs."""
    words, mask = keys.shape[1], np.uint64(len(keys) - 1)
    state = np.uint64(0x9E3779B97F4A7C15)
    for word in range(words):
        state = mix_bits(state + key[word])
    place = np.int64(state & mask)
    while keys[place, words - 1] != 0:
        same = True
        for word in range(words):
            if keys[place, word] != key[word]:
                same = False
                break
        if same:
            return int(place)
        place = np.int64(np.uint64(place + 1) & mask)
    return -1 - int(place)


@kernel
def move_memo(old: Memo, new: Memo) -> None:
    """Enter everything of one memo into another, larger one."""
    last = old.keys.shape[1] - 1
    for place in range(len(old.values)):
        if old.keys[place, last] != 0:
            free = -1 - _find(new.keys, old.keys[place])
            new.keys[free] = old.keys[place]
            new.values[free] = old.values[place]
            new.used[0] += 1


@scalar
def _place_call(
    calls: NDArray[np.float64],
    first: int,
    number: int,
    call: int,
    chance: float,
    after_success: float,
    after_failure: float,
    is_exact: bool,
) -> None:
    """Write a call to the place `number`, or before it, behind all from `first` on that have at least its bound."""
    bound = chance * after_success + (1.0 - chance) * after_failure
    while number > first and calls[number - 1, BOUND] < bound:
        for column in range(NUM_OF_CALL):
            calls[number, column] = calls[number - 1, column]
        number -= 1
    calls[number, CALL], calls[number, CHANCE_OF_CALL] = call, chance
    calls[number, AFTER_SUCCESS], calls[number, AFTER_FAILURE] = after_success, after_failure
    calls[number, BOUND], calls[number, IS_EXACT] = bound, is_exact


@scalar
def _chance(
    status: NDArray[np.int64],
    tool: int,
    failures: int,
    dependencies: NDArray[np.int64],
    base_index: NDArray[np.int64],
    probability: NDArray[np.float64],
) -> float:
    missing, failed = count_unmet(status, dependencies[tool])
    return float(probability[base_index[tool], missing, failed, failures])


@scalar
def _list_calls(
    level: int,
    status: NDArray[np.int64],
    counters: NDArray[np.int64],
    calls: NDArray[np.float64],
    marks: NDArray[np.int64],
    tokens: NDArray[np.int64],
    place: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    base_index: NDArray[np.int64],
    probability: NDArray[np.float64],
    is_breaker: NDArray[np.bool_],
    matters: NDArray[np.bool_],
    twins: NDArray[np.int64],
    numbers: NDArray[np.int64],
    kind: NDArray[np.int64],
    charge: NDArray[np.int64],
    through: NDArray[np.int64],
    most_inner: NDArray[np.int64],
    all_spare: int,
    bound: NDArray[np.float64],
) -> int:
    """List the calls among which there is one with the highest Q*, the highest bound first; return their number."""
    done, failures, row = counters[NEXT_PLACE], counters[NUM_FAILURES], counters[CONSECUTIVE_FAILURES]
    spare = numbers[TURNS_ALLOWED] - counters[TURNS_USED] - (numbers[NUM_REQUIRED] - done)
    most, exact, number = numbers[MOST_IN_ROW], level == 0, 0
    failure_ends = spare == 0 or (most > 0 and row + 1 == most)
    next_row = row + 1 if most > 0 else 0
    held, other = tokens[0], tokens[1]
    count_tokens(status, done, kind, charge, through, held)
    unchanged = bound_of(done, failures, spare - 1, 0, 0, held, most_inner, all_spare, bound)
    failed = 0.0
    if not failure_ends:
        failed = bound_of(done, failures + 1, spare - 1, next_row, 0, held, most_inner, all_spare, bound)
    for tool in range(len(place)):
        if marks[CALLABLE, tool] == 0:
            continue
        after_success, after_failure = unchanged, failed
        if place[tool] == done:
            count_tokens(status, done + 1, kind, charge, through, other)
            after_success = bound_of(done + 1, failures, spare, 0, 0, other, most_inner, all_spare, bound)
        elif place[tool] > done:
            # Out of order a success spoils everything, but a failure can be worth something to what depends on it.
            if not matters[level, done, tool] or status[tool] != NOT_EXECUTED:
                continue
            after_success = 0.0
        else:
            if spare == 0:
                continue
            if twins[level, done, tool] >= 0:
                has_twin = False
                for twin in range(tool):
                    same = twins[level, done, twin] == twins[level, done, tool] and status[twin] == status[tool]
                    has_twin = has_twin or same
                if has_twin:
                    continue
            if charge[tool] >= done:
                before = status[tool]
                status[tool] = SUCCEEDED
                count_tokens(status, done, kind, charge, through, other)
                after_success = bound_of(done, failures, spare - 1, 0, 0, other, most_inner, all_spare, bound)
                if before == NOT_EXECUTED and not failure_ends:
                    status[tool] = FAILED
                    count_tokens(status, done, kind, charge, through, other)
                    after_failure = bound_of(
                        done, failures + 1, spare - 1, next_row, 0, other, most_inner, all_spare, bound
                    )
                status[tool] = before
        chance = _chance(status, tool, failures, dependencies, base_index, probability)
        if chance * after_success + (1.0 - chance) * after_failure > 0.0:
            _place_call(calls, 0, number, tool, chance, after_success, after_failure, exact)
            number += 1
    if row == 0 or spare == 0:
        return number
    if level == 0:
        if numbers[NEUTRAL_BASE] >= 0:
            chance = float(probability[numbers[NEUTRAL_BASE], 0, 0, failures])
            _place_call(calls, 0, number, BREAK, chance, unchanged, failed, exact)
            number += 1
        return number
    if counters[LOOP_SIGNATURE] >= 0:
        idle = bound_of(done, failures, spare - 1, row, 0, held, most_inner, all_spare, bound)
        _place_call(calls, 0, number, IDLE, 1.0, idle, 0.0, exact)
        number += 1
    # Of the tools that do nothing else, the two best that the loop rule lets through.
    first, second, first_chance, second_chance = -1, -1, 0.0, 0.0
    for tool in range(len(place)):
        if not is_breaker[tool] or marks[CALLABLE, tool] == 1:
            continue
        if counters[LOOP_SIGNATURE] == tool and counters[LOOP_COUNT] + 1 >= numbers[LOOP_LENGTH]:
            continue
        chance = _chance(status, tool, failures, dependencies, base_index, probability)
        if chance > first_chance:
            second, second_chance = first, first_chance
            first, first_chance = tool, chance
        elif chance > second_chance:
            second, second_chance = tool, chance
    if first >= 0:
        _place_call(calls, 0, number, first, first_chance, unchanged, failed, exact)
        number += 1
    if second >= 0:
        _place_call(calls, 0, number, second, second_chance, unchanged, failed, exact)
        number += 1
    return number


@scalar
def _enter_state(
    status: NDArray[np.int64],
    counters: NDArray[np.int64],
    call: int,
    success: bool,
    place: NDArray[np.int64],
    numbers: NDArray[np.int64],
    neutral: NDArray[np.int64],
    new_status: NDArray[np.int64],
    after: NDArray[np.int64],
) -> None:
    """Write the state that a call leads to."""
    for member in range(len(place)):
        new_status[member] = status[member]
    for column in range(NUM_COUNTERS):
        after[column] = counters[column]
    signature = NO_LOOP
    if call >= 0:
        if status[call] == SUCCEEDED:
            signature = call
        record_execution(new_status, after, place[call], call, success, numbers[MOST_IN_ROW])
    elif call == BREAK:
        record_execution(neutral, after, -1, 0, success, numbers[MOST_IN_ROW])
    record_turn(after, signature, numbers[LOOP_LENGTH])


@scalar
def _proceed(field: Field, level: int, memo: Memo, space: Space) -> int:
    """Run the search until it is finished, or until it needs memory, or bounds of the lower level."""
    place, dependencies, base_index, probability = field.place, field.dependencies, field.base_index, field.probability
    is_breaker, matters, twins, numbers = field.is_breaker, field.matters, field.twins, field.numbers
    kind, charge, through = field.relaxation.kind, field.relaxation.charge, field.relaxation.through
    most_inner, all_spare, bound = field.relaxation.most_inner, field.relaxation.all_spare, field.relaxation.bound
    memo_keys, memo_values, memo_used = memo.keys, memo.values, memo.used
    status, counters, keys, calls, tree = space.status, space.counters, space.keys, space.calls, space.tree
    best, marks, tally, tokens, course, result = (
        space.best,
        space.marks,
        space.tally,
        space.tokens,
        space.course,
        space.result,
    )
    words = memo_keys.shape[1]
    depth = course[DEPTH]
    returning = course[RETURNING] == 1
    while True:
        if returning:
            if depth < 0:
                course[DEPTH], course[RETURNING] = depth, 1
                return FINISHED
            returning = False
            number = tree[depth, CURRENT]
            chance, after_failure = calls[depth, number, CHANCE_OF_CALL], calls[depth, number, AFTER_FAILURE]
            if tree[depth, PHASE] == SUCCEEDING:
                value = chance * result[0]
                best[depth, 1] = value
                goes_on = after_failure > 0.0 and value + (1.0 - chance) * after_failure > best[depth, 0]
            else:
                value = best[depth, 1] + (1.0 - chance) * result[0]
                goes_on = False
            if goes_on:
                tree[depth, PHASE] = FAILING
            else:
                best[depth, 0] = max(best[depth, 0], value)
                tree[depth, PHASE] = CHOOSING
                tree[depth, CURRENT] += 1
        elif tree[depth, NUM_CALLS] < 0:
            known = -1.0
            missing = numbers[NUM_REQUIRED] - counters[depth, NEXT_PLACE]
            if missing == 0:
                known = 1.0
            elif numbers[TURNS_ALLOWED] - counters[depth, TURNS_USED] < missing:
                known = 0.0
            else:
                _canonical(
                    level,
                    status[depth],
                    counters[depth],
                    keys[depth],
                    marks,
                    tally,
                    place,
                    dependencies,
                    is_breaker,
                    matters,
                    twins,
                    numbers,
                )
                found = _find(memo_keys, keys[depth])
                if found >= 0:
                    known = memo_values[found]
            if known >= 0.0:
                result[0] = known
                depth -= 1
                returning = True
                continue
            tree[depth, NUM_CALLS] = _list_calls(
                level,
                status[depth],
                counters[depth],
                calls[depth],
                marks,
                tokens,
                place,
                dependencies,
                base_index,
                probability,
                is_breaker,
                matters,
                twins,
                numbers,
                kind,
                charge,
                through,
                most_inner,
                all_spare,
                bound,
            )
            tree[depth, CURRENT], tree[depth, PHASE], best[depth, 0] = 0, CHOOSING, 0.0
        number = tree[depth, CURRENT]
        if tree[depth, PHASE] == CHOOSING:
            if number >= tree[depth, NUM_CALLS] or calls[depth, number, BOUND] <= best[depth, 0]:
                if 4 * memo_used[0] >= 3 * len(memo_values):
                    course[DEPTH], course[RETURNING] = depth, 0
                    return MEMORY_FULL
                free = -1 - _find(memo_keys, keys[depth])
                for word in range(words):
                    memo_keys[free, word] = keys[depth, word]
                memo_values[free] = best[depth, 0]
                memo_used[0] += 1
                result[0] = best[depth, 0]
                depth -= 1
                returning = True
                continue
            if calls[depth, number, IS_EXACT] == 0.0:
                course[DEPTH], course[RETURNING] = depth, 0
                return WANTS_BOUNDS
            tree[depth, PHASE] = SUCCEEDING
            if calls[depth, number, AFTER_SUCCESS] <= 0.0:
                result[0] = 0.0
                returning = True
                continue
        _enter_state(
            status[depth],
            counters[depth],
            int(calls[depth, number, CALL]),
            tree[depth, PHASE] == SUCCEEDING,
            place,
            numbers,
            space.neutral,
            status[depth + 1],
            counters[depth + 1],
        )
        depth += 1
        tree[depth, NUM_CALLS], tree[depth, PHASE] = -1, CHOOSING


@scalar
def _begin(space: Space) -> None:
    """Make ready for the state in the first row."""
    space.course[DEPTH], space.course[RETURNING] = 0, 0
    space.tree[0, NUM_CALLS], space.tree[0, PHASE] = -1, CHOOSING


@kernel
def search(field: Field, memo: Memo, space: Space, begins: bool) -> int:
    """Value the state in the first row of a space; `begins` is False if the search goes on with more memory."""
    if begins:
        _begin(space)
    return int(_proceed(field, 0, memo, space))


@kernel
def search_on_two_levels(
    field: Field, memo: Memo, space: Space, lower_memo: Memo, lower_space: Space, begins: bool
) -> int:
    """Value the state in the first row of a space, with values of the lower level as bounds.

    Returns -MEMORY_FULL if it is the lower level that needs more.
    """
    course, calls, tree = space.course, space.calls, space.tree
    if begins:
        _begin(space)
        course[WANTING] = 0
    while True:
        if course[WANTING] == 1:
            row = course[DEPTH]
            number = tree[row, CURRENT]
            while course[BRANCH] < 2:
                column = AFTER_SUCCESS + course[BRANCH]
                if calls[row, number, column] > 0.0:
                    if course[UNDER_WAY] == 0:
                        _enter_state(
                            space.status[row],
                            space.counters[row],
                            int(calls[row, number, CALL]),
                            column == AFTER_SUCCESS,
                            field.place,
                            field.numbers,
                            space.neutral,
                            lower_space.status[0],
                            lower_space.counters[0],
                        )
                        _begin(lower_space)
                        course[UNDER_WAY] = 1
                    if _proceed(field, 0, lower_memo, lower_space) == MEMORY_FULL:
                        return -MEMORY_FULL
                    calls[row, number, column] = min(calls[row, number, column], lower_space.result[0])
                    course[UNDER_WAY] = 0
                course[BRANCH] += 1
            course[WANTING] = 0
            _refine(calls[row], number, tree[row, NUM_CALLS])
        code = _proceed(field, 1, memo, space)
        if code != WANTS_BOUNDS:
            return int(code)
        course[WANTING], course[BRANCH], course[UNDER_WAY] = 1, 0, 0


@kernel
def bound_state(
    field: Field, status: NDArray[np.int64], counters: NDArray[np.int64], tokens: NDArray[np.int64]
) -> float:
    """Return the relaxation's bound on the value of a state."""
    relaxation, numbers, done = field.relaxation, field.numbers, counters[NEXT_PLACE]
    count_tokens(status, done, relaxation.kind, relaxation.charge, relaxation.through, tokens)
    spare = numbers[TURNS_ALLOWED] - counters[TURNS_USED] - (numbers[NUM_REQUIRED] - done)
    row = counters[CONSECUTIVE_FAILURES] if numbers[MOST_IN_ROW] > 0 else 0
    most_inner, all_spare = relaxation.most_inner, relaxation.all_spare
    failures = counters[NUM_FAILURES]
    return float(bound_of(done, failures, spare, row, 0, tokens, most_inner, all_spare, relaxation.bound))


@scalar
def _refine(calls: NDArray[np.float64], number: int, num_calls: int) -> None:
    """Move a call, the first of those not tried yet, behind all that have a higher bound now that it has a new one."""
    call, chance = int(calls[number, CALL]), calls[number, CHANCE_OF_CALL]
    after_success, after_failure = calls[number, AFTER_SUCCESS], calls[number, AFTER_FAILURE]
    for later in range(number + 1, num_calls):
        for column in range(NUM_OF_CALL):
            calls[later - 1, column] = calls[later, column]
    _place_call(calls, number, num_calls - 1, call, chance, after_success, after_failure, True)
