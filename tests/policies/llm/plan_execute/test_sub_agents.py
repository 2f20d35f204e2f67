"""Sub-agents that do a step: how they say that it cannot be done, and what they may pass on."""

from __future__ import annotations

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
