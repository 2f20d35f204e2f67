"""Flawed workflows: seven flaw types, two methods each, three severities, seeded, with a list of what was changed.

An eighth stressor, `argument_passing`, breaks how a plan passes results on, by four methods.
"""

from __future__ import annotations

from resilisim.workflows.flaws.flaw import FLAW_METHODS, FLAW_TYPES, SEVERITIES, FlawedWorkflow
from resilisim.workflows.flaws.perturber import Perturber

__all__ = ["FLAW_METHODS", "FLAW_TYPES", "SEVERITIES", "FlawedWorkflow", "Perturber"]
