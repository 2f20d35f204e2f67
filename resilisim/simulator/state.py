"""The state of an episode as a value, and how executions and turns enter it; `problem` says what states lead to.

The scalar functions work on two plain vectors, `status` (num_tools,) with the codes of `tool_status`, and `counters`
(NUM_COUNTERS,) with the columns below. Python hands in lists, compiled code int64 arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilisim.simulator.compiled import scalar
from resilisim.simulator.messages import Message
from resilisim.simulator.tool_status import FAILED, SUCCEEDED, IntVector

# Columns of `counters`.
TURNS_USED = 0
NUM_FAILURES = 1  # failed executions so far, of all tools (Nh)
CONSECUTIVE_FAILURES = 2  # failed executions since the last successful one
NEXT_PLACE = 3  # required tools that have succeeded, as long as the order is intact
SPOILT = 4  # why the goal cannot be reached any more: the flags below, added up; 0 if nothing has spoilt it
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
TIME = 6  # the closing message came without a completion signal, after the time that the law gives
LOST = 7  # the agent broke or was given up, which is lost whatever was done before
DEADLOCK = 8  # nothing can lead on (training law of Workflow-v0)

# Flags of the column SPOILT.
OUT_OF_ORDER = 1  # a required tool succeeded before an earlier one
RAN_AGAIN = 2  # a tool ran again that may run only once

ENDED_BY = (None, "completion", "turns", "consecutive_failures", "loop", "stopped", "time", "agent_error", "deadlock")


@scalar
def record_execution(
    status: IntVector, counters: IntVector, place: int, tool: int, success: bool, max_consecutive_failures: int
) -> None:
    """Enter an execution into `status` (num_tools,) and `counters` (NUM_COUNTERS,); 0 turns the end rule off."""
    if success:
        counters[CONSECUTIVE_FAILURES] = 0
        if status[tool] != SUCCEEDED and place >= 0:
            if place == counters[NEXT_PLACE]:
                counters[NEXT_PLACE] += 1
            elif place > counters[NEXT_PLACE]:  # lower only where an equivalent has taken the place
                counters[SPOILT] |= OUT_OF_ORDER
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
    """Use up a turn and count equal unproductive messages in a row; NO_LOOP is the signature of a productive one."""
    counters[TURNS_USED] += 1
    if signature != NO_LOOP and signature == counters[LOOP_SIGNATURE]:
        counters[LOOP_COUNT] += 1
    else:
        counters[LOOP_SIGNATURE] = signature
        counters[LOOP_COUNT] = 0 if signature == NO_LOOP else 1
    if loop_length > 0 and counters[LOOP_COUNT] >= loop_length and counters[ENDED] == RUNNING:
        counters[ENDED] = LOOP


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """Everything that the future of an episode depends on, except luck.

    Attributes:
        status: (num_tools,) NOT_EXECUTED, FAILED or SUCCEEDED for each tool.
        counters: (NUM_COUNTERS,) the columns named above.
        executions: (num_tools,) executions so far of each tool; the next one draws luck number `executions[tool]`.
        parts: What else agents can know under a law with parts, a function of what they saw; empty under a plain law.
        hidden: What they cannot see (outages, broken tools, soundness of outputs); empty if there is no such thing, or
            if it is left open.
    """

    status: tuple[int, ...]
    counters: tuple[int, ...]
    executions: tuple[int, ...]
    parts: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()

    @property
    def ended_by(self) -> str | None:
        """What ended the episode, or None while it runs."""
        return ENDED_BY[self.counters[ENDED]]

    @property
    def turns_used(self) -> int:
        """Messages used, at most `max_turns`; the closing message is not counted."""
        return self.counters[TURNS_USED]


def has_succeeded(state: EpisodeState, message: Message, after: EpisodeState) -> bool:
    """Return whether a message was an execution that succeeded, by the states before and after it."""
    if message.kind != "execute" or after.counters[ENDED] == TURNS:
        return False  # a call in the closing message executes nothing
    return after.counters[NUM_FAILURES] == state.counters[NUM_FAILURES]


def loop_count_of(state: EpisodeState, signature: int) -> int:
    """Return how many messages with this signature stand at the end of the episode so far, in a row."""
    return state.counters[LOOP_COUNT] if state.counters[LOOP_SIGNATURE] == signature else 0
