"""Ready for tests/verification/: the check of obedience counts right, and finds out costs that are wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from verification import obedience
from verification.findings import judge


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
