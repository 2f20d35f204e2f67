"""What Stable-Baselines3 and sb3-contrib's MaskablePPO are given: the network as a policy, Workflow-v0 as a VecEnv.

stable-baselines3 wants an extractor that turns an observation into features and two small nets on top of it. Here the
extractor is the whole network: it returns [logits | value], and the two nets are slices of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from sb3_contrib.common.maskable.distributions import MaskableCategoricalDistribution, MaybeMasks
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from torch import Tensor, nn

from resilisim.envs.workflow.kernels.step import END_FIELDS
from resilisim.envs.workflow.spaces import num_actions
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.network import READ, draw, make_network

# As a logit this excludes an action and, unlike minus infinity, keeps probability x logit finite in the entropy.
EXCLUDED = -1e8


class WorkflowFeatures(BaseFeaturesExtractor):
    """Runs a network of `network.NETWORKS`, with its options, on what it reads of an observation."""

    def __init__(self, observation_space: spaces.Dict, architecture: str = "transformer", **options: Any) -> None:
        shown: Any = observation_space["tools"]
        num_tools: int = shown.shape[0]
        super().__init__(observation_space, num_actions(num_tools) + 1)
        self.network = make_network(architecture, num_tools, options)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Return [logits | value]: float32 (B, num_actions + 1)."""
        output: Tensor = self.network(**{name: observations[name] for name in READ if name in observations})
        return output


class LogitsAndValue(nn.Module):
    """Splits what `WorkflowFeatures` returns, in the place of stable-baselines3's `MlpExtractor`."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.sizes = [num_actions, 1]

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, (B, num_actions), and the value, (B, 1)."""
        logits, value = torch.split(features, self.sizes, dim=-1)
        return logits, value

    def forward_actor(self, features: Tensor) -> Tensor:
        """Return the logits: (B, num_actions)."""
        return self.forward(features)[0]

    def forward_critic(self, features: Tensor) -> Tensor:
        """Return the value: (B, 1)."""
        return self.forward(features)[1]


class MaskedActions(MaskableCategoricalDistribution):
    """The distribution of actions, with one softmax over the legal ones.

    sb3-contrib's normalises the logits, masks them, normalises again and checks the result each time, which took twice
    as long over 283 actions; drawing took most of a rollout. The numbers are the same but for rounding.
    """

    def __init__(self, action_dim: int) -> None:
        super().__init__(action_dim)
        self.logits = torch.empty(0, action_dim)
        self.log_probs: Tensor | None = None

    def proba_distribution(self, action_logits: Tensor) -> MaskedActions:
        """Set the logits, (B, action_dim), without a mask."""
        self.logits = action_logits.view(-1, self.action_dim)
        self.log_probs = None
        return self

    def apply_masking(self, masks: MaybeMasks) -> None:
        """Exclude the actions whose mask, (B, action_dim) of any type, is 0; None excludes nothing."""
        logits = self.logits
        if masks is not None:
            legal = torch.as_tensor(masks, device=logits.device).view(logits.shape)
            logits = logits.masked_fill(legal == 0, EXCLUDED)
        self.log_probs = logits.log_softmax(dim=-1)

    def _normalised(self) -> Tensor:
        if self.log_probs is None:
            self.log_probs = self.logits.log_softmax(dim=-1)
        return self.log_probs

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the logarithm of each action's probability: (B,) to (B,)."""
        return self._normalised().gather(-1, actions.long().view(-1, 1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy over the legal actions: (B,)."""
        log_probs = self._normalised()
        return -(log_probs.exp() * log_probs).sum(dim=-1)

    def sample(self) -> Tensor:
        """Return an action drawn for each row: int64 (B,)."""
        return draw(self._normalised().exp())

    def mode(self) -> Tensor:
        """Return the most probable action of each row: int64 (B,)."""
        return self._normalised().argmax(dim=-1)


class WorkflowPolicy(MaskableMultiInputActorCriticPolicy):
    """Actor and critic of MaskablePPO on Workflow-v0; `policy_kwargs` gives the arguments of `WorkflowFeatures`."""

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        features_extractor_kwargs: dict[str, Any] | None = None,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch=[],
            ortho_init=False,
            features_extractor_class=WorkflowFeatures,
            features_extractor_kwargs=features_extractor_kwargs,
            normalize_images=False,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )

    def _build(self, lr_schedule: Schedule) -> None:
        """Put nothing where stable-baselines3 has layers, and give the optimiser the network's parameters."""
        self.add_module("mlp_extractor", LogitsAndValue(self.features_dim - 1))
        self.add_module("action_net", nn.Identity())
        self.add_module("value_net", nn.Identity())
        self.action_dist = MaskedActions(self.features_dim - 1)
        make_optimizer: Callable[..., torch.optim.Optimizer] = self.optimizer_class
        self.optimizer = make_optimizer(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def extract_features(self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor | None = None) -> Tensor:
        """Return [logits | value] without stable-baselines3's conversion to float, which the network does not need."""
        features: Tensor = self.features_extractor(obs)
        return features


_NO_INFO: dict[str, Any] = {}


class WorkflowVecEnv(VecEnv):
    """Adapter of `WorkflowVectorEnv` for MaskablePPO: resets at once, masks for all environments in one array.

    The batched environment has autoreset mode SAME_STEP and copied observations, which Stable-Baselines3 still reads
    after the next step. PPO sees rewards times `reward_scale`; `episode_return` stays what it is.
    """

    def __init__(self, envs: WorkflowVectorEnv, reward_scale: float = 1.0) -> None:
        if envs.autoreset_mode is not AutoresetMode.SAME_STEP or not envs.copy:
            raise InvalidInputError(
                f"autoreset mode {envs.autoreset_mode.name}, copy={envs.copy}: expected SAME_STEP and copy=True"
            )
        self.render_mode = None
        self.envs = envs
        self._reward_scale = np.float32(reward_scale)
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
        return observation, rewards.astype(np.float32) * self._reward_scale, terminated, listed

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
        envs = self._chosen(indices)
        if isinstance(answer, np.ndarray) and len(answer) == self.num_envs:
            return [answer[env] for env in envs]
        return [answer] * len(envs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """Return False for every chosen environment: there are no wrappers."""
        return [False] * len(self._chosen(indices))

    def _chosen(self, indices: VecEnvIndices) -> Sequence[int]:
        if indices is None:
            return range(self.num_envs)
        return [indices] if isinstance(indices, int) else list(indices)
