"""The closed forms of failure models, and that each control is told apart."""

from __future__ import annotations

import pytest

from verification import failure_models
from verification.findings import judge


def test_every_closed_form_holds_and_every_control_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_models, "EPISODES", 60)
    brought = [failure_models.work(job) for job in failure_models.jobs(0)]
    judged = judge(failure_models.judge(brought))
    assert [one.finding.test for one in judged if not one.passed] == []
    assert sum(one.finding.control for one in judged) == len(failure_models.CASES)
