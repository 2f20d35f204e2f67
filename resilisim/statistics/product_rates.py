"""Success rates that are products: a base for each tool, times a factor for each thing that lowers it.

The chance of a trial is base[unit] * prod_j factor[j]^count[j], with every base and factor between 0 and 1: the form of
the success law. Its likelihood is concave in the logarithms, so there is one maximum, and intervals follow from the
likelihood itself: a number is inside as long as the best fit that has it is not significantly worse than the best one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError
from resilisim.statistics.estimates import CONFIDENCE_LEVEL, clopper_pearson

FloatArray = NDArray[np.float64]
LEAST_FACTOR = 1e-4  # stands for 0, whose logarithm nobody can search
_SURE = 1e-12  # what is missing to certainty where something failed that could not
_TOLERANCE = 1e-3  # of the ends of intervals, as a logarithm
_MOST_STEPS = 100
_LEAST_GAIN = 1e-10  # of the logarithm of the likelihood, in a step that is not the last
_RIDGE = 1e-9


@dataclass(frozen=True, slots=True)
class Bounded:
    """An estimate between 0 and 1 with its interval."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Tell whether a value lies in the interval."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class ProductRates:
    """What trials say of bases and factors.

    Attributes:
        bases: One for each unit.
        factors: One for each factor.
    """

    bases: tuple[Bounded, ...]
    factors: tuple[Bounded, ...]


def fit_product_rates(
    unit: Sequence[int],
    counts: Sequence[Sequence[int]],
    trials: Sequence[int],
    successes: Sequence[int],
) -> ProductRates:
    """Estimate bases and factors by maximum likelihood, with intervals.

    Without factors intervals are exact (Clopper and Pearson), else they are those of the profile likelihood, whose
    level holds the better the more trials there are. A unit without successes gets the base of half a success.

    Args:
        unit: Whose base each cell of trials has, 0 to num_units - 1, each with a trial; shape (num_cells,).
        counts: How often each factor counts in a cell; shape (num_cells, num_factors).
        trials: Trials of each cell; shape (num_cells,).
        successes: How many succeeded; shape (num_cells,).

    Raises:
        InvalidInputError: The counts cannot tell the factors apart from each other and from the bases.
    """
    data = _Cells.of(unit, counts, trials, successes)
    if data.num_units == data.design.shape[1]:
        won = np.bincount(unit, successes, data.num_units)
        tried = np.bincount(unit, trials, data.num_units)
        pairs = zip(won, tried, strict=True)
        bases = (Bounded(max(s, 0.5) / n, *clopper_pearson(s, n, CONFIDENCE_LEVEL)) for s, n in pairs)
        return ProductRates(tuple(bases), ())
    if np.linalg.matrix_rank(data.design) < data.design.shape[1]:
        raise InvalidInputError("the counts do not tell the factors apart: expected trials in which each one varies")
    from scipy.special import chdtri  # see `estimates.t_quantile`

    best, most = data.maximum(data.start)
    drop = float(chdtri(1, 1.0 - CONFIDENCE_LEVEL)) / 2.0
    intervals = []
    for place in range(len(best)):
        low, high = (_end(data, best, most, drop, place, limit) for limit in (data.least[place], 0.0))
        intervals.append(
            Bounded(math.exp(best[place]), 0.0 if low <= data.least[place] else math.exp(low), math.exp(high))
        )
    return ProductRates(tuple(intervals[: data.num_units]), tuple(intervals[data.num_units :]))


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Trials as arrays; parameters are the logarithms of bases and then of factors."""

    design: FloatArray  # (num_cells, num_parameters)
    won: FloatArray  # (num_cells,)
    lost: FloatArray
    num_units: int
    least: FloatArray  # (num_parameters,)

    @classmethod
    def of(cls, unit: Any, counts: Any, trials: Any, successes: Any) -> _Cells:
        units = np.asarray(unit, dtype=np.int64)
        won, tried = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
        num_units = int(units.max()) + 1
        of_units = np.eye(num_units)[units]
        design = np.hstack([of_units, np.asarray(counts, dtype=np.float64).reshape(len(units), -1)])
        least = np.full(design.shape[1], math.log(LEAST_FACTOR))
        never = of_units.T @ won == 0.0
        least[:num_units][never] = np.log(0.5 / (of_units.T @ tried)[never])
        return cls(design, won, tried - won, num_units, least)

    @property
    def start(self) -> FloatArray:
        """Rates of the units, and factors that nearly do nothing."""
        of_units = self.design[:, : self.num_units]
        rates = (of_units.T @ self.won + 0.5) / (of_units.T @ (self.won + self.lost) + 1.0)
        return np.concatenate([np.log(rates), np.full(self.design.shape[1] - self.num_units, -0.05)])

    def log_likelihood(self, parameters: FloatArray) -> float:
        """Return the logarithm of the likelihood."""
        logs = np.minimum(self.design @ parameters, -_SURE)
        return float(self.won @ logs + self.lost @ np.log(-np.expm1(logs)))

    def maximum(self, start: FloatArray, fixed: int | None = None) -> tuple[FloatArray, float]:
        """Return the parameters of the highest likelihood, one of them fixed, and that likelihood.

        Fisher scoring on a concave function, each step cut off at the bounds and halved until it helps.
        """
        parameters, likelihood = start, self.log_likelihood(start)
        for _ in range(_MOST_STEPS):
            logs = np.minimum(self.design @ parameters, -_SURE)
            failing = -np.expm1(logs)
            odds = np.exp(logs) / failing
            gradient = self.design.T @ (self.won - self.lost * odds)
            free = ~((parameters <= self.least) & (gradient < 0.0) | (parameters >= 0.0) & (gradient > 0.0))
            if fixed is not None:
                free[fixed] = False
            if not free.any():
                break
            design = self.design[:, free]
            curvature = (design.T * ((self.won + self.lost) * odds)) @ design  # as expected: it is never flat
            curvature.flat[:: len(curvature) + 1] += _RIDGE
            step = np.linalg.solve(curvature, gradient[free])
            gain, scale = -1.0, 1.0
            while gain < 0.0 and scale > _RIDGE:
                moved = parameters.copy()
                moved[free] = np.clip(parameters[free] + scale * step, self.least[free], 0.0)
                gain, scale = self.log_likelihood(moved) - likelihood, scale / 2.0
            if gain < 0.0:
                break
            parameters, likelihood = moved, likelihood + gain
            if gain < _LEAST_GAIN:
                break
        return parameters, likelihood


def _end(data: _Cells, best: FloatArray, most: float, drop: float, place: int, limit: float) -> float:
    """Return where, between the estimate and a limit, the profile likelihood has fallen by so much."""
    from scipy.optimize import brentq

    near = best.copy()

    def beyond(value: float) -> float:
        nonlocal near
        near[place] = value
        near, likelihood = data.maximum(near.copy(), place)
        return math.sqrt(max(most - likelihood, 0.0)) - math.sqrt(drop)  # nearly a straight line

    if best[place] == limit or beyond(limit) <= 0.0:
        return limit
    near = best.copy()
    return float(brentq(beyond, best[place], limit, xtol=_TOLERANCE))
