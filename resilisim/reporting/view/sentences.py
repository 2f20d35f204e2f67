"""What the pages of `resilisim view` say in one sentence."""

from __future__ import annotations

import math

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.statistics.comparison import Comparison
from resilisim.tables.numbers import percent, signed_interval, signed_points


def comparison_sentence(comparison: Comparison) -> str:
    """Say which of two agents is better and by how much, or that nobody can tell."""
    best = comparison.best
    a, b, difference = comparison.label_a, comparison.label_b, best.difference
    low, high = best.interval
    if math.isnan(difference):
        return f"{a} and {b} have no pair of episodes that could be compared"
    better, worse = (a, b) if difference >= 0.0 else (b, a)
    points = f"{percent(abs(difference))} points"
    if math.isnan(low):
        if difference == 0.0:
            return f"{a} and {b} are equally good on these tasks"
        return f"{better} is better than {worse} by {points}, without an interval"
    if low > 0.0 or high < 0.0:
        ends = sorted((abs(low), abs(high)))
        return f"{better} is better than {worse} by {points} [{percent(ends[0])}, {percent(ends[1])}]"
    return f"No difference can be told: {a} − {b} is {signed_points(difference)} points {signed_interval(low, high)}"


def episodes_sentence(name_a: str, a: EpisodeRecord, name_b: str, b: EpisodeRecord) -> str:
    """Say what became of two episodes on the same draws."""
    if a["outcome"] == b["outcome"]:
        both = "Both succeeded" if a["outcome"] else "Both lost"
        if "no_ceiling" in a or "no_ceiling" in b:
            return f"{both} on the same draws"
        lost = [percent(record["regret"]) for record in (a, b)]
        return f"{both} on the same draws; calls cost {name_a} {lost[0]} points, {name_b} {lost[1]}"
    won, lost_by = (name_a, name_b) if a["outcome"] else (name_b, name_a)
    return f"{won} succeeded where {lost_by} lost, on the same draws"
