"""The optimum by its definition: a recursion over every message in every reachable state, with no insight at all."""

from __future__ import annotations

import dataclasses

from resilisim.simulator import FINISH, STOP, EpisodeState, Message, Problem, execution, next_state, start_state
from resilisim.simulator.state import is_awaiting_closing, outcome, success_probability

UNPRODUCTIVE = (Message("search", query="a"), Message("search", query="b"), Message("format_error", text="?"))


def all_messages(problem: Problem) -> list[Message]:
    """Return every kind of message: each tool, both ways to end, and unproductive ones."""
    return [*(execution(name) for name in problem.library.names), FINISH, STOP, *UNPRODUCTIVE]


def canonical(state: EpisodeState) -> EpisodeState:
    """Leave out the numbers of executions, which choose the luck and do not change what is possible."""
    return dataclasses.replace(state, executions=(0,) * len(state.executions))


class BruteForce:
    """V* and Q* of a small problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.messages = all_messages(problem)
        self.values: dict[EpisodeState, float] = {}

    def value(self, state: EpisodeState) -> float:
        """Return V*(state)."""
        state = canonical(state)
        if state.ended_by is not None:
            return float(outcome(self.problem, state))
        if state not in self.values:
            self.values[state] = max(self.action_value(state, message) for message in self.messages)
        return self.values[state]

    def action_value(self, state: EpisodeState, message: Message) -> float:
        """Return Q*(state, message)."""
        if message.kind != "execute" or is_awaiting_closing(self.problem, state):
            return self.value(next_state(self.problem, state, message))
        chance = success_probability(self.problem, state, self.problem.library.index(message.tool or ""))
        won = self.value(next_state(self.problem, state, message, success=True))
        lost = self.value(next_state(self.problem, state, message, success=False))
        return chance * won + (1.0 - chance) * lost

    def solve(self) -> dict[EpisodeState, float]:
        """Return V* of every running state that can be reached."""
        self.value(start_state(self.problem))
        return self.values
