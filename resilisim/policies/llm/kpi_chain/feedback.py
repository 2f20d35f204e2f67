"""What the replanner is told about a failure: what was missing, how sure the extractor was and why, a tool's error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from resilisim.policies.llm.kpi_chain.types import PlanTask

Component = Literal["tool", "extractor", "reasoner", "planner"]

MAX_REASONS: Final = 2_000  # characters of a component's own words
MAX_RAW_RESPONSE: Final = 8_000


def tool_feedback(task: PlanTask, error: str) -> str:
    """Say that the tool failed."""
    return f"Task {task.task_id} failed: the tool {task.tool_name!r} returned an error.\nError: {shortened(error)}"


def reference_feedback(task: PlanTask, problems: Sequence[str]) -> str:
    """Say that what the task needs is not there, so that nothing was called."""
    return _listed(f"Task {task.task_id} was not carried out: what it refers to could not be resolved.", problems)


def extraction_feedback(task: PlanTask, problems: Sequence[str], summary: str) -> str:
    """Say that the tool answered and the answer lacks what the task had to find."""
    head = f"Task {task.task_id} failed: the tool {task.tool_name!r} answered, but the test of its entities failed."
    return _with_reasons(_listed(head, problems), "The extractor says", summary)


def reasoning_feedback(task: PlanTask, problems: Sequence[str], steps: Sequence[str]) -> str:
    """Say that the reasoner could not bring what it had to."""
    head = f"Task {task.task_id} failed: the reasoning did not bring what was expected."
    return _with_reasons(_listed(head, problems), "The reasoner says", "\n".join(steps))


def unreadable_feedback(task: PlanTask, component: str, problem: str) -> str:
    """Say that a component never wrote anything that could be read."""
    head = f"Task {task.task_id} failed: no reply of the {component} could be read."
    return f"{head}\nThe last one: {shortened(problem)}"


def with_raw_response(feedback: str, response: str) -> str:
    """Return feedback with the tool's response."""
    return f"{feedback}\nThe tool's response:\n{shortened(response, MAX_RAW_RESPONSE)}"


def shortened(text: str, length: int = MAX_REASONS) -> str:
    """Return a text that is not longer than it may be, with a mark where it was cut."""
    return text if len(text) <= length else f"{text[:length]} [cut: {len(text) - length:,} more characters]"


def _listed(head: str, lines: Sequence[str]) -> str:
    return "\n".join([head, *(f"- {line}" for line in lines)])


def _with_reasons(text: str, who: str, reasons: str) -> str:
    return f"{text}\n{who}: {shortened(reasons)}" if reasons.strip() else text
