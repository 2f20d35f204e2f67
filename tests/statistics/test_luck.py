"""How much luck is taken off, against regressions over single episodes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resilisim.seeding import Draws
from resilisim.statistics import FoldSums, cross_fitted_betas, fold_of
from resilisim.statistics.luck import PRIOR_EPISODES, fit_beta, share_kept

Episode = tuple[float, float, float]  # outcome, V*, luck


def sums_of(*episodes: Episode) -> FoldSums:
    return FoldSums.of_episodes(*np.array(episodes).T)


def naive_beta(episodes: list[Episode]) -> float:
    """The ridge regression of outcome on luck beside V*; one more row is the guess."""
    outcome, optimum, luck = np.array(episodes).T
    kept = min(max(1.0 - np.mean(optimum - outcome + luck) / np.mean(optimum), 0.0), 1.0)
    if outcome.min() == 1.0:
        return float(kept)
    if outcome.max() == 0.0:
        return 0.0
    weight = math.sqrt(PRIOR_EPISODES * np.mean(luck**2))
    design = np.column_stack([luck, optimum, np.ones(len(luck))])
    design = np.vstack([design, [weight, 0.0, 0.0]])
    slope = np.linalg.lstsq(design, np.append(outcome, weight * kept), rcond=None)[0][0]
    return float(min(max(slope, 0.0), 2.0))


def drawn(label: str, rate: float, count: int = 30) -> list[Episode]:
    draws = Draws(label)
    episodes = [(float(draws.uniform() < rate), draws.uniform(), draws.uniform() - 0.5) for _ in range(count)]
    return [(outcome, optimum, luck + 0.3 * outcome) for outcome, optimum, luck in episodes]


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.5, 0.9, 1.0])
def test_beta_is_the_slope_of_a_regression_on_luck_and_the_optimum(rate):
    episodes = drawn("beta and optimum", rate)
    assert fit_beta(sums_of(*episodes)) == pytest.approx(naive_beta(episodes))
    one, other = sums_of(*episodes[:11]), sums_of(*episodes[11:])
    assert fit_beta(one + other) == pytest.approx(naive_beta(episodes))


def test_beta_of_a_fold_is_fitted_on_the_others_alone():
    folds = [drawn(f"fold {number}", 0.5, 9) for number in range(4)]
    betas = cross_fitted_betas([sums_of(*fold) for fold in folds])
    for held_out, beta in enumerate(betas):
        others = [episode for number, fold in enumerate(folds) if number != held_out for episode in fold]
        assert beta == pytest.approx(naive_beta(others))
    folds[1] = [(100.0, 1.0, -3.0), (7.0, 2.0, 9.0)]
    assert cross_fitted_betas([sums_of(*fold) for fold in folds])[1] == betas[1]


@pytest.mark.parametrize(
    ("episodes", "beta"),
    [
        ([(0.0, 0.8, -0.8), (0.0, 0.7, -0.7)], 1.0),  # never succeeds, lost nothing: its luck is taken out
        ([(0.0, 0.8, -0.1), (0.0, 0.7, 0.2)], 0.0),  # never succeeds, lost something: its luck is left alone
        # Lucky episodes that all succeed have the slope 0, because they all succeed; they lost next to nothing.
        ([(1.0, 0.7, 0.3), (1.0, 0.8, 0.3), (1.0, 0.75, 0.27)], 1.0 - 0.12 / 2.25),
        ([(0.9, 0.6, 0.0), (0.3, 0.6, 0.0)], 1.0),  # no luck, no loss: nothing can be fitted
        ([(0.8 + luck, 0.8, luck) for luck in (-0.3, 0.1, 0.4, -0.2)], 1.0),  # an agent without regret
        ([(5.0, 0.0, 0.0), (0.0, 0.0, 1.0)] * 50, 0.0),  # a slope near -5, held to the range
    ],
)
def test_beta_where_few_episodes_can_tell_it(episodes, beta):
    assert fit_beta(sums_of(*episodes)) == pytest.approx(beta)


def test_share_kept_is_one_without_regret_and_within_its_range():
    assert share_kept(FoldSums()) == fit_beta(FoldSums()) == 1.0
    assert share_kept(sums_of((0.0, 0.8, -0.8))) == pytest.approx(1.0)  # unlucky, and nothing lost
    assert share_kept(sums_of((0.0, 0.8, 0.1))) == 0.0  # lost more than it began with
    assert share_kept(sums_of((1.0, 0.8, 0.1))) == 1.0  # no record is like this: regret would be negative


def test_folds_depend_on_the_id_alone_and_are_even():
    folds = [fold_of(f"task_{number:08x}") for number in range(2000)]
    assert folds[:8] == [1, 6, 3, 6, 8, 2, 3, 6]
    assert all(150 < folds.count(fold) < 250 for fold in range(10))
