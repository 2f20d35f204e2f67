"""RP-ReAct in Conversation-v0, whole episodes with a scripted model."""

from __future__ import annotations

import json

import pytest

from resilisim.policies.llm.agents.rp_react import RPReAct
from tests.policies.llm.playing import PARSER, READER, play_scripted, scripted
from tests.policies.llm.rp_react.scripts import act, ask, done, end, plan
from tests.policies.llm.sandbox.processes import live_children


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_it_succeeds(protocol):
    before = live_children()
    model = scripted(
        ask("Find a tool that reads records from a file."),
        act("tool_search", query="read records from a file"),
        done(READER, READER),
        ask(f"Run {READER} with the source exports/records.json, then {PARSER}."),
        act("tool_call", name=READER, parameters={"source": "exports/records.json"}),
        act("python", "in the variable output_1", code="print('success' in output_1)"),
        act("tool_call", "Observation: True", name=PARSER),
        done("both ran", "executed successfully"),
        end("both done", "both ran"),
    )
    record = play_scripted(RPReAct(models=model, offload_tokens=20), prompt="baseline", protocol=protocol)
    assert record["outcome"] == 1
    assert [step["kind"] for step in record["steps"]] == ["search", "execute", "execute", "finish"]
    agent = record["agent"]
    assert agent["answer"] == "both done"
    assert agent["components"]["planner"]["calls"] == 3
    assert agent["components"]["executor"]["calls"] == 6
    assert agent["first_failure"] is None
    assert json.loads(json.dumps(agent["structure"])) == agent["structure"]
    assert "The tools can be used 7 more times." in model.requests[-1].messages[-1].content
    assert live_children() <= before


def test_several_executors_succeed_together():
    model = scripted(
        ask("search: find a reader"),
        act("tool_search", query="read records"),
        done(READER),
        ask(f"run: run {READER}, then {PARSER}"),
        act(READER, source="x"),  # a library's tool by its own name
        act("tool_call", name=PARSER),
        done("both"),
        end("done"),
    )
    policy = RPReAct(models=model, executors="search:tool_search+tool_info;run:tool_call")
    assert play_scripted(policy)["outcome"] == 1


def test_nonsense_uses_no_turn_and_the_step_limit_ends_it():
    record = play_scripted(RPReAct(models=scripted(*[plan("what?")] * 4), steps=4))
    assert len(record["steps"]) == 1  # the agent's own stopping
    assert record["agent"]["ended_by"] == "gave_up"
    assert record["agent"]["first_failure"]["component"] == "planner"


def test_an_executor_that_fails_is_what_a_failed_episode_is_put_down_to():
    model = scripted(ask("x"), *[act("tool_info", name=READER)] * 2, plan("?"))
    record = play_scripted(RPReAct(models=model, executor_steps=2, steps=2))
    assert record["outcome"] == 0
    assert record["agent"]["first_failure"]["component"] == "executor"


def test_the_environment_can_end_it():
    model = scripted(ask("x"), *[act("tool_search", query="x")] * 3)
    record = play_scripted(RPReAct(models=model), max_turns=2)
    assert record["ended_by"] == "turns"
    assert record["agent"]["ended_by"] == "environment"
    assert record["agent"]["structure"]["subquestions"][0]["result"] is None
