"""The tools of Conversation-v0 as a toolbox: searching, asking and calling, each one message and one turn."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from resilisim.chat.json_answers import NotALiteral
from resilisim.chat.unwrapping import arguments_object
from resilisim.envs.conversation import MAX_MESSAGE_LENGTH
from resilisim.envs.protocol.native_messages import AssistantMessage, native_call
from resilisim.envs.protocol.native_tools import WAIT_FUNCTION, native_tools
from resilisim.envs.reply import CallResult, Reply
from resilisim.errors import nearest_name
from resilisim.policies.base import WAIT_TEXT, call_message, info_message, search_message
from resilisim.policies.llm.tools import ToolSpec

Send = Callable[[AssistantMessage], Awaitable[Reply]]

_NAME = re.compile(r"[\w.\-]{1,200}\Z")
# A name as some servers have it, which is only taken for one where it was shown.
_ODD_NAME = re.compile(r"[^<>\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,200}\Z")
_EXCERPT_LENGTH = 200


class ConversationToolbox:
    """`tool_search`, `tool_info` and `tool_call` of Conversation-v0, for an agent that was told to do `work`.

    A call by the name of a library tool that the environment has shown, in the work or in a reply, is taken as
    `tool_call` of that tool. Replies say how whoever reads them ends the episode (`finish`); nothing if it cannot.
    `functions` are what the environment offers to be called, if it says so: `specs` are these, all but `finish`.
    """

    def __init__(
        self,
        send: Send,
        work: str,
        native: bool = False,
        finish: str = "",
        functions: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.functions = list(functions or native_tools())
        self.specs = _specs_of(self.functions)
        self._send = send
        self._native = native
        self._finish = finish
        self._shown = [work]  # and not how calls are written, whose words ("finish") are no names of tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Call a tool; only what is really sent uses a turn."""
        try:
            function, checked = self._read(name, arguments)
        except _NoCallError as problem:
            return CallResult.refused(str(problem))
        text = _tag(function, checked)
        if len(text) > MAX_MESSAGE_LENGTH:  # under the native protocol, too: both are to give the same episodes
            return CallResult.refused(f"the call has {len(text):,} characters: expected at most {MAX_MESSAGE_LENGTH:,}")
        result = CallResult.of(await self._send(native_call(function, checked) if self._native else text), self._finish)
        self._shown.append(result.text)
        return result

    def message(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return a call as a message of the text protocol; None if it is none that can be sent."""
        try:
            return _tag(*self._read(name, arguments))
        except _NoCallError:
            return None

    def _read(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the environment's function and its arguments."""
        try:
            arguments = _plain(dict(arguments))
        except (TypeError, ValueError, RecursionError) as error:
            words = " ".join(str(error).split())[:_EXCERPT_LENGTH]
            raise _NoCallError(f"the arguments are no JSON: {words}") from None
        if name == "tool_search":
            query = arguments.get("query")
            # In a tag a query cannot hold "<"; it is left out everywhere, so that both protocols ask for the same.
            words = " ".join(query.replace("<", " ").split()) if isinstance(query, str) else ""
            if set(arguments) != {"query"} or not words:
                raise _NoCallError(f"tool_search needs a text 'query' and nothing else, not {_excerpt(arguments)}")
            return name, {"query": words}
        if name == "tool_info":
            tool = arguments.get("name")
            if set(arguments) != {"name"} or not isinstance(tool, str) or not self._may_be_tool(tool.strip()):
                raise _NoCallError(f"tool_info needs the 'name' of a tool and nothing else, not {_excerpt(arguments)}")
            return name, {"name": tool.strip()}
        if name == WAIT_FUNCTION and any(spec.name == name for spec in self.specs):
            return name, {}
        if name == "tool_call":
            return self._read_call(arguments)
        is_known = any(name == spec.name for spec in self.specs) or self._was_shown(name)
        if is_known and not any(map(str.isspace, name)) and self._may_be_tool(name):
            return "tool_call", {"name": name, "parameters": dict(arguments)}
        known = [spec.name for spec in self.specs]
        names = ", ".join(known)
        near = nearest_name(name[:_EXCERPT_LENGTH], known)
        hint = f"did you mean {near!r}? Expected " if near else "expected "
        raise _NoCallError(f"unknown tool {name[:_EXCERPT_LENGTH]!r}: {hint}{names}, or a tool that was shown")

    def _read_call(self, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        tool = arguments.get("name")
        if not isinstance(tool, str) or not self._may_be_tool(tool.strip()):
            raise _NoCallError(f"tool_call needs the 'name' of a tool, not {_excerpt(arguments)}")
        try:
            parameters = arguments_object(arguments.get("parameters"))
        except NotALiteral:
            raise _NoCallError(
                f"tool_call: 'parameters' are {_excerpt(arguments['parameters'])}, expected a JSON object"
            ) from None
        others = {name: value for name, value in arguments.items() if name not in ("name", "parameters")}
        return "tool_call", {"name": tool.strip(), "parameters": {**parameters, **others}}

    def _may_be_tool(self, name: str) -> bool:
        return _NAME.match(name) is not None or (_ODD_NAME.match(name) is not None and self._was_shown(name))

    def _was_shown(self, name: str) -> bool:
        word = re.compile(rf"(?<![\w.\-]){re.escape(name)}(?![\w\-])")
        return any(name in text and word.search(text) for text in self._shown)


class _NoCallError(ValueError):
    """What is called cannot be sent; the text says why, on one line."""


def _plain(value: Any) -> Any:
    """Return what JSON makes of a value: the environment will read exactly that, whatever the protocol."""
    return json.loads(json.dumps(value, allow_nan=False))


def _tag(function: str, arguments: Mapping[str, Any]) -> str:
    if function == "tool_search":
        return search_message(arguments["query"])
    if function == "tool_info":
        return info_message(arguments["name"])
    if function == WAIT_FUNCTION:
        return WAIT_TEXT
    return call_message(arguments["name"], arguments["parameters"])


def _excerpt(value: object) -> str:
    text = " ".join(json.dumps(value, ensure_ascii=False, default=str).split())
    return text if len(text) <= _EXCERPT_LENGTH else text[:_EXCERPT_LENGTH] + "..."


def _specs_of(functions: Sequence[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """Return functions as tools of an agent, all but `finish`: how to end is each agent's own affair."""
    return tuple(
        ToolSpec(
            function["name"],
            function["description"],
            # Parameters of the tool that is called may also stand beside its name.
            {**function["parameters"], "additionalProperties": function["name"] == "tool_call"},
        )
        for function in (entry["function"] for entry in functions)
        if function["name"] != "finish"
    )


CONVERSATION_TOOLS = _specs_of(native_tools())
