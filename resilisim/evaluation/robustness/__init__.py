"""How policies do as things get worse: with less reliable tools, fewer turns, and flaws in the plan of their prompt."""

from __future__ import annotations

from resilisim.evaluation.robustness.profile_result import ProfileResult
from resilisim.evaluation.robustness.profiling import ProfileInterrupted, plan_profile, profile

__all__ = ["ProfileInterrupted", "ProfileResult", "plan_profile", "profile"]
