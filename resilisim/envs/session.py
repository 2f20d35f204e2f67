"""One episode of Conversation-v0 for whoever keeps a loop of their own: what is sent, what comes back, how it ends."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from resilisim.envs.conversation import ConversationEnv, public_info
from resilisim.envs.protocol import native_text
from resilisim.errors import InfrastructureError
from resilisim.simulator import Problem
from resilisim.simulator.state import EpisodeState, is_done, outcome
from resilisim.tasks import Task
from resilisim.workflows.prompts import Prompt

# What the environment tells about the last message (docstring of the environment); it is only read.
Info: TypeAlias = Mapping[str, Any]
# A message to the environment: a text, or an OpenAI-style assistant message with native calls.
AssistantMessage: TypeAlias = str | Mapping[str, Any]

T = TypeVar("T")

_LONGEST_CHAIN = 100  # of errors raised from each other; nothing forbids a ring
_LAST_CALL_SECONDS = 5.0  # for a message under way in another thread when its agent is given up


class EpisodeEnded(BaseException):
    """The episode is over, so nothing can be sent; who catches it to write something down raises it again.

    `reply` is what the environment said at the end, if that is known.
    """

    def __init__(self, reply: Reply | None = None) -> None:
        super().__init__()
        self.reply = reply


def tells_the_end(error: BaseException) -> bool:
    """Return whether what was raised comes of `EpisodeEnded` alone: frameworks raise errors of their own from it.

    Example:
        >>> from resilisim.envs.session import EpisodeEnded, tells_the_end
        >>> ended = BaseExceptionGroup("two calls at once", [EpisodeEnded(), EpisodeEnded()])
        >>> tells_the_end(ended), tells_the_end(ValueError("a bug"))
        (True, False)
    """
    seen: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if isinstance(seen, BaseExceptionGroup):
            return all(map(tells_the_end, seen.exceptions))
        if seen is None or isinstance(seen, EpisodeEnded):
            break
        seen = seen.__cause__ or seen.__context__
    return isinstance(seen, EpisodeEnded)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the environment says: the prompt at first, then its answer to each message."""

    observation: str  # as it says it; under the native protocol a JSON list of messages
    info: Info = field(hash=False)  # what the agent may know about it
    ended: bool = False  # whether the episode has ended with it
    words: str | None = field(default=None, repr=False, compare=False)  # what `text` is, where nobody need decode it

    @property
    def text(self) -> str:
        """Its words, the same under both protocols."""
        if self.words is not None:
            return self.words
        return observation_text(self.observation) if self.info.get("protocol") == "native" else self.observation


