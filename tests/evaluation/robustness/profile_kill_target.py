"""What the kill test of profiles kills: `python -m tests.evaluation.robustness.profile_kill_target FOLDER`."""

from __future__ import annotations

import sys

from resilisim.evaluation.robustness.profiling import ProfileResult, profile
from tests.evaluation.toy_policies import toy_tasks


def make_profile(folder: str) -> ProfileResult:
    """Make a small profile."""
    return profile(
        ["tests.evaluation.toy_policies:Slow", "exact-optimum"],
        toy_tasks(),
        3,
        out=folder,
        bases=(0.5,),
        turns=(4,),
        flaws="redundant_operation",
        severities=("light", "severe"),
        progress=False,
    )


if __name__ == "__main__":
    make_profile(sys.argv[1])
