"""Backward induction over the arena's states, compiled.

One sweep per number of turns left. The success law is read from the same table that the simulator samples from; the
test suite pins the sweep to a brute-force recursion over `simulator.state.next_state`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import kernel, scalar
from resilisim.simulator.law import (
    FAILED,
    NOT_EXECUTED,
    SUCCEEDED,
    IntVector,
    count_failed_dependencies,
    count_not_executed,
)


@scalar
def decode_status(
    code: int, next_place: int, place: IntVector, stride: IntVector, radix: IntVector, status: IntVector
) -> bool:
    """Write the arena tools' statuses into `status`; return False if the combination cannot occur."""
    for tool in range(len(place)):
        digit = 0
        if radix[tool] > 1:
            digit = (code // stride[tool]) % radix[tool]
        if 0 <= place[tool] < next_place:
            if digit != NOT_EXECUTED:
                return False
            status[tool] = SUCCEEDED
        else:
            status[tool] = digit
    return True


@kernel
def solve_values(
    place: NDArray[np.int64],
    dependencies: NDArray[np.int64],
    base_index: NDArray[np.int64],
    stride: NDArray[np.int64],
    radix: NDArray[np.int64],
    codes: NDArray[np.int64],
    compact: NDArray[np.int32],
    probability: NDArray[np.float64],
    neutral_base: int,
    loop_tools: int,
    num_required: int,
    max_turns: int,
    max_consecutive_failures: int,
    loop_length: int,
    values: NDArray[np.float64],
) -> None:
    """Fill `values`, the highest probability of full success from each state.

    Args:
        place: (num_arena,) place in the required list, or -1.
        dependencies: (num_arena, max_dependencies) arena indices, padded with -1.
        base_index: (num_arena,) index of the base probability.
        stride: (num_arena,) weight of the tool's digit in a code.
        radix: (num_arena,) number of values of the digit.
        codes: (num_codes,) admissible status codes.
        compact: Place of a code in `codes`, or -1.
        probability: The law's table.
        neutral_base: Base index of a tool that is always there to break a row of failures, or -1.
        loop_tools: 1 if the last axis of `values` tells apart which successful tool was called last, how often.
        num_required: Length of the required list.
        max_turns: End rule.
        max_consecutive_failures: End rule; 0 is off.
        loop_length: End rule; 0 is off.
        values: float64 (max_turns + 1, num_codes, num_required + 1, max_turns - num_required + 1, rows, loops), zero on
            entry, indexed by turns left, place of the code, required tools done, failures, consecutive failures, loop
            state.
    """
    num_tools = len(place)
    rows = max(max_consecutive_failures, 1)
    loop_slots = max(loop_length - 1, 0)
    failure_counts = values.shape[3]
    status = np.zeros(num_tools, dtype=np.int64)
    num_not_executed = np.zeros(num_tools, dtype=np.int64)
    num_failed = np.zeros(num_tools, dtype=np.int64)
    code_success = np.zeros(num_tools, dtype=np.int64)
    code_failure = np.zeros(num_tools, dtype=np.int64)
    for turns_left in range(max_turns + 1):
        for row in range(len(codes)):
            values[turns_left, row, num_required] = 1.0
    for turns_left in range(1, max_turns + 1):
        for row in range(len(codes)):
            code = codes[row]
            for done in range(num_required):
                if turns_left < num_required - done or not decode_status(code, done, place, stride, radix, status):
                    continue
                successes = done
                for tool in range(num_tools):
                    num_not_executed[tool] = count_not_executed(status, dependencies[tool])
                    num_failed[tool] = count_failed_dependencies(status, dependencies[tool])
                    code_failure[tool] = code
                    code_success[tool] = code
                    if place[tool] < 0:
                        if status[tool] == SUCCEEDED:
                            successes += 1
                        else:
                            code_success[tool] = code + (SUCCEEDED - status[tool]) * stride[tool]
                    elif place[tool] == done and radix[tool] > 1:
                        code_success[tool] = code - status[tool] * stride[tool]
                    if status[tool] == NOT_EXECUTED and radix[tool] > 1:
                        code_failure[tool] = code + (FAILED - NOT_EXECUTED) * stride[tool]
                for failures in range(min(max_turns - turns_left - successes + 1, failure_counts)):
                    for consecutive in range(min(failures + 1, rows)):
                        # A failure that leaves fewer turns than tools, or that ends the episode, is worth nothing.
                        failure_ends = max_consecutive_failures > 0 and consecutive + 1 == max_consecutive_failures
                        failure_ends = failure_ends or failures + 1 == failure_counts
                        next_row = consecutive + 1 if max_consecutive_failures > 0 else 0
                        best = 0.0
                        if neutral_base >= 0:
                            chance = probability[neutral_base, 0, 0, failures]
                            value = chance * values[turns_left - 1, row, done, failures, 0, 0]
                            if not failure_ends:
                                after = values[turns_left - 1, row, done, failures + 1, next_row, 0]
                                value += (1.0 - chance) * after
                            best = max(best, value)
                        for tool in range(num_tools):
                            if status[tool] == SUCCEEDED:
                                continue
                            chance = probability[base_index[tool], num_not_executed[tool], num_failed[tool], failures]
                            value = 0.0
                            if place[tool] < 0 or place[tool] == done:
                                after_row = compact[code_success[tool]]
                                done_after = done + 1 if place[tool] >= 0 else done
                                if after_row >= 0:
                                    value += chance * values[turns_left - 1, after_row, done_after, failures, 0, 0]
                            if not failure_ends:
                                after_row = compact[code_failure[tool]]
                                if after_row >= 0:
                                    after = values[turns_left - 1, after_row, done, failures + 1, next_row, 0]
                                    value += (1.0 - chance) * after
                            best = max(best, value)
                        if loop_tools == 0:
                            values[turns_left, row, done, failures, consecutive, 0] = best
                            continue
                        # Calling a successful tool again is worth a thought here, and the loop rule watches it; so is
                        # any other message that executes nothing, since it leaves the loop.
                        for loop in range(values.shape[5]):
                            best_in_loop = max(best, values[turns_left - 1, row, done, failures, consecutive, 0])
                            for tool in range(num_tools):
                                if status[tool] != SUCCEEDED:
                                    continue
                                count = 1
                                if loop_slots > 0 and loop > 0 and (loop - 1) // loop_slots == tool:
                                    count = (loop - 1) % loop_slots + 2
                                if loop_length > 0 and count >= loop_length:
                                    continue
                                after_loop = 1 + tool * loop_slots + count - 1 if loop_slots > 0 else 0
                                chance = probability[
                                    base_index[tool], num_not_executed[tool], num_failed[tool], failures
                                ]
                                value = chance * values[turns_left - 1, row, done, failures, 0, after_loop]
                                if not failure_ends:
                                    after = values[turns_left - 1, row, done, failures + 1, next_row, after_loop]
                                    value += (1.0 - chance) * after
                                best_in_loop = max(best_in_loop, value)
                            values[turns_left, row, done, failures, consecutive, loop] = best_in_loop
