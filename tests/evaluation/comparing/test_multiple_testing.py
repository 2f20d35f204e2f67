"""Adjusted p-values against their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from resilisim.errors import InvalidInputError
from resilisim.evaluation.comparing.multiple_testing import benjamini_hochberg, holm

p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def naive_holm(p_values: list[float]) -> list[float]:
    """For each hypothesis: the largest, over it and all with smaller p-values, of p times those not smaller than p."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    rank = {place: number for number, place in enumerate(order)}
    return [
        min(
            1.0,
            max((len(p_values) - rank[other]) * p_values[other] for other in order if rank[other] <= rank[place]),
        )
        for place in range(len(p_values))
    ]


@given(p_lists)
def test_holm_is_its_definition_and_never_below_the_raw_value(p_values):
    adjusted = holm(p_values)
    assert adjusted == pytest.approx(naive_holm(p_values))
    assert all(after >= before for after, before in zip(adjusted, p_values, strict=True))


@given(p_lists)
def test_benjamini_hochberg_agrees_with_scipy_and_lies_below_holm(p_values):
    adjusted = benjamini_hochberg(p_values)
    assert adjusted == pytest.approx(list(false_discovery_control(p_values, method="bh")))
    for after, before, strict in zip(adjusted, p_values, holm(p_values), strict=True):
        assert before <= after + 1e-15
        assert after <= strict + 1e-15


def test_the_example_of_a_textbook():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_nan_is_no_test_and_nonsense_is_refused(adjust):
    adjusted = adjust([math.nan, 0.01, 0.02])
    assert math.isnan(adjusted[0])
    assert adjusted[1:] == adjust([0.01, 0.02])
    assert adjust([]) == []
    with pytest.raises(InvalidInputError, match=r"p-value 1\.5"):
        adjust([1.5])
