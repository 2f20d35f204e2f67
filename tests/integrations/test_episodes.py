"""The episodes that harnesses of others play, without any of these harnesses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resilisim import EpisodeEnded, ResiliSimError, open_session
from resilisim.envs import ConversationEnv, EnvironmentSettings, Session
from resilisim.integrations.episodes import figures, open_episode, plan_of, prompt_text
from resilisim.tasks import find_task

TASK = "task_c64444cae27fab46"


def call(name: str, arguments: str = "{}", number: int = 1) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_plan_has_each_task_with_each_prompt_and_seed() -> None:
    plan = plan_of(3, ["0", "7"], ["baseline", "optimal"], options={"base": 0.7})
    episodes = list(plan.episodes)
    assert len(plan.episodes) == len(episodes) == len({episode.name for episode in episodes}) == 12
    assert [(episode.prompt, episode.seed) for episode in episodes[:4]] == [
        ("baseline", 0),
        ("baseline", 7),
        ("optimal", 0),
        ("optimal", 7),
    ]
    assert [episode.index for episode in episodes] == list(range(12))
    session = open_episode(plan, episodes[3], "somebody")
    assert session.prompt == prompt_text(plan, episodes[3].task, "optimal")
    session.finish("done")
    record = session.record()
    assert (record["policy"], record["seed"], record["law"]["base"]) == ("somebody", 7, 0.7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tools": "nativ"}, "did you mean 'native'"),
        ({"prompt": "optimum"}, "optimal"),
        ({"seeds": ["x"]}, "whole number"),
        ({"options": {"protocol": "text"}}, "expected 'native'"),
        ({"options": {"bas": 0.7}}, "did you mean 'base'"),
    ],
)
def test_what_no_episode_can_be_played_with_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ResiliSimError, match=words):
        plan_of(1, **arguments)


def test_figures_take_the_luck_off() -> None:
    with open_session(TASK, 4, "optimal", reward="advantage") as session:
        assert session.reward is None
        session.call("file_operations_scanner")
        session.finish()
    told = figures(session.record())
    assert told["luck_adjusted"] == pytest.approx(told["optimum"] - told["regret"])
    assert session.reward == pytest.approx(-told["regret"])
    assert (told["level"], told["ended_by"], told["messages"]) == ("failure", "completion", 2)


def test_a_reply_of_a_model_is_one_message_as_it_stands() -> None:
    replies: list[dict[str, Any]] = [
        {"role": "assistant", "content": "First I think."},
        {"role": "assistant", "content": None, "tool_calls": [call("nothing_like_that")]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("network_fetcher", "{"), call("network_poster", number=2)],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("network_fetcher"), call("network_poster", number=2)],
        },
        {"role": "assistant", "content": "The task is complete."},
    ]
    settings = EnvironmentSettings(tools="native", protocol="native")
    environment = Session(ConversationEnv(settings), find_task(TASK), "optimal", seed=4)
    session = open_session(TASK, 4, "optimal")
    for reply in replies:
        assert session.send(reply).messages == json.loads(environment.send(reply).observation)
    assert session.score == environment.score
    assert [step["tool"] for step in session.record()["steps"]] == [
        None,
        None,
        "network_fetcher",
        "network_fetcher",
        None,
    ]
    with pytest.raises(EpisodeEnded):
        session.send(replies[0])
