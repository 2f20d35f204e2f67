"""Bounds of a mean that hold however often one looks, for gates that stop as soon as the answer is clear.

A gate that plays some more episodes whenever it cannot tell yet, and asks a usual interval each time, is wrong far more
often than the interval says. The bounds here hold after any number of passes over the tasks at once: with 95%, say, the
mean never leaves them, so it does not matter when one stops, or why.

They come from betting (Waudby-Smith and Ramdas 2024, section 4; Ville 1939). Somebody who holds that the mean is `m`
has to take bets of the factor 1 + lambda (term - m), and cannot expect to lose more than was put in; a mean against
which somebody has won 40-fold is refuted at 1 in 40. Money is put on several lambdas, and on several ways to measure
the same mean, at once: so luck is taken off where that helps, and nobody has to say beforehand whether it will.

Terms of different tasks may have different means. Within a pass over the tasks the product of all bets is at most 1 on
average all the same, as a geometric mean is below an arithmetic one; so is it if from each term is taken by how much
its task has differed from the others in earlier passes, as long as that adds up to 0 over a pass. The mean is that of
the tasks that were played, and says nothing about others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from resilisim.statistics.estimates import FloatArray, IntArray

STAKES: Final = 0.95 * 0.5 ** np.arange(8)  # shares of all that can be bet: the last serve differences of a point
LARGEST_LEAD: Final = 0.25  # by which a task is taken to differ from the others
LEAD_WEIGHT: Final = 2.0  # passes in which no task differs, that the played ones are drawn to
_PRECISION: Final = 1e-6  # of an end
_LARGEST: Final = 1.0  # no rates differ by more


@dataclass(frozen=True, slots=True)
class Measure:
    """One way to measure what has the same mean in all of them.

    Attributes:
        terms: Shape (num_terms,).
        reach: No term is further off 0 than this.
    """

    terms: FloatArray
    reach: float


def mean_bounds(
    measures: Sequence[Measure], task: IntArray, turn: IntArray, alpha: float = 0.05
) -> tuple[float, float]:
    """Return the least and the most that a mean can be, at the end of whatever pass one looks.

    Args:
        measures: Ways to measure it, at least one.
        task: Place of the task of each term, (num_terms,).
        turn: Which pass over the tasks each term is of, (num_terms,); what is larger came later.
        alpha: The chance that the mean ever leaves such bounds, half of it on either side.
    """
    order = np.argsort(turn, kind="stable")
    _, starts = np.unique(turn[order], return_index=True)
    ordered = [Measure(measure.terms[order], measure.reach) for measure in measures]
    bets = [_Bets.of(measure, task[order], starts) for measure in ordered]
    return _least(bets, alpha, 1.0), -_least(bets, alpha, -1.0)


@dataclass(frozen=True, slots=True)
class _Bets:
    """What is bet on: terms, how far each can fall, and how often each such pair occurs; shape (num_different,)."""

    terms: FloatArray
    reach: FloatArray
    count: FloatArray

    @classmethod
    def of(cls, measure: Measure, task: IntArray, starts: IntArray) -> _Bets:
        leads = leads_of(measure.terms, task, starts)
        largest = np.repeat(
            np.maximum.reduceat(np.abs(leads), starts) if len(leads) else leads,
            np.diff([*starts, len(leads)]),
        )
        each = np.stack([measure.terms - leads, measure.reach + largest])
        different, count = np.unique(each, axis=1, return_counts=True)
        return cls(different[0], different[1], count.astype(np.float64))

    def log_won(self, mean: float, sign: float) -> FloatArray:
        """Return the logarithm of what each stake has won on a mean above this one (sign 1) or below it (-1)."""
        most = (sign * self.terms - sign * mean) / (self.reach + sign * mean)
        won: FloatArray = np.log1p(STAKES[:, None] * most) @ self.count
        return won


def leads_of(terms: FloatArray, task: IntArray, starts: IntArray) -> FloatArray:
    """Return by how much the task of each term has differed from the others before its pass; shape (num_terms,).

    The leads of a pass add up to 0. `starts` are the places at which passes begin.
    """
    leads, size = np.zeros(len(terms)), int(task.max()) + 1 if len(task) else 0
    totals, counts = np.zeros(size), np.zeros(size)
    for first, end in zip(starts, [*starts[1:], len(terms)], strict=True):
        own = task[first:end]
        if first:
            overall = totals.sum() / counts.sum()
            lead = (totals[own] - overall * counts[own]) / (counts[own] + LEAD_WEIGHT)
            lead = np.clip(lead, -LARGEST_LEAD, LARGEST_LEAD)
            leads[first:end] = lead - lead.mean()
        totals += np.bincount(own, terms[first:end], size)
        counts += np.bincount(own, minlength=size)
    return leads


def _least(bets: Sequence[_Bets], alpha: float, sign: float) -> float:
    """Return the least mean that is not refuted, of the terms with that sign."""
    needed = math.log(2.0 / alpha)
    low, high = -_LARGEST, _LARGEST
    while high - low > _PRECISION:
        middle = 0.5 * (low + high)
        won = log_mean(np.stack([each.log_won(sign * middle, sign) for each in bets]).reshape(-1, 1))
        low, high = (middle, high) if won[0] >= needed else (low, middle)
    return low


def log_mean(logs: FloatArray) -> FloatArray:
    """Return the logarithm of the mean over the first axis of numbers given by their logarithms."""
    largest = logs.max(axis=0)
    mean: FloatArray = largest + np.log(np.exp(logs - largest).mean(axis=0))
    return mean


def terms_until_told(
    measures: Sequence[Measure], beside: float, alpha: float, most: int, generator: np.random.Generator
) -> int | None:
    """Draw terms until their mean is known to be below a number; return how many it took, None if more than `most`.

    Args:
        measures: What is drawn from, with replacement: place k of all measures is one thing measured in several ways.
        beside: The number.
        alpha: The chance that the mean ever leaves its bounds.
        most: Terms after which to stop.
        generator: Where chance comes from.
    """
    drawn = generator.integers(len(measures[0].terms), size=most)
    won = []
    for measure in measures:
        bet = (beside - measure.terms[drawn]) / (measure.reach + abs(beside))
        won += [np.cumsum(np.log1p(stake * bet)) for stake in STAKES]
    told = log_mean(np.array(won)) >= math.log(2.0 / alpha)
    return int(np.argmax(told)) + 1 if told.any() else None
