"""The adjustment of rewards at an episode's end, pinned to its definition episode by episode."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.adjustment import (
    FULL_SUCCESS_WEIGHTS,
    TWO_PHASE_WEIGHTS,
    AdjustingRolloutBuffer,
    AdjustmentWeights,
    EpisodeData,
    adjust_rewards,
    performance_factor,
)

WEIGHTS = AdjustmentWeights(position=2.0, rag=0.5, pattern=3.0)


def naive(rewards: np.ndarray, data: EpisodeData, weights: AdjustmentWeights) -> np.ndarray:
    """Each environment's steps are cut into episodes; those that end are adjusted by the formula of D.5.1."""
    result = rewards.copy()
    num_steps, num_envs = rewards.shape
    for env in range(num_envs):
        episode: list[int] = []
        for step in range(num_steps):
            episode.append(step)
            if not data.dones[step, env]:
                continue
            score = data.final_scores[step, env]
            factor = 1.5 if score >= 0.9 else 1.2 if score >= 0.7 else 1.0 if score >= 0.5 else 0.7
            length = data.steps[step, env] + 1
            for at in episode:
                result[at, env] = (
                    rewards[at, env] * factor
                    + weights.position * (1 - data.steps[at, env] / length)
                    + weights.rag * data.similarity[at, env]
                    + (weights.pattern if data.pattern_completed[at, env] else 0.0)
                )
            episode = []
    return result


def rollout(num_steps: int, num_envs: int, seed: int) -> tuple[np.ndarray, EpisodeData]:
    """Episodes of random length, the first of which began in an earlier rollout."""
    random = np.random.default_rng(seed)
    dones = random.random((num_steps, num_envs)) < random.random()
    steps = np.zeros((num_steps, num_envs), dtype=np.int64)
    steps[0] = random.integers(0, 5, num_envs)
    for step in range(1, num_steps):
        steps[step] = np.where(dones[step - 1], 0, steps[step - 1] + 1)
    data = EpisodeData(
        dones,
        steps,
        random.choice([0.0, 0.3, 0.5, 0.7, 0.9, 1.0], (num_steps, num_envs)),
        random.random((num_steps, num_envs)),
        random.random((num_steps, num_envs)) < 0.3,
    )
    return random.normal(0.0, 50.0, (num_steps, num_envs)), data


def test_performance_factor() -> None:
    scores = np.array([1.0, 0.9, 0.89, 0.7, 0.69, 0.5, 0.49, 0.0])
    factors = [1.5, 1.5, 1.2, 1.2, 1.0, 1.0, 0.7, 0.7]
    assert performance_factor(scores).tolist() == factors
    assert performance_factor(scores.astype(np.float32)).tolist() == factors
    assert performance_factor(np.array([3 / 5 + 0.1, 4 / 5 + 0.1, 2 / 5 + 0.1])).tolist() == [1.2, 1.5, 1.0]


def test_an_episode_by_hand() -> None:
    data = EpisodeData.empty(4, 1)
    data.steps[:, 0] = [0, 1, 2, 0]
    data.dones[:, 0] = [False, False, True, False]
    data.final_scores[2, 0] = 0.95
    data.similarity[:, 0] = [0.2, 0.0, 1.0, 1.0]
    data.pattern_completed[:, 0] = [False, True, False, True]
    rewards = np.array([[10.0], [-4.0], [100.0], [7.0]])
    assert adjust_rewards(rewards, data, WEIGHTS)[:, 0] == pytest.approx(
        [
            15.0 + 2.0 + 0.1,
            -6.0 + 2.0 * 2 / 3 + 3.0,
            150.0 + 2.0 / 3 + 0.5,
            7.0,  # not finished: as it was
        ]
    )


def test_an_episode_of_an_earlier_rollout_counts_from_its_start() -> None:
    data = EpisodeData.empty(2, 1)
    data.steps[:, 0] = [6, 7]
    data.dones[:, 0] = [False, True]
    assert adjust_rewards(np.zeros((2, 1)), data, AdjustmentWeights(8.0, 0.0, 0.0))[:, 0].tolist() == [2.0, 1.0]


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_arrays_follow_the_definition(num_steps: int, num_envs: int, seed: int) -> None:
    rewards, data = rollout(num_steps, num_envs, seed)
    before = rewards.copy()
    np.testing.assert_allclose(adjust_rewards(rewards, data, WEIGHTS), naive(rewards, data, WEIGHTS), rtol=1e-12)
    np.testing.assert_array_equal(rewards, before)
    assert adjust_rewards(rewards.astype(np.float32), data).dtype == np.float32


def test_what_is_added_cannot_make_a_failure_beat_a_success() -> None:
    data = EpisodeData.empty(20, 1)
    data.steps[:, 0] = np.arange(20)
    data.dones[-1] = True
    data.similarity[:] = 1.0
    data.pattern_completed[:] = True
    added = adjust_rewards(np.zeros((20, 1)), data, TWO_PHASE_WEIGHTS).sum()
    assert added == pytest.approx(40.5)
    assert added < 100.0 - 50.0  # the least terminal reward of a success less the largest of a failure
    assert adjust_rewards(np.zeros((20, 1)), data, FULL_SUCCESS_WEIGHTS).sum() == pytest.approx(0.405)


