"""What a training run is made of: device, tasks, environments, model, warm start."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO

from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.adjustment import FULL_SUCCESS_WEIGHTS, TWO_PHASE_WEIGHTS, AdjustingRolloutBuffer
from resilisim.policies.ppo.callbacks import Parts
from resilisim.policies.ppo.config import TrainingConfig
from resilisim.policies.ppo.description import Network
from resilisim.policies.ppo.imitation import ImitationConfig, imitate, imitation_batches
from resilisim.policies.ppo.network import WorkflowTransformer
from resilisim.policies.ppo.sb3_policy import WorkflowFeatures, WorkflowPolicy
from resilisim.policies.ppo.vec_env import WorkflowVecEnv
from resilisim.seeding import TRAINING_SALT
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION
from resilisim.tasks.sources import read_tasks, sample_tasks
from resilisim.tasks.split import split_of
from resilisim.tool_library import ToolLibrary, default_library

# States of the warm start: so many environments, so many steps for each gradient step, so many of them not optimal.
IMITATION_ENVS = 64
IMITATION_STEPS = 8
IMITATION_NOISE = 0.2


def choose_device(name: str) -> torch.device:
    """Return the device of a name; auto is CUDA where there is a device, else the CPU.

    Raises:
        InvalidInputError: There is no CUDA device.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InvalidInputError("device 'cuda': torch finds no CUDA device here; expected auto or cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def training_tasks(config: TrainingConfig, library: ToolLibrary) -> tuple[list[Task], list[Task]]:
    """Return the tasks to train on and those to validate on, of the train and the validation split.

    Raises:
        InvalidInputError: The reference names no tasks, or a split has too few.
    """
    given = read_tasks(config.tasks, library)
    chosen = [task for task in given if split_of(task.required_tools) == "train"]
    if not chosen:
        raise InvalidInputError(f"none of the tasks {config.tasks!r} is in the train split: expected at least one")
    held_out = given
    if library == default_library():
        held_out = read_tasks(BENCHMARK_VERSION, library)
    return chosen, sample_tasks(held_out, config.validation_tasks, split="validation")


class _ScaledRewards(WorkflowVecEnv):
    """Environments whose rewards PPO sees multiplied by a factor; `episode_return` stays what it is."""

    def __init__(self, envs: WorkflowVectorEnv, factor: float) -> None:
        super().__init__(envs)
        self._factor = factor

    def step_wait(self) -> Any:
        """Step every environment."""
        observation, rewards, dones, infos = super().step_wait()
        return observation, rewards * np.float32(self._factor), dones, infos


def make_environments(config: TrainingConfig, tasks: list[Task], library: ToolLibrary) -> WorkflowVectorEnv:
    """Return the environments of a configuration."""
    return WorkflowVectorEnv(
        config.num_envs,
        autoreset_mode="SAME_STEP",
        tasks=tasks,
        library=library,
        law=config.law,
        reward=config.reward,
        filters=config.filters,
        required=config.required,
        printed_rules=config.printed_rules,
        salt=TRAINING_SALT,
    )


def make_model(config: TrainingConfig, envs: WorkflowVectorEnv, parts: Parts, device: torch.device) -> MaskablePPO:
    """Return the model of a configuration, its environments reset.

    Args:
        config: The configuration.
        envs: Where it is trained.
        parts: The part that holds the learning rate is asked for it.
        device: Where the network is trained.
    """
    options: dict[str, Any] = {"architecture": config.network, "width": config.width}
    if config.network == "transformer":
        options |= {
            "layers": config.layers,
            "heads": config.heads,
            "attention_tokens": config.attention_tokens,
            "tool_embeddings": config.tool_embeddings,
        }
    options["autocast"] = config.autocast and device.type == "cuda"
    weights = FULL_SUCCESS_WEIGHTS if config.reward == "full_success" else TWO_PHASE_WEIGHTS
    adjusted = config.reward_adjustment
    model = MaskablePPO(
        WorkflowPolicy,
        _ScaledRewards(envs, config.reward_scale),
        learning_rate=parts.learning_rate,
        n_steps=config.rollout_steps,
        batch_size=config.batch_size,
        n_epochs=config.epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        ent_coef=config.entropy,
        vf_coef=config.value_coefficient,
        max_grad_norm=config.max_gradient_norm,
        rollout_buffer_class=AdjustingRolloutBuffer if adjusted else None,
        rollout_buffer_kwargs={"weights": weights.scaled(config.reward_scale)} if adjusted else None,
        policy_kwargs={"features_extractor_kwargs": options},
        seed=config.seed,
        device=device,
    )
    network = network_of(model)
    if isinstance(network, WorkflowTransformer):
        torch.nn.init.constant_(network.prior, config.initial_prior)
    first = None if model.env is None else model.env.reset()
    if not isinstance(first, dict):
        raise RuntimeError("the environments gave no dict of observations")
    # `learn` would do this at its first call; a point to resume from needs it earlier.
    model._last_obs = first
    model._last_episode_starts = np.ones(config.num_envs, dtype=bool)
    return model


def network_of(model: MaskablePPO) -> Network:
    """Return the network that a model trains."""
    features = model.policy.features_extractor
    if not isinstance(features, WorkflowFeatures):
        raise RuntimeError(f"the policy's features are a {type(features).__name__}: expected WorkflowFeatures")
    return features.network


def warm_start(config: TrainingConfig, network: Network, envs: WorkflowVectorEnv) -> dict[str, Any]:
    """Teach the network the exact optimum before PPO begins, and return what was done as JSON values.

    Args:
        config: The configuration; `imitation_updates` is at least 1.
        network: Changed in place.
        envs: The environments of the training; the warm start plays their tasks in environments of its own.
    """
    teachers = WorkflowVectorEnv(
        IMITATION_ENVS,
        tasks=envs.core.tasks,
        library=envs.core.library,
        required=config.required,
        filters=config.filters,
        salt=f"{TRAINING_SALT}/imitation",
    )
    batches = imitation_batches(
        teachers,
        num_batches=config.imitation_updates,
        num_steps=IMITATION_STEPS,
        actor_noise=IMITATION_NOISE,
        seed=config.seed,
    )
    # V* is the value under the plain reward without discounting only.
    is_plain = config.reward == "full_success" and config.gamma == 1.0 and config.reward_scale == 1.0
    updates = imitate(network, batches, ImitationConfig(value_weight=0.5 if is_plain else 0.0))
    agreement = updates[-1].agreement if updates else None
    return {"kind": "imitation of the exact optimum", "updates": len(updates), "agreement": agreement}
