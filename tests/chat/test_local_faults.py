"""What llama.cpp is asked, and what becomes of its failures; a stand-in plays its server."""

from __future__ import annotations

import asyncio

import pytest

from resilisim.chat import (
    ChatMessage,
    ChatModelSettings,
    ChatRequest,
    ContextOverflowError,
    EndpointError,
    RequestRefusedError,
    make_chat_model,
)
from resilisim.chat.local import gguf

QUESTION = ChatRequest((ChatMessage("user", "Hello?"),))
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


def ask(request=QUESTION, **settings):
    return asyncio.run(make_chat_model("local", ChatModelSettings(**settings)).complete(request))


def test_what_is_asked(serve):
    server = serve(ANSWER)
    reply = ask()
    assert (reply.text, reply.model, reply.usage.is_estimate) == ("Hi.", "SmolLM2-135M-Instruct.Q4_1.gguf", True)
    assert server.bodies == [
        {
            "model": "local",
            "messages": [{"role": "user", "content": "Hello?"}],
            "cache_prompt": False,
        }
    ]
    whole = ChatRequest(QUESTION.messages, stop=("x",), temperature=0.5, top_p=0.9, max_tokens=7, seed=3)
    ask(whole, local_reuse_prompts=True)
    asked = {name: value for name, value in server.bodies[1].items() if name not in ("model", "messages")}
    assert asked == {
        "stop": ["x"],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
        "seed": 3,
        "cache_prompt": True,
    }


def test_context_threads_and_slots_follow_the_settings(monkeypatch):
    loadings = []
    monkeypatch.setattr(gguf, "_engines", {})
    monkeypatch.setattr(gguf, "_load", lambda loading: loadings.append(loading) or Server(ANSWER))
    ask(local_threads=3, max_concurrency=2)
    ask(local_threads=1, local_context=100_000)
    ask(local_threads=9, local_context=256, max_concurrency=64)
    assert [(loading.context, loading.threads, loading.slots) for loading in loadings] == [
        (8192, 3, 2),
        (8192, 1, 1),
        (256, 9, 4),
    ]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            {"error": {"code": 400, "type": "exceed_context_size_error", "message": "9 exceed 8"}},
            ContextOverflowError,
            "9 exceed 8",
        ),
        (
            {"error": {"code": 400, "type": "invalid_request_error", "message": "odd\nwish"}},
            RequestRefusedError,
            "local refuses the request: odd wish",
        ),
        ({"error": {"code": 500, "message": "no memory"}}, EndpointError, "no memory"),
        ({"error": {}}, EndpointError, "local refuses"),
        ({"choices": []}, EndpointError, r"answers with JSON without choices\[0\]"),
        (None, EndpointError, "answers with JSON that is no object"),
        (RuntimeError("thrown\nin C++"), EndpointError, "local failed: thrown in C"),
    ],
)
def test_failures_have_types(serve, answer, kind, words):
    serve(answer)
    with pytest.raises(kind, match=words) as caught:
        ask()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
