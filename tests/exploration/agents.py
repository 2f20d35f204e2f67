"""Agents that are explored in tests: some repeat themselves, some do not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from resilisim.envs import Session
from resilisim.policies.scripted import ReferencePolicy
from resilisim.seeding import Draws, hash_words
from resilisim.simulator import FINISH, Message, Problem, execution
from resilisim.simulator.problem import branches, start_state
from resilisim.simulator.state import EpisodeState, has_succeeded
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


class TwoTries(ReferencePolicy):
    """Plays the reference solution of a world's task, each call at most twice; it gives up where both failed."""

    name = "two tries"

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Read the solution."""
        super().reset(observation, info)
        self._tries = 0

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Return the next call, or the answer; None to give up."""
        time.sleep(0.01)  # somebody kills a run of it halfway
        left = len(self._calls)
        message = super().act(observation, info)
        self._tries = self._tries + 1 if len(self._calls) == left else 1
        return None if self._tries > 2 else message

    @classmethod
    def rate(cls, problem: Problem, program: Sequence[str], state: EpisodeState | None = None, tries: int = 0) -> float:
        """Return the success rate, by recursion over all that can happen to the calls of a program."""
        state = start_state(problem) if state is None else state
        if not program:
            return 1.0
        if tries == 2 or state.ended_by is not None:
            return 0.0
        message, rate = execution(program[0]), 0.0
        for chance, after in branches(problem, state, message):
            rest, tried = (program[1:], 0) if has_succeeded(state, message, after) else (program, tries + 1)
            rate += chance * cls.rate(problem, rest, after, tried)
        return rate
