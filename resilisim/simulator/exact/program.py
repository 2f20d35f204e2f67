"""What messages are worth in a world: measured by the task's reference solution, exactly, under the law.

V of a state is the chance of completing the rest of the reference solution within the turns: its calls in order, each
again until it goes through, then the answer. Under a law with parts turns pass between them where that helps, by what
an agent can know (`EpisodeState.parts`). A shorter way may exist, so V is no upper bound: an agent that finds one has
regret below 0 where it shows. What stays exact is luck, V(s') - Q(s, a), which has mean zero for every agent, and the
sum 1 - outcome = (1 - V(start)) + sum of regret - sum of luck.

An agent has done a call of the reference once it has made the next one's tool succeed, whatever the parameters: whether
they were right shows in the answer. How many are done stands in the state, as the transition counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from resilisim.errors import ExactLimitError
from resilisim.simulator.exact.values import Knowledge, Values
from resilisim.simulator.messages import FINISH, WAIT, Message, execution
from resilisim.simulator.problem import Problem, branches, is_awaiting_closing
from resilisim.simulator.state import (
    CONSECUTIVE_FAILURES,
    ENDED,
    LOOP_SIGNATURE,
    NEXT_PLACE,
    NO_LOOP,
    NUM_COUNTERS,
    NUM_FAILURES,
    RUNNING,
    TURNS_USED,
    EpisodeState,
)

MOST_STATES = 200_000  # that a reference may come to


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProgramValues(Values):
    """The values of a program: of completing the rest of its calls. Who grades the episode is somebody else.

    Attributes:
        calls: Tool indices in order; a tool may stand there several times.

    Raises:
        ExactLimitError: There would be too many states.
    """

    is_ceiling: ClassVar[bool] = False

    problem: Problem
    calls: tuple[int, ...]
    gap: float = field(init=False, default=0.0)
    start_gap: float = field(init=False, default=0.0)
    knowledge: Knowledge = field(init=False, default="observing")
    _reached: _Reached = field(init=False)

    def __post_init__(self) -> None:
        """Refuse what is too large."""
        rules, num_calls = self.problem.rules, len(self.calls)
        most_failures = max(rules.max_turns - num_calls, 0) + 1
        if num_calls * most_failures * max(min(rules.max_consecutive_failures, most_failures), 1) > MOST_STATES:
            raise ExactLimitError(
                f"a reference solution of {num_calls} calls in {rules.max_turns} turns is too large to be solved"
            )
        object.__setattr__(self, "_reached", _Reached(self.problem, self.calls))

    @property
    def nbytes(self) -> int:
        """About as many bytes as states that were reached take."""
        return 1000 * (1 + self._reached.num_states)

    def tells_apart(self, tool: int) -> bool:
        """Return whether the program calls a tool."""
        return tool in self.calls

    def value(self, state: EpisodeState) -> float:
        """Return the chance of completing the program from a state; 0 of one that has ended."""
        return self._reached.value(state)

    def action_value(self, state: EpisodeState, message: Message) -> float:
        """Return the chance if a message is sent next."""
        return Values.action_value(self, replace(state, hidden=()), message)

    def _candidates(self, state: EpisodeState) -> Iterable[Message]:
        """Return the signal if that is all that is left, else the next call, and waiting where time can help."""
        done = state.counters[NEXT_PLACE]
        if done == len(self.calls) or is_awaiting_closing(self.problem, state):
            return [FINISH]
        call = execution(self.problem.library.names[self.calls[done]])
        return [call, WAIT] if self.problem.dynamics.rules.waiting_is_productive else [call]


_LOST, _COMPLETE = EpisodeState((), (0,), ()), EpisodeState((), (1,), ())  # stand for all that are


class _Reached:
    """Values of the states that were asked for and of those that follow, found layer by layer, the last one first."""

    def __init__(self, problem: Problem, calls: tuple[int, ...]) -> None:
        self._problem, self._calls = problem, calls
        self._matters = [self._what_matters(done) for done in range(len(calls))]
        self._known: dict[EpisodeState, float] = {_LOST: 0.0, _COMPLETE: 1.0}

    @property
    def num_states(self) -> int:
        """How many states have a value of their own."""
        return len(self._known) - 2

    def value(self, state: EpisodeState) -> float:
        """Return the value of a running state."""
        first = self._simplified(state)
        layers = [{first: self._choices(first)}] if first not in self._known else [{}]
        size = len(self._known)
        while layers[-1]:
            following = {after for choices in layers[-1].values() for paths in choices for _, after in paths}
            layers.append({after: self._choices(after) for after in following if after not in self._known})
            size += len(layers[-1])
            if size > MOST_STATES:
                raise ExactLimitError(
                    f"a reference solution of {len(self._calls)} calls in {self._problem.rules.max_turns} turns "
                    f"under law {self._problem.dynamics.numbers.law.name} reaches more than {MOST_STATES:,} states: "
                    "expected fewer turns"
                )
        for layer in reversed(layers):
            for here, choices in layer.items():
                self._known[here] = max(map(self._mean, choices))
        return self._known[first]

    def _mean(self, paths: Sequence[tuple[float, EpisodeState]]) -> float:
        return sum(chance * self._known[after] for chance, after in paths)

    def _choices(self, state: EpisodeState) -> list[list[tuple[float, EpisodeState]]]:
        """Return what the next call leads to, with chances, and what waiting does where it can help."""
        messages = [execution(self._problem.library.names[self._calls[state.counters[NEXT_PLACE]]])]
        messages += [WAIT] if self._problem.dynamics.rules.waiting_is_productive else []
        return [
            [(chance, self._simplified(after)) for chance, after in branches(self._problem, state, message)]
            for message in messages
        ]

    def _simplified(self, state: EpisodeState) -> EpisodeState:
        """Forget what makes no difference to the calls that are left."""
        rules, given = self._problem.dynamics.rules, state.counters
        if given[ENDED] != RUNNING:
            return _LOST
        done = given[NEXT_PLACE]
        rest = self._calls[done:]
        if not rest:
            return _COMPLETE
        turns_left = rules.max_turns - given[TURNS_USED]
        if turns_left < len(rest) or is_awaiting_closing(self._problem, state):
            return _LOST
        counters = [0] * NUM_COUNTERS
        counters[TURNS_USED], counters[NUM_FAILURES] = given[TURNS_USED], given[NUM_FAILURES]
        counters[LOOP_SIGNATURE], counters[NEXT_PLACE] = NO_LOOP, done
        if given[CONSECUTIVE_FAILURES] + turns_left >= rules.max_consecutive_failures > 0:
            counters[CONSECUTIVE_FAILURES] = given[CONSECUTIVE_FAILURES]
        tools, places = self._matters[done]
        status = tuple(one if tool in tools else 0 for tool, one in enumerate(state.status))
        parts = tuple(one if place in places else 0 for place, one in enumerate(state.parts))
        return EpisodeState(status, tuple(counters), (0,) * len(status), parts)

    def _what_matters(self, done: int) -> tuple[frozenset[int], frozenset[int]]:
        """Return the tools whose statuses make a difference to the calls that are left, and the places in `parts`."""
        rules, rest = self._problem.dynamics.rules, self._calls[done:]
        tools = set(rest)
        tools |= {other for tool in rest for other in self._problem.dependencies[tool]}
        tools |= {tool for tool, facts in enumerate(self._problem.dynamics.numbers.facts) if facts.is_opener}
        places = {rules.at_time}
        for tool in set(rest):
            places |= {at + tool for at in (rules.at_evidence, rules.at_block) if at >= 0}
            places |= {rules.at_rate + rules.rate_key[tool]} if rules.rate_key[tool] >= 0 else set()
            group = rules.at_outage + 2 * rules.group[tool]
            places |= {group, group + 1} if rules.group[tool] >= 0 else set()
        return frozenset(tools), frozenset(places)
