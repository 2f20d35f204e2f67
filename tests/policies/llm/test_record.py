"""The agent's part of a record: messages stand once, and every request can be put together again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import ChatMessage, ChatReply, ChatRequest, ToolCall
from resilisim.chat.types import TokenUsage
from resilisim.policies.llm.record import Transcript

TEXTS = st.text(st.characters(exclude_categories=[]), max_size=5) | st.sampled_from(["again", "and again"])
TOOL_CALLS = st.builds(ToolCall, TEXTS, TEXTS, TEXTS)
MESSAGES = st.builds(
    ChatMessage,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXTS,
    st.lists(TOOL_CALLS, max_size=2).map(tuple),
    st.none() | TEXTS,
)
TOOLS = st.sampled_from(["a", "b"]).map(lambda name: {"type": "function", "function": {"name": name}})
REQUESTS = st.builds(
    ChatRequest,
    messages=st.lists(MESSAGES, min_size=1, max_size=4).map(tuple),
    role=st.sampled_from(["planner", "extractor", "agent"]),
    tools=st.lists(TOOLS, max_size=2).map(tuple),
    stop=st.lists(TEXTS, max_size=2).map(tuple),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1),
    max_tokens=st.none() | st.integers(1, 100),
    seed=st.none() | st.integers(0, 2**31 - 1),
)
REPLIES = st.builds(
    ChatReply,
    TEXTS,
    st.lists(TOOL_CALLS, max_size=2).map(tuple),
    st.builds(TokenUsage, st.integers(0, 1000), st.integers(0, 1000), st.booleans()),
    latency_seconds=st.floats(0, 100),
    from_cache=st.booleans(),
)
CALLS = st.lists(st.tuples(REQUESTS, REPLIES, st.integers(0, 9), st.none() | st.floats(0, 1)), max_size=6)


def transcript_of(calls):
    transcript = Transcript()
    for request, reply, turn, cost in calls:
        transcript.add_call(request, reply, "model", turn, cost)
    return transcript


def request_again(call, messages):
    """Put a request together from a record that was saved and loaded."""
    settings = call["settings"]
    return ChatRequest(
        messages=tuple(message_again(messages[number]) for number in call["messages"]),
        role=call["role"],
        tools=tuple({"type": "function", "function": {"name": name}} for name in call["tools"]),
        stop=tuple(settings.get("stop", ())),
        temperature=settings.get("temperature"),
        top_p=settings.get("top_p"),
        max_tokens=settings.get("max_tokens"),
        seed=settings.get("seed"),
    )


def message_again(mapping):
    calls = tuple(ToolCall(**call) for call in mapping.get("tool_calls", ()))
    return ChatMessage(mapping["role"], mapping["content"], calls, mapping.get("tool_call_id"))


def loaded(value):
    return json.loads(json.dumps(value, allow_nan=False))


def as_stored(value):
    """A request or reply as JSON stores its texts (two surrogates that belong together are one character)."""
    return loaded(value.content() if isinstance(value, ChatRequest) else value.to_mapping())


@given(CALLS)
def test_every_request_and_reply_can_be_put_together_again(calls):
    transcript = transcript_of(calls)
    messages, written = loaded(transcript.messages), loaded(transcript.calls)
    assert len(written) == len(calls)
    for call, (request, reply, turn, cost) in zip(written, calls, strict=True):
        again = request_again(call, messages)
        assert as_stored(again) == as_stored(request)
        assert again.role == request.role
        assert as_stored(ChatReply.from_mapping(call["reply"])) == as_stored(reply)
        assert (call["from_cache"], call["turn"], call["cost"]) == (reply.from_cache, turn, cost)
    firsts = list(dict.fromkeys(number for call in transcript.calls for number in call["messages"]))
    assert firsts == list(range(len(messages))), "each stands once, in the order in which they were said"
    assert len(messages) == len({message for request, *_ in calls for message in request.messages})


@given(CALLS)
def test_sums_of_components(calls):
    transcript = transcript_of(calls)
    components = transcript.components(("planner", "agent"))
    assert sum(usage["calls"] for usage in components.values()) == len(calls)
    tokens = sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in components.values())
    assert tokens == transcript.total_tokens
    for role, usage in components.items():
        own = [(reply, cost) for request, reply, _, cost in calls if request.role == role]
        assert usage["calls"] == len(own) > 0
        assert usage["prompt_tokens"] == sum(reply.usage.prompt_tokens for reply, _ in own)
        assert usage["completion_tokens"] == sum(reply.usage.completion_tokens for reply, _ in own)
        assert usage["is_estimate"] == any(reply.usage.is_estimate for reply, _ in own)
        assert usage["from_cache"] == sum(reply.from_cache for reply, _ in own)
        assert usage["latency_seconds"] == pytest.approx(sum(reply.latency_seconds for reply, _ in own))
        costs = [cost for _, cost in own]
        assert usage["cost"] is None if None in costs else usage["cost"] == pytest.approx(sum(costs))
    assert loaded(components) == components


def test_components_stand_in_the_order_of_the_agent_and_only_those_that_asked():
    calls = [
        (ChatRequest((ChatMessage("user", "x"),), role), ChatReply("y"), 0, None)
        for role in ("reasoner", "extractor", "planner", "extractor")
    ]
    order = ("planner", "replanner", "extractor")
    assert list(transcript_of(calls).components(order)) == ["planner", "extractor", "reasoner"]
    assert Transcript().components(order) == {}
