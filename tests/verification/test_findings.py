"""Verdicts at one family-wise error rate, and the machinery's ability to fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from verification import obedience
from verification.findings import Finding, holm, judge


def finding(p_value=None, exact=None, control=False):
    return Finding("test", "SPEC 0", "statistic", p_value, exact, control)


def passed(*findings, error_rate=0.05):
    return [one.passed for one in judge(findings, error_rate)]


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([], []),
        ([0.01], [True]),
        ([0.06], [False]),
        # The example of the definition: compare the smallest with rate / 4, the next with rate / 3, ...
        ([0.01, 0.04, 0.03, 0.005], [True, False, False, True]),
        ([0.0125, 0.0166, 0.025, 0.05], [True, True, True, True]),
        ([0.013, 0.001], [True, True]),
        ([0.04, 0.04], [False, False]),
        ([float("nan"), 0.9], [True, False]),
    ],
)
def test_holm(p_values, rejected):
    assert holm(p_values, 0.05) == rejected


def test_holm_keeps_its_rate():
    random = np.random.Generator(np.random.Philox(2))
    wrong = sum(any(holm(list(random.random(20)), 0.1)) for _ in range(3000))
    assert 0.07 < wrong / 3000 < 0.12


def test_statistical_tests_are_judged_together():
    assert passed(finding(0.03)) == [False]
    assert passed(finding(0.03), finding(0.9)) == [True, True]
    assert passed(finding(0.001), finding(0.9)) == [False, True]
    assert passed(finding(float("nan"))) == [False]


def test_exact_tests():
    assert passed(finding(exact=True), finding(exact=False)) == [True, False]


def test_controls_have_to_be_rejected():
    assert passed(finding(exact=False, control=True), finding(exact=True, control=True)) == [True, False]
    assert passed(finding(0.9), finding(0.9), finding(0.02, control=True)) == [True, True, True]
    assert passed(finding(0.9), finding(0.9), finding(0.03, control=True)) == [True, True, False]
    # A control is not one of the tests that share the error rate.
    assert passed(finding(0.03), finding(0.0, control=True)) == [False, True]


@pytest.mark.parametrize(("places", "length"), [([], 0), ([3], 1), ([2, 1, 0], 1), ([1, 0, 2], 2), ([0, 3, 1, 2], 3)])
def test_longest_ascending_run(places, length):
    assert obedience.longest_ascending_run(places) == length


def test_costs_that_are_wrong_are_found_out(monkeypatch):
    monkeypatch.setattr(obedience, "NUM_SEEDS", 12)
    pieces = [obedience.work((place, 0)) for place in (2, 3, 7, 11)]
    assert all(one.passed for one in judge(obedience.judge(pieces)))
    unlimited = [[replace(one, obey=one.unlimited or one.obey) for one in piece] for piece in pieces]
    assert "obey: the worst plan" in {one.finding.test for one in judge(obedience.judge(unlimited)) if not one.passed}
    generous = [[replace(one, obey_coverage=min(1.0, one.obey_coverage + 0.1)) for one in piece] for piece in pieces]
    failed = [one.finding.test for one in judge(obedience.judge(generous)) if not one.passed]
    assert len(failed) >= 5
    assert all(name.startswith("obey_coverage") for name in failed)
    misread = [[replace(one, misread=True, obey=float(np.clip(one.obey, 0, 1))) for one in piece] for piece in pieces]
    assert [one.finding.test for one in judge(obedience.judge(misread)) if not one.passed] == [
        "plans are read from prompts as they were made"
    ]
