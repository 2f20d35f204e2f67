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
from types import SimpleNamespace

import pytest

from resilisim.chat import (
    ChatMessage,
    ChatReply,
    ChatRequest,
    ContextOverflowError,
    EndpointError,
    OpenAIChatModel,
    RequestRefusedError,
    TokenUsage,
    ToolCall,
)
from resilisim.chat import openai as openai_module
from resilisim.chat.middleware import RetryPolicy, demanded_wait, is_passing
from resilisim.chat.openai import (
    DEFAULT_BASE_URL,
    LONGEST_BODY,
    endpoint_url,
    find_endpoint,
)
from resilisim.chat.types import LONGEST_REPLY, MOST_CALLS, MOST_TOKENS
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
from tests.guards import WAITING_SECONDS

KEY = "sk-secret-0123456789"
QUESTION = ChatRequest((ChatMessage("system", "Be brief."), ChatMessage("user", "Hello?")), role="planner")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FULL = dataclasses.replace(QUESTION, tools=(TOOL,), stop=("END",), temperature=0.25, top_p=0.5, max_tokens=9, seed=3)


def made(base_url, retries=0, **options):
    return OpenAIChatModel("small", base_url=base_url, api_key=KEY, retry=RetryPolicy(retries=retries), **options)


def ask(answerer, request=QUESTION, *, timeout=10.0, **options):
    """Ask a server once, waits taking no time; return what came of it, what was asked, and the waits.

    `answerer` is an answer, or a function from what was seen to one. An error is returned, not raised.
    """
    waits = []

    async def wait(seconds):
        waits.append(seconds)

    async def once(base_url):
        model = made(base_url, sleep=wait, timeout_seconds=timeout, **options)
        try:
            return await model.complete(request)
        except (EndpointError, RequestRefusedError) as failure:
            return failure
        finally:
            await model.aclose()

    with LoopbackServer(answerer if callable(answerer) else lambda seen: answerer) as server:
        outcome = asyncio.run(once(server.base_url))
    return SimpleNamespace(outcome=outcome, server=server, seen=server.requests, waits=waits)


