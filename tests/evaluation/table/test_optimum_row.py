"""The exact optimum is what others are measured by: its share of itself is 100, with no interval, and its rank is 1."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from resilisim.evaluation import evaluate
from resilisim.evaluation.table.leaderboard import read_leaderboard
from resilisim.reporting import write_report
from tests.evaluation.toy_policies import Reading, toy_tasks


@pytest.mark.parametrize("seeds", [1, 5])
def test_its_share_is_exact_and_its_rank_is_one(seeds: int, tmp_path: Path) -> None:
    policies = ["random", Reading, "exact-optimum", "plan-follower"]
    result = evaluate(policies, toy_tasks(3), "optimal", seeds, out=tmp_path)
    row = result.row("exact-optimum", "optimal")
    assert (row.is_optimum, row.adjusted_share.value) == (True, 1.0)
    assert math.isnan(row.adjusted_share.low)
    assert row.to_mapping()["adjusted_share"]["low"] is None
    others = [other for other in result.rows if other.policy != "exact-optimum"]
    assert not any(other.is_optimum for other in others)
    assert not any(math.isnan(other.adjusted_share.low) for other in others)
    first, *rest = read_leaderboard([tmp_path]).sections["optimal"]
    assert (first.label, first.rank, first.rank_range) == ("exact-optimum", 1, (1, 1))
    assert [other.rank for other in rest] == [2, 3, 4]
    assert "100.0" in str(write_report(result.directory).read_text())


def test_a_policy_of_that_name_is_not_taken_for_it() -> None:
    class Named(Reading):
        name = "exact-optimum"
        privileged = True

    result = evaluate(Named, toy_tasks(3), "optimal", 2)
    assert not result.rows[0].is_optimum
