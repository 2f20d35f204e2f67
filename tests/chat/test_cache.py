from __future__ import annotations

import asyncio
import dataclasses
import json
import multiprocessing
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import (
    CachingChatModel,
    ChatMessage,
    ChatReply,
    ChatRequest,
    EndpointError,
    ResponseCache,
    ScriptedChatModel,
    TokenUsage,
    ToolCall,
)
from resilisim.chat.middleware import request_key

QUESTION = ChatRequest((ChatMessage("user", "Hello?"),), max_tokens=5)
REPLY = ChatReply("Hi. \ud83d", (ToolCall("1", "add", "{}"),), TokenUsage(3, 4), "length", "m", 0.25, 2)


def ask(model, request=QUESTION):
    return asyncio.run(model.complete(request))


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_answered_is_not_asked_again(tmp_path):
    scripted = ScriptedChatModel([REPLY])
    model = CachingChatModel(scripted, ResponseCache(tmp_path), "m at home")
    assert model.name == "scripted"
    assert ask(model) == REPLY
    assert ask(model) == dataclasses.replace(REPLY, from_cache=True)
    other_process = CachingChatModel(ScriptedChatModel([]), ResponseCache(tmp_path), "m at home")
    assert ask(other_process) == dataclasses.replace(REPLY, from_cache=True)
    assert len(scripted.requests) == 1


DIFFERENT = {
    "messages": (ChatMessage("user", "Hello!"),),
    "tools": ({"type": "function"},),
    "stop": ("x",),
    "temperature": 0.5,
    "top_p": 0.5,
    "max_tokens": 6,
    "seed": 0,
    "cache_scope": "episode 2, call 1",
}


def test_everything_that_can_change_an_answer_changes_the_key():
    keys = {request_key("m", dataclasses.replace(QUESTION, **{name: value})) for name, value in DIFFERENT.items()}
    keys |= {request_key("m", QUESTION), request_key("other", QUESTION)}
    assert len(keys) == len(DIFFERENT) + 2
    fields = {field.name for field in dataclasses.fields(ChatRequest)}
    assert fields == DIFFERENT.keys() | {"role"}
    assert request_key("m", dataclasses.replace(QUESTION, role="planner")) == request_key("m", QUESTION)


def test_keys_stay_what_they_were():
    """A cache that was paid for is still found after a change of how requests are described."""
    request = ChatRequest(
        (
            ChatMessage("system", "Be brief. \ud83d é"),
            ChatMessage("assistant", "", (ToolCall("a1", "add", '{"x": 1}'),)),
            ChatMessage("tool", "2", tool_call_id="a1"),
        ),
        role="planner",
        tools=({"type": "function", "function": {"name": "add"}},),
        stop=("END",),
        temperature=0.25,
        top_p=0.5,
        max_tokens=9,
        seed=3,
        cache_scope="e#0",
    )
    key = "f94864f4c9096f18350d0e510bce176b44093d412d017ef37548869da71a3d0f"
    assert request_key("openai:m at http://h/v1", request) == key


def test_failures_are_not_kept(tmp_path):
    scripted = ScriptedChatModel([EndpointError("down", 500), "up"])
    model = CachingChatModel(scripted, ResponseCache(tmp_path), "m")
    with pytest.raises(EndpointError):
        ask(model)
    assert files_of(tmp_path) == []
    assert ask(model).text == "up"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"Hi.", b"Ho."),
        lambda data: data.replace(b"resilisim-chat-1", b"resilisim-chat-0"),
        lambda data: b"[" * 100_000,
        lambda data: b"\xff\x00",
        lambda data: b"[]",
        lambda data: b'{"schema":"resilisim-chat-1"}',
    ],
    ids=["empty", "cut", "changed", "another version", "nested", "not text", "another form", "fields missing"],
)
def test_a_damaged_entry_is_asked_for_again_and_written_anew(tmp_path, damage):
    scripted = ScriptedChatModel([REPLY, REPLY])
    model = CachingChatModel(scripted, ResponseCache(tmp_path), "m")
    ask(model)
    [path] = files_of(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert request_key("m", QUESTION) not in ResponseCache(tmp_path)
    assert ask(model) == REPLY
    assert files_of(tmp_path) == [path]
    assert path.read_bytes() == whole
    assert ask(model).from_cache


def test_equal_requests_at_once_are_asked_once(tmp_path):
    class Slow:
        name = "slow"
        calls = 0

        async def complete(self, request):
            self.calls += 1
            await asyncio.sleep(0)
            return ChatReply(f"answer {self.calls}")

        async def aclose(self):
            pass

    slow = Slow()

    async def many():
        model = CachingChatModel(slow, ResponseCache(tmp_path), "m")
        return await asyncio.gather(*(model.complete(QUESTION) for _ in range(20)))

    assert {reply.text for reply in asyncio.run(many())} == {"answer 1"}
    assert slow.calls == 1


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    model = CachingChatModel(ScriptedChatModel(["a", "b"]), ResponseCache(tmp_path / "file"), "m")
    with pytest.warns(UserWarning, match="replies cannot be kept") as caught:
        texts = [ask(model).text for _ in range(2)]
    assert texts == ["a", "b"]
    assert len(caught) == 1


def _store_many(folder):
    cache = ResponseCache(folder)
    for number in range(200):
        cache.store(f"{number % 10:064x}", REPLY)
        reply = cache.load(f"{(number + 3) % 10:064x}")
        assert reply is None or reply.text == REPLY.text
    os._exit(0)  # as a kill would: nothing is tidied up


def test_processes_share_a_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_store_many, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    cache = ResponseCache(tmp_path)
    assert all(cache.load(f"{number:064x}") is not None for number in range(10))


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
replies = st.builds(
    ChatReply,
    text=texts,
    tool_calls=st.lists(st.builds(ToolCall, texts, texts, texts), max_size=2).map(tuple),
    usage=st.builds(TokenUsage, st.integers(0, 10**6), st.integers(0, 10**6), st.booleans()),
    finish_reason=texts,
    model=texts,
    latency_seconds=st.floats(0, 1e6),
    attempts=st.integers(1, 9),
)


@given(replies)
def test_replies_survive_json(reply):
    assert ChatReply.from_mapping(json.loads(json.dumps(reply.to_mapping()))) == reply
