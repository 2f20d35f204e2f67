"""The conversation of a loop: what the model is asked, what it wants, and how both are kept.

What is kept of a reply is put together anew from what was read, so neither an invented observation nor a second action
stays in the conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from resilisim.chat import ChatMessage, ChatReply, ToolCall
from resilisim.policies.llm.reading import Action, Unreadable, excerpt, read_action, read_arguments, visible
from resilisim.policies.llm.run import AgentRun
from resilisim.policies.llm.templates import PromptTexts
from resilisim.policies.llm.tools import ToolSpec

STOP: Final = ("\nObservation:",)
MOST_CALLS_KEPT: Final = 8  # of one reply; only the first one is carried out
LONGEST_WORDS: Final = 2_000  # characters that are kept of a reply without an action
LONGEST_NAME: Final = 64  # endpoints take no longer names of functions
IGNORED: Final = "Ignored: only the first call of a reply is carried out."
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model wrote in one step.

    Attributes:
        thought: Its words before the action.
        wish: The action, or why none could be read.
        words: The reply without thoughts, cut; what is kept where there is no action.
        calls: Its native calls, as they are kept.
    """

    thought: str
    wish: Action | Unreadable
    words: str
    calls: tuple[ToolCall, ...] = ()


class Dialogue:
    """The messages of a loop so far.

    Args:
        system: The instructions.
        question: What there is to do.
    """

    def __init__(self, system: str, question: str) -> None:
        self.messages = [ChatMessage("system", system), ChatMessage("user", question)]

    def add(self, turn: Turn, observation: str) -> None:
        """Add a step: what the model wrote, and what came of it."""
        if turn.calls:
            self.messages.append(ChatMessage("assistant", turn.thought, tool_calls=turn.calls))
            replies = [observation, *(IGNORED for _ in turn.calls[1:])]
            for call, reply in zip(turn.calls, replies, strict=True):
                self.messages.append(ChatMessage("tool", reply, tool_call_id=call.id))
            return
        self.messages.append(ChatMessage("assistant", _written(turn)))
        self.messages.append(ChatMessage("user", f"Observation: {observation}"))


async def ask_for_turn(
    run: AgentRun,
    role: str,
    dialogue: Dialogue,
    specs: Sequence[ToolSpec],
    functions: Sequence[Mapping[str, Any]],
    texts: PromptTexts,
) -> Turn:
    """Ask for the next action; where the reply holds none, ask once more for the action alone.

    Args:
        run: The episode.
        role: The component that asks.
        dialogue: The conversation so far.
        specs: The tools on offer.
        functions: The same for native calls; empty for text.
        texts: Holds `retry` and `retry_native`.
    """
    turn = await _ask(run, role, dialogue.messages, specs, functions)
    if not isinstance(turn.wish, Unreadable) or turn.wish.name is not None:
        return turn
    run.count("asked_for_action_alone")
    retry = texts.fill("retry_native" if functions else "retry", problem=turn.wish.problem)
    again = [ChatMessage("assistant", _written(turn)), ChatMessage("user", retry)]
    second = await _ask(run, role, [*dialogue.messages, *again], specs, functions)
    return Turn(turn.thought or second.thought, second.wish, second.words or turn.words, second.calls)


async def _ask(
    run: AgentRun,
    role: str,
    messages: Sequence[ChatMessage],
    specs: Sequence[ToolSpec],
    functions: Sequence[Mapping[str, Any]],
) -> Turn:
    reply = await run.ask(role, messages, stop=() if functions else STOP, tools=functions)
    turn = _native_turn(reply) if functions and reply.tool_calls else _text_turn(reply.text, specs)
    if isinstance(turn.wish, Unreadable):
        return replace(turn, wish=run.unreadable(role, reply, turn.wish))
    return turn


def _text_turn(text: str, specs: Sequence[ToolSpec]) -> Turn:
    wish = read_action(text, specs)
    return Turn(wish.thought, wish, excerpt(visible(text), LONGEST_WORDS))


def kept_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return native calls as a conversation can keep them, so that no endpoint refuses it later.

    The first ones are kept, with ids that differ, names made of permitted characters, and arguments that are JSON.
    """
    kept = calls[:MOST_CALLS_KEPT]
    ids = [call.id for call in kept]
    usable = all(ids) and len(set(ids)) == len(ids)
    return tuple(
        ToolCall(call.id if usable else f"call_{number}", _function_name(call.name), _kept_arguments(call.arguments))
        for number, call in enumerate(kept, start=1)
    )


def _native_turn(reply: ChatReply) -> Turn:
    """Read the first call of a reply; the others are kept, since each wants an answer."""
    kept = kept_calls(reply.tool_calls)
    thought = excerpt(visible(reply.text), LONGEST_WORDS)
    name = excerpt(reply.tool_calls[0].name.strip(), 200)
    arguments = read_arguments(reply.tool_calls[0].arguments)
    if isinstance(arguments, Unreadable):
        problem = f"the arguments of {name} cannot be read: {arguments.problem}"
        return Turn(thought, Unreadable(problem, arguments.excerpt, name or "(no name)", thought), thought, kept)
    return Turn(thought, Action(name, arguments, thought), thought, kept)


def _function_name(name: str) -> str:
    # Endpoints refuse a conversation in which a function has another name than they allow.
    return _NOT_IN_NAMES.sub("_", name.strip())[:LONGEST_NAME] or "unnamed"


def _kept_arguments(raw: str) -> str:
    # Some endpoints read the arguments of earlier calls and fail where these are no JSON.
    given = read_arguments(raw)
    return json.dumps({"unreadable": given.excerpt} if isinstance(given, Unreadable) else given, ensure_ascii=False)


def _written(turn: Turn) -> str:
    """Return a step as the model should have written it; its own words, cut, where it wanted nothing."""
    if isinstance(turn.wish, Unreadable):
        return turn.words or "(an empty reply)"
    thought = f"Thought: {turn.thought}\n" if turn.thought else ""
    return f"{thought}Action: {turn.wish.name} {json.dumps(turn.wish.arguments, ensure_ascii=False)}"
