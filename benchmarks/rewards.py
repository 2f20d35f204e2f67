"""The rewards success, value and advantage compared: how well gradients agree, how noisy they are, how fast PPO learns.

    nice python -m benchmarks.rewards --out runs/rewards [--steps 200000] [--seeds 3] [--images docs/images]

Training runs that stand in OUT/training.jsonl are not repeated, so the command can be stopped and called again. It
prints the tables of docs/results/rewards.md and draws its two plots.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import this_machine
from resilisim.policies.ppo.config import TrainingConfig, load_config
from resilisim.policies.ppo.training import train
from resilisim.run_folder import JsonLinesWriter, read_json_lines

REWARDS = ("success", "value", "advantage")
SHOWN_STEPS = (50_000, 100_000, 200_000)

# What differs from the preset `quick`: rollouts of 10,000 steps, a limit of steps, an evaluation after each rollout.
TRAINING: Mapping[str, Any] = {
    "max_minutes": "none",
    "tensorboard": "false",
    "num_threads": 1,
    "num_envs": 500,
    "rollout_steps": 20,
    "batch_size": 1000,
    "evaluate_every": 10_000,
    "checkpoint_every": 10**9,
    "validation_tasks": 300,
    "validation_episodes": 10,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One training run."""

    reward: str
    seed: int
    steps: int


def config_of(job: Job) -> TrainingConfig:
    """Return the configuration of a run."""
    settings = {**TRAINING, "reward": job.reward, "seed": job.seed, "max_steps": job.steps}
    return load_config("quick", settings=[f"{name}={value}" for name, value in settings.items()])


def run(job: Job) -> dict[str, Any]:
    """Train, and return the share of V* at each evaluation."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        train(config_of(job), Path(folder) / "run")
        lines = list(read_json_lines(Path(folder) / "run" / "progress.jsonl"))
    shares = {str(line["steps"]): line["share"] for line in lines}
    return {
        "reward": job.reward,
        "seed": job.seed,
        "steps": job.steps,
        "shares": shares,
        "seconds": round(time.monotonic() - began, 1),
    }


def train_missing(path: Path, steps: int, seeds: int) -> list[dict[str, Any]]:
    """Train the runs that are not in a file yet, one after the other, and return all of them."""
    done = list(read_json_lines(path)) if path.exists() else []
    known = {(row["reward"], row["seed"], row["steps"]) for row in done}
    jobs = [Job(reward, seed, steps) for seed in range(seeds) for reward in REWARDS]
    with JsonLinesWriter(path) as writer:
        for job in jobs:
            if (job.reward, job.seed, job.steps) not in known:
                done.append(run(job))
                writer.write(done[-1])
                print(json.dumps(done[-1]), flush=True)
    return done


def training_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the share of V* of each reward after so many steps as a Markdown table."""
    shown = [steps for steps in SHOWN_STEPS if all(str(steps) in row["shares"] for row in rows)]
    lines = ["| reward | " + " | ".join(f"{steps:,} steps" for steps in shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for reward in REWARDS:
        cells = []
        for steps in shown:
            shares = [row["shares"][str(steps)] for row in rows if row["reward"] == reward]
            cells.append(f"{np.mean(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})")
        lines.append(f"| `{reward}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of what was measured; what is there is kept")
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps of a training run")
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each reward, with the seeds 0, 1, ...")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = train_missing(arguments.out / "training.jsonl", arguments.steps, arguments.seeds)
    print(this_machine().to_text())
    print(training_table(rows))


if __name__ == "__main__":
    main()
