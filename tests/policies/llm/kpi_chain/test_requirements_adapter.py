"""The adapter plays scenarios faithfully, so that the shared suite says something about KPI-Chain."""

from __future__ import annotations

from tests.policies.llm.kpi_chain.requirements_adapter import KpiChainAdapter
from tests.policies.llm.plan_executors.adapter import Ref, Scenario, Step


def test_a_scenario_without_failures():
    steps = (Step("fetch", {"key": "a"}), Step("store", {"place": "here", "what": {"id": Ref(1)}}))
    played = KpiChainAdapter().play(Scenario(steps, {"fetch": ("41",), "store": ("stored",)}))
    assert played.answer == "stored"
    assert played.results == {1: "41", 2: "stored"}
    assert played.calls[1] == ("store", {"place": "here", "what": {"id": "41"}})
    assert [request.role for request in played.requests] == ["planner", "extractor", "extractor"]


def test_a_step_without_a_tool_can_be_worked_out():
    reply = "execution_result: {status: completed, outputs: {final_answer: x}}"
    assert KpiChainAdapter().play(Scenario((Step(None),), conclusion=reply)).answer == "x"