def test_a_proper_answer():
    asked = ask(completion("Hi."))
    reply = asked.outcome
    assert dataclasses.replace(reply, latency_seconds=0.0).to_mapping() == {
        "text": "Hi.",
        "tool_calls": [],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "is_estimate": False},
        "finish_reason": "stop",
        "model": "loopback-model",
        "latency_seconds": 0.0,
        "attempts": 1,
        "thoughts": "",
        "dropped": [],
    }
    assert reply.latency_seconds > 0
    assert not reply.from_cache
    [seen] = asked.seen
    assert (seen.path, seen.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    assert seen.body == {"model": "small", "messages": messages}


def test_all_parameters_and_native_calls_travel():
    messages = (
        ChatMessage("user", "1 + 1 \ud83d"),
        ChatMessage("assistant", "", (ToolCall("a1", "add", "{}"),)),
        ChatMessage("tool", "2", tool_call_id="a1"),
    )
    calls = [{"id": "b7", "type": "function", "function": {"name": "add", "arguments": '{"x": 1'}}]
    answer = completion(None, message={"tool_calls": calls}, finish_reason="tool_calls")
    asked = ask(answer, dataclasses.replace(FULL, messages=messages))
    reply = asked.outcome
    assert (reply.text, reply.tool_calls) == ("", (ToolCall("b7", "add", '{"x": 1'),))
    assert reply.finish_reason == "tool_calls"
    function = {"name": "add", "arguments": "{}"}
    assert asked.seen[0].body == {
        "model": "small",
        "messages": [
            {"role": "user", "content": "1 + 1 ?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "2", "tool_call_id": "a1"},
        ],
        "tools": [TOOL],
        "parallel_tool_calls": False,
        "stop": ["END"],
        "temperature": 0.25,
        "top_p": 0.5,
        "max_tokens": 9,
        "seed": 3,
    }


def test_what_endpoints_leave_out_or_write_otherwise_is_read():
    def read(message, **more):
        return ask(json_answer({"choices": [{"message": message, **more}], "usage": {"prompt_tokens": -1}})).outcome

    parts = read({"content": [{"type": "text", "text": "a"}, {"text": "b"}]})
    assert (parts.text, parts.finish_reason, parts.model) == ("ab", "", "")
    assert parts.usage.is_estimate
    assert parts.usage.prompt_tokens == 4 + 3 + 4 + 2  # "Be brief." and "Hello?", and the frames of two messages
    assert parts.usage.completion_tokens == 1
    objects = read({"tool_calls": [{"function": {"name": "add", "arguments": {"x": 1}}}]})
    assert objects.tool_calls == (ToolCall("call_0", "add", '{"x": 1}'),)
    thinking = read({"reasoning_content": "hm " * 4}, finish_reason="length")
    assert (thinking.text, thinking.thoughts, thinking.is_cut) == ("", "hm " * 4, True)
    assert thinking.usage.completion_tokens == 3
    thought = ask(completion("a", message={"reasoning": "because"})).outcome
    assert (thought.text, thought.thoughts, thought.is_cut) == ("a", "because", False)
    assert ChatReply.from_mapping(thought.to_mapping()) == thought


@pytest.mark.parametrize(
    "count",
    [
        2**63,
        "9" * 400,
        "9" * 5000,
        "-1",
        "NaN",
        "Infinity",
        "1e400",
        '"7"',
        "null",
        "[]",
        "0.5",
        "true",
        MOST_TOKENS + 1,
    ],
)
def test_a_count_of_tokens_that_cannot_be_is_unknown_and_estimated(count):
    for counts in (
        f'"prompt_tokens": {count}, "completion_tokens": 7',
        f'"prompt_tokens": 7, "completion_tokens": {count}',
    ):
        body = f'{{"choices": [{{"message": {{"content": "four"}}}}], "usage": {{{counts}}}}}'
        usage = ask(Answer(200, body.encode(), {"Content-Type": "application/json"})).outcome.usage
        assert (usage.is_estimate, usage.completion_tokens, usage.prompt_tokens) == (True, 1, 13)


def test_possible_counts_are_kept_whatever_their_spelling():
    usage = ask(completion("a", usage={"prompt_tokens": 3.0, "completion_tokens": MOST_TOKENS})).outcome.usage
    assert usage == TokenUsage(3, MOST_TOKENS)


def test_a_reply_longer_than_any_model_writes_is_cut_and_says_so():
    calls = [{"id": "a", "function": {"name": "add", "arguments": "y" * LONGEST_REPLY}}]
    for message, lengths in (
        ({"content": "x" * 7_000_000}, (LONGEST_REPLY, 0, 0)),
        ({"content": "x" * 100, "tool_calls": calls}, (100, LONGEST_REPLY - 100, 0)),
        ({"content": "x" * 100, "reasoning_content": "z" * 7_000_000}, (100, 0, LONGEST_REPLY - 100)),
    ):
        reply = ask(json_answer({"choices": [{"message": message, "finish_reason": "stop"}]})).outcome
        arguments = sum(len(call.arguments) for call in reply.tool_calls)
        assert (len(reply.text), arguments, len(reply.thoughts)) == lengths
        assert reply.is_cut
    words = {"finish_reason": "f" * 10_000, "model": "m" * 10_000}
    many = {"tool_calls": [{"id": "i" * 10_000, "function": {"name": "n" * 10_000}}] * 200}
    reply = ask(json_answer({"choices": [{"message": many, **words}], **words})).outcome
    assert len(reply.tool_calls) == MOST_CALLS
    assert len(json.dumps(reply.to_mapping())) < 100_000


def test_calls_are_read_wherever_they_stand_and_each_gets_an_id_of_its_own():
    def read(message):
        return ask(json_answer({"choices": [{"message": message}]})).outcome.tool_calls

    one = {"id": "same", "type": "function", "function": {"name": "add", "arguments": "null"}}
    ids = [call.id for call in read({"tool_calls": [one, one, {**one, "id": "call_1"}, {**one, "id": None}]})]
    assert ids[0] == "same"
    assert len(set(ids)) == 4
    assert read({"tool_calls": one}) == (ToolCall("same", "add", "null"),)
    assert read({"content": None, "function_call": one["function"]}) == (ToolCall("call_0", "add", "null"),)
    assert read({"tool_calls": [{"name": "add", "arguments": {"x": 1}}]}) == (ToolCall("call_0", "add", '{"x": 1}'),)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], ""),
        ([{"type": "text", "text": "a"}, "b"], "ab"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}], "a"),
        ({"type": "text", "text": "a"}, "a"),
    ],
)
def test_content_in_parts(content, text):
    assert ask(json_answer({"choices": [{"message": {"content": content, "tool_calls": []}}]})).outcome.text == text


