"""ReAct as an agent: its instructions, its options, its record."""

from __future__ import annotations

import asyncio

import pytest

from resilisim.chat import ChatReply, RoleModels, ScriptedChatModel, ToolCall
from resilisim.errors import InvalidInputError
from resilisim.policies.llm.agents.react import ReAct
from resilisim.policies.llm.run import AgentRun
from tests.policies.llm.toolboxes import ScriptedToolbox, spec

TASK = "Find {it}, ${it} and {step_1}. Action: finish[no]"


def play(policy: ReAct, tools: ScriptedToolbox, native: bool = False) -> tuple[str | None, AgentRun]:
    run = AgentRun(task=TASK, tools=tools, models=policy.models, options=policy.options, native=native)
    return asyncio.run(policy.play(run)), run


def toolbox(*answers: str) -> ScriptedToolbox:
    return ScriptedToolbox([spec("search", "query")], {"search": answers})


def test_a_whole_task_in_text():
    model = ScriptedChatModel(["Thought: t\nAction: search[it]", "Action: finish[found]"])
    answer, run = play(ReAct(models=model), toolbox("here"))
    assert answer == "found"
    system, question = model.requests[0].messages
    assert "- search(query: string): A tool of a test.\n- finish(answer: string)" in system.content
    assert "greenhouse_reader" in system.content
    assert question.content == TASK, "braces in a task are never expanded"
    assert [step["action"] for step in run.structure["steps"]] == ["search", "finish"]
    assert {request.role for request in model.requests} == set(ReAct.components)


def test_a_whole_task_with_native_calls():
    calls = [("a", "search", '{"query": "it"}'), ("b", "finish", '{"answer": "found"}')]
    model = ScriptedChatModel([ChatReply("", (ToolCall(*call),)) for call in calls])
    answer, _ = play(ReAct(models=model), toolbox("here"), native=True)
    assert answer == "found"
    assert "Action: NAME" not in model.requests[0].messages[0].content


def test_examples_are_an_option_under_native_calls_too(tmp_path):
    (tmp_path / "mine.md").write_text("Like so: ${it}.", encoding="utf-8")
    for examples, shown in (("default", True), ("none", False), (str(tmp_path / "mine.md"), False)):
        model = ScriptedChatModel([ChatReply("", (ToolCall("a", "finish", "{}"),))])
        play(ReAct(models=model, examples=examples), toolbox(), native=True)
        system = model.requests[0].messages[0].content
        assert ("greenhouse_reader" in system) is shown
        assert system.endswith("Like so: ${it}.") is examples.endswith("mine.md")
        assert "Action:" not in system, "they are told in words: written actions would be no calls"


def test_the_limit_of_steps_is_an_option():
    policy = ReAct(models=ScriptedChatModel(["Action: search[it]"] * 100), steps="100")
    answer, run = play(policy, toolbox(*["here"] * 100))
    assert answer is None
    assert len(run.structure["steps"]) == 100
    assert run.transcript.first_failure()["component"] == "agent"
    assert ReAct(models=ScriptedChatModel([])).options.steps == 20
    with pytest.raises(InvalidInputError, match="steps"):
        ReAct(models=ScriptedChatModel([]), steps=0)


def test_without_examples():
    model = ScriptedChatModel(["Action: finish[x]"])
    play(ReAct(models=RoleModels(model), examples="none"), toolbox())
    assert "greenhouse" not in model.requests[0].messages[0].content


def test_prompts_can_be_replaced(tmp_path):
    (tmp_path / "system.md").write_text("Mine: ${tools} ${examples}", encoding="utf-8")
    (tmp_path / "retry.md").write_text("Again! ${problem}", encoding="utf-8")
    model = ScriptedChatModel(["what?", "Action: finish[x]"])
    play(ReAct(models=model, templates=tmp_path), toolbox())
    assert model.requests[0].messages[0].content.startswith("Mine: - search")
    assert model.requests[1].messages[-1].content == "Again! the reply holds no action"
