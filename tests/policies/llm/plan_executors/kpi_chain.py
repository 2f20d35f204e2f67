"""KPI-Chain in the suite of requirements for agents that execute plans.

It asks no model to turn references into values: they are looked up in memory. So requirements 4 and 5 are tested where
the looking up is (`test_references.py`: an unreadable path and an empty value are different, and neither is guessed).
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

from resilisim.chat import ChatReply, ChatRequest, RoleModels
from resilisim.policies.llm.kpi_chain import KpiChain
from resilisim.policies.llm.kpi_chain.chain_plan import has_references
from resilisim.policies.llm.kpi_chain.yaml_text import dump_yaml
from resilisim.policies.llm.run import AgentRun
from tests.policies.llm.kpi_chain.chains import entity, extraction, given, ref
from tests.policies.llm.plan_executors.adapter import (
    REQUIREMENTS,
    Adapter,
    Played,
    Raw,
    Scenario,
    Step,
    StepFailure,
    toolbox_of,
    with_references,
)

_RAW = "RAW-ARGUMENTS"
_RESPONSE = re.compile(r"\ARESPONSE OF THE TOOL:\n\n(.*)\n\nDESCRIPTION OF THE TASK:", re.DOTALL)
_BROKEN_TASK = re.compile(r"^- T(\d+)", re.MULTILINE)


def _entity_of(scenario: Scenario, place: int) -> str:
    return "final_answer" if place == len(scenario.steps) else "result"


def _task(scenario: Scenario, place: int, step: Step, suffix: str) -> dict[str, Any]:
    raw = isinstance(step.arguments, Raw)
    arguments = {} if raw else with_references(step.arguments, lambda source: ref(f"T{source}.result"))
    return {
        "task_id": f"T{place}{suffix}",
        "input_parameters": _RAW if raw else [{**given(name, value), "type": ""} for name, value in arguments.items()],
        "task_description": f"Step {place}",
        "task_type": "Reasoning" if step.tool is None else "Tool call",
        "tool_name": step.tool or "",
        "expected_output_entities": [entity(_entity_of(scenario, place), description=step.expected)],
        "dependencies": [],
    }


def _plan(scenario: Scenario, start: int, suffix: str = "") -> str:
    tasks = [
        _task(scenario, place, step, suffix) for place, step in enumerate(scenario.steps, start=1) if place >= start
    ]
    if not tasks:
        return "Nothing is left to do."
    text = dump_yaml({"tasks": tasks})
    raw = next((step.arguments.text for step in scenario.steps if isinstance(step.arguments, Raw)), "")
    return text.replace(_RAW, raw)


@dataclass
class _Model:
    """Answers each component as the scenario says."""

    scenario: Scenario
    name: str = "scenario"
    requests: list[ChatRequest] = field(default_factory=list)

    async def complete(self, request: ChatRequest) -> ChatReply:
        self.requests.append(request)
        return ChatReply(getattr(self, request.role)(request.messages[-1].content))

    async def aclose(self) -> None:
        self.requests.clear()

    def planner(self, text: str) -> str:
        return _plan(self.scenario, 1)

    def replanner(self, text: str) -> str:
        failed = re.search(r"## Failed task\n\nT(\d+)", text)
        return _plan(self.scenario, int(failed[1]) + 1, "a")

    def extractor(self, text: str) -> str:
        name = re.search(r"^- name: (\w+)", text, re.MULTILINE)[1]
        return extraction(1.0, **{name: _RESPONSE.search(text)[1]})

    def reasoner(self, text: str) -> str:
        return self.scenario.conclusion


class KpiChainAdapter:
    """KPI-Chain."""

    name = "kpi-chain"
    applies = frozenset(REQUIREMENTS) - {"4-kinds", "5-once"}
    retries_counter = ""

    def step_name(self, place: int) -> str:
        return f"T{place}"

    def looks_like_reference(self, text: str) -> bool:
        return has_references(text)

    def play(self, scenario: Scenario) -> Played:
        model, toolbox = _Model(scenario), toolbox_of(scenario)
        policy = KpiChain(models=RoleModels(model), retries=0)
        run = AgentRun(task=scenario.task, tools=toolbox, models=policy.models, options=policy.options)
        answer = asyncio.run(policy.play(run))
        tasks = run.structure["plan"]["tasks"]
        return Played(
            answer=answer,
            calls=toolbox.calls,
            failures=_failures(scenario, run),
            results={
                _place(task["task_id"]): str(*task["execution_result"].values())
                for task in tasks
                if task["execution_status"] == "done"
            },
            requests=model.requests,
            resolution_requests=0,
            counters=run.transcript.counters,
        )


def _failures(scenario: Scenario, run: AgentRun) -> list[StepFailure]:
    """Return the tasks that failed, and those for which a plan was refused."""
    has_raw = any(isinstance(step.arguments, Raw) for step in scenario.steps)
    failures = []
    for event in run.transcript.events:
        details = event.get("details", {})
        if event["kind"] == "task_failed":
            failures.append(StepFailure(_place(details["task"]), event["component"], event["text"]))
        elif event["kind"] == "malformed_reply" and event["component"] in ("planner", "replanner"):
            broken = _BROKEN_TASK.search(event["text"])
            if broken is not None or has_raw:
                place = int(broken[1]) if broken is not None else 1
                failures.append(StepFailure(place, event["kind"], event["text"], details["excerpt"]))
    return failures


def _place(task_id: str) -> int:
    return int(re.sub(r"\D", "", task_id))


ADAPTERS: list[Adapter] = [KpiChainAdapter()]
