"""Episodes as chat messages, in the form in which models are trained on them.

Where a prompt asks for it, "Reasoning:" says in a sentence why a message is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from resilisim.datasets.rollout import ArgumentsForm, Stage
from resilisim.datasets.schema import JSON_TYPE, Column, DataType, Record, json_problem
from resilisim.envs.protocol import read_native, read_text
from resilisim.policies.scripted import ordered_steps
from resilisim.simulator import Message, Problem
from resilisim.simulator.law import FAILED, SUCCEEDED
from resilisim.simulator.state import EpisodeState, is_done
from resilisim.workflows.templating import escape_line

# What an agent that makes the mistake would think, for prompts that ask for its reasoning.
MISTAKEN_REASONS: Final[Mapping[str, str]] = {
    "missing_dependency_first": "This tool does what the work order asks for, so I run it at once.",
    "wrong_order": "The work order asks for this, too, so I do it now.",
    "unneeded_tool": "This tool might help with the work, so I run it.",
    "repeated_success": "I run this tool once more, to be on the safe side.",
    "suboptimal_choice": "This tool belongs to the work, so I run it next.",
    "wasted_turn": "There may be a better tool than those I know, so I look for one.",
    "repeated_search": "I ask once more, in case something else turns up.",
    "format_error": "I know which tool to run next.",
    "rejected_call": "I know how to call the tool for the next operation.",
    "gave_up_early": "What matters has been done, so I report completion.",
    "no_completion_signal": "There may be something left to do.",
}


def opening(description: str) -> str:
    """Return what the first message of an episode says about the whole work order."""
    steps = [f"{number}. {escape_line(step)}" for number, step in enumerate(ordered_steps(description), start=1)]
    return "\n".join(
        [
            "The work order asks for these operations, in this order:",
            *steps,
            "Each needs a tool that does it. A tool may depend on others, which then have to run before it.",
        ]
    )


def reasoning(problem: Problem, state: EpisodeState, message: Message) -> str:
    """Return the reason for a message; foreign text in it is escaped, so that it holds no tag.

    Args:
        problem: The task's numbers.
        state: The state in which the message is sent.
        message: An optimal message, one that looks something up, or the closing message of an episode that failed.
    """
    if message.kind == "search":
        return f"I look for a tool that does this: {escape_line(message.query or '')}."
    if message.kind == "info":
        return f"I need to know what {message.tool} takes and which tools have to run before it."
    if message.kind == "execute" and message.tool is not None:
        return _reason_of_call(problem, state, problem.library.index(message.tool))
    if is_done(problem, state):
        return "Everything that the work order asks for has succeeded, in its order, so I report completion."
    return "No turn is left and some of the work is still open, so I must not report completion."


def _reason_of_call(problem: Problem, state: EpisodeState, tool: int) -> str:
    names = problem.library.names
    name = names[tool]
    if state.status[tool] == FAILED:
        return f"{name} failed and is still needed. Any tool can fail, so I run it again."
    dependents = [
        names[other]
        for other in problem.closure
        if tool in problem.dependencies[other] and state.status[other] != SUCCEEDED
    ]
    if problem.place[tool] >= 0 and state.status[tool] != SUCCEEDED:
        missing = [names[other] for other in problem.dependencies[tool] if state.status[other] != SUCCEEDED]
        if missing:
            return (
                f"{name} does the next operation of the work order. It depends on {_listed(missing)}, but turns are "
                "too few for that, so I take the risk."
            )
        return f"{name} does the next operation of the work order, and what it depends on has succeeded."
    if dependents and state.status[tool] != SUCCEEDED:
        return f"{_listed(dependents)} depends on {name}, so I run {name} first to make success likelier."
    return f"{name} does none of the work, but is likely to succeed, and a success ends a row of failed runs."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_TAG = re.compile(r"<(tool_search|tool_info|tool_call)>.*?</\1>|<finish\s*/>", re.DOTALL | re.IGNORECASE)


def message_type(protocol: str, arguments: ArgumentsForm) -> DataType:
    """Return the type of a chat message: a native one can also hold calls, or answer one.

    With arguments as objects a native message is one JSON value, as chat templates take it: a struct would give every
    message the keys of all, and every call the arguments of all, null where there are none.
    """
    if protocol == "text":
        return {"role": "string", "content": "string"}
    if arguments == "object":
        return JSON_TYPE
    function: DataType = {"name": "string", "arguments": "string"}
    calls: DataType = [{"id": "string", "type": "string", "function": function}]
    return {"role": "string", "content": "string", "tool_calls": calls, "tool_call_id": "string"}


def tools_column(protocol: str, arguments: ArgumentsForm) -> Column:
    """Return the column of the functions' definitions."""
    objects = protocol == "native" and arguments == "object"
    form: DataType = [JSON_TYPE] if objects else "string"
    text = "" if objects else " as JSON text"
    return Column("tools", form, f"Definitions of the functions{text}; null in the text protocol.")


