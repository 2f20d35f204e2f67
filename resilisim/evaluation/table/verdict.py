"""The sentence that says what a difference between two agents comes to; gates, comparisons and reports end with it."""

from __future__ import annotations

import math
from typing import Final

from resilisim.statistics.comparison import Comparison
from resilisim.tables.numbers import percent, signed_interval, signed_points

_SAME: Final = 1e-9  # rates that differ by less are the same


def difference_sentence(
    one: str, other: str, difference: float, low: float, high: float, margin: float = 0.0, is_exact: bool = False
) -> str:
    """Say in plain words how one agent does against another.

    Args:
        one: Whose rate comes first.
        other: Whose rate is subtracted.
        difference: Rate of the one minus rate of the other, as a share.
        low: The least that it can be.
        high: The most; NaN for both where there is no interval.
        margin: By how much the one may be worse; 0 asks for no such thing.
        is_exact: Whether there is no chance in it.
    """
    if math.isnan(low) or math.isnan(high):
        return f"nothing can be said about {one} and {other} yet: {_signed(difference)} points, without an interval"
    if is_exact and high - low <= _SAME:
        if abs(difference) <= _SAME:
            return f"{one} and {other} have the same success rate, exactly"
        within = (
            f", within the margin of {100.0 * margin:g} points"
            if -margin - _SAME <= difference < 0.0 and margin
            else ""
        )
        word = "better" if difference > 0.0 else "worse"
        return (
            f"{one} is {word} than {other} by {percent(abs(difference), _digits(difference))} points, exactly{within}"
        )
    if low > _SAME or high < -_SAME:
        word, ends = ("better", (low, high)) if low > 0.0 else ("worse", (-high, -low))
        size = f"{percent(abs(difference))} points [{percent(ends[0])}, {percent(ends[1])}]"
        within = f", within the margin of {100.0 * margin:g} points" if word == "worse" and low >= -margin else ""
        return f"{one} is {word} than {other} by {size}{within}"
    told = f"{_signed(difference)} points {signed_interval(low, high)}".replace("−", "-")
    if margin and low >= -margin - _SAME:
        return f"{one} is not worse than {other} by more than {100.0 * margin:g} points: {told}"
    if margin:
        return f"it cannot be told yet whether {one} is worse than {other}: {told}"
    return f"no difference is shown between {one} and {other}: {told}"


def comparison_sentence(comparison: Comparison) -> str:
    """Say in plain words how the first of two agents does against the second, by the method to rely on."""
    best, pairs = comparison.best, comparison.pairs
    is_exact = pairs.is_exact and pairs.num_tasks == 1
    told = difference_sentence(
        comparison.label_a, comparison.label_b, best.difference, *best.interval, is_exact=is_exact
    )
    return f"{told[0].upper()}{told[1:]}" if told.startswith(("no ", "nothing ")) else told


def _signed(difference: float) -> str:
    return signed_points(difference).replace("−", "-")


def _digits(difference: float) -> int:
    """Return how many digits an exact difference in points is shown with: a small one with more."""
    return 1 if abs(difference) >= 0.001 else 3
