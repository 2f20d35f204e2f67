"""Agents played with a scripted model and scripted tools, outside of any environment."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from resilisim.chat import ChatMessage, ChatReply, ScriptedChatModel, ScriptedReply, ToolCall
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.run import AgentRun, EpisodeEnded
from tests.policies.llm.toolboxes import ScriptedToolbox

# Replies that say nothing to any agent.
NONSENSE = {
    "empty": "",
    "blank": " \n\t",
    "garbage": "\x00\ud800 %% ]]}{ [[",
    "prose": "I am not sure.",
    "ten tags": "<tool_call>look around</tool_call>" * 10,
    "a megabyte": "x" * 1_000_000,
    "endless repetition": "Thought: and so on\n" * 50_000,
    "unclosed fence": "```json\n{",
    "unclosed thought": "<think>Action: finish[no]",
}


def says(role: str) -> Any:
    """What makes the lines of a component: its words, and what the last message to it must hold."""

    def line(words: str | ChatReply, expect: str = "") -> ScriptedReply:
        return ScriptedReply(words, expect, role)

    return line


agent, planner, replanner = says("agent"), says("planner"), says("replanner")
executor, extractor, reflector = says("executor"), says("extractor"), says("reflector")


def native(*calls: tuple[str, str, str], text: str = "") -> ChatReply:
    """A reply with native calls: id, function, arguments."""
    return ChatReply(text, tuple(ToolCall(*call) for call in calls))


@dataclass
class Play:
    """What a play came to; the answer is `EpisodeEnded` if a tool ended the episode."""

    answer: Any
    run: AgentRun
    model: ScriptedChatModel
    toolbox: ScriptedToolbox

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.run.transcript.events if event["kind"] == kind]

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.run.transcript.events]

    @property
    def failures(self) -> list[tuple[str, str]]:
        return [(event["component"], event["text"]) for event in self.events("failure")]

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.run.transcript.counters)

    @property
    def structure(self) -> dict[str, Any]:
        return self.run.structure

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return self.toolbox.calls

    def messages(self, number: int) -> tuple[ChatMessage, ...]:
        return self.model.requests[number].messages

    def told(self, number: int) -> str:
        """The last message of a request."""
        return self.messages(number)[-1].content

    def system(self, number: int) -> str:
        return self.messages(number)[0].content

    @property
    def longest(self) -> int:
        """Characters of the longest request."""
        return max(sum(len(message.content) for message in request.messages) for request in self.model.requests)


def play(policy: LlmPolicy[Any], toolbox: ScriptedToolbox, task: str, **run: Any) -> Play:
    """Play a script to its end; every line of it must have been used, and the record must hold JSON values only."""
    model = policy.models.default
    episode = AgentRun(task=task, tools=toolbox, models=policy.models, options=policy.options, **run)
    try:
        answer = asyncio.run(policy.play(episode))
    except EpisodeEnded:
        answer = EpisodeEnded
    assert model.remaining == 0, "the agent asked less than the script expects"
    assert json.loads(json.dumps(episode.structure)) == episode.structure
    json.dumps(episode.transcript.events)
    return Play(answer, episode, model, toolbox)
