"""Putting a continuation into a plan: what failed stays as history, what hung on it goes, what is new comes last."""

from __future__ import annotations

from resilisim.policies.llm.kpi_chain.types import FINAL_ANSWER, PENDING, Plan, PlanTask, descendants


def kept_tasks(plan: Plan, failed_id: str) -> tuple[PlanTask, ...]:
    """Return the tasks of a plan that stay when a task has failed.

    Pending tasks that depend on it go, and so does a pending task with the final answer: the continuation brings its
    own. Pending tasks that do not depend on it stay and are done first.
    """
    gone = descendants(plan.tasks, failed_id)
    return tuple(
        task
        for task in plan.tasks
        if task.status != PENDING or (task.task_id not in gone and FINAL_ANSWER not in task.entity_names)
    )


def merge(plan: Plan, failed_id: str, continuation: Plan) -> Plan:
    """Return the plan that goes on after a failure."""
    return Plan((*kept_tasks(plan, failed_id), *continuation.tasks))
