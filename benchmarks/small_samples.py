"""How often 95 % intervals of a difference hold the true one, by how many tasks and seeds there are.

    python -m benchmarks.small_samples --folder contest [--experiments 2000] [--tasks 200] [--seeds 40] [--processes 2]

Experiments of every size are drawn from the episodes that `python -m benchmarks.sample_sizes` plays and keeps in the
folder, as in the check `comparison` of the verification; the intervals are those of `resilisim compare`.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.contest_files import contest_of
from resilisim.statistics.comparison import PAIRED, PAIRED_LUCK_ADJUSTED
from verification.contestants import CONTESTANTS
from verification.experiments import Experiments, World, compared, world_of

SIZES = ((10, 1), (10, 4), (20, 1), (20, 4), (50, 1), (50, 4), (100, 1), (100, 4), (300, 1))
PAIRS = (
    ("plan follower", "optimum"),
    ("optimum", "optimum, noise 0.1"),
    ("required-order follower", "required-order repairer"),
    ("plan follower", "searcher"),
    ("plan follower", "repairing follower"),
)


def coverage(
    world: World, pair: tuple[str, str], num_tasks: int, num_seeds: int, num_experiments: int
) -> dict[str, float]:
    """Return the share of experiments whose interval holds the true difference, by method."""
    names = [one.name for one in CONTESTANTS]
    a, b = names.index(pair[0]), names.index(pair[1])
    truth = world.success(a) - world.success(b)
    drawing = Experiments(world, num_tasks, num_seeds, np.random.Generator(np.random.Philox(0)))
    held: dict[str, int] = defaultdict(int)
    for _ in range(num_experiments):
        differences = compared(drawing.pairs(a, b, drawing.sample())).differences
        for method in (PAIRED, PAIRED_LUCK_ADJUSTED):
            low, high = differences[method].interval
            held[method] += low <= truth <= high
    return {method: count / num_experiments for method, count in held.items()}


def main() -> None:
    """Play what is missing, repeat the experiments, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the episodes are kept")
    parser.add_argument("--experiments", type=int, default=2000, help="experiments of each size (2,000)")
    parser.add_argument("--tasks", type=int, default=200, help="tasks of the world that is drawn from (200)")
    parser.add_argument("--seeds", type=int, default=40, help="seeds of each of its tasks (40)")
    parser.add_argument("--processes", type=int, default=2, help="processes that play (2)")
    given = parser.parse_args()
    world = world_of(contest_of(given.tasks, given.seeds, given.folder, given.processes))
    print(f"| A | B | {' | '.join(f'{tasks} x {seeds}' for tasks, seeds in SIZES)} |")
    print("|---|---|" + "---|" * len(SIZES))
    for pair in PAIRS:
        print(f"measuring: {' against '.join(pair)}", file=sys.stderr, flush=True)
        shares = [coverage(world, pair, *size, given.experiments) for size in SIZES]
        cells = [f"{100 * share[PAIRED]:.1f} / {100 * share[PAIRED_LUCK_ADJUSTED]:.1f}" for share in shares]
        print(f"| {pair[0]} | {pair[1]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
