"""The methods that put flaws into plans, two for each flaw type, and with them those of `argument_passing`.

Order: steps that stand before what they should follow. Misuse and drift: other tools in the place of required ones.
Parameters: required ones that are missing, and values that a tool refuses. Missing steps: plans from which something
needed was taken. Additions: repeated, useless and unrelated steps. Discontinuity: what one step gives is not what the
next one can read. What steps say of each other is kept consistent, so that no text betrays a flaw.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.seeding import Draws
from resilisim.tool_library import Parameter, Tool
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.argument_references import referred_tool
from resilisim.workflows.flaws.argument_passing import REFERENCE_METHODS
from resilisim.workflows.flaws.flaw import Change, Edit, PlanView, as_json, num_edits, set_parameter, tool_before
from resilisim.workflows.steps import FLOWING_PARAMETERS, RESULT_KEY, RESULT_TEXT, UNSTATED_TEXT, reference
from resilisim.workflows.workflow import Step

# Given a plan, a severity and draws; the new plan, or why the method can do nothing with this one.
Method = Callable[[PlanView, str, Draws], "Change | str"]


def swap(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Swap pairs of neighbours whose order matters; no step takes part in two swaps."""
    pairs: list[int] = []
    candidates = [index for index in range(len(plan.steps) - 1) if plan.order_matters(index, index + 1)]
    for index in draws.shuffled(candidates):
        if not {index - 1, index, index + 1} & set(pairs):
            pairs.append(index)
    if not pairs:
        return "no two neighbouring steps are in an order that matters"
    steps = list(plan.steps)
    edits = []
    for index in sorted(pairs[: num_edits(severity, len(pairs))]):
        first, second = steps[index], steps[index + 1]
        steps[index], steps[index + 1] = second, first
        before, after = f"{first.tool}, {second.tool}", f"{second.tool}, {first.tool}"
        edits.append(Edit("swapped", index + 1, index + 1, None, before, after))
    return Change(tuple(steps), tuple(edits))


