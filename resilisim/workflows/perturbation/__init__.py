"""Flawed workflows: seven flaw types, two methods each, three severities, seeded, with a list of what was changed."""

from __future__ import annotations

from resilisim.workflows.perturbation.perturber import METHODS, Perturber
from resilisim.workflows.perturbation.similarity import ToolSimilarity, functional_equivalence, tool_similarity
from resilisim.workflows.perturbation.types import (
    DEFAULT_SEVERITY,
    EDIT_KINDS,
    FLAW_METHODS,
    FLAW_TYPES,
    SEVERITIES,
    Edit,
    Flaw,
    FlawedWorkflow,
    FlawRefusal,
    check_flaw,
)

__all__ = [
    "DEFAULT_SEVERITY",
    "EDIT_KINDS",
    "FLAW_METHODS",
    "FLAW_TYPES",
    "METHODS",
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
