"""What endpoints do wrong beyond failing: too much, too slowly, too long a request; and what our side costs."""

from __future__ import annotations

import asyncio
import gzip
import time

import pytest

from resilisim.chat import (
    ChatMessage,
    ChatRequest,
    ContextOverflowError,
    EndpointError,
    OpenAIChatModel,
    RequestRefusedError,
    RetryPolicy,
)
from resilisim.chat import openai as openai_module
from resilisim.chat.openai import LONGEST_BODY, read_reply, request_body
from resilisim.chat.types import tells_context_overflow
from tests.chat.loopback import (
    Answer,
    LoopbackServer,
    completion,
    dripping,
    endless,
    error,
    in_turn,
    json_answer,
)

KEY = "sk-secret-0123456789"
QUESTION = ChatRequest((ChatMessage("user", "Hello?"),))


async def never_wait(seconds):
    pass


def ask(server, request=QUESTION, *, retries=0, timeout=20.0):
    async def once():
        model = OpenAIChatModel(
            "small",
            base_url=server.base_url,
            api_key=KEY,
            timeout_seconds=timeout,
            retry=RetryPolicy(retries=retries),
            sleep=never_wait,
        )
        try:
            return await model.complete(request)
        finally:
            await model.aclose()

    return asyncio.run(once())


# Too much


def test_an_answer_of_a_megabyte_comes_through_whole():
    text = "word and " * 120_000
    with LoopbackServer(lambda seen: completion(text, finish_reason="length")) as server:
        reply = ask(server)
    assert reply.text == text
    assert reply.finish_reason == "length"


def test_an_answer_that_is_too_long_is_none():
    with LoopbackServer(in_turn(completion("x" * LONGEST_BODY), completion("shorter"))) as server:
        assert ask(server, retries=1).text == "shorter"
        assert len(server.requests) == 2
    with LoopbackServer(lambda seen: completion("x" * (LONGEST_BODY - 1000))) as server:
        assert len(ask(server).text) == LONGEST_BODY - 1000


def test_an_answer_without_end_is_not_read_without_end():
    with LoopbackServer(lambda seen: endless()) as server:
        with pytest.raises(EndpointError, match="more than 8,000,000 bytes"):
            ask(server)
        assert server.bytes_of_endless < 4 * LONGEST_BODY  # what lies in the buffers between


@pytest.mark.parametrize("status", [400, 500, 307])
def test_nor_is_an_error_without_end(status):
    errors = Answer(status, b"again and " * 10_000, {"Location": "/elsewhere"}, kind="endless")
    with LoopbackServer(lambda seen: errors) as server:
        with pytest.raises((EndpointError, RequestRefusedError), match=r"again and|no connection"):
            ask(server)
        assert server.bytes_of_endless < 30 * LONGEST_BODY  # of a redirect, once for each of those it follows


def test_a_body_that_was_not_compressed_as_it_says_is_asked_for_again():
    broken = Answer(200, b"not gzip", {"Content-Encoding": "gzip", "Content-Type": "application/json"})
    whole = completion("whole")
    zipped = Answer(200, gzip.compress(whole.body), {"Content-Encoding": "gzip", **whole.headers})
    with LoopbackServer(in_turn(broken, zipped)) as server:
        reply = ask(server, retries=1)
    assert (reply.text, reply.attempts) == ("whole", 2)


def test_an_endless_redirect_ends():
    here = Answer(307, b"", {"Location": "/v1/chat/completions"})
    with LoopbackServer(lambda seen: here) as server, pytest.raises(EndpointError, match="no connection"):
        ask(server)


# Too slowly


def test_a_server_that_drips_is_given_up_after_the_timeout():
    refused = pytest.raises(EndpointError, match=r"no answer within 0\.3 s")  # the whole drips for longer than that
    with LoopbackServer(lambda seen: dripping()) as server, refused:
        ask(server, timeout=0.3)
    with LoopbackServer(lambda seen: dripping()) as server:
        assert ask(server).text == "slowly"


# Too long a request

OVERFLOWS = {
    "OpenAI": (400, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001."),
    "vLLM": (400, "The decoder prompt (length 9001) is longer than the maximum model length. Reduce the length of it."),
    "llama.cpp": (400, "request (9001 tokens) exceeds the available context size (2048 tokens), try increasing it"),
    "TGI": (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096: too many tokens"),
    "Anthropic": (400, "prompt is too long: 209112 tokens > 200000 maximum"),
    "a proxy": (413, "Request Entity Too Large"),
    "Mistral": (400, "Prompt contains 9001 tokens, too large for model with 8192 maximum context length"),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_too_long_a_request_has_its_own_error(name):
    status, words = OVERFLOWS[name]
    with LoopbackServer(lambda seen: error(status, words)) as server:
        with pytest.raises(ContextOverflowError) as caught:
            ask(server, retries=3)
        assert len(server.requests) == 1
    assert caught.value.status == status
    assert caught.value.concerns_all_requests is False
    assert words[:40] in str(caught.value)


def test_a_code_tells_it_as_well():
    body = {"error": {"message": "Your input is odd.", "code": "context_length_exceeded"}}
    with LoopbackServer(lambda seen: json_answer(body, 400)) as server, pytest.raises(ContextOverflowError):
        ask(server)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "Invalid schema for function 'add'"),
        (400, "the file is too large"),
        (422, "temperature: must be at most 2"),
        (401, "maximum context length"),
        (404, "context window"),
        (500, "maximum context length"),
        (429, "too many tokens"),
    ],
)
def test_other_refusals_are_not_taken_for_it(status, words):
    assert not tells_context_overflow(status, words)
    with LoopbackServer(lambda seen: error(status, words)) as server:
        with pytest.raises((EndpointError, RequestRefusedError)) as caught:
            ask(server)
        assert not isinstance(caught.value, ContextOverflowError)


# What our side costs


def test_a_request_that_succeeds_is_not_hashed(monkeypatch):
    def refuse(value):
        raise AssertionError("hashed although nothing failed")

    monkeypatch.setattr(openai_module, "content_hash", refuse)
    with LoopbackServer(lambda seen: completion("ok")) as server:
        assert ask(server).text == "ok"


def test_own_work_on_a_request_is_small():
    """20 messages of 1 kB: far below a millisecond; the bound leaves room for a machine that is busy."""
    request = ChatRequest(tuple(ChatMessage("user", "word " * 200) for _ in range(20)))
    answer = completion("word " * 300).body.decode()

    def own_work():
        began = time.thread_time()
        for _ in range(20):
            request_body(request, "small")
            read_reply(answer, request, 1.0)
        return (time.thread_time() - began) / 20

    assert min(own_work() for _ in range(10)) < 0.3e-3
