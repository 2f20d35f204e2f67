"""Messages with native tool calls, and the answers to them: written and read as OpenAI-compatible endpoints do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from resilisim.chat import ToolCall
from resilisim.errors import one_line
from resilisim.inputs import finite_number

# A message to the environment: a text, one native call, or an OpenAI-style assistant message with native calls.
AssistantMessage: TypeAlias = str | ToolCall | Mapping[str, Any]

CUT_MARK = "\n[cut: too long]"  # ends a text that had to be cut
_LONGEST_REASON = 200


def native_calls(message: Mapping[str, Any]) -> list[Any]:
    """Return the calls of an assistant message: a list, a single one, or the one in the older field."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    single = calls if isinstance(calls, Mapping) and calls else message.get("function_call")
    return [single] if isinstance(single, Mapping) and single else []


def native_text(message: Mapping[str, Any]) -> str:
    """Return an assistant message as JSON text; one that JSON has no form for becomes one that cannot be read."""
    try:
        return _ENCODER.encode(message)
    except (TypeError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return json.dumps({"content": None, "tool_calls": [f"a message that is no JSON ({reason:.{_LONGEST_REASON}})"]})


def native_call(name: str, arguments: Mapping[str, Any] | str) -> ToolCall:
    """Return a call of a function of the environment, without arguments that are the empty object.

    Arguments that JSON has no form for become some that the environment refuses.
    """
    if not isinstance(arguments, str):
        try:
            arguments = _CALL_ENCODER.encode({key: value for key, value in arguments.items() if value != {}})
        except Exception as error:  # whatever the agent's own objects raise when they are written down
            arguments = f"no JSON: {one_line(error)}"
    return ToolCall("call_1", _with_whole_characters(str(name)), _with_whole_characters(arguments))


def _with_whole_characters(text: str) -> str:
    """Return a text as JSON reads it back: two surrogates that belong together are one character."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def call_text(call: ToolCall) -> str:
    """Return the text of a message that makes one call, as `native_text` has it, which is quicker put together."""
    encode = _ENCODER.encode
    return _CALL_MESSAGE.format(encode(call.id), encode(call.name), encode(call.arguments))


def openai_message(call: ToolCall) -> dict[str, Any]:
    """Return the assistant message that makes one call and says nothing else."""
    return {"role": "assistant", "content": None, "tool_calls": [call.to_openai()]}


def _plain_mapping(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds a {type(value).__name__}")


# Made once: `json.dumps` and `json.loads` with an option make one for every call.
_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain_mapping)
_CALL_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)
_CALL_MESSAGE = (
    '{{"role": "assistant", "content": null, "tool_calls": [{{"id": {}, "type": "function", '
    '"function": {{"name": {}, "arguments": {}}}}}]}}'
)


def decode_native(action: str) -> Mapping[str, Any]:
    """Return an assistant message from its JSON text; a text that is none is an answer without calls."""
    try:
        message = JSON_DECODER.decode(action)
    except (ValueError, RecursionError):
        return {"content": action}
    return message if isinstance(message, dict) else {"content": action}


def call_ids(message: Mapping[str, Any]) -> list[str]:
    """Return the id of each call of an assistant message; empty for what is no call or has no id."""
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in native_calls(message)]
    return [str(call_id) if isinstance(call_id, str | int) else "" for call_id in ids]


def presentable(text: str, longest: int) -> str:
    """Return an observation that lies in the observation space and can be sent anywhere as UTF-8."""
    if len(text) > longest:
        text = text[: longest - len(CUT_MARK)] + CUT_MARK
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def native_answers(text: str, ids: list[str], max_length: int) -> tuple[list[dict[str, str]], str]:
    """Return the messages that answer the calls, the first of which is the answer, and the JSON list of them.

    If that is too long, the last calls are left without an answer, then the text is cut, and says so.
    """
    answers, encoded = _answers(text, ids)
    if len(encoded) <= max_length:
        return answers, encoded
    lengths = itertools.accumulate(len(_answers("ignored", [call_id])[1]) for call_id in ids)
    kept = [call_id for call_id, length in zip(ids, lengths, strict=True) if length <= max_length // 2]
    # A character less in the text is at least one less in its JSON.
    excess = len(_answers(text + CUT_MARK, kept)[1]) - max_length
    return _answers(text[: len(text) - max(excess, 0)] + CUT_MARK, kept)


def _answers(text: str, ids: list[str]) -> tuple[list[dict[str, str]], str]:
    if not ids:
        replies = [{"role": "user", "content": text}]
    else:
        replies = [{"role": "tool", "tool_call_id": ids[0], "content": text}]
        replies += [{"role": "tool", "tool_call_id": call_id, "content": "ignored"} for call_id in ids[1:]]
    return replies, _ANSWER_ENCODER.encode(replies)


JSON_DECODER = json.JSONDecoder(parse_float=finite_number, parse_constant=finite_number)
_ANSWER_ENCODER = json.JSONEncoder(ensure_ascii=False)
