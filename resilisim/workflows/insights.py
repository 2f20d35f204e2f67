"""What can be said about a plan as a whole, from its steps alone."""

from __future__ import annotations

from collections.abc import Sequence

from resilisim.workflows.types import Step


def critical_tools(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the tools of a plan that another step depends on directly, in plan order.

    Where a flaw put that step first does not matter: a plan claims of itself that it is sound.
    """
    required = {name for step in steps for name in step.requires}
    return tuple(dict.fromkeys(step.tool for step in steps if step.tool in required))


def mean_semantic_match(steps: Sequence[Step]) -> float | None:
    """Return the mean semantic match of the steps that have one; None if none has."""
    matches = [step.semantic_match for step in steps if step.semantic_match is not None]
    return sum(matches) / len(matches) if matches else None


def share_chosen_by(steps: Sequence[Step], chooser: str) -> float | None:
    """Return the share of steps whose tool one chooser put into the plan; None for a plan without steps."""
    return sum(step.chosen_by == chooser for step in steps) / len(steps) if steps else None
