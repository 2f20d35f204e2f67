"""What recorded calls show that a fitted law leaves out: drift, broken tools, failures in a row, errors of their own.

Each sign is a test at the same level. Those on successes are efficient scores: how much better the calls would fit if
one more thing changed their chances, apart from what the fitted bases and factors can take up themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

STRIKING = 3.0  # standard deviations from which on a sign is told; by chance alone one in 370 calls for it
_PERMUTATIONS = 2000
_LEAST_SHARE = 0.0027  # the same level, of permutations
_SURE = 1e-6  # nearest that a chance comes to 0 and 1
_SEED = 20260  # of permutations: the same calls always say the same


@dataclass(frozen=True, slots=True, eq=False)
class FittedCalls:
    """Calls in the order in which they were recorded, with the chances that the fitted law gives them.

    Attributes:
        success: (num_calls,) 1 or 0.
        chance: (num_calls,) of success.
        design: (num_calls, num_parameters) what the law's bases and factors took up: one column for each.
        position: (num_calls,) calls before it in its episode.
        own_failures: (num_calls,) failures of the same tool before it in its episode.
        follows: (num_calls,) whether the call before it stands before it in the same episode, too.
    """

    success: FloatArray
    chance: FloatArray
    design: FloatArray
    position: FloatArray
    own_failures: FloatArray
    follows: NDArray[np.bool_]

    def score(self, covariate: FloatArray) -> float | None:
        """Return in standard deviations how much more often calls succeeded the larger a covariate was.

        None where it cannot be told from what bases and factors say.
        """
        chance = np.clip(self.chance, _SURE, 1.0 - _SURE)
        weight = chance / (1.0 - chance)  # information about the logarithm of a chance
        scaled = self.design * np.sqrt(weight)[:, None]
        explained, *_ = np.linalg.lstsq(scaled, covariate * np.sqrt(weight), rcond=None)
        rest = covariate - self.design @ explained
        information = float(weight @ rest**2)
        if information <= 1e-9 * max(1.0, float(weight @ covariate**2)):
            return None
        return float(((self.success - chance) / (1.0 - chance)) @ rest) / math.sqrt(information)


def signs_of_order(calls: FittedCalls) -> Iterator[str]:
    """Yield what does not look as if calls were drawn by the law one by one, a sentence each."""
    number = np.arange(len(calls.success), dtype=np.float64)
    surprise = calls.success - calls.chance
    before = np.where(calls.follows, np.concatenate([[0.0], surprise[:-1]]), 0.0)
    later, further = calls.score(number), calls.score(calls.position)
    again, in_row = calls.score(calls.own_failures), calls.score(before)
    if later is not None and abs(later) >= STRIKING:
        yield f"Later calls succeeded {_more(later)} often ({_shown(later)}): the law has no change over a run."
    if further is not None and abs(further) >= STRIKING:
        yield (
            f"Calls further into an episode succeeded {_more(further)} often than those at its beginning "
            f"({_shown(further)}), as with drift: the law has none."
        )
    if again is not None and again <= -STRIKING:
        yield (
            f"Tools that have failed in an episode fail again more often than others ({_shown(again)}), as tools do "
            "that are broken, or where the same call fails again: the law has neither."
        )
    elif in_row is not None and in_row >= STRIKING:
        yield (
            f"Failures come in a row more often than by chance ({_shown(in_row)}), as in outages, or where the same "
            "call fails again: the law has neither."
        )


def what_order_hides(calls: FittedCalls) -> Iterator[str]:
    """Yield what cannot be told although it may be, because calls came in the same order in every episode."""
    if calls.score(calls.position) is None:
        yield "Drift cannot be told: a call's place in its episode follows from its tool and the failures before it."
    if calls.score(calls.own_failures) is None:
        yield "Broken tools cannot be told: too few calls of a tool that had failed, or no others after failures."


def errors_differ(errors: Sequence[Mapping[str, int]]) -> bool:
    """Return whether tools differ in their errors by more than chance, as a permutation test of chi-square says it.

    Args:
        errors: Of each tool, how often each code came.
    """
    codes = sorted({code for counted in errors for code in counted})
    table = np.array([[counted.get(code, 0) for code in codes] for counted in errors if counted], dtype=np.int64)
    if min(table.shape, default=0) < 2 or table.size == 0:
        return False
    of_tool = np.repeat(np.arange(len(table)), table.sum(axis=1))
    of_code = np.concatenate([np.repeat(np.arange(len(codes)), row) for row in table])
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    observed = float(((table - expected) ** 2 / expected).sum())
    generator, as_large = np.random.default_rng(_SEED), 0
    most = math.floor(_LEAST_SHARE * (_PERMUTATIONS + 1)) - 1
    for _ in range(_PERMUTATIONS):
        cells = of_tool * len(codes) + generator.permutation(of_code)
        drawn = np.bincount(cells, minlength=table.size).reshape(table.shape)
        as_large += float(((drawn - expected) ** 2 / expected).sum()) >= observed - 1e-9
        if as_large > most:
            return False
    return True


def _more(score: float) -> str:
    return "more" if score > 0.0 else "less"


def _shown(score: float) -> str:
    return f"{score:+.1f} standard deviations"
