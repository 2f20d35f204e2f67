"""How an episode of Workflow-v0 ended: what infos say of it."""

from __future__ import annotations

from collections.abc import Mapping

from resilisim.envs.workflow.laws import DEADLOCK
from resilisim.simulator.state import ENDED_BY

# Key of an info at the end of an episode -> field of the episode's record.
END_FIELDS: Mapping[str, str] = {
    "success": "success",
    "full_success": "full_success",
    "score": "score",
    "coverage": "coverage",
    "sequence": "order",
    "steps": "steps",
    "ended": "ended",
    "episode_return": "total",
    "task": "final_task",
}


def ended_by(code: int) -> str | None:
    """Return what a code of `ended` means; None while the episode runs."""
    return "deadlock" if code == DEADLOCK else ENDED_BY[code]
