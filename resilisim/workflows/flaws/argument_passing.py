"""The four methods that break how a plan passes arguments, and what tells that they did.

A reference that cannot be read, that stands within a value, that names a step that does not exist, or one that comes
later. They are put into a plan that refers to its steps by number (`workflows.argument_references.by_number`), which is
worth what the plan itself is worth. A nested reference can be resolved by whoever looks into values, at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resilisim.seeding import Draws
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.argument_references import argument_references, step_reference, undone_steps
from resilisim.workflows.flaws.flaw import Change, Edit, Flaw, PlanView, num_edits, set_parameter
from resilisim.workflows.steps import RESULT_KEY, RESULT_TEXT
from resilisim.workflows.workflow import Step

# Given the step's index, the number of steps, the number that the reference names, and its form (an object or a text):
# what may stand there instead.
Candidates = Callable[[int, int, int, bool, Draws], Sequence[Any]]


def malformed_reference(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Write references from which nobody can read a step."""

    def candidates(index: int, num_steps: int, number: int, as_object: bool, draws: Draws) -> Sequence[Any]:
        words = ("step", f"{{step_{number}", f"step {number}]")
        if as_object:
            return *({RESULT_KEY: word} for word in words), {RESULT_KEY: None}, {RESULT_KEY: [f"step {number}"]}
        return [RESULT_TEXT + word for word in words]

    return _break(plan, severity, draws, candidates)


def nested_reference(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Let references stand within lists, objects and longer texts."""

    def candidates(index: int, num_steps: int, number: int, as_object: bool, draws: Draws) -> Sequence[Any]:
        whole = step_reference(number, as_object)
        if as_object:
            return {"value": whole}, {"items": [whole]}, {"input": {"value": whole}}
        return f"from the {whole}", f"{whole}, in full"

    return _break(plan, severity, draws, candidates)


def missing_reference(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Refer to steps that the plan does not have."""

    def candidates(index: int, num_steps: int, number: int, as_object: bool, draws: Draws) -> Sequence[Any]:
        return [step_reference(num_steps + draws.between(1, 3), as_object)]

    return _break(plan, severity, draws, candidates)


def forward_reference(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Refer to steps that come later."""

    def candidates(index: int, num_steps: int, number: int, as_object: bool, draws: Draws) -> Sequence[Any]:
        last = index + 1 == num_steps
        return [] if last else [step_reference(draws.between(index + 2, num_steps), as_object)]

    return _break(plan, severity, draws, candidates)


def _break(plan: PlanView, severity: str, draws: Draws, candidates: Candidates) -> Change | str:
    """Put something else in the place of some references, drawn at random, that the tools accept as well."""
    for index, problem in undone_steps([step.parameters for step in plan.steps]).items():
        return f"its step {index + 1} cannot be done as it is: {problem}"
    sites = references_of(plan)
    if not sites:
        return "no step passes on the result of an earlier one"
    changes: list[tuple[int, str, Any]] = []
    for index, name in draws.shuffled(list(sites)):
        tool, value = plan.tool(index), plan.steps[index].parameters[name]
        instead = candidates(index, len(plan.steps), sites[index, name], not isinstance(value, str), draws)
        accepted = [other for other in instead if accepts(tool, {name: other})]
        if accepted:
            changes.append((index, name, draws.choice(accepted)))
    if not changes:
        return "no reference of the plan can be changed in that way"
    steps = list(plan.steps)
    edits = [
        set_parameter(steps, index, index, name, value)
        for index, name, value in sorted(changes[: num_edits(severity, len(changes))], key=lambda change: change[:2])
    ]
    undone = undone_steps([step.parameters for step in steps])
    edits += [Edit("undone", index + 1, index + 1, None, steps[index].tool, None) for index in undone]
    return Change(tuple(steps), tuple(sorted(edits, key=lambda edit: edit.step)))


def references_of(plan: PlanView) -> dict[tuple[int, str], int]:
    """Return the references of a plan's accepted calls, by step and parameter, with the number of the earlier step."""
    sites = {}
    for index, step in enumerate(plan.steps):
        for name, value in step.parameters.items():
            for found in argument_references(value) if plan.accepted[index] else ():
                if found.is_whole and found.number is not None and found.number <= index:
                    sites[index, name] = found.number
    return sites


def references_problem(flaw: Flaw, steps: Sequence[Step], plan: PlanView) -> str | None:
    """Say why a plan does not pass arguments in the wrong way that a flaw names, or return None if it does.

    The steps are known to differ in nothing but their parameters.
    """
    sites = references_of(plan)
    for index, (new, old) in enumerate(zip(steps, plan.steps, strict=True)):
        if [*new.parameters] != [*old.parameters]:
            return "passes other parameters"
        for name, value in new.parameters.items():
            if value == old.parameters[name]:
                continue
            references = argument_references(value)
            if (index, name) not in sites or len(references) != 1:
                return "changes more than references"
            number = references[0].number
            is_whole = references[0].is_whole
            is_so = {
                "malformed_reference": number is None,
                "nested_reference": number == sites[index, name] and not is_whole,
                "missing_reference": number is not None and not 1 <= number <= len(steps),
                "forward_reference": number is not None and index + 1 < number <= len(steps),
            }
            if not is_so[flaw.method]:
                return f"holds no {flaw.method.replace('_', ' ')} where it was changed"
        if plan.accepted[index] and not accepts(plan.library[new.tool], new.parameters, "strict"):
            return "is refused for more than its references"
    return None


REFERENCE_METHODS: Mapping[str, Callable[[PlanView, str, Draws], Change | str]] = {
    method.__name__: method for method in (malformed_reference, nested_reference, missing_reference, forward_reference)
}
