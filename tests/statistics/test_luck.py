"""How much luck is taken off, against regressions over single episodes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from resilisim.errors import InvalidInputError
from resilisim.seeding import Draws
from resilisim.statistics import luck_adjustment
from resilisim.statistics.estimates import clopper_pearson
from resilisim.statistics.luck_adjustment import (
    CHOICES,
    FEWEST_EPISODES,
    FIRST_DRAWS,
    NUM_FOLDS,
    NUM_MORE,
    NUM_NUMBERS,
    OUTCOME,
    PRIOR_EPISODES,
    WEIGHTED_LUCK,
    cross_fitted_weights,
    fit_beta,
    fit_controls,
    fold_of,
    moments_of,
    ridge,
    share_kept,
)
from resilisim.statistics.product_rates import fit_product_rates

Episode = tuple[float, float, float]  # outcome, V*, luck


def sums_of(*episodes: Episode) -> np.ndarray:
    return moments_of(*np.array(episodes).T)


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
    weights = cross_fitted_weights(np.array([sums_of(*fold) for fold in folds]))
    assert not weights[:, 1:].any()  # where there is luck alone
    for held_out, beta in enumerate(weights[:, 0]):
        others = [episode for number, fold in enumerate(folds) if number != held_out for episode in fold]
        assert beta == pytest.approx(naive_beta(others))
    folds[1] = [(100.0, 1.0, -3.0), (7.0, 2.0, 9.0)]
    assert cross_fitted_weights(np.array([sums_of(*fold) for fold in folds]))[1, 0] == weights[1, 0]


def numbers_of(count: int, label: str) -> np.ndarray:
    draws = Draws(label)
    return np.array([[draws.uniform() - 0.5 for _ in range(NUM_MORE)] for _ in range(count)])


def test_ridge_is_least_squares_with_more_rows():
    outcome, optimum, luck = np.array(drawn("ridge", 0.5)).T
    more, guess = numbers_of(len(luck), "ridge"), np.linspace(0.0, 1.0, 1 + NUM_MORE)
    chosen = np.arange(1 + NUM_MORE) % 3 > 0
    weights = ridge(moments_of(outcome, optimum, luck, more), OUTCOME, guess, 5.0, chosen)
    controls = np.column_stack([luck, more])[:, chosen]
    sizes = np.sqrt(5.0 * np.mean(controls**2, axis=0))
    design = np.column_stack([np.ones_like(luck), optimum, controls])
    design = np.vstack([design, np.column_stack([np.zeros((len(sizes), 2)), np.diag(sizes)])])
    slopes = np.linalg.lstsq(design, np.append(outcome, sizes * guess[chosen]), rcond=None)[0][2:]
    assert weights[chosen] == pytest.approx(slopes)
    assert not weights[~chosen].any()


def folds_of(outcome: np.ndarray, optimum: np.ndarray, luck: np.ndarray, more: np.ndarray) -> np.ndarray:
    fold = np.arange(len(outcome)) % NUM_FOLDS
    return np.array(
        [moments_of(outcome[fold == f], optimum[fold == f], luck[fold == f], more[fold == f]) for f in range(10)]
    )


def test_more_than_luck_is_taken_off_only_where_that_explains_outcomes():
    """Outcomes that are the first draws are explained by them; those that are luck are left to the slope on luck."""
    more = numbers_of(60, "more")
    luck, optimum = numbers_of(60, "luck")[:, 0], np.full(60, 0.5)
    outcome = (more[:, FIRST_DRAWS].sum(axis=1) > 0.0).astype(float)
    weights = cross_fitted_weights(folds_of(outcome, optimum, luck, more))
    assert (weights[:, 1:][:, FIRST_DRAWS] > 0.1).all()
    fold = np.arange(60) % NUM_FOLDS
    left = outcome - (weights[fold] * np.column_stack([luck, more])).sum(axis=1)
    assert left.var() < 0.6 * outcome.var()
    of_luck = cross_fitted_weights(folds_of((luck > 0.0).astype(float), optimum, luck, more))
    assert not of_luck[:, 1:].any()
    few = np.arange(60) < FEWEST_EPISODES  # of which others are fewer: too few to tell more than a slope
    assert not cross_fitted_weights(folds_of(*(each[few] for each in (outcome, optimum, luck, more))))[:, 1:].any()


def test_weights_go_as_far_towards_a_fit_on_more_as_it_is_surely_better():
    """Noise makes a gain less sure, step by step, from most of the way to none of it."""
    more, noise = numbers_of(90, "sure"), numbers_of(90, "noise")[:, 0]
    luck, optimum = numbers_of(90, "luck")[:, 0], np.full(90, 0.5)
    signal = more[:, FIRST_DRAWS].sum(axis=1)
    only_first = np.isin(np.arange(1 + NUM_MORE), 1 + np.arange(NUM_MORE)[FIRST_DRAWS])
    chosen, shares = only_first | (np.arange(1 + NUM_MORE) == 0), []
    for size in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 8.0):
        folds = folds_of(signal + size * noise, optimum, luck, more)
        total = folds.sum(axis=0)
        plain = by_luck(total)
        way = ridge(total, OUTCOME, plain, 3.0, chosen) - plain
        gone = fit_controls(folds, OUTCOME, by_luck) - plain
        shares.append(float(gone @ way / (way @ way)))
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.85
    assert shares[-1] == 0.0


def test_weighted_luck_is_a_choice_of_its_own_because_a_fit_on_everything_is_held_back(monkeypatch):
    """Outcomes that follow weighted luck alone: of 70 episodes the fit on all sums takes less off."""
    more, luck, optimum = numbers_of(70, "weighted"), numbers_of(70, "weighted luck")[:, 0], np.full(70, 0.5)
    outcome = more[:, WEIGHTED_LUCK].sum(axis=1) + 0.3 * numbers_of(70, "weighted noise")[:, 0]
    folds, fold = folds_of(outcome, optimum, luck, more), np.arange(70) % NUM_FOLDS

    def left() -> float:
        weights = cross_fitted_weights(folds)[fold]
        return float((outcome - (weights * np.column_stack([luck, more])).sum(axis=1)).var())

    with_it = left()
    monkeypatch.setattr(luck_adjustment, "CHOICES", tuple(each for each in CHOICES if each[0] != WEIGHTED_LUCK))
    assert with_it < 0.8 * left()


def by_luck(moments: np.ndarray) -> np.ndarray:
    return np.array([fit_beta(moments), *[0.0] * NUM_MORE])


def test_the_weights_of_a_fold_do_not_look_at_it():
    more, luck, optimum = numbers_of(80, "look"), numbers_of(80, "look at luck")[:, 0], np.full(80, 0.5)
    outcome = (more[:, FIRST_DRAWS].sum(axis=1) > 0.0).astype(float)
    folds = folds_of(outcome, optimum, luck, more)
    before = cross_fitted_weights(folds)
    folds[3] = 7.0 * np.eye(NUM_NUMBERS)
    after = cross_fitted_weights(folds)
    assert (after[3] == before[3]).all()
    assert (after[4] != before[4]).any()


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
    nothing = np.zeros((NUM_NUMBERS, NUM_NUMBERS))
    assert share_kept(nothing) == fit_beta(nothing) == 1.0
    assert share_kept(sums_of((0.0, 0.8, -0.8))) == pytest.approx(1.0)  # unlucky, and nothing lost
    assert share_kept(sums_of((0.0, 0.8, 0.1))) == 0.0  # lost more than it began with
    assert share_kept(sums_of((1.0, 0.8, 0.1))) == 1.0  # no record is like this: regret would be negative


def test_folds_depend_on_the_id_alone_and_are_even():
    folds = [fold_of(f"task_{number:08x}") for number in range(2000)]
    assert folds[:8] == [1, 6, 3, 6, 8, 2, 3, 6]
    assert all(150 < folds.count(fold) < 250 for fold in range(10))


def log_likelihood(parameters: list[float], cells: list[tuple[int, tuple[int, ...], int, int]], units: int) -> float:
    """Return it by its definition."""
    total = 0.0
    for unit, counts, trials, successes in cells:
        chance = parameters[unit] * math.prod(f**c for f, c in zip(parameters[units:], counts, strict=True))
        for number, log in ((successes, chance), (trials - successes, 1.0 - chance)):
            total += number * math.log(log) if number else 0.0
    return total


def test_without_factors_rates_are_shares_and_intervals_exact() -> None:
    found = fit_product_rates([0, 1, 1], [[], [], []], [20, 5, 5], [8, 0, 0])
    assert found.factors == ()
    assert (found.bases[0].value, found.bases[0].low, found.bases[0].high) == (0.4, *clopper_pearson(8, 20))
    assert (found.bases[1].value, found.bases[1].low) == (0.05, 0.0)
    assert found.bases[1].high == clopper_pearson(0, 10)[1]


def test_a_saturated_model_has_the_shares_of_its_cells() -> None:
    found = fit_product_rates([0, 0], [[0], [2]], [50, 40], [40, 9])
    assert found.bases[0].value == pytest.approx(0.8, abs=1e-4)
    assert found.factors[0].value == pytest.approx(math.sqrt(9 / 40 / 0.8), abs=1e-4)


CELLS = [(0, (0, 0), 30, 25), (0, (1, 1), 20, 8), (1, (0, 0), 25, 15), (1, (0, 2), 15, 7), (1, (2, 3), 18, 2)]


def test_the_estimate_is_the_best_of_a_grid_and_the_interval_holds_what_is_not_much_worse() -> None:
    unit, counts, trials, successes = zip(*CELLS, strict=True)
    found = fit_product_rates(unit, counts, trials, successes)
    estimates = [*found.bases, *found.factors]
    most = log_likelihood([one.value for one in estimates], CELLS, 2)
    steps = [[min(max(one.value + step, 1e-3), 1.0) for step in (-0.02, -0.005, 0.0, 0.005, 0.02)] for one in estimates]
    assert max(log_likelihood(list(point), CELLS, 2) for point in itertools.product(*steps)) <= most + 1e-6
    # The ends of the first factor's interval: the best grid point there is worse by what the interval allows.
    axis = np.linspace(0.3, 0.99, 24)
    for end in (found.factors[0].low, found.factors[0].high):
        points = itertools.product(axis, axis, [end], axis)
        best = max(log_likelihood(list(point), CELLS, 2) for point in points)
        assert most - best == pytest.approx(chi2.ppf(0.95, 1) / 2, abs=0.1)


def test_a_factor_that_does_nothing_and_one_that_stops_everything_are_at_their_edges() -> None:
    nothing = fit_product_rates([0, 0], [[0], [1]], [100, 100], [70, 80])
    assert (nothing.factors[0].value, nothing.factors[0].high) == (1.0, 1.0)
    assert nothing.bases[0].value == pytest.approx(0.75, abs=1e-4)
    everything = fit_product_rates([0, 0], [[0], [1]], [100, 100], [70, 0])
    assert everything.factors[0].value < 1e-3
    assert everything.factors[0].low == 0.0
    sure = fit_product_rates([0, 0], [[0], [1]], [100, 100], [100, 50])
    assert (sure.bases[0].value, sure.bases[0].high) == (1.0, 1.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 30), st.floats(0, 1)), min_size=1))
@settings(max_examples=25, deadline=None)
def test_whatever_was_counted_estimates_lie_in_their_intervals(given: list[tuple[int, int, int, float]]) -> None:
    names = sorted({cell[0] for cell in given})
    unit = [names.index(cell[0]) for cell in given]
    trials = [cell[2] for cell in given]
    successes = [round(cell[2] * cell[3]) for cell in given]
    try:
        found = fit_product_rates(unit, [[cell[1]] for cell in given], trials, successes)
    except InvalidInputError:
        assert all(len({cell[1] for cell in given if cell[0] == name}) == 1 for name in names)
        return
    for one in (*found.bases, *found.factors):
        assert 0.0 <= one.low <= one.value + 1e-9 <= one.high + 2e-9 <= 1.0 + 2e-9


def test_factors_that_never_vary_alone_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="do not tell the factors apart"):
        fit_product_rates([0, 0], [[0, 0], [1, 2]], [10, 10], [5, 3])
