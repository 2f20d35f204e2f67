"""What calls are worth towards a goal of somebody's own program: functions that have to answer, some of them only once.

Nothing but the number of calls ends such an episode. A function is done when it has answered; one that may run only
`once` must not run again. Where failures come before a function runs, calling again is harmless; where they come after,
because the answer is lost on its way, the answer of a function that may run only once is lost for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from resilisim.errors import ExactLimitError
from resilisim.simulator.exact.judging import LARGEST_ERROR, Judgement
from resilisim.simulator.law import FAILED, SUCCEEDED
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import (
    COMPLETION,
    ENDED,
    NUM_FAILURES,
    ORDER_BROKEN,
    RUNNING,
    STOPPED,
    TURNS_USED,
    EpisodeState,
    next_state,
    success_probability,
)

Fail = Literal["before", "after"]
MOST_STATES = 200_000  # statuses, failures and calls left that a goal may come to


@dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """Which functions have to answer.

    Attributes:
        problem: Law, number of calls, and the required functions in order.
        ordered: Whether their first answers have to come in that order.
        once: Indices of the functions that may run only once.
        fail: Whether a drawn failure comes "before" the function runs, or "after" it ran.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import EndRules, build_problem, start_state
        >>> from resilisim.simulator.exact import Goal
        >>> rules = EndRules(max_turns=3, max_consecutive_failures=0, loop_length=0)
        >>> problem = build_problem(default_library(), ["network_fetcher"], rules=rules)
        >>> start = start_state(problem)
        >>> [round(Goal(problem, once=problem.required, fail=fail).value(start), 3) for fail in ("before", "after")]
        [0.98, 0.8]
    """

    problem: Problem
    ordered: bool = True
    once: tuple[int, ...] = ()
    fail: Fail = "before"
    _values: dict[tuple[tuple[int, ...], int, int], float] = field(default_factory=dict, repr=False)

    def is_reached(self, state: EpisodeState) -> bool:
        """Return whether every required function has answered, in order if that matters."""
        if self.ordered and state.counters[ORDER_BROKEN]:
            return False
        return all(state.status[tool] == SUCCEEDED for tool in self.problem.required)

    def value(self, state: EpisodeState) -> float:
        """Return the highest probability of reaching the goal from a state in which nothing ran twice that must not.

        Raises:
            ExactLimitError: There are too many states.
        """
        waiting = [state]  # a stack of our own: there may be more calls than Python nests
        while waiting:
            now = waiting[-1]
            if self._known(now) is not None:
                waiting.pop()
                continue
            useful = self._useful(now)
            after = [
                next_state(self.problem, now, self._call(tool), success) for tool in useful for success in (False, True)
            ]
            unknown = [one for one in after if self._known(one) is None]
            waiting += unknown
            if unknown:
                continue
            if len(self._values) >= MOST_STATES:
                raise ExactLimitError(
                    f"the goal has more than {MOST_STATES:,} states: expected fewer calls or functions"
                )
            self._values[self._key(now)] = max((self._of_call(now, tool) for tool in useful), default=0.0)
        return self._known(state) or 0.0

    def _known(self, state: EpisodeState) -> float | None:
        """Return the value of a state that has been worked out, or that says it itself."""
        counters = state.counters
        if counters[ENDED] != RUNNING:
            return float(counters[ENDED] in (COMPLETION, STOPPED) and self.is_reached(state))
        if self.ordered and counters[ORDER_BROKEN]:
            return 0.0
        if self.is_reached(state):
            return 1.0
        missing = self._missing(state)
        calls_left = self.problem.rules.max_turns - counters[TURNS_USED]
        if calls_left < len(missing) or (self.fail == "after" and any(self._is_lost(state, tool) for tool in missing)):
            return 0.0
        return self._values.get(self._key(state))

    def _key(self, state: EpisodeState) -> tuple[tuple[int, ...], int, int]:
        calls_left = self.problem.rules.max_turns - state.counters[TURNS_USED]
        return tuple(state.status[tool] for tool in self.problem.closure), state.counters[NUM_FAILURES], calls_left

    def _missing(self, state: EpisodeState) -> list[int]:
        return [tool for tool in self.problem.required if state.status[tool] != SUCCEEDED]

    def _useful(self, state: EpisodeState) -> list[int]:
        """Return what is worth calling: a helper is done once it has succeeded; in order only the next will do."""
        closure, missing = self.problem.closure, self._missing(state)
        useful = [tool for tool in closure if state.status[tool] != SUCCEEDED and not self._is_lost(state, tool)]
        return [tool for tool in useful if tool not in missing or tool == missing[0]] if self.ordered else useful

    def _call(self, tool: int) -> Message:
        return Message("execute", tool=self.problem.library.names[tool])

    def action_value(self, state: EpisodeState, message: Message) -> float:
        """Return the same if a message is sent next; one that is no call uses a turn at most."""
        if message.kind == "execute":
            return self._of_call(state, self.problem.library.index(message.tool or ""), message)
        return self.value(next_state(self.problem, state, message))

    def _is_lost(self, state: EpisodeState, tool: int) -> bool:
        return self.fail == "after" and tool in self.once and state.status[tool] == FAILED

    def _of_call(self, state: EpisodeState, tool: int, message: Message | None = None) -> float:
        message = message or self._call(tool)
        chance = success_probability(self.problem, state, tool)
        success = self.value(next_state(self.problem, state, message, success=True))
        return chance * success + (1.0 - chance) * self.value(next_state(self.problem, state, message, success=False))


class GoalJudge:
    """Judges the calls of one episode, as they come, by a goal.

    Args:
        goal: The goal.

    Attributes:
        is_spoilt: Whether something ran again that may run only once.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import EndRules, build_problem, execution, next_state, start_state
        >>> from resilisim.simulator.exact import Goal, GoalJudge
        >>> rules = EndRules(max_turns=3, max_consecutive_failures=0, loop_length=0)
        >>> problem = build_problem(default_library(), ["network_fetcher"], rules=rules)
        >>> state, call = start_state(problem), execution("network_fetcher")
        >>> round(GoalJudge(Goal(problem)).judge(state, call, next_state(problem, state, call, True)).luck, 3)
        0.02
    """

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.is_spoilt = False
        self._ran: set[int] = set()

    def judge(
        self, state: EpisodeState, message: Message, after: EpisodeState, refused: bool = False, approved: bool = True
    ) -> Judgement:
        """Judge the next message, which led from one state to another.

        Args:
            state: The state in which it was sent.
            message: The message.
            after: The state after it.
            refused: Whether the function itself failed, though the law let the call through.
            approved: Whether the check of the end state agrees, if the episode has ended.
        """
        goal, problem = self.goal, self.goal.problem
        value = self._value(state)
        if message.kind == "execute":
            tool = problem.library.index(message.tool or "")
            succeeded = not refused and after.counters[NUM_FAILURES] == state.counters[NUM_FAILURES]
            drawn = succeeded or refused
            runs = drawn or goal.fail == "after"
            spoils = tool in goal.once and tool in self._ran
            chance = success_probability(problem, state, tool)
            passed = 0.0 if spoils else self._value(next_state(problem, state, message, success=True))
            missed_spoils = spoils and goal.fail == "after"
            missed = 0.0 if missed_spoils else self._value(next_state(problem, state, message, success=False))
            action_value = chance * passed + (1.0 - chance) * missed
            self.is_spoilt = self.is_spoilt or (spoils and runs)
            if runs and not refused:  # what a function that failed has done nobody knows; it counts as nothing
                self._ran.add(tool)
            reached = self._value(after)
            # The draw was a good one and counts as such: what the function's own failure cost is no luck.
            action_value -= passed - reached if refused else 0.0
        else:
            reached = self._value(after) if approved or after.counters[ENDED] == RUNNING else 0.0
            action_value = reached
        regret = value - action_value
        return Judgement(value, action_value, reached, 0.0 if abs(regret) <= LARGEST_ERROR else regret)

    def _value(self, state: EpisodeState) -> float:
        return 0.0 if self.is_spoilt else self.goal.value(state)
