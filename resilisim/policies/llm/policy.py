"""From an agent, which is a loop that calls tools, to a policy, which is asked for one message after the other.

The loop runs as a task. Where it sends a message it waits until the policy is asked again with the environment's reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

from resilisim.chat import ChatModel, RoleModels
from resilisim.chat.middleware import PriceTable
from resilisim.envs.conversation import public_info
from resilisim.envs.feedback import FINISH_HINT
from resilisim.errors import InvalidInputError
from resilisim.policies.base import Info
from resilisim.policies.llm.conversation import (
    Action,
    ConversationToolbox,
    Reply,
    finish_action,
    observation_text,
    task_of,
)
from resilisim.policies.llm.options import AgentOptions, read_options
from resilisim.policies.llm.record import AGENT_SCHEMA, AgentRecord
from resilisim.policies.llm.run import AgentRun, EpisodeEnded, EpisodeHooks, StopAgent
from resilisim.policies.llm.templates import PromptTexts, load_prompts, packaged_prompts
from resilisim.provenance import content_hash

Options = TypeVar("Options", bound=AgentOptions)


class LlmPolicy(ABC, Generic[Options]):
    """A policy that is an LLM agent.

    A subclass says in `play` what the agent does; nothing of an episode lives on the object.

    Args:
        models: Who answers: one model, or one for each component.
        prices: Prices of models, for the record.
        **options: The agent's options, by name; values or their texts.

    Attributes:
        options: The options.
        prompts: The prompts.

    Raises:
        InvalidInputError: There is no model, or an option is unknown or out of range.
    """

    name: ClassVar[str] = "agent"
    privileged: ClassVar[bool] = False
    options_class: ClassVar[type[Any]] = AgentOptions
    components: ClassVar[tuple[str, ...]] = ("agent",)
    uses_native_calls: ClassVar[bool] = False
    # How its model ends the episode where it reads the environment's replies, in the form that it writes.
    finish_form: ClassVar[str] = ""

    # Here, because an object whose options are refused is collected, too.
    _episode: _Episode | None = None
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
        self.models = models if isinstance(models, RoleModels) else RoleModels(models)
        self._prices = PriceTable() if prices is None else prices
        self._hooks: EpisodeHooks | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Name an agent by its class if it names itself not."""
        super().__init_subclass__(**arguments)
        if "name" not in vars(cls) and cls.name == LlmPolicy.name:
            cls.name = cls.__name__

    @abstractmethod
    async def play(self, run: AgentRun) -> str | None:
        """Do a task.

        Args:
            run: The episode: task, tools, model.

        Returns:
            The answer, which makes the policy signal completion; None to stop without one.

        Raises:
            EpisodeEnded: The environment ended the episode.
            StopAgent: A limit of the agent is reached.
            InfrastructureError: The endpoint is down.
        """

    def prepare(self, hooks: EpisodeHooks) -> None:
        """Say what the next episode is, before `reset`."""
        self._hooks = hooks

    def reset(self, observation: str, info: Info) -> None:
        """Begin an episode."""
        self._drop_episode()
        # Without a player the prompt alone tells episodes apart.
        hooks = self._hooks or EpisodeHooks(identity=content_hash(observation))
        self._hooks = None
        # The loop gets a copy: who drops the policy in the middle of an episode leaves no cycle that holds the loop.
        player = copy.copy(self)
        player._runner = None
        self._episode = _Episode(player, hooks, self._prices)

    async def aact(self, observation: str, info: Info) -> Action | None:
        """Return the next message, or None to stop."""
        if self._episode is None:
            raise RuntimeError("call reset before act")
        return await self._episode.next_action(observation, info)

    async def after_end(self, observation: str, info: Info) -> Action | None:
        """Tell an agent that may begin fresh episodes that the environment has ended this one.

        Returns:
            The first message of the fresh episode, None to stop in it; None, too, if the agent began none.
        """
        if self._episode is None:
            raise RuntimeError("call reset before after_end")
        return await self._episode.after_end(observation, info)

    def act(self, observation: str, info: Info) -> Action | None:
        """Return the next message, or None to stop; for loops that are not asynchronous themselves."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self.aact(observation, info))

    async def conclude(self, observation: str, info: Info) -> AgentRecord:
        """Tell the agent that the environment has ended the episode, and return what it did."""
        if self._episode is None:
            raise RuntimeError("call reset before conclude")
        episode, self._episode = self._episode, None
        return await episode.conclude(observation, info)

    async def abandon(self) -> None:
        """Stop an episode that nobody will finish."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.cancel()

    def close(self) -> None:
        """Let go of the event loop that `act` uses; what is under way is given up."""
        runner, self._runner = self._runner, None
        self._drop_episode()
        if runner is not None:
            runner.close()

    def __del__(self) -> None:
        # A loop by hand knows nothing of `close`, and a task that is collected while it waits is told as an error.
        if self._runner is not None and _in_event_loop():  # where no other one can run
            self._runner.get_loop().close()
        else:
            self.close()

    def _drop_episode(self) -> None:
        if self._episode is not None:
            self._episode.drop()
            self._episode = None


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@dataclass(slots=True)
class _Ending:
    """How an agent's loop ended, and its answer: also one that it had kept back when a limit stopped it."""

    ended_by: str
    answer: str | None = None


