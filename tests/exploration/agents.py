"""Agents that are explored in tests: some repeat themselves, some do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from resilisim.envs import Session
from resilisim.seeding import Draws, hash_words
from resilisim.simulator import FINISH, Message, Problem, execution
from resilisim.simulator.problem import branches, start_state
from resilisim.simulator.state import EpisodeState
from resilisim.workflows import parse_plan

CALLS = 3  # of a tool, at most


def three_tries(session: Session) -> str:
    """Call the tools of the plan in order, each at most three times, and say that all is done."""
    for tool in parse_plan(session.prompt):
        for _ in range(CALLS):
            if session.call(tool).ok:
                break
    return "done"


def restless(session: Session) -> None:
    """Call another tool each time that the process is asked to play."""
    COUNTS.append(len(COUNTS))
    for tool in (session.tools[len(COUNTS) % 3], *session.tools[:3]):
        tool()


COUNTS: list[int] = []


class Whim:
    """Does what a hash of the state says: a function of the state, whose rate a recursion over the states gives."""

    privileged: ClassVar[bool] = True

    def __init__(self, salt: int = 0) -> None:
        self.salt = salt
        self.name = f"whim {salt}"

    def message(self, problem: Problem, state: EpisodeState) -> Message:
        """Return the message that is sent in a state: a call of any tool, or now and then the end."""
        choices = Draws("whim", self.salt, state.status, state.counters, state.executions, state.parts)
        if choices.uniform() < 0.05 or not problem.required_tools:
            return FINISH
        # Mostly what helps, so that rates are neither all 0 nor all alike.
        place = state.counters[3]
        if choices.uniform() < 0.75 and place < len(problem.required_tools):
            return execution(problem.required_tools[place])
        if place >= len(problem.required_tools):
            return FINISH
        return execution(choices.choice(problem.library.names))

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Forget nothing: there is nothing to forget."""

    def act(self, observation: str, info: Mapping[str, Any]) -> str:
        """Send the message of the state."""
        message = self.message(info["problem"], info["state"])
        return "<finish/>" if message.kind == "finish" else f"<tool_call>{message.tool}</tool_call>"

    def rate(self, problem: Problem, state: EpisodeState | None = None) -> float:
        """Return the success rate, by recursion over all that can happen."""
        state = start_state(problem) if state is None else state
        if state.ended_by is not None:
            ended_well = state.ended_by in ("completion", "stopped")
            return problem.dynamics.chance_done(state) if ended_well else 0.0
        return sum(
            chance * self.rate(problem, after)
            for chance, after in branches(problem, state, self.message(problem, state))
        )


def whims(number: int) -> Iterator[Whim]:
    """Yield different ones."""
    for salt in range(number):
        yield Whim(hash_words("whims", salt)[0])