def test_weights_are_numbers() -> None:
    with pytest.raises(InvalidInputError, match="rag is NaN: expected a number"):
        AdjustmentWeights(rag=float("nan"))
    assert AdjustmentWeights(1.0, 2.0, 4.0).scaled(0.5) == AdjustmentWeights(0.5, 1.0, 2.0)


def filled_buffer(num_steps: int, rewards: np.ndarray, data: EpisodeData) -> AdjustingRolloutBuffer:
    buffer = AdjustingRolloutBuffer(
        num_steps, spaces.Dict({"x": spaces.Box(0, 1, (1,))}), spaces.Discrete(2), "cpu", 1.0, 1.0, 2, weights=WEIGHTS
    )
    starts = data.steps == 0
    for step in range(num_steps):
        buffer.record_step(*(column[step] for column in columns(data)))
        zeros = torch.zeros(2)
        observation = {"x": np.zeros((2, 1), dtype=np.float32)}
        buffer.add(
            observation, np.zeros((2, 1)), rewards[step], starts[step], zeros, zeros, action_masks=np.ones((2, 2))
        )
    return buffer


def columns(data: EpisodeData) -> tuple[np.ndarray, ...]:
    return data.dones, data.steps, data.final_scores, data.similarity, data.pattern_completed


def test_the_buffer_adjusts_before_it_computes_returns_and_only_once() -> None:
    rewards, data = rollout(9, 2, seed=3)
    data.dones[4] = True
    data.steps[5:] = 0
    for step in range(6, 9):
        data.steps[step] = np.where(data.dones[step - 1], 0, data.steps[step - 1] + 1)
    buffer = filled_buffer(9, rewards, data)
    expected = naive(rewards, data, WEIGHTS)
    for _ in range(2):
        buffer.compute_returns_and_advantage(torch.zeros(2), data.dones[-1])
        np.testing.assert_allclose(buffer.rewards, expected, rtol=1e-5, atol=1e-5)
    # Without discounting and with values of zero, a return is what is left of the episode's adjusted rewards.
    for env in range(2):
        total = 0.0
        for step in range(8, -1, -1):
            total = expected[step, env] + (0.0 if data.dones[step, env] else total)
            assert buffer.returns[step, env] == pytest.approx(total, rel=1e-4, abs=1e-3)
    buffer.reset()
    buffer.set_episode_data(data)
    with pytest.raises(RuntimeError, match="ends of episodes are not those of the rollout"):
        buffer.compute_returns_and_advantage(torch.zeros(2), ~data.dones[-1])


def test_a_step_that_was_not_recorded_is_noticed() -> None:
    rewards, data = rollout(3, 2, seed=1)
    buffer = filled_buffer(3, rewards, data)
    buffer.reset()
    with pytest.raises(RuntimeError, match="0 steps were recorded for a rollout of 3"):
        buffer.compute_returns_and_advantage(torch.zeros(2), data.dones[-1])


class Countdown(gymnasium.Env):
    """Episodes of three steps, a reward of one for each."""

    observation_space = spaces.Dict({"x": spaces.Box(0, 3, (1,))})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.step_number = 0
        return {"x": np.zeros(1, dtype=np.float32)}, {}

    def step(self, action):
        self.step_number += 1
        return {"x": np.full(1, self.step_number, dtype=np.float32)}, 1.0, self.step_number == 3, False, {}

    def action_masks(self):
        return np.ones(2, dtype=bool)


class Recorder(BaseCallback):
    """Hands each step's data to the buffer, as a trainer does."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = np.zeros(2, dtype=np.int64)
        self.seen: list[np.ndarray] = []

    def _on_step(self) -> bool:
        dones = self.locals["dones"]
        scores = np.full(2, 0.9)
        self.model.rollout_buffer.record_step(dones, self.steps, scores, np.ones(2), np.zeros(2, dtype=bool))
        self.steps = np.where(dones, 0, self.steps + 1)
        return True

    def _on_rollout_end(self) -> None:
        self.seen.append(self.model.rollout_buffer.rewards.copy())


def test_maskable_ppo_learns_from_adjusted_rewards() -> None:
    torch.set_num_threads(1)
    recorder = Recorder()
    model = MaskablePPO(
        "MultiInputPolicy",
        DummyVecEnv([Countdown, Countdown]),
        n_steps=4,
        batch_size=8,
        n_epochs=1,
        rollout_buffer_class=AdjustingRolloutBuffer,
        rollout_buffer_kwargs={"weights": AdjustmentWeights(position=3.0, rag=1.0, pattern=0.0)},
        device="cpu",
        seed=0,
    )
    model.learn(16, callback=recorder)
    first, second = recorder.seen
    # 1.5 + 3 (1 - t / 3) + 1; the fourth step begins an episode that the first rollout does not finish.
    assert first[:, 0].tolist() == first[:, 1].tolist() == pytest.approx([5.5, 4.5, 3.5, 1.0])
    assert second[:, 0].tolist() == pytest.approx([4.5, 3.5, 1.0, 1.0])
