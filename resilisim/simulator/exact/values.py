"""What states and messages are worth: the questions that a solved problem answers, whichever algorithm solved it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from resilisim.simulator.messages import FINISH, Message
from resilisim.simulator.problem import Problem, branches, next_state, start_state
from resilisim.simulator.state import EpisodeState

Knowledge = Literal["observing", "informed"]

# Values closer than this count as equal when an action is chosen, so that ties do not hang on rounding.
TIE_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Choices:
    """The best that an agent can do in a state, but for calls that one of these is surely as good as.

    Attributes:
        value: V*, 0 if nothing can succeed any more; then there are no choices.
        tools: Library indices of tools whose call is best.
        outside: Kinds of outside tools to call, each by the library indices of the tools that it can be.
        waits: Whether waiting is best.
        finishes: Whether finishing is.
    """

    value: float
    tools: tuple[int, ...] = ()
    outside: tuple[tuple[int, ...], ...] = ()
    waits: bool = False
    finishes: bool = False


class Values(ABC):
    """A solved problem; `optimum.solve` chooses what solves it.

    Attributes:
        is_ceiling: Whether V* is the highest chance that there is; those of a program are what completing it is worth.
        problem: The problem.
        start_gap: How far V*(start) may.
        knowledge: What the best agent knows: the law and what it saw ("observing"), or what is hidden, too.
    """

    __slots__ = ()

    is_ceiling: ClassVar[bool] = True

    problem: Problem
    start_gap: float
    knowledge: Knowledge

    @property
    @abstractmethod
    def gap(self) -> float:
        """How far any value that was asked for so far may lie below the optimum: 0 where all are exact."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that the values of states take."""

    @abstractmethod
    def tells_apart(self, tool: int) -> bool:
        """Return whether more than a tool's chance and whether it has succeeded decides what calling it is worth."""

    @abstractmethod
    def value(self, state: EpisodeState) -> float:
        """Return V*(state), the highest probability of full success from a state that an episode can reach."""

    @abstractmethod
    def _candidates(self, state: EpisodeState) -> Iterable[Message]:
        """Return messages one of which has the highest Q* in a running state, of equals the preferred one first."""

    def best_action(self, state: EpisodeState) -> Message:
        """Return a message with the highest Q*; among equals the next required tool, then the order of the library.

        Where nothing can succeed any more, the next required tool is called all the same (or the episode finished, if
        only the closing message is left).
        """
        value = self.value(state)
        enough = value - TIE_TOLERANCE if self.gap == 0.0 else math.inf  # else none is known to be the best
        best, highest = FINISH, -1.0
        for message in self._candidates(state):
            worth = self._worth(state, message, enough)
            if worth >= enough:
                return message
            if worth > highest + TIE_TOLERANCE:
                best, highest = message, worth
        return best

    def _worth(self, state: EpisodeState, message: Message, enough: float) -> float:
        """Return Q*(state, message), or anything below `enough` if it is surely not as much as that."""
        return self.action_value(state, message)

    def is_best(self, state: EpisodeState, message: Message) -> bool:
        """Return whether no message is worth more in a running state, which takes less time than asking for its Q*."""
        enough = self.value(state) - TIE_TOLERANCE
        return self._worth(state, message, enough) >= enough

    def best_choices(self, state: EpisodeState) -> Choices:
        """Return the best choices in a running state."""
        worths = [(message, self.action_value(state, message)) for message in self._candidates(state)]
        best = max(worth for _, worth in worths)
        if best <= TIE_TOLERANCE:
            return Choices(0.0)
        chosen = [message for message, worth in worths if worth >= best - TIE_TOLERANCE]
        return Choices(
            best,
            tuple(self.problem.library.index(message.tool) for message in chosen if message.tool is not None),
            waits=any(message.kind == "wait" for message in chosen),
            finishes=any(message.kind == "finish" for message in chosen),
        )

    def bound(self, state: EpisodeState) -> float:
        """Return what V* of a running state is surely not above."""
        return self.value(state) + self.gap

    def action_value(self, state: EpisodeState, message: Message) -> float:
        """Return Q*(state, message): the highest probability of full success if this message is sent next."""
        return sum(chance * self.value(after) for chance, after in branches(self.problem, state, message))

    def judge(self, state: EpisodeState, message: Message, after: EpisodeState) -> tuple[float, float]:
        """Return Q*(state, message) and V*(after) of the state that the message led to."""
        return self.action_value(state, message), self.value(after)

    def after_search(self, searches: int) -> float:
        """Return V* after so many different searches at the start, 0.0 to 1.0.

        It is V* with that many turns fewer, and the most that is left to somebody who has to make these searches before
        the last required tool can succeed, whenever they are made: a search changes nothing but the turns left, and
        different ones are no loop (docs/decisions).
        """
        state = start_state(self.problem)
        for number in range(min(searches, self.problem.rules.max_turns)):
            state = next_state(self.problem, state, Message("search", query=str(number)))
        return self.value(state)

    def __repr__(self) -> str:
        """Return the problem and its value, without the values of other states."""
        value = self.value(start_state(self.problem))
        return f"{type(self).__name__}({self.problem}, {self.knowledge}, value={value:.6f}, gap={self.gap:.6f})"
