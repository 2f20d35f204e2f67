"""One episode of an LLM agent: its tools, its model, its limits, and what is written down about it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, TypeVar

from resilisim.chat import ChatMessage, ChatModel, ChatReply, ChatRequest, ContextOverflowError
from resilisim.chat.json_answers import without_thoughts
from resilisim.chat.models import RoleModels
from resilisim.chat.prices import PriceTable
from resilisim.chat.types import fitted
from resilisim.chat.under_way import REQUESTS_UNDER_WAY
from resilisim.envs.protocol.native_messages import AssistantMessage
from resilisim.envs.reply import Reply
from resilisim.envs.session import EpisodeEnded
from resilisim.errors import InvalidInputError
from resilisim.policies.agent_record import EVENT_KINDS, FAILING_COMPONENTS, WARNING_KINDS, Journal, Transcript
from resilisim.policies.llm.agent_options import LENGTHS, AgentOptions
from resilisim.policies.llm.reply_reading import EXCERPT_LENGTH, Unreadable, kept_words
from resilisim.policies.llm.templates import shared_text
from resilisim.policies.llm.tools import Toolbox
from resilisim.redaction import fit_to_show
from resilisim.seeding import Draws
from resilisim.tool_library.parameters import ParameterMode

_LOGGER = logging.getLogger("resilisim.agents")
_LOGGER.addHandler(logging.NullHandler())  # who wants to read along says so; the record has it all
CONTEXT_OVERFLOW: Final = "context_overflow"  # the limit that a conversation hits which is too long for its model
CUT_OFF: Final = "the reply was cut off, because it reached the limit of tokens: think and write less"

_UNSET: Final[Any] = object()

Reading = TypeVar("Reading")


class StopAgent(BaseException):
    """A limit of the agent is reached, so it stops; never to be caught by an agent."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class EpisodeHooks:
    """What whoever plays an episode hands to the agent, besides the environment.

    Attributes:
        identity: A text that tells the episode from others and nothing else (a hash): the scope of cached replies and
            the source of seeds sent to models.
        journal: Keeps replies; None keeps none.
        oracle: Says whether the task is done, given the agent's answer so far; None where agents may not know. Results
            of agents that ask are marked.
        restart: Begins a fresh episode on the same seed and returns its prompt; None where that is impossible.
    """

    identity: str = ""
    journal: Journal | None = None
    oracle: Callable[[str | None], bool] | None = None
    restart: Callable[[], Awaitable[str]] | None = None


