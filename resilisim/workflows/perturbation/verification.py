"""Whether a flawed workflow really has the flaw that it is named after; written apart from the methods that make it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from resilisim.tool_library.parameters import accepts
from resilisim.workflows.perturbation.plan import Plan
from resilisim.workflows.perturbation.types import FlawedWorkflow
from resilisim.workflows.types import Step


def flaw_problem(flawed: FlawedWorkflow, plan: Plan) -> str | None:
    """Say what is wrong with a flawed workflow, or return None if it is what it says.

    Args:
        flawed: The flawed workflow.
        plan: The original workflow with its required list and library.
    """
    if flawed.workflow.steps == flawed.original.steps:
        return "is equal to its original"
    if not flawed.workflow.steps:
        return "has no steps"
    if not flawed.edits:
        return "lists no edits"
    return _CHECKS[flawed.flaw.type](flawed, plan)


def _order_problem(flawed: FlawedWorkflow, plan: Plan) -> str | None:
    order = _places(flawed.workflow.steps, flawed.original.steps)
    if order is None or sorted(order) != list(range(len(plan.steps))):
        return "does not hold the same steps"
    # Pairs that stand the wrong way round now, by their places in the original.
    reversed_pairs = [
        (first, second)
        for place, second in enumerate(order)
        for first in order[place + 1 :]
        if first < second and plan.order_matters(first, second)
    ]
    if flawed.flaw.method == "dependency_violation":
        reversed_pairs = [(first, second) for first, second in reversed_pairs if plan.depends(second, first)]
    return None if reversed_pairs else "breaks no order that mattered"


def _tools_problem(flawed: FlawedWorkflow, plan: Plan) -> str | None:
    new, old = flawed.workflow.steps, flawed.original.steps
    if len(new) != len(old):
        return "has another number of steps"
    changed = [index for index, step in enumerate(new) if step.tool != old[index].tool]
    if any(new[index] is not old[index] for index in range(len(old)) if index not in changed):
        return "changes more than tools"
    kept = {step.tool for step in new}
    if all(name in kept for name in plan.required):
        return "keeps every required tool"
    if flawed.flaw.method == "category_mismatch":
        library = plan.shop.library
        if any(library[new[index].tool].category == plan.tool(index).category for index in changed):
            return "keeps a category"
    return None


def _parameters_problem(flawed: FlawedWorkflow, plan: Plan) -> str | None:
    if flawed.workflow.tools != flawed.original.tools:
        return "changes tools"
    return None if _newly_refused(flawed, plan) else "no call is refused that was accepted before"


def _missing_problem(flawed: FlawedWorkflow, plan: Plan) -> str | None:
    kept = _places(flawed.workflow.steps, flawed.original.steps)
    if kept is None or kept != sorted(kept):
        return "is not the original with steps left out"
    gone = set(range(len(plan.steps))) - set(kept)
    return None if any(plan.is_needed(index) for index in gone) else "lacks nothing that was needed"


def _redundancy_problem(flawed: FlawedWorkflow, plan: Plan) -> str | None:
    extra = _extra_steps(flawed)
    if not extra:
        return "is not the original with steps added"
    if flawed.flaw.method == "duplication":
        known = {step.tool for step in plan.steps}
        return None if all(step.tool in known for step in extra) else "adds a tool that it did not hold"
    return _usefulness_problem(extra, plan)


def _discontinuity_problem(flawed: FlawedWorkflow, plan: Plan) -> str | None:
    if flawed.flaw.method == "format_mismatch":
        return _parameters_problem(flawed, plan)
    tools = {step.tool for step in plan.steps}
    extra = [step for step in flawed.workflow.steps if step.tool not in tools]
    if [step.tool for step in flawed.workflow.steps if step.tool in tools] != [step.tool for step in plan.steps]:
        return "is not the original with steps added"
    if not extra or flawed.workflow.steps[0] is not flawed.original.steps[0]:
        return "inserts nothing between its steps"
    return _usefulness_problem(extra, plan)


def _usefulness_problem(extra: Iterable[Step], plan: Plan) -> str | None:
    of_use = set(plan.shop.library.closure([*(step.tool for step in plan.steps), *plan.required]))
    useful = [step.tool for step in extra if step.tool in of_use]
    return f"adds {useful[0]}, which is of use" if useful else None


def _newly_refused(flawed: FlawedWorkflow, plan: Plan) -> bool:
    library = plan.shop.library
    return any(
        new is not old
        and not accepts(library[new.tool], new.parameters, "strict")
        and accepts(library[old.tool], old.parameters, "strict")
        for new, old in zip(flawed.workflow.steps, flawed.original.steps, strict=True)
    )


def _places(steps: Sequence[Step], original: Sequence[Step]) -> list[int] | None:
    """Return the places that untouched steps have in the original, or None if one is not from there."""
    place = {id(step): index for index, step in enumerate(original)}
    found = [place.get(id(step), -1) for step in steps]
    return None if -1 in found else found


def _extra_steps(flawed: FlawedWorkflow) -> list[Step] | None:
    """Return the steps that were added to the original, or None if something else was done to it."""
    extra, waiting = [], list(flawed.original.steps)
    for step in flawed.workflow.steps:
        if waiting and step is waiting[0]:
            waiting.pop(0)
        else:
            extra.append(step)
    return None if waiting else extra


_CHECKS: Mapping[str, Callable[[FlawedWorkflow, Plan], str | None]] = {
    "sequential_order": _order_problem,
    "tool_misuse": _tools_problem,
    "parameter_error": _parameters_problem,
    "missing_step": _missing_problem,
    "redundant_operation": _redundancy_problem,
    "logic_discontinuity": _discontinuity_problem,
    "semantic_drift": _tools_problem,
}
