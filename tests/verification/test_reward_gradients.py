"""The comparison of policy gradients by reward (docs/results/rewards.md), in small."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.reward_gradients import ESTIMATORS, NUM_ENVS, Player, compare, comparison_from, gradients_of
from benchmarks.rewards import REWARDS, gradient_tables, plot_training, plot_variance, training_table


@pytest.fixture(scope="module")
def player():
    return Player()


@pytest.fixture(scope="module")
def comparison(player):
    return compare(player, 0.75, NUM_ENVS)


def test_every_unbiased_estimator_finds_the_gradient_of_success(comparison):
    assert 0.4 < comparison.share < 0.6
    assert comparison.lemma.low - 0.01 < 0.0 < comparison.lemma.high + 0.01
    agreement = {name: found.value for name, found in comparison.agreement.items()}
    assert min(agreement[name] for name in ESTIMATORS[:-1]) > 0.99
    assert agreement["advantage, each alone"] < 0.985, "it leaves out what a message does to later ones"
    assert comparison.variance["success"] == (1.0, 1.0, 1.0)
    assert comparison.variance["advantage, critic"].high < comparison.variance["success or value, critic"].low


def test_value_is_success_with_the_optimum_as_its_baseline(player):
    played, others = player.play(1.0, range(NUM_ENVS)), player.play(1.0, range(NUM_ENVS, 2 * NUM_ENVS))
    optimum = played.outcome[:, None] - played.values[:, ::-1].cumsum(axis=1)[:, ::-1]
    expected = np.einsum("esf,es->ef", played.scores, played.outcome[:, None] - optimum)
    assert gradients_of(played, others)["value"] == pytest.approx(expected)
    assert (played.optimum > 0.0).all()
    assert played.advantages.max() <= 0.0


def test_what_was_measured_is_kept_shown_and_drawn(comparison, tmp_path):
    assert comparison_from(json.loads(json.dumps(comparison.to_mapping()))) == comparison
    trained = [
        {"reward": reward, "seed": seed, "shares": {"0": 0.1, "50000": 0.5 + 0.1 * seed}}
        for reward in REWARDS
        for seed in range(2)
    ]
    assert "| `value` | 0.550 (0.500 to 0.600) |" in training_table(trained)
    assert gradient_tables([comparison]).count("\n| ") == 1 + 3 * 2
    plot_training(trained, tmp_path / "training.svg")
    plot_variance([comparison], tmp_path / "variance.svg")
    assert {path.name for path in tmp_path.iterdir()} == {"training.svg", "variance.svg"}
