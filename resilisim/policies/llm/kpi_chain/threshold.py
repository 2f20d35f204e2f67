"""How the threshold of confidence trades precision for recall, measured on extractions whose truth is known."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from resilisim.errors import InvalidInputError
from resilisim.policies.llm.kpi_chain.entity_types import is_missing

DEFAULT_THETAS: Final = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class LabelledExtraction:
    """One extraction of one entity, and what it should have been.

    Attributes:
        confidence: What the extractor stated, 0 to 1.
        extracted: The value; None (or the word for it) if it found none.
        gold: The true value; None if the output does not hold the entity.
    """

    confidence: float
    extracted: Any = field(hash=False)
    gold: Any = field(hash=False)


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """What a threshold does.

    Attributes:
        theta: The threshold.
        accepted: Extractions with a value and enough confidence.
        correct: Those of them that are right.
        present: Extractions whose true value exists.
        precision: correct / accepted; NaN if nothing is accepted.
        recall: correct / present; NaN if nothing is present.
    """

    theta: float
    accepted: int
    correct: int
    present: int
    precision: float
    recall: float


def threshold_sweep(
    labelled: Iterable[LabelledExtraction],
    thetas: Iterable[float] = DEFAULT_THETAS,
    same: Callable[[Any, Any], bool] = operator.eq,
) -> tuple[ThresholdPoint, ...]:
    """Return precision and recall at each threshold.

    Args:
        labelled: Extractions whose truth is known.
        thetas: Thresholds; an extraction is accepted at its confidence and below, as in the test of a task.
        same: Whether an extracted value is the true one.

    Raises:
        InvalidInputError: A threshold or a confidence is not within 0 to 1.
    """
    samples = list(labelled)
    for sample in samples:
        _check("confidence", sample.confidence)
    return tuple(_point(samples, theta, same) for theta in thetas)


def _point(samples: list[LabelledExtraction], theta: float, same: Callable[[Any, Any], bool]) -> ThresholdPoint:
    _check("theta", theta)
    accepted = [sample for sample in samples if not is_missing(sample.extracted) and sample.confidence >= theta]
    correct = sum(not is_missing(sample.gold) and bool(same(sample.extracted, sample.gold)) for sample in accepted)
    present = sum(not is_missing(sample.gold) for sample in samples)
    return ThresholdPoint(
        theta, len(accepted), correct, present, _ratio(correct, len(accepted)), _ratio(correct, present)
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _check(what: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidInputError(f"{what} {value}: expected a number from 0 to 1")
