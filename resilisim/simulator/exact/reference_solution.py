"""What messages are worth in a world: measured by the task's reference solution, exactly, under the law.

V of a state is the chance of completing the rest of the reference solution within the turns: its calls in order, each
again until it goes through, then the answer. Under a law with parts turns pass between them where that helps, by what
an agent can know (`EpisodeState.parts`). A shorter way may exist, so V is no upper bound: an agent that finds one has
regret below 0 where it shows. What stays exact is luck, V(s') - Q(s, a), which has mean zero for every agent, and the
sum 1 - outcome = (1 - V(start)) + sum of regret - sum of luck.

An agent has done a call of the reference once it has made the next one's tool succeed, whatever the parameters: whether
they were right shows in the answer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import ExactLimitError
from resilisim.simulator.exact.judging import Judgement
from resilisim.simulator.exact.optimum import TIE_TOLERANCE
from resilisim.simulator.law import SUCCEEDED, count_failed_dependencies, count_not_executed
from resilisim.simulator.messages import WAIT, Message, execution
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.play import Draw, Dynamics
from resilisim.simulator.rulebook.rules import SUCCESS
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP_SIGNATURE,
    NO_LOOP,
    NUM_COUNTERS,
    NUM_FAILURES,
    RUNNING,
    TURNS_USED,
    EpisodeState,
    branches,
    has_succeeded,
    is_awaiting_closing,
    next_state,
    start_state,
)

MOST_ENTRIES = 20_000_000  # of a table of values: reference calls, turns, failures, failures in a row
MOST_STATES = 200_000  # that a reference may come to under a law with parts


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
        """Return the solution that calls these tools."""
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
        if self.problem.dynamics.has_sections:
            return _under_parts(self.problem, self.calls).value(state, done)
        failures = counters[NUM_FAILURES]
        chances = _chances(self.problem, rest, state.status)
        if min(chance[failures] for chance in chances) == 1.0:
            return 1.0
        row = counters[CONSECUTIVE_FAILURES] if rules.max_consecutive_failures else 0
        return float(_values(self.problem, rest, chances)[len(rest), turns_left, failures, row])

    def value_after(self, state: EpisodeState, done: int) -> float:
        """Return the same for a state that may have ended, which is worth 0."""
        return self.value(state, done) if state.counters[ENDED] == RUNNING else 0.0

    def action_value(self, state: EpisodeState, message: Message, done: int, brings_on: bool = False) -> float:
        """Return the chance if a message is sent next; `brings_on`: one more call is done if it succeeds."""
        return sum(
            chance * self.value_after(after, done + (brings_on and has_succeeded(state, message, after)))
            for chance, after in branches(self.problem, replace(state, hidden=()), message)
        )

    def waits(self, state: EpisodeState, done: int) -> bool:
        """Return whether letting a turn pass is better than making the next call."""
        if not self.problem.dynamics.has_sections or done == len(self.calls):
            return False
        return _under_parts(self.problem, self.calls).waits(state, done)


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


_Here = tuple[EpisodeState, int]  # a state, and how many calls are done
_NO_STATE = EpisodeState((), (), ())
_LOST, _COMPLETE = (_NO_STATE, 0), (_NO_STATE, 1)


class _UnderParts:
    """Values under a law with parts, of the states that were asked for and of those that follow."""

    def __init__(self, problem: Problem, dynamics: Dynamics, calls: tuple[int, ...]) -> None:
        self._problem, self._dynamics, self._calls = problem, dynamics, calls
        self._matters = [self._what_matters(done) for done in range(len(calls))]
        self._known: dict[_Here, float] = {_LOST: 0.0, _COMPLETE: 1.0}

    def value(self, state: EpisodeState, done: int) -> float:
        """Return the value of a running state."""
        first = self._simplified(state, done)
        layers = [{first: self._choices(first)}] if first not in self._known else [{}]
        size = len(self._known)
        while layers[-1]:
            following = {after for choices in layers[-1].values() for paths in choices for _, after in paths}
            layers.append({after: self._choices(after) for after in following if after not in self._known})
            size += len(layers[-1])
            if size > MOST_STATES:
                raise ExactLimitError(
                    f"a reference solution of {len(self._calls)} calls in {self._problem.rules.max_turns} turns "
                    f"under law {self._dynamics.numbers.law.name} reaches more than {MOST_STATES:,} states: expected "
                    "fewer turns"
                )
        for layer in reversed(layers):
            for here, choices in layer.items():
                self._known[here] = max(map(self._mean, choices))
        return self._known[first]

    def waits(self, state: EpisodeState, done: int) -> bool:
        """Return whether waiting is the better choice; a call is made where both are as good."""
        here = self._simplified(state, done)
        if self.value(state, done) == 0.0:
            return False
        call, *wait = map(self._mean, self._choices(here))
        return bool(wait) and wait[0] > call + TIE_TOLERANCE

    def _mean(self, paths: Sequence[tuple[float, _Here]]) -> float:
        return sum(chance * self._known[after] for chance, after in paths)

    def _choices(self, here: _Here) -> list[list[tuple[float, _Here]]]:
        """Return what the next call leads to, with chances, and what waiting does where it can help."""
        state, done = here
        messages = [execution(self._problem.library.names[self._calls[done]])]
        messages += [WAIT] if self._dynamics.rules.waiting_is_productive else []
        return [
            [
                (chance, self._simplified(after, done + has_succeeded(state, message, after)))
                for chance, after in branches(self._problem, state, message)
            ]
            for message in messages
        ]

    def _simplified(self, state: EpisodeState, done: int) -> _Here:
        """Forget what makes no difference to the calls that are left."""
        rules, rest, given = self._dynamics.rules, self._calls[done:], state.counters
        if given[ENDED] != RUNNING:
            return _LOST
        if not rest:
            return _COMPLETE
        turns_left = rules.max_turns - given[TURNS_USED]
        if turns_left < len(rest) or is_awaiting_closing(self._problem, state):
            return _LOST
        counters = [0] * NUM_COUNTERS
        counters[TURNS_USED], counters[NUM_FAILURES] = given[TURNS_USED], given[NUM_FAILURES]
        counters[LOOP_SIGNATURE] = NO_LOOP
        if given[CONSECUTIVE_FAILURES] + turns_left >= rules.max_consecutive_failures > 0:
            counters[CONSECUTIVE_FAILURES] = given[CONSECUTIVE_FAILURES]
        tools, places = self._matters[done]
        status = tuple(one if tool in tools else 0 for tool, one in enumerate(state.status))
        parts = tuple(one if place in places else 0 for place, one in enumerate(state.parts))
        return EpisodeState(status, tuple(counters), (0,) * len(status), parts), done

    def _what_matters(self, done: int) -> tuple[frozenset[int], frozenset[int]]:
        """Return the tools whose statuses make a difference to the calls that are left, and the places in `parts`."""
        rules, rest = self._dynamics.rules, self._calls[done:]
        tools = set(rest)
        tools |= {other for tool in rest for other in self._problem.dependencies[tool]}
        tools |= {tool for tool, facts in enumerate(self._dynamics.numbers.facts) if facts.is_opener}
        places = {rules.at_time}
        for tool in set(rest):
            places |= {at + tool for at in (rules.at_evidence, rules.at_block) if at >= 0}
            places |= {rules.at_rate + rules.rate_key[tool]} if rules.rate_key[tool] >= 0 else set()
            group = rules.at_outage + 2 * rules.group[tool]
            places |= {group, group + 1} if rules.group[tool] >= 0 else set()
        return frozenset(tools), frozenset(places)


@functools.lru_cache(maxsize=64)
def _under_parts(problem: Problem, calls: tuple[int, ...]) -> _UnderParts:
    return _UnderParts(problem, problem.dynamics, calls)


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
        solution, value = self.solution, self._value
        problem = solution.problem
        if message.kind != "execute" or is_awaiting_closing(problem, state):
            action_value = reached = float(outcome) if after.ended_by else solution.value_after(after, self.done)
        else:
            tool = problem.library.index(message.tool or "")
            is_next = self.done < len(solution.calls) and solution.calls[self.done] == tool
            action_value = solution.action_value(state, message, self.done, is_next)
            if refused:
                # The draw was a good one and counts as such: what the refusal cost is the call's own fault.
                reached = solution.value_after(after, self.done)
                action_value -= (
                    solution.value_after(self._had_it_worked(state, message, after), self.done + is_next) - reached
                )
            else:
                self.done += is_next and has_succeeded(state, message, after)
                reached = solution.value_after(after, self.done)
        self._value = reached
        return Judgement(value, action_value, reached, value - action_value)

    def _had_it_worked(self, state: EpisodeState, message: Message, after: EpisodeState) -> EpisodeState:
        """Return the state after a call that the tool itself refused, had it not."""
        dynamics, draw = self.solution.problem.dynamics, Draw(SUCCESS)
        if dynamics.rules.at_time >= 0:
            draw = Draw(SUCCESS, after.parts[dynamics.rules.at_time] - state.parts[dynamics.rules.at_time])
        return next_state(self.solution.problem, replace(state, hidden=()), message, draw)
