"""How policies do as things get worse: with less reliable tools, fewer turns, and flaws in the plan of their prompt."""

from __future__ import annotations

from resilisim.evaluation.robustness.profiling import profile

__all__ = ["profile"]
