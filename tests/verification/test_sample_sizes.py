"""The table of sample sizes: its parts are those of the definitions, and its files are read again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks import contest_files, sample_sizes, small_samples
from resilisim.statistics import compare_pairs
from resilisim.statistics.comparison import PAIRED, PAIRED_LUCK_ADJUSTED
from resilisim.statistics.power import SAME_TASKS, variance_parts
from verification import law_fit
from verification.contest import NUM_WEIGHTS, Contest, pairs_of
from verification.contestants import CONTESTANTS
from verification.experiments import world_of
from verification.findings import judge

NAMES = [one.name for one in CONTESTANTS]
A, B = "plan follower", "optimum"


@pytest.fixture(scope="module")
def contest():
    """Episodes whose outcomes follow luck that all share, the later contestants being worse."""
    random = np.random.Generator(np.random.Philox(8))
    num_tasks, num_seeds = 60, 12
    optimum = random.uniform(0.5, 0.95, num_tasks)
    shared = random.uniform(size=(num_tasks, num_seeds))
    chances = np.stack([optimum * random.uniform(0.7, 1.0, num_tasks) for _ in NAMES])[:, :, None]
    outcome = (shared < chances).astype(np.float64)
    luck = random.normal(0.0, 0.05, size=(*outcome.shape, NUM_WEIGHTS))
    luck[..., 0] += outcome - chances
    return Contest(tuple(f"task {place}" for place in range(num_tasks)), outcome, luck, optimum)


@pytest.fixture(scope="module")
def row(contest):
    return sample_sizes.row_of(contest, A, B)


def test_parts_are_those_of_resilisim_power(contest, row):
    pairs = pairs_of(contest, NAMES.index(A), NAMES.index(B))
    parts = variance_parts(compare_pairs(pairs, A, B, "any"))
    assert row.within["usual"] == pytest.approx(parts[SAME_TASKS].within)
    assert row.within["common"] == pytest.approx(parts[PAIRED].within)
    assert row.within["both"] == pytest.approx(parts[PAIRED_LUCK_ADJUSTED].within)
    assert row.between == pytest.approx(parts[PAIRED_LUCK_ADJUSTED].between)


def test_episodes_follow_from_the_parts(row):
    needed = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) ** 2 / 0.03**2
    for method, episodes in row.episodes.items():
        assert episodes == pytest.approx(needed * (row.within[method] + row.between), rel=0.02, abs=3)


def test_shares_lie_in_their_intervals(row):
    for shares in (row.share, row.share_given_tasks):
        assert shares["usual"] == pytest.approx((1.0, 1.0, 1.0))
        for value, low, high in shares.values():
            assert low <= value <= high
    assert row.share["both"][0] == pytest.approx(
        (row.within["both"] + row.between) / (row.within["usual"] + row.between)
    )


def test_tables_show_every_pair_and_whether_the_aim_is_reached(row):
    first, second = sample_sizes.table([row]), sample_sizes.parts_table([row])
    assert first.splitlines()[2].startswith(f"| {A} | {B} | ")
    assert first.count("\n") == second.count("\n") == 2
    word = "reached" if row.share["both"][0] <= 1 / 8 else "missed"
    assert first.rstrip("| ").endswith(word)


def test_what_was_played_is_read_and_not_played_again(tmp_path, monkeypatch):
    monkeypatch.setattr(contest_files, "CONTESTANTS", CONTESTANTS[:2])
    pieces = [contest_files.Piece(first, 20, 2) for first in (0, 10)]
    for piece in pieces:
        contest_files._play(piece, tmp_path)
    monkeypatch.setattr(contest_files, "_play", None)
    read = contest_files.contest_of(20, 2, tmp_path)
    assert read.outcome.shape == (2, 20, 2)
    assert read.luck.shape == (2, 20, 2, NUM_WEIGHTS)
    assert len({piece.name for piece in (*pieces, contest_files.Piece(0, 20, 3))}) == 3


def test_intervals_hold_the_truth_in_most_experiments(contest):
    shares = small_samples.coverage(world_of(contest), (A, B), num_tasks=40, num_seeds=3, num_experiments=60)
    assert set(shares) == {PAIRED, PAIRED_LUCK_ADJUSTED}
    for share in shares.values():
        assert 0.85 <= share <= 1.0
    assert small_samples.coverage(world_of(contest), (A, A), 10, 1, 5) == {PAIRED: 1.0, PAIRED_LUCK_ADJUSTED: 1.0}


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
