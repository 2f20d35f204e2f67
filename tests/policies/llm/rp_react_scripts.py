"""Scripted plays of RP-ReAct."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from resilisim.chat import RoleModels, ScriptedChatModel, ScriptedReply
from resilisim.policies.llm.agents.rp_react import RPReAct
from resilisim.policies.llm.conversation import CONVERSATION_TOOLS
from resilisim.policies.llm.run import AgentRun
from tests.policies.llm.toolboxes import ScriptedToolbox


@dataclass
class Play:
    """What a play came to."""

    answer: str | None
    run: AgentRun
    model: ScriptedChatModel
    toolbox: ScriptedToolbox

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.run.transcript.events if event["kind"] == kind]

    def told(self, number: int) -> str:
        """The last message of a request."""
        return self.model.requests[number].messages[-1].content

    def system(self, number: int) -> str:
        return self.model.requests[number].messages[0].content


def ask(question: str, expect: str = "") -> ScriptedReply:
    text = f"<think>I wonder.</think><|begin_search_query|>{question}<|end_search_query|>"
    return ScriptedReply(text, expect=expect, role="planner")


def end(answer: str, expect: str = "") -> ScriptedReply:
    return ScriptedReply(f"<think>done</think><Finish>{answer}</Finish>", expect=expect, role="planner")


def plan(text: str, expect: str = "") -> ScriptedReply:
    return ScriptedReply(text, expect=expect, role="planner")


def act(name: str, expect: str = "", /, **arguments: Any) -> ScriptedReply:
    return ScriptedReply(f"Thought: I act.\nAction: {name} {json.dumps(arguments)}", expect=expect, role="executor")


def done(answer: str, expect: str = "") -> ScriptedReply:
    return act("finish", expect, answer=answer)


def prepared(script, answers=None, specs=CONVERSATION_TOOLS, **options) -> tuple[RPReAct, Play]:
    model = ScriptedChatModel(script)
    policy = RPReAct(models=model, **options)
    toolbox = ScriptedToolbox(specs, answers or {})
    run = AgentRun(task="Count the rows.", tools=toolbox, models=RoleModels(model), options=policy.options)
    return policy, Play(None, run, model, toolbox)


def play(script, answers=None, specs=CONVERSATION_TOOLS, **options) -> Play:
    policy, played = prepared(script, answers, specs, **options)
    played.answer = asyncio.run(policy.play(played.run))
    return played
