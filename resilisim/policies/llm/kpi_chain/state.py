"""How far an episode is: the plan, what was found, and which failures are not made good yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from resilisim.policies.llm.kpi_chain.feedback import shortened
from resilisim.policies.llm.kpi_chain.lineage import ReplanCounts
from resilisim.policies.llm.kpi_chain.memory import Memory
from resilisim.policies.llm.kpi_chain.merging import merge
from resilisim.policies.llm.kpi_chain.outcomes import Done, Failed
from resilisim.policies.llm.kpi_chain.types import Plan, PlanTask
from resilisim.policies.llm.run import AgentRun

_MAX_SHOWN: Final = 2_000  # characters of one text among the results that the replanner sees


class ChainState:
    """Plan and memory of one episode; every change is written into the record at once.

    Args:
        run: The episode.
        memory: Where results are kept.
        replans: How often a lineage may be planned anew.
    """

    def __init__(self, run: AgentRun, memory: Memory, replans: int) -> None:
        self.plan = Plan()
        self.memory = memory
        self.counts = ReplanCounts(replans)
        self._run = run
        self._open_failures: dict[str, Failed] = {}
        self._publish()

    def start(self, plan: Plan, warnings: Sequence[str]) -> None:
        """Take up the first plan."""
        self.plan = plan
        self._take_up("plan", "planner", plan, warnings)

    def succeed(self, task: PlanTask, outcome: Done) -> None:
        """Remember what a task found."""
        self.plan = self.plan.done(task.task_id, outcome.entities)
        self.memory.store(task.task_id, outcome.entities, outcome.output)
        self._open_failures.pop(self.counts.lineage(task.task_id), None)
        self._publish()
        self._run.note("task_done", outcome.component, task.task_id, task=task.task_id)
        self._run.note("memory", "agent", task.task_id, task=task.task_id, entities=dict(outcome.entities))

    def fail(self, task: PlanTask, outcome: Failed) -> None:
        """Write down that a task failed; the first failure of a lineage is what its end would be put down to."""
        self.plan = self.plan.failed(task.task_id, outcome.reason)
        self._open_failures.setdefault(self.counts.lineage(task.task_id), outcome)
        self._publish()
        self._run.note("task_failed", outcome.component, outcome.reason, task=task.task_id)

    def go_on(self, failed: PlanTask, continuation: Plan, warnings: Sequence[str]) -> None:
        """Put a continuation into the plan."""
        before = {task.task_id for task in self.plan.tasks}
        self.plan = merge(self.plan, failed.task_id, continuation)
        removed = sorted(before - {task.task_id for task in self.plan.tasks})
        self._take_up("replan", "replanner", continuation, warnings, failed=failed.task_id, removed=removed)

    def spend_replan(self, task: PlanTask) -> None:
        """Count one more plan for a task's lineage."""
        self.counts.spend(task.task_id)
        self._run.count("replans")
        self._publish()

    def give_up(self, task: PlanTask) -> None:
        """Put the end of the episode down to what failed first in a task's lineage."""
        first = self._open_failures.pop(self.counts.lineage(task.task_id))
        self._open_failures.clear()
        self._run.fail(first.component, first.reason)

    def give_up_by(self, component: str, reason: str, after: PlanTask | None = None) -> None:
        """Put the end of the episode down to a component that wrote nothing readable.

        Args:
            component: The component.
            reason: What was wrong.
            after: The failed task that the component was asked about: its lineage's first failure comes first.
        """
        if after is not None:
            self.give_up(after)
        self._run.fail(component, reason)

    def put_down_open_failure(self) -> None:
        """If the episode ends while a failure is being made good, put its end down to that."""
        if self._open_failures:
            last = next(reversed(self._open_failures.values()))
            self._open_failures.clear()
            self._run.fail(last.component, last.reason)

    def conclude(self) -> None:
        """There is an answer: what failed on the way was made good."""
        self._open_failures.clear()

    def plan_for_prompt(self) -> dict[str, Any]:
        """Return the plan with statuses and what is remembered, long texts cut."""
        remembered = self.memory.to_mapping()
        tasks = []
        for task in self.plan.tasks:
            results = remembered.get(task.task_id, {})
            tasks.append({**task.to_mapping(), "execution_result": _cut(results)})
        return {"tasks": tasks}

    def _take_up(self, kind: str, component: str, plan: Plan, warnings: Sequence[str], **details: Any) -> None:
        ids = [task.task_id for task in plan.tasks]
        self.counts.register(ids)
        self._publish()
        self._run.note(kind, component, ", ".join(ids), tasks=ids, **details)
        for warning in warnings:
            self._run.note("warning", component, warning)

    def _publish(self) -> None:
        self._run.structure["plan"] = self.plan.to_mapping()
        self._run.structure["memory"] = self.memory.to_mapping()
        self._run.structure["replans"] = self.counts.to_mapping()


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return shortened(value, _MAX_SHOWN)
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    return [_cut(item) for item in value] if isinstance(value, list) else value
