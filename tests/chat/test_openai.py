"""The client against a real server that answers well, badly, or not at all; addresses, keys, waits."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import logging
import pickle
import socket
import sys
import threading
from collections import Counter

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
from resilisim.chat.middleware import demanded_wait, is_passing
from resilisim.chat.openai import DEFAULT_BASE_URL, LONGEST_BODY, endpoint_url, find_endpoint
from resilisim.chat.types import ChatReply, ToolCall, tells_context_overflow
from resilisim.errors import InfrastructureError, InvalidInputError, MissingExtraError
from resilisim.seeding import Draws
from tests.chat.loopback import (
    Answer,
    LoopbackServer,
    completion,
    cut_stream,
    dripping,
    empty_body,
    endless,
    error,
    hanging,
    in_turn,
    json_answer,
    not_json,
    nothing,
    other_schema,
    rate_limited,
)

KEY = "sk-secret-0123456789"
QUESTION = ChatRequest((ChatMessage("system", "Be brief."), ChatMessage("user", "Hello?")), role="planner")


class Waits:
    """A sleep that takes no time and remembers how long it should have taken."""

    def __init__(self):
        self.seconds = []

    async def __call__(self, seconds):
        self.seconds.append(seconds)


def ask(server, request=QUESTION, *, retries=2, waits=None, timeout=10.0, **more):
    async def once():
        model = OpenAIChatModel(
            "small",
            base_url=server.base_url,
            api_key=KEY,
            timeout_seconds=timeout,
            retry=RetryPolicy(retries=retries),
            sleep=waits or Waits(),
            **more,
        )
        try:
            return await model.complete(request)
        finally:
            await model.aclose()

    return asyncio.run(once())


def test_a_proper_answer():
    with LoopbackServer(lambda seen: completion("Hi.")) as server:
        reply = ask(server)
    assert (reply.text, reply.finish_reason, reply.model) == ("Hi.", "stop", "loopback-model")
    assert dataclasses.astuple(reply.usage) == (11, 7, False)
    assert reply.tool_calls == ()
    assert (reply.attempts, reply.from_cache) == (1, False)
    assert reply.latency_seconds > 0
    [seen] = server.requests
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.body == {
        "model": "small",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
    }


def test_all_parameters_and_native_calls_travel():
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    request = ChatRequest(
        (
            ChatMessage("user", "1 + 1 \ud83d"),
            ChatMessage("assistant", "", (ToolCall("a1", "add", "{}"),)),
            ChatMessage("tool", "2", tool_call_id="a1"),
        ),
        tools=(tool,),
        stop=("END",),
        temperature=0.25,
        top_p=0.5,
        max_tokens=9,
        seed=3,
    )
    calls = [{"id": "b7", "type": "function", "function": {"name": "add", "arguments": '{"x": 1'}}]
    with LoopbackServer(
        lambda seen: completion(None, message={"tool_calls": calls}, finish_reason="tool_calls")
    ) as server:
        reply = ask(server, request)
    assert reply.text == ""
    assert reply.tool_calls == (ToolCall("b7", "add", '{"x": 1'),)
    assert reply.finish_reason == "tool_calls"
    body = server.requests[0].body
    assert body["messages"] == [
        {"role": "user", "content": "1 + 1 ?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "a1"},
    ]
    assert body["tools"] == [tool]
    parameters = {name: body[name] for name in ("stop", "temperature", "top_p", "max_tokens", "seed")}
    assert parameters == {"stop": ["END"], "temperature": 0.25, "top_p": 0.5, "max_tokens": 9, "seed": 3}


def test_what_endpoints_leave_out_or_write_otherwise_is_read():
    parts = json_answer({"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"text": "b"}]}}]})
    call = {"function": {"name": "add", "arguments": {"x": 1}}}
    objects = json_answer({"choices": [{"message": {"tool_calls": [call]}}], "usage": {"prompt_tokens": -1}})
    thinking = json_answer({"choices": [{"message": {"reasoning_content": "hm " * 4}, "finish_reason": "length"}]})
    thought = completion("a", message={"reasoning": "because"})
    with LoopbackServer(in_turn(parts, objects, thinking, thought)) as server:
        first, second, third, fourth = (ask(server) for _ in range(4))
    assert (third.text, third.thoughts, third.is_cut, third.usage.completion_tokens) == ("", "hm " * 4, True, 3)
    assert (fourth.text, fourth.thoughts, fourth.is_cut) == ("a", "because", False)
    assert ChatReply.from_mapping(fourth.to_mapping()) == fourth
    assert (first.text, first.finish_reason, first.model) == ("ab", "", "")
    assert first.usage.is_estimate
    assert first.usage.prompt_tokens == 4 + 3 + 4 + 2  # "Be brief." and "Hello?", and the frames of two messages
    assert first.usage.completion_tokens == 1
    assert second.tool_calls == (ToolCall("call_0", "add", '{"x": 1}'),)
    assert second.usage.is_estimate


PASSING = {
    "429": rate_limited(None),
    "500": error(500),
    "503": error(503),
    "408": error(408),
    "409": error(409),
    "not JSON": not_json(),
    "another schema": other_schema(),
    "no choices": json_answer({"choices": []}),
    "no message": json_answer({"choices": [{"text": "legacy"}]}),
    "neither content nor calls": json_answer({"choices": [{"message": {}}]}),
    "content that is no text": json_answer({"choices": [{"message": {"content": 5}}]}),
    "a call without a name": json_answer({"choices": [{"message": {"tool_calls": [{}]}}]}),
    "calls that are no list": json_answer({"choices": [{"message": {"tool_calls": 1}}]}),
    "a list": json_answer([1, 2]),
    "an error with status 200": json_answer({"error": {"message": "upstream is gone"}}),
    "endless nesting": Answer(200, b"[" * 100_000, {"Content-Type": "application/json"}),
    "not UTF-8": Answer(200, b"\xff\xfe\x00", {"Content-Type": "application/json"}),
    "empty": empty_body(),
    "cut": cut_stream(),
    "nothing": nothing(),
}


def ask_for_all(server, retries):
    """Ask once for each case, in one event loop, since a client of its own for each would cost most of the time."""

    async def once(model, name):
        try:
            return await model.complete(ChatRequest((ChatMessage("user", name),)))
        except EndpointError as failure:
            return failure

    async def all_at_once():
        policy = RetryPolicy(retries=retries)
        model = OpenAIChatModel("small", base_url=server.base_url, api_key=KEY, retry=policy, sleep=Waits())
        outcomes = await asyncio.gather(*(once(model, name) for name in PASSING))
        await model.aclose()
        return dict(zip(PASSING, outcomes, strict=True))

    return asyncio.run(all_at_once())


def asked_for(server):
    return Counter(seen.last_message for seen in server.requests)


def test_failures_that_may_pass_are_asked_again():
    met = set()

    def fails_once(seen):
        name = seen.last_message
        if name in met:
            return completion(f"At last: {name}")
        met.add(name)
        return PASSING[name]

    with LoopbackServer(fails_once) as server:
        replies = ask_for_all(server, retries=1)
    assert {name: reply.text for name, reply in replies.items()} == {name: f"At last: {name}" for name in PASSING}
    assert {reply.attempts for reply in replies.values()} == {2}
    assert asked_for(server) == dict.fromkeys(PASSING, 2)


def test_failures_that_do_not_pass_end_in_one_typed_line():
    with LoopbackServer(lambda seen: PASSING[seen.last_message]) as server:
        failures = ask_for_all(server, retries=2)
    assert asked_for(server) == dict.fromkeys(PASSING, 3)
    for name, failure in failures.items():
        assert isinstance(failure, EndpointError), name
        assert isinstance(failure, InfrastructureError)
        assert failure.attempts == 3
        assert failure.status == (None if name in ("cut", "nothing") else PASSING[name].status), name
        text = str(failure)
        assert "\n" not in text
        assert server.base_url in text
        assert "3 times" in text
        assert KEY not in text


def test_an_endpoint_that_hangs_is_given_up_after_the_timeout():
    with LoopbackServer(lambda seen: hanging()) as server, pytest.raises(EndpointError) as caught:
        ask(server, retries=1, timeout=0.05)
    assert caught.value.status is None
    assert "no answer within 0.05 s" in str(caught.value)
    assert len(server.requests) <= 2  # whether a request got through in that time is the machine's affair


def test_no_server_at_all():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer on this port

        class Nobody:
            base_url = f"http://127.0.0.1:{reserved.getsockname()[1]}/v1"

        with pytest.raises(EndpointError, match="no connection") as caught:
            ask(Nobody, retries=1)
    assert (caught.value.status, caught.value.attempts) == (None, 2)


@pytest.mark.parametrize(
    ("status", "words", "concerns_all"),
    [
        (400, "refuses the request (status 400: the wish is odd)", False),
        (401, "refuses the key (status 401)", True),
        (403, "refuses the key (status 403)", True),
        (404, "knows no model 'small'", True),
        (422, "refuses the request (status 422: the wish is odd)", False),
    ],
)
def test_refusals_are_not_repeated(status, words, concerns_all):
    with LoopbackServer(lambda seen: error(status, "the wish\nis odd")) as server:
        with pytest.raises(RequestRefusedError) as caught:
            ask(server)
        assert words in str(caught.value)
        assert server.base_url in str(caught.value)
    assert isinstance(caught.value, InvalidInputError)
    assert caught.value.status == status
    assert caught.value.concerns_all_requests is concerns_all
    assert len(server.requests) == 1
    assert pickle.loads(pickle.dumps(caught.value)).status == status


def test_waits_double_with_jitter_and_obey_the_endpoint():
    waits = Waits()
    answers = in_turn(error(500), error(500), error(500), rate_limited("7"), completion("ok"))
    with LoopbackServer(answers) as server:
        assert ask(server, retries=4, waits=waits).attempts == 5
    first, second, third, demanded = waits.seconds
    assert 0.25 <= first <= 0.5 <= second <= 1.0 <= third <= 2.0
    assert 7.0 < demanded <= 7.5
    again = Waits()
    with LoopbackServer(in_turn(error(500), completion("ok"))) as server:
        ask(server, waits=again)
    assert again.seconds == [first]  # the jitter is a function of the request


def test_an_endpoint_that_asks_for_an_hour_is_given_up():
    waits = Waits()
    with (
        LoopbackServer(lambda seen: rate_limited("3600")) as server,
        pytest.raises(EndpointError, match="asks to wait 3600 s") as caught,
    ):
        ask(server, waits=waits)
    assert caught.value.status == 429
    assert waits.seconds == []


def refusing(name, in_words):
    """An endpoint that refuses one option in its own words, and answers what else it was sent."""

    def answer(seen):
        if name in seen.body:
            return in_words if isinstance(in_words, Answer) else error(400, in_words)
        return completion(json.dumps(sorted(seen.body.keys() - {"model", "messages", "tools"})))

    return answer


ALL = {"max_tokens", "parallel_tool_calls", "seed", "stop", "temperature", "top_p"}
VALUE = "Only the default (1) value is supported."
EXTRA = {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}
REFUSALS = {
    "stop": "Unsupported parameter: 'stop' is not supported with this model.",
    "temperature": json_answer({"error": {"message": VALUE, "param": "temperature", "code": "unsupported_value"}}, 400),
    "top_p": "`temperature_top` and `top_p` cannot both be specified: top_p is not allowed for this model",
    "max_tokens": "Unsupported parameter: use 'max_completion_tokens' instead of 'max_tokens'.",
    "parallel_tool_calls": "Unknown parameter: 'parallel_tool_calls'.",
    "seed": json_answer({"detail": [EXTRA]}, 422),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_option_is_left_out_from_then_on_with_one_warning(name):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    request = dataclasses.replace(
        QUESTION, stop=("END",), temperature=0.0, top_p=1.0, max_tokens=5, seed=1, tools=(tool,)
    )

    async def several(server):
        model = OpenAIChatModel("small", base_url=server.base_url, api_key=KEY, retry=RetryPolicy(retries=0))
        at_once = await asyncio.gather(*(model.complete(request) for _ in range(3)))
        later = await model.complete(request)
        await model.aclose()
        return [*at_once, later]

    with (
        LoopbackServer(refusing(name, REFUSALS[name])) as server,
        pytest.warns(UserWarning, match=" refuses ") as warned,
    ):
        replies = asyncio.run(several(server))
    kept = sorted(ALL - {name} | ({"max_completion_tokens"} if name == "max_tokens" else set()))
    assert [json.loads(reply.text) for reply in replies] == [kept] * 4
    assert len(server.requests) <= 7, "the last one knew it"
    assert [name in str(warning.message) for warning in warned] == [True]
    was_asked_for = name not in ("max_tokens", "parallel_tool_calls")
    assert [reply.dropped for reply in replies] == [(name,) if was_asked_for else ()] * 4


def test_an_endpoint_that_refuses_everything_is_told_the_messages_alone():
    def answer(seen):
        refused = next((name for name in (*REFUSALS, "max_completion_tokens") if name in seen.body), None)
        return completion("ok") if refused is None else error(400, f"{refused} is not supported")

    request = dataclasses.replace(QUESTION, stop=("END",), temperature=0.0, max_tokens=5, seed=1)
    with LoopbackServer(answer) as server, pytest.warns(UserWarning, match=" refuses ") as warned:
        assert ask(server, request).dropped == ("stop", "temperature", "seed", "max_completion_tokens")
    assert server.requests[-1].body.keys() == {"model", "messages"}
    assert len(warned) == 5, "the limit on tokens under both of its names"


def test_a_template_for_single_calls_is_told_single_calls():
    calls = (ToolCall("a", "add", "{}"), ToolCall("b", "add", "{}"))
    results = [ChatMessage("tool", call.id, tool_call_id=call.id) for call in calls]
    request = ChatRequest((ChatMessage("user", "go"), ChatMessage("assistant", "", calls), *results))

    def answer(seen):
        several = any(len(message.get("tool_calls", ())) > 1 for message in seen.body["messages"])
        return error(400, "This model only supports single tool-calls at once!") if several else completion("ok")

    with LoopbackServer(answer) as server, pytest.warns(UserWarning, match="several tool calls in one message"):
        assert ask(server, request).text == "ok"
    assert [message["content"] for message in server.requests[-1].body["messages"]] == ["go", None, "a"]


def test_refusals_of_other_things_drop_nothing():
    request = dataclasses.replace(QUESTION, stop=("END",), temperature=0.0)
    for words in ("Invalid schema for function 'add'", "temperature rises", "messages[0].stop_token is invalid"):
        with LoopbackServer(lambda seen, words=words: error(400, words)) as server:
            with pytest.raises(RequestRefusedError):
                ask(server, request)
            assert len(server.requests) == 1
    echo = {"type": "missing", "loc": ["body", "model"], "msg": "Field required; invalid", "input": {"stop": ["END"]}}
    elsewhere = {"message": "Invalid content: please stop", "param": "messages[2].content"}
    for body in ({"detail": [echo]}, {"error": elsewhere}):
        with LoopbackServer(lambda seen, body=body: json_answer(body, 400)) as server:
            with pytest.raises(RequestRefusedError):
                ask(server, request)
            assert len(server.requests) == 1


def test_an_option_that_was_not_the_fault_is_sent_again():
    """What names an option but refuses the request without it, too, meant something else."""
    request = dataclasses.replace(QUESTION, stop=("END",), temperature=0.0)

    async def both(server):
        model = OpenAIChatModel("small", base_url=server.base_url, api_key=KEY, retry=RetryPolicy(retries=0))
        with pytest.raises(RequestRefusedError):
            await model.complete(dataclasses.replace(request, messages=(ChatMessage("user", "bad"),)))
        reply = await model.complete(request)
        await model.aclose()
        return reply

    def answer(seen):
        bad = seen.body["messages"][-1]["content"] == "bad"
        return error(400, "Your prompt was rejected: stop.") if bad else completion("ok")

    with LoopbackServer(answer) as server:
        assert asyncio.run(both(server)).dropped == ()
    assert server.requests[-1].body["stop"] == ["END"]


def test_requests_overlap_up_to_the_limit_and_no_further():
    limit = 4
    barrier = threading.Barrier(limit, timeout=20)

    def answer(seen):
        barrier.wait()  # passes only when `limit` requests are there at once
        return completion(str(seen.number))

    async def many(server):
        model = OpenAIChatModel("small", base_url=server.base_url, api_key=KEY, max_concurrency=limit)
        requests = [dataclasses.replace(QUESTION, seed=seed) for seed in range(3 * limit)]
        replies = await asyncio.gather(*map(model.complete, requests))
        await model.aclose()
        return replies

    with LoopbackServer(answer) as server:
        replies = asyncio.run(many(server))
    assert len({reply.text for reply in replies}) == 3 * limit
    assert server.most_in_flight == limit


def test_one_model_serves_several_event_loops():
    with LoopbackServer(lambda seen: completion("ok")) as server:
        model = OpenAIChatModel("small", base_url=server.base_url, api_key=KEY)
        assert [asyncio.run(model.complete(QUESTION)).text for _ in range(3)] == ["ok"] * 3
    assert len(server.requests) == 3


def test_the_key_stands_nowhere(caplog, capfd):
    """Whatever an endpoint repeats: in an answer, in an error, in a body that is no answer."""
    caplog.set_level(logging.DEBUG)
    texts = []
    for answer in (completion(f"your key is {KEY}"), not_json()):
        with LoopbackServer(in_turn(answer, completion(f"it is {KEY}"))) as server:
            texts.append(ask(server).text)
    for status in (400, 401, 403, 404, 429, 500):
        echo = error(status, f"key {KEY} and sk-sec*****789 and Bearer {KEY}")
        with LoopbackServer(lambda seen, echo=echo: echo) as server:
            with pytest.raises((EndpointError, RequestRefusedError)) as caught:
                ask(server, retries=0)
            texts.append(str(caught.value))
    with LoopbackServer(lambda seen: json_answer({"error": {"message": f"bad {KEY}"}})) as server:
        with pytest.raises(EndpointError) as caught:
            ask(server, retries=0)
        texts.append(str(caught.value))
    model = OpenAIChatModel("small", base_url="http://127.0.0.1:1/v1", api_key=KEY)
    texts += [repr(model), str(model), repr(vars(model)), model.name]
    with pytest.raises(TypeError):
        pickle.dumps(model)
    captured = capfd.readouterr()
    everything = "\n".join([*texts, caplog.text, captured.out, captured.err])
    assert "[key]" in everything
    assert KEY not in everything
    assert "sk-sec" not in everything


def test_the_key_stands_nowhere_however_it_is_escaped():
    """Arguments of a call are JSON within JSON: what decodes them must not find the key either."""
    escaped = "".join(f"\\u{ord(letter):04X}" for letter in KEY)
    spellings = [KEY, KEY.replace("-", "\\-"), escaped, escaped.replace("\\", "\\u005c"), json.dumps(escaped)[1:-1]]
    spellings += ["".join(f"\\x{ord(letter):02x}" for letter in KEY)]
    for spelling in spellings:
        call = {"id": spelling, "type": "function", "function": {"name": "f", "arguments": f'{{"x": "{spelling}"}}'}}
        answer = completion(f"it is {spelling}.", message={"tool_calls": [call]}, finish_reason=spelling)
        outer = dataclasses.replace(answer, body=answer.body.replace(KEY.encode(), escaped.encode()))
        for sent in (answer, outer):
            with LoopbackServer(in_turn(sent)) as server:
                reply = ask(server)
            assert (reply.text, reply.tool_calls[0].id, reply.finish_reason) == ("it is [key].", "[key]", "[key]")
            assert reply.tool_calls[0].arguments == '{"x": "[key]"}'
            assert KEY not in str(reply)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'resilisim\[llm\]'"):
        OpenAIChatModel("small", api_key=KEY)


@pytest.mark.parametrize(
    "arguments",
    [{"model": " "}, {"timeout_seconds": 0.0}, {"timeout_seconds": float("nan")}, {"max_concurrency": 0}],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(InvalidInputError):
        OpenAIChatModel(**{"model": "small", "api_key": KEY, **arguments})


# Too much


def test_an_answer_of_a_megabyte_comes_through_whole():
    text = "word and " * 120_000
    with LoopbackServer(lambda seen: completion(text, finish_reason="length")) as server:
        reply = ask(server, retries=0)
    assert reply.text == text
    assert reply.finish_reason == "length"


def test_an_answer_that_is_too_long_is_none():
    with LoopbackServer(in_turn(completion("x" * LONGEST_BODY), completion("shorter"))) as server:
        assert ask(server, retries=1).text == "shorter"
        assert len(server.requests) == 2
    with LoopbackServer(lambda seen: completion("x" * (LONGEST_BODY - 1000))) as server:
        assert len(ask(server, retries=0).text) == LONGEST_BODY - 1000


def test_an_answer_without_end_is_not_read_without_end():
    with LoopbackServer(lambda seen: endless()) as server:
        with pytest.raises(EndpointError, match="more than 8,000,000 bytes"):
            ask(server, retries=0)
        assert server.bytes_of_endless < 4 * LONGEST_BODY  # what lies in the buffers between


@pytest.mark.parametrize("status", [400, 500, 307])
def test_nor_is_an_error_without_end(status):
    errors = Answer(status, b"again and " * 10_000, {"Location": "/elsewhere"}, kind="endless")
    with LoopbackServer(lambda seen: errors) as server:
        with pytest.raises((EndpointError, RequestRefusedError), match=r"again and|no connection"):
            ask(server, retries=0)
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
        ask(server, retries=0)


# Too slowly


def test_a_server_that_drips_is_given_up_after_the_timeout():
    refused = pytest.raises(EndpointError, match=r"no answer within 0\.3 s")  # the whole drips for longer than that
    with LoopbackServer(lambda seen: dripping()) as server, refused:
        ask(server, retries=0, timeout=0.3)
    with LoopbackServer(lambda seen: dripping()) as server:
        assert ask(server, retries=0).text == "slowly"


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
        ask(server, retries=0)


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
            ask(server, retries=0)
        assert not isinstance(caught.value, ContextOverflowError)


# What our side costs


def test_a_request_that_succeeds_is_not_hashed(monkeypatch):
    def refuse(value):
        raise AssertionError("hashed although nothing failed")

    monkeypatch.setattr(openai_module, "content_hash", refuse)
    with LoopbackServer(lambda seen: completion("ok")) as server:
        assert ask(server, retries=0).text == "ok"


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
    with pytest.raises(InvalidInputError, match="retries is -1"):
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
