"""Whether a flawed workflow really has the flaw that it is named after; written apart from the methods that make it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from resilisim.tool_library.parameters import accepts
from resilisim.workflows.flaws.methods import is_verifying, referred_tool
from resilisim.workflows.flaws.model import FlawedWorkflow, PlanView
from resilisim.workflows.model import Step

# What a step does not say of other steps.
FIELDS_WITHOUT_REFERENCES = (
    "tool",
    "requires",
    "alternatives",
    "expected_outcome",
    "confidence",
    "semantic_match",
    "chosen_by",
    "max_tries",
    "skip_from",
)


def flaw_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
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


def _order_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
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
    elif any(abs(index - place) > 1 for place, index in enumerate(order)):
        return "swaps more than neighbours"
    return None if reversed_pairs else "breaks no order that mattered"


def _tools_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
    new, old = flawed.workflow.steps, flawed.original.steps
    if len(new) != len(old):
        return "has another number of steps"
    changed = [index for index, step in enumerate(new) if step.tool != old[index].tool]
    gone = {old[index].tool for index in changed}
    same = (_same_but_for_references(new[index], old[index], gone) for index in range(len(old)) if index not in changed)
    if not all(same):
        return "changes more than tools"
    kept = {step.tool for step in new}
    if all(old[index].tool in kept or old[index].tool not in plan.place for index in changed):
        return "keeps every required tool"
    if flawed.flaw.method == "category_mismatch":
        library = plan.shop.library
        if any(library[new[index].tool].category == plan.tool(index).category for index in changed):
            return "keeps a category"
    if flawed.flaw.type == "semantic_drift":
        functional, index_of = plan.shop.similarity().functional, plan.shop.library.index
        if any(functional[index_of(old[index].tool), index_of(new[index].tool)] >= 1.0 for index in changed):
            return "puts in a tool that does the same"
    return None


def _parameters_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
    if not _differ_in_parameters_alone(flawed.workflow.steps, flawed.original.steps):
        return "changes more than parameters"
    # In lenient mode a call may leave out what it likes, so what is refused is a value.
    if flawed.flaw.method == "missing_parameters":
        as_named = _refuses_more(flawed, plan, "strict") and not _refuses_more(flawed, plan, "lenient")
    else:
        as_named = _refuses_more(flawed, plan, "lenient")
    return None if as_named else "no call is refused in that way that was accepted before"


def _missing_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
    place = {step.tool: index for index, step in enumerate(plan.steps)}
    kept = [place.get(step.tool, -1) for step in flawed.workflow.steps]
    if -1 in kept or kept != sorted(set(kept)):
        return "is not the original with steps left out"
    gone = set(range(len(plan.steps))) - set(kept)
    names = {plan.steps[index].tool for index in gone}
    pairs = zip(flawed.workflow.steps, kept, strict=True)
    if not all(_same_but_for_references(step, plan.steps[index], names) for step, index in pairs):
        return "changes more than it leaves out"
    if flawed.flaw.method == "middle_step_removal" and gone & {0, len(plan.steps) - 1}:
        return "lacks an end of the original"
    if flawed.flaw.method == "validation_removal":
        gone = {index for index in gone if is_verifying(plan.tool(index).operation)}
    return None if any(plan.is_needed(index) for index in gone) else "lacks nothing that was needed"


def _redundancy_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
    extra = _extra_steps(flawed)
    if not extra:
        return "is not the original with steps added"
    if flawed.flaw.method == "duplication":
        copies = [plan.copy_of(index) for index in range(len(plan.steps))]
        return None if all(step in copies for step in extra) else "adds a step that it did not hold"
    return _usefulness_problem(extra, plan)


def _discontinuity_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
    if flawed.flaw.method == "format_mismatch":
        return _formats_problem(flawed, plan)
    tools = {step.tool for step in plan.steps}
    extra = [step for step in flawed.workflow.steps if step.tool not in tools]
    if [step.tool for step in flawed.workflow.steps if step.tool in tools] != [step.tool for step in plan.steps]:
        return "is not the original with steps added"
    if not extra or flawed.workflow.steps[0] is not flawed.original.steps[0]:
        return "inserts nothing between its steps"
    return _usefulness_problem(extra, plan)


def _formats_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
    new, old = flawed.workflow.steps, flawed.original.steps
    if len(new) != len(old):
        return "has another number of steps"
    with_old_outcomes = [
        step if step is old[index] else replace(step, expected_outcome=old[index].expected_outcome)
        for index, step in enumerate(new)
    ]
    if not _differ_in_parameters_alone(with_old_outcomes, old):
        return "changes more than parameters and outcomes"
    return None if _refuses_more(flawed, plan, "lenient") else "no call is refused that was accepted before"


def _usefulness_problem(extra: Iterable[Step], plan: PlanView) -> str | None:
    of_use = set(plan.shop.library.closure([*(step.tool for step in plan.steps), *plan.required]))
    useful = [step.tool for step in extra if step.tool in of_use]
    return f"adds {useful[0]}, which is of use" if useful else None


def _same_but_for_references(new: Step, old: Step, gone: Set[str]) -> bool:
    """Return whether two steps differ in nothing but what the old one says of tools that are gone."""
    if new is old:
        return True
    if list(new.parameters) != list(old.parameters) or any(
        getattr(new, name) != getattr(old, name) for name in FIELDS_WITHOUT_REFERENCES
    ):
        return False
    if new.reason != old.reason and not any(name in old.reason for name in gone):
        return False
    return all(
        value == old.parameters[name] or referred_tool(old.parameters[name]) in gone
        for name, value in new.parameters.items()
    )


def _differ_in_parameters_alone(new: Sequence[Step], old: Sequence[Step]) -> bool:
    return len(new) == len(old) and all(
        one is other or replace(one, parameters=other.parameters) == other for one, other in zip(new, old, strict=True)
    )


def _refuses_more(flawed: FlawedWorkflow, plan: PlanView, mode: str) -> bool:
    """Return whether a call is refused, in some mode, that is accepted in the original."""
    library = plan.shop.library
    return any(
        plan.accepted[index] and new is not plan.steps[index] and not accepts(library[new.tool], new.parameters, mode)
        for index, new in enumerate(flawed.workflow.steps)
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


_CHECKS: Mapping[str, Callable[[FlawedWorkflow, PlanView], str | None]] = {
    "sequential_order": _order_problem,
    "tool_misuse": _tools_problem,
    "parameter_error": _parameters_problem,
    "missing_step": _missing_problem,
    "redundant_operation": _redundancy_problem,
    "logic_discontinuity": _discontinuity_problem,
    "semantic_drift": _tools_problem,
}
