"""What each message of an episode cost, by the exact optimum, and what to call it.

For a message a in state s, followed by state s':

    regret = V*(s) - Q*(s, a) >= 0     what the choice gave away, whatever the luck
    luck   = V*(s') - Q*(s, a)         what the draw brought, with mean zero; exactly 0 where nothing is drawn

Summed over an episode: 1 - outcome = (1 - V*(start)) + sum of regret - sum of luck.

Where V* is only a lower bound (`Optimum.gap` says how far it may be below), a message can look better than the best by
up to that gap. Its regret is then kept as it is, below 0, because the sum would not be right without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from resilisim.evaluation.labels import Course
from resilisim.evaluation.records import REGRET_TOLERANCE, EpisodeRecord, StepRecord
from resilisim.simulator.exact import Optimum
from resilisim.simulator.messages import Message
from resilisim.simulator.state import EpisodeState, has_succeeded

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
    course: Course,
    value: float | None = None,
) -> Attribution:
    """Say what a message was worth, and note it in the episode's course.

    Args:
        optimum: The solved problem.
        state: The state in which the message was sent.
        message: The message.
        after: The state that it led to.
        course: What the episode has seen so far.
        value: V* of the state, if it is known already.
    """
    if value is None:
        value = optimum.value(state)
    action_value, value_after = optimum.judge(state, message, after)
    regret, luck = value - action_value, value_after - action_value
    label = None
    if regret > REGRET_TOLERANCE:
        label = course.reason(state, message)
    elif regret < -(IDENTITY_TOLERANCE + optimum.gap):
        raise AssertionError(f"Q* = {action_value} of {message} is above V* = {value}: the optimum is not one")
    elif optimum.gap == 0.0:
        regret = 0.0
    course.advance(message, has_succeeded(state, message, after))
    return Attribution(value, action_value, regret, luck, label, value_after)


def total_losses(steps: Iterable[StepRecord]) -> dict[str, float]:
    """Return the sum of regret by label, in the order in which labels first occur."""
    losses: dict[str, float] = {}
    for step in steps:
        label = step["label"]
        if label is not None:
            losses[label] = losses.get(label, 0.0) + step["regret"]
    return losses


def identity_error(record: EpisodeRecord) -> float:
    """Return by how much a record misses 1 - outcome = (1 - optimum) + sum of regret - sum of luck."""
    regret = sum(step["regret"] for step in record["steps"])
    luck = sum(step["luck"] for step in record["steps"])
    return abs((1 - record["outcome"]) - (1.0 - record["optimum"]) - regret + luck)
