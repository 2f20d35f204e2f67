"""Sub-agents that do a step: how they say that it cannot be done, and what they may pass on."""

from __future__ import annotations

import pytest

from tests.policies.llm.plan_execute.test_agent import Play, call, executor, plan, planner, replanner


def test_a_sub_agent_that_says_what_is_missing_fails_its_step():
    script = [
        planner(plan("Fetch it", "Store it")),
        executor('Action: finish {"answer": null, "problem": "there is no tool that fetches"}', "Fetch it"),
        replanner('{"answer": "It cannot be done."}', "FAILED: the executor could not do it: there is no tool"),
    ]
    played = Play(script)
    assert played.answer == "It cannot be done."
    assert played.statuses == [(1, "failed")]
    assert played.failures == [("executor", "the executor could not do it: there is no tool that fetches")]
    assert '{"answer": null, "problem": ' in played.model.requests[1].messages[0].content


@pytest.mark.parametrize("end", ["It is here.\n<finish/>", "Thought: It is here.\nAction: finish", "finish()"])
def test_an_end_without_an_answer_brings_what_the_last_call_brought(end):
    script = [planner(plan("Fetch it")), executor('Action: fetch {"key": "a"}'), executor(end)]
    assert Play(script, fetch=["41"], replan="failure").answer.endswith("41")
    script = [planner(plan("Fetch it")), executor('Action: finish {"answer": ""}'), replanner('{"answer": "no"}')]
    assert Play(script, replan="failure").failures == [("executor", "the executor finished without a result")]


@pytest.mark.parametrize(
    "end", ["All is done.\n<finish/>", "Thought: All is done.\nAction: finish", "Final answer: done"]
)
def test_the_replanner_ends_it_in_any_form(end):
    script = [planner(plan("Fetch it")), executor("Action: finish[41]"), replanner(end)]
    assert "done" in Play(script).answer


def test_a_sub_agent_passes_on_no_references():
    script = [
        planner(plan("Fetch it", call(2, "fetch", {"key": "{step_1}"}))),
        executor("Action: finish[41]"),
        executor('Action: fetch {"key": "{step_1}"}'),
        executor('Action: fetch {"key": "${it}"}', "{step_1} only stands for a result"),
        executor("Action: finish[B]"),
    ]
    played = Play(script, fetch=["ok"], replan="failure")
    assert played.answer == "B"
    assert played.tools.calls == [("fetch", {"key": "${it}"})], "what the task says is no reference"
