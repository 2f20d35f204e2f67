"""What one message does to an episode: the transition, written once for every user of the simulator.

The functions work on two plain vectors, `status` (num_tools,) with the codes of `law`, and `counters` (NUM_COUNTERS,)
with the columns below. Python hands in lists, compiled code int64 arrays.
"""

from __future__ import annotations

from resilisim.simulator.compiled import scalar
from resilisim.simulator.law import FAILED, SUCCEEDED, IntVector

# Columns of `counters`.
TURNS_USED = 0
NUM_FAILURES = 1  # failed executions so far, of all tools (Nh)
CONSECUTIVE_FAILURES = 2  # failed executions since the last successful one
NEXT_PLACE = 3  # required tools that have succeeded, as long as the order is intact
ORDER_BROKEN = 4  # 1 once a required tool succeeded before an earlier required one
LOOP_SIGNATURE = 5  # what the running row of equal unproductive messages repeats; NO_LOOP if the last was productive
LOOP_COUNT = 6  # length of that row
ENDED = 7  # one of the codes below
NUM_COUNTERS = 8

NO_LOOP = -1

RUNNING = 0
COMPLETION = 1  # the agent signalled that it is done
TURNS = 2  # the closing message came without a completion signal
CONSECUTIVE = 3  # too many failed executions without a successful one between them
LOOP = 4  # the same unproductive message too many times in a row
STOPPED = 5  # the agent stopped by itself or hit a cap of its own

ENDED_BY = (None, "completion", "turns", "consecutive_failures", "loop", "stopped")


@scalar
def record_execution(
    status: IntVector, counters: IntVector, place: int, tool: int, success: bool, max_consecutive_failures: int
) -> None:
    """Enter the outcome of an execution.

    Args:
        status: (num_tools,) statuses, changed in place.
        counters: (NUM_COUNTERS,) counters, changed in place.
        place: The tool's place in the required list, or -1.
        tool: Tool index.
        success: Whether the execution succeeded.
        max_consecutive_failures: End rule; 0 is off.
    """
    if success:
        counters[CONSECUTIVE_FAILURES] = 0
        if status[tool] != SUCCEEDED and place >= 0:
            if place == counters[NEXT_PLACE]:
                counters[NEXT_PLACE] += 1
            else:
                counters[ORDER_BROKEN] = 1
        status[tool] = SUCCEEDED
    else:
        counters[NUM_FAILURES] += 1
        counters[CONSECUTIVE_FAILURES] += 1
        if status[tool] != SUCCEEDED:
            status[tool] = FAILED
        if counters[CONSECUTIVE_FAILURES] == max_consecutive_failures:
            counters[ENDED] = CONSECUTIVE


@scalar
def record_turn(counters: IntVector, signature: int, loop_length: int) -> None:
    """Use up a turn and keep count of equal unproductive messages in a row.

    Args:
        counters: (NUM_COUNTERS,) counters, changed in place.
        signature: What an unproductive message repeats (any number but NO_LOOP), or NO_LOOP for a productive one.
        loop_length: End rule; 0 is off.
    """
    counters[TURNS_USED] += 1
    if signature != NO_LOOP and signature == counters[LOOP_SIGNATURE]:
        counters[LOOP_COUNT] += 1
    else:
        counters[LOOP_SIGNATURE] = signature
        counters[LOOP_COUNT] = 0 if signature == NO_LOOP else 1
    if loop_length > 0 and counters[LOOP_COUNT] >= loop_length and counters[ENDED] == RUNNING:
        counters[ENDED] = LOOP
