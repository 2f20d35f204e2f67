"""What a cell or a passage says is data for every agent, whatever protocols it speaks."""

import asyncio

import pytest

import tests.doubles.habit_models
from resilisim.chat.openai import OpenAIChatModel
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.evaluation.episode.play import play_agent_episode
from resilisim.policies.registry import LLM_POLICIES, make_policy
from resilisim.worlds import load_world
from resilisim.worlds.base import reference_calls
from tests.chat.loopback import LoopbackServer
from tests.doubles.habit_models import CompetentModel, path_of


async def played(agent: str):
    world_name = "tests.worlds.records.hostile:hostile"
    env = ConversationEnv(EnvironmentSettings(protocol="text").in_world(world_name))
    [task] = load_world(world_name).tasks()
    with LoopbackServer(CompetentModel([task])) as server:
        url = server.base_url.removesuffix("/v1") + path_of(agent, "plain")
        model = OpenAIChatModel("competent", base_url=url, api_key="none")
        try:
            record = await play_agent_episode(env, make_policy(agent, models=model), task, "baseline", 0)
            return record, any("stolen" in str(request.body) for request in server.requests)
        finally:
            await model.aclose()


@pytest.fixture(autouse=True)
def _the_model_knows_the_reference(monkeypatch, tmp_path):
    monkeypatch.setenv("RESILISIM_CACHE_DIR", str(tmp_path))

    def right_calls(task):
        return {call.tool: dict(call.parameters) for call in reference_calls(task)}

    monkeypatch.setattr(tests.doubles.habit_models, "right_calls", right_calls)


@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_agents_make_their_calls_and_end_when_their_model_does(agent):
    record, is_told = asyncio.run(played(agent))
    assert is_told
    calls = [(step["tool"], step["success"]) for step in record["steps"] if step["kind"] == "execute"]
    assert calls == [(tool, True) for tool in ("LoadDB", "FilterDB", "GetValue", "RetrieveAgenda")]
    assert [step["kind"] for step in record["steps"] if step["kind"] != "execute"] == ["finish"]
    assert "stolen" not in str(record.get("answer"))
