"""What each message of an episode was worth by the exact optimum: its regret, its luck, and what a trainer is paid.

For a message a in state s that led to state s':

    value      V*(s') - V*(s)               adds up to outcome - V*(start); the luck of the draw included
    advantage  Q*(s, a) - V*(s) = -regret   what the choice alone gave away; never above 0 where V* is exact

By the performance difference lemma the advantages of an episode add up, in the mean over its luck, to the agent's
success rate minus V*(start), whatever the agent: both rewards rank agents as success does. `value` is potential-based
shaping with the potential V* (Ng, Harada and Russell 1999), `advantage` the same without the luck of the draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from resilisim.errors import CheckFailed
from resilisim.simulator.compiled import scalar
from resilisim.simulator.exact.optimum import solve
from resilisim.simulator.exact.values import TIE_TOLERANCE
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem, next_state
from resilisim.simulator.rulebook.dynamics import Draw
from resilisim.simulator.rulebook.rules import SUCCESS
from resilisim.simulator.state import EpisodeState

LARGEST_ERROR = 1e-9  # Q* above V* by more is no rounding error


@scalar
def regret_of(value: float, action_value: float, gap: float) -> float:
    """Return V* - Q*, 0 where V* is exact and they differ by rounding alone; what is below 0 by more is no rounding."""
    regret = value - action_value
    return 0.0 if gap == 0.0 and -LARGEST_ERROR <= regret <= TIE_TOLERANCE else regret


def had_it_worked(problem: Problem, state: EpisodeState, message: Message, after: EpisodeState) -> EpisodeState:
    """Return the state after a call that the tool itself refused, had it not; `after` is the one that it led to."""
    at_time = problem.dynamics.rules.at_time
    ticks = after.parts[at_time] - state.parts[at_time] if at_time >= 0 else 0
    return next_state(problem, replace(state, hidden=()), message, Draw(SUCCESS, ticks))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one message was worth.

    Attributes:
        value: V* of the state in which it was sent.
        action_value: Its Q* there.
        reached: V* of the state that it led to; the outcome, 1 or 0, if the episode ended with it.
        regret: V* - Q*; below 0 where V* is a lower bound (`Values.gap`) or no ceiling (`Values.is_ceiling`), where
            somebody else says that it was a success and the calls do not, where tools came by since the last message
            (`Judge.extend`), or where a tool's own failure was better than its success (`Judge.correct`).
    """

    value: float
    action_value: float
    reached: float
    regret: float

    @property
    def luck(self) -> float:
        """What the draw brought, with mean zero; exactly 0 where nothing is drawn."""
        return self.reached - self.action_value

    def reward(self, name: str) -> float:
        """Return what a trainer is paid for it: its "value" or its "advantage"."""
        return self.reached - self.value if name == "value" else 0.0 - self.regret


class Judge:
    """Judges the messages of one episode, as they come.

    Args:
        problem: The task under its law and end rules.

    Attributes:
        values: The solved problem.

    Raises:
        ExactLimitError: The task is too large to be solved exactly.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import FINISH, build_problem, start_state
        >>> from resilisim.simulator.problem import next_state
        >>> from resilisim.simulator.exact import Judge
        >>> problem = build_problem(default_library(), ["network_fetcher"])
        >>> state = start_state(problem)
        >>> given_up = Judge(problem).judge(state, FINISH, next_state(problem, state, FINISH))
        >>> given_up.reached, round(given_up.reward("advantage"), 6)
        (0.0, -0.996096)
    """

    def __init__(self, problem: Problem) -> None:
        self.values = solve(problem)
        self._value: float | None = None  # V* after the last message

    def __getstate__(self) -> dict[str, Any]:
        # What is solved is locked while it is searched, and remembered by the problem: a copy solves it, or finds it.
        return {"problem": self.values.problem, "value": self._value}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.values = solve(state["problem"])
        self._value = state["value"]

    def fork(self) -> Judge:
        """Return a copy that goes on by itself."""
        fork = object.__new__(type(self))
        fork.values, fork._value = self.values, self._value
        return fork

    def judge(
        self,
        state: EpisodeState,
        message: Message,
        after: EpisodeState,
        outcome: int | None = None,
        refused: bool = False,
    ) -> Judgement:
        """Judge the next message, which was sent in one state and led to another.

        Args:
            state: The state in which it was sent.
            message: The message.
            after: The state after it.
            outcome: Whether the episode was a full success, 1 or 0, if it ended with this message and somebody else
                says so than the state.
            refused: Whether it was a call that the law let through and the tool itself refused. If that is only known
                later, the call is judged as if it had worked, and then corrected (`correct`).
        """
        values = self.values
        value = values.value(state) if self._value is None else self._value
        if outcome is not None and after.ended_by is not None and message.kind != "execute":
            action_value = reached = float(outcome)
        else:
            led_to = had_it_worked(values.problem, state, message, after) if refused else after
            action_value, reached = values.judge(state, message, led_to)
        is_above = action_value > value + values.gap + LARGEST_ERROR
        if values.is_ceiling and is_above and outcome is None and action_value > values.bound(state) + LARGEST_ERROR:
            raise CheckFailed(f"Q* = {action_value} of {message} is above V* = {value}: the optimum is not one")
        self._value = reached
        if refused:
            action_value -= self.correct(after)
        regret = regret_of(value, action_value, values.gap) if values.is_ceiling else value - action_value
        return Judgement(value, action_value, self._value, regret)

    def extend(self, problem: Problem) -> None:
        """Go on in a problem whose library has more tools, behind those that were there.

        The next message is still measured by V* of before: what the new tools are worth is neither luck nor lost.
        """
        self.values = solve(problem)

    def correct(self, after: EpisodeState) -> float:
        """Take in that a tool failed by itself after its call was judged, and return what that cost.

        The draw was a good one and counts as such, so this is no luck. It is below 0 where the failure was better.

        Args:
            after: The state now, as it is with that failure.
        """
        supposed, self._value = self._value, self.values.value(after)
        return 0.0 if supposed is None else supposed - self._value