class Session:
    """One episode, stepped by the agent's own loop.

    An ordinary agent gets the public view of each info, a privileged one all of it except the seed: nobody is told what
    decides the luck. Subclasses see every step (`_begun`, `_answered`).

    Args:
        env: The environment; it is reset.
        task: The task.
        prompt: Prompt type, or a rendered prompt.
        seed: Episode seed.
        privileged: Whether the agent sees the state.

    Attributes:
        reply: What the environment said last.
        rewards: What the environment paid for each message, for a trainer (`EnvironmentSettings.reward`).
        sent: The messages, as texts; None is a stop. Also those of tries before `restart`.
        broken: What the environment itself raised, a world that failed or a bug of ours: never the agent's doing,
            whatever the agent makes of it. The episode then has no score.

    Example:
        >>> from resilisim.envs import ConversationEnv, Session
        >>> from resilisim.tasks import find_task
        >>> session = Session(ConversationEnv(base=1.0), find_task("task_c64444cae27fab46"), "optimal", seed=4)
        >>> reply = session.send("<tool_call>file_operations_reader</tool_call>")
        >>> reply.info["execution"]["success"], session.turns_left
        (True, 9)
        >>> session.send("<finish/>").ended
        True
    """

    def __init__(
        self, env: ConversationEnv, task: Task, prompt: str | Prompt, seed: int, *, privileged: bool = False
    ) -> None:
        self._env = env
        self._task = task
        self._prompt = prompt
        self._seed = seed
        self._privileged = privileged
        self._make_helpers()
        self.sent: list[str | None] = []
        self.restart()

    def _make_helpers(self) -> None:
        # Calls of a world take time. One thread keeps their order, whatever event loops they come from.
        self._worker = None if self._env.world is None else ThreadPoolExecutor(1, "resilisim-calls")
        self._at_work = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_worker", "_at_work")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_helpers()

    def restart(self) -> Reply:
        """Begin the episode anew, with the same seed, and return the prompt."""
        self.broken: Exception | None = None
        options = {"task": self._task, "prompt": self._prompt}
        observation, self._info = self._env.reset(seed=self._seed, options=options)
        self.reply = Reply(observation, self._view())
        self.rewards: list[float] = []
        self._begun()
        return self.reply

    def send(self, message: AssistantMessage | None) -> Reply:
        """Send a message and return the reply; None stops the episode. EpisodeEnded tells that it is over already."""
        if self.reply.ended:
            raise EpisodeEnded(self.reply)
        text = as_text(message)
        with self._at_work:
            if self.reply.ended:
                raise EpisodeEnded(self.reply)
            return self._step(text, self._env.stop if text is None else lambda: self._env.step(text))

    def lose(self, why: str) -> Reply:
        """End the episode as lost: the agent has raised something, has failed, or is given up; `why` says how.

        What the agent did before does not matter any more. An episode that has ended stays as it ended.

        Raises:
            InfrastructureError: A message is still under way in another thread.
        """
        if not self._at_work.acquire(timeout=_LAST_CALL_SECONDS):
            raise InfrastructureError(f"a call is still under way, so the episode cannot end ({why})")
        try:
            return self.reply if self.reply.ended else self._step(None, lambda: self._env.lose(why))
        finally:
            self._at_work.release()

    def _step(self, text: str | None, act: Callable[[], Any]) -> Reply:
        """Let a message happen, or what else ends the episode."""
        if self.broken is not None:
            raise self.broken
        before: EpisodeState = self._info["state"]
        self.sent.append(text)
        try:
            observation, reward, ended, _, self._info = act()
            reply = Reply(observation, self._view(), ended, self._env.words)
            self._answered(str(text or ""), before, reply)
        except Exception as error:
            self.broken = error  # for ever: an agent that goes on in spite of it must not get a score
            raise
        self.rewards.append(float(reward))
        self.reply = reply
        return reply

    def raise_if_broken(self) -> None:
        """Raise what the environment itself has raised, if it has, whatever the agent has made of it."""
        if self.broken is not None:
            raise self.broken

    async def beside(self, work: Callable[[], T]) -> T:
        """Do something to the session where other sessions share the event loop, which in a world must not wait for it.

        Whoever is cancelled meanwhile leaves when it is done: nobody else may touch the episode before.
        """
        await asyncio.sleep(0)  # what answers at once must not keep others waiting
        if self._worker is None:
            return work()
        done = asyncio.get_running_loop().run_in_executor(self._worker, contextvars.copy_context().run, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise

    @property
    def ended(self) -> bool:
        """Whether the episode has ended."""
        return self.reply.ended

    @property
    def turns_left(self) -> int:
        """Messages that can still be sent, the closing one not counted."""
        return int(self._info["turns_left"])

    @property
    def score(self) -> dict[str, Any] | None:
        """The score at the end, None before; no agent is told while it plays."""
        score: dict[str, Any] | None = self._info.get("score")
        return score

    @property
    def problem(self) -> Problem:
        """What has to be done, under which law; no ordinary agent may be told."""
        problem: Problem = self._info["problem"]
        return problem

    @property
    def is_done(self) -> bool:
        """Whether everything that the task asks for has succeeded; no ordinary agent may be told."""
        return self.is_done_with(None)

    def is_done_with(self, answer: str | None) -> bool:
        """Tell whether all is done, in a world with an answer given now; no ordinary agent may be told."""
        if self.problem.arguments_matter:
            return self._env.grade(answer).correct
        return is_done(self.problem, self._info["state"])

    @property
    def outcome(self) -> int:
        """1 if it has ended in full success, else 0; no ordinary agent may be told."""
        if self.problem.arguments_matter:
            return int(self.score is not None and self.score["level"] == "full_success")
        return outcome(self.problem, self._info["state"])

    @property
    def reward(self) -> float | None:
        """The sum of the rewards; None until the episode has ended, so an episode that broke has none."""
        return sum(self.rewards) if self.ended else None

    def _view(self) -> Info:
        if not self._privileged:
            return public_info(self._info)
        return {name: value for name, value in self._info.items() if name != "seed"}

    def _begun(self) -> None:
        """Note that the episode has begun, perhaps anew."""

    def _answered(self, text: str, before: EpisodeState, reply: Reply) -> None:
        """Note a step: the message as text, the state before it, and the reply; `_info` is what came of it."""


def as_text(message: AssistantMessage | None) -> str | None:
    """Return a message as the environment takes it: an OpenAI-style assistant message as JSON text."""
    return message if message is None or isinstance(message, str) else native_text(message)


def observation_text(observation: str) -> str:
    """Return the words of an observation; under the native protocol it is a JSON list of messages."""
    if not observation.startswith("[{"):
        return observation
    try:
        return "\n".join(str(message["content"]) for message in json.loads(observation) if message["content"])
    except (ValueError, KeyError, TypeError):
        return observation