@dataclass(slots=True)
class AgentRun:
    """What an agent has during one episode.

    Attributes:
        task: What there is to do, as the agent should read it.
        tools: The tools.
        models: Who answers each component.
        options: The agent's options.
        prompt: The whole first observation; the task if there is no environment.
        native: Whether the model should call tools natively.
        parameters: How the parameters of calls are checked.
        send_message: Sends a message to the environment; None where there is none.
        hooks: What the player of the episode offers.
        prices: Prices of models, for the record.
        transcript: What is written down.
        structure: The agent's own structure (plan, memory, ...), JSON values, for the record. It is to be kept up to
            date, because an episode may end inside any call of a tool.
        turn: Messages sent to the environment so far.
        turns_left: Turns that the environment still gives; None where there is no environment.
        turns_at_start: Turns that it gave at the start, and gives again in a fresh episode.
        terse: Whether prompt and replies are as short as can be, for a model that was trained on them as they are.
        oracle_was_asked: Whether the agent got hold of the oracle.
        fresh_trials: Whether the agent goes on in a fresh episode when the environment has ended one; set by the agent
            before it sends anything, where `hooks.restart` is offered.
        is_over: Whether the environment has ended the episode, so that nothing can be sent before `restart`; only
            agents with `fresh_trials` live to see it.
        answers: Whether the task asks for an answer, and calls do real work.
        fails_by_chance: Whether calls fail by chance.
        kept_answer: An answer that the agent holds back; it is given all the same if a limit stops the agent.
        given: Replies that stand in for the next ones of a component, whose model is not asked for them.

    Example:
        >>> from resilisim.chat import ScriptedChatModel
        >>> from resilisim.chat.models import RoleModels
        >>> from resilisim.policies.llm import AgentOptions, AgentRun
        >>> models = RoleModels(ScriptedChatModel(["Hello."]))
        >>> run = AgentRun("Say hello.", tools=None, models=models, options=AgentOptions())
    """

    task: str
    tools: Toolbox
    models: RoleModels
    options: AgentOptions
    prompt: str = ""
    native: bool = False
    parameters: ParameterMode = "strict"
    send_message: Callable[[AssistantMessage], Awaitable[Reply]] | None = None
    hooks: EpisodeHooks = field(default_factory=EpisodeHooks)
    prices: PriceTable = field(default_factory=PriceTable)
    transcript: Transcript = field(default_factory=Transcript)
    structure: dict[str, Any] = field(default_factory=dict)
    turn: int = 0
    turns_left: int | None = None
    turns_at_start: int | None = None
    terse: bool = False
    oracle_was_asked: bool = False
    fresh_trials: bool = False
    is_over: bool = False
    answers: bool = False
    fails_by_chance: bool = True
    kept_answer: str | None = None
    given: dict[str, list[str]] = field(default_factory=dict)

    def length(self, name: str) -> int:
        """Return one of the options that are lengths (`LENGTHS`), whether the agent has it or not."""
        stated: int | None = getattr(self.options, name, None)
        return LENGTHS[name][self.answers] if stated is None else stated

    @property
    def facts(self) -> str:
        """What every agent's prompt says about the tools, in the same words: parameters, failures, and turns left."""
        name = f"worlds/facts{'_chance' * self.fails_by_chance}" if self.answers else "facts"
        return shared_text(
            name,
            parameters=shared_text(f"parameters_{self.parameters}"),
            turns_left="not limited" if self.turns_left is None else str(self.turns_left),
        )

    async def ask(
        self,
        role: str,
        messages: Sequence[ChatMessage],
        *,
        stop: Sequence[str] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        temperature: float | None = _UNSET,
        top_p: float | None = _UNSET,
        max_tokens: int | None = _UNSET,
    ) -> ChatReply:
        """Ask the model of a component; what is left out of temperature, top_p and max_tokens is that of the options.

        The reply ends at a text of `stop`, also if the model went on. `StopAgent` if a limit of the agent is reached. A
        reply that was `given` is written down in the structure, and is no call.
        """
        if self.given.get(role):
            text = self.given[role].pop(0)
            self.structure.setdefault("given_replies", []).append({"role": role, "text": text})
            return ChatReply(text)
        self._check_limits()
        number = len(self.transcript.calls)
        request = ChatRequest(
            messages=tuple(messages),
            role=role,
            tools=tuple(tools),
            stop=tuple(stop),
            temperature=self.options.temperature if temperature is _UNSET else temperature,
            top_p=self.options.top_p if top_p is _UNSET else top_p,
            max_tokens=self.options.max_tokens if max_tokens is _UNSET else max_tokens,
            seed=Draws("resilisim/agents/seed", self.hooks.identity, number).below(2**31),
            cache_scope=f"{self.hooks.identity}#{number}",
        )
        request = self.models.asked(request)
        model = self.models.for_role(role)
        reply = await self._reply(model, number, request)
        cost = self.prices.cost_of_reply(model.name, reply)
        self.transcript.add_call(request, reply, model.name, self.turn, cost)
        stopped = _stopped(reply, request.stop)
        if stopped.is_cut:
            self.note("cut_reply", role, f"cut off after {reply.usage.completion_tokens:,} tokens")
            self.count("cut_replies")
        return stopped

    async def ask_until_read(
        self,
        role: str,
        messages: Sequence[ChatMessage],
        read: Callable[[str], Reading | Unreadable],
        again: Callable[[str], str],
        *,
        attempts: int = 2,
        shown: Callable[[str], str] = kept_words,
        counter: str = "malformed_replies",
    ) -> Reading | Unreadable:
        """Ask a component until its reply can be read; return what that is, or what was wrong with the last one.

        Of a reply that cannot be read the component is shown what `shown` keeps, and what `again` makes of the problem.
        Earlier ones are not repeated, so that the conversation does not grow.
        """
        conversation = list(messages)
        while True:
            reply = await self.ask(role, conversation)
            reading = read(reply.text)
            if not isinstance(reading, Unreadable):
                return reading
            reading = self.unreadable(role, reply, reading, counter)
            attempts -= 1
            if attempts <= 0:
                return reading
            answer = ChatMessage("assistant", shown(reply.text))
            conversation = [*messages, answer, ChatMessage("user", again(reading.problem))]

    async def _reply(self, model: ChatModel, number: int, request: ChatRequest) -> ChatReply:
        journal = self.hooks.journal
        try:
            kept = journal.recall(number, request) if journal is not None else None
            if kept is None:
                with REQUESTS_UNDER_WAY.one() as answered:
                    reply = fitted(await model.complete(request), request)
                    answered(reply)
            else:
                reply = kept
        except ContextOverflowError as error:
            # What the agent wrote is too long for its model: the agent's doing, not the endpoint's.
            component = request.role if request.role in FAILING_COMPONENTS else "agent"
            self.fail(component, f"the conversation is too long for the model: {error}")
            self._stop(CONTEXT_OVERFLOW, str(error))
        if journal is not None and kept is None:
            journal.keep(number, request, reply)
        return reply

    def _check_limits(self) -> None:
        options = self.options
        if len(self.transcript.calls) >= options.max_llm_calls:
            self._stop("max_llm_calls", f"{options.max_llm_calls} calls of the model were made")
        if options.max_total_tokens is not None and self.transcript.total_tokens >= options.max_total_tokens:
            self._stop("max_total_tokens", f"{self.transcript.total_tokens:,} tokens were used")

    def _stop(self, limit: str, text: str) -> NoReturn:
        self.note("limit", "agent", text, limit=limit)
        raise StopAgent(limit)

    async def send(self, message: AssistantMessage) -> Reply:
        """Send a message to the environment as it stands; `EpisodeEnded` if it was the last one."""
        if self.send_message is None:
            raise RuntimeError("this run has tools, but no environment to send messages to")
        if self.is_over:
            raise EpisodeEnded
        reply = await self.send_message(message)
        self.turn = int(reply.info.get("turn", self.turn + 1))
        if reply.ended and not self.fresh_trials:
            raise EpisodeEnded(reply)
        self.turns_left, self.is_over = reply.info.get("turns_left"), reply.ended
        return reply

    async def restart(self) -> str:
        """Begin a fresh episode on the same seed, and return its prompt."""
        if self.hooks.restart is None:
            raise InvalidInputError("fresh episodes need a player that can begin them, such as `evaluate`")
        prompt = await self.hooks.restart()
        self.turn, self.turns_left, self.is_over = 0, self.turns_at_start, False
        self.transcript.restarts += 1
        self.note("restart", "agent", "a fresh episode on the same seed")
        return prompt

    @property
    def oracle(self) -> Callable[[], bool] | None:
        """What says whether the task is done; asking it marks the results. None where agents may not know."""
        oracle = self.hooks.oracle
        if oracle is None:
            return None
        self.oracle_was_asked = True
        return lambda: oracle(self.kept_answer)

    def note(self, kind: str, component: str, text: str = "", **details: Any) -> None:
        """Write down an event of one of `record.EVENT_KINDS`, with JSON values; what is a warning is logged, too."""
        if kind not in EVENT_KINDS:
            raise ValueError(f"event kind {kind!r}: expected one of {', '.join(EVENT_KINDS)}")
        if "excerpt" in details:
            details["excerpt"] = str(details["excerpt"])[:EXCERPT_LENGTH]
        self.transcript.add_event(kind, component, text, self.turn, details)
        if kind in WARNING_KINDS:
            _LOGGER.warning("%s: %s: %s", component, kind, fit_to_show(text, one_line=True))

    def unreadable(
        self, component: str, reply: ChatReply, what: Unreadable, counter: str = "malformed_replies"
    ) -> Unreadable:
        """Write down that a reply could not be read, and return what its component is to be told.

        One that was cut off is told so, since its other problems may come from that.
        """
        problem = replace(what, problem=f"{CUT_OFF} ({what.problem})") if reply.is_cut else what
        self.note("malformed_reply", component, problem.problem, excerpt=problem.excerpt)
        self.count(counter)
        if what.is_strange:
            self.count("unknown_forms")
        return problem

    def fail(self, component: str, reason: str, excerpt: str = "", limit: str = "") -> None:
        """Write down that a component gave up; the first to do so is what a failed episode is put down to.

        `limit` names the option of the agent, such as "steps", whose number was used up.
        """
        if component not in FAILING_COMPONENTS:
            raise ValueError(f"component {component!r}: expected one of {', '.join(FAILING_COMPONENTS)}")
        details = {"excerpt": excerpt, "limit": limit}
        self.note("failure", component, reason, **{name: value for name, value in details.items() if value})

    @contextlib.contextmanager
    def open_failures(self) -> Iterator[dict[Any, tuple[str, ...]]]:
        """Collect what `fail` takes, by what could make it good; what is left at the end is written down, in order.

        The end may come in the midst of any call, because the environment ends the episode or a limit is reached.
        """
        failures: dict[Any, tuple[str, ...]] = {}
        try:
            yield failures
        finally:
            for failure in failures.values():
                self.fail(*failure)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter of the record, such as "replans"."""
        self.transcript.counters[name] += amount


def _stopped(reply: ChatReply, stop: Sequence[str]) -> ChatReply:
    """Return a reply that ends where it should have been stopped: not every endpoint obeys.

    What stands in thoughts that are over stops nothing.
    """
    shown = without_thoughts(reply.text, blanks=True) if stop else ""
    ends = [place for place in (shown.find(mark) for mark in stop) if place >= 0]
    return replace(reply, text=reply.text[: min(ends)], finish_reason="stop") if ends else reply
