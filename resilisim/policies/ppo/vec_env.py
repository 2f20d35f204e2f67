"""The batched Workflow-v0 as a Stable-Baselines3 vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from resilisim.envs.workflow.dynamics import END_FIELDS
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError

_NO_INFO: dict[str, Any] = {}


class WorkflowVecEnv(VecEnv):
    """Adapter of `WorkflowVectorEnv` for MaskablePPO: resets at once, masks for all environments in one array.

    Args:
        envs: The batched environment, with autoreset mode SAME_STEP and copied observations, which
            Stable-Baselines3 still reads after the next step.

    Attributes:
        envs: The batched environment.

    Raises:
        InvalidInputError: Another autoreset mode, or observations in place.
    """

    def __init__(self, envs: WorkflowVectorEnv) -> None:
        if envs.autoreset_mode is not AutoresetMode.SAME_STEP or not envs.copy:
            raise InvalidInputError(
                f"autoreset mode {envs.autoreset_mode.name}, copy={envs.copy}: expected SAME_STEP and copy=True"
            )
        self.render_mode = None
        self.envs = envs
        self._actions: NDArray[Any] = np.zeros(envs.num_envs, dtype=np.int64)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> VecEnvObs:
        """Begin an episode in every environment."""
        seeds = None if all(seed is None for seed in self._seeds) else self._seeds
        observation, _ = self.envs.reset(seed=seeds)
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions, (num_envs,), for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step every environment; infos of ended episodes hold END_FIELDS, `episode` and `terminal_observation`."""
        observation, rewards, terminated, _, infos = self.envs.step(self._actions)
        listed = [_NO_INFO] * self.num_envs
        for env in np.flatnonzero(terminated).tolist():
            listed[env] = {
                "TimeLimit.truncated": False,
                "terminal_observation": {name: array[env] for name, array in infos["final_obs"].items()},
                "episode": {"r": float(infos["episode_return"][env]), "l": int(infos["steps"][env])},
                **{name: infos[name][env].item() for name in END_FIELDS},
            }
        return observation, rewards.astype(np.float32), terminated, listed

    def close(self) -> None:
        """Close the batched environment."""
        self.envs.close()

    def has_attr(self, attr_name: str) -> bool:
        """Return whether environments answer to a name; sb3-contrib asks for `action_masks`."""
        return hasattr(self.envs, attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute, the same for every chosen environment."""
        return [getattr(self.envs, attr_name)] * len(self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the batched environment."""
        setattr(self.envs, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the batched environment; an array of its answers is given out row by row."""
        answer = getattr(self.envs, method_name)(*method_args, **method_kwargs)
        chosen = self._chosen(indices)
        if isinstance(answer, np.ndarray) and len(answer) == self.num_envs:
            return [answer[env] for env in chosen]
        return [answer] * len(chosen)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """Return False for every chosen environment: there are no wrappers."""
        return [False] * len(self._chosen(indices))

    def _chosen(self, indices: VecEnvIndices) -> Sequence[int]:
        if indices is None:
            return range(self.num_envs)
        return [indices] if isinstance(indices, int) else list(indices)
