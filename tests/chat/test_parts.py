"""The small parts: waits, addresses and keys, spellings, JSON in answers, estimates, scripts."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import (
    CachingChatModel,
    ChatMessage,
    ChatModelSettings,
    ChatReply,
    ChatRequest,
    OpenAIChatModel,
    ResponseCache,
    RetryPolicy,
    ScriptedChatModel,
    ScriptedReply,
    ScriptError,
    TokenUsage,
    make_chat_model,
    model_identity,
)
from resilisim.chat.estimates import estimated_prompt_tokens, estimated_tokens
from resilisim.chat.json_answers import LONGEST_ANSWER, json_object_in
from resilisim.chat.openai_endpoint import DEFAULT_BASE_URL, endpoint_url, find_endpoint
from resilisim.chat.retrying import demanded_wait, is_passing
from resilisim.errors import InvalidInputError
from resilisim.seeding import Draws

# Waits


def test_waits_stay_within_their_bounds():
    policy = RetryPolicy(retries=100, first_wait=0.5, longest_wait=30.0)
    draws = Draws("test")
    for retry in (1, 2, 3, 6, 7, 100, 5000):
        wait = policy.wait_before_retry(retry, None, draws)
        whole = min(30.0, 0.5 * 2.0 ** min(retry - 1, 60))
        assert whole / 2 <= wait <= whole


def test_a_demanded_wait_is_kept_or_given_up():
    policy = RetryPolicy(longest_demand=120.0)
    assert 120.0 <= policy.wait_before_retry(1, 120.0, Draws("test")) <= 120.5
    assert policy.wait_before_retry(1, 120.5, Draws("test")) is None
    assert 0.0 < policy.wait_before_retry(1, 0.0, Draws("test")) <= 0.5
    with pytest.raises(InvalidInputError, match="retries -1"):
        RetryPolicy(retries=-1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "-7"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:40 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, float("inf")),
        ({"retry-after": "Thu, 99 Jan 999999999999 00:00:40 GMT"}, None),
    ],
)
def test_what_endpoints_ask_to_wait(headers, seconds):
    assert demanded_wait(headers, now=60.0) == seconds


def test_which_statuses_pass():
    assert [status for status in range(300, 600) if is_passing(status)] == [408, 409, 425, 429, *range(500, 600)]


# Addresses and keys


def test_the_address_is_the_one_given_then_the_environments_then_openais(monkeypatch):
    assert endpoint_url() == DEFAULT_BASE_URL
    monkeypatch.setenv("OPENAI_BASE_URL", "http://here:8000/v1/")
    assert endpoint_url() == "http://here:8000/v1"
    assert endpoint_url("https://there") == "https://there"
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    assert endpoint_url() == DEFAULT_BASE_URL


@pytest.mark.parametrize(
    "address",
    [
        "sk-put-into-the-wrong-place",
        "localhost:8000",
        "ftp://a/b",
        "http://",
        "http://a b/",
        "http://a:x/",
        "http://[::1/v1",
        "http://user:sk-secret@host/v1",
        "https://host/v1?key=sk-secret",
        "https://host/v1#part",
        "",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(address):
    with pytest.raises(InvalidInputError, match="base URL: ") as caught:
        endpoint_url(address)
    assert "sk-" not in str(caught.value)


def test_keys(monkeypatch):
    with pytest.raises(InvalidInputError, match="set OPENAI_API_KEY"):
        find_endpoint()
    assert find_endpoint("http://127.0.0.1:1/v1").key == "none"
    monkeypatch.setenv("OPENAI_API_KEY", " sk-from-the-environment\n")
    assert find_endpoint().key == "sk-from-the-environment"
    assert "sk-" not in repr(find_endpoint())
    assert find_endpoint(api_key="sk-given").key == "sk-given"
    for wrong in ("sk-schlüssel", "sk-two\nlines", "sk-two words"):
        with pytest.raises(InvalidInputError, match="OPENAI_API_KEY: not a key") as caught:
            find_endpoint(api_key=wrong)
        assert "sk-" not in str(caught.value)


def test_excerpts_hold_nothing_that_looks_like_a_key():
    endpoint = find_endpoint(api_key="abc123def456")
    text = "abc123def456 is wrong, sk-proj-x*****Yz too,\nand Bearer xyz; " + "so " * 200
    excerpt = endpoint.excerpt(text)
    assert excerpt.startswith("[key] is wrong, [key] too, and [key] so so")
    assert len(excerpt) == 200
    assert find_endpoint("http://a").without_key("none of it") == "none of it"
    assert find_endpoint("http://a", "EMPTY").without_key("EMPTY") == "EMPTY"


# Spellings


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


# JSON in answers

OBJECT = {"description": 'Say "{hello}"\n```', "n": 1}
WRITTEN = json.dumps(OBJECT)


@pytest.mark.parametrize(
    "answer",
    [
        WRITTEN,
        f"```json\n{WRITTEN}\n```",
        f"Sure! Here it is, with {{braces}}:\n```\n{WRITTEN}\n```\nAnything else?",
        f"Of course {{ ok }}. {WRITTEN} I hope that helps {{}}.",
        f'<think>Maybe {{"description": "draft"}}?</think>{WRITTEN}',
        f'no first tag {{"description": "draft"}}</think>\n{WRITTEN}',
        f'{{"draft": true}} {WRITTEN}',
        WRITTEN.replace("\\n", "\n"),
    ],
)
def test_the_object_is_found(answer):
    assert json_object_in(answer, ("description",)) == OBJECT


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "the answer is empty"),
        ("<think>I never stop thinking {}", "the answer is empty"),
        ("I cannot do that.", "the answer holds no JSON object"),
        ('["description"]', "the answer holds no JSON object"),
        (WRITTEN[:-1], "the answer holds no JSON object"),
        ('{"a": 1}', "the JSON object lacks 'description', 'n'"),
        ('{"description": NaN, "n": 1}', "the answer holds no JSON object"),
        ('{"description": 1e999, "n": 1}', "the answer holds no JSON object"),
        ('{"description": 1' + "0" * 5000 + ', "n": 1}', "the answer holds no JSON object"),
        ('{"a":' * 30_000, "the answer holds no JSON object"),
        ("{" * 190_000, "the answer holds no JSON object"),
        ("```\n" * 40_000, "the answer holds no JSON object"),
        ("x" * (LONGEST_ANSWER + 1), "the answer has 200,001 characters; expected at most 200,000"),
    ],
)
def test_what_holds_no_object_is_said(answer, problem):
    assert json_object_in(answer, ("description", "n")) == problem


@given(st.text(st.sampled_from('{}[]":,\\ `\n<>/thinka1')))
def test_any_answer_is_an_object_or_a_problem(answer):
    assert isinstance(json_object_in(answer, ("a",)), (dict, str))


# Estimates and scripts


def test_estimates_follow_their_rule():
    assert [estimated_tokens(text) for text in ("", "abcd", "abcde", "äöü", "\ud83d")] == [0, 1, 2, 2, 1]
    request = ChatRequest((ChatMessage("user", "abcd"),), tools=({"a": 1},))
    assert estimated_prompt_tokens(request) == 4 + 1 + 2


def test_a_script_is_followed_and_not_exceeded():
    question = ChatRequest((ChatMessage("user", "What now?"),), role="planner")
    script = [
        "first",
        ChatReply("second"),
        ScriptedReply("third", expect="now", role="planner"),
        lambda request: request.messages[0].content,
    ]
    model = ScriptedChatModel(script)

    def ask():
        return asyncio.run(model.complete(question))

    first = ask()
    assert (first.text, first.usage) == ("first", TokenUsage(7, 2, is_estimate=True))
    assert [ask().text for _ in range(3)] == ["second", "third", "What now?"]
    assert model.remaining == 0
    with pytest.raises(ScriptError, match=r"4 replies .*What now\?"):
        ask()
    assert len(model.requests) == 5
    for line in (ScriptedReply("x", expect="later"), ScriptedReply("x", role="extractor")):
        with pytest.raises(ScriptError, match="reply 1"):
            asyncio.run(ScriptedChatModel([line]).complete(question))
    with pytest.raises(OSError, match="as scripted"):
        asyncio.run(ScriptedChatModel([OSError("as scripted")]).complete(question))
