"""Trying out models that can this and cannot that."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from resilisim.chat import ChatReply, EndpointError, RequestRefusedError, TokenUsage, ToolCall
from resilisim.chat.check import check_model

COUNTED = ", ".join(str(number) for number in range(1, 21))


class Able:
    """Can everything; each test takes something away from it."""

    name = "openai:able"
    usage = TokenUsage(20, 40)
    count = COUNTED
    honours_stop = True
    call = ToolCall("a", "get_weather", '{"city": "Paris"}')
    answer_in_json = 'Here: {"city": "Paris", "country": "France"}'
    sentences = itertools.repeat("The sea is wide.")

    async def complete(self, request):
        if request.tools:
            return self.reply("", (self.call,)) if self.call else self.reply("It is sunny.")
        question = request.messages[0].content
        if "JSON" in question:
            return self.reply(self.answer_in_json)
        if "sea" in question:
            return self.reply(next(self.sentences))
        stops = request.stop if self.honours_stop else ()
        return self.reply(self.count.partition(stops[0])[0] if stops else self.count)

    def reply(self, text, calls=()):
        return ChatReply(text, calls, self.usage, latency_seconds=0.5, model="able-1")

    async def aclose(self):
        pass


def checked(model, **options):
    report = asyncio.run(check_model(model, **options))
    return report, {check.name: (check.passed, check.detail) for check in report.checks}


def test_a_model_that_can_everything():
    report, found = checked(Able())
    assert {name: passed for name, (passed, _) in found.items()} == dict.fromkeys(
        ("answers", "stop sequences", "native tool calls", "JSON answers", "repeats itself", "counts tokens"), True
    )
    assert report.protocols == ("text", "native")
    assert (report.model, report.answering, report.latency_seconds) == ("openai:able", "able-1", 0.5)
    assert (report.tokens_per_second, report.counts_tokens) == (80.0, True)
    assert json.loads(json.dumps(report.to_mapping()))["protocols"] == ["text", "native"]


@pytest.mark.parametrize(
    ("lack", "name", "passed", "words"),
    [
        ({"honours_stop": False}, "stop sequences", False, "goes on past '5'"),
        ({"count": "one, two, three"}, "stop sequences", None, "does not come up without them either"),
        ({"call": None}, "native tool calls", False, "answers in text: It is sunny."),
        ({"call": ToolCall("a", "get_weather", "{'city'")}, "native tool calls", False, "arguments that are not JSON"),
        ({"call": ToolCall("a", "get_weather", "[" * 10**5)}, "native tool calls", False, "that are not JSON"),
        ({"call": ToolCall("a", "get_weather", '{"town": 1}')}, "native tool calls", False, "calls something else"),
        ({"call": ToolCall("a", "search", '{"city": "P"}')}, "native tool calls", False, "calls something else"),
        ({"answer_in_json": "Paris"}, "JSON answers", False, "the answer holds no JSON object"),
        ({"answer_in_json": '{"city": 1}'}, "JSON answers", False, "lacks 'country'"),
        ({"sentences": map(str, itertools.count())}, "repeats itself", False, "two answers"),
        ({"usage": TokenUsage(5, 6, is_estimate=True)}, "counts tokens", False, "estimated"),
    ],
)
def test_each_lack_is_told_and_the_rest_stays(lack, name, passed, words):
    model = Able()
    vars(model).update(lack)
    report, found = checked(model)
    assert found[name][0] is passed
    assert words in found[name][1]
    assert report.protocols == (("text",) if name == "native tool calls" else ("text", "native"))
    assert sum(other is not True for other, _ in found.values()) == 1


def test_what_fails_at_one_check_is_a_finding_and_a_model_that_does_not_work_an_error():
    class Picky(Able):
        async def complete(self, request):
            if request.tools:
                raise RequestRefusedError("no tools here")
            if request.stop:
                raise EndpointError("down for a moment", 500)
            if "JSON" in request.messages[0].content:
                await asyncio.sleep(60)
            return await super().complete(request)

    report, found = checked(Picky(), seconds_per_check=1.0)
    assert found["native tool calls"] == (False, "no tools here")
    assert found["stop sequences"] == (False, "down for a moment")
    assert found["JSON answers"] == (False, "no answer within 1 s")
    assert report.protocols == ("text",)
    slow, silent = Able(), Able()
    slow.complete = lambda request: asyncio.sleep(60)
    silent.count = " \n"
    with pytest.raises(EndpointError, match=r"openai:able gives no answer within 0\.05 s"):
        checked(slow, seconds_per_check=0.05)
    with pytest.raises(EndpointError, match="answers without a text"):
        checked(silent)


def test_without_tokens_there_is_no_speed():
    model = Able()
    model.usage = TokenUsage(0, 0)
    assert checked(model)[0].tokens_per_second is None
