"""Precision and recall at each threshold, on numbers that can be counted by hand."""

from __future__ import annotations

import math

import pytest

from resilisim.errors import InvalidInputError
from resilisim.policies.llm.kpi_chain import LabelledExtraction, threshold_sweep

LABELLED = [
    LabelledExtraction(0.95, "a", "a"),
    LabelledExtraction(0.9, "b", "b"),
    LabelledExtraction(0.8, "c", "wrong"),
    LabelledExtraction(0.7, "d", "d"),
    LabelledExtraction(0.6, "e", None),
    LabelledExtraction(0.5, "f", "f"),
    LabelledExtraction(0.4, "g", "g"),
    LabelledExtraction(0.3, None, "h"),
    LabelledExtraction(0.99, "null", "i"),
    LabelledExtraction(0.99, None, None),
]


def test_exact_values_at_each_threshold():
    points = threshold_sweep(LABELLED)
    assert [(point.theta, point.accepted, point.correct, point.present) for point in points] == [
        (0.5, 6, 4, 8),
        (0.6, 5, 3, 8),
        (0.7, 4, 3, 8),
        (0.8, 3, 2, 8),
        (0.9, 2, 2, 8),
    ]
    assert [point.precision for point in points] == [4 / 6, 3 / 5, 3 / 4, 2 / 3, 1.0]
    assert [point.recall for point in points] == [4 / 8, 3 / 8, 3 / 8, 2 / 8, 2 / 8]


def test_recall_never_rises_with_the_threshold():
    recalls = [point.recall for point in threshold_sweep(LABELLED, [step / 100 for step in range(101)])]
    assert recalls == sorted(recalls, reverse=True)


def test_nothing_to_divide_by_is_nan():
    (point,) = threshold_sweep([LabelledExtraction(0.1, "a", None)], [0.5])
    assert math.isnan(point.precision)
    assert math.isnan(point.recall)


def test_what_counts_as_the_same_can_be_said():
    labelled = [LabelledExtraction(0.9, " KIM", "Kim")]
    assert threshold_sweep(labelled, [0.5])[0].correct == 0
    same = threshold_sweep(labelled, [0.5], lambda found, true: found.strip().lower() == true.lower())
    assert same[0].precision == 1.0


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_numbers_out_of_range(value):
    with pytest.raises(InvalidInputError, match="from 0 to 1"):
        threshold_sweep(LABELLED, [value])
    with pytest.raises(InvalidInputError, match="confidence"):
        threshold_sweep([LabelledExtraction(value, "a", "a")])
