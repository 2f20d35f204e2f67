"""Rates, on a clock that moves only when somebody sleeps."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import (
    ChatMessage,
    ChatModelSettings,
    ChatReply,
    ChatRequest,
    RateLimitedChatModel,
    ScriptedChatModel,
    TokenUsage,
    make_chat_model,
)
from resilisim.chat.middleware import LONGEST_CATCH_UP
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


def limited(clock, model, **rates):
    return RateLimitedChatModel(model, clock=clock, sleep=clock.sleep, **rates)


def ask_at_once(model, number):
    async def everybody():
        await asyncio.gather(*(model.complete(request(f"{place}")) for place in range(number)))

    asyncio.run(everybody())


def test_requests_start_in_their_order_and_at_their_distance():
    clock = Clock()
    noting = Noting(clock)
    ask_at_once(limited(clock, noting, requests_per_minute=30), 5)
    assert noting.starts == [100.0, 102.0, 104.0, 106.0, 108.0]
    assert noting.texts == ["0", "1", "2", "3", "4"]


def test_late_wakings_do_not_lower_the_rate():
    clock = Clock(late=0.01)
    noting = Noting(clock)
    ask_at_once(limited(clock, noting, requests_per_minute=600), 101)
    assert noting.starts[-1] - noting.starts[0] == pytest.approx(10.0, abs=0.02)


def test_a_pause_earns_no_burst():
    clock = Clock()
    noting = Noting(clock)
    model = limited(clock, noting, requests_per_minute=60)
    ask_at_once(model, 2)
    clock.now += 1000.0
    ask_at_once(model, 3)  # another event loop, the same rate
    assert noting.starts[2:] == [1101.0, 1102.0, 1103.0]


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30), st.sampled_from([12.0, 60.0, 400.0]))
def test_no_minute_holds_more_than_the_rate_and_one(pauses, rate):
    clock = Clock(late=0.003)
    noting = Noting(clock)
    model = limited(clock, noting, requests_per_minute=rate)

    async def one_after_the_other():
        for pause in pauses:
            clock.now += pause
            await model.complete(request())

    asyncio.run(one_after_the_other())
    for place, start in enumerate(noting.starts):
        within = [other for other in noting.starts[place:] if other <= start + 60.0]
        assert len(within) <= rate + 1 + rate * LONGEST_CATCH_UP / 60.0


def test_tokens_are_charged_by_estimate_and_put_right_by_the_reply():
    clock = Clock()
    noting = Noting(clock, tokens=(15, 10))
    model = limited(clock, noting, tokens_per_minute=60)  # a token a second
    for _ in range(3):
        asyncio.run(model.complete(request()))  # estimated as 5 tokens, 25 in the end
    assert noting.starts == [100.0, 125.0, 150.0]
    together = Noting(clock, tokens=(5, 0))
    ask_at_once(limited(clock, together, tokens_per_minute=60), 3)
    assert [start - together.starts[0] for start in together.starts] == [0.0, 5.0, 10.0]


def test_a_reply_that_cost_nothing_is_given_back():
    clock = Clock()
    noting = Noting(clock, tokens=(15, 10), from_cache=True)
    model = limited(clock, noting, tokens_per_minute=60, requests_per_minute=600)
    for _ in range(2):
        asyncio.run(model.complete(request()))
    assert noting.starts == pytest.approx([100.0, 100.1])


def test_whoever_gives_up_waiting_takes_no_turn():
    clock = Clock()
    noting = Noting(clock)

    async def sleep(seconds):
        await asyncio.sleep(0)
        await clock.sleep(seconds)

    model = RateLimitedChatModel(noting, requests_per_minute=60, clock=clock, sleep=sleep)

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
