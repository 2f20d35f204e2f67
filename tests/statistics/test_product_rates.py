"""Rates that are products: closed forms, a search by hand, edges, and what cannot be told."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from resilisim.errors import InvalidInputError
from resilisim.statistics import clopper_pearson, fit_product_rates


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
