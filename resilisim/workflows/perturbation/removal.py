"""Missing steps: plans from which something needed was taken."""

from __future__ import annotations

import re

from resilisim.seeding import Draws
from resilisim.workflows.perturbation.plan import Change, Plan, Unfit
from resilisim.workflows.perturbation.references import redirect
from resilisim.workflows.perturbation.types import Edit, num_edits

# Operations that make sure of quality, in any library; to invalidate or to check out is something else.
_VERIFYING = re.compile(r"(?<!in)valid|verif|check(?!out|point)|inspect|audit", re.IGNORECASE)


def middle_step_removal(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Remove required steps from between the first and the last step."""
    inner = [index for index in plan.required_steps() if 0 < index < len(plan.steps) - 1]
    if not inner:
        return Unfit("no required step stands between the first and the last one")
    return _without(plan, draws.shuffled(inner)[: num_edits(severity, len(inner))])


def validation_removal(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Remove required steps that check, and with growing severity what stands around them.

    Light: one checking step. Moderate: all of them, each with the step after it, which works on what was checked.
    Severe: also the step before each. The first and the last step of the plan stay unless they check themselves, and
    one step always stays.
    """
    checks = [index for index in plan.required_steps() if is_verifying(plan.tool(index).operation)]
    if not checks:
        return Unfit("no required step validates or verifies anything")
    if len(checks) == len(plan.steps):
        return Unfit("every step validates, so nothing would be left")
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


def _without(plan: Plan, removed: list[int]) -> Change:
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