def schema_name(kind: str, protocol: str, arguments: ArgumentsForm) -> str:
    """Return name and version of the schema of a kind of played episodes: native ones have objects since version 2."""
    return f"resilisim-{kind}-{protocol}-{2 if protocol == 'native' and arguments == 'object' else 1}"


class Transcript:
    """An episode as chat messages, in the form of `message_type`.

    What a policy says in the text protocol becomes a native call where the stage's protocol is native, so that every
    policy can be recorded in both.

    Args:
        stage: Where the episode is played.
        prompt: The prompt, the first message.

    Attributes:
        messages: The messages so far, arguments of calls as JSON text.
    """

    def __init__(self, stage: Stage, prompt: str) -> None:
        self._stage = stage
        self.messages: list[Record] = [_message(stage.protocol, "user", prompt)]

    def column(self, messages: Sequence[Record] | None = None) -> list[Record]:
        """Return messages, those so far if none are given, as they stand in records."""
        chosen = self.messages if messages is None else messages
        return [self._record(message) for message in chosen]

    def _record(self, message: Record) -> Record:
        if self._stage.protocol == "text" or self._stage.arguments == "text":
            return message
        plain = {name: value for name, value in message.items() if value is not None}
        if "tool_calls" in plain:
            plain["tool_calls"] = [_with_object(call) for call in plain["tool_calls"]]
        return plain

    def assistant_message(self, action: str | Mapping[str, Any]) -> Record:
        """Return the message that a policy's action becomes if it is the next one."""
        if self._stage.protocol == "text":
            return _message("text", "assistant", cast("str", action))
        given = action if isinstance(action, Mapping) else _json_object(action)
        if given is not None:
            return _native_message(given)
        return _translate(cast("str", action), self._stage, call_id(len(self.messages)))

    def say(self, action: str | Mapping[str, Any]) -> Any:
        """Add a policy's action, and return what to send to the environment: a text, or a native message."""
        message = self.assistant_message(action)
        self.messages.append(message)
        return message["content"] if self._stage.protocol == "text" else message

    def hear(self, observation: str) -> None:
        """Add the environment's reply."""
        if self._stage.protocol == "text":
            self.messages.append(_message("text", "user", observation))
            return
        for reply in json.loads(observation):
            answered = reply.get("tool_call_id")
            self.messages.append(_message("native", reply["role"], reply["content"], call_id=answered))


def call_id(number: int) -> str:
    """Return an id for a call: nine letters and digits, which is what the pickiest chat templates want."""
    return f"call{number:05d}"


def _message(
    protocol: str, role: str, content: str, calls: list[Record] | None = None, call_id: str | None = None
) -> Record:
    message: Record = {"role": role, "content": content}
    return message if protocol == "text" else {**message, "tool_calls": calls, "tool_call_id": call_id}


def _native_message(given: Mapping[str, Any]) -> Record:
    """Return an OpenAI-style assistant message with the fields of `message_type` and no others."""
    content, calls = given.get("content"), given.get("tool_calls")
    listed = calls if isinstance(calls, list) else []
    kept = [_call_as_given(call) for call in listed if isinstance(call, Mapping)]
    return _message("native", "assistant", content if isinstance(content, str) else "", kept or None)


def _call_as_given(call: Mapping[str, Any]) -> Record:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return _function_call(str(call.get("id", "")), str(function.get("name", "")), text)


def _function_call(identity: str, name: str, arguments: str) -> Record:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _with_object(call: Record) -> Record:
    """Return a call with its arguments as an object; as they are where a policy wrote what is none."""
    function = call["function"]
    value = _json_object(function["arguments"])
    if value is None or json_problem(value, "arguments") is not None:
        return call
    return {**call, "function": {**function, "arguments": value}}


def _translate(text: str, stage: Stage, identity: str) -> Record:
    """Return a message of the text protocol as a native one that means the same; as it is where none does."""
    # The mode "ignore" does not even read parameters.
    read = read_text(text, stage.library, "lenient" if stage.parameters == "ignore" else stage.parameters)
    name, arguments = _native_function(read)
    if name is not None:
        call = _function_call(identity, name, json.dumps(arguments, ensure_ascii=False))
        message = _message("native", "assistant", _TAG.sub("", text).strip(), [call])
        if _meaning(read_native(message, stage.library, stage.parameters)) == _meaning(stage.read(text)):
            return message
    return _message("native", "assistant", text)


def _native_function(message: Message) -> tuple[str | None, dict[str, Any]]:
    if message.kind == "search":
        return "tool_search", {"query": message.query}
    if message.kind == "info":
        return "tool_info", {"name": message.tool}
    if message.kind == "finish":
        return "finish", {}
    if message.kind in ("execute", "rejected") and message.tool is not None:
        parameters = {"parameters": dict(message.parameters)} if message.parameters else {}
        return "tool_call", {"name": message.tool, **parameters}
    return None, {}


def _meaning(message: Message) -> tuple[object, ...]:
    return message.kind, message.tool, message.query, message.problems


def _json_object(text: str) -> Mapping[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
