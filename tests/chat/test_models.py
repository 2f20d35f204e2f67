"""Models by their spelling, and for the components of an agent."""

from __future__ import annotations

import asyncio

import pytest

from resilisim.chat import (
    COMPONENT_ROLES,
    CachingChatModel,
    ChatModelSettings,
    OpenAIChatModel,
    ResponseCache,
    RoleModels,
    ScriptedChatModel,
    make_chat_model,
    model_identity,
)
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
