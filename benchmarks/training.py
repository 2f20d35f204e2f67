"""What the batched environment is worth in training: the same MaskablePPO and network on 16 scalar environments.

    python -m benchmarks.training [--share 0.95] [--most 400000]
    python -m benchmarks.training --updates 5
    python -m benchmarks.training --seeds 3

Prints the steps a second of collecting rollouts and of the updates, and the wall time until the policy reaches a share
of V* on validation tasks, for both, as ratios in one run. One seed: the ratio of times is an example, not a mean.

The second command prints the processor time of rollouts and updates of the preset `quick`, with the network's attention
as it is and with the softmax along the last axis, as one would write it down first, in turns and on one thread.

The third command prints environment steps and processor time that trainings need to shares of V* on validation tasks:
as the first release trained, as `quick` does now, and by exact advantages.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor, nn

from benchmarks.measurement import this_machine
from resilisim.envs.workflow.env import WorkflowEnv
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.policies.ppo.config import load_config
from resilisim.policies.ppo.network import Layer
from resilisim.policies.ppo.parts import Parts
from resilisim.policies.ppo.sb3 import WorkflowPolicy, WorkflowVecEnv
from resilisim.policies.ppo.training import make_environments, make_model, network_of, training_tasks
from resilisim.policies.ppo.validation import Validator
from resilisim.tool_library import default_library

SCALAR_ENVS = 16
SHARES = (0.9, 0.95, 0.98)


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


def last_axis_layer(layer: Layer, tokens: Tensor) -> Tensor:
    """Compute what `Layer.forward` does with a row of scores, not a column, for each head of a token."""
    batch, length, width = tokens.shape
    sizes = [width, layer.head_width, layer.head_width]
    query, key, value = torch.split(layer.query_key_value(layer.attention_norm(tokens)), sizes, dim=-1)
    query = query.reshape(batch, length * layer.heads, layer.head_width)
    scores = torch.bmm(query, key.transpose(1, 2)) * layer.head_width**-0.5
    attended = torch.bmm(scores.softmax(dim=-1), value)
    tokens = tokens + layer.attention_out(attended.view(batch, length, width))
    hidden: Tensor = layer.hidden_out(nn.functional.relu(layer.hidden(layer.hidden_norm(tokens))))
    return tokens + hidden


def print_update_times(updates: int) -> None:
    """Print medians of processor time over so many updates and rollouts with each way to compute a layer."""
    torch.set_num_threads(1)
    config = load_config("quick")
    tasks, _ = training_tasks(config, default_library())
    envs = make_environments(config, WorkflowOptions(tasks=tasks))
    model = make_model(config, envs, Parts(config), torch.device("cpu"))
    model.set_logger(Logger(None, []))
    model.learn(config.num_envs * config.rollout_steps)
    callback = model._setup_learn(0, None, reset_num_timesteps=False)[1]
    env: Any = model.env
    halves: dict[str, Callable[[], object]] = {
        "rollout": lambda: model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps),
        "update": model.train,
    }
    for half, run in halves.items():
        times: dict[str, list[float]] = {"as it is": [], "last axis": []}
        for _ in range(updates):
            for name, forward in (("as it is", Layer.forward), ("last axis", last_axis_layer)):
                with mock.patch.object(Layer, "forward", forward):
                    began = time.process_time()
                    run()
                    times[name].append(time.process_time() - began)
        now, before = (statistics.median(values) for values in times.values())
        print(
            f"{half}: {now:.2f} s, along the last axis {before:.2f} s: {before / now:.2f} times (medians of {updates})"
        )


# Name of a way to train: how a layer is computed, and settings beside those of `quick`.
_WAYS: Final[Mapping[str, tuple[Callable[[Layer, Tensor], Tensor], tuple[str, ...]]]] = {
    "success, as first written": (last_axis_layer, ()),
    "success": (Layer.forward, ()),
    "success, 2 epochs of 2,048": (Layer.forward, ("epochs=2", "batch_size=2048")),
    "advantage": (Layer.forward, ("reward=advantage", "gamma=0")),
    "advantage, 2 epochs of 2,048": (Layer.forward, ("reward=advantage", "gamma=0", "epochs=2", "batch_size=2048")),
}


def costs_of_shares(way: str, seed: int, most_steps: int) -> dict[float, tuple[int, float]]:
    """Return, for each of `SHARES` reached, the steps and the seconds of processor time until it first was.

    Evaluations, one every 8,192 steps, cost nothing here. The learning rate stays what it is at the start of `quick`.
    """
    forward, settings = _WAYS[way]
    config = load_config("quick", settings=(*settings, f"seed={seed}"))
    library = default_library()
    tasks, held_out = training_tasks(config, library)
    model = make_model(
        config, make_environments(config, WorkflowOptions(tasks=tasks)), Parts(config), torch.device("cpu")
    )
    model.set_logger(Logger(None, []))
    callback = model._setup_learn(0, None, reset_num_timesteps=False)[1]
    env: Any = model.env
    validator = Validator(held_out, config.validation_episodes, WorkflowOptions(library=library))
    reached: dict[float, tuple[int, float]] = {}
    spent = 0.0
    with mock.patch.object(Layer, "forward", forward):
        while len(reached) < len(SHARES) and model.num_timesteps < most_steps:
            began = time.process_time()
            model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps)
            model.train()
            spent += time.process_time() - began
            share = validator.success(network_of(model)) / validator.optimum
            for least in SHARES:
                if share >= least:
                    reached.setdefault(least, (model.num_timesteps, spent))
    return reached


def print_costs_of_shares(seeds: int, most_steps: int) -> None:
    """Print, for each way to train and share of V*, steps and seconds of every seed, and their medians."""
    torch.set_num_threads(1)
    found: dict[str, list[dict[float, tuple[int, float]]]] = {way: [] for way in _WAYS}
    for seed in range(seeds):
        for way in _WAYS:  # in turns, so that what else the machine does meets all of them
            found[way].append(costs_of_shares(way, seed, most_steps))
            shown = ", ".join(
                f"{share:g} after {steps:,} steps, {seconds:.0f} s"
                for share, (steps, seconds) in found[way][-1].items()
            )
            print(f"seed {seed}, {way}: {shown or 'none'}", flush=True)
    for way, runs in found.items():
        cells = []
        for share in SHARES:
            done = [run[share] for run in runs if share in run]
            median = f"{statistics.median(seconds for _, seconds in done):.0f} s" if len(done) == seeds else "-"
            cells.append(f"{share:g}: {median} ({len(done)} of {seeds})")
        print(f"{way}: {', '.join(cells)}")


def main() -> None:
    """Train twice and print the ratios, or compare ways to train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.95, help="share of V* at which a training ends")
    parser.add_argument("--most", type=int, default=400_000, help="environment steps after which it ends in any case")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--updates", type=int, help="compare the processor time of so many updates instead")
    parser.add_argument("--seeds", type=int, help="compare what shares of V* cost, over so many seeds, instead")
    arguments = parser.parse_args()
    if arguments.updates:
        print_update_times(arguments.updates)
        return
    if arguments.seeds:
        print_costs_of_shares(arguments.seeds, arguments.most)
        return
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
