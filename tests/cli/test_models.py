"""`resilisim agents check` against a server on loopback and the model that runs here."""

from __future__ import annotations

import sys

import pytest

from tests.chat.loopback import LoopbackServer, completion, error, hanging

KEY = "sk-secret-0123456789"
COUNTED = ", ".join(str(number) for number in range(1, 21))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def able(seen):
    if "tools" in seen.body:
        call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        return completion(None, message={"tool_calls": [call]}, finish_reason="tool_calls")
    if "JSON" in seen.last_message:
        return completion('{"city": "Paris", "country": "France"}')
    if "sea" in seen.last_message:
        return completion("The [bold]sea[/bold] is wide.")
    return completion("1, 2, 3, 4, " if "stop" in seen.body else COUNTED)


def check(command, server, *more):
    return command("agents", "check", "--model", "openai:small", "--base-url", server.base_url, *more)


def test_what_an_endpoint_can_is_told(command):
    with LoopbackServer(able) as server:
        outcome, report = check(command, server), check(command, server, "--json").json()
    assert all(entry["passed"] for entry in report["checks"])
    assert (report["protocols"], report["identity"]) == (["text", "native"], f"openai:small at {server.base_url}")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "protocols: text, native"
    assert f"openai:small at {server.base_url}" in outcome.out
    assert sum(" yes " in line for line in outcome.out.splitlines()) == 6
    assert "'loopback-model' answers" in outcome.err
    assert "tokens/s" in outcome.err


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error(401, f"wrong key {KEY}"), "refuses the key"),
        (error(404, "no such model"), "knows no model 'small'"),
        (error(500), "does not answer (status 500"),
        (hanging(), "no answer within 0.2 s"),
        (completion("  "), "answers without a text"),
    ],
    ids=["key", "model", "broken", "hanging", "silent"],
)
def test_one_that_does_not_work_is_told_in_one_line(command, answer, words):
    with LoopbackServer(lambda seen: answer) as server:
        line = check(command, server, "--timeout", 0.2 if answer == hanging() else 20).refusal()
    assert words in line
    assert KEY not in line


def test_a_missing_package_is_named(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert "pip install -c constraints.txt '.[local]'" in command("agents", "check", "--model", "local").refusal()


def test_the_models_of_a_run_are_asked_again_where_they_were_and_with_the_same_fields(command, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-another-host-0123")
    finish = completion('Thought: done\nAction: finish {"answer": "done"}')
    with LoopbackServer(lambda seen: finish) as big, LoopbackServer(lambda seen: finish) as small:
        models = ("--model", f"openai:big@{big.base_url}", "--model", f"agent=openai:small@{small.base_url}")
        run = (
            *models,
            "--model-option",
            "reasoning_effort=low",
            "--tasks",
            1,
            "--prompt",
            "optimal",
            "--out",
            tmp_path,
        )
        assert command("evaluate", "--policy", "react", *run).code == 0
        assert command("runs", "replay", tmp_path, 0, "--live").code == 0
        assert [seen.body["reasoning_effort"] for seen in small.requests] == ["low", "low"]
        assert {seen.headers["authorization"] for seen in small.requests} == {"Bearer none"}
        assert not big.requests
