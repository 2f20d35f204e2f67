"""Adjusted p-values for many comparisons at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from resilisim.errors import InvalidInputError
from resilisim.evaluation.statistics import FloatArray


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that keep the chance of any false discovery at the level, whatever their dependence.

    Holm (1979): the smallest of m is multiplied by m, the next by m - 1, and so on, never below its forerunner.

    Args:
        p_values: Raw p-values; NaN stays NaN and does not count as a test.

    Returns:
        The adjusted p-values in the same order.

    Raises:
        InvalidInputError: One is not between 0 and 1.
    """

    def adjust(ordered: FloatArray) -> FloatArray:
        count = len(ordered)
        return np.asarray(np.maximum.accumulate(ordered * np.arange(count, 0, -1)))

    return _adjusted(p_values, adjust)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return p-values that keep the expected share of false discoveries at the level.

    Benjamini and Hochberg (1995), for independent or positively dependent tests: the i-th smallest of m is multiplied
    by m / i, never above its successor.

    Args:
        p_values: Raw p-values; NaN stays NaN and does not count as a test.

    Returns:
        The adjusted p-values in the same order.

    Raises:
        InvalidInputError: One is not between 0 and 1.
    """

    def adjust(ordered: FloatArray) -> FloatArray:
        count = len(ordered)
        scaled = ordered * (count / np.arange(1, count + 1))
        return np.asarray(np.minimum.accumulate(scaled[::-1])[::-1])

    return _adjusted(p_values, adjust)


def _adjusted(p_values: Sequence[float], adjust: Callable[[FloatArray], FloatArray]) -> list[float]:
    raw = np.asarray(p_values, dtype=np.float64)
    for value in raw:
        if not (math.isnan(value) or 0.0 <= value <= 1.0):
            raise InvalidInputError(f"p-value {value:g}: expected 0 to 1")
    tests = np.flatnonzero(~np.isnan(raw))
    result = np.full(len(raw), math.nan)
    order = tests[np.argsort(raw[tests], kind="stable")]
    result[order] = np.minimum(adjust(raw[order]), 1.0)
    return [float(value) for value in result]
