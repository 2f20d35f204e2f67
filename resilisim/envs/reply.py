"""What the environment answers, as values, which each protocol puts into words: nobody reads them out of prose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, TypeAlias

from resilisim.workflows.prompts import FLAWED

# What the environment tells about the last message (docstring of the environment); it is only read.
Info: TypeAlias = Mapping[str, Any]

ENDINGS: Final[Mapping[str, str]] = {
    "completion": "The episode has ended: completion was signalled.",
    "time": "The episode has ended: no time is left, and the closing message did not signal completion.",
    "turns": "The episode has ended: no turns are left, and the closing message did not signal completion.",
    "consecutive_failures": "The episode has ended: too many executions failed in a row.",
    "loop": "The episode has ended: the same unproductive message was sent too many times in a row.",
    "stopped": "The episode has ended: the agent stopped.",
    "agent_error": "The episode has ended: the agent broke or was given up.",
}


class Progress(NamedTuple):
    """How far an episode is after a message.

    Attributes:
        num_succeeded: Tools that have been executed successfully.
        turns_left: Messages that can still be sent, the closing one not counted.
        seconds_left: What is left of the time that an episode has; None where it has any.
        is_closing: Whether only the closing message is left.
        num_ignored: Further calls of the message, which do not count.
        ended_by: What has ended the episode; None while it is under way.
        finish: How completion is signalled under the environment's protocol, in words.
    """

    num_succeeded: int
    turns_left: int
    seconds_left: float | None = None
    is_closing: bool = False
    num_ignored: int = 0
    ended_by: str | None = None
    finish: str = ""

    def text(self, finish: str | None = None) -> str:
        """Return it in words: what was ignored, how far the episode is, what to do next.

        `finish` is how whoever reads this signals completion, the environment's own way if omitted; an empty one says
        no way.
        """
        num_succeeded, turns_left, seconds_left, is_closing, num_ignored, ended_by, own_finish = self
        ignored = ""
        if num_ignored:
            are = "was" if num_ignored == 1 else "were"
            ignored = f"Only the first call of a message counts; {num_ignored} more {are} ignored.\n"
        if ended_by is not None:
            return ignored + ENDINGS[ended_by]
        time_left = "" if seconds_left is None else f" and {seconds_left:g} seconds"
        text = (
            f"{ignored}Progress: {num_succeeded} {'tool' if num_succeeded == 1 else 'tools'} executed successfully; "
            f"{turns_left} {'turn' if turns_left == 1 else 'turns'}{time_left} left."
        )
        finish = own_finish if finish is None else finish
        if not finish:
            return text
        if is_closing:
            return f"{text}\nSend a closing message: {finish} if the task is complete. Nothing more is executed."
        return f"{text}\nContinue with the next step, or finish with {finish} if the task is complete."


@dataclass(frozen=True, slots=True)
class Reply:
    """What the environment says: the prompt at first, then its answer to each message.

    Attributes:
        observation: As it says it; under the native protocol a JSON list of messages.
        info: What the agent may know about it, as values.
        ended: Whether the episode has ended with it.
    """

    observation: str
    info: Info = field(hash=False)
    ended: bool = False

    @property
    def words(self) -> str:
        """The prompt, or what came of the message; empty where there is nothing to say of it but the progress."""
        words: str = self.info.get("words", self.observation)
        return words

    @property
    def progress(self) -> Progress | None:
        """How far the episode is; None with the prompt, and in the terse style, whose words say it."""
        return self.info.get("progress")

    @property
    def work(self) -> str:
        """Of the prompt, what there is to do, for agents that have a way of calling of their own (`Prompt.work`)."""
        work: str = self.info.get("work", self.words)
        return work

    def said(self, finish: str | None = None) -> tuple[str, str]:
        """Return the words and the progress as text (`Progress.text`); if there are no words, that is what they are."""
        progress = "" if self.progress is None else self.progress.text(finish)
        return (self.words, progress) if self.words else (progress, "")

    @property
    def text(self) -> str:
        """All of it in words, the same under both protocols."""
        return "\n\n".join(filter(None, self.said()))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """It as OpenAI-compatible endpoints take it: the answers to the calls, the first of which is the answer."""
        return list(self.info.get("messages") or [{"role": "user", "content": self.text}])

    @property
    def error(self) -> str | None:
        """What went wrong with the message, on one line; None if it did what it was meant to do."""
        info, event = self.info, self.info.get("event")
        if event == "execute" and "execution" in info:  # a call in the closing message is not executed
            is_fine = bool(info["execution"]["success"])
        else:
            is_fine = (event == "search" and "search" in info) or (event == "info" and "tool_info" in info)
        return None if is_fine or event == "wait" else " ".join(self.said()[0].split())

    @property
    def value(self) -> Any:
        """What the message brought, as a JSON value; None if there is none."""
        info, event = self.info, self.info.get("event")
        if event == "execute" and "execution" in info:
            return info["execution"].get("output")
        if event == "search" and "search" in info:
            return list(info["search"])
        return dict(info["tool_info"]) if event == "info" and "tool_info" in info else None


class CallResult(str):
    """What a call came to: all the words that an agent reads, and what they say as values.

    Args:
        text: What the tool said: the result, or the words of the error.
        error: What went wrong.
        data: The result.
        progress: What the environment adds to every reply (turns left, what to do next); empty elsewhere.
        was_made: Whether there was a call.

    Attributes:
        text: The words without the progress.
        progress: The rest of them.
        ok: Whether the call succeeded.
        error: What went wrong, on one line; None if it succeeded.
        data: The result as a JSON value; None if there is none, as there is of no failed call.
        was_made: Whether there was a call; False where it was refused before it was sent.

    Example:
        >>> from resilisim import open_session
        >>> with open_session("task_c64444cae27fab46", base=1.0) as session:
        ...     result = session.call("file_operations_scanner")
        >>> result.ok, result.data["success"]
        (True, True)
    """

    text: str
    error: str | None
    data: Any
    progress: str
    was_made: bool

    def __new__(
        cls, text: str, error: str | None = None, data: Any = None, progress: str = "", was_made: bool = True
    ) -> Self:
        """Put words and progress together."""
        result = super().__new__(cls, f"{text}\n\n{progress}" if progress else text)
        result.text, result.progress, result.error, result.data, result.was_made = text, progress, error, data, was_made
        return result

    @property
    def ok(self) -> bool:
        """Whether the call succeeded."""
        return self.error is None

    @classmethod
    def of(cls, reply: Reply, finish: str | None = None) -> Self:
        """Return a reply to a call, for whoever signals completion as `finish` says (`Progress.text`)."""
        words, progress = reply.said(finish)
        return cls(words, reply.error, reply.value, progress)

    @classmethod
    def refused(cls, problem: str) -> Self:
        """Return what a call brings that was not made, with what is wrong with it on one line."""
        return cls(f"Error: {problem}", problem, was_made=False)


# The id of a shipped task names its required list, and with the seed and a known salt all of its luck.
PRIVATE_INFO = frozenset(
    {"instance_id", "task", "required_tools", "seed", "problem", "state", "message", "score", "flaw", "result"}
    | {"judgement"}
)


# Nobody is told why a call has failed, by chance or by the tool itself: what the error says is what agents have.
_PRIVATE_IN_EXECUTION = frozenset({"success_probability", "real", "forced"})


def public_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an ordinary policy may know of an info: no probabilities, no required list, no state, no luck.

    Example:
        >>> from resilisim.envs import ConversationEnv, public_info
        >>> _, info = ConversationEnv().reset(seed=0)
        >>> "required_tools" in info, "required_tools" in public_info(info)
        (True, False)
    """
    public = dict(info)
    for name in PRIVATE_INFO:
        public.pop(name, None)
    if str(public.get("prompt_type", "")).startswith(FLAWED):
        public["prompt_type"] = "optimal"  # what the prompt claims to be
    if "execution" in public:
        execution = public["execution"]
        public["execution"] = {name: value for name, value in execution.items() if name not in _PRIVATE_IN_EXECUTION}
    return public
