"""The direct agent: what the model replies is the message to the environment, as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from annotated_types import Ge

from resilisim.chat import ChatMessage, ChatReply
from resilisim.envs.protocol.completion_signal import signals_completion
from resilisim.envs.protocol.message_reader import has_tag, through_first_call
from resilisim.envs.reply import Reply
from resilisim.envs.session import EpisodeEnded
from resilisim.policies.llm.agent_options import LENGTHS, AgentOptions, length
from resilisim.policies.llm.agent_run import CUT_OFF, AgentRun
from resilisim.policies.llm.agents.react import answered_calls, kept_calls
from resilisim.policies.llm.conversation_toolbox import ConversationToolbox
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.reply_reading import (
    NO_WORDS,
    Action,
    Unreadable,
    announces_action,
    excerpt,
    read_action,
    visible,
    without_invented,
)

# What an event of the environment says about the message that brought it about.
_EVENTS: Final = {
    "format_error": ("malformed_reply", "malformed_replies"),
    "rejected": ("invalid_action", "invalid_actions"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectOptions(AgentOptions):
    """Options of the direct agent."""

    history_chars: Annotated[int, Ge(200)] | None = length(
        "history_chars", "characters after which an observation is cut in the chat"
    )


class Direct(LlmPolicy[DirectOptions]):
    """A chat with the environment: one reply of the model is one message, as it stands.

    The environment reads tags, native calls and completion signals, and answers what it cannot read with a reminder.
    It also ends the episode; the agent has no answer of its own. Only a call that is written in another form, such as
    `Action: NAME {json}`, is put into the tags that the environment reads. Under a terse prompt it adds no instructions
    of its own.
    """

    name = "direct"
    options_class = DirectOptions
    components = ("agent",)
    uses_native_calls = True

    async def play(self, run: AgentRun) -> str | None:
        """Pass messages on until the environment ends the episode."""
        functions = run.tools.functions if run.native and isinstance(run.tools, ConversationToolbox) else []
        chat = [] if run.terse else [ChatMessage("system", self.prompts.fill("system", facts=run.facts))]
        chat.append(ChatMessage("user", run.prompt))
        while True:
            reply = await run.ask("agent", chat, tools=functions)
            try:
                answer = await run.send(_native_message(reply) if run.native else _in_tags(reply.text, run))
            except EpisodeEnded as end:
                if end.reply is not None:
                    _note(run, reply, end.reply)
                raise
            _note(run, reply, answer)
            chat += self._exchange(reply, answer, run.length("history_chars"))

    def _exchange(self, reply: ChatReply, answer: Reply, longest: int) -> list[ChatMessage]:
        """Return what the chat keeps of a turn: the reply without thoughts, and what the environment said."""
        words = excerpt(
            without_invented(through_first_call(visible(reply.text))), min(longest, LENGTHS["history_chars"][0])
        )
        observation = excerpt(answer.text, longest)
        if reply.is_cut and answer.info.get("event") in _EVENTS:
            observation = f"{CUT_OFF[:1].upper()}{CUT_OFF[1:]}.\n\n{observation}"
        calls = kept_calls(reply.tool_calls)
        if calls:
            return answered_calls(words, calls, observation)
        return [ChatMessage("assistant", words or NO_WORDS), ChatMessage("user", observation)]


def _in_tags(text: str, run: AgentRun) -> str:
    """Return a reply as it stands if it speaks the environment's form, else the call that it makes in another one.

    A message with a call is only a call, whatever is made up behind it; what stands alone behind the end is no call.
    """
    shown = visible(text)
    if has_tag(shown) or not isinstance(run.tools, ConversationToolbox):
        return text
    action = read_action(shown, run.tools.specs)
    if not isinstance(action, Action) or (signals_completion(action.thought) and not announces_action(shown)):
        return text
    return run.tools.message(action.name, action.arguments) or text


def _native_message(reply: ChatReply) -> Mapping[str, Any]:
    """Return a reply as the assistant message that it is."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = [call.to_openai() for call in reply.tool_calls]
    return message


def _note(run: AgentRun, reply: ChatReply, answer: Reply) -> None:
    """Write down what the environment could not use."""
    event = str(answer.info.get("event"))
    if event not in _EVENTS:
        return
    kind, counter = _EVENTS[event]
    problems = answer.info.get("problems") or [answer.text]
    words = reply.text or " ".join(f"{call.name} {call.arguments}" for call in reply.tool_calls[:1])
    run.note(kind, "agent", str(problems[0]), excerpt=excerpt(words))
    run.count(counter)
    action = read_action(reply.text)
    if event == "format_error" and isinstance(action, Unreadable) and action.is_strange:
        run.count("unknown_forms")
