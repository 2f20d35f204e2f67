"""An agent with a language model: a loop of its own that plays a session, and, for loops by hand, a policy."""

from __future__ import annotations

import asyncio
import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, ClassVar, Generic, TypeVar

from resilisim.chat import ChatModel
from resilisim.chat.models import RoleModels
from resilisim.chat.prices import PriceTable
from resilisim.chat.request_options import read_request_options
from resilisim.chat.types import ToolCall
from resilisim.envs.protocol.completion_signal import finish_message
from resilisim.envs.protocol.native_messages import AssistantMessage, openai_message
from resilisim.envs.protocol.native_tools import native_tools
from resilisim.envs.reply import Info, Reply, public_info
from resilisim.envs.session import EpisodeEnded, Session
from resilisim.errors import InvalidInputError, fault_of
from resilisim.policies.agent_record import AGENT_SCHEMA, AgentRecord, Journal
from resilisim.policies.base import AgentFailed, is_ours
from resilisim.policies.llm.agent_options import LENGTHS, AgentOptions, read_options
from resilisim.policies.llm.agent_run import AgentRun, EpisodeHooks, StopAgent
from resilisim.policies.llm.conversation_toolbox import ConversationToolbox
from resilisim.policies.llm.templates import PromptTexts, load_prompts, packaged_prompts
from resilisim.provenance import content_hash
from resilisim.workflows.prompts import FINISH_FORMS

Options = TypeVar("Options", bound=AgentOptions)
Send = Callable[[AssistantMessage | None], Awaitable[Reply]]


class LlmPolicy(ABC, Generic[Options]):
    """An LLM agent.

    A subclass says in `play` what the agent does; nothing of an episode lives on the object. The agent plays a session
    by itself (`play_session`); `reset` and `act` are for loops by hand, which ask for one message after the other.

    Args:
        models: Who answers: one model, or one for each component.
        prices: Prices of models, for the record.
        **options: The agent's options, by name; values or their texts.

    Attributes:
        options: The options.
        prompts: The prompts.

    Raises:
        InvalidInputError: There is no model, or an option is unknown or out of range.

    Example:
        >>> from resilisim.chat import ScriptedChatModel
        >>> from resilisim.policies.llm import LlmPolicy
        >>> class Finisher(LlmPolicy):
        ...     async def play(self, run):
        ...         return "done"
        >>> Finisher(ScriptedChatModel([]), max_llm_calls=5).options.max_llm_calls
        5
    """

    name: ClassVar[str] = "agent"
    privileged: ClassVar[bool] = False
    options_class: ClassVar[type[Any]] = AgentOptions
    components: ClassVar[tuple[str, ...]] = ("agent",)
    uses_native_calls: ClassVar[bool] = False
    # How its model ends the episode where it reads the environment's replies, in the form that it writes.
    finish_form: ClassVar[str] = ""

    # Here, because an object whose options are refused is collected, too.
    _asked: _Asked | None = None
    _runner: asyncio.Runner | None = None

    def __init__(
        self, models: RoleModels | ChatModel | None = None, *, prices: PriceTable | None = None, **options: object
    ) -> None:
        self.options: Options = read_options(self.options_class, options, f"policy {self.name!r}")
        self.prompts: PromptTexts = load_prompts(
            packaged_prompts(type(self).__module__), self.options.templates, self.options.examples
        )
        if models is None:
            raise InvalidInputError(
                f"policy {self.name!r} needs a language model: name one, such as --model openai:gpt-4o-mini"
            )
        own = self.options.model_options.split(";")
        self.models = (models if isinstance(models, RoleModels) else RoleModels(models)).with_options(
            read_request_options(filter(str.strip, own), f"policy {self.name!r}: option model_options")
        )
        self._prices = PriceTable() if prices is None else prices

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Name an agent by its class if it names itself not."""
        super().__init_subclass__(**arguments)
        if "name" not in vars(cls) and cls.name == LlmPolicy.name:
            cls.name = cls.__name__

    @abstractmethod
    async def play(self, run: AgentRun) -> str | None:
        """Do a task: return the answer, which makes the policy signal completion, or None to stop without one.

        Raises:
            EpisodeEnded: The environment ended the episode.
            StopAgent: A limit of the agent is reached.
            InfrastructureError: The endpoint is down.
        """

    async def play_session(
        self, session: Session, *, identity: str = "", journal: Journal | None = None
    ) -> AgentRecord:
        """Play a session to its end, and return what the agent did; many can be under way at once with the same agent.

        `identity` tells the episode from others and nothing else (a hash). The `journal` keeps the model's replies
        while the episode is under way: where an endpoint breaks down, what was answered so far is in it.
        """

        async def send(message: AssistantMessage | None) -> Reply:
            return await session.beside(lambda: session.send(message))

        async def restart() -> str:
            return session.restart().text

        hooks = EpisodeHooks(identity, journal, session.oracle, restart)
        return await self._fresh()._played(session.reply, send, hooks)

    def reset(self, observation: str, info: Info) -> None:
        """Begin an episode by hand."""
        self._drop_episode()
        self._asked = _Asked(self._fresh(), _told(observation, info))

    def act(self, observation: str, info: Info) -> AssistantMessage | None:
        """Return the next message, or None to stop; after the end, the same again."""
        if self._asked is None:
            raise RuntimeError("call reset before act")
        if self._runner is None:
            self._runner = asyncio.Runner()
        message = self._runner.run(self._asked.next_message(_told(observation, info)))
        return openai_message(message) if isinstance(message, ToolCall) else message

    def close(self) -> None:
        """Let go of the event loop that `act` uses; what is under way is given up."""
        runner, self._runner = self._runner, None
        self._drop_episode()
        if runner is not None:
            runner.run(self.aclose())
            runner.close()

    async def aclose(self) -> None:
        """Close the models' connections; the next request opens new ones."""
        await self.models.aclose()

    def __del__(self) -> None:
        # A loop by hand knows nothing of `close`, and a task that is collected while it waits is told as an error.
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.close()
        else:  # where no other one can run
            if self._runner is not None:
                self._runner.get_loop().close()

    def _drop_episode(self) -> None:
        if self._asked is not None:
            self._asked.drop()
            self._asked = None

    def _fresh(self) -> LlmPolicy[Options]:
        """Return the agent for one episode: a copy, which holds neither what `play` puts on it nor an event loop."""
        player = copy.copy(self)
        player._runner = player._asked = None
        return player

    async def _played(self, start: Reply, send: Send, hooks: EpisodeHooks) -> AgentRecord:
        """Play an episode over whatever answers messages, to its end."""
        run = self._run(start, send, hooks)
        try:
            ended_by, answer = await self._outcome(run)
        except Exception as error:
            if is_ours(self) or fault_of(error) in ("bug", "infrastructure"):
                raise
            raise AgentFailed.of(self.name, error, self._record(run, "agent_error", None)) from error
        if ended_by != "environment" and not run.is_over:
            closing = (
                None if answer is None else finish_message(run.native, answer if start.info.get("answers") else None)
            )
            while not (await send(closing)).ended:
                pass
        return self._record(run, ended_by, answer)

    def _run(self, start: Reply, send: Send, hooks: EpisodeHooks) -> AgentRun:
        info = start.info
        native = self.uses_native_calls and info.get("protocol") == "native"
        form = FINISH_FORMS["native"] if native and self.finish_form else self.finish_form
        run = AgentRun(
            task=start.work,
            tools=ConversationToolbox(
                lambda message: run.send(message),
                start.work,
                native,
                form,
                info.get("listed") or info.get("functions") or native_tools(offers_wait=info.get("offers_wait", False)),
            ),
            models=self.models,
            options=self.options,
            prompt=start.text,
            native=native,
            parameters=info.get("parameters", "lenient"),
            send_message=send,
            hooks=hooks,
            prices=self._prices,
            turns_left=info.get("turns_left"),
            turns_at_start=info.get("turns_left"),
            answers=info.get("answers", False),
            fails_by_chance=info.get("fails_by_chance", True),
            terse=info.get("terse", False),
        )
        return run

    async def _outcome(self, run: AgentRun) -> tuple[str, str | None]:
        """Return how the loop ended, and its answer: also one that it had kept back when a limit stopped it."""
        try:
            answer = await self.play(run)
        except EpisodeEnded:
            return "environment", None
        except StopAgent as stop:
            answer, ended_by = run.kept_answer, stop.limit
        else:
            ended_by = "gave_up" if answer is None else "answer"
        if run.is_over:  # and nobody can be given an answer any more
            return "environment" if ended_by in ("gave_up", "answer") else ended_by, None
        if answer is not None:
            run.note("answer", "agent", answer)
        return ended_by, answer

    def _record(self, run: AgentRun, ended_by: str, answer: str | None) -> AgentRecord:
        transcript = run.transcript
        options = asdict(self.options)
        options |= {name: run.length(name) for name in LENGTHS.keys() & options}
        return {
            "schema": AGENT_SCHEMA,
            "architecture": type(self).name,
            "options": options,
            "prompts": self.prompts.hash,
            "protocol": "native" if run.native else "text",
            "models": self.models.identities(),
            **({"model_options": {r: dict(f) for r, f in self.models.options.items()}} if self.models.options else {}),
            "messages": transcript.messages,
            "calls": transcript.calls,
            "events": transcript.events,
            "counters": dict(transcript.counters),
            "components": transcript.components(self.components),
            "first_failure": transcript.first_failure(),
            "structure": run.structure,
            "answer": answer,
            "ended_by": ended_by,
            "restarts": transcript.restarts,
            "oracle": run.oracle_was_asked,
        }


