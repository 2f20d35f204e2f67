"""Parameter flaws: required parameters that are missing, and values that a tool refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from resilisim.seeding import Draws
from resilisim.tool_library import Parameter, Tool
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.perturbation.plan import Change, Plan, Unfit
from resilisim.workflows.perturbation.types import Edit

# P_error = alpha x P_required + beta x P_optional (R C.3): the shares of required and of optional parameters that get
# an error. The seed gives no values; with these one in ten (but at least one), half, or nearly all required ones are.
RATES: Mapping[str, tuple[float, float]] = {"light": (0.1, 0.1), "moderate": (0.5, 0.3), "severe": (0.9, 0.6)}

Site = tuple[int, str]  # step, parameter


def missing_parameters(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Drop parameters, at least one that is required."""
    required, optional = _sites(plan)
    if not required:
        return Unfit("no call that its tool accepts passes a required parameter")
    values = [dict(step.parameters) for step in plan.steps]
    edits = []
    for index, name in _chosen(required, optional, severity, draws):
        edits.append(Edit("parameter_dropped", index + 1, index + 1, name, as_json(values[index].pop(name)), None))
    return _change(plan, values, edits)


def type_mismatch(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Give parameters values of a wrong type or out of range, each refused by the tool's schema."""
    required, optional = _sites(plan)
    if not required and not optional:
        return Unfit("no call that its tool accepts passes a parameter")
    values = [dict(step.parameters) for step in plan.steps]
    edits = []
    for index, name in _chosen(required, optional, severity, draws):
        wrong = wrong_values(plan.tool(index), name, values[index][name])
        if not wrong:
            continue
        before, values[index][name] = values[index][name], draws.choice(wrong)
        edits.append(
            Edit("parameter_changed", index + 1, index + 1, name, as_json(before), as_json(values[index][name]))
        )
    if not edits:
        return Unfit("no parameter of a step can have a value that its tool would refuse")
    return _change(plan, values, edits)


def wrong_values(tool: Tool, name: str, value: Any) -> list[Any]:
    """Return values for a parameter that the tool refuses, of other types and out of range."""
    parameter = next((parameter for parameter in tool.parameters if parameter.name == name), None)
    candidates = [*_of_another_type(value), *(_out_of_range(parameter) if parameter is not None else ())]
    return [candidate for candidate in candidates if not accepts(tool, {name: candidate})]


def as_json(value: Any) -> str:
    """Return a parameter's value as it stands in edits."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _sites(plan: Plan) -> tuple[list[Site], list[Site]]:
    """Return the required and the optional parameters that the plan passes in calls that are accepted as they stand."""
    required: list[Site] = []
    optional: list[Site] = []
    for index, step in enumerate(plan.steps):
        if not plan.accepted[index]:
            continue
        for parameter in plan.tool(index).parameters:
            if parameter.name in step.parameters:
                (required if parameter.required else optional).append((index, parameter.name))
    return required, optional


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
    if isinstance(value, Mapping):
        return ["see above", list(value), 0]
    return ["see above", 0]


def _out_of_range(parameter: Parameter) -> list[Any]:
    constraints = parameter.constraints
    result: list[Any] = []
    for bound, beyond in (("maximum", 1), ("exclusiveMaximum", 0), ("minimum", -1), ("exclusiveMinimum", 0)):
        if isinstance(constraints.get(bound), int | float):
            result.append(constraints[bound] + beyond)
    if constraints.get("enum") and parameter.type == "string":
        result.append("any")
    if constraints.get("minLength"):
        result.append("")
    return result


def _change(plan: Plan, values: list[dict[str, Any]], edits: list[Edit]) -> Change:
    touched = {edit.step - 1 for edit in edits}
    steps = [
        replace(step, parameters=values[index]) if index in touched else step for index, step in enumerate(plan.steps)
    ]
    return Change(tuple(steps), tuple(edits))
