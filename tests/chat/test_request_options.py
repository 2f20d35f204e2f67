"""Fields of requests by role, endpoints by role with keys of their own, and where local models compute."""

import asyncio

import pytest

from resilisim.chat import ChatMessage, ChatRequest, OpenAIChatModel, RequestRefusedError
from resilisim.chat.check import check_model
from resilisim.chat.middleware import ChatModelSettings, ResponseCache
from resilisim.chat.models import RoleModels, model_identity
from resilisim.chat.openai import key_variable
from resilisim.chat.request_options import fields_of, merged, read_request_options
from resilisim.errors import InvalidInputError
from resilisim.redaction import SECRET_MARK, without_secrets
from tests.chat.loopback import LoopbackServer, completion

THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def request(role="planner", **more):
    return ChatRequest((ChatMessage("user", "Hello?"),), role=role, **{"temperature": 0.6, **more})


def asked(models, role):
    return asyncio.run(models.for_role(role).complete(models.asked(request(role))))


def test_fields_for_all_and_for_one_component_reach_the_endpoint():
    options = read_request_options(
        [
            "reasoning_effort=high",
            "planner.temperature=0",
            "planner.reasoning_effort=low",
            "chat_template_kwargs.enable_thinking=false",
            "executor.temperature=none",
            "executor.chat_template_kwargs.depth=2",
        ]
    )
    with LoopbackServer(lambda seen: completion("Yes.")) as server:
        models = RoleModels.parse(["openai:m"], ChatModelSettings(base_url=server.base_url), options=options)
        for role in ("planner", "executor", "extractor"):
            asked(models, role)
        planner, executor, extractor = (seen.body for seen in server.requests)
    assert (planner["temperature"], planner["reasoning_effort"], planner["chat_template_kwargs"]) == (
        0,
        "low",
        THINKING["chat_template_kwargs"],
    )
    assert "temperature" not in executor
    assert executor["chat_template_kwargs"] == {"enable_thinking": False, "depth": 2}
    assert (extractor["temperature"], extractor["reasoning_effort"]) == (0.6, "high")


def test_options_are_part_of_what_a_model_is_called_and_of_what_is_kept(tmp_path):
    answers = iter(["one", "two", "three"])
    with LoopbackServer(lambda seen: completion(next(answers))) as server:
        settings = ChatModelSettings(base_url=server.base_url)

        def said(*texts):
            options = read_request_options(texts)
            models = RoleModels.parse(["openai:m"], settings, ResponseCache(tmp_path), options)
            return asked(models, "planner").text, models.identities()

        plain, high, cold = said(), said("reasoning_effort=high"), said("planner.temperature=0")
        assert [text for text, _ in (plain, high, cold)] == ["one", "two", "three"]
        assert said("reasoning_effort=high")[0] == "two"
        where = f"openai:m at {server.base_url}"
        assert plain[1] == {"default": where}
        assert high[1] == {"default": f'{where}, reasoning_effort="high"'}
        assert cold[1] == {"default": where, "planner": f"{where}, temperature=0.0"}


def test_a_request_without_other_fields_is_what_it_was():
    assert "extra" not in request().content()
    assert request(extra=THINKING).content()["extra"] == THINKING


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("temperature", "expected [ROLE.]KEY=VALUE"),
        ("planner.=1", "expected [ROLE.]KEY=VALUE"),
        ("temperature=3", "at most 2"),
        ("planner.top_p=hot", "top_p"),
        ("plainer.temperature=1", "did you mean 'planner'?"),
        ("messages=[]", "does not set"),
        ("n=2", "does not set"),
    ],
)
def test_what_is_no_field_is_refused_in_one_line(text, words):
    with pytest.raises(InvalidInputError) as caught:
        read_request_options([text])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_counts_once_and_objects_are_joined():
    with pytest.raises(InvalidInputError, match="given twice"):
        read_request_options(["temperature=1", "temperature=0"])
    with pytest.raises(InvalidInputError, match="has a value already"):
        read_request_options(["a=1", "a.b=2"])
    both = merged(read_request_options(["a.b=1", "c=1"]), read_request_options(["a.d=2", "c=2"]))
    assert fields_of(both, "planner") == {"a": {"b": 1, "d": 2}, "c": 2}


def test_a_key_is_no_option_and_is_shown_nowhere():
    with pytest.raises(InvalidInputError, match="environment alone") as caught:
        read_request_options(["planner.api_key=hunter2hunter2"])
    assert "hunter2" not in str(caught.value)
    assert without_secrets("it is hunter2hunter2") == f"it is {SECRET_MARK}"


def test_each_endpoint_is_given_its_own_key_and_nobody_elses(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-default-0123")
    with (
        LoopbackServer(lambda seen: completion("default")) as default,
        LoopbackServer(lambda seen: completion("small")) as small,
        LoopbackServer(lambda seen: completion("open")) as open_one,
    ):
        monkeypatch.setenv(key_variable(small.base_url), "key-of-the-small-0123")
        specs = ["openai:big", f"extractor=openai:small@{small.base_url}", f"reasoner=openai:o@{open_one.base_url}"]
        models = RoleModels.parse([*specs, f"planner=openai:p@{default.base_url}"], ChatModelSettings(default.base_url))
        for role in ("agent", "extractor", "reasoner", "planner"):
            asked(models, role)
        assert [seen.headers["authorization"] for seen in default.requests] == ["Bearer key-of-the-default-0123"] * 2
        assert [(seen.headers["authorization"], seen.body["model"]) for seen in small.requests] == [
            ("Bearer key-of-the-small-0123", "small")
        ]
        assert [seen.headers["authorization"] for seen in open_one.requests] == ["Bearer none"]
        names = models.identities()
    assert names["extractor"] == f"openai:small at {small.base_url}"
    assert "key-of" not in str(names)
    assert models.for_role("extractor").name == "openai:small"


def test_an_endpoint_that_refuses_its_key_names_the_variable(monkeypatch):
    from tests.chat.loopback import Answer

    with LoopbackServer(lambda seen: Answer(401, b"{}")) as server:
        model = OpenAIChatModel(f"m@{server.base_url}")
        with pytest.raises(RequestRefusedError, match=key_variable(server.base_url)):
            asyncio.run(model.complete(request()))


@pytest.mark.parametrize(
    "spec", ["openai:@http://127.0.0.1:1/v1", "openai:m@http://u:p@127.0.0.1/v1", "openai:m@http://"]
)
def test_wrong_endpoints_are_refused(spec):
    with pytest.raises(InvalidInputError):
        RoleModels.parse([spec])


def test_a_check_asks_with_the_fields():
    with LoopbackServer(lambda seen: completion("1, 2, 3, 4")) as server:
        model = OpenAIChatModel(f"m@{server.base_url}")
        asyncio.run(check_model(model, fields={"reasoning_effort": "low", "temperature": 0.5}))
        bodies = [seen.body for seen in server.requests]
    assert {(body["reasoning_effort"], body["temperature"]) for body in bodies} == {("low", 0.5)}


def test_another_device_is_another_model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    names = [
        model_identity(f"local:{folder}", ChatModelSettings(local_device=device)) for device in (None, "cpu", "cuda")
    ]
    assert names[0] == names[1] != names[2]
    assert names[2].endswith(", device cuda")
