"""What the batched environment is worth in training: the same MaskablePPO and network on 16 scalar environments.

    python -m benchmarks.training [--share 0.95] [--most 400000]

Prints the steps a second of collecting rollouts and of the updates, and the wall time until the policy reaches a share
of V* on validation tasks, for both, as ratios in one run. One seed: the ratio of times is an example, not a mean.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from benchmarks.measurement import this_machine
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.policies.ppo.config import load_config
from resilisim.policies.ppo.sb3 import WorkflowPolicy, WorkflowVecEnv
from resilisim.policies.ppo.training import make_environments, network_of, training_tasks
from resilisim.policies.ppo.validation import Validator
from resilisim.tool_library import default_library

SCALAR_ENVS = 16


@dataclass(frozen=True, slots=True)
class Times:
    """One training, in seconds and environment steps.

    Attributes:
        steps: Environment steps.
        rollout: Seconds of collecting them.
        update: Seconds of gradient steps.
        share: Share of V* on validation tasks at the end.
    """

    steps: int
    rollout: float
    update: float
    share: float

    @property
    def seconds(self) -> float:
        """All seconds of training."""
        return self.rollout + self.update


class TimedPPO(MaskablePPO):
    """MaskablePPO that keeps the seconds of its two halves."""

    rollout_seconds = 0.0
    update_seconds = 0.0

    def collect_rollouts(self, *args: Any, **keywords: Any) -> bool:
        """Collect a rollout, with the time taken."""
        began = time.perf_counter()
        result: bool = super().collect_rollouts(*args, **keywords)
        self.rollout_seconds += time.perf_counter() - began
        return result

    def train(self) -> None:
        """Update the policy, with the time taken."""
        began = time.perf_counter()
        super().train()
        self.update_seconds += time.perf_counter() - began


def timed_training(envs: VecEnv, share: float, most_steps: int) -> Times:
    """Train with the settings of the preset `quick` until a share of V* is reached, or the steps are used."""
    config = load_config("quick")
    rollout_steps = config.num_envs * config.rollout_steps // envs.num_envs
    model = TimedPPO(
        WorkflowPolicy,
        envs,
        n_steps=rollout_steps,
        batch_size=config.batch_size,
        n_epochs=config.epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        learning_rate=config.learning_rate,
        ent_coef=config.entropy,
        max_grad_norm=config.max_gradient_norm,
        policy_kwargs={"features_extractor_kwargs": {"architecture": "transformer"}},
        seed=0,
        device="cpu",
    )
    library = default_library()
    _, held_out = training_tasks(config, library)
    validator = Validator(held_out, config.validation_episodes, WorkflowOptions(library=library))
    reached = 0.0
    while reached < share and model.num_timesteps < most_steps:
        model.learn(rollout_steps * envs.num_envs, reset_num_timesteps=False)
        reached = validator.success(network_of(model)) / validator.optimum
    return Times(model.num_timesteps, model.rollout_seconds, model.update_seconds, reached)


def main() -> None:
    """Train twice and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.95, help="share of V* at which a training ends")
    parser.add_argument("--most", type=int, default=400_000, help="environment steps after which it ends in any case")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = load_config("quick")
    tasks, _ = training_tasks(config, default_library())
    print(this_machine().to_text())
    batched_envs = WorkflowVecEnv(make_environments(config, WorkflowOptions(tasks=tasks)))
    batched = timed_training(batched_envs, arguments.share, arguments.most)
    scalar_envs = DummyVecEnv([lambda: WorkflowEnv(tasks="train") for _ in range(SCALAR_ENVS)])
    scalar = timed_training(scalar_envs, arguments.share, arguments.most)
    for name, times in (("batched", batched), (f"{SCALAR_ENVS} scalar environments", scalar)):
        print(
            f"{name}: {times.steps:,} steps to {times.share:.3f} of V*, {times.seconds:.0f} s "
            f"(rollouts {times.steps / times.rollout:,.0f} steps/s, updates {times.steps / times.update:,.0f} steps/s)"
        )
    rollouts = (batched.steps / batched.rollout) / (scalar.steps / scalar.rollout)
    print(f"rollouts: {rollouts:.1f} times as fast (aim: at least 4)")
    print(f"wall time to the share: {batched.seconds / scalar.seconds:.2f} of the scalar's (aim: at most 0.5)")


if __name__ == "__main__":
    main()
