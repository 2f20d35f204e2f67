"""The check of fitted laws, small, and that it can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from verification import law_fit
from verification.findings import judge


@pytest.mark.long
def test_intervals_hold_what_was_drawn_and_a_wrong_number_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law_fit, "FITS", 12)
    monkeypatch.setattr(law_fit, "LAWS", law_fit.LAWS[1:2])
    monkeypatch.setattr(law_fit, "PIECES", 1)
    judged = judge(law_fit.judge([law_fit.work((0, 0, 0))]))
    assert [one.finding.test for one in judged if not one.passed] == []
    assert sum(one.finding.control for one in judged) == 1
    # A fit of another law's calls is found out.
    monkeypatch.setattr(law_fit, "truth", lambda law: {"store_parser": replace(law, base=0.75).base})
    monkeypatch.setattr(law_fit, "LAWS", (law_fit.LAWS[0],))
    other = law_fit.Counted(0, *(3 * [law_fit.Counter(store_parser=12)]))
    assert not judge(law_fit.judge([other]))[0].passed
