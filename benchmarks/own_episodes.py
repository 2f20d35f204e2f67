"""What a model's own episodes teach it: gradients by exact advantages and by success, of the same episodes.

`python -m benchmarks.own_episodes runs/lm-all 12` lets the adapter of a training play so many groups (four or more) of
four episodes, each group of one task with one luck, four groups side by side, and prints after each four: the share of
V* that the model reaches at temperature 1; how many groups taught anything; and the share of signal in a group's
gradient, the squared length of the mean gradient by the mean squared length, with a jackknife error. Its inverse is how
many groups make signal and noise equal.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resilisim.chat.local import adapter_path, shipped_model_path
from resilisim.finetuning.config import Credit, load_config
from resilisim.finetuning.examples import Encoder
from resilisim.finetuning.model import add_adapter, load_base, start_from
from resilisim.finetuning.sampling import Played, Sampler, credits_of
from resilisim.finetuning.training import drawn_tasks, log_probabilities

GROUP, SIDE_BY_SIDE = 4, 4
# By name: the credit, and how many episodes it compares.
CREDITS: dict[str, tuple[Credit, int]] = {
    "advantage": ("advantage", 1),
    "advantage in groups": ("advantage", GROUP),
    "success in groups": ("success", GROUP),
}
SETTINGS = (
    "prompts=optimal,flawed,baseline",
    "train_tasks=40",
    f"batch_size={GROUP * SIDE_BY_SIDE}",
    f"group_size={GROUP}",
)


def main(start: str, groups: int) -> None:
    """Print what the episodes teach."""
    torch.set_num_threads(1)
    base, config = shipped_model_path(), load_config("cpu", settings=SETTINGS, stage="grpo")
    model = add_adapter(load_base(base, config.precision), config)
    start_from(model, adapter_path(start, base))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    sampler = Sampler(model, Encoder(base), config)
    openings = sampler.openings(drawn_tasks(config, "train", config.train_tasks))
    order = np.random.default_rng(config.seed).permutation(len(openings))[: max(groups, SIDE_BY_SIDE)]

    def gradient(group: list[Played], credits: list[NDArray[np.float64]]) -> NDArray[np.float32]:
        for episode, credit in zip(group, credits, strict=True):
            example = episode.learned(credit)
            if example is not None:
                torch.autograd.backward(-log_probabilities(model, [(example,)], config).sum() / GROUP)
        found = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
        model.zero_grad()
        return torch.cat([each.flatten() for each in found]).numpy()

    played: list[Played] = []
    gradients: dict[str, list[NDArray[np.float32]]] = {name: [] for name in CREDITS}
    for first in range(0, len(order), SIDE_BY_SIDE):
        beginnings = [openings[place] for place in order[first : first + SIDE_BY_SIDE] for _ in range(GROUP)]
        began = time.process_time()
        latest = sampler.play(beginnings, "snr", first)
        seconds, played = (time.process_time() - began) / len(latest), played + latest
        optimum, regret = (
            np.array(each) for each in zip(*((e.values[0], e.regrets.sum()) for e in played), strict=True)
        )
        share = 1.0 - regret.mean() / optimum.mean()
        print(f"{len(played)} episodes, {seconds:.1f} processor seconds each, {share:.3f} of V*")
        for name, (credit, compared) in CREDITS.items():
            found = credits_of(latest, credit, compared)
            for place in range(0, len(latest), GROUP):
                gradients[name].append(gradient(latest[place : place + GROUP], found[place : place + GROUP]))
            signal, error = share_of_signal(gradients[name])
            teaching = sum(bool(each.any()) for each in gradients[name])
            print(f"  {name}: {teaching} groups of {len(gradients[name])}, signal {signal:.3f} +- {error:.3f}")


def share_of_signal(gradients: list[NDArray[np.float32]]) -> tuple[float, float]:
    """Return the squared length of the mean of gradients by their mean squared length, without bias, and its error."""
    stacked = np.stack(gradients)
    products: Any = (stacked @ stacked.T).astype(np.float64)

    def share(rows: NDArray[np.int64]) -> float:
        some = products[np.ix_(rows, rows)]
        squares, size = np.trace(some), len(rows)
        return float((some.sum() - squares) / (size - 1) / squares) if squares > 0.0 else 0.0

    every = np.arange(len(gradients))
    without = np.array([share(np.delete(every, place)) for place in every])
    return share(every), float(np.sqrt((len(every) - 1) * without.var()))


if __name__ == "__main__":
    main(str(Path(sys.argv[1])), int(sys.argv[2]))
