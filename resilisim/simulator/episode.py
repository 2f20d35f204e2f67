"""An episode: a state, the draws that drive it, and the record of what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from resilisim.errors import InvalidInputError, check_integer
from resilisim.seeding import EVALUATION_SALT, MAX_SEED
from resilisim.simulator.compiled import episode_luck_key, tool_luck_key
from resilisim.simulator.draws import KEYED, Draws
from resilisim.simulator.failures import Errors, Failure, PendingCall
from resilisim.simulator.law import TICKS_PER_SECOND
from resilisim.simulator.messages import Message
from resilisim.simulator.payloads import PayloadSize, made_up_output
from resilisim.simulator.problem import Problem, is_awaiting_closing
from resilisim.simulator.rulebook.dynamics import Draw
from resilisim.simulator.rulebook.rules import FAILURE, RESULTS
from resilisim.simulator.state import ENDED, RUNNING, EpisodeState
from resilisim.worlds.base import DoneCall, ToolError, Workspace, called


class Event(NamedTuple):
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
        forced: Whether its result was forced (`draws.Forced`), and no luck.

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
    output: Mapping[str, Any] = {}
    result: str | None = None
    seconds: float | None = None
    forced: bool = False

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

    Two things are handed in. *Where draws come from* (`draws.Draws`): the key, which is the default, a given branch, or
    the key but for forced calls. *Who does the work* of calls that the law lets through: a workspace (a world's, or
    anything that has `call(tool, parameters)`: a user's functions, a server), which may really fail; without one
    outputs are made up. Whoever does the work elsewhere, or later, does not `apply` a call but has it drawn first
    (`draw`) and enters afterwards what its work brought (`settle`); other messages can come between the two. The whole
    parameters of a call are what tells inputs apart.

    Attributes:
        problem: The task under its law and end rules.
        state: The state now.
        events: What each message did. A call that was drawn and is not settled yet is taken to have worked.
        unseen: What the state leaves open, as agents do not know it, and has happened here (what has run), as
            `EpisodeState.hidden` has it; empty if there is no such thing. The state of the end tells it.

    Raises:
        InvalidInputError: The seed is out of range.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import FINISH, Episode, build_problem, execution
        >>> problem = build_problem(default_library(), ["network_fetcher"])
        >>> episode = Episode(problem, "task_1", seed=0)
        >>> episode.apply(execution("network_fetcher")).success_probability
        0.8
        >>> _ = episode.apply(FINISH)
        >>> episode.ended_by
        'completion'
        >>> own = Episode(problem, "task_1", seed=1)
        >>> drawn = own.draw(execution("network_fetcher", {"source": "a.csv"}))
        >>> own.settle(drawn, {"rows": 3}).output
        {'rows': 3}
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
        draws: Draws = KEYED,
    ) -> None:
        check_integer("seed", seed, 0, MAX_SEED)
        self.problem = problem
        self._key = episode_luck_key(salt, seed, instance_id)
        self._draws = draws
        self.state, self.unseen = self._start()
        self.events: list[Event] = []
        self._drawn: list[Draw | None] = []  # what luck brought to each message
        self._tools: dict[str, tuple[int, tuple[int, int]]] = {}  # by name: index and luck key
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

    def fork(self, draws: Draws) -> Episode:
        """Return a copy that goes on by itself, its draws from elsewhere; none where a workspace does the work.

        Raises:
            InvalidInputError: A workspace does the work, which cannot be copied.
        """
        if self._workspace is not None:
            raise InvalidInputError("an episode in a world cannot be copied: expected one whose outputs are made up")
        fork = object.__new__(type(self))
        fork.__dict__.update(self.__dict__, events=[*self.events], _drawn=[*self._drawn], _draws=draws)
        return fork

    @property
    def ended_by(self) -> str | None:
        """What ended the episode, or None while it runs."""
        return self.state.ended_by

    def apply(self, message: Message) -> Event:
        """Let a message happen, and its work be done.

        Raises:
            RuntimeError: The episode has ended (a bug of the caller).
        """
        state, problem = self.state, self.problem
        if state.counters[ENDED] != RUNNING:
            self._refuse()
        if message.kind != "execute" or is_awaiting_closing(problem, state):
            return self._enter(message)
        call = self._called(message)
        draw, failure = self._draws.draw(call)
        output: Mapping[str, Any] = {}
        if self._workspace is not None and draw.runs:
            try:
                output = called(self._workspace, message.tool or "", message.parameters)
            except ToolError as error:  # where the answer is lost, nobody is told
                if failure is None:
                    failure = Failure(error.code, error.message, real=True)
                    draw = replace(draw, refused=True)
        elif failure is None:
            output = made_up_output(call, draw, self._payload)
        return self._enter(message, call.tool, draw, failure, output if failure is None else None)

    def draw(self, message: Message) -> Event:
        """Let a message happen whose work, if the law lets it through (`Event.success`), is done by the caller.

        It is taken to have worked until `settle` says what it brought. Messages count in the order in which they are
        drawn, whenever they are settled.

        Raises:
            RuntimeError: The episode has ended (a bug of the caller).
        """
        if self.state.counters[ENDED] != RUNNING:
            self._refuse()
        if message.kind != "execute" or is_awaiting_closing(self.problem, self.state):
            return self._enter(message)
        call = self._called(message)
        return self._enter(message, call.tool, *self._draws.draw(call))

    def settle(
        self, event: Event, output: Mapping[str, Any] | None = None, failure: tuple[str, str] | None = None
    ) -> Event:
        """Enter what the work of a drawn call brought, and return what the message has done then.

        If the tool itself failed, its draw was a good one, and the call counts as a failure from which the law learns
        that the tool works: the states after it are computed anew, with the draws of later calls as they were. So it is
        with one that failed where its answer would have been lost: it has run, and done nothing.

        Args:
            event: The call, as `draw` returned it.
            output: What it returned.
            failure: Code and words of the tool's own failure.

        Raises:
            RuntimeError: The law did not let the call through, or it has been settled (bugs of the caller).
        """
        place, draw = event.turn - 1, self._drawn[event.turn - 1]
        if draw is None or not (draw.passes or (draw.runs and failure is not None)) or self.events[place] is not event:
            raise RuntimeError(f"message {event.turn} is no call whose work is still to be done")
        if failure is None:
            settled = event._replace(output=output or {})
        else:
            self._drawn[place] = replace(draw, refused=True)
            result = RESULTS[FAILURE] if event.result is not None else None
            settled = event._replace(success=False, failure=Failure(*failure, real=True), result=result)
            self._replay()
        self.events[place] = settled
        return settled

    def extend(self, problem: Problem) -> None:
        """Go on in a problem whose library has more tools, behind those that were there; what happened has happened."""
        self.problem = problem
        self._replay()

    def _refuse(self) -> NoReturn:
        raise RuntimeError(f"the episode was ended by {self.ended_by}: reset before sending more messages")

    def _start(self) -> tuple[EpisodeState, tuple[int, ...]]:
        dynamics, hidden = self.problem.dynamics, self._draws.hidden
        is_kept = hidden == "kept" and (dynamics.rules.at_lost >= 0 or dynamics.rules.at_unsound >= 0)
        unseen = (0,) * dynamics.rules.num_hidden if is_kept else ()
        return dynamics.start(self._key if hidden == "drawn" else None), unseen

    def _called(self, message: Message) -> PendingCall:
        """Return the call that a message makes."""
        name = message.tool or ""
        called = self._tools.get(name)
        if called is None:
            called = self._tools[name] = self.problem.library.index(name), tool_luck_key(*self._key, name)
        tool, key = called
        return PendingCall(self.problem, self.state, tool, message, key, self._errors, self.unseen)

    def _enter(
        self,
        message: Message,
        tool: int = -1,
        draw: Draw | None = None,
        failure: Failure | None = None,
        output: Mapping[str, Any] | None = None,
    ) -> Event:
        state, dynamics, turn = self.state, self.problem.dynamics, len(self.events) + 1
        down = dynamics.next_down(self._key, state) if state.hidden else ()
        if draw is None:
            event, after = Event(turn, message), dynamics.after(state, message, tool, False, down)
        else:
            result = seconds = None
            if dynamics.has_sections:
                result = RESULTS[FAILURE if draw.refused else draw.result]
                seconds = draw.ticks / TICKS_PER_SECOND if dynamics.numbers.law.latency is not None else None
            event = Event(
                turn,
                message,
                message.tool,
                state.executions[tool] + 1,
                failure is None,
                dynamics.chance_of_success(state, tool, message),
                failure,
                output or {},
                result,
                seconds,
                draw.forced,
            )
            after = dynamics.after_execution(state, message, tool, draw, down)
            self._take_in(state, message, tool, draw)
        self.state = self._told_at_the_end(after)
        self.events.append(event)
        self._drawn.append(draw)
        return event

    def _replay(self) -> None:
        """Compute the state anew, from what luck brought to each message."""
        dynamics = self.problem.dynamics
        state, self.unseen = self._start()
        for event, draw in zip(self.events, self._drawn, strict=True):
            if state.ended_by:
                break
            tool = -1 if draw is None else self.problem.library.index(event.tool or "")
            if draw is not None:
                self._take_in(state, event.message, tool, draw)
            state = dynamics.after(state, event.message, tool, draw or False, dynamics.next_down(self._key, state))
        self.state = self._told_at_the_end(state)

    def _take_in(self, state: EpisodeState, message: Message, tool: int, draw: Draw) -> None:
        """Note what has run, where the state leaves it open."""
        if self.unseen:
            known = replace(state, hidden=self.unseen)
            self.unseen = self.problem.dynamics.after_execution(known, message, tool, draw, ()).hidden

    def _told_at_the_end(self, state: EpisodeState) -> EpisodeState:
        """Return a state with what it leaves open and has happened, if the episode has ended with it."""
        return replace(state, hidden=self.unseen) if self.unseen and state.ended_by is not None else state
