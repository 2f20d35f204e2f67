"""What calls are worth towards a goal of somebody's own program: functions that have to answer, some of them only once.

Nothing but the number of calls ends such an episode. A function is done when it has answered; one that may run only
`once` must not run again. Where failures come before a function runs, calling again is harmless; where they come after,
because the answer is lost on its way, the answer of a function that may run only once is lost for good.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from resilisim.errors import ExactLimitError
from resilisim.simulator.exact.judging import LARGEST_ERROR, Judgement
from resilisim.simulator.law import SUCCEEDED
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
Lost: TypeAlias = frozenset[int]  # functions that may run only once, have run, and whose answers were lost
MOST_STATES = 200_000  # statuses, failures and calls left that a goal may come to


@dataclass(frozen=True, eq=False)
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
    _values: dict[tuple[tuple[int, ...], int, int, Lost], float] = field(default_factory=dict, repr=False)

    def is_reached(self, state: EpisodeState) -> bool:
        """Return whether every required function has answered, in order if that matters."""
        if self.ordered and state.counters[ORDER_BROKEN]:
            return False
        return all(state.status[tool] == SUCCEEDED for tool in self.problem.required)

    def value(self, state: EpisodeState, lost: Lost = frozenset()) -> float:
        """Return the highest probability of reaching the goal from a state in which nothing ran twice that must not.

        Args:
            state: The state.
            lost: Functions that may run only once, have run, and whose answers were lost.

        Raises:
            ExactLimitError: There are too many states.
        """
        waiting = [(state, lost)]  # a stack of our own: there may be more calls than Python nests
        while waiting:
            now = waiting[-1]
            if self._known(*now) is not None:
                waiting.pop()
                continue
            calls = [self._results(*now, tool) for tool in self._calls(*now)]
            after = [place for call in calls for place in (call.passed, call.missed) if place is not None]
            unknown = [place for place in after if self._known(*place) is None]
            waiting += unknown
            if unknown:
                continue
            if len(self._values) >= MOST_STATES:
                raise ExactLimitError(
                    f"the goal has more than {MOST_STATES:,} states: expected fewer calls or functions"
                )
            self._values[self._key(*now)] = max(map(self._worth, calls), default=0.0)
        return self._known(state, lost) or 0.0

    def call_values(self, state: EpisodeState, tool: int, lost: Lost = frozenset()) -> tuple[float, float, float]:
        """Return the chance that a call passes, and the values of the states after one that passed and one that failed.

        What runs again that may run only once is worth nothing afterwards.
        """
        call = self._results(state, lost, tool)
        passed, missed = (0.0 if place is None else self.value(*place) for place in (call.passed, call.missed))
        return call.chance, passed, missed

    def lost_after(self, state: EpisodeState, tool: int, lost: Lost) -> Lost:
        """Return whose answers are lost after a call that was drawn to fail."""
        return lost | {tool} if self.fail == "after" and tool in self.once and state.status[tool] != SUCCEEDED else lost

    def spoils(self, state: EpisodeState, tool: int, lost: Lost, passes: bool) -> bool:
        """Return whether a call runs again what may run only once."""
        has_run = state.status[tool] == SUCCEEDED or tool in lost
        return tool in self.once and has_run and (passes or self.fail == "after")

    def _known(self, state: EpisodeState, lost: Lost) -> float | None:
        """Return the value of a state that has been worked out, or that says it itself."""
        counters = state.counters
        if counters[ENDED] != RUNNING:
            return float(counters[ENDED] in (COMPLETION, STOPPED) and self.is_reached(state))
        if self.ordered and counters[ORDER_BROKEN]:
            return 0.0
        missing = [tool for tool in self.problem.required if state.status[tool] != SUCCEEDED]
        if not missing:
            return 1.0
        calls_left = self.problem.rules.max_turns - counters[TURNS_USED]
        if calls_left < len(missing) or not lost.isdisjoint(missing):
            return 0.0
        return self._values.get(self._key(state, lost))

    def _key(self, state: EpisodeState, lost: Lost) -> tuple[tuple[int, ...], int, int, Lost]:
        calls_left = self.problem.rules.max_turns - state.counters[TURNS_USED]
        failures = state.counters[NUM_FAILURES] if self._history_matters else 0
        return tuple(state.status[tool] for tool in self._told_apart), failures, calls_left, lost

    def _calls(self, state: EpisodeState, lost: Lost) -> list[int]:
        """Return the functions of which one is best to call next.

        Where no failure is ever better than a success (see `_worth_failing`), a state is worth no less if more of its
        functions have succeeded and fewer calls have failed: whatever is done in the other state can be done in this
        one, where it passes at least as often, or is no longer needed. So a function outside the closure, or one that
        has succeeded, is not worth a call, and neither is a required one before its time, as its success would break
        the order. Otherwise all of them are looked at, since failures that bring nothing but lower chances can help.
        """
        closure, required = self.problem.closure, self.problem.required
        calls = [tool for tool in closure if state.status[tool] != SUCCEEDED and tool not in lost]
        if not self.ordered:
            return calls
        if not self._worth_failing:
            missing = [tool for tool in required if state.status[tool] != SUCCEEDED]
            return [tool for tool in calls if tool == missing[0] or tool not in missing]
        if not self._history_matters:
            return calls
        calls += [tool for tool in self._told_apart if tool not in calls]
        # Of those that change nothing but the number of failures, the one that is likeliest to fail.
        others = [tool for tool in range(self.problem.num_tools) if tool not in self._told_apart]
        harmless = [tool for tool in others if not self.spoils(state, tool, lost, passes=True)]
        return calls + sorted(harmless, key=lambda tool: success_probability(self.problem, state, tool))[:1]

    @functools.cached_property
    def _history_matters(self) -> bool:
        return self.problem.law.history != 1.0

    @functools.cached_property
    def _worth_failing(self) -> frozenset[int]:
        """Functions whose failure can be better than their success: required ones, called before their time.

        The success of such a call breaks the order. Its failure makes the function one that was executed, on which
        another depends that may be called before it: a helper, or a function that is required earlier.
        """
        problem = self.problem
        if not self.ordered or problem.law.failed <= problem.law.not_executed:
            return frozenset()
        return frozenset(
            dependency
            for tool in problem.closure
            for dependency in problem.dependencies[tool]
            if problem.place[dependency] > 0 and problem.place[tool] < problem.place[dependency]
        )

    @functools.cached_property
    def _told_apart(self) -> tuple[int, ...]:
        """Functions whose status decides what a state is worth."""
        if not (self._worth_failing and self._history_matters):
            return self.problem.closure
        needed = itertools.chain(self.problem.closure, *self.problem.dependencies)
        return tuple(sorted({*needed, *self.once}))

    def _results(self, state: EpisodeState, lost: Lost, tool: int) -> _Call:
        message = Message("execute", tool=self.problem.library.names[tool])
        passed = next_state(self.problem, state, message, success=True), lost
        missed = next_state(self.problem, state, message, success=False), self.lost_after(state, tool, lost)
        return _Call(
            success_probability(self.problem, state, tool),
            None if self.spoils(state, tool, lost, passes=True) else passed,
            None if self.spoils(state, tool, lost, passes=False) else missed,
        )

    def _worth(self, call: _Call) -> float:
        passed, missed = (0.0 if place is None else self._known(*place) or 0.0 for place in (call.passed, call.missed))
        return call.chance * passed + (1.0 - call.chance) * missed


class _Call(NamedTuple):
    """What a call can lead to: a state, and whose answers are lost; None where something ran that must not."""

    chance: float
    passed: tuple[EpisodeState, Lost] | None
    missed: tuple[EpisodeState, Lost] | None


class JudgedCall(NamedTuple):
    """A message that was judged: whether it called something that answered, or that itself failed (`refused`)."""

    message: Message
    success: bool
    refused: bool = False


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
        self._lost: Lost = frozenset()

    def judge(self, state: EpisodeState, message: Message, after: EpisodeState, approved: bool = True) -> Judgement:
        """Judge the next message, which led from one state to another as if the function that it calls works.

        Args:
            state: The state in which it was sent.
            message: The message.
            after: The state after it.
            approved: Whether the outcome is right as far as the goal does not say it, if the episode has ended.
        """
        goal = self.goal
        value = self._value(state)
        if message.kind == "execute":
            tool = goal.problem.library.index(message.tool or "")
            passes = after.counters[NUM_FAILURES] == state.counters[NUM_FAILURES]
            chance, passed, missed = (0.0, 0.0, 0.0) if self.is_spoilt else goal.call_values(state, tool, self._lost)
            action_value = chance * passed + (1.0 - chance) * missed
            self.is_spoilt = self.is_spoilt or goal.spoils(state, tool, self._lost, passes)
            if not passes:
                self._lost = goal.lost_after(state, tool, self._lost)
            reached = self._value(after)
        else:
            reached = self._value(after) if approved or after.counters[ENDED] == RUNNING else 0.0
            action_value = reached
        regret = value - action_value
        return Judgement(value, action_value, reached, 0.0 if abs(regret) <= LARGEST_ERROR else regret)

    def correct(
        self, state: EpisodeState, start: EpisodeState, calls: Iterable[JudgedCall]
    ) -> tuple[EpisodeState, float]:
        """Take in that a function failed by itself after its call was judged; return the state, and what it cost.

        Its draw was a good one and counts as such, so this is no luck. It is below 0 where the failure was better.

        Args:
            state: The state as it was taken to be.
            start: The state in which the episode began.
            calls: All its messages so far, as they are known now.
        """
        supposed = self._value(state)
        goal, now = self.goal, start
        self.is_spoilt, self._lost = False, frozenset()
        for call in calls:
            if call.message.kind == "execute":
                tool = goal.problem.library.index(call.message.tool or "")
                passes = call.success or call.refused
                self.is_spoilt = self.is_spoilt or goal.spoils(now, tool, self._lost, passes)
                if not passes:
                    self._lost = goal.lost_after(now, tool, self._lost)
            now = next_state(goal.problem, now, call.message, call.success)
        return now, supposed - self._value(now)

    def _value(self, state: EpisodeState) -> float:
        return 0.0 if self.is_spoilt else self.goal.value(state, self._lost)
