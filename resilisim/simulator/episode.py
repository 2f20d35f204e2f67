"""An episode: a state, the luck that drives it, and the record of what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.seeding import EVALUATION_SALT, MAX_SEED, PURPOSE_SUCCESS, episode_key
from resilisim.simulator.compiled import draw_bits, tool_luck_key
from resilisim.simulator.failure_model import TICKS_PER_SECOND
from resilisim.simulator.messages import Message
from resilisim.simulator.outcomes import Errors, Failure, PayloadSize, drawn_failure, synthesised_output
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.draws import draw_execution, output_under_parts
from resilisim.simulator.rulebook.play import Dynamics
from resilisim.simulator.rulebook.rules import FAILURE, RESULTS
from resilisim.simulator.state import (
    EpisodeState,
    is_awaiting_closing,
    next_state,
    start_state,
    success_probability,
    success_threshold_at,
)
from resilisim.worlds.base import DoneCall, ToolError, Workspace, called


@dataclass(frozen=True, slots=True)
class Event:
    """What one message did.

    Attributes:
        turn: The message's number, from 1; the closing message is number max_turns + 1.
        message: The message.
        tool: Executed tool, or None if nothing was executed.
        attempt: Which execution of the tool this was, from 1.
        success: Whether the execution succeeded, or reported so.
        success_probability: The law's probability that it would, by what an agent can know.
        failure: The failure, if it failed: simulated, or real where a workspace does the work.
        output: Returned values, if it succeeded.
        result: Under a law with parts, what the execution brought, one of `rulebook.rules.RESULTS`.
        seconds: Under a law with latency, how long it took.

    Example:
        >>> from resilisim.simulator import FINISH, Event
        >>> Event(turn=3, message=FINISH).executed
        False
    """

    turn: int
    message: Message
    tool: str | None = None
    attempt: int | None = None
    success: bool | None = None
    success_probability: float | None = None
    failure: Failure | None = None
    output: Mapping[str, Any] = field(default_factory=dict)
    result: str | None = None
    seconds: float | None = None

    @property
    def executed(self) -> bool:
        """Whether the message executed a tool (a call in the closing message does not)."""
        return self.tool is not None

    @property
    def is_real_failure(self) -> bool:
        """Whether the tool itself failed, though the law let the call through."""
        return self.failure is not None and self.failure.real

    def done_call(self) -> DoneCall:
        """Return an execution as a world grades it."""
        failure = self.failure
        if failure is None:
            return DoneCall(self.tool or "", self.message.parameters, self.output)
        return DoneCall(self.tool or "", self.message.parameters, None, failure.code, injected=not failure.real)


class Episode:
    """One run of a task under a seed, 0 to 2^63 - 1; id, seed and salt are the key of its luck.

    With a workspace, calls that the law lets through really do something there, and may really fail.

    Raises:
        InvalidInputError: The seed is out of range.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import FINISH, Episode, build_problem, execution
        >>> episode = Episode(build_problem(default_library(), ["network_fetcher"]), "task_1", seed=0)
        >>> episode.apply(execution("network_fetcher")).success_probability
        0.8
        >>> _ = episode.apply(FINISH)
        >>> episode.ended_by
        'completion'
    """

    def __init__(
        self,
        problem: Problem,
        instance_id: str,
        seed: int,
        salt: str = EVALUATION_SALT,
        payload: PayloadSize = "compact",
        errors: Errors = "documented",
        workspace: Workspace | None = None,
    ) -> None:
        if not 0 <= seed <= MAX_SEED:
            raise InvalidInputError(f"seed {seed} is out of range: expected 0 to 2^63 - 1")
        self.problem = problem
        self._key = episode_key(salt, seed, instance_id)
        self.state: EpisodeState = start_state(problem, self._key)
        self.events: list[Event] = []
        self._tool_keys: dict[str, tuple[int, int]] = {}
        self._payload: PayloadSize = payload
        self._errors: Errors = errors
        self._workspace = workspace

    def __getstate__(self) -> dict[str, Any]:
        if self._workspace is not None and self.ended_by is None:
            raise InvalidInputError(
                "an episode in a world is under way, and what its tools work on cannot be copied: expected a copy "
                "before reset or after the end"
            )
        return {**self.__dict__, "_workspace": None}

    @property
    def ended_by(self) -> str | None:
        """What ended the episode, or None while it runs."""
        return self.state.ended_by

    def apply(self, message: Message) -> Event:
        """Let a message happen.

        Raises:
            RuntimeError: The episode has ended (a bug of the caller).
        """
        if self.ended_by is not None:
            raise RuntimeError(f"the episode was ended by {self.ended_by}: reset before sending more messages")
        turn = len(self.events) + 1
        if message.kind == "execute" and not is_awaiting_closing(self.problem, self.state):
            event = self._execute(turn, message)
        elif self.problem.dynamics is not None:
            down = self.problem.dynamics.next_down(self._key, self.state)
            self.state = self.problem.dynamics.after(self.state, message, -1, False, down)
            event = Event(turn, message)
        else:
            self.state = next_state(self.problem, self.state, message)
            event = Event(turn, message)
        self.events.append(event)
        return event

    def _execute(self, turn: int, message: Message) -> Event:
        name = message.tool or ""
        tool = self.problem.library.index(name)
        key = self._tool_keys.get(name)
        if key is None:
            key = self._tool_keys[name] = tool_luck_key(*self._key, name)
        attempt = self.state.executions[tool]
        if self.problem.dynamics is not None:
            return self._execute_with_parts(self.problem.dynamics, turn, message, tool, key)
        luck_bits = draw_bits(*key, attempt, PURPOSE_SUCCESS)
        probability = success_probability(self.problem, self.state, tool)
        success = luck_bits < success_threshold_at(self.problem, self.state, tool)
        failure: Failure | None = None
        output: Mapping[str, Any] = {}
        if success and self._workspace is not None:
            try:
                output = called(self._workspace, name, message.parameters)
            except ToolError as error:
                success, failure = False, Failure(error.code, error.message, real=True)
        elif success:
            output = synthesised_output(self.problem.library[tool], key, attempt, self._payload)
        else:
            failure = drawn_failure(self.problem, self.state, tool, luck_bits, key, attempt, self._errors)
        self.state = next_state(self.problem, self.state, message, success)
        return Event(turn, message, name, attempt + 1, success, probability, failure, output)

    def _execute_with_parts(
        self, dynamics: Dynamics, turn: int, message: Message, tool: int, key: tuple[int, int]
    ) -> Event:
        state, name = self.state, message.tool or ""
        draw, failure = draw_execution(self.problem, dynamics, state, tool, message, key, self._errors)
        attempt = state.executions[tool]
        output: Mapping[str, Any] = {}
        success = failure is None
        if success and self._workspace is not None:
            try:
                output = called(self._workspace, name, message.parameters)
            except ToolError as error:
                success, failure = False, Failure(error.code, error.message, real=True)
                draw = replace(draw, refused=True)
        elif success:
            output = synthesised_output(self.problem.library[tool], key, attempt, self._payload)
            output = output_under_parts(self.problem, dynamics, state, tool, draw, output, key)
        probability = dynamics.chance_of_success(state, tool, message)
        self.state = dynamics.after(state, message, tool, draw, dynamics.next_down(self._key, state))
        seconds = draw.ticks / TICKS_PER_SECOND if dynamics.numbers.law.latency is not None else None
        result = RESULTS[FAILURE if draw.refused else draw.result]
        return Event(turn, message, name, attempt + 1, success, probability, failure, output, result, seconds)
