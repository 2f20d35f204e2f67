"""The optimum by its definition: a recursion over every message in every reachable state, with no insight at all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from resilisim.simulator import FINISH, Message, Problem, execution, start_state
from resilisim.simulator.messages import STOP
from resilisim.simulator.problem import is_awaiting_closing, next_state, outcome, success_probability
from resilisim.simulator.state import EpisodeState
from resilisim.tool_library import ToolLibrary

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


def small_library(
    dependencies: Mapping[str, Sequence[str]], probabilities: Mapping[str, float] | None = None
) -> ToolLibrary:
    """Build a library from its dependency lists and, where given, success probabilities."""
    tools = [
        {
            "name": name,
            "description": f"Tool {name}.",
            "dependencies": list(needed),
            "success_probability": (probabilities or {}).get(name),
        }
        for name, needed in dependencies.items()
    ]
    return ToolLibrary.from_json(json.dumps({"tools": tools}), source="test library")


@st.composite
def libraries(draw: st.DrawFn, max_tools: int = 4) -> ToolLibrary:
    """Draw a library with random acyclic dependencies and success probabilities."""
    names = ["tool_a", "tool_b", "tool_c", "tool_d", "tool_e"][: draw(st.integers(1, max_tools))]
    dependencies = {
        name: draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else []
        for place, name in enumerate(names)
    }
    probabilities = {
        name: probability
        for name in names
        if (probability := draw(st.sampled_from([None, None, 0.5, 0.9, 1.0]))) is not None
    }
    return small_library(dependencies, probabilities)
