"""How numbers and names stand in the cells of tables."""

from __future__ import annotations

import math
from collections.abc import Mapping

from resilisim.evaluation.report.content import Cell
from resilisim.evaluation.summary import GroupSummary, format_interval, format_percent
from resilisim.statistics import Estimate

PRIVILEGED_MARK = "*"
PRIVILEGED_MEANING = "privileged: sees the state"
PRIVILEGED_NOTE = "* privileged: it is shown the state and the required tools; no fair comparison."
NOTHING = "–"
REGRET_ADDS_UP = (
    "Luck can give back what a call gave away, and a later call can lose it again, so the calls of one episode can "
    "cost more than 100 points in all."
)


def name_cell(policy: str, privileged: bool) -> Cell:
    """Return a policy's name, with the mark of privileged ones."""
    if not privileged:
        return Cell(policy)
    return Cell(policy, mark=PRIVILEGED_MARK, mark_meaning=PRIVILEGED_MEANING)


def policy_cell(row: GroupSummary) -> Cell:
    """Return the name of the policy that a summary is of, with the mark of privileged ones."""
    return name_cell(row.policy, row.privileged)


def percent(value: float, digits: int = 1) -> str:
    """Return a share in percent, with the minus sign of print."""
    return format_percent(value, digits).replace("-", "−")


def interval_text(estimate: Estimate) -> str:
    """Return an interval in percent, with the minus sign of print."""
    return format_interval(estimate).replace("-", "−")


def interval_words(estimate: Estimate) -> str:
    """Return an interval for a sentence, or why there is none."""
    return "no interval: one task only" if math.isnan(estimate.low) else interval_text(estimate)


def signed_points(value: float) -> str:
    """Return a share in points with its sign ("+3.1", "−0.4", "0.0"), or a dash for NaN."""
    if math.isnan(value):
        return NOTHING
    text = format_percent(abs(value))
    return text if float(text) == 0.0 else f"{'+' if value > 0 else '−'}{text}"


def with_interval(estimate: Estimate, signed: bool = False) -> Cell:
    """Return an estimate in percent with its interval; what is no number has none to show."""
    if math.isnan(estimate.value):
        return Cell(NOTHING)
    value = signed_points(estimate.value) if signed else percent(estimate.value)
    return Cell(value, detail=interval_text(estimate))


def plain(name: str) -> str:
    """Return a name from a record as words ("wrong_order" as "wrong order")."""
    return name.replace("_", " ")


def shares_text(counts: Mapping[str, int]) -> str:
    """Return counts as shares, the largest first ("turns 60%, loop 40%")."""
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{plain(name)} {count / total:.0%}" for name, count in ordered)
