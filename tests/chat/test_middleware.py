"""What stands around a model: rates, on a clock that moves only when somebody sleeps; replies on disk; prices."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import multiprocessing
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilisim.chat import (
    ChatMessage,
    ChatReply,
    ChatRequest,
    EndpointError,
    ScriptedChatModel,
    TokenUsage,
    ToolCall,
    make_chat_model,
)
from resilisim.chat.middleware import (
    LONGEST_CATCH_UP,
    CachingChatModel,
    ChatModelSettings,
    RateLimitedChatModel,
    ResponseCache,
    request_key,
)
from resilisim.chat.prices import Price, PriceTable
from resilisim.errors import InvalidInputError


class Clock:
    """Seconds that pass in sleeps only, each a little longer than asked for."""

    def __init__(self, late=0.0):
        self.now = 100.0
        self.late = late

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds + self.late
        await asyncio.sleep(0)


class Noting(ScriptedChatModel):
    """Notes when it was asked, and what; answers with given tokens."""

    def __init__(self, clock, tokens=(0, 0), from_cache=False):
        super().__init__([])
        self.clock = clock
        self.starts = []
        self.texts = []
        self.reply = ChatReply("ok", usage=TokenUsage(*tokens), from_cache=from_cache)

    async def complete(self, request):
        self.starts.append(self.clock.now)
        self.texts.append(request.messages[0].content)
        return self.reply


def request(text="abcd"):
    return ChatRequest((ChatMessage("user", text),))


@pytest.fixture
def limited():
    """A function from rates to a limited model, what it asks, and their clock."""

    def make(late=0.0, tokens=(0, 0), from_cache=False, **rates):
        clock = Clock(late)
        noting = Noting(clock, tokens, from_cache)
        return RateLimitedChatModel(noting, clock=clock, sleep=clock.sleep, **rates), noting, clock

    return make


def ask_at_once(model, number):
    async def everybody():
        await asyncio.gather(*(model.complete(request(f"{place}")) for place in range(number)))

    asyncio.run(everybody())


def test_requests_start_in_their_order_at_their_distance_and_a_pause_earns_no_burst(limited):
    model, noting, clock = limited(requests_per_minute=30)
    ask_at_once(model, 5)
    assert noting.starts == [100.0, 102.0, 104.0, 106.0, 108.0]
    assert noting.texts == ["0", "1", "2", "3", "4"]
    clock.now += 1000.0
    ask_at_once(model, 3)  # another event loop, the same rate
    assert noting.starts[5:] == [1108.0, 1110.0, 1112.0]


def test_late_wakings_do_not_lower_the_rate(limited):
    model, noting, _ = limited(late=0.01, requests_per_minute=600)
    ask_at_once(model, 101)
    assert noting.starts[-1] - noting.starts[0] == pytest.approx(10.0, abs=0.02)


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30), st.sampled_from([12.0, 60.0, 400.0]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_minute_holds_more_than_the_rate_and_one(limited, pauses, rate):
    model, noting, clock = limited(late=0.003, requests_per_minute=rate)

    async def one_after_the_other():
        for pause in pauses:
            clock.now += pause
            await model.complete(request())

    asyncio.run(one_after_the_other())
    for place, start in enumerate(noting.starts):
        within = [other for other in noting.starts[place:] if other <= start + 60.0]
        assert len(within) <= rate + 1 + rate * LONGEST_CATCH_UP / 60.0


def test_tokens_are_charged_by_estimate_and_put_right_by_the_reply(limited):
    model, noting, _ = limited(tokens=(15, 10), tokens_per_minute=60)  # a token a second
    for _ in range(3):
        asyncio.run(model.complete(request()))  # estimated as 5 tokens, 25 in the end
    assert noting.starts == [100.0, 125.0, 150.0]
    model, noting, _ = limited(tokens=(5, 0), tokens_per_minute=60)
    ask_at_once(model, 3)
    assert noting.starts == [100.0, 105.0, 110.0]
    model, noting, _ = limited(tokens=(15, 10), from_cache=True, tokens_per_minute=60, requests_per_minute=600)
    for _ in range(2):
        asyncio.run(model.complete(request()))
    assert noting.starts == pytest.approx([100.0, 100.1]), "what cost nothing is given back"


def test_whoever_gives_up_waiting_takes_no_turn(limited):
    model, noting, clock = limited(requests_per_minute=60)

    async def sleep(seconds):
        await asyncio.sleep(0)
        await clock.sleep(seconds)

    model._sleep = sleep

    async def everybody():
        tasks = [asyncio.create_task(model.complete(request(f"{place}"))) for place in range(4)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(everybody())
    assert noting.texts == ["0", "3"]
    assert noting.starts[1] - noting.starts[0] == pytest.approx(1.0)


def test_settings_put_the_limit_around_any_kind(tmp_path):
    path = tmp_path / "script"
    path.write_text('{"reply": "a"}\n')
    model = make_chat_model(f"scripted:{path}", ChatModelSettings(requests_per_minute=60, tokens_per_minute=1e6))
    assert isinstance(model, RateLimitedChatModel)
    assert model.name == f"scripted:{path}"
    assert asyncio.run(model.complete(request())).text == "a"
    asyncio.run(model.aclose())


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf")])
def test_rates_that_are_none_are_refused(rate):
    for name in ("requests_per_minute", "tokens_per_minute"):
        with pytest.raises(InvalidInputError, match="a minute: expected a number above 0"):
            RateLimitedChatModel(ScriptedChatModel([]), **{name: rate})


QUESTION = ChatRequest((ChatMessage("user", "Hello?"),), max_tokens=5)
REPLY = ChatReply("Hi. \ud83d", (ToolCall("1", "add", "{}"),), TokenUsage(3, 4), "length", "m", 0.25, 2)


def ask(model, request=QUESTION):
    return asyncio.run(model.complete(request))


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_answered_is_not_asked_again_and_failures_are_not_kept(tmp_path):
    scripted = ScriptedChatModel([EndpointError("down", 500), REPLY])
    model = CachingChatModel(scripted, ResponseCache(tmp_path), "m at home")
    assert model.name == "scripted"
    with pytest.raises(EndpointError):
        ask(model)
    assert files_of(tmp_path) == []
    assert ask(model) == REPLY
    assert ask(model) == dataclasses.replace(REPLY, from_cache=True)
    other_process = CachingChatModel(ScriptedChatModel([]), ResponseCache(tmp_path), "m at home")
    assert ask(other_process) == dataclasses.replace(REPLY, from_cache=True)
    assert len(scripted.requests) == 2


DIFFERENT = {
    "messages": (ChatMessage("user", "Hello!"),),
    "tools": ({"type": "function"},),
    "stop": ("x",),
    "temperature": 0.5,
    "top_p": 0.5,
    "max_tokens": 6,
    "seed": 0,
    "cache_scope": "episode 2, call 1",
    "extra": {"reasoning_effort": "high"},
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
    scripted = ScriptedChatModel(["answer"])  # it has no second one
    model = CachingChatModel(scripted, ResponseCache(tmp_path), "m")

    async def many():
        return await asyncio.gather(*(model.complete(QUESTION) for _ in range(20)))

    assert {reply.text for reply in asyncio.run(many())} == {"answer"}
    assert len(scripted.requests) == 1


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


USAGE = TokenUsage(2_000_000, 500_000)


def table(tmp_path, value):
    path = tmp_path / "prices.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return PriceTable.read(path)


def test_costs_follow_the_table(tmp_path):
    first = {"prompt": 0.15, "completion": 0.6, "cached_prompt": 0.05}
    prices = table(tmp_path, {"openai:a": first, "openai:b": {"prompt": 1, "completion": 2}})
    assert prices.cost("openai:a", USAGE) == pytest.approx(2 * 0.15 + 0.5 * 0.6)
    assert prices.cost("openai:a", USAGE, cached_prompt_tokens=1_000_000) == pytest.approx(0.15 + 0.05 + 0.3)
    assert prices.cost("openai:b", USAGE, cached_prompt_tokens=1_000_000) == pytest.approx(3.0)
    assert prices.cost("openai:c", USAGE) is None


def test_what_runs_here_and_what_was_kept_costs_nothing():
    prices = PriceTable({"openai:a": Price(1.0, 1.0)})
    for name in ("local", "local:model.gguf", "scripted", "scripted:replies.jsonl"):
        assert prices.cost(name, USAGE) == 0.0
    assert prices.cost("localhost", USAGE) is None
    assert prices.cost_of_reply("openai:a", ChatReply("x", usage=USAGE)) == pytest.approx(2.5)
    assert prices.cost_of_reply("openai:a", ChatReply("x", usage=USAGE, from_cache=True)) == 0.0
    assert PriceTable({"local": Price(1.0, 0.0)}).cost("local", USAGE) == 2.0  # whoever wants to count electricity


def test_a_model_without_price_is_told_with_the_name_that_resembles_it():
    prices = PriceTable({"gpt-4o-mini": Price(1.0, 1.0)})
    told = "no price of 'openai:gpt-4o-mini' is known: did you mean it by 'gpt-4o-mini'?"
    assert prices.gap("openai:gpt-4o-mini") == told
    assert PriceTable().gap("openai:x") == "no price of 'openai:x' is known"
    assert prices.gap("gpt-4o-mini") is prices.gap("local") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "not valid JSON at column 2"),
        ([], "got []; expected an object"),
        ({"openai:a": 1}, "'openai:a': got 1; expected an object with prompt, completion, cached_prompt"),
        ({"openai:a": {"prompt": 1}}, "'openai:a', field 'completion': is missing; expected a number"),
        ({"openai:a": {"promt": 1, "completion": 1}}, "'openai:a': unknown field 'promt': did you mean 'prompt'?"),
        ({"a": {"prompt": -1, "completion": 1}}, "got -1; expected a number, at least 0 and at most 1,000,000 (US"),
        ({"openai:a": {"prompt": True, "completion": 1}}, "field 'prompt': got true"),
        ('{"openai:a": {"prompt": 1e999, "completion": 1}}', "1e999 is not a finite number"),
    ],
)
def test_wrong_tables_are_refused_in_one_line(tmp_path, value, words):
    with pytest.raises(InvalidInputError, match="does not exist"):
        PriceTable.read(tmp_path / "prices.json")
    with pytest.raises(InvalidInputError) as caught:
        table(tmp_path, value)
    assert words in str(caught.value)
    assert "prices.json" in str(caught.value)
    assert "\n" not in str(caught.value)
