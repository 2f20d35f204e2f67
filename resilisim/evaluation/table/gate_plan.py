"""How many pairs of episodes a gate will take: gates are played again and again, with pairs like those of a pilot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from resilisim.errors import check_number
from resilisim.evaluation.table.gate import DEFAULT_ALPHA, DEFAULT_MARGIN
from resilisim.statistics.estimates import FloatArray
from resilisim.statistics.sequential import Measure, terms_until_told

NUM_GATES: Final = 60  # that are played for each number
POOL: Final = 4_000  # pairs that they are drawn from
MOST_PAIRS: Final = 256_000
_FIRST: Final = 1_000  # pairs that are drawn before more are asked for
_STEEPEST: Final = 60.0  # of the tilt that gives pairs another mean


@dataclass(frozen=True, slots=True)
class PlannedGate:
    """How many pairs it takes to tell one thing.

    Attributes:
        difference: By how much the candidate is worse, as a share; 0 where nothing has changed.
        verdict: What is told then.
        half: Pairs that suffice every second time; None if `MOST_PAIRS` do not.
        mostly: Pairs that suffice four times in five.
    """

    difference: float
    verdict: str
    half: int | None
    mostly: int | None

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def plan_gate(
    pilot: Sequence[Measure], differences: Sequence[float], margin: float = DEFAULT_MARGIN, alpha: float = DEFAULT_ALPHA
) -> list[PlannedGate]:
    """Return how many pairs it takes to see differences, and to see that nothing has changed.

    Args:
        pilot: The differences of a pilot's pairs, candidate minus baseline: as they are, and with luck taken off; or
            of pairs of which none differs, for the fewest that can be hoped for.
        differences: By how much the candidate is worse, as shares above 0.
        margin: What it may be worse by.
        alpha: The chance that a verdict is wrong.

    Raises:
        InvalidInputError: A difference is out of range.
    """
    generator = np.random.Generator(np.random.Philox(0))
    plans = []
    for difference in differences:
        check_number("difference", difference, above=0.0, below=1.0)
        pool = _with_mean(pilot, -difference, generator)
        plans.append(PlannedGate(difference, "worse", *_pairs_needed(pool, 0.0, alpha, generator)))
    if margin > 0.0:
        pool = [Measure(-each.terms, each.reach) for each in _with_mean(pilot, 0.0, generator)]
        plans.append(PlannedGate(0.0, "not worse", *_pairs_needed(pool, margin, alpha, generator)))
    return plans


def _with_mean(pilot: Sequence[Measure], mean: float, generator: np.random.Generator) -> list[Measure]:
    """Return pairs like those of a pilot whose differences have another mean: some are drawn more often (a tilt).

    A pair that the candidate alone loses is added, and one that it alone wins, in case the pilot has none.
    """
    raw = np.append(pilot[0].terms, [-1.0, 1.0])
    known = np.append(np.ones(len(pilot[0].terms)), [1e-6, 1e-6])
    low, high = -_STEEPEST, _STEEPEST
    while high - low > 1e-9:
        tilt = 0.5 * (low + high)
        low, high = (tilt, high) if _tilted(raw, known, tilt) @ raw < mean else (low, tilt)
    drawn = generator.choice(len(raw), POOL, p=_tilted(raw, known, 0.5 * (low + high)))
    pool = []
    for measure in pilot:
        terms = np.append(measure.terms, [-1.0, 1.0])[drawn]
        shifted = terms + (mean - terms.mean())  # as all measures have the same mean
        pool.append(Measure(np.clip(shifted, -measure.reach, measure.reach), measure.reach))
    return pool


def _tilted(terms: FloatArray, known: FloatArray, tilt: float) -> FloatArray:
    weights = known * np.exp(tilt * terms - np.max(tilt * terms))
    shares: FloatArray = weights / weights.sum()
    return shares


def _pairs_needed(
    pool: Sequence[Measure], beside: float, alpha: float, generator: np.random.Generator
) -> tuple[int | None, int | None]:
    needed: list[float] = []
    for _ in range(NUM_GATES):
        most, count = _FIRST, None
        while count is None and most <= MOST_PAIRS:
            count = terms_until_told(pool, beside, alpha, most, generator)
            most *= 4
        needed.append(np.inf if count is None else float(count))
        if len(needed) >= 8 and not np.isfinite(needed).any():
            break  # that many pairs do not do
    half, mostly = (float(np.quantile(needed, share, method="higher")) for share in (0.5, 0.8))
    return (int(half) if np.isfinite(half) else None), (int(mostly) if np.isfinite(mostly) else None)
