"""What a curriculum is worth: none, the paper's and ours, on the same steps, three seeds each, in one table.

    python -m benchmarks.curricula --out curricula.jsonl [--steps 24576] [--seeds 3] [--processes 2]
    python -m benchmarks.curricula --out curricula.jsonl --table

Runs that stand in the file are not repeated, so the command can be stopped and called again. The share of V* is that of
test tasks of benchmark-v1 under the benchmark law, closed loop, the same luck for every run, of the policy at the end;
its interval is that of the mean over seeds. The rollouts are of 128 environments, so that stages can change often.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.measurement import this_machine
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.policies.ppo.checkpoint import (
    PROGRESS_FILE,
    RESUME_FILE,
    load_checkpoint,
    part_of,
    read_resume_point,
)
from resilisim.policies.ppo.config import TrainingConfig, load_config
from resilisim.policies.ppo.network import WorkflowActor
from resilisim.policies.ppo.policy import patterns_of
from resilisim.policies.ppo.training import train
from resilisim.policies.ppo.validation import optima_of, play_closed_loop
from resilisim.run_folder import JsonLinesWriter, read_json_lines
from resilisim.seeding import EVALUATION_SALT
from resilisim.statistics.estimates import clustered_mean
from resilisim.tables.table import Cell, Table
from resilisim.tasks.sources import read_tasks, sample_tasks
from resilisim.tool_library import default_library

TASKS: Final = "benchmark-v1"
NUM_TASKS, EPISODES = 300, 10
TRAINING: Final = {"law": "training", "reward": "two_phase", "reward_scale": 0.01}
CURRICULA: Final = ("none", "paper", "optimum")
UNSOLVED: Final = ("none", "paper")  # ours needs a law that is solved
# What is trained: the preset, what differs from it, and the curricula. The first is the control.
TRAININGS: Final[Mapping[str, tuple[str, Mapping[str, Any], Sequence[str]]]] = {
    "benchmark law, plain reward": ("quick", {}, CURRICULA),
    "the same, no preference for awaited tools": ("quick", {"initial_prior": 0.0}, CURRICULA),
    "training law, two-phase reward": ("quick", TRAINING, UNSOLVED),
    "all of the paper": ("paper", {}, UNSOLVED),
}
COMMON: Final = {"tasks": TASKS, "num_envs": 128, "max_minutes": None, "tensorboard": False, "num_threads": 1}
NETWORK = "features_extractor.network."  # what its weights begin with in the point to resume from


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    training: str
    curriculum: str
    seed: int
    steps: int

    def config(self) -> TrainingConfig:
        """Return its configuration."""
        preset, settings, _ = TRAININGS[self.training]
        own = {"curriculum": self.curriculum, "seed": self.seed, "max_steps": self.steps, "device": "cpu"}
        seldom = {"evaluate_every": self.steps, "validation_tasks": 1, "validation_episodes": 1}
        values = {**COMMON, **settings, **own, **seldom, "batch_size": 1024}
        return load_config(
            preset, settings=[f"{name}={'none' if value is None else value}" for name, value in values.items()]
        )


def jobs(seeds: int, steps: int) -> list[Job]:
    """Return all runs, seed by seed."""
    return [
        Job(training, curriculum, seed, steps)
        for seed in range(seeds)
        for training, (_, _, curricula) in TRAININGS.items()
        for curriculum in curricula
    ]


def run(job: Job) -> dict[str, Any]:
    """Train and measure one run."""
    config, began, used = job.config(), time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run")
        last = list(read_json_lines(Path(folder) / "run" / PROGRESS_FILE))[-1]
        loaded = load_checkpoint(Path(folder) / "run")
        point = read_resume_point(Path(folder) / "run" / RESUME_FILE)
    if point is None:
        raise ValueError("a finished run has no point to resume from")
    final = part_of(point.arrays, "policy")  # of the end, not the best in validation
    loaded.network.load_state_dict(
        {
            name.removeprefix(NETWORK): torch.from_numpy(array)
            for name, array in final.items()
            if name.startswith(NETWORK)
        }
    )
    tasks = sample_tasks(read_tasks(TASKS, default_library()), NUM_TASKS, split="test")
    played = play_closed_loop(
        WorkflowActor(loaded.network),
        tasks,
        EPISODES,
        salt=EVALUATION_SALT,
        options=WorkflowOptions(filters=config.filters, required=config.required),
        patterns=patterns_of(loaded, default_library()),
    )
    return {
        "training": job.training,
        "curriculum": job.curriculum,
        "seed": job.seed,
        "steps": job.steps,
        "success": float(played.mean()),
        "optimum": float(np.mean(optima_of(tasks, default_library()))),
        "stage": last["parts"].get("stage"),
        "success_in_training": last["training"]["success"],
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(time.process_time() - used, 1),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the results, a row for each training and curriculum."""
    listed = []
    for training in TRAININGS:
        for curriculum in CURRICULA:
            own = [row for row in rows if (row["training"], row["curriculum"]) == (training, curriculum)]
            if own:
                listed.append([training, curriculum, *_cells(own)])
    headings = (
        "training",
        "curriculum",
        "share of V*",
        "least to most",
        "seeds",
        "in training",
        "stage",
        "CPU seconds",
    )
    steps = sorted({row["steps"] for row in rows})
    title = f"after {', '.join(f'{number:,}' for number in steps)} steps; means over seeds, 95% intervals"
    return Table(title, headings, listed, text_columns=2)


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[Cell | str | int]:
    shares = [row["success"] / row["optimum"] for row in rows]
    mean = clustered_mean(shares, [1] * len(shares))
    stages = [str(row["stage"]) if row["stage"] is None else f"{row['stage']:.0f}" for row in rows]
    return [
        Cell(f"{mean.value:.3f}", detail=f"[{mean.low:.3f}, {mean.high:.3f}]" if len(rows) > 1 else ""),
        f"{min(shares):.3f} to {max(shares):.3f}",
        len(rows),
        f"{np.mean([row['success_in_training'] for row in rows]):.3f}",
        "" if rows[0]["stage"] is None else ", ".join(stages),
        f"{np.mean([row['processor_seconds'] for row in rows]):.0f}",
    ]


def main() -> None:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines file of the runs; those in it are kept")
    parser.add_argument("--steps", type=int, default=24_576, help="environment steps of a run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each, with the seeds 0, 1, ...")
    parser.add_argument("--processes", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument("--table", action="store_true", help="train nothing, print the table of what is there")
    arguments = parser.parse_args()
    done = list(read_json_lines(arguments.out)) if arguments.out.exists() else []
    if not arguments.table:
        known = {(row["training"], row["curriculum"], row["seed"], row["steps"]) for row in done}
        wanted = jobs(arguments.seeds, arguments.steps)
        missing = [job for job in wanted if (job.training, job.curriculum, job.seed, job.steps) not in known]
        spawned = multiprocessing.get_context("spawn")
        with (
            JsonLinesWriter(arguments.out) as writer,
            ProcessPoolExecutor(arguments.processes, mp_context=spawned) as pool,
        ):
            for number, future in enumerate(as_completed([pool.submit(run, job) for job in missing]), start=1):
                row = future.result()
                writer.write(row)
                done.append(row)
                print(f"{number} of {len(missing)}: {json.dumps(row)}", flush=True)
    print(this_machine().to_text())
    print(table(done))


if __name__ == "__main__":
    main()
