"""Two trained policies on the same random libraries with the same luck: by how much the second succeeds more often.

`python -m benchmarks.generality default generalist 10 30` takes for each size and each part of a law, and for none, the
four libraries that `resilisim train evaluate --random-tools` takes, three tasks of each, 40 episodes of each task, and
prints the difference for each part and over all libraries, with 95 % intervals over libraries.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch

from resilisim.envs.random_libraries import random_settings
from resilisim.policies.ppo.checkpoint import load_checkpoint
from resilisim.policies.ppo.policy import actor_of
from resilisim.policies.ppo.validation import play_closed_loop
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator.failure_model import PARTS

LIBRARIES, TASKS, EPISODES = 4, 3, 40


def difference(first: str, second: str, num_tools: int, part: str | None, number: int) -> float:
    """Return the second policy's success less the first one's in one library."""
    parts = () if part is None else (part,)
    drawn = random_settings("test", number, TASKS, num_tools=num_tools, parts=parts, solved=True)
    law = drawn.options.failure_model()
    one, other = (
        play_closed_loop(
            actor_of(load_checkpoint(name), law), drawn.tasks, EPISODES, salt=EVALUATION_SALT, options=drawn.options
        ).mean()
        for name in (first, second)
    )
    return float(other - one)


def show(name: str, differences: Sequence[float]) -> None:
    """Print a mean with its interval."""
    mean, error = np.mean(differences), np.std(differences, ddof=1) / len(differences) ** 0.5
    low, high = mean - 1.96 * error, mean + 1.96 * error
    print(f"{name}: {mean:+.3f} ({low:+.3f} to {high:+.3f}), {len(differences)} libraries", flush=True)


def main(first: str, second: str, sizes: Sequence[int]) -> None:
    """Print the differences."""
    torch.set_num_threads(1)
    everything: list[float] = []
    for part in (None, *PARTS):
        found = [difference(first, second, size, part, number) for size in sizes for number in range(LIBRARIES)]
        show(part or "none", found)
        everything += found
    show("all", everything)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]])
