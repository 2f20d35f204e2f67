"""Verdicts at one family-wise error rate, and the machinery's ability to fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from verification import obedience
from verification.findings import Finding, failing


def finding(p_value=None, exact=None, control=False):
    return Finding("test", "SPEC 0", "statistic", p_value, exact, control)


@pytest.mark.parametrize(
    ("p_value", "num_tests", "passes"),
    [
        (2e-3, 1, True),
        (5e-4, 1, False),
        (5e-4, 4, True),  # four tests share 0.001, so each has a quarter of it
        (2e-4, 4, False),
        (0.0, 1000, False),
        (float("nan"), 1000, False),
    ],
)
def test_statistical_tests_share_the_error_rate(p_value, num_tests, passes):
    assert finding(p_value).passes(num_tests) is passes
    assert finding(p_value).is_statistical


def test_all_tests_together_keep_the_rate():
    random = np.random.Generator(np.random.Philox(2))
    smallest = random.random((100_000, 20)).min(axis=1)
    wrong = sum(not finding(p_value).passes(20) for p_value in smallest[smallest < 0.01])
    assert 0.5e-3 < wrong / 100_000 < 1.5e-3


def test_exact_tests():
    assert [finding(exact=exact).passes(1) for exact in (True, False)] == [True, False]


def test_controls_have_to_be_rejected():
    assert [finding(exact=exact, control=True).passes(1) for exact in (False, True)] == [True, False]
    # At the level of a statistical test; a control is none of those that share the rate.
    assert [finding(p_value, control=True).passes(2) for p_value in (4e-4, 6e-4)] == [True, False]
    assert not finding(float("nan"), control=True).passes(1)
    assert not finding(0.0, control=True).is_statistical


@pytest.mark.parametrize(("places", "length"), [([], 0), ([3], 1), ([2, 1, 0], 1), ([1, 0, 2], 2), ([0, 3, 1, 2], 3)])
def test_longest_ascending_run(places, length):
    assert obedience.longest_ascending_run(places) == length


@pytest.mark.long
def test_costs_that_are_wrong_are_found_out(monkeypatch):
    monkeypatch.setattr(obedience, "NUM_SEEDS", 12)
    pieces = [obedience.work((place, 0)) for place in (2, 3, 7, 11)]
    assert failing(obedience.judge(pieces)) == []
    unlimited = [[replace(one, obey=one.unlimited or one.obey) for one in piece] for piece in pieces]
    assert "obey: the worst plan" in failing(obedience.judge(unlimited))
    generous = [[replace(one, obey_coverage=min(1.0, one.obey_coverage + 0.1)) for one in piece] for piece in pieces]
    failed = failing(obedience.judge(generous))
    assert len(failed) >= 5
    assert all(name.startswith("obey_coverage") for name in failed)
    misread = [[replace(one, misread=True, obey=float(np.clip(one.obey, 0, 1))) for one in piece] for piece in pieces]
    assert failing(obedience.judge(misread)) == ["plans are read from prompts as they were made"]