def test_a_call_at_the_end_of_thoughts_that_are_all_of_a_reply_is_its_text():
    def read(thoughts, **more):
        reply = ask(
            json_answer({"choices": [{"message": {"content": None, "reasoning_content": thoughts}, **more}]})
        ).outcome
        return reply.text, reply.thoughts.strip()

    call = "<tool_call>add</tool_call>"
    assert read(f"I add.\n\n{call}") == (call, "I add.")
    assert read(f"I add.\n\n{call}", finish_reason="length") == ("", f"I add.\n\n{call}")
    assert read("I think of it.\n\nThe task is complete.") == ("", "I think of it.\n\nThe task is complete.")


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
    "not compressed as it says": Answer(200, b"not gzip", {"Content-Encoding": "gzip"}),
    "too long": completion("x" * LONGEST_BODY),
    "empty": empty_body(),
    "cut": cut_stream(),
    "nothing": nothing(),
}


@pytest.mark.parametrize("passes", [True, False])
def test_failures_that_may_pass_are_asked_again_and_else_end_in_one_typed_line(passes):
    met = set()

    def answer(seen):
        name = seen.last_message
        if passes and name in met:
            return completion(f"At last: {name}")
        met.add(name)
        return PASSING[name]

    async def sleep(seconds):
        pass

    async def once(model, name):
        try:
            return await model.complete(ChatRequest((ChatMessage("user", name),)))
        except EndpointError as failure:
            return failure

    async def all_at_once(base_url):  # in one event loop: a client of its own for each would cost most of the time
        model = made(base_url, retries=2, sleep=sleep)
        outcomes = await asyncio.gather(*(once(model, name) for name in PASSING))
        await model.aclose()
        return dict(zip(PASSING, outcomes, strict=True))

    with LoopbackServer(answer) as server:
        outcomes = asyncio.run(all_at_once(server.base_url))
    assert {outcome.attempts for outcome in outcomes.values()} == {2 if passes else 3}
    assert Counter(seen.last_message for seen in server.requests) == dict.fromkeys(PASSING, 2 if passes else 3)
    if passes:
        assert {name: reply.text for name, reply in outcomes.items()} == {name: f"At last: {name}" for name in PASSING}
        return
    for name, failure in outcomes.items():
        assert isinstance(failure, InfrastructureError)
        is_broken = name in ("cut", "nothing", "not compressed as it says")
        assert failure.status == (None if is_broken else PASSING[name].status), name
        assert f"{server.base_url} does not answer (" in str(failure)
        assert "asked 3 times" in str(failure)
        assert "\n" not in str(failure)
        assert KEY not in str(failure)


def test_no_server_at_all():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can answer on this port
        model = made(f"http://127.0.0.1:{reserved.getsockname()[1]}/v1")
        with pytest.raises(EndpointError, match="no connection") as caught:
            asyncio.run(model.complete(QUESTION))
    assert (caught.value.status, caught.value.attempts) == (None, 1)
    assert all(hint in str(caught.value) for hint in ("`curl ", "/v1/models`", "--base-url", "OPENAI_API_KEY"))


