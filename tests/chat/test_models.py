"""Models by their spelling, and for the components of an agent."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from resilisim.chat import (
    ChatReply,
    EndpointError,
    OpenAIChatModel,
    RequestRefusedError,
    ScriptedChatModel,
    TokenUsage,
    ToolCall,
    make_chat_model,
)
from resilisim.chat.check import check_model
from resilisim.chat.middleware import CachingChatModel, ChatModelSettings, ResponseCache
from resilisim.chat.models import COMPONENT_ROLES, RoleModels, model_identity
from resilisim.chat.openai import DEFAULT_BASE_URL
from resilisim.errors import InvalidInputError

SETTINGS = ChatModelSettings(base_url="http://127.0.0.1:1/v1", api_key="sk-secret-0123456789")


def test_each_role_has_its_model_and_the_rest_the_default():
    models = RoleModels.parse(["extractor = openai:small", "openai:big", "reasoner=openai:small"], SETTINGS)
    names = {role: models.for_role(role).name for role in COMPONENT_ROLES}
    assert names == {
        role: "openai:small" if role in ("extractor", "reasoner") else "openai:big" for role in COMPONENT_ROLES
    }
    assert models.for_role("extractor") is models.for_role("reasoner")
    assert models.for_role("a component of somebody's own") is models.default
    assert models.identities() == {
        "extractor": "openai:small at http://127.0.0.1:1/v1",
        "default": "openai:big at http://127.0.0.1:1/v1",
        "reasoner": "openai:small at http://127.0.0.1:1/v1",
    }


def test_a_role_that_is_given_the_default_model_shares_it_and_names_may_hold_an_equals_sign():
    models = RoleModels.parse(["openai:org/a=b", "planner=openai:org/a=b", "agent=openai:c=d"], SETTINGS)
    assert models.for_role("planner") is models.default
    assert [model.name for model in models.models()] == ["openai:org/a=b", "openai:c=d"]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], "models none at all: expected one without a role"),
        (["planner=openai:a"], "models 'planner=openai:a': expected one without a role"),
        (["openai:a", "openai:b"], "'openai:b' is a second default model, after 'openai:a'"),
        (["openai:a", "planner=openai:b", "planner=openai:b"], "is a second model of 'planner'"),
        (["openai:a", "extracter=openai:b"], "did you mean 'extractor'?"),
        (["openai:a", "default=openai:b"], "unknown component role 'default'"),
        (["openai:a", "planner="], "expected"),
        (["openai:a", "planner=opneai:b"], "did you mean 'openai'?"),
    ],
)
def test_wrong_models_are_refused_in_one_line(specs, words):
    with pytest.raises(InvalidInputError) as caught:
        RoleModels.parse(specs, SETTINGS)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Closing(ScriptedChatModel):
    closed = 0

    async def aclose(self):
        self.closed += 1


def test_models_of_ones_own_are_taken_and_each_is_closed_once():
    one, other = Closing([], name="one"), Closing([], name="other")
    models = RoleModels(one, {"planner": other, "agent": one, "extractor": other})
    assert models.identities() == {"default": "one", "planner": "other", "agent": "one", "extractor": "other"}
    asyncio.run(models.aclose())
    assert (one.closed, other.closed) == (1, 1)
    with pytest.raises(TypeError):
        models.by_role["planner"] = one
    with pytest.raises(InvalidInputError, match="did you mean 'planner'"):
        RoleModels(one, {"planer": other})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("opneai:gpt", "did you mean 'openai'?"),
        ("gpt-4o-mini", "expected KIND:NAME"),
        ("openai", "such as 'openai:gpt-4o-mini'"),
        ("openai: ", "such as 'openai:gpt-4o-mini'"),
        ("", "expected KIND:NAME"),
    ],
)
def test_wrong_spellings_are_refused(spec, words):
    for use in (make_chat_model, model_identity):
        with pytest.raises(InvalidInputError) as caught:
            use(spec)
        assert words in str(caught.value)


def test_models_are_made_by_their_spelling(tmp_path):
    settings = ChatModelSettings(base_url="http://127.0.0.1:1/v1/", api_key="sk-secret")
    model = make_chat_model("openai:org/name:tag", settings)
    assert isinstance(model, OpenAIChatModel)
    assert model.name == "openai:org/name:tag"
    assert isinstance(make_chat_model("openai:x", settings, ResponseCache(tmp_path)), CachingChatModel)
    assert "sk-" not in repr(settings)
    assert model_identity("openai:x", settings) == "openai:x at http://127.0.0.1:1/v1"
    assert model_identity("openai:x") == f"openai:x at {DEFAULT_BASE_URL}"


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
