"""Order flaws: steps that stand before what they should follow."""

from __future__ import annotations

from resilisim.seeding import Draws
from resilisim.workflows.perturbation.plan import Change, Plan, Unfit
from resilisim.workflows.perturbation.types import Edit, num_edits


def swap(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Swap pairs of neighbours whose order matters; no step takes part in two swaps."""
    pairs: list[int] = []
    candidates = [index for index in range(len(plan.steps) - 1) if plan.order_matters(index, index + 1)]
    for index in draws.shuffled(candidates):
        if not {index - 1, index, index + 1} & set(pairs):
            pairs.append(index)
    if not pairs:
        return Unfit("no two neighbouring steps are in an order that matters")
    steps = list(plan.steps)
    edits = []
    for index in sorted(pairs[: num_edits(severity, len(pairs))]):
        first, second = steps[index], steps[index + 1]
        steps[index], steps[index + 1] = second, first
        before, after = f"{first.tool}, {second.tool}", f"{second.tool}, {first.tool}"
        edits.append(Edit("swapped", index + 1, index + 1, None, before, after))
    return Change(tuple(steps), tuple(edits))


def dependency_violation(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Move steps in front of the first of their direct dependencies."""
    followed = [_dependencies_before(plan, index) for index in range(len(plan.steps))]
    sites = [index for index, dependencies in enumerate(followed) if dependencies]
    if not sites:
        return Unfit("no step follows a step that it depends on")
    moved = sorted(draws.shuffled(sites)[: num_edits(severity, len(sites))])
    order = list(range(len(plan.steps)))
    # In plan order a tool is moved before its dependents are, so none of them is put right again by a later move.
    for index in moved:
        target = min(order.index(dependency) for dependency in followed[index])
        order.remove(index)
        order.insert(target, index)
    place = {index: number for number, index in enumerate(order, start=1)}
    edits = []
    for index in sorted(moved, key=lambda index: place[index]):
        tool, dependency = plan.steps[index].tool, plan.steps[followed[index][0]].tool
        edits.append(Edit("moved", place[index], index + 1, None, f"{dependency}, {tool}", f"{tool}, {dependency}"))
    return Change(tuple(plan.steps[index] for index in order), tuple(edits))


def _dependencies_before(plan: Plan, index: int) -> list[int]:
    """Return the steps before a step that it depends on and that it must not come before."""
    return [other for other in range(index) if plan.depends(index, other) and plan.order_matters(other, index)]
