"""What a policy is: anything that reads observations and answers with messages; those of the text protocol."""

from __future__ import annotations

import json
import traceback as tracebacks
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from resilisim.envs.reply import Info
from resilisim.envs.session import Session
from resilisim.errors import Fault, ResiliSimError, fault_of, told_error
from resilisim.policies.agent_record import AgentRecord, Journal
from resilisim.workflows.templating import inline_json

FINISH_TEXT = "<finish/>"
WAIT_TEXT = "<wait/>"
# What a scripted policy says in its closing message when it is not done: no tag and no signal of completion.
OUT_OF_TURNS = "I have used all my turns and could not do everything."
_LONGEST_TRACEBACK: Final = 20_000  # characters


class AgentFailed(ResiliSimError):
    """An agent of somebody else's broke, and its episode with it (docs/specification, section 9).

    Attributes:
        reason: What it raised, by name.
        traceback: Where.
        fault: Whose fault that is: where it is the "agent"'s, the episode is lost.
        part: The agent's part of the record so far.
        messages: What it had sent; None is a stop.
        optimum: V* of the episode, if it is known.
    """

    def __init__(
        self,
        message: str,
        reason: str = "AgentFailed",
        traceback: str = "",
        fault: Fault = "agent",
        part: AgentRecord | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.traceback = traceback
        self.fault: Fault = fault
        self.part = part
        self.messages: tuple[str | None, ...] = ()
        self.optimum: float | None = None

    @classmethod
    def of(cls, name: str, error: BaseException, part: AgentRecord | None = None) -> AgentFailed:
        """Return what an agent of that name did when it raised something."""
        text = "".join(tracebacks.format_exception(error))[-_LONGEST_TRACEBACK:]
        return cls(f"agent {name} raised {told_error(error)}", type(error).__name__, text, fault_of(error), part)


@runtime_checkable
class Policy(Protocol):
    """An agent in Conversation-v0.

    A minimal policy, which runs one tool until it succeeds and then says that it is done:

        >>> class ReaderOnly:
        ...     def reset(self, observation, info):
        ...         self.done = False
        ...
        ...     def act(self, observation, info):
        ...         execution = info.get("execution")
        ...         self.done = self.done or (execution is not None and execution["success"])
        ...         return "<finish/>" if self.done else "<tool_call>file_operations_reader</tool_call>"
        >>> from resilisim.policies.checks import check_policy
        >>> check_policy(ReaderOnly())
        []

    Nothing may be carried over from one episode to the next, so that episodes can be run in any order and by several
    processes; a policy is handed to these by its name (`registry`), never by its state.

    Two class attributes are optional: `name` (str), under which results are shown, and `privileged` (bool). A policy
    with `privileged = True` is also told the required list, the problem and the state of the episode, and its results
    are marked; to any other these are not shown. A method `memory_beside_state` is optional, too (`memory_of`).
    """

    def reset(self, observation: str, info: Info) -> None:
        """Begin an episode with its prompt and the environment's info at the start."""
        ...

    def act(self, observation: str, info: Info) -> str | None:
        """Return the next message, or None to stop.

        Under the native protocol a message is an OpenAI-style assistant message as JSON text, or as a mapping.

        Args:
            observation: The prompt at the first call of an episode, then the reply to the last message.
            info: The environment's info with that observation.
        """
        ...


@runtime_checkable
class SessionAgent(Protocol):
    """An agent with a loop of its own: it plays a session instead of being asked for one message after the other.

    One with a coroutine `aclose` is told by it that the event loop is about to end, and to close its connections.

    Example:
        >>> from resilisim.policies import SessionAgent
        >>> from resilisim.policies.function_agent import FunctionAgent
        >>> isinstance(FunctionAgent(lambda session: "done"), SessionAgent)
        True
    """

    @property
    def name(self) -> str:
        """The name under which its results are shown."""
        ...

    async def play_session(
        self, session: Session, *, identity: str = "", journal: Journal | None = None
    ) -> AgentRecord:
        """Play a session to its end, and return the agent's part of the record; many can be under way at once.

        Args:
            session: The episode.
            identity: Tells the episode from others and nothing else (a hash).
            journal: Keeps the replies of models while the episode is under way; None keeps none.
        """
        ...


# Whoever can play.
Contender: TypeAlias = "Policy | SessionAgent"


def is_privileged(policy: object) -> bool:
    """Return whether a policy asks to see what ordinary ones must not."""
    return bool(getattr(policy, "privileged", False))


def is_ours(policy: Contender) -> bool:
    """Return whether whoever plays is code of this package alone, so that an exception of it is a bug of ours."""
    return type(policy).__module__.partition(".")[0] == "resilisim" and not getattr(
        policy, "runs_code_of_others", False
    )


def policy_name(policy: object) -> str:
    """Return the name under which a policy's results are shown."""
    name = getattr(policy, "name", None)
    return name if isinstance(name, str) and name else type(policy).__name__


def memory_of(policy: object) -> Hashable | None:
    """Return what a policy's further messages depend on besides the state of its episode; None if nobody can say.

    A policy's class says so by a method `memory_beside_state` of its own; one that it inherits does not count. The same
    memory in the same state (what has succeeded and failed, turns, what is known under a law with parts), after the
    same message and result, means the same messages from there on. Which error a failure shows and what a success
    returns must not matter, unless there is an attribute `reads_words = True`. And `copy.copy` must give a policy that
    goes on by itself. Such policies are explored state by state.
    """
    memory = vars(type(policy)).get("memory_beside_state")
    return memory(policy) if callable(memory) else None


def act_together(
    policies: Sequence[Policy], observations: Sequence[str], infos: Sequence[Info]
) -> Iterable[str | None]:
    """Return the next message of each of some copies of a policy, which stand in episodes of the same task.

    A policy whose class has a method `act_together` of its own, such as one that asks a network, is asked once for all.
    """
    together = vars(type(policies[0])).get("act_together")
    if callable(together):
        messages: Iterable[str | None] = together(policies, observations, infos)
        return messages
    shown = zip(policies, observations, infos, strict=True)
    return (policy.act(observation, info) for policy, observation, info in shown)


def play(policy: Policy, session: Session) -> None:
    """Ask a policy for one message after the other until the episode has ended."""
    reply = session.reply
    policy.reset(reply.observation, reply.info)
    while not reply.ended:
        reply = session.send(policy.act(reply.observation, reply.info))


def search_message(query: str) -> str:
    """Return the message that searches for tools."""
    return f"<tool_search>{query.replace('<', ' ')}</tool_search>"


def info_message(tool: str) -> str:
    """Return the message that asks for everything about a tool."""
    return f"<tool_info>{tool}</tool_info>"


def call_message(tool: str, parameters: Mapping[str, Any] | None = None) -> str:
    """Return the message that runs a tool."""
    shown = f" {inline_json(parameters)}" if parameters else ""
    if "<" in tool:  # where a tag could begin or end
        call = json.dumps({"name": tool, "arguments": dict(parameters or {})}, ensure_ascii=False, default=str)
        return f"<tool_call>{call.replace('<', chr(92) + 'u003c')}</tool_call>"
    return f"<tool_call>{tool}{shown}</tool_call>"


def is_closing(info: Info) -> bool:
    """Return whether only the closing message is left, which runs nothing."""
    return info.get("turns_left") == 0


def succeeded_tool(info: Info) -> str | None:
    """Return the tool that the last message ran successfully, or None."""
    execution = info.get("execution")
    return str(execution["tool"]) if execution is not None and execution["success"] else None
