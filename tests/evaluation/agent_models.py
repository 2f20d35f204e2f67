"""Models that follow the plan in their prompt, for whole runs of LLM agents: in this process and behind an endpoint."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from resilisim.chat import ChatReply, ChatRequest, EndpointError, TokenUsage
from resilisim.chat.middleware import ChatModelSettings, RetryPolicy
from resilisim.evaluation import ModelSettings
from resilisim.policies.llm.agents.react import ReAct
from resilisim.workflows.prompts import parse_steps
from tests.chat.loopback import Answer, LoopbackServer, Seen, completion

KEY = "sk-a-secret-that-must-not-be-seen-0123456789"


def next_reply(contents: Sequence[str]) -> str:
    """Return what a ReAct agent says that does the plan's steps in turn, each until it succeeds.

    Contents are the messages of the conversation, without the system's.
    """
    steps = [step.tool for step in parse_steps(contents[0])]
    for content in contents[1:]:
        if steps and f"{steps[0]} executed successfully" in content:
            steps.pop(0)
    if not steps:
        return 'Thought: all done\nAction: finish {"answer": "done"}'
    return f'Thought: next\nAction: tool_call {{"name": "{steps[0]}"}}'


def following_answer(seen: Seen) -> Answer:
    """The same as an endpoint."""
    return completion(next_reply([message["content"] for message in seen.body["messages"][1:]]))


def slowly(seen: Seen) -> Answer:
    """The same, so that several requests are under way at once."""
    time.sleep(0.02)
    return following_answer(seen)


def endpoint(server: LoopbackServer, *models: str, concurrency: int = 8, **more: Any) -> ModelSettings:
    """Return settings under which an endpoint answers, for these models or just one."""
    retry = RetryPolicy(retries=0, first_wait=0.01)
    chat = ChatModelSettings(base_url=server.base_url, api_key=KEY, max_concurrency=concurrency, retry=retry)
    return ModelSettings(models=models or ("openai:loopback",), chat=chat, concurrency=concurrency, **more)


class FollowingModel:
    """The same as a model in this process.

    `fails` says whether the endpoint is down for a request. `requests` are those that were answered, `most_at_once` is
    the largest number that was under way at once.
    """

    name = "following"

    def __init__(self, fails: Callable[[ChatRequest], bool] = lambda request: False) -> None:
        self.requests: list[ChatRequest] = []
        self.most_at_once = 0
        self._under_way = 0
        self._fails = fails

    async def complete(self, request: ChatRequest) -> ChatReply:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        await asyncio.sleep(0.001)
        self._under_way -= 1
        if self._fails(request):
            raise EndpointError("http://nowhere does not answer (status 503); asked 5 times", 503, 5)
        self.requests.append(request)
        return ChatReply(next_reply([message.content for message in request.messages[1:]]), usage=TokenUsage(100, 10))

    async def aclose(self) -> None:
        """Nothing is open."""


class Doubting(FollowingModel):
    """Follows the plan; its evaluator refuses the first trial of every other episode."""

    async def complete(self, request: ChatRequest) -> ChatReply:
        if request.role == "agent":
            return await super().complete(request)
        is_odd = int(request.cache_scope[:4], 16) % 2
        refuses = request.role == "evaluator" and is_odd and int(request.cache_scope.rpartition("#")[2]) < 12
        return ChatReply(json.dumps({"success": not refuses, "reason": "as seen"}))


def following(model: Any) -> Callable[[], ReAct]:
    """Return what makes ReAct agents that ask a model."""
    return lambda: ReAct(models=model)


def calls_by_scope(requests: Iterable[ChatRequest]) -> Counter[str]:
    """Count how often each call of each episode was answered."""
    return Counter(request.cache_scope for request in requests)
