"""What a flaw is: its name, how strong it is, what it changed, and why a workflow may not carry it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resilisim.errors import unknown_name
from resilisim.workflows.types import Workflow

# Flaw type -> its two methods (R C.3).
FLAW_METHODS: Mapping[str, tuple[str, str]] = {
    "sequential_order": ("swap", "dependency_violation"),
    "tool_misuse": ("semantic_similarity", "category_mismatch"),
    "parameter_error": ("missing_parameters", "type_mismatch"),
    "missing_step": ("middle_step_removal", "validation_removal"),
    "redundant_operation": ("duplication", "unnecessary_addition"),
    "logic_discontinuity": ("format_mismatch", "unrelated_insertion"),
    "semantic_drift": ("semantic_mismatch", "progressive_drift"),
}
FLAW_TYPES: tuple[str, ...] = tuple(FLAW_METHODS)
SEVERITIES = ("light", "moderate", "severe")
DEFAULT_SEVERITY = "moderate"

# What an edit did. "where" counts steps from 1.
EDIT_KINDS = (
    "swapped",  # the step and the one after it changed places
    "moved",  # the step stands before one that it should follow
    "replaced",  # another tool stands there
    "parameter_dropped",
    "parameter_changed",
    "outcome_changed",  # the step is said to give something else
    "reason_changed",  # the reason names another tool, because the one that it named is gone
    "removed",
    "inserted",
    "duplicated",
)


@dataclass(frozen=True, slots=True)
class Flaw:
    """The name of a flaw.

    Attributes:
        type: One of `FLAW_TYPES`.
        method: One of the two methods of that type.
        severity: One of `SEVERITIES`.
    """

    type: str
    method: str
    severity: str

    def __str__(self) -> str:
        """Return type, method and severity with slashes between them."""
        return f"{self.type}/{self.method}/{self.severity}"


@dataclass(frozen=True, slots=True)
class Edit:
    """One change from the original workflow to the flawed one.

    Attributes:
        what: One of `EDIT_KINDS`.
        step: Number of the step in the flawed workflow, from 1; for a removed step, the number of the step that it
            stood before (one more than there are, if it was the last).
        original_step: Number of the step in the original workflow; None for a step that is not there.
        parameter: Name of the parameter, for changes of parameters.
        before: What stood there: a tool, two tools in their order (for a step that was swapped or moved), a parameter's
            value as JSON, or an outcome; None for nothing.
        after: What stands there now, in the same form.
    """

    what: str
    step: int
    original_step: int | None
    parameter: str | None
    before: str | None
    after: str | None

    def to_mapping(self) -> dict[str, Any]:
        """Return the edit as plain JSON values: what, where, before, after."""
        where = {"step": self.step, "original_step": self.original_step, "parameter": self.parameter}
        return {"what": self.what, "where": where, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True)
class FlawedWorkflow:
    """A workflow with a flaw in it.

    Attributes:
        original: The workflow that it was made from.
        workflow: The flawed one. Its `planner` and `predicted_success_probability` are those of the original: what the
            plan claims, not what it is worth.
        flaw: The flaw's name.
        edits: What was changed, in the order of the steps.
    """

    original: Workflow
    workflow: Workflow
    flaw: Flaw
    edits: tuple[Edit, ...]

    def flaw_mapping(self) -> dict[str, Any]:
        """Return the flaw as it stands in records: type, method, severity, edits."""
        return {
            "type": self.flaw.type,
            "method": self.flaw.method,
            "severity": self.flaw.severity,
            "edits": [edit.to_mapping() for edit in self.edits],
        }


@dataclass(frozen=True, slots=True)
class FlawRefusal:
    """Why a workflow cannot carry a flaw; a value, because for many short workflows it is the right answer.

    Attributes:
        instance_id: The workflow's task.
        type: Flaw type.
        method: The method that was asked for; None if either would have done.
        severity: Severity.
        reason: One line.
    """

    instance_id: str
    type: str
    method: str | None
    severity: str
    reason: str

    def __str__(self) -> str:
        """Return the refusal as one line."""
        return f"{self.instance_id} cannot carry {self.type} ({self.method or 'either method'}): {self.reason}"


def check_flaw(flaw_type: str, severity: str, method: str | None = None) -> None:
    """Refuse names that do not exist.

    Raises:
        InvalidInputError: An unknown flaw type, severity or method; the text gives the nearest valid name.
    """
    if flaw_type not in FLAW_METHODS:
        raise unknown_name("flaw", flaw_type, FLAW_TYPES)
    if severity not in SEVERITIES:
        raise unknown_name("severity", severity, SEVERITIES)
    if method is not None and method not in FLAW_METHODS[flaw_type]:
        raise unknown_name("method", method, FLAW_METHODS[flaw_type], f"flaw {flaw_type!r}")


def num_edits(severity: str, num_sites: int) -> int:
    """Return how many of the places that could carry a flaw get it: one, half of them (rounded up), or all."""
    if severity == "light":
        return min(1, num_sites)
    return num_sites if severity == "severe" else math.ceil(num_sites / 2)


def num_extra_steps(severity: str, spare_turns: int) -> int:
    """Return how many useless steps are put into a plan that leaves so many turns to spare: 1, half of them, all.

    Useless steps hurt by the turns that they take, so their number is measured in turns; a plan that leaves few to
    spare gets at least 1, 2 or 3.
    """
    if severity == "light":
        return 1
    return max(3, spare_turns) if severity == "severe" else max(2, math.ceil(spare_turns / 2))
