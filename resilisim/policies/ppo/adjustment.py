"""Adjustment of an episode's rewards by how it ended (appendix D.5.1), done inside PPO before it computes advantages.

    r'_t = r_t mu(final score) + lambda_position (1 - t / T) + delta_rag similarity_t + delta_pattern completed_t

mu is 1.5, 1.2 or 1.0 from a final score of 0.9, 0.7 or 0.5 on, else 0.7. Steps count t = 0, 1, ..., T - 1 from the real
start of the episode, so its first step gets all of lambda_position and its last one a T-th. An episode that is not
finished at the end of a rollout is left as it is. When it ends in a later rollout, the steps in that rollout are
adjusted; those before have been learnt from and are gone.

The paper gives lambda_position, delta_rag and delta_pattern no value; `AdjustmentWeights` is the table of those chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.training import check_number
from resilisim.envs.workflow.vector import WorkflowVectorEnv

# mu_performance: from this final score on, this factor; the first that fits counts.
PERFORMANCE_FACTORS = ((0.9, 1.5), (0.7, 1.2), (0.5, 1.0))
LOWEST_FACTOR = 0.7
# Different scores lie further apart (shares of some tens of tools, plus 0.1 or not), and float32(0.9) is below 0.9.
SCORE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class AdjustmentWeights:
    """What the adjustment adds to each step of a finished episode.

    The defaults fit the two-phase reward: whatever an episode of 20 steps does, they add at most
    1 * (20 + 1) / 2 + 20 * 0.5 + 20 * 1 = 40.5, less than the 50 by which the terminal reward of any success (at least
    100) exceeds that of any failure (at most 50). So no failure is made to beat a success by what is added. For another
    reward use `scaled`: the plain reward, 1 or 0 at the end, takes a hundredth.

    Attributes:
        position: lambda_position, what the first step gets; later steps get less.
        rag: delta_rag, times the similarity of the chosen tool. Half of lambda_position: a similarity is a hint.
        pattern: delta_pattern, where the step completes a mined pattern. Twice delta_rag: it has worked before.
    """

    position: float = 1.0
    rag: float = 0.5
    pattern: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        for name in ("position", "rag", "pattern"):
            check_number(name, getattr(self, name))

    def scaled(self, factor: float) -> AdjustmentWeights:
        """Return the weights for a reward `factor` times as large."""
        return AdjustmentWeights(self.position * factor, self.rag * factor, self.pattern * factor)


TWO_PHASE_WEIGHTS = AdjustmentWeights()
FULL_SUCCESS_WEIGHTS = TWO_PHASE_WEIGHTS.scaled(0.01)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeData:
    """What the adjustment has to know of each step of a rollout.

    Attributes:
        dones: bool (n_steps, n_envs), whether the step ended its episode.
        steps: int64 (n_steps, n_envs), steps of the episode before this one, also those of earlier rollouts.
        final_scores: float64 (n_steps, n_envs), the episode's final score p where it ended; not read elsewhere.
        similarity: float64 (n_steps, n_envs), similarity in [0, 1] of task and chosen tool; 0 for actions without one.
        pattern_completed: bool (n_steps, n_envs), whether the step completed a mined pattern.
    """

    dones: NDArray[np.bool_]
    steps: NDArray[np.int64]
    final_scores: NDArray[np.float64]
    similarity: NDArray[np.float64]
    pattern_completed: NDArray[np.bool_]

    @classmethod
    def empty(cls, num_steps: int, num_envs: int) -> Self:
        """Return arrays to be filled row by row."""
        shape = (num_steps, num_envs)
        return cls(
            np.zeros(shape, dtype=np.bool_),
            np.zeros(shape, dtype=np.int64),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape, dtype=np.bool_),
        )


def performance_factor(final_scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return mu_performance of each final score; any shape."""
    conditions = [final_scores >= threshold - SCORE_TOLERANCE for threshold, _ in PERFORMANCE_FACTORS]
    return np.select(conditions, [factor for _, factor in PERFORMANCE_FACTORS], LOWEST_FACTOR)


def adjust_rewards(
    rewards: NDArray[np.floating[Any]], data: EpisodeData, weights: AdjustmentWeights = TWO_PHASE_WEIGHTS
) -> NDArray[np.floating[Any]]:
    """Return the adjusted rewards of a rollout; steps of episodes that it does not finish keep theirs.

    Args:
        rewards: float (n_steps, n_envs), left as they are.
        data: What happened at each step.
        weights: What is added.

    Returns:
        Rewards of the same shape and type.
    """
    num_steps, num_envs = rewards.shape
    finished = np.zeros((num_steps, num_envs), dtype=np.bool_)
    score = np.zeros((num_steps, num_envs))
    length = np.ones((num_steps, num_envs))
    # From the last step back, each step takes over what is known of the end of its episode from the step after it.
    for step in range(num_steps - 1, -1, -1):
        done = data.dones[step]
        if step < num_steps - 1:
            finished[step], score[step], length[step] = finished[step + 1], score[step + 1], length[step + 1]
        finished[step, done] = True
        score[step, done] = data.final_scores[step, done]
        length[step, done] = data.steps[step, done] + 1
    adjusted = (
        rewards * performance_factor(score)
        + weights.position * (1.0 - data.steps / length)
        + weights.rag * data.similarity
        + weights.pattern * data.pattern_completed
    )
    return np.where(finished, adjusted, rewards).astype(rewards.dtype)


