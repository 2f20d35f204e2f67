"""What comes of a plan in the hands of those who carry it out, where its arguments refer to what is not there.

Nobody passes on a reference that cannot be resolved, but agents differ in what they do instead: followers go on without
the step, Plan-and-Execute ends there unless it may replan, KPI-Chain sorts its tasks by what they refer to, and refuses
a plan in which something is missing before anything is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from resilisim.errors import unknown_name
from resilisim.workflows.argument_references import argument_references, numbered_parameters, undone_steps
from resilisim.workflows.workflow import Step

Executor = Literal["plan-follower", "plan-and-execute", "kpi-chain", "rp-react"]
EXECUTORS: tuple[Executor, ...] = get_args(Executor)


def carried_out(steps: Sequence[Step], executor: Executor = "plan-follower", data: Sequence[str] = ()) -> list[Step]:
    """Return the steps of a plan whose calls an executor makes, in its order, if nobody mends the plan.

    A plan follower passes on a tool's name as it is written; agents, which write plans in forms of their own, take it
    for a reference to that tool's step.

    Args:
        steps: The plan.
        executor: One of `EXECUTORS`; "plan-and-execute" without replans, "kpi-chain" without a second plan.
        data: Texts of the task, in which nothing is a reference.

    Raises:
        InvalidInputError: There is no such executor.
    """
    if executor not in EXECUTORS:
        raise unknown_name("executor", executor, EXECUTORS)
    if executor != "plan-follower":
        numbered = numbered_parameters([step.tool for step in steps], [step.parameters for step in steps])
        steps = [replace(step, parameters=values) for step, values in zip(steps, numbered, strict=True)]
    if executor == "kpi-chain":
        return _sorted_by_references(steps, data)
    undone = undone_steps([step.parameters for step in steps], data)
    if executor == "plan-and-execute" and undone:
        return list(steps[: min(undone)])
    return [step for index, step in enumerate(steps) if index not in undone]


def _sorted_by_references(steps: Sequence[Step], data: Sequence[str]) -> list[Step]:
    """Return the steps behind those that they refer to, as they stand otherwise; none if that cannot be done."""
    needed: list[set[int | None]] = []
    for step in steps:
        references = [found for value in step.parameters.values() for found in argument_references(value, data)]
        needed.append({None if found.number is None else found.number - 1 for found in references})
    waiting, ordered = list(range(len(steps))), list[int]()
    while waiting:
        following = next((index for index in waiting if needed[index] <= set(ordered)), None)
        if following is None:  # it names nothing, or needs what comes only after it
            return []
        waiting.remove(following)
        ordered.append(following)
    return [steps[index] for index in ordered]
