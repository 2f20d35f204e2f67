"""What an agent has during an episode: asking models within limits, and writing down what happens."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import (
    ChatMessage,
    ChatReply,
    ChatRequest,
    ContextOverflowError,
    EndpointError,
    RequestRefusedError,
    ScriptedChatModel,
    TokenUsage,
    ToolCall,
)
from resilisim.chat.json_answers import without_thoughts
from resilisim.chat.models import RoleModels
from resilisim.chat.prices import Price, PriceTable
from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.policies.agent_record import EVENT_KINDS, FAILING_COMPONENTS, WARNING_KINDS, Transcript
from resilisim.policies.llm.agent_options import AgentOptions, read_options
from resilisim.policies.llm.agent_run import AgentRun, EpisodeHooks, StopAgent
from resilisim.policies.llm.reply_reading import Unreadable
from tests.policies.llm.helpers import ScriptedToolbox

HELLO = [ChatMessage("user", "Hello")]


def run_of(*lines, identity="episode", hooks=None, **options):
    """A run without an environment, whose model says these lines."""
    model = ScriptedChatModel(lines)
    run = AgentRun(
        task="Say hello.",
        tools=ScriptedToolbox((), {}),
        models=RoleModels(model),
        options=read_options(AgentOptions, options),
        hooks=hooks or EpisodeHooks(identity=identity),
    )
    return run, model


def asked(run, times=1, role="agent", **settings):
    """Ask some times; return the replies."""

    async def ask():
        return [await run.ask(role, HELLO, **settings) for _ in range(times)]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("options", "limit", "text"),
    [
        ({"max_llm_calls": 2}, "max_llm_calls", "2 calls of the model were made"),
        ({"max_total_tokens": 150}, "max_total_tokens", "200 tokens were used"),  # the second call begins below it
    ],
)
def test_calls_and_tokens_are_limited_whatever_an_agent_catches(options, limit, text):
    run, model = run_of(*[ChatReply("x", usage=TokenUsage(70, 30))] * 3, **options)
    assert [reply.text for reply in asked(run, 2)] == ["x", "x"]

    async def careless():
        try:
            await run.ask("agent", HELLO)
        except Exception:
            return "swallowed"

    with pytest.raises(StopAgent) as stop:
        asyncio.run(careless())
    assert stop.value.limit == limit
    assert len(model.requests) == 2
    details = {"limit": limit}
    event = {"kind": "limit", "component": "agent", "text": text, "call": 2, "turn": 0, "details": details}
    assert run.transcript.events == [event]


def test_seeds_and_scopes_differ_by_call_and_episode_and_are_the_same_again():
    requests = {}
    for identity in ("one", "two", "one again"):
        run, model = run_of("a", "b", "c", identity=identity.split()[0])
        asked(run, 3)
        requests[identity] = model.requests
    assert [request.cache_scope for request in requests["two"]] == ["two#0", "two#1", "two#2"]
    assert requests["one"] == requests["one again"]
    seeds = [request.seed for identity in ("one", "two") for request in requests[identity]]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_requests_carry_the_options_unless_told_otherwise():
    run, model = run_of("a", "b", "c", temperature=0.3, top_p=0.9, max_tokens=50)
    tool = {"type": "function", "function": {"name": "t", "parameters": {}}}
    asked(run, role="planner", stop=("END",), tools=(tool,))
    asked(run, temperature=None, top_p=0.5, max_tokens=None)
    first, second = model.requests
    small = ScriptedChatModel(["small"], "small")
    run.models = RoleModels(model, {"extractor": small})
    assert asked(run, role="extractor")[0].text == "small", "each component asks its own model"
    assert [call["model"] for call in run.transcript.calls] == ["scripted", "scripted", "small"]
    assert (first.role, first.temperature, first.top_p, first.max_tokens) == ("planner", 0.3, 0.9, 50)
    assert (first.stop, first.tools, first.messages) == (("END",), (tool,), tuple(HELLO))
    assert (second.role, second.temperature, second.top_p, second.max_tokens) == ("agent", None, 0.5, None)


def test_a_reply_that_was_cut_off_is_counted_unless_it_went_on_behind_its_end():
    cut = [ChatReply(text, finish_reason="length", usage=TokenUsage(3, 8)) for text in ("go", "go STOP on")]
    run, _ = run_of(*cut)
    first, second = asked(run, 2, stop=("STOP",))
    assert (first.is_cut, second.is_cut) == (True, False)
    assert dict(run.transcript.counters) == {"cut_replies": 1}
    assert [(event["kind"], event["text"]) for event in run.transcript.events] == [
        ("cut_reply", "cut off after 8 tokens")
    ]
    problem = Unreadable("the reply holds no action", "go")
    told = run.unreadable("agent", first, problem).problem
    assert told.startswith("the reply was cut off, because it reached the limit of tokens")
    assert told.endswith("(the reply holds no action)")
    assert run.unreadable("agent", second, problem) == problem
    assert run.transcript.counters["malformed_replies"] == 2


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("Thought\nObservation: made up", ("\nObservation:",), "Thought"),
        ("a STOP b END c", ("END", "STOP"), "a "),
        ("nothing of it", ("STOP",), "nothing of it"),
        ("<think>STOP here?</think>go STOP on", ("STOP",), "<think>STOP here?</think>go "),
        ("STOP here?</think>go STOP on", ("STOP",), "STOP here?</think>go "),
        ("<THINK>STOP <think> STOP</think>go</think>STOP", ("STOP",), "<THINK>STOP <think> STOP</think>go</think>"),
        ("<think>never closed STOP on", ("STOP",), "<think>never closed "),
    ],
)
def test_text_after_a_stop_mark_is_cut_and_kept_in_the_record(text, stop, kept):
    run, _ = run_of(ChatReply(text, (ToolCall("1", "t", "{}"),), finish_reason="stop"))
    (reply,) = asked(run, stop=stop)
    assert reply.text == kept
    assert reply.tool_calls == (ToolCall("1", "t", "{}"),)
    assert run.transcript.calls[0]["reply"]["text"] == text
    assert not any(mark in without_thoughts(kept, blanks=True) for mark in stop)


@pytest.mark.parametrize(("role", "component"), [("planner", "planner"), ("extractor", "extractor"), ("x", "agent")])
def test_a_conversation_that_is_too_long_is_the_agents_own_failure(role, component):
    run, _ = run_of(ContextOverflowError("9000 tokens, at most 8192"))
    with pytest.raises(StopAgent) as stop:
        asked(run, role=role)
    assert stop.value.limit == "context_overflow"
    assert run.transcript.first_failure()["component"] == component
    assert [event["kind"] for event in run.transcript.events] == ["failure", "limit"]
    assert run.transcript.calls == []


@pytest.mark.parametrize("error", [InfrastructureError("down"), EndpointError("502"), RequestRefusedError("key", 401)])
def test_what_the_endpoint_breaks_is_raised_as_it_is(error):
    run, _ = run_of(error)
    with pytest.raises(type(error)) as raised:
        asked(run)
    assert raised.value is error
    assert run.transcript.calls == run.transcript.events == []


class Notebook:
    """A journal in memory."""

    def __init__(self) -> None:
        self.replies = {}

    def recall(self, number, request):
        kept, reply = self.replies.get(number, (None, None))
        return reply if kept == request else None

    def keep(self, number, request, reply):
        self.replies[number] = (request, reply)


def test_a_broken_episode_goes_on_where_it_was():
    journal = Notebook()
    hooks = EpisodeHooks("episode", journal)
    run, _ = run_of("a", "b\nSTOP c", InfrastructureError("down"), hooks=hooks)
    with pytest.raises(InfrastructureError):
        asked(run, 3, stop=("STOP",))
    again, model = run_of("c", hooks=hooks)
    assert [reply.text for reply in asked(again, 3, stop=("STOP",))] == ["a", "b\n", "c"]
    assert len(model.requests) == 1
    assert again.transcript.calls[:2] == run.transcript.calls
    assert model.requests[0].cache_scope == "episode#2"


def test_calls_are_priced_and_all_that_a_reply_says_is_kept():
    reply = ChatReply("x", usage=TokenUsage(1_000_000, 500_000), thoughts="Why not?", dropped=("temperature",))
    run, model = run_of(reply, reply)
    model.name = "openai:some"
    run.prices = PriceTable({"openai:some": Price(1.0, 2.0)})
    asked(run)
    run.prices = PriceTable()
    asked(run)
    assert [call["cost"] for call in run.transcript.calls] == [pytest.approx(2.0), None]
    assert run.transcript.calls[0]["reply"] == reply.to_mapping()


def test_events_stand_in_order_with_their_place(caplog):
    run, _ = run_of("a")
    with caplog.at_level(logging.WARNING, "resilisim.agents"):
        run.note("plan", "planner", "two steps", steps=["a", "b"])
        asked(run)
        run.turn = 3
        run.note("malformed_reply", "executor", "no action", excerpt="x" * 1000)
    first, second = run.transcript.events
    place = {"call": 0, "turn": 0, "details": {"steps": ["a", "b"]}}
    assert first == {"kind": "plan", "component": "planner", "text": "two steps", **place}
    assert (second["call"], second["turn"], len(second["details"]["excerpt"])) == (1, 3, 300)
    assert [record.getMessage() for record in caplog.records] == ["executor: malformed_reply: no action"]
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "resilisim.agents"):
        for kind in EVENT_KINDS:
            run.note(kind, "agent", "words with %s and {braces}")
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        kind for kind in EVENT_KINDS if kind in WARNING_KINDS
    ]


def test_unknown_kinds_and_components_are_bugs():
    run, _ = run_of()
    with pytest.raises(ValueError, match="event kind 'plam'"):
        run.note("plam", "planner")
    with pytest.raises(ValueError, match="component 'plan'"):
        run.fail("plan", "no")
    for component in FAILING_COMPONENTS:
        run.fail(component, "gave up")
    assert run.transcript.first_failure()["component"] == FAILING_COMPONENTS[0]


def test_without_an_environment_there_is_nothing_to_send_to_and_nothing_to_restart():
    run, _ = run_of()
    with pytest.raises(RuntimeError, match="no environment"):
        asyncio.run(run.send("<finish/>"))
    with pytest.raises(InvalidInputError, match="fresh episodes need a player"):
        asyncio.run(run.restart())
    assert (run.oracle, run.oracle_was_asked, run.transcript.restarts) == (None, False, 0)


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