def dependency_violation(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Move steps in front of the first of their direct dependencies."""
    followed = [_dependencies_before(plan, index) for index in range(len(plan.steps))]
    sites = [index for index, dependencies in enumerate(followed) if dependencies]
    if not sites:
        return "no step follows a step that it depends on"
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


def _dependencies_before(plan: PlanView, index: int) -> list[int]:
    """Return the steps before a step that it depends on and that it must not come before."""
    return [other for other in range(index) if plan.depends(index, other) and plan.order_matters(other, index)]


NO_OTHER_TOOL = "the library has no tool left that could stand in for one of the plan's"

# Chooses a substitute for the tool of a step among free tools (library indices); None if none will do.
Choose = Callable[[int, Sequence[int]], "int | None"]


def semantic_similarity(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Replace required tools by the tools whose texts are most similar and that do not do the same (F < 1)."""
    similarity = plan.similarity()
    return _replace_by_score(plan, severity, draws, np.where(similarity.functional < 1.0, similarity.semantic, -1.0))


def category_mismatch(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Replace required tools by any tools of other categories."""
    library = plan.library

    def of_another_category(index: int, free: Sequence[int]) -> int | None:
        category = plan.tool(index).category
        others = [tool for tool in free if library[library.names[tool]].category != category]
        return draws.choice(others) if others else None

    return _replace_required(plan, severity, draws, of_another_category, "no unused tool is of another category")


def semantic_mismatch(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Replace required tools by tools that are similar in words and different in function: argmax S x (1 - F)."""
    similarity = plan.similarity()
    scores = similarity.semantic * (1.0 - similarity.functional)
    return _replace_by_score(plan, severity, draws, np.where(scores > 0.0, scores, -1.0))


def progressive_drift(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """From some step on replace every tool, each substitute chosen by its likeness to the substitute before it.

    T_i = argmax over t of S(t, T_{i-1}) x (1 - F(t, T_original)) (R C.3), where T_{i-1} is the substitute of the step
    before, and for the first step of the drift its own tool. Candidates are tools that the plan does not use, each
    once. A light drift takes the last quarter of the steps, a moderate one the last half, a severe one all after the
    first; a drift begins no later than at the last required tool.
    """
    similarity = plan.similarity()
    num_steps = len(plan.steps)
    length = {"light": -(-num_steps // 4), "moderate": -(-num_steps // 2), "severe": max(num_steps - 1, 1)}[severity]
    required = plan.required_steps()
    if not required:
        return "no step is required"
    start = min(num_steps - length, required[-1])
    free = plan.tools_elsewhere()
    steps, edits = list(plan.steps), []
    previous = plan.library.index(steps[start].tool)
    for index in range(start, num_steps):
        original = plan.library.index(plan.steps[index].tool)
        scores = similarity.semantic[previous] * (1.0 - similarity.functional[original])
        replacement = _highest(np.where(scores > 0.0, scores, -1.0), free)
        if replacement is None:
            return NO_OTHER_TOOL
        free.remove(replacement)
        edits.append(_substitute(plan, steps, index, replacement))
        previous = replacement
    return _consistent(plan, steps, edits)


def _replace_by_score(plan: PlanView, severity: str, draws: Draws, scores: NDArray[np.float64]) -> Change | str:
    """Replace required tools by those with the highest scores, float64 (num_tools, num_tools); -1 will not do."""

    def best(index: int, free: Sequence[int]) -> int | None:
        return _highest(scores[plan.library.index(plan.steps[index].tool)], free)

    return _replace_required(plan, severity, draws, best, NO_OTHER_TOOL)


def _replace_required(plan: PlanView, severity: str, draws: Draws, choose: Choose, otherwise: str) -> Change | str:
    """Replace the tools of some required steps, drawn at random; no substitute is used twice."""
    sites = draws.shuffled(plan.required_steps())
    if not sites:
        return "no step is required"
    free = plan.tools_elsewhere()
    steps, edits = list(plan.steps), []
    for index in sites[: num_edits(severity, len(sites))]:
        replacement = choose(index, free)
        if replacement is None:
            continue
        free.remove(replacement)
        edits.append(_substitute(plan, steps, index, replacement))
    if not edits:
        return otherwise
    return _consistent(plan, steps, edits)


def _consistent(plan: PlanView, steps: Sequence[Step], edits: Sequence[Edit]) -> Change:
    """Let the steps refer to the substitutes where they referred to the tools that these stand for."""
    new_names = {plan.steps[edit.step - 1].tool: steps[edit.step - 1].tool for edit in edits}
    replaced = frozenset(edit.step - 1 for edit in edits)
    changed, redirected = redirect(steps, range(len(steps)), new_names, new_names, replaced)
    return Change(changed, tuple(sorted([*edits, *redirected], key=lambda edit: edit.step)))


def _substitute(plan: PlanView, steps: list[Step], index: int, replacement: int) -> Edit:
    name = plan.library.names[replacement]
    steps[index] = plan.step_with_tool(index, name, tool_before(steps, index))
    return Edit("replaced", index + 1, index + 1, None, plan.steps[index].tool, name)


def _highest(scores: NDArray[np.float64], free: Sequence[int]) -> int | None:
    """Return the free tool with the highest score of at least 0, the first in the library among equals."""
    best = max(free, key=lambda tool: (scores[tool], -tool), default=None)
    return None if best is None or scores[best] < 0.0 else best


# P_error = alpha x P_required + beta x P_optional (R C.3): the shares of required and of optional parameters that get
# an error. The seed gives no values; with these one in ten (but at least one), half, or nearly all required ones are.
RATES: Mapping[str, tuple[float, float]] = {"light": (0.1, 0.1), "moderate": (0.5, 0.3), "severe": (0.9, 0.6)}

Site = tuple[int, str]  # step, parameter


def missing_parameters(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Drop parameters, at least one that is required."""
    required, optional = _sites(plan)
    if not required:
        return "no call that its tool accepts passes a required parameter"
    steps, edits = list(plan.steps), []
    for index, name in _chosen(required, optional, severity, draws):
        parameters = dict(steps[index].parameters)
        edits.append(Edit("parameter_dropped", index + 1, index + 1, name, as_json(parameters.pop(name)), None))
        steps[index] = replace(steps[index], parameters=parameters)
    return Change(tuple(steps), tuple(edits))


def type_mismatch(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Give parameters values of a wrong type or out of range, each refused by the tool's schema."""
    required, optional = _sites(plan)
    if not required and not optional:
        return "no call that its tool accepts passes a parameter"
    steps = list(plan.steps)
    edits = []
    for index, name in _chosen(required, optional, severity, draws):
        wrong = _wrong_values(plan.tool(index), name, steps[index].parameters[name])
        if wrong:
            edits.append(set_parameter(steps, index, index, name, draws.choice(wrong)))
    if not edits:
        return "no parameter of a step can have a value that its tool would refuse"
    return Change(tuple(steps), tuple(edits))


def _wrong_values(tool: Tool, name: str, value: Any) -> list[Any]:
    """Return values for a parameter that the tool refuses, of other types and out of range."""
    parameter = next(parameter for parameter in tool.parameters if parameter.name == name)
    candidates = [*_of_another_type(value), *_out_of_range(parameter)]
    return [candidate for candidate in candidates if not accepts(tool, {name: candidate})]


def _sites(plan: PlanView) -> tuple[list[Site], list[Site]]:
    """Return the required and the optional parameters that the plan passes in calls that are accepted as they stand."""
    passed = [
        (parameter.required, (index, parameter.name))
        for index, step in enumerate(plan.steps)
        for parameter in plan.tool(index).parameters
        if plan.accepted[index] and parameter.name in step.parameters
    ]
    return [site for required, site in passed if required], [site for required, site in passed if not required]


def _chosen(required: list[Site], optional: list[Site], severity: str, draws: Draws) -> list[Site]:
    """Return alpha of the required and beta of the optional parameters, at least one, in plan order."""
    alpha, beta = RATES[severity]
    from_required = draws.shuffled(required)[: math.ceil(alpha * len(required))]
    wanted = math.floor(beta * len(optional) + 0.5)
    from_optional = draws.shuffled(optional)[: wanted if required else max(1, wanted)]
    return sorted([*from_required, *from_optional])


def _of_another_type(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [7, [value], {"value": value}]
    if isinstance(value, bool):
        return ["yes", 2]
    if isinstance(value, int | float):
        return ["a few", [value]]
    return ["see above", list(value), 0] if isinstance(value, Mapping) else ["see above", 0]


def _out_of_range(parameter: Parameter) -> list[Any]:
    constraints = parameter.constraints
    bounds = {"maximum": 1, "exclusiveMaximum": 0, "minimum": -1, "exclusiveMinimum": 0}
    result: list[Any] = [constraints[bound] + beyond for bound, beyond in bounds.items() if bound in constraints]
    result += ["any"] if constraints.get("enum") and parameter.type == "string" else []
    return [*result, ""] if constraints.get("minLength") else result


# Operations that make sure of quality, in any library; to invalidate or to check out is something else.
_VERIFYING = re.compile(r"(?<!in)valid|verif|check(?!out|point)|inspect|audit", re.IGNORECASE)


def middle_step_removal(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Remove required steps from between the first and the last step."""
    inner = [index for index in plan.required_steps() if 0 < index < len(plan.steps) - 1]
    if not inner:
        return "no required step stands between the first and the last one"
    return _without(plan, draws.shuffled(inner)[: num_edits(severity, len(inner))])


def validation_removal(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Remove required steps that check, and with growing severity what stands around them.

    Light: one checking step. Moderate: all of them, each with the step after it, which works on what was checked.
    Severe: also the step before each. The first and the last step of the plan stay unless they check themselves, and
    one step always stays.
    """
    checks = [index for index in plan.required_steps() if is_verifying(plan.tool(index).operation)]
    if not checks:
        return "no required step validates or verifies anything"
    if len(checks) == len(plan.steps):
        return "every step validates, so nothing would be left"
    if severity == "light":
        return _without(plan, [draws.choice(checks)])
    around = [index + 1 for index in checks]
    if severity == "severe":
        around += [index - 1 for index in checks]
    inner = [index for index in dict.fromkeys(around) if 0 < index < len(plan.steps) - 1 and index not in checks]
    return _without(plan, [*checks, *inner][: len(plan.steps) - 1])


def is_verifying(operation: str) -> bool:
    """Return whether an operation is there to make sure of quality."""
    return _VERIFYING.search(operation) is not None


def _without(plan: PlanView, removed: list[int]) -> Change:
    gone = set(removed)
    kept = [index for index in range(len(plan.steps)) if index not in gone]
    edits, results, reasons = [], {}, {}
    for index in sorted(gone):
        tool = plan.steps[index].tool
        before = [plan.steps[other].tool for other in kept if other < index]
        after = [plan.steps[other].tool for other in kept if other > index]
        results[tool] = before[-1] if before else None
        reasons[tool] = (after or before[::-1])[0]
        edits.append(Edit("removed", len(before) + 1, index + 1, None, tool, None))
    steps, redirected = redirect([plan.steps[index] for index in kept], kept, results, reasons)
    return Change(steps, tuple(sorted([*edits, *redirected], key=lambda edit: edit.step)))


# Useless tools are drawn from the third that is most like the plan, unrelated ones from the third that is least so.
SHARE = 3


def duplication(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Repeat steps, each copy somewhere after its original and before the last step, which has to wait for it.

    A copy has no limits: one that may be left at once would do nothing.
    """
    last = len(plan.steps) - 1
    copies: list[tuple[int, int]] = []  # place in the original that the copy comes before, and what is copied
    for _ in range(_num_extra_steps(plan, severity)):
        source = draws.below(max(last, 1))
        copies.append((draws.between(source + 1, last) if last else 1, source))
    copies.sort()
    steps: list[Step] = []
    edits = []
    for index in range(len(plan.steps) + 1):
        for source in (source for place, source in copies if place == index):
            steps.append(plan.copy_of(source))
            edits.append(Edit("duplicated", len(steps), source + 1, None, None, plan.steps[source].tool))
        steps += plan.steps[index : index + 1]
    return Change(tuple(steps), tuple(edits))


def unnecessary_addition(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Insert tools that look as if they belonged there and are of no use, before the last step."""
    related = plan.useless_tools[: math.ceil(len(plan.useless_tools) / SHARE)]
    return _insert(plan, related, severity, draws, first_gap=0, rewire=False)


def unrelated_insertion(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Insert tools that have nothing to do with the task between steps; the next step takes its data from them."""
    if len(plan.steps) < 2:
        return "a single step has no neighbour to be cut off from"
    unrelated = plan.useless_tools[-math.ceil(len(plan.useless_tools) / SHARE) :]
    return _insert(plan, unrelated, severity, draws, first_gap=1, rewire=True)


def _num_extra_steps(plan: PlanView, severity: str) -> int:
    """Return how many useless steps are put into a plan: 1, half of the turns that it leaves to spare, or all of them.

    Useless steps hurt by the turns that they take; a plan that leaves few to spare gets at least 1, 2 or 3.
    """
    if severity == "light":
        return 1
    spare = plan.max_turns - len(plan.steps)
    return max(3, spare) if severity == "severe" else max(2, math.ceil(spare / 2))


def _insert(
    plan: PlanView, tools: Sequence[int], severity: str, draws: Draws, *, first_gap: int, rewire: bool
) -> Change | str:
    """Insert useless steps, each before a step drawn from `first_gap` on; tools come again only when all were used."""
    if not tools:
        return "every tool of the library is of some use to the plan"
    count = _num_extra_steps(plan, severity)
    order: list[int] = []
    while len(order) < count:
        order += draws.shuffled(tools)
    gaps = [(draws.between(first_gap, len(plan.steps) - 1), number) for number in range(count)]
    names = plan.library.names
    steps: list[Step] = []
    edits: list[Edit] = []
    for index, step in enumerate(plan.steps):
        inserted = [names[order[number]] for gap, number in sorted(gaps) if gap == index]
        for name in inserted:
            steps.append(plan.useless_step(name, tool_before(steps, len(steps))))
            edits.append(Edit("inserted", len(steps), None, None, None, name))
        steps.append(step)
        if rewire and inserted:
            # It reads from the last of them what it read from the step before, in values of the same type.
            for name in sorted(FLOWING_PARAMETERS & step.parameters.keys()):
                value = step.parameters[name]
                if referred_tool(value) == plan.steps[index - 1].tool:
                    instead = refer_to(value, inserted[-1])
                    edits.append(set_parameter(steps, len(steps) - 1, index, name, instead))
    return Change(tuple(steps), tuple(edits))


UNREADABLE_FORMATS = (
    "a scanned image",
    "a zip archive",
    "a printed report",
    "an audio recording",
    "a spreadsheet with macros",
)


def format_mismatch(plan: PlanView, severity: str, draws: Draws) -> Change | str:
    """Let steps hand on their results in a form that the next step's schema refuses.

    The step before is said to give another format, and the parameter through which the next one receives data refers to
    that: as a text where an object is read, as an object where a text is.
    """
    receiving = {
        index: name for index in range(1, len(plan.steps)) if (name := _receiving_parameter(plan, index)) is not None
    }
    # Where results are passed on at all, it is these that arrive in a wrong format.
    passing = [index for index, name in receiving.items() if referred_tool(plan.steps[index].parameters[name])]
    sites = passing or list(receiving)
    if not sites:
        return "no step receives anything from the step before that its tool could refuse"
    steps = list(plan.steps)
    edits: list[Edit] = []
    for index in sorted(draws.shuffled(sites)[: num_edits(severity, len(sites))]):
        name = receiving[index]
        kind = draws.choice(UNREADABLE_FORMATS)
        giver = steps[index - 1]
        outcome = f"success, with {kind}"
        value = _in_format(plan.tool(index), name, giver.tool, kind)
        steps[index - 1] = replace(giver, expected_outcome=outcome)
        edits.append(Edit("outcome_changed", index, index, None, giver.expected_outcome, outcome))
        edits.append(set_parameter(steps, index, index, name, value))
    return Change(tuple(steps), tuple(edits))


def _receiving_parameter(plan: PlanView, index: int) -> str | None:
    """Return the parameter through which a step receives data and whose schema refuses some format, or None.

    Parameters that refer to a result come first, then those through which results flow, then the other required ones.
    A step whose call is refused as it stands has none.
    """
    if not plan.accepted[index]:
        return None
    tool, values = plan.tool(index), plan.steps[index].parameters
    names = [parameter.name for parameter in tool.parameters if parameter.required and parameter.name in values]
    names.sort(key=lambda name: (referred_tool(values[name]) is None, name not in FLOWING_PARAMETERS))
    giver = plan.steps[index - 1].tool
    return next((name for name in names if _in_format(tool, name, giver, UNREADABLE_FORMATS[0]) is not None), None)


def _in_format(tool: Tool, name: str, giver: str, kind: str) -> Any:
    """Return a reference to a result in some format that the parameter's schema refuses, or None."""
    forms = (f"{RESULT_TEXT}{giver} as {kind}", {RESULT_KEY: giver, "format": kind})
    return next((value for value in forms if not accepts(tool, {name: value})), None)


_TWICE = re.compile(r"(?<![\w.-])([\w.-]+) and \1(?![\w.-])")


def refer_to(value: Any, tool: str | None) -> Any:
    """Return a reference in the form of another one; without a tool, a value of the same type that says nothing."""
    is_text = isinstance(value, str)
    if tool is None:
        return UNSTATED_TEXT if is_text else {}
    return reference(tool, as_object=not is_text)


def redirect(
    steps: Sequence[Step],
    origins: Sequence[int],
    results: Mapping[str, str | None],
    reasons: Mapping[str, str],
    replaced: frozenset[int] = frozenset(),
) -> tuple[tuple[Step, ...], list[Edit]]:
    """Let the steps of a flawed plan refer to what is in it now, and return them and the edits in their order.

    `origins` are the indices of the steps in the original plan. For a tool that is gone, `results` names the one whose
    result is passed instead (None for none), `reasons` the one that reasons name instead. Steps that were `replaced`
    have new parameters anyway, which need no edit.
    """
    changed, edits = list(steps), []
    for index, step in enumerate(steps):
        for name, value in step.parameters.items():
            tool = referred_tool(value)
            if tool is not None and tool in results:
                edit = set_parameter(changed, index, origins[index], name, refer_to(value, results[tool]))
                edits += [edit] if index not in replaced else []
        reason = _renamed(step.reason, reasons)
        if reason != step.reason:
            edits.append(Edit("reason_changed", index + 1, origins[index] + 1, None, step.reason, reason))
            changed[index] = replace(changed[index], reason=reason)
    return tuple(changed), edits


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a text that names other tools; a tool that is then named twice in a row is named once."""
    if not any(name in text for name in names):
        return text
    longest_first = sorted(names, key=len, reverse=True)
    known = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])")
    renamed = known.sub(lambda match: names[match.group()], text)
    return _TWICE.sub(r"\1", renamed) if renamed != text else text


_OF_FLAWS: Mapping[str, Method] = {
    method.__name__: method
    for method in (
        swap,
        dependency_violation,
        semantic_similarity,
        category_mismatch,
        missing_parameters,
        type_mismatch,
        middle_step_removal,
        validation_removal,
        duplication,
        unnecessary_addition,
        format_mismatch,
        unrelated_insertion,
        semantic_mismatch,
        progressive_drift,
    )
}
MAKERS: Mapping[str, Method] = {**_OF_FLAWS, **REFERENCE_METHODS}
