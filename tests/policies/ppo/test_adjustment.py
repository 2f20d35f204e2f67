"""The adjustment of rewards at an episode's end, pinned to its definition episode by episode."""

from __future__ import annotations

from types import SimpleNamespace

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

from resilisim.envs.workflow.kernels.training_law import STAGES
from resilisim.envs.workflow.spaces import tool_of
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.policies.ppo.adjustment import (
    FULL_SUCCESS_WEIGHTS,
    TWO_PHASE_WEIGHTS,
    AdjustingRolloutBuffer,
    AdjustmentRecorder,
    AdjustmentWeights,
    EpisodeData,
    adjust_rewards,
    performance_factor,
)
from resilisim.tasks.benchmark import benchmark_tasks

WEIGHTS = AdjustmentWeights(position=2.0, rag=0.5, pattern=3.0)


def naive(rewards: np.ndarray, data: EpisodeData, weights: AdjustmentWeights) -> np.ndarray:
    """Cut each environment's steps into episodes, and adjust those that end by the formula of D.5.1."""
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


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_arrays_follow_the_definition(num_steps: int, num_envs: int, seed: int) -> None:
    rewards, data = rollout(num_steps, num_envs, seed)
    before = rewards.copy()
    np.testing.assert_allclose(adjust_rewards(rewards, data, WEIGHTS), naive(rewards, data, WEIGHTS), rtol=1e-12)
    np.testing.assert_array_equal(rewards, before)
    assert adjust_rewards(rewards.astype(np.float32), data).dtype == np.float32


def test_what_is_added_cannot_make_a_failure_beat_a_success() -> None:
    longest = max(stage.max_turns for stage in STAGES)
    data = EpisodeData.empty(longest, 1)
    data.steps[:, 0] = np.arange(longest)
    data.dones[-1] = True
    data.similarity[:] = 1.0
    data.pattern_completed[:] = True
    added = adjust_rewards(np.zeros((longest, 1)), data, TWO_PHASE_WEIGHTS).sum()
    assert added == pytest.approx(42.5)
    assert added < 100.0 - 50.0  # the least terminal reward of a success less the largest of a failure
    assert adjust_rewards(np.zeros((longest, 1)), data, FULL_SUCCESS_WEIGHTS).sum() == pytest.approx(0.425)


def test_the_recorder_knows_which_tool_each_action_named() -> None:
    envs = WorkflowVectorEnv(8, tasks=benchmark_tasks()[:5], autoreset_mode="SAME_STEP", max_turns=3)
    recorder, steps, random = AdjustmentRecorder(envs), 9, np.random.default_rng(0)
    buffer = SimpleNamespace(pos=0, data=EpisodeData.empty(steps, 8))
    before, _ = envs.reset(seed=1)
    for step in range(steps):
        actions, tasks = random.integers(envs.single_action_space.n, size=8), envs.core.episodes["task"].copy()
        recorder.model = SimpleNamespace(_last_obs=before)
        before, _, dones, _, infos = envs.step(actions)
        ended = [{"score": score} for score in infos.get("score", np.zeros(8))]
        buffer.pos = step
        recorder.locals = {"rollout_buffer": buffer, "dones": dones, "infos": ended, "actions": actions}
        assert recorder._on_step()
        tools = [tool_of(action, len(envs.core.library)) for action in actions.tolist()]
        similarity = [max(0.0, envs.core.context.similarity[at]) for at in zip(tasks, tools, strict=True)]
        assert buffer.data.similarity[step].tolist() == [
            value if tool >= 0 else 0.0 for value, tool in zip(similarity, tools, strict=True)
        ]
    assert buffer.data.dones.any(axis=0).all()
    assert (buffer.data.similarity > 0).any()


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
    """Fills the buffer's data at each step, as a trainer does."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = np.zeros(2, dtype=np.int64)
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def _on_step(self) -> bool:
        buffer, dones = self.locals["rollout_buffer"], self.locals["dones"]
        buffer.data.dones[buffer.pos], buffer.data.steps[buffer.pos] = dones, self.steps
        buffer.data.final_scores[buffer.pos], buffer.data.similarity[buffer.pos] = 0.9, 1.0
        self.steps = np.where(dones, 0, self.steps + 1)
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.seen.append((buffer.rewards.copy(), buffer.returns.copy()))


def test_maskable_ppo_learns_from_adjusted_rewards() -> None:
    torch.set_num_threads(1)
    recorder = Recorder()
    model = MaskablePPO(
        "MultiInputPolicy",
        DummyVecEnv([Countdown, Countdown]),
        n_steps=4,
        batch_size=8,
        n_epochs=1,
        gamma=1.0,
        gae_lambda=1.0,
        rollout_buffer_class=AdjustingRolloutBuffer,
        rollout_buffer_kwargs={"weights": AdjustmentWeights(position=3.0, rag=1.0, pattern=0.0)},
        device="cpu",
        seed=0,
    )
    model.learn(16, callback=recorder)
    (first, returns), (second, _) = recorder.seen
    # 1.5 + 3 (1 - t / 3) + 1; the fourth step begins an episode that the first rollout does not finish.
    assert first[:, 0].tolist() == first[:, 1].tolist() == pytest.approx([5.5, 4.5, 3.5, 1.0])
    # Without discounting, a return is what is left of the episode's adjusted rewards.
    assert returns[:3, 0] == pytest.approx([13.5, 8.0, 3.5], rel=1e-5)
    assert second[:, 0].tolist() == pytest.approx([4.5, 3.5, 1.0, 1.0])
