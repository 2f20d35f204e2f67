"""How numbers are written wherever people read them: shares, differences, intervals, p-values, and what is missing.

A minus is that of print; the terminal renderer writes the hyphen that programs read.
"""

from __future__ import annotations

import math
from typing import Any

from resilisim.statistics import Estimate

NO_NUMBER = "–"  # in place of a number that does not exist


def percent(value: float, digits: int = 1) -> str:
    """Return a share as percent without the sign ("83.3"), or a dash for NaN; never a negative zero."""
    if math.isnan(value):
        return NO_NUMBER
    text = f"{100.0 * value:.{digits}f}".replace("-", "−")
    return text.removeprefix("−") if float(text.removeprefix("−")) == 0.0 else text


def interval_text(estimate: Estimate) -> str:
    """Return an interval in percent ("[81.0, 85.6]"), or a dash where there is none."""
    if math.isnan(estimate.low):
        return NO_NUMBER
    return f"[{percent(estimate.low)}, {percent(estimate.high)}]"


def signed_points(value: float, digits: int = 1) -> str:
    """Return a difference of shares in points with its sign ("+3.1", "−0.4", "0.0"), or a dash for NaN."""
    text = percent(value, digits)
    return f"+{text}" if value > 0.0 and float(text) else text


def signed_interval(low: float, high: float, digits: int = 1) -> str:
    """Return an interval of points with their signs; nothing if it has no ends."""
    return "" if math.isnan(low) else f"[{signed_points(low, digits)}, {signed_points(high, digits)}]"


def p_value(value: float) -> str:
    """Return a p-value with three digits ("0.031", "< 0.001"), or a dash for NaN."""
    if math.isnan(value):
        return NO_NUMBER
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def figure(value: Any, digits: int = 4) -> str:
    """Return any value: fractions with `digits`, whole numbers in groups of three, a dash for what is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NO_NUMBER
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}f}".replace("-", "−")
    return f"{value:,}".replace("-", "−") if isinstance(value, int) else str(value)


def counted_text(number: float) -> str:
    """Return a number of things, of agents that were explored an expected one."""
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.1f}"
