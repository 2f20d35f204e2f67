"""Flawed workflows: seven flaw types, two methods each, three severities, seeded, with a list of what was changed."""

from __future__ import annotations

from resilisim.workflows.flaws.model import (
    DEFAULT_SEVERITY,
    EDIT_KINDS,
    FLAW_METHODS,
    FLAW_TYPES,
    SEVERITIES,
    Edit,
    Flaw,
    FlawedWorkflow,
    FlawRefusal,
    ToolSimilarity,
    check_flaw,
    functional_equivalence,
    tool_similarity,
)
from resilisim.workflows.flaws.perturber import Perturber

__all__ = [
    "DEFAULT_SEVERITY",
    "EDIT_KINDS",
    "FLAW_METHODS",
    "FLAW_TYPES",
    "SEVERITIES",
    "Edit",
    "Flaw",
    "FlawRefusal",
    "FlawedWorkflow",
    "Perturber",
    "ToolSimilarity",
    "check_flaw",
    "functional_equivalence",
    "tool_similarity",
]
