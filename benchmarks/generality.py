"""Two trained policies on the same random libraries with the same luck: each one's share of V*, and the difference.

`python -m benchmarks.generality benchmark default 10 30` takes for each size, and for each part of a law and for none,
the first 16 libraries of those that `resilisim train evaluate --random-tools` takes, three tasks of each, 200 episodes
of each task, and prints a table: the optimum, each policy's share of it, and by how much the second succeeds more
often, with 95 % intervals clustered by library. `--part rate_limit` (repeatable; `none` is without) takes some parts
only. A library's luck is the same under every part, so rows are not independent.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from resilisim.evaluation.trained import PLAIN, play_random_library
from resilisim.policies.ppo.checkpoint import load_checkpoint
from resilisim.simulator.failure_model import PARTS
from resilisim.statistics import clustered_mean, clustered_ratio

LIBRARIES, TASKS, EPISODES = 16, 3, 200


def show(tools: str, part: str, rows: Sequence[tuple[list[float], float]]) -> None:
    """Print a row of the table."""
    ones, optima = [1.0] * len(rows), [optimum for _, optimum in rows]
    cells = [tools, part, f"{np.mean(optima):.3f}"]
    for policy in range(2):
        share = clustered_ratio([found[policy] for found, _ in rows], optima, len(rows)).to_mapping()
        cells.append(f"{share['value']:.3f} | {share['low']:.2f} to {share['high']:.2f}")
    more = clustered_mean([found[1] - found[0] for found, _ in rows], ones)
    low, high = more.to_mapping()["low"], more.to_mapping()["high"]
    print(f"| {' | '.join(cells)} | {more.value:+.3f} | {low:+.3f} to {high:+.3f} |", flush=True)


def main() -> None:
    """Play, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policies", nargs=2)
    parser.add_argument("sizes", nargs="+", type=int)
    parser.add_argument("--part", action="append", choices=(PLAIN, *PARTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names, parts = arguments.policies, arguments.part or (PLAIN, *PARTS)
    policies = [load_checkpoint(name) for name in names]
    head = ("tools", "part", "optimum", names[0], "95 % interval", names[1], "95 % interval", "more", "95 % interval")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for size in arguments.sizes:
        everything = []
        for part in parts:
            played = [play_random_library(policies, size, part, number, TASKS, EPISODES) for number in range(LIBRARIES)]
            rows = [(found, float(np.mean(drawn.optima))) for found, drawn in played]
            show(str(size), part, rows)
            everything.append(rows)
        if len(parts) > 1:  # a library under all parts is one cluster: its luck is the same
            means = np.mean([[[*found, optimum] for found, optimum in rows] for rows in everything], axis=0)
            show(str(size), "all", [([first, second], optimum) for first, second, optimum in means.tolist()])


if __name__ == "__main__":
    main()
