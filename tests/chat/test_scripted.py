"""Scripted models, from Python and from a file; estimates of tokens."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import ChatMessage, ChatReply, ChatRequest, ScriptedChatModel, TokenUsage, ToolCall, make_chat_model
from resilisim.chat.middleware import ChatModelSettings, ResponseCache
from resilisim.chat.models import model_identity
from resilisim.chat.scripted_models import FileScriptedChatModel, ScriptedReply, ScriptError, call_number
from resilisim.chat.types import estimated_prompt_tokens, estimated_tokens
from resilisim.errors import InvalidInputError


def asked(model, scope="", role="agent"):
    request = ChatRequest((ChatMessage("user", "What now?"),), role=role, cache_scope=scope)
    return asyncio.run(model.complete(request))


@pytest.fixture
def script(tmp_path):
    """A function that writes a script's lines, texts as they stand, and makes its model."""
    path = tmp_path / "replies.jsonl"

    def write(*lines, **options):
        texts = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
        path.write_bytes("".join(texts).encode())
        return make_chat_model(f"scripted:{path}", **options)

    return write


def test_estimates_follow_their_rule():
    assert [estimated_tokens(text) for text in ("", "abcd", "abcde", "äöü", "\ud83d")] == [0, 1, 2, 2, 1]
    request = ChatRequest((ChatMessage("user", "abcd"),), tools=({"a": 1},))
    assert estimated_prompt_tokens(request) == 4 + 1 + 2


def test_a_script_is_followed_and_not_exceeded():
    third = ScriptedReply("third", expect="now", role="agent")
    model = ScriptedChatModel(["first", ChatReply("second"), third, lambda request: request.messages[0].content])
    first = asked(model)
    assert (first.text, first.usage) == ("first", TokenUsage(7, 2, is_estimate=True))
    assert [asked(model).text for _ in range(3)] == ["second", "third", "What now?"]
    assert model.remaining == 0
    with pytest.raises(ScriptError, match=r"4 replies .*What now\?"):
        asked(model)
    assert len(model.requests) == 5
    for line in (ScriptedReply("x", expect="later"), ScriptedReply("x", role="extractor")):
        with pytest.raises(ScriptError, match="reply 1"):
            asked(ScriptedChatModel([line]))
    with pytest.raises(OSError, match="as scripted"):
        asked(ScriptedChatModel([OSError("as scripted")]))


def test_everything_that_a_line_may_say(script):
    calls = [
        {"name": "add", "arguments": {"x": 1}},
        {"id": "b", "name": "go", "arguments": '{"broken'},
        {"name": "bare"},
    ]
    model = script(
        "\ufeff\n",
        {"reply": "first"},
        {"reply": "", "role": "planner", "expect": "now", "tool_calls": calls},
        {"reply": "third", "finish_reason": "length", "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
        '{"reply": "a\u2028b\u0085"}\r\n',  # only line ends end lines
        {"reply": "half a\ud83d"},
    )
    assert isinstance(model, FileScriptedChatModel)
    first, second, third = asked(model), asked(model, role="planner"), asked(model)
    assert (first.text, first.finish_reason, first.usage) == ("first", "stop", TokenUsage(7, 2, is_estimate=True))
    assert second.tool_calls == (
        ToolCall("call_0", "add", '{"x": 1}'),
        ToolCall("b", "go", '{"broken'),
        ToolCall("call_2", "bare", "{}"),
    )
    assert second.finish_reason == "tool_calls"
    assert second.usage.completion_tokens > 0
    assert (third.finish_reason, third.usage) == ("length", TokenUsage(9, 2))
    assert [asked(model).text for _ in range(2)] == ["a\u2028b\u0085", "half a\ud83d"]
    with pytest.raises(ScriptError, match="5 replies and was asked for reply 6"):
        asked(model)


def test_conditions_are_checked(script):
    model = script({"reply": "a", "role": "planner"}, {"reply": "b", "expect": "later"})
    with pytest.raises(ScriptError, match="reply 1 is for 'planner', and 'agent' asks"):
        asked(model)
    with pytest.raises(ScriptError, match="reply 2 expects 'later'") as caught:
        asked(model)
    assert isinstance(caught.value, InvalidInputError)  # commands tell a user in one line
    assert str(caught.value).startswith(model.name)


def test_many_episodes_are_served_at_once_and_each_from_its_start(script):
    model = script(*({"reply": f"reply {number}"} for number in range(5)))
    calls = [(episode, call) for episode in ("e1", "e#2", "") for call in range(5)]
    random.Random(1).shuffle(calls)
    for episode, call in calls * 2:
        assert asked(model, f"{episode}#{call}").text == f"reply {call}"
    assert asked(model).text == "reply 0"  # those in order have a position of their own
    with pytest.raises(ScriptError, match="asked for reply 6"):
        asked(model, "e1#5")


@given(st.text(), st.integers(0, 10**6))
def test_a_scope_names_its_call(episode, call):
    assert call_number(f"{episode}#{call}") == call
    assert call_number(f"{episode}#{call}x") is None
    assert call_number(f"#{call}#") is None
    assert call_number("e#\u0663") is None  # a digit, but not one that anybody writes here


def test_a_scripted_model_is_never_cached_and_told_by_its_content(script, tmp_path):
    cache = ResponseCache(tmp_path / "cache")
    model = script({"reply": "a"}, {"reply": "b"}, settings=ChatModelSettings(), cache=cache)
    assert [asked(model).text for _ in range(2)] == ["a", "b"]
    identities = [model_identity(model.name) for _ in range(2)]
    script({"reply": "a"}, {"reply": "c"})
    assert identities[0] == identities[1] != model_identity(model.name)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not valid JSON at column 2"),
        ("[1]", "line 2: got [1]; expected an object with reply"),
        ('{"reply": 1}', "line 2, field 'reply': got 1; expected a string"),
        ('{"rply": "a"}', "line 2: unknown field 'rply': did you mean 'reply'?"),
        ("{}", "line 2, field 'reply': is missing; expected a string"),
        ('{"reply": "\\ud83d", "role": null}', "line 2, field 'role': got null; expected a string"),
        ('{"reply": "a", "tool_calls": {}}', "field 'tool_calls': got {}; expected an array of objects"),
        ('{"reply": "a", "tool_calls": [{"arguments": {}}]}', "item 1, field 'name': is missing; expected a string"),
        ('{"reply": "a", "tool_calls": [{"name": "b", "argument": {}}]}', "did you mean 'arguments'?"),
        ('{"reply": "a", "usage": {"prompt_tokens": -1}}', "got -1; expected a whole number, at least 0"),
        ("[" * 100_000, "line 2: JSON cannot be used: nested too deeply"),
    ],
)
def test_wrong_lines_are_refused_with_their_place(script, line, words):
    with pytest.raises(InvalidInputError) as caught:
        script({"reply": "fine"}, line)
    assert words in str(caught.value)
    assert "replies.jsonl'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_script_is_refused(tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name, words in {
        "missing": "does not exist",
        ".": "is a directory",
        "empty": "holds no replies",
        "bytes": "not UTF-8",
    }.items():
        with pytest.raises(InvalidInputError, match=words):
            make_chat_model(f"scripted:{tmp_path / name}")
