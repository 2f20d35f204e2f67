"""Callbacks that watch a rollout step by step: how episodes ended, and what the adjustment of rewards has to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from resilisim.envs.workflow import columns
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.policies.ppo.adjustment import AdjustingRolloutBuffer

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
