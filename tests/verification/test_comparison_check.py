"""The check of comparisons: its worlds are what they claim, and estimators that are wrong are found out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from resilisim.statistics.luck_adjustment import (
    NUM_FOLDS,
    PRIOR_EPISODES,
    cross_fitted_weights,
    fold_of,
    fold_of_episodes,
)
from verification import comparison, comparison_worlds
from verification.comparison_worlds import Key, Measuring, Plan
from verification.contest import NUM_CONTROLS, Contest
from verification.experiments import Experiments, Sample, compared, moments_of_folds, world_of
from verification.findings import failing

pytestmark = pytest.mark.long

NAMES = ("good", "bad", "twin of bad")


def contest(num_tasks=12, num_seeds=30):
    """Return episodes whose outcomes follow luck that all share; the second and third policy have the same chances."""
    random = np.random.Generator(np.random.Philox(5))
    optimum = random.uniform(0.5, 0.9, num_tasks)
    shared = random.uniform(size=(num_tasks, num_seeds))
    chances = np.stack([optimum, 0.7 * optimum, 0.7 * optimum])[:, :, None]
    own = np.stack([shared, shared, random.uniform(size=shared.shape)])
    outcome = (own < chances).astype(np.float64)
    luck = np.zeros((*outcome.shape, NUM_CONTROLS))
    luck[..., 0] = outcome - chances
    return Contest(tuple(f"task {place}" for place in range(num_tasks)), outcome, luck, optimum)


def experiments(num_tasks=20, num_seeds=3):
    generator = np.random.Generator(np.random.Philox(6))
    return Experiments(world_of(contest()), num_tasks, num_seeds, generator)


PLAN = Plan(
    NAMES, NAMES, (("good", "bad"),), (("good", "bad"),), (("bad", "twin of bad"),), (("good", "bad"),), 20, 3, 80
)


@pytest.fixture(scope="module")
def results():
    return Measuring(experiments(), PLAN).measure()


def test_luck_in_a_world_has_mean_zero_on_each_task():
    world = world_of(contest())
    assert np.abs(world.luck.mean(axis=2)).max() < 1e-15
    assert world.success(0) == pytest.approx(contest().outcome[0].mean())


def test_both_sides_meet_the_same_luck_unless_told_otherwise():
    drawing = experiments()
    sample = drawing.sample()
    assert (sample.task == sample.task[:, :1]).all()
    pairs = drawing.pairs(1, 1, sample)
    np.testing.assert_array_equal(pairs.outcome_a, pairs.outcome_b)
    np.testing.assert_array_equal(pairs.luck_a, pairs.luck_b)
    other = drawing.pairs(1, 1, sample, drawing.sample())
    assert (other.outcome_a != other.outcome_b).any()
    world = drawing.world
    one = drawing.pairs(0, 1, Sample(np.array([[4, 4]]), np.array([[7, 2]])))
    assert list(one.luck_b) == [world.luck[1, 4, 7], world.luck[1, 4, 2]]


@pytest.mark.parametrize("by_task", [False, True])
def test_swapping_keeps_each_pair_and_is_fair(by_task):
    drawing = experiments(num_tasks=400)
    pairs = drawing.pairs(0, 2, drawing.sample())
    swapped = drawing.swapped(pairs, by_task)
    np.testing.assert_array_equal(swapped.outcome_a + swapped.outcome_b, pairs.outcome_a + pairs.outcome_b)
    changed = swapped.luck_a != pairs.luck_a
    assert 0.4 < changed.mean() < 0.6
    np.testing.assert_array_equal(np.where(changed, pairs.luck_b, pairs.luck_a), swapped.luck_a)
    together = changed.reshape(400, 3).mean(axis=1)
    assert set(together) == {0.0, 1.0} if by_task else len(set(together)) > 2


def test_betas_are_those_of_the_definition():
    whole = contest()
    outcome, luck = whole.outcome[1], whole.luck[1, :, :, 0] + 0.1 * whole.outcome[2]
    optimum = np.broadcast_to(whole.optimum[:, None], outcome.shape)
    by_task = np.array([fold_of(task) for task in whole.task_ids])
    folds = fold_of_episodes(by_task[:, None], np.arange(outcome.shape[1]))
    more = np.zeros((*outcome.shape, NUM_CONTROLS - 1))
    betas = cross_fitted_weights(moments_of_folds(outcome, luck, optimum, folds, more))[:, 0]
    for place in range(NUM_FOLDS):
        others = folds != place
        own_outcome, own_optimum, own_luck = (each[others].ravel() for each in (outcome, optimum, luck))
        kept = 1.0 - (own_optimum - own_outcome + own_luck).sum() / own_optimum.sum()
        weight = np.sqrt(PRIOR_EPISODES * np.mean(own_luck**2))  # the guess, as one more row of the regression
        design = np.stack([np.ones(own_luck.size), own_optimum, own_luck], axis=1)
        design = np.vstack([design, [0.0, 0.0, weight]])
        goal = np.append(own_outcome, weight * np.clip(kept, 0.0, 1.0))
        slope = np.linalg.lstsq(design, goal, rcond=None)[0][2]
        assert betas[place] == pytest.approx(slope, abs=1e-9)


def test_a_number_for_each_experiment(results):
    assert {len(row) for row in results.values()} == {80}
    error = results[Key("error", "paired", "good - bad")]
    assert abs(error.mean()) < 4.0 * error.std() / 80**0.5
    assert 0.0 < results[Key("foretold", "paired", "good - bad")][0] <= 1.0
    assert results[Key("power", "paired_luck_adjusted", "good - bad")].mean() > 0.9


def verdicts(findings):
    failed = failing(findings)
    return {one.test: one.test not in failed for one in findings}


def test_honest_estimators_pass(results):
    found = comparison._coverage(results) + comparison._errors(results) + comparison._tests(results)
    assert all(passed for name, passed in verdicts(found).items() if not name.startswith("control"))


@pytest.mark.parametrize(
    ("wrong", "check", "failing", "passing"),
    [
        ((0.5, 0.0), comparison._coverage, "95% intervals cover: paired", "95% intervals cover: success"),
        ((1.0, 0.05), comparison._errors, "unbiased: paired_luck_adjusted", "unbiased: luck-adjusted success"),
        ((1.0, 0.0, 0.1), comparison._tests, "keeps its level of 5%: paired", None),
    ],
)
def test_estimators_that_are_wrong_are_found_out(monkeypatch, results, wrong, check, failing, passing):
    monkeypatch.setattr(comparison_worlds, "compared", lambda pairs: spoiled(pairs, *wrong))
    plan = replace(PLAN, single=(), **({} if check is comparison._tests else {"null_pairs": ()}))
    # What is spoiled takes the place of what is not.
    found = verdicts(check(results | Measuring(experiments(), plan).measure()))
    assert not found[failing]
    assert passing is None or found[passing]


def spoiled(pairs, shrink, shift, p_value=1.0):
    """Return a comparison with intervals shrunk, differences moved and p-values multiplied."""
    honest = compared(pairs)

    def spoil(found):
        low, high = (found.difference + shrink * (end - found.difference) for end in found.interval)
        return replace(
            found, difference=found.difference + shift, interval=(low, high), p_value=p_value * found.p_value
        )

    spoilt = replace(honest)
    spoilt.__dict__["differences"] = {name: spoil(found) for name, found in honest.differences.items()}
    return spoilt


def test_noise_that_grows_is_found_out(results):
    key = Key("error", "paired", "good - bad")
    worse = results | {key._replace(method="paired_luck_adjusted"): 1.5 * results[key]}
    assert not verdicts(comparison._noise(worse))["never noisier than paired: paired_luck_adjusted"]
    assert verdicts(comparison._noise(results))["never noisier than paired: paired_luck_adjusted"]
