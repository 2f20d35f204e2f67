"""ReAct in Conversation-v0, whole episodes with a scripted model."""

from __future__ import annotations

import json

import pytest

from resilisim.chat import ChatReply, ScriptedReply, ToolCall
from resilisim.policies.llm.agents.react import ReAct
from tests.policies.llm.playing import PARSER, READER, play_scripted, scripted


def native(function: str, **arguments: object) -> ChatReply:
    return ChatReply("I go on.", (ToolCall("call_9", function, json.dumps(arguments)),))


def test_it_succeeds_in_text():
    model = scripted(
        'Thought: Which tools are there?\nAction: tool_search {"query": "read records"}',
        ScriptedReply(
            f'Action: tool_call {{"name": "{READER}", "parameters": {{"source": "</tool_call>"}}}}', expect=READER
        ),
        ScriptedReply(f"Action: {PARSER}", expect="executed successfully"),  # a shown tool's own name will do
        ScriptedReply("Thought: Done.\nAction: finish[both done]", expect="7 turns left"),
    )
    record = play_scripted(ReAct(models=model), prompt="baseline")
    assert record["outcome"] == 1
    assert [step["kind"] for step in record["steps"]] == ["search", "execute", "execute", "finish"]
    assert record["agent"]["answer"] == "both done"
    assert record["agent"]["ended_by"] == "answer"
    assert record["agent"]["components"]["agent"]["calls"] == 4
    assert "<tool_call>" not in model.requests[0].messages[1].content


def test_it_succeeds_with_native_calls():
    model = scripted(
        native("tool_call", name=READER), native("tool_call", name=PARSER), native("finish", answer="done")
    )
    record = play_scripted(ReAct(models=model), protocol="native")
    assert record["outcome"] == 1
    assert record["protocol"] == record["agent"]["protocol"] == "native"
    assert record["agent"]["answer"] == "done"


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_nonsense_uses_no_turn_and_the_step_limit_ends_it(protocol):
    model = scripted(*["what?"] * 6)
    record = play_scripted(ReAct(models=model, steps=3), protocol=protocol)
    assert record["ended_by"] == "stopped"
    assert len(record["steps"]) == 1  # the agent's own stopping
    assert record["agent"]["ended_by"] == "gave_up"
    assert record["agent"]["first_failure"]["component"] == "agent"
    assert record["agent"]["counters"]["malformed_replies"] == 6


def test_the_environment_can_end_it():
    model = scripted(*['Action: tool_search {"query": "x"}'] * 3)
    record = play_scripted(ReAct(models=model), max_turns=2)
    assert record["ended_by"] == "turns"
    assert record["agent"]["ended_by"] == "environment"
    steps = record["agent"]["structure"]["steps"]
    assert len(steps) == len(record["steps"]) == 3, "the one in which it ended is there, too"
    assert (steps[-1]["action"], steps[-1]["error"]) == ("tool_search", "the episode ended")
    assert "no turns are left" in steps[-1]["observation"], steps[-1]