class _Asked:
    """An episode by hand: the agent's loop as a task, which waits at each message until it is asked for the next."""

    def __init__(self, agent: LlmPolicy[Any], start: Reply) -> None:
        # Without a player the prompt alone tells episodes apart.
        hooks = EpisodeHooks(identity=content_hash(start.observation))
        self._playing = functools.partial(agent._played, start, self._send, hooks)
        self._task: asyncio.Task[AgentRecord] | None = None
        self._outgoing: asyncio.Future[AssistantMessage | None] | None = None
        self._incoming: asyncio.Future[Reply] | None = None

    async def next_message(self, reply: Reply) -> AssistantMessage | None:
        """Give the environment's reply to the loop and return what it sends next."""
        loop = asyncio.get_running_loop()
        self._outgoing = loop.create_future()
        if self._task is None:
            self._task = loop.create_task(self._playing())
        elif self._incoming is not None and not self._incoming.done():
            self._incoming.set_result(reply)
        await asyncio.wait((self._task, self._outgoing), return_when=asyncio.FIRST_COMPLETED)
        if not self._outgoing.done():
            self._task.result()  # raises what the loop raised
        return self._outgoing.result()

    async def _send(self, message: AssistantMessage | None) -> Reply:
        """Hand over a message from within the loop, and wait for the reply."""
        if self._outgoing is None:
            raise RuntimeError("nobody has asked for a message")
        self._incoming = asyncio.get_running_loop().create_future()
        self._outgoing.set_result(message)
        return await self._incoming

    def drop(self) -> None:
        """Stop the loop without waiting for it."""
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()


def _told(observation: str, info: Info) -> Reply:
    """Return what an agent is told: a loop by hand passes on all that the environment says."""
    return Reply(observation, public_info(info))