class _Episode:
    """One episode: the loop as a task, and the handing over of messages and replies."""

    def __init__(self, policy: LlmPolicy[Any], hooks: EpisodeHooks, prices: PriceTable) -> None:
        self._policy = policy
        self._hooks = hooks
        self._prices = prices
        self._run: AgentRun | None = None
        self._task: asyncio.Task[_Ending] | None = None
        self._outgoing: asyncio.Future[Action] | None = None
        self._incoming: asyncio.Future[Reply] | None = None

    async def next_action(self, observation: str, info: Info) -> Action | None:
        """Give the environment's reply to the loop and return what it sends next; None if it stopped."""
        info = public_info(info)  # a loop by hand passes on all that the environment tells
        loop = asyncio.get_running_loop()
        self._outgoing = loop.create_future()
        if self._task is None or self._run is None:
            self._run = self._begin(observation, info)
            self._task = loop.create_task(_played(self._policy, self._run))
        elif self._incoming is not None:
            self._take(observation, info)
        try:
            await asyncio.wait((self._task, self._outgoing), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        if self._outgoing.done():
            return self._outgoing.result()
        ending = self._task.result()  # raises what the loop raised
        return finish_action(self._run.native) if ending.answer is not None else None

    async def after_end(self, observation: str, info: Info) -> Action | None:
        """Give the last reply to a loop that may go on in a fresh episode; any other one gets it from `conclude`."""
        if self._run is None or not self._run.fresh_trials or self._incoming is None:
            return None
        self._run.is_over = True
        return await self.next_action(observation, info)

    def _begin(self, observation: str, info: Info) -> AgentRun:
        prompt = observation_text(observation) if info.get("protocol") == "native" else observation
        native = self._policy.uses_native_calls and info.get("protocol") == "native"
        return AgentRun(
            task=task_of(prompt),
            tools=ConversationToolbox(self._send, prompt, native, self._finish_form(native)),
            models=self._policy.models,
            options=self._policy.options,
            prompt=prompt,
            native=native,
            parameters=info.get("parameters", "lenient"),
            send_message=self._send,
            hooks=self._hooks,
            prices=self._prices,
            turns_left=info.get("turns_left"),
            turns_at_start=info.get("turns_left"),
        )

    def _finish_form(self, native: bool) -> str:
        form = self._policy.finish_form
        return FINISH_HINT["native"] if native and form else form

    async def _send(self, action: Action) -> Reply:
        """Hand over a message from within the loop, and wait for the reply."""
        if self._outgoing is None or self._run is None:
            raise RuntimeError("nobody has asked for a message")
        if self._run.is_over:
            raise EpisodeEnded
        self._incoming = asyncio.get_running_loop().create_future()
        self._outgoing.set_result(action)
        return await self._incoming

    def _take(self, observation: str, info: Info) -> None:
        """Hand the environment's reply to the loop."""
        incoming, self._incoming = self._incoming, None
        if self._run is None or incoming is None:
            return
        self._run.turn = int(info.get("turn", self._run.turn + 1))
        self._run.turns_left = info.get("turns_left")
        incoming.set_result(_reply(observation, info))

    async def conclude(self, observation: str, info: Info) -> AgentRecord:
        """End the loop where it waits for a reply that ended the episode, and return what was written down."""
        run, task = self._run, self._task
        if run is None or task is None:
            raise RuntimeError("the episode ended before the agent was asked for a message")
        run.turn = int(info.get("turn", run.turn))
        if self._incoming is not None and not self._incoming.done():
            self._incoming.set_exception(EpisodeEnded(_reply(observation, info)))
        ending = await task
        return self._record(run, ending)

    def _record(self, run: AgentRun, ending: _Ending) -> AgentRecord:
        transcript, policy = run.transcript, self._policy
        return {
            "schema": AGENT_SCHEMA,
            "architecture": type(policy).name,
            "options": asdict(policy.options),
            "prompts": policy.prompts.hash,
            "protocol": "native" if run.native else "text",
            "models": policy.models.identities(),
            "messages": transcript.messages,
            "calls": transcript.calls,
            "events": transcript.events,
            "counters": dict(transcript.counters),
            "components": transcript.components(policy.components),
            "first_failure": transcript.first_failure(),
            "structure": run.structure,
            "answer": ending.answer,
            "ended_by": ending.ended_by,
            "restarts": transcript.restarts,
            "oracle": run.oracle_was_asked,
        }

    async def cancel(self) -> None:
        """Stop the loop, whatever it does."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(BaseException):
                await self._task

    def drop(self) -> None:
        """Stop the loop without waiting for it."""
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()


def _reply(observation: str, info: Info) -> Reply:
    return Reply(observation_text(observation) if info.get("protocol") == "native" else observation, info)


async def _played(policy: LlmPolicy[Any], run: AgentRun) -> _Ending:
    try:
        answer = await policy.play(run)
    except EpisodeEnded:
        return _Ending("environment")
    except StopAgent as stop:
        answer, ended_by = run.kept_answer, stop.limit
    else:
        ended_by = "gave_up" if answer is None else "answer"
    if run.is_over:  # and nobody can be given an answer any more
        return _Ending("environment" if ended_by in ("gave_up", "answer") else ended_by)
    if answer is not None:
        run.note("answer", "agent", answer)
    return _Ending(ended_by, answer)
