"""Plan-and-Execute for the requirements suite, with either executor."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from resilisim.chat import ChatReply, ChatRequest, RoleModels
from resilisim.policies.llm.agents.plan_execute import PlanAndExecute
from resilisim.policies.llm.run import AgentRun
from tests.policies.llm.plan_executors.adapter import (
    REQUIREMENTS,
    Played,
    Raw,
    Scenario,
    Step,
    StepFailure,
    toolbox_of,
    with_references,
)


class _Model:
    """Answers each component as the scenario says; a step's sub-agent does what the step says."""

    name = "scenario"

    def __init__(self, scenario: Scenario, kind: str) -> None:
        self.requests: list[ChatRequest] = []
        self._scenario = scenario
        self._kind = kind
        self._resolutions = list(scenario.resolutions)

    async def complete(self, request: ChatRequest) -> ChatReply:
        self.requests.append(request)
        return ChatReply(getattr(self, f"_{request.role}")(request))

    async def aclose(self) -> None:
        self.requests.clear()

    def _planner(self, request: ChatRequest) -> str:
        return self._plan(range(1, len(self._scenario.steps) + 1))

    def _replanner(self, request: ChatRequest) -> str:
        remaining = request.messages[0].content.split("Steps that the present plan still has:\n")[1].split("\n\n")[0]
        return self._plan([int(number) for number in re.findall(r"^(\d+)\.", remaining, re.MULTILINE)])

    def _plan(self, numbers: Any) -> str:
        steps = [(number, self._scenario.steps[number - 1]) for number in numbers]
        return json.dumps({"steps": [self._step(number, step) for number, step in steps]})

    def _step(self, number: int, step: Step) -> dict[str, Any]:
        raw = isinstance(step.arguments, Raw)
        arguments = step.arguments.text if raw else with_references(step.arguments, lambda n: f"{{step_{n}}}")
        written = {"step": number, "task": f"Do number {number}; expected: {step.expected}"}
        if self._kind == "direct":
            return {**written, "tool": step.tool, "arguments": arguments}
        needs = re.findall(r"\{step_(\d+)\}", json.dumps(arguments))
        return {**written, "needs": [int(number) for number in needs]}

    def _extractor(self, request: ChatRequest) -> str:
        if self._resolutions:
            return self._resolutions.pop(0)
        text = request.messages[0].content
        arguments = re.search(r"^Arguments: (.*)$", text, re.MULTILINE).group(1)
        results = dict(re.findall(r"^Result of step (\d+):\n(.*)$", text, re.MULTILINE))
        return re.sub(r"\{step_(\d+)\}", lambda found: results[found.group(1)], arguments)

    def _executor(self, request: ChatRequest) -> str:
        if self._kind == "direct":
            return self._scenario.conclusion
        texts = [message.content for message in request.messages]
        step = self._scenario.steps[int(re.findall(r"Do number (\d+)", texts[1])[-1]) - 1]
        if step.tool is None:
            return self._scenario.conclusion
        observations = [text for text in texts if text.startswith("Observation: ")]
        if not observations:
            return f"Thought: I do it.\nAction: {step.tool} {json.dumps(dict(step.arguments))}"
        if "Error:" in observations[0]:
            return "It cannot be done."
        return f"Action: finish {json.dumps({'answer': observations[-1].removeprefix('Observation: ')})}"


class PlanAndExecuteAdapter:
    retries_counter = "resolution_retries"

    def __init__(self, executor: str, applies: frozenset[str]) -> None:
        self.name = f"plan-and-execute[executor={executor}]"
        self.applies = applies
        self._executor = executor

    def step_name(self, place: int) -> str:
        return f"step {place}"

    def looks_like_reference(self, text: str) -> bool:
        return "{step" in text

    def play(self, scenario: Scenario) -> Played:
        model = _Model(scenario, self._executor)
        policy = PlanAndExecute(models=model, executor=self._executor, replan="failure", steps=2)
        tools = toolbox_of(scenario)
        run = AgentRun(task=scenario.task, tools=tools, models=RoleModels(model), options=policy.options)
        answer = asyncio.run(policy.play(run))
        steps = run.structure["attempts"][0]["plan"]
        failures = [
            StepFailure(step["step"], step["kind"], step["error"], step["excerpt"])
            for step in steps
            if step["status"] == "failed"
        ]
        return Played(
            answer=answer,
            calls=tools.calls,
            failures=failures,
            results={step["step"]: step["result"] for step in steps if step["status"] == "done"},
            requests=model.requests,
            resolution_requests=sum(request.role == "extractor" for request in model.requests),
            counters=run.transcript.counters,
        )


# Sub-agents read no references and resolve nothing: they are told results in words. Whether an observation is an error
# is for them to see.
ADAPTERS = [
    PlanAndExecuteAdapter("direct", frozenset(REQUIREMENTS)),
    PlanAndExecuteAdapter("react", frozenset({"3-failed", "3-missing", "3-later", "6-no-tool", "6-braces"})),
]
