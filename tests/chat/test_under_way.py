"""Requests under way: counted from being sent to being answered, whoever fails."""

from __future__ import annotations

import asyncio

import pytest

from resilisim.chat import ChatMessage, ChatReply, TokenUsage
from resilisim.chat.models import RoleModels
from resilisim.chat.under_way import REQUESTS_UNDER_WAY, RequestsUnderWay
from resilisim.policies.llm import AgentOptions, AgentRun


def test_requests_seconds_and_tokens_are_told():
    now = [0.0]
    requests = RequestsUnderWay(clock=lambda: now[0])
    with requests.one() as answered:
        now[0] = 12.4
        assert requests.told() == "1 request under way for 12 s"
        with requests.one():
            now[0] = 1234.0
            assert requests.told() == "2 requests under way, the oldest for 1,234 s"
        answered(ChatReply("hm", usage=TokenUsage(5, 3300)))
        assert requests.told() == "1 request under way for 1,234 s, 3,300 tokens written before"
    assert requests.told() == ""
    with pytest.raises(KeyError), requests.one():
        raise KeyError
    assert requests.told() == ""


def test_a_request_of_an_agent_is_under_way_until_it_is_answered():
    said = []

    class Listening:
        name = "listening"

        async def complete(self, request):
            said.append(REQUESTS_UNDER_WAY.told())
            if len(said) > 1:
                raise ValueError("broken")
            return ChatReply("hm", usage=TokenUsage(5, 7))

        async def aclose(self):
            pass

    run = AgentRun("Say hm.", tools=None, models=RoleModels(Listening()), options=AgentOptions())

    async def twice():
        await run.ask("agent", [ChatMessage("user", "hm")])
        await run.ask("agent", [ChatMessage("user", "hm")])

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(twice())
    assert [text.partition(" for ")[0] for text in said] == ["1 request under way"] * 2
    assert REQUESTS_UNDER_WAY.told() == ""