class AdjustingRolloutBuffer(MaskableDictRolloutBuffer):
    """The rollout buffer of maskable PPO, with rewards adjusted just before returns and advantages are computed.

    Given to MaskablePPO as `rollout_buffer_class`, with `rollout_buffer_kwargs={"weights": AdjustmentWeights(...)}`. At
    each step a callback hands over what happened, by `record_step` in `_on_step`, which PPO calls before it adds the
    step; or all at once by `set_episode_data` before the rollout ends. Episodes must end by termination: with a
    truncation PPO would have put a bootstrapped value into the reward, and the adjustment would scale it.

    Args:
        buffer_size: Steps of a rollout.
        observation_space: A Dict space.
        action_space: A Discrete space.
        device: Where samples go.
        gae_lambda: Lambda of generalised advantage estimation.
        gamma: Discount factor.
        n_envs: Environments side by side.
        weights: What the adjustment adds.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        weights: AdjustmentWeights = TWO_PHASE_WEIGHTS,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, gae_lambda, gamma, n_envs)
        self.weights = weights

    def reset(self) -> None:
        """Forget the rollout."""
        super().reset()
        self._data = EpisodeData.empty(self.buffer_size, self.n_envs)
        self._num_recorded = 0
        self._is_adjusted = False

    def record_step(
        self,
        dones: NDArray[np.bool_],
        steps: NDArray[np.int64],
        final_scores: NDArray[np.floating[Any]],
        similarity: NDArray[np.floating[Any]],
        pattern_completed: NDArray[np.bool_],
    ) -> None:
        """Record what happened at the step that is about to be added; each array is (n_envs,), as in EpisodeData."""
        row = self.pos
        self._data.dones[row] = dones
        self._data.steps[row] = steps
        self._data.final_scores[row] = final_scores
        self._data.similarity[row] = similarity
        self._data.pattern_completed[row] = pattern_completed
        self._num_recorded = row + 1

    def set_episode_data(self, data: EpisodeData) -> None:
        """Record what happened during the whole rollout."""
        self._data = data
        self._num_recorded = len(data.dones)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """Adjust the rewards, once, and compute returns and advantages from them.

        Args:
            last_values: (n_envs,) or (n_envs, 1), values of the observations after the last step.
            dones: bool (n_envs,), whether the last step ended its episode.

        Raises:
            RuntimeError: What was recorded does not belong to this rollout (a bug of the caller).
        """
        if not self._is_adjusted:
            if self._num_recorded != self.buffer_size or self._data.dones.shape != self.rewards.shape:
                raise RuntimeError(
                    f"{self._num_recorded} steps were recorded for a rollout of {self.buffer_size}: record every step"
                )
            ends = np.concatenate([self.episode_starts[1:] > 0, np.asarray(dones, dtype=np.bool_)[None]])
            if not np.array_equal(ends, self._data.dones):
                raise RuntimeError("the recorded ends of episodes are not those of the rollout")
            self.rewards = adjust_rewards(self.rewards, self._data, self.weights)
            self._is_adjusted = True
        super().compute_returns_and_advantage(last_values, dones)


# What the environments tell about an episode at its end.
EPISODE_FIGURES = ("success", "full_success", "score", "coverage", "sequence", "steps", "episode_return")


class EpisodeRecorder(BaseCallback):
    """Collects what the environments tell about episodes that end.

    Args:
        tool_names: Names of the library's tools, or None if nobody asks for the tools of episodes.
    """

    def __init__(self, tool_names: Sequence[str] | None = None) -> None:
        super().__init__()
        self._tool_names = tool_names
        self._rows: list[tuple[float, ...]] = []
        self.sequences: list[tuple[str, ...]] = []

    @property
    def figures(self) -> dict[str, NDArray[np.float64]]:
        """For each of EPISODE_FIGURES the values of the episodes that ended: float64 (num_finished,)."""
        table = np.array(self._rows, dtype=np.float64).reshape(len(self._rows), len(EPISODE_FIGURES))
        return {name: table[:, place] for place, name in enumerate(EPISODE_FIGURES)}

    def _on_rollout_start(self) -> None:
        self._rows = []
        self.sequences = []

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        for env in np.flatnonzero(self.locals["dones"]):
            info = infos[env]
            self._rows.append(tuple(float(info[name]) for name in EPISODE_FIGURES))
            if self._tool_names is not None:
                tools = successful_tools(info["terminal_observation"]["tools"])
                self.sequences.append(tuple(self._tool_names[tool] for tool in tools))
        return True


class AdjustmentRecorder(BaseCallback):
    """Tells the adjusting rollout buffer what each step did (D.5.1).

    Args:
        envs: The environments, which keep similarity and mined pattern of their latest step.
    """

    def __init__(self, envs: WorkflowVectorEnv) -> None:
        super().__init__()
        self._episodes = envs.core.episodes

    def _on_step(self) -> bool:
        buffer: object = self.model.rollout_buffer if isinstance(self.model, MaskablePPO) else None
        before = self.model._last_obs
        if not isinstance(buffer, AdjustingRolloutBuffer) or not isinstance(before, dict):
            raise RuntimeError("rewards can be adjusted in an AdjustingRolloutBuffer only")
        dones, infos = self.locals["dones"], self.locals["infos"]
        final_scores = np.zeros(len(dones))
        for env in np.flatnonzero(dones):
            final_scores[env] = infos[env]["score"]
        steps = before["task"][:, columns.STEPS_USED].astype(np.int64)
        similarity = np.maximum(self._episodes["named_similarity"], 0.0)
        buffer.record_step(dones, steps, final_scores, similarity, self._episodes["pattern"] > 0.0)
        return True


def successful_tools(tools: NDArray[Any]) -> list[int]:
    """Return the tools that have succeeded, by first success, from `tools` of one observation."""
    order = tools[:, columns.SUCCESS_ORDER]
    found = np.flatnonzero(order)
    return [int(tool) for tool in found[np.argsort(order[found], kind="stable")]]