LONG_ERROR = Answer(400, b"again and " * 10_000, {"Location": "/elsewhere"}, kind="endless")
CODED = {"error": {"message": "Your input is odd.", "code": "context_length_exceeded"}}
# Answer, error, status, words of its text. The endpoints that say a prompt is too long are OpenAI's, vLLM, llama.cpp,
# TGI, Anthropic's, a proxy and Mistral's.
FAILURES = [
    (error(400, "the wish\nis odd"), RequestRefusedError, 400, "refuses the request (status 400: the wish is odd)"),
    (error(401, "no"), RequestRefusedError, 401, "refuses the key (status 401)"),
    (error(403, "no"), RequestRefusedError, 403, "refuses the key (status 403)"),
    (error(404, "no"), RequestRefusedError, 404, "knows no model 'small'"),
    (error(422, "odd"), RequestRefusedError, 422, "refuses the request (status 422: odd)"),
    (
        error(400, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001."),
        ContextOverflowError,
        400,
        "maximum context length is 8192",
    ),
    (error(400, "The prompt (length 9001) is too long. Reduce the length of it."), ContextOverflowError, 400, "9001"),
    (error(400, "request (9001 tokens) exceeds the available context size"), ContextOverflowError, 400, "exceeds"),
    (error(422, "`max_new_tokens` must be <= 4096: too many tokens"), ContextOverflowError, 422, "too many"),
    (error(400, "prompt is too long: 209112 tokens > 200000 maximum"), ContextOverflowError, 400, "209112"),
    (error(413, "Request Entity Too Large"), ContextOverflowError, 413, "Too Large"),
    (error(400, "too large for model with 8192 maximum context length"), ContextOverflowError, 400, "8192"),
    (json_answer(CODED, 400), ContextOverflowError, 400, "Your input is odd."),
    (error(400, "Invalid schema for function 'add'"), RequestRefusedError, 400, "Invalid schema"),
    (error(400, "the file is too large"), RequestRefusedError, 400, "the file"),
    (error(422, "messages: must be at most 2"), RequestRefusedError, 422, "must be"),
    (error(401, "maximum context length"), RequestRefusedError, 401, "refuses the key"),
    (error(404, "context window"), RequestRefusedError, 404, "knows no model"),
    (error(500, "maximum context length"), EndpointError, 500, "status 500: maximum context length"),
    (error(429, "too many tokens"), EndpointError, 429, "status 429: too many tokens"),
    (rate_limited("3600"), EndpointError, 429, "asks to wait 3600 s, more than 120 s"),
    (Answer(307, b"", {"Location": "/v1/chat/completions"}), EndpointError, None, "no connection"),
    (endless(), EndpointError, 200, "more than 8,000,000 bytes"),
    (LONG_ERROR, RequestRefusedError, 400, "again and"),
    (dataclasses.replace(LONG_ERROR, status=500), EndpointError, 500, "again and"),
    (dataclasses.replace(LONG_ERROR, status=307), EndpointError, None, "no connection"),
    (hanging(), EndpointError, None, "no answer within 0.3 s"),
    (dripping(), EndpointError, None, "no answer within 0.3 s"),  # the whole drips for longer than that
]


@pytest.mark.parametrize(("answer", "kind", "status", "words"), FAILURES)
def test_failures_have_types_and_are_told_in_one_line(answer, kind, status, words):
    asked = ask(answer, timeout=0.3 if answer.kind in ("hang", "drip") else 10.0)
    failure = asked.outcome
    assert type(failure) is kind
    assert failure.status == status
    assert words in str(failure)
    assert asked.server.base_url in str(failure)
    assert "\n" not in str(failure)
    assert asked.waits == []
    # Of a redirect, once for each of those it follows; the rest lies in the buffers between.
    assert asked.server.bytes_of_endless < (30 if status is None else 4) * LONGEST_BODY
    if isinstance(failure, RequestRefusedError):
        assert isinstance(failure, InvalidInputError)
        assert len(asked.seen) == 1
        assert failure.concerns_all_requests == (status in (401, 403, 404))
        assert pickle.loads(pickle.dumps(failure)).status == status


def test_refusals_are_not_repeated_and_long_answers_come_through_whole():
    assert len(ask(error(400, "no"), retries=3).seen) == 1
    assert ask(dripping()).outcome.text == "slowly"
    longest = ask(completion("x" * LONGEST_REPLY)).outcome
    assert (len(longest.text), longest.is_cut) == (LONGEST_REPLY, False)
    whole = completion("whole", finish_reason="length")
    zipped = Answer(200, gzip.compress(whole.body), {"Content-Encoding": "gzip", **whole.headers})
    assert ask(zipped).outcome.is_cut


def test_waits_double_with_jitter_and_obey_the_endpoint():
    asked = ask(in_turn(error(500), error(500), error(500), rate_limited("7"), completion("ok")), retries=4)
    assert asked.outcome.attempts == 5
    first, second, third, demanded = asked.waits
    assert 0.25 <= first <= 0.5 <= second <= 1.0 <= third <= 2.0
    assert 7.0 < demanded <= 7.5
    again = ask(in_turn(error(500), completion("ok")), retries=1)
    assert again.waits == [first]  # the jitter is a function of the request


# Options that are refused


def named(seen):
    return sorted(seen.body.keys() - {"model", "messages", "tools"})


def refusing(*names, words="{} is not supported"):
    """An endpoint that refuses some options in its own words, and answers what else it was sent."""

    def answer(seen):
        refused = next((name for name in names if name in seen.body), None)
        if refused is None:
            return completion(json.dumps(named(seen)))
        return words if isinstance(words, Answer) else error(400, words.format(refused))

    return answer


ALL = {"max_tokens", "parallel_tool_calls", "seed", "stop", "temperature", "top_p"}
VALUE = "Only the default (1) value is supported."
EXTRA = {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}
REFUSALS = {
    "stop": "Unsupported parameter: 'stop' is not supported with this model; use 'max_tokens' instead.",
    "temperature": json_answer({"error": {"message": VALUE, "param": "temperature", "code": "unsupported_value"}}, 400),
    "top_p": "`temperature_top` and `top_p` cannot both be specified: top_p is not allowed for this model",
    "max_tokens": "Unsupported parameter: use 'max_completion_tokens' instead of 'max_tokens'.",
    "parallel_tool_calls": "Unknown parameter: 'parallel_tool_calls'.",
    "seed": json_answer({"detail": [EXTRA]}, 422),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_option_is_left_out_from_then_on_with_one_warning(name):
    async def several(base_url):
        model = made(base_url)
        at_once = await asyncio.gather(*(model.complete(FULL) for _ in range(3)))
        later = await model.complete(FULL)
        await model.aclose()
        return [*at_once, later]

    with (
        LoopbackServer(refusing(name, words=REFUSALS[name])) as server,
        pytest.warns(UserWarning, match=" refuses ") as warned,
    ):
        replies = asyncio.run(several(server.base_url))
    kept = sorted(ALL - {name} | ({"max_completion_tokens"} if name == "max_tokens" else set()))
    assert [json.loads(reply.text) for reply in replies] == [kept] * 4
    assert len(server.requests) <= 7, "the last one knew it"
    assert [name in str(warning.message) for warning in warned] == [True]
    was_asked_for = name not in ("max_tokens", "parallel_tool_calls")
    assert [reply.dropped for reply in replies] == [(name,) if was_asked_for else ()] * 4


def test_an_endpoint_that_refuses_everything_is_told_the_messages_alone():
    request = dataclasses.replace(QUESTION, stop=("END",), temperature=0.0, max_tokens=5, seed=1)
    with pytest.warns(UserWarning, match=" refuses ") as warned:
        asked = ask(refusing(*REFUSALS, "max_completion_tokens"), request)
    assert asked.outcome.dropped == ("stop", "temperature", "seed", "max_completion_tokens")
    assert named(asked.seen[-1]) == []
    assert len(warned) == 5, "the limit on tokens under both of its names"


def test_a_template_for_single_calls_is_told_single_calls():
    calls = (ToolCall("a", "add", "{}"), ToolCall("b", "add", "{}"))
    results = [ChatMessage("tool", call.id, tool_call_id=call.id) for call in calls]
    request = ChatRequest((ChatMessage("user", "go"), ChatMessage("assistant", "", calls), *results))

    def answer(seen):
        several = any(len(message.get("tool_calls", ())) > 1 for message in seen.body["messages"])
        return error(400, "This model only supports single tool-calls at once!") if several else completion("ok")

    with pytest.warns(UserWarning, match="several tool calls in one message"):
        asked = ask(answer, request)
    assert asked.outcome.text == "ok"
    assert [message["content"] for message in asked.seen[-1].body["messages"]] == ["go", None, "a"]


NO_NULL = {"type": "string_type", "loc": ["body", "messages", 1, "content"], "msg": "Input should be a valid string"}


@pytest.mark.parametrize("refused", [[None], [None, ""]], ids=["null", "null and an empty text"])
@pytest.mark.parametrize(
    "words",
    [
        error(400, "Invalid value for 'content': expected a string, got null."),
        json_answer({"detail": [NO_NULL]}, 422),
        error(400, "messages.1: content must not be empty"),
        error(500, 'can only concatenate str (not "NoneType") to str'),
        error(400, "Missing 'content' in message"),
    ],
)
def test_an_endpoint_that_refuses_no_content_beside_calls_is_given_another_from_then_on(words, refused):
    calls = (ToolCall("a", "add", "{}"),)
    request = ChatRequest(
        (ChatMessage("user", "go"), ChatMessage("assistant", "", calls), ChatMessage("tool", "3", tool_call_id="a"))
    )

    def answer(seen):
        return words if seen.body["messages"][1].get("content", "none at all") in refused else completion("ok")

    async def twice(base_url):
        model = made(base_url)
        texts = [(await model.complete(request)).text for _ in range(2)]
        await model.aclose()
        return texts

    with LoopbackServer(answer) as server, pytest.warns(UserWarning, match="beside tool calls") as warned:
        assert asyncio.run(twice(server.base_url)) == ["ok", "ok"]
    assert len(server.requests) == len(refused) + 2
    assert server.requests[-1].body["messages"][1].get("content", "none at all") not in refused
    assert len(warned) == len(refused)


def test_a_broken_server_is_asked_again_where_no_content_was_left_out():
    assert ask(in_turn(error(500, "NoneType has no len()"), completion("ok")), retries=1).outcome.attempts == 2


ECHO = {"type": "missing", "loc": ["body", "model"], "msg": "Field required; invalid", "input": {"stop": ["END"]}}
ELSEWHERE = {"message": "Invalid content: please stop", "param": "messages[2].content"}


@pytest.mark.parametrize(
    "answer",
    [
        error(400, "Invalid schema for function 'add'"),
        error(400, "temperature rises"),
        error(400, "messages[0].stop_token is invalid"),
        json_answer({"detail": [ECHO]}, 400),
        json_answer({"error": ELSEWHERE}, 400),
    ],
)
def test_refusals_of_other_things_drop_nothing(answer):
    asked = ask(answer, FULL)
    assert isinstance(asked.outcome, RequestRefusedError)
    assert len(asked.seen) == 1


def test_an_option_that_was_not_the_fault_is_sent_again():
    """What names an option but refuses the request without it, too, meant something else."""

    async def both(base_url):
        model = made(base_url)
        with pytest.raises(RequestRefusedError):
            await model.complete(dataclasses.replace(FULL, messages=(ChatMessage("user", "bad"),)))
        reply = await model.complete(FULL)
        await model.aclose()
        return reply

    def answer(seen):
        return error(400, "Your prompt was rejected: stop.") if seen.last_message == "bad" else completion("ok")

    with LoopbackServer(answer) as server:
        assert asyncio.run(both(server.base_url)).dropped == ()
    assert server.requests[-1].body["stop"] == ["END"]


def test_requests_overlap_up_to_the_limit_and_no_further():
    limit = 4
    barrier = threading.Barrier(limit, timeout=WAITING_SECONDS)

    def answer(seen):
        barrier.wait()  # passes only when `limit` requests are there at once
        return completion(str(seen.number))

    async def many(base_url):
        model = made(base_url, max_concurrency=limit)
        requests = [dataclasses.replace(QUESTION, seed=seed) for seed in range(3 * limit)]
        replies = await asyncio.gather(*map(model.complete, requests))
        await model.aclose()
        return replies

    with LoopbackServer(answer) as server:
        replies = asyncio.run(many(server.base_url))
    assert len({reply.text for reply in replies}) == 3 * limit
    assert server.most_in_flight == limit


def test_one_model_serves_several_event_loops_and_hashes_nothing_that_succeeds(monkeypatch):
    monkeypatch.setattr(openai_module, "content_hash", None)
    with LoopbackServer(lambda seen: completion("ok")) as server:
        model = made(server.base_url)
        assert [asyncio.run(model.complete(QUESTION)).text for _ in range(3)] == ["ok"] * 3
    assert len(server.requests) == 3


def test_the_key_stands_nowhere(caplog, capfd):
    """Whatever an endpoint repeats: in an answer, in an error, in a body that is no answer."""
    caplog.set_level(logging.DEBUG)
    echo = f"key {KEY} and sk-sec*****789 and Bearer {KEY}"
    answers = [completion(f"your key is {KEY}"), json_answer({"error": {"message": f"bad {KEY}"}})]
    answers += [error(status, echo) for status in (400, 401, 403, 404, 429, 500)]
    texts = [str(ask(answer).outcome) for answer in answers]
    model = made("http://127.0.0.1:1/v1")
    texts += [repr(model), str(model), repr(vars(model)), model.name]
    with pytest.raises(TypeError):
        pickle.dumps(model)
    captured = capfd.readouterr()
    everything = "\n".join([*texts, caplog.text, captured.out, captured.err])
    assert "[secret]" in everything
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
            reply = ask(sent).outcome
            assert (reply.text, reply.tool_calls[0].id, reply.finish_reason) == (
                "it is [secret].",
                "[secret]",
                "[secret]",
            )
            assert reply.tool_calls[0].arguments == '{"x": "[secret]"}'
            assert KEY not in str(reply)


def test_what_cannot_be_made_is_refused(monkeypatch):
    for wrong in ({"model": " "}, {"timeout_seconds": 0.0}, {"timeout_seconds": float("nan")}, {"max_concurrency": 0}):
        with pytest.raises(InvalidInputError):
            OpenAIChatModel(**{"model": "small", "api_key": KEY, **wrong})
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt '\.\[llm\]'"):
        OpenAIChatModel("small", api_key=KEY)


# Waits, addresses, keys


def test_waits_stay_within_their_bounds_and_demands_are_kept_or_given_up():
    policy = RetryPolicy(retries=100, first_wait=0.5, longest_wait=30.0, longest_demand=120.0)
    draws = Draws("test")
    for retry in (1, 2, 3, 6, 7, 100, 5000):
        wait = policy.wait_before_retry(retry, None, draws)
        whole = min(30.0, 0.5 * 2.0 ** min(retry - 1, 60))
        assert whole / 2 <= wait <= whole
    assert 120.0 <= policy.wait_before_retry(1, 120.0, draws) <= 120.5
    assert policy.wait_before_retry(1, 120.5, draws) is None
    assert 0.0 < policy.wait_before_retry(1, 0.0, draws) <= 0.5
    with pytest.raises(InvalidInputError, match="retries is -1: expected at least 0"):
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
    assert excerpt.startswith("[secret] is wrong, [secret] too, and [secret] so so")
    assert len(excerpt) == 200
    assert find_endpoint("http://a").without_key("none of it") == "none of it"
    assert find_endpoint("http://a", "EMPTY").without_key("EMPTY") == "EMPTY"
