"""What messages are worth in a world: measured by the task's reference solution, exactly, under the law.

V of a state is the chance of completing the rest of the reference solution within the turns: its calls in order, each
again until it goes through, then the answer. A shorter way may exist, so V is no upper bound: an agent that finds one
has regret below 0 where it shows. What stays exact is luck, V(s') - Q(s, a), which has mean zero for every agent, and
the sum 1 - outcome = (1 - V(start)) + sum of regret - sum of luck.

An agent has done a call of the reference once it has made the next one's tool succeed, whatever the parameters: whether
they were right shows in the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError, InvalidInputError
from resilisim.simulator.exact.judging import Judgement
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    ENDED,
    NUM_FAILURES,
    RUNNING,
    EpisodeState,
    has_succeeded,
    is_awaiting_closing,
    next_state,
    start_state,
    success_probability,
)

MOST_ENTRIES = 20_000_000  # of a table of values: reference calls, turns, failures, failures in a row


@dataclass(frozen=True, slots=True)
class ReferenceSolution:
    """The calls of a reference solution under a law and end rules.

    Attributes:
        problem: Law, end rules and library.
        calls: Tool indices in order; a tool may stand there several times.

    Raises:
        ExactLimitError: The table of values would be too large.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import EndRules, build_problem, start_state
        >>> from resilisim.simulator.exact import ReferenceSolution
        >>> problem = build_problem(default_library(), ["network_fetcher"], rules=EndRules(max_turns=2))
        >>> solution = ReferenceSolution.of_tools(problem, ["network_fetcher", "network_fetcher"])
        >>> round(solution.value(start_state(problem), 0), 6)  # 0.8 * 0.8
        0.64
    """

    problem: Problem
    calls: tuple[int, ...]

    @classmethod
    def of_tools(cls, problem: Problem, tools: Sequence[str]) -> ReferenceSolution:
        """Return the solution that calls these tools; InvalidInputError if the law has parts, which no world plays."""
        if problem.parts is not None:
            raise InvalidInputError(f"a world under a law with parts ({problem.law!r:.60}): expected one without")
        rules = problem.rules
        rows = max(rules.max_consecutive_failures, 1)
        if len(tools) * rules.max_turns**2 * rows > MOST_ENTRIES:
            raise ExactLimitError(
                f"a reference solution of {len(tools)} calls in {rules.max_turns} turns is too large to be solved"
            )
        return cls(problem, tuple(problem.library.index(tool) for tool in tools))

    def value(self, state: EpisodeState, done: int) -> float:
        """Return the chance of completing the reference from a running state in which `done` of its calls are done."""
        rules, counters = self.problem.rules, state.counters
        rest = self.calls[done:]
        turns_left = rules.max_turns - state.turns_used
        if len(rest) > turns_left:
            return 0.0
        if not rest:
            return 1.0
        failures = counters[NUM_FAILURES]
        chances = _chances(self.problem, rest, state.status)
        if min(chance[failures] for chance in chances) == 1.0:
            return 1.0
        row = counters[CONSECUTIVE_FAILURES] if rules.max_consecutive_failures else 0
        return float(_values(self.problem, rest, chances)[len(rest), turns_left, failures, row])


@functools.lru_cache(maxsize=4096)
def _chances(problem: Problem, rest: tuple[int, ...], status: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """Return the success probability of each call by the number of failures, when all calls before it are done."""
    now = list(status)
    found = []
    for tool in rest:
        dependencies = problem.dependencies[tool]
        missing, failed = count_not_executed(now, dependencies), count_failed_dependencies(now, dependencies)
        found.append(tuple(problem.table.probability[problem.base_index[tool], missing, failed].tolist()))
        now[tool] = SUCCEEDED
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _values(problem: Problem, rest: tuple[int, ...], chances: tuple[tuple[float, ...], ...]) -> NDArray[np.float64]:
    """Return values by calls left, turns left, failures so far and failures in a row.

    float64 (num_calls + 1, max_turns + 1, max_turns + 2, rows + 1); the last row is the end of too many failures.
    """
    rules = problem.rules
    rows = max(rules.max_consecutive_failures, 1)
    values = np.zeros((len(rest) + 1, rules.max_turns + 1, rules.max_turns + 2, rows + 1))
    values[0, :, :, :rows] = 1.0
    for left in range(1, len(rest) + 1):
        chance = np.array([*chances[len(rest) - left], 0.0])  # by failures; more than turns there cannot be
        for turns in range(1, rules.max_turns + 1):
            succeeded = values[left - 1, turns - 1, :, 0]
            missed = values[left, turns - 1]
            for row in range(rows):
                after = missed[1:, row + 1 if rules.max_consecutive_failures else 0]
                values[left, turns, :, row] = chance * succeeded
                values[left, turns, :-1, row] += (1.0 - chance[:-1]) * after
    return values


class ReferenceJudge:
    """Judges the messages of one episode in a world, as they come, by its reference solution.

    Args:
        solution: The task's reference solution.

    Attributes:
        done: Its calls that are done.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import FINISH, build_problem, next_state, start_state
        >>> from resilisim.simulator.exact import ReferenceJudge, ReferenceSolution
        >>> problem = build_problem(default_library(), ["network_fetcher"])
        >>> state = start_state(problem)
        >>> judge = ReferenceJudge(ReferenceSolution.of_tools(problem, ["network_fetcher"]))
        >>> guessed = judge.judge(state, FINISH, next_state(problem, state, FINISH), outcome=1)
        >>> round(guessed.regret, 6)  # the right answer without a call: better than the reference
        -0.003904
    """

    def __init__(self, solution: ReferenceSolution) -> None:
        self.solution = solution
        self.done = 0
        self._value = solution.value(start_state(solution.problem), 0)

    def judge(
        self, state: EpisodeState, message: Message, after: EpisodeState, outcome: int = 0, refused: bool = False
    ) -> Judgement:
        """Judge the next message, which led from one state to another.

        Args:
            state: The state in which it was sent.
            message: The message.
            after: The state after it.
            outcome: 1 if the episode ended with it and was a full success.
            refused: Whether it was an execution that the tool itself refused, though the law let it through.
        """
        problem, value = self.solution.problem, self._value
        if message.kind != "execute" or is_awaiting_closing(problem, state):
            action_value = reached = float(outcome) if after.ended_by else self._at(after, self.done)
        else:
            tool = problem.library.index(message.tool or "")
            is_next = self.done < len(self.solution.calls) and self.solution.calls[self.done] == tool
            passed = self._at(next_state(problem, state, message, success=True), self.done + is_next)
            missed = self._at(next_state(problem, state, message, success=False), self.done)
            chance = success_probability(problem, state, tool)
            action_value = chance * passed + (1.0 - chance) * missed
            if has_succeeded(state, message, after):
                self.done += is_next
                reached = passed
            else:
                reached = missed
                # The draw was a good one and counts as such: what the refusal cost is the call's own fault.
                action_value -= passed - missed if refused else 0.0
        self._value = reached
        return Judgement(value, action_value, reached, value - action_value)

    def _at(self, state: EpisodeState, done: int) -> float:
        return self.solution.value(state, done) if state.counters[ENDED] == RUNNING else 0.0
