"""Changing the plan on the way: what is a change, and how often it may be made."""

from __future__ import annotations

from resilisim.chat import ScriptedChatModel
from resilisim.policies.llm.agents.plan_execute import PlanAndExecute
from tests.policies.llm.plan_execute.test_agent import FAILED, Play, call, executor, plan, planner, replanner


def test_a_replan_replaces_what_remains():
    played = Play(
        [
            planner(plan({"step": 1, "task": "a"}, {"step": 2, "task": "b"})),
            executor("Action: finish[A]"),
            replanner(plan({"step": 3, "task": "c"}), "new steps have numbers from 3 on"),
            executor("Action: finish[C]"),
            replanner('{"answer": "done"}'),
        ]
    )
    assert played.answer == "done"
    assert [(step["step"], step["task"]) for step in played.plan] == [(1, "a"), (3, "c")]
    assert played.counters == {"replans": 1}
    assert [event["kind"] for event in played.run.transcript.events].count("replan") == 1


def test_a_replan_of_what_a_step_needs_is_one():
    step = {"step": 2, "task": "b", "needs": [1]}
    script = [
        planner(plan("a", step)),
        executor("Action: finish"),
        replanner(plan({**step, "needs": []})),
        executor("Action: finish[B]"),
        replanner('{"answer": "done"}'),
    ]
    played = Play(script)
    assert played.statuses == [(1, "failed"), (2, "done")]
    assert played.plan[1]["needs"] == []
    assert played.counters["replans"] == 1


def test_other_numbers_alone_are_no_replan():
    steps = [{"step": n, "task": f"task {n}", "needs": [n - 1] if n > 1 else []} for n in (1, 2, 3)]
    renumbered = [{**steps[1], "step": 7}, {**steps[2], "step": 8, "needs": [7]}]
    script = [
        *(planner(plan(*steps)), executor("Action: finish[A]"), replanner(plan(*renumbered))),
        *(executor("Action: finish[B]"), replanner('{"answer": "done"}')),
    ]
    played = Play(script)
    assert played.answer == "done"
    assert played.statuses == [(1, "done"), (2, "done")], "the plan's own numbers stay"
    assert "replans" not in played.counters


def test_replans_are_capped():
    steps = [call(number, "fetch", {"key": "a"}) for number in (1, 2, 3)]
    script = [planner(plan(steps[0])), replanner(plan(steps[1])), replanner(plan(steps[2]))]
    played = Play(script, fetch=[FAILED] * 3, executor="direct", replans=2)
    assert played.answer is None
    assert played.counters == {"failed_steps": 3, "replans": 2}
    assert played.failures == [("tool", "fetch: TIMEOUT: late"), ("replanner", "2 replans were not enough")]
    assert PlanAndExecute(models=ScriptedChatModel([])).options.replans == 10


def test_when_no_replan_is_left_a_plan_that_works_goes_on():
    script = [planner(plan("a", "b")), executor("Action: finish[A]"), executor("Action: finish[B]")]
    played = Play(script, replans=0)
    assert played.answer == "B"
    assert played.failures == []
