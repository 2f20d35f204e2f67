"""What each message of an episode cost, by the exact optimum, and what to call it.

For a message a in state s, followed by state s':

    regret = V*(s) - Q*(s, a) >= 0     what the choice gave away, whatever the luck
    luck   = V*(s') - Q*(s, a)         what the draw brought, with mean zero; exactly 0 where nothing is drawn

Summed over an episode: 1 - outcome = (1 - V*(start)) + sum of regret - sum of luck.

Where V* is only a lower bound (`Optimum.gap` says how far it may be below), a message can look better than the best by
up to that gap. Its regret is then kept as it is, below 0, because the sum would not be right without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilisim.evaluation.records import REGRET_TOLERANCE, EpisodeRecord
from resilisim.simulator.exact import Optimum
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import EpisodeState, is_done, loop_count_of
from resilisim.simulator.transition import NEXT_PLACE

IDENTITY_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Attribution:
    """What one message was worth.

    Attributes:
        value: V* before the message.
        action_value: Q* of the message.
        regret: What the choice gave away; 0 where it is within rounding, negative only within the optimum's gap.
        luck: What the draw brought.
        label: Why the choice cost something (a key of `records.LOSS_LABELS`), or None if it did not.
        value_after: V* after the message.
    """

    value: float
    action_value: float
    regret: float
    luck: float
    label: str | None
    value_after: float


def attribute(
    optimum: Optimum,
    state: EpisodeState,
    message: Message,
    after: EpisodeState,
    plan_in_prompt: bool,
    value: float | None = None,
) -> Attribution:
    """Say what a message was worth.

    Args:
        optimum: The solved problem.
        state: The state in which the message was sent.
        message: The message.
        after: The state that it led to.
        plan_in_prompt: Whether the prompt named the tools to use, so that looking for them was no longer needed.
        value: V* of the state, if it is known already.
    """
    if value is None:
        value = optimum.value(state)
    action_value = optimum.action_value(state, message)
    value_after = optimum.value(after)
    regret = value - action_value
    if regret < -(IDENTITY_TOLERANCE + optimum.gap):
        raise AssertionError(f"Q* = {action_value} of {message} is above V* = {value}: the optimum is not one")
    if regret <= REGRET_TOLERANCE:
        kept = regret if optimum.gap > 0.0 else 0.0
        return Attribution(value, action_value, kept, value_after - action_value, None, value_after)
    label = loss_label(optimum.problem, state, message, plan_in_prompt)
    return Attribution(value, action_value, regret, value_after - action_value, label, value_after)


def loss_label(problem: Problem, state: EpisodeState, message: Message, plan_in_prompt: bool) -> str:
    """Name the reason for a message's regret: the first that applies, the most telling first."""
    if is_done(problem, state):
        return "no_completion_signal"  # whatever was sent instead: the signal alone was missing
    if message.kind in ("finish", "stop"):
        return "gave_up_early"
    if message.kind in ("search", "info"):
        # What was just asked is known already, so asking it again is no information.
        repeated = loop_count_of(state, message.signature) > 0
        return "wasted_turn" if plan_in_prompt or repeated else "information"
    if message.kind == "format_error":
        return "format_error"
    if message.kind == "rejected":
        return "rejected_call"
    tool = problem.library.index(message.tool or "")
    if tool not in problem.closure:
        return "unneeded_tool"
    if state.status[tool] == SUCCEEDED:
        return "repeated_success"
    if problem.place[tool] > state.counters[NEXT_PLACE]:
        return "wrong_order"  # before a missing dependency: its success would already decide the episode
    if any(state.status[dependency] != SUCCEEDED for dependency in problem.dependencies[tool]):
        return "missing_dependency_first"
    return "suboptimal_choice"


def identity_error(record: EpisodeRecord) -> float:
    """Return by how much a record misses 1 - outcome = (1 - optimum) + sum of regret - sum of luck."""
    regret = sum(step["regret"] for step in record["steps"])
    luck = sum(step["luck"] for step in record["steps"])
    return abs((1 - record["outcome"]) - (1.0 - record["optimum"]) - regret + luck)
