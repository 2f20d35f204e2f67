"""One episode of Conversation-v0 for whoever keeps a loop of their own: what is sent, what comes back, how it ends.

Agents with a language model, functions, programs over MCP, policies that are asked message by message, and everybody's
own frameworks play the same `Session`. Who looks on is an `Observer`: what judges an episode, writes it down or pays
for it changes nothing of it.

Token counts need no line in the agent: a hook on its `openai` client notes them in the session under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar

from resilisim.chat import ChatReply, TokenUsage, ToolCall
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.protocol.completion_signal import finish_message
from resilisim.envs.protocol.native_messages import AssistantMessage, call_text, native_call, native_text
from resilisim.envs.protocol.native_tools import WAIT_FUNCTION
from resilisim.envs.reply import CallResult, Info, Reply, public_info
from resilisim.envs.session_tools import SessionTool, as_tool, given_arguments
from resilisim.envs.ways_of_failing import ANSWERED, Manner
from resilisim.errors import (
    InfrastructureError,
    InvalidInputError,
    ResiliSimError,
    check_number,
    fault_of,
    shown_value,
    told_error,
    unknown_name,
)
from resilisim.redaction import fit_to_show
from resilisim.simulator.problem import is_done, outcome
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tool_library.names import RESERVED_FUNCTIONS
from resilisim.workflows.prompts import Prompt

OnFailure = Literal["return", "raise"]

T = TypeVar("T")

PLAYED_OTHERWISE: Final = "the agent broke, and then played the same draws in another way"
_LONGEST_CHAIN = 100  # of errors raised from each other; nothing forbids a ring
_LAST_CALL_SECONDS = 5.0  # for a message under way in another thread when its agent is given up
_MOST_TOKENS: Final = 10**12  # of one call
_MOST_OF_A_CALL: Final = 100_000.0  # dollars, and seconds: sums over an episode stay in the range of a record
_LONGEST_ANSWER: Final = 100_000  # characters of an answer that the record keeps
_HELPERS: Final = ("_worker", "_at_work", "_contexts", "tools")  # which a copy makes anew


class EpisodeEnded(BaseException):
    """The episode is over, so nothing can be sent. Code that catches this has to raise it again.

    `reply` is what the environment said at the end, if that is known.
    """

    def __init__(self, reply: Reply | None = None) -> None:
        super().__init__()
        self.reply = reply


class NotRepeatedError(InvalidInputError):
    """An agent that is explored has sent something else after the same replies."""


def not_repeated(place: int, now: str | None, before: str | None, agent: str = "the agent") -> NotRepeatedError:
    """Return the refusal of an agent that is explored and has sent something else after the same replies."""
    return NotRepeatedError(
        f"{agent} cannot be explored: message {place + 1} is {shown_value(now, 200)} and was "
        f"{shown_value(before, 200)} after the same replies: expected an agent that repeats itself"
    )


def difference_to(
    sent: Sequence[str | None], place: int, text: str | None, agent: str = "the agent"
) -> NotRepeatedError | None:
    """Return the refusal of a message that is another one than was sent in its place; None of one that is the same."""
    return not_repeated(place, text, sent[place], agent) if place < len(sent) and text != sent[place] else None


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


class ToolFailed(Exception):
    """A call failed, in a session that raises what fails (`on_failure="raise"`); its text is what the agent reads.

    Attributes:
        result: What came of the call.
    """

    def __init__(self, result: CallResult) -> None:
        super().__init__(str(result))
        self.result = result


@dataclass(frozen=True, slots=True)
class Start:
    """What an observer is told when an episode begins: whose it is, and all that the environment says of it."""

    env: ConversationEnv
    task: Task
    prompt: str | Prompt
    seed: int
    privileged: bool
    info: Info
    reply: Reply


@dataclass(frozen=True, slots=True)
class Step:
    """What an observer is told of a message, or of what else has ended the episode.

    Attributes:
        message: The message as text; None for a stop, and where the agent broke.
        before: The state before it.
        info: What came of it, as the environment tells it, private values included.
        reply: What the agent is told.
        reward: What the environment pays (`EnvironmentSettings.reward`).
    """

    message: str | None
    before: EpisodeState
    info: Info = field(hash=False)
    reply: Reply
    reward: float

    @property
    def outcome(self) -> int:
        """1 if the episode has ended in full success, else 0."""
        if self.info["problem"].arguments_matter:
            return int(self.info.get("score", {}).get("level") == "full_success")
        return outcome(self.info["problem"], self.info["state"])


class Observer(Protocol):
    """Looks on at an episode: judges it, writes it down, pays for it. What it raises breaks the episode.

    Example:
        >>> from resilisim.envs import ConversationEnv, Session
        >>> from resilisim.tasks import find_task
        >>> class Counter:
        ...     def begun(self, start):
        ...         self.calls = 0
        ...     def stepped(self, step):
        ...         self.calls += step.info["event"] == "execute"
        ...     def ended(self, step):
        ...         print(self.calls, "calls, then", step.info["score"]["ended_by"])
        >>> task = find_task("task_c64444cae27fab46")
        >>> Session(ConversationEnv(), task, "optimal", seed=4, observers=[Counter()]).send("<finish/>").ended
        0 calls, then completion
        True
    """

    def begun(self, start: Start) -> None:
        """Note that the episode has begun, perhaps anew."""
        ...

    def stepped(self, step: Step) -> None:
        """Note what came of a message."""
        ...

    def ended(self, step: Step) -> None:
        """Note that the episode has ended, with this step, which `stepped` was told before."""
        ...


class Rewards:
    """Keeps what the environment has paid for each message."""

    def __init__(self) -> None:
        self.paid: list[float] = []
        self.is_over = False

    def begun(self, start: Start) -> None:
        """Nothing has been paid yet."""
        self.paid, self.is_over = [], False

    def stepped(self, step: Step) -> None:
        """Keep what a message was paid."""
        self.paid.append(step.reward)

    def ended(self, step: Step) -> None:
        """All has been paid."""
        self.is_over = True


class ModelUse(NamedTuple):
    """One call of a model by the agent that plays, as it was noted (`Session.note_usage`)."""

    turn: int
    reply: ChatReply
    cost: float | None


class Session:
    """One episode, stepped by the agent's own loop (`open_session`).

    Every call is one message and uses a turn. Calls that arrive at once, from threads or tasks, are served one after
    the other. A call after the end raises `EpisodeEnded`, which is no `Exception`, so that no framework takes it for an
    error of a tool and goes on for ever; the `with` block and `evaluate` catch it.

    An ordinary agent gets the public view of each info, a privileged one all of it except the seed: nobody is told what
    decides the luck.

    Args:
        env: The environment; it is reset. Tools as functions need its native protocol.
        task: The task.
        prompt: Prompt type, or a rendered prompt.
        seed: Episode seed.
        privileged: Whether the agent sees the state.
        observers: Who looks on.
        record: Makes the record of the episode once it has ended.
        on_failure: Whether a call that failed returns its words, or raises `ToolFailed` with them.
        sent: What an earlier try of the episode has sent, which broke for reasons that nobody can tell: it has to be
            sent again, or the episode is lost.
        must_repeat: Whether sending something else, or beginning anew, is refused instead: whoever explores an agent
            has it do again what it did.

    Attributes:
        reply: What the environment said last.
        sent: The messages, as texts; None is a stop. Also those of tries before `restart`.
        answer: What the agent has given as its answer, for the record.
        usage: Calls of models that were noted.
        oracle_was_asked: Whether the agent has asked whether all is done, which marks its results.
        broken: What the environment itself raised, a world that failed or a bug of ours: never the agent's doing,
            whatever the agent makes of it. The episode then has no score.

    Example:
        >>> from resilisim import open_session
        >>> with open_session("task_c64444cae27fab46", prompt="optimal", seed=4, base=1.0) as session:
        ...     for tool in session.tools[:2]:
        ...         print(tool.name, tool().ok)
        ...     session.turns_left
        data_processing_parser True
        data_processing_transformer True
        8
    """

    def __init__(
        self,
        env: ConversationEnv,
        task: Task,
        prompt: str | Prompt,
        seed: int,
        *,
        privileged: bool = False,
        observers: Sequence[Observer] = (),
        record: Callable[[Session], Mapping[str, Any]] | None = None,
        on_failure: OnFailure = "return",
        sent: Sequence[str | None] = (),
        must_repeat: bool = False,
    ) -> None:
        if on_failure not in ("return", "raise"):
            raise unknown_name("on_failure", on_failure, ("return", "raise"))
        self._env = env
        self._task = task
        self._prompt = prompt
        self._seed = seed
        self._privileged = privileged
        self._rewards = Rewards()
        self._observers: tuple[Observer, ...] = (*observers, self._rewards)
        self._make_record = record
        self._on_failure = on_failure
        self._sent_before = sent
        self._must_repeat = must_repeat
        self._finish: str | None = None  # how whoever plays signals completion, if not as the environment says
        self._is_closed = False
        self._make_helpers()
        self.sent: list[str | None] = []
        self.usage: list[ModelUse] = []
        self.answer: str | None = None
        self.oracle_was_asked = False
        self.broken: Exception | None = None
        self.restart()

    def _make_helpers(self) -> None:
        # Calls of a world take time. One thread keeps their order, whatever event loops they come from.
        self._worker = None if self._env.world is None else ThreadPoolExecutor(1, "resilisim-calls")
        self._at_work = threading.Lock()
        self._contexts: list[contextvars.Token[Session | None]] = []

    def __getstate__(self) -> dict[str, Any]:
        # A copy is entered by a `with` block of its own, and its tools call it.
        return {name: value for name, value in self.__dict__.items() if name not in _HELPERS}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_helpers()

    def restart(self) -> Reply:
        """Begin the episode anew, with the same seed, and return the prompt."""
        if self._must_repeat and self.sent:
            self.broken = InvalidInputError(
                "the agent begins its episode anew, and cannot be explored: expected one that plays each episode once"
            )
            raise self.broken
        self.broken = None
        options = {"task": self._task, "prompt": self._prompt}
        observation, self._info = self._env.reset(seed=self._seed, options=options)
        self.reply = self._begun = Reply(observation, self._view())
        start = Start(self._env, self._task, self._prompt, self._seed, self._privileged, self._info, self.reply)
        for observer in self._observers:
            observer.begun(start)
        return self.reply

    # What an agent sends.

    def send(self, message: AssistantMessage | None) -> Reply:
        """Send a message as it stands, and return the reply; None stops the episode.

        It is one message of Conversation-v0 whatever it holds: words that say that the task is complete end the
        episode, others use a turn, and of several calls only the first is made. `Reply.messages` are the answers as
        OpenAI-compatible endpoints take them.

        Raises:
            EpisodeEnded: The episode is over.
        """
        if self.ended:
            raise EpisodeEnded(self.reply)
        text = as_text(message)
        with self._at_work:
            return self._send(message, text)

    def call(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> CallResult:
        """Call a tool by its name; arguments that are None count as left out.

        They may be the text of a JSON object, as a model wrote it: the environment refuses what cannot be read.

        Raises:
            EpisodeEnded: The episode is over.
            ToolFailed: The call failed, and the session raises what fails.
        """
        self.check_functions()
        stated = given_arguments(arguments)
        if name == "finish" and not self.ended:
            return self.finish(None if isinstance(stated, str) else stated.get("answer"))
        result = CallResult.of(self.send(native_call(name, stated)), self._finish)
        if not result.ok and self._on_failure == "raise":
            raise ToolFailed(result)
        return result

    async def acall(self, name: str, arguments: Mapping[str, Any] | str | None = None) -> CallResult:
        """Call a tool by its name, and let others in the event loop run before, and while a world's tool is at work."""
        return await self.beside(lambda: self.call(name, arguments))

    def finish(self, answer: object = None) -> CallResult:
        """Report that the task is complete, with an answer; changes nothing if the episode is over.

        The answer is kept in the record; in a world it is what the episode is graded by.
        """
        with self._at_work:
            if answer is not None and self.answer is None:
                self.answer = str(answer)[:_LONGEST_ANSWER]
            if not self.ended:
                final_answer = self.answer if self.reply.info.get("answers") else None
                closing = finish_message(self._env.protocol == "native", final_answer)
                self._send(closing, as_text(closing))
            return CallResult(self.reply.text)

    def wait(self) -> CallResult:
        """Let a turn pass; where the failure model has no part in which that can help, it is a call of no tool.

        Raises:
            EpisodeEnded: The episode is over.
            ToolFailed: It is none here, and the session raises what fails.
        """
        return self.call(WAIT_FUNCTION)

    def stop(self) -> None:
        """End the episode without saying that the task is complete; changes nothing if it is over."""
        with self._at_work:
            if not self.ended:
                self._send(None, None)

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

    def close(self) -> None:
        """Refuse every further message, where whoever sends cannot be stopped otherwise; the episode is left as it is.

        Only `lose` can end it then.
        """
        self._is_closed = True

    def _send(self, message: AssistantMessage | None, text: str | None) -> Reply:
        """Send what is sent while nobody else can: whoever waited for that may find the episode over, or closed."""
        if self.ended:
            raise EpisodeEnded(self.reply)
        differs = difference_to(self._sent_before, len(self.sent), text)
        if differs is not None:
            if self._must_repeat:
                self.broken = differs
                raise differs
            self._step(None, lambda: self._env.lose(PLAYED_OTHERWISE))
            raise EpisodeEnded(self.reply)
        if message is None or text is None:
            return self._step(None, self._env.stop)
        is_call = isinstance(message, ToolCall) and self._env.protocol == "native"
        return self._step(text, lambda: self._env.step(message if is_call else text))

    def _step(self, text: str | None, act: Callable[[], Any]) -> Reply:
        """Let a message happen, or what else ends the episode."""
        if self.broken is not None:
            raise self.broken
        before: EpisodeState = self._info["state"]
        self.sent.append(text)
        try:
            observation, reward, ended, _, self._info = act()
            reply = Reply(observation, self._view(), ended)
            step = Step(text, before, self._info, reply, float(reward))
            for observer in self._observers:
                observer.stepped(step)
            if ended:
                for observer in self._observers:
                    observer.ended(step)
        except Exception as error:
            self.broken = error  # for ever: an agent that goes on in spite of it must not get a score
            raise
        self.reply = reply
        return reply

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

    # What an agent is told.

    @property
    def prompt(self) -> str:
        """What there is to do."""
        if self._finish is None:
            return self._begun.text
        return self._env.prompt_text(self._finish)

    def tell_finish(self, finish: str) -> None:
        """Say in prompt and replies that completion is signalled in another way than the environment's, in words."""
        self._finish = finish

    @functools.cached_property
    def tools(self) -> list[SessionTool]:
        """The tools as functions of Python; `finish` is the last of them."""
        return [as_tool(entry["function"], self.call, self.acall) for entry in self.openai_tools()]

    def openai_tools(self) -> list[dict[str, Any]]:
        """Return the tools as OpenAI-compatible endpoints take them; they are the caller's, to change as they like."""
        self.check_functions()
        return copy.deepcopy(list(self._begun.info["functions"]))

    def mcp_tools(self) -> list[dict[str, Any]]:
        """Return the tools as MCP lists them: name, description, inputSchema.

        They have their own names, but for those that are also names of functions of the environment.
        """
        library = self._env.library
        names = {library.function_name(name): name for name in library.names if name not in RESERVED_FUNCTIONS}
        return [
            {"name": names.get(tool.name, tool.name), "description": tool.description, "inputSchema": tool.parameters}
            for tool in self.tools
        ]

    def check_functions(self) -> None:
        """Refuse an environment that has no functions to call: InvalidInputError."""
        if "functions" not in self._begun.info:
            raise InvalidInputError("a session of functions needs the native protocol: expected protocol='native'")

    @property
    def ended(self) -> bool:
        """Whether nothing can be sent any more: the episode is over, or was closed."""
        return self._is_closed or self.reply.ended

    @property
    def turns_left(self) -> int:
        """Messages that can still be sent, the closing one not counted."""
        return int(self._info["turns_left"])

    @property
    def score(self) -> dict[str, Any] | None:
        """The score (level, and the criteria that held); None before the end."""
        score: dict[str, Any] | None = self._info.get("score")
        return score

    @property
    def manner(self) -> Manner:
        """How the failure of the last call comes to a client, if it was one of the law's."""
        execution = self._info.get("execution")
        if execution is None or execution["success"] or execution.get("real"):
            return ANSWERED
        return self._env.settings.manner(execution["error"])

    @property
    def rewards(self) -> list[float]:
        """What each message was paid, for a trainer (`EnvironmentSettings.reward`)."""
        return list(self._rewards.paid)

    @property
    def reward(self) -> float | None:
        """The sum of the rewards; None for an episode that did not end, so one that broke has none."""
        return sum(self._rewards.paid) if self._rewards.is_over else None

    def record(self) -> dict[str, Any]:
        """Return the record of the episode, the same that `evaluate` writes.

        Raises:
            ResiliSimError: The episode is not over.
        """
        if not self.reply.ended or self._make_record is None:
            raise ResiliSimError("there is no record before the episode has ended: call finish() first")
        return dict(self._make_record(self))

    def oracle(self, answer: str | None = None) -> bool:
        """Tell whether all is done, in a world with an answer given now; results of agents that ask are marked."""
        self.oracle_was_asked = True
        if self._info["problem"].arguments_matter:
            return self._env.grade(answer).correct
        return is_done(self._info["problem"], self._info["state"])

    def note_usage(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float | None = None,
        *,
        model: str = "",
        seconds: float = 0.0,
    ) -> None:
        """Note one call of a model: its tokens, US dollars if known, and how long it took.

        Raises:
            InvalidInputError: A number is negative, none, or more than a call can have.
        """
        usage = TokenUsage(
            int(check_number("prompt_tokens", prompt_tokens, 0, _MOST_TOKENS)),
            int(check_number("completion_tokens", completion_tokens, 0, _MOST_TOKENS)),
        )
        cost = None if cost is None else check_number("cost", cost, 0, _MOST_OF_A_CALL)
        seconds = check_number("seconds", seconds, 0, _MOST_OF_A_CALL)
        reply = ChatReply("", usage=usage, model=str(model), latency_seconds=seconds)
        self.usage.append(ModelUse(int(self.reply.info.get("turn", 0)), reply, cost))

    def raise_if_broken(self) -> None:
        """Raise what the environment itself has raised, if it has, whatever the agent has made of it."""
        if self.broken is not None:
            raise self.broken

    def _view(self) -> Info:
        if not self._privileged:
            return public_info(self._info)
        return {name: value for name, value in self._info.items() if name != "seed"}

    def __enter__(self) -> Self:
        """Make this the session that a watched client notes its usage in (`track_usage`)."""
        self._contexts.append(_CURRENT.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop an episode that was not finished; what is raised goes on, but for the news that it is over.

        What the agent raised has lost it the episode, unless it may come of an endpoint or the network (`fault_of`).
        """
        with contextlib.suppress(ValueError, IndexError):  # a generator may be closed in another context
            _CURRENT.reset(self._contexts.pop())
        if error is None:
            self.stop()
        elif isinstance(error, Exception) and self.broken is None and fault_of(error) == "agent":
            self.lose(fit_to_show(told_error(error), one_line=True))
        return error is not None and self.ended and tells_the_end(error)


# The session in whose `with` block or agent function the running code stands.
_CURRENT: contextvars.ContextVar[Session | None] = contextvars.ContextVar("resilisim_session", default=None)


def current_session() -> Session | None:
    """Return the session in whose `with` block or agent function the running code stands; None outside."""
    return _CURRENT.get()


def as_text(message: AssistantMessage | None) -> str | None:
    """Return a message as records hold it: one with native calls as JSON text."""
    if message is None or isinstance(message, str):
        return message
    return call_text(message) if isinstance(message, ToolCall) else native_text(message)
