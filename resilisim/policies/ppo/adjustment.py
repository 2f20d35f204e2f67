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
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.vector import WorkflowVectorEnv

# mu_performance: from this final score on, this factor; the first that fits counts.
PERFORMANCE_FACTORS = ((0.9, 1.5), (0.7, 1.2), (0.5, 1.0))
LOWEST_FACTOR = 0.7
# Different scores lie further apart (shares of some tens of tools, plus 0.1 or not), and float32(0.9) is below 0.9.
SCORE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class AdjustmentWeights:
    """What the adjustment adds to each step of a finished episode.

    The defaults fit the two-phase reward: whatever an episode of 28 steps does, the longest, they add at most
    1 * (28 + 1) / 2 + 28 * 0.5 + 28 * 0.5 = 42.5, less than the 50 by which the terminal reward of any success (at
    least 100) exceeds that of any failure (at most 50). So no failure is made to beat a success by what is added. For
    another reward use `scaled`: the plain reward, 1 or 0 at the end, takes a hundredth.
    """

    position: float = 1.0  # lambda_position, what the first step gets; later steps get less
    rag: float = 0.5  # delta_rag, times the similarity of the chosen tool; half of lambda_position: it is a hint
    pattern: float = 0.5  # delta_pattern, where the step completes a mined pattern; as much as the best similarity

    def scaled(self, factor: float) -> AdjustmentWeights:
        """Return the weights for a reward `factor` times as large."""
        return AdjustmentWeights(self.position * factor, self.rag * factor, self.pattern * factor)


TWO_PHASE_WEIGHTS = AdjustmentWeights()
FULL_SUCCESS_WEIGHTS = TWO_PHASE_WEIGHTS.scaled(0.01)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeData:
    """What the adjustment has to know of each step of a rollout; all of it is (n_steps, n_envs)."""

    dones: NDArray[np.bool_]  # whether the step ended its episode
    steps: NDArray[np.int64]  # steps of the episode before this one, also those of earlier rollouts
    final_scores: NDArray[np.float64]  # the episode's final score p where it ended; not read elsewhere
    similarity: NDArray[np.float64]  # in [0, 1], of task and chosen tool; 0 for actions without one
    pattern_completed: NDArray[np.bool_]

    @classmethod
    def empty(cls, num_steps: int, num_envs: int) -> Self:
        """Return arrays to be filled row by row."""
        shape = (num_steps, num_envs)
        no, zero = np.zeros(shape, dtype=np.bool_), np.zeros(shape)
        return cls(no, np.zeros(shape, dtype=np.int64), zero, zero.copy(), no.copy())


def performance_factor(final_scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return mu_performance of each final score; any shape."""
    conditions = [final_scores >= threshold - SCORE_TOLERANCE for threshold, _ in PERFORMANCE_FACTORS]
    return np.select(conditions, [factor for _, factor in PERFORMANCE_FACTORS], LOWEST_FACTOR)


def adjust_rewards(
    rewards: NDArray[np.floating[Any]], data: EpisodeData, weights: AdjustmentWeights = TWO_PHASE_WEIGHTS
) -> NDArray[np.floating[Any]]:
    """Return the adjusted rewards, (n_steps, n_envs); steps of episodes that are not finished in it keep theirs."""
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

    Given to MaskablePPO as `rollout_buffer_class`, with `rollout_buffer_kwargs={"weights": AdjustmentWeights(...)}`.
    Episodes must end by termination: with a truncation PPO would have put a bootstrapped value into the reward, and the
    adjustment would scale it. A callback fills the row `pos` of `data` in `_on_step`, which PPO calls before it adds
    the step.
    """

    def __init__(self, *arguments: Any, weights: AdjustmentWeights, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.weights = weights

    def reset(self) -> None:
        """Forget the rollout."""
        super().reset()
        self.data = EpisodeData.empty(self.buffer_size, self.n_envs)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """Adjust the rewards, and compute returns and advantages from them."""
        self.rewards = adjust_rewards(self.rewards, self.data, self.weights)
        super().compute_returns_and_advantage(last_values, dones)


# What the environments tell about an episode at its end.
EPISODE_FIGURES = ("success", "full_success", "score", "coverage", "sequence", "steps", "episode_return")


class EpisodeRecorder(BaseCallback):
    """Collects what the environments tell about episodes that end in a rollout.

    `sequences` gets the successful tools of each, by first success, if the names of the library's tools are given.
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
    """Tells the adjusting rollout buffer what each step did (D.5.1); the environments keep it of their latest step."""

    def __init__(self, envs: WorkflowVectorEnv) -> None:
        super().__init__()
        self._core = envs.core

    def _on_step(self) -> bool:
        buffer: AdjustingRolloutBuffer = self.locals["rollout_buffer"]
        before: Any = self.model._last_obs
        dones, infos, row = self.locals["dones"], self.locals["infos"], buffer.pos
        buffer.data.dones[row] = dones
        buffer.data.steps[row] = before["task"][:, spaces.TASK_STEPS_USED]
        for env in np.flatnonzero(dones):
            buffer.data.final_scores[row, env] = infos[env]["score"]
        core, tools = self._core, self._core.worlds["action_tool"][0, self.locals["actions"]]
        tasks = np.where(dones, core.episodes["final_task"], core.episodes["task"])
        buffer.data.similarity[row] = np.where(
            tools >= 0, np.maximum(core.records["similarity"][tasks, tools], 0.0), 0.0
        )
        buffer.data.pattern_completed[row] = core.episodes["pattern"] > 0.0
        return True


def successful_tools(tools: NDArray[Any]) -> list[int]:
    """Return the tools that have succeeded, by first success, from `tools` of one observation."""
    order = tools[:, spaces.TOOL_SUCCESS_ORDER]
    places = np.flatnonzero(order)
    return [int(tool) for tool in places[np.argsort(order[places], kind="stable")]]
