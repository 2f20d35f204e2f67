"""Formats that do not fit together: what one step gives is not what the next one can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from resilisim.seeding import Draws
from resilisim.tool_library import Tool
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.parameters import FLOWING_PARAMETERS
from resilisim.workflows.perturbation.plan import Change, Plan, Unfit
from resilisim.workflows.perturbation.references import referred_tool
from resilisim.workflows.perturbation.types import Edit, num_edits
from resilisim.workflows.perturbation.values import as_json

FORMATS = ("a scanned image", "a zip archive", "a printed report", "an audio recording", "a spreadsheet with macros")


def format_mismatch(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
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
        return Unfit("no step receives anything from the step before that its tool could refuse")
    steps = list(plan.steps)
    edits: list[Edit] = []
    for index in sorted(draws.shuffled(sites)[: num_edits(severity, len(sites))]):
        name = receiving[index]
        kind = draws.choice(FORMATS)
        giver, taker = steps[index - 1], steps[index]
        outcome = f"success, with {kind}"
        value = _in_format(plan.tool(index), name, giver.tool, kind)
        steps[index - 1] = replace(giver, expected_outcome=outcome)
        steps[index] = replace(taker, parameters={**taker.parameters, name: value})
        edits.append(Edit("outcome_changed", index, index, None, giver.expected_outcome, outcome))
        edits.append(
            Edit("parameter_changed", index + 1, index + 1, name, as_json(taker.parameters[name]), as_json(value))
        )
    return Change(tuple(steps), tuple(edits))


def _receiving_parameter(plan: Plan, index: int) -> str | None:
    """Return the parameter through which a step receives data and whose schema refuses some format, or None.

    Parameters that refer to a result come first, then those through which results flow, then the other required ones.
    A step whose call is refused as it stands has none.
    """
    if not plan.accepted[index]:
        return None
    tool, given = plan.tool(index), plan.steps[index].parameters
    names = [parameter.name for parameter in tool.parameters if parameter.required and parameter.name in given]
    names.sort(key=lambda name: (referred_tool(given[name]) is None, name not in FLOWING_PARAMETERS))
    giver = plan.steps[index - 1].tool
    return next((name for name in names if _in_format(tool, name, giver, FORMATS[0]) is not None), None)


def _in_format(tool: Tool, name: str, giver: str, kind: str) -> Any:
    """Return a reference to a result in some format that the parameter's schema refuses, or None."""
    for value in (f"result of {giver} as {kind}", {"result_of": giver, "format": kind}):
        if not accepts(tool, {name: value}):
            return value
    return None
