"""What each piece of the training is worth: every variant trained with the same steps, three seeds each, on one table.

    python -m benchmarks.ablations --out ablations.jsonl [--steps 120000] [--seeds 3] [--processes 2]
    python -m benchmarks.ablations --out ablations.jsonl --table

Runs that stand in the file are not repeated, so the command can be stopped and called again. The table gives the share
of V* on tasks of the test split, under the benchmark law, closed loop, with the filters that the variant was trained
with; the exact optimum under a filter is the most that its variants can reach.
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
from typing import Any

import numpy as np

from benchmarks.baselines import GreedyActor, RandomActor, RequiredOrderActor
from benchmarks.filtered_optimum import filtered_optimum
from benchmarks.measurement import this_machine
from resilisim.envs.workflow.options import WorkflowOptions, resolve_tasks
from resilisim.policies.ppo.checkpoint import load_checkpoint
from resilisim.policies.ppo.config import load_config
from resilisim.policies.ppo.network import WorkflowActor
from resilisim.policies.ppo.policy import patterns_of
from resilisim.policies.ppo.training import train
from resilisim.policies.ppo.validation import Actor, play_closed_loop
from resilisim.run_folder import JsonLinesWriter, read_json_lines
from resilisim.seeding import EVALUATION_SALT, Draws
from resilisim.simulator.exact import solve_all
from resilisim.simulator.problem import Problem, build_problem
from resilisim.tasks import Task
from resilisim.tool_library import default_library

NUM_TASKS = 300
EPISODES = 20
PAPER_SCALE = {"reward": "two_phase", "reward_scale": 0.01}
TRAINING = {"law": "training", **PAPER_SCALE}

# Name -> what differs from the control, the preset `quick`.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "control (plain reward)": {},
    "MLP": {"network": "mlp", "width": 128},
    "no preference for awaited tools": {"initial_prior": 0.0},
    "imitation of Q* first": {"imitation_updates": 300},
    "required hidden": {"required": "hidden"},
    "two-phase reward": PAPER_SCALE,
    "two-phase reward, adjustment": {**PAPER_SCALE, "reward_adjustment": True},
    "patterns": {"patterns": True},
    "constraint filter": {"filters": ("constraint",)},
    "dependency filter": {"filters": ("dependency",)},
    "semantic filter": {"filters": ("semantic",)},
    "training law": {"law": "training"},
    "training law, two-phase reward": TRAINING,
    "training law, two-phase reward, curriculum": {**TRAINING, "curriculum": True},
    "two-phase reward, adaptive learning rate and entropy": {
        **PAPER_SCALE,
        "learning_rate_schedule": "adaptive",
        "adaptive_entropy": True,
    },
    "paper (all of it)": {},
}
PAPER = "paper (all of it)"
# What the control leaves to the preset and every variant has in common.
COMMON = {"max_minutes": None, "tensorboard": False, "num_threads": 1}


@dataclass(frozen=True, slots=True)
class Job:
    """One training run: a variant, a seed, and how long."""

    variant: str
    seed: int
    steps: int


def config_of(job: Job) -> Any:
    """Return the configuration of a run."""
    preset = "paper" if job.variant == PAPER else "quick"
    settings = {**COMMON, **VARIANTS[job.variant], "seed": job.seed, "max_steps": job.steps}
    settings |= {"evaluate_every": job.steps // 2, "checkpoint_every": job.steps}
    return load_config(preset, settings=[f"{name}={_text(value)}" for name, value in settings.items()])


def _text(value: Any) -> str:
    """Return a setting as the command line has it."""
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    return "none" if value is None else str(value).lower()


def test_tasks() -> list[Task]:
    """Return the tasks of the table: the same sample of the test split every time."""
    tasks = resolve_tasks("test", default_library())
    return Draws("ablations", "tasks").shuffled(tasks)[:NUM_TASKS]


def problems_of(tasks: Sequence[Task]) -> list[Problem]:
    """Return the problems of tasks under the benchmark law."""
    return [build_problem(default_library(), task.required_tools) for task in tasks]


def run(job: Job) -> dict[str, Any]:
    """Train and measure one run."""
    config = config_of(job)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, Path(folder) / "run")
        loaded = load_checkpoint(Path(folder) / "run")
        patterns = patterns_of(loaded, default_library())
        success = measure(WorkflowActor(loaded.network), config.filters, config.required, patterns)
    return {
        "variant": job.variant,
        "seed": job.seed,
        "steps": job.steps,
        "success": success,
        "validation": result.best.share,
        "seconds": round(time.monotonic() - began, 1),
    }


def measure(
    actor: Actor,
    filters: Sequence[str] = (),
    required: Any = "shown",
    patterns: Mapping[tuple[str, ...], float] | None = None,
) -> float:
    """Return the mean success of an actor on the table's tasks."""
    options = WorkflowOptions(filters=tuple(filters), required=required)
    played = play_closed_loop(actor, test_tasks(), EPISODES, salt=EVALUATION_SALT, options=options, patterns=patterns)
    return float(np.mean(played))


def references() -> dict[str, float]:
    """Return the mean values that the table is read against, as success rates."""
    problems = problems_of(test_tasks())
    values = solve_all(list(dict.fromkeys(problems)))
    rows = {"exact optimum (V*)": float(np.mean([values[problem].known_probabilities for problem in problems]))}
    for filters in (("constraint",), ("dependency",), ("dependency", "constraint")):
        best = {problem: filtered_optimum(problem, filters).value for problem in dict.fromkeys(problems)}
        name = f"exact optimum under the {' and '.join(filters)} filter{'s' if len(filters) > 1 else ''}"
        rows[name] = float(np.mean([best[problem] for problem in problems]))
    rows["greedy by success probability"] = measure(GreedyActor())
    rows["plan following"] = measure(RequiredOrderActor())
    rows["random among legal actions"] = measure(RandomActor("ablations"))
    return rows


def table(rows: Sequence[Mapping[str, Any]], reference: Mapping[str, float]) -> str:
    """Return the results as a Markdown table, the best variant first."""
    optimum = reference["exact optimum (V*)"]
    lines = [
        "| what | share of V* | least to most of the seeds | success | seconds of one run |",
        "|---|---|---|---|---|",
    ]
    listed = [
        (value / optimum, f"| *{name}* | {value / optimum:.3f} | | {value:.3f} | |")
        for name, value in reference.items()
    ]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == variant]
        success = [row["success"] for row in own]
        shares = [value / optimum for value in success]
        seconds = np.mean([row["seconds"] for row in own])
        spread = f"{min(shares):.3f} to {max(shares):.3f} ({len(own)})"
        mean = float(np.mean(shares))
        listed.append((mean, f"| {variant} | {mean:.3f} | {spread} | {np.mean(success):.3f} | {seconds:.0f} |"))
    return "\n".join([*lines, *(line for _, line in sorted(listed, key=lambda entry: -entry[0]))])


def main() -> None:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines file of the runs; those in it are kept")
    parser.add_argument("--steps", type=int, default=120_000, help="environment steps of a run")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each variant, with the seeds 0, 1, ...")
    parser.add_argument("--processes", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="only these variants")
    parser.add_argument("--table", action="store_true", help="train nothing, print the table of what is there")
    arguments = parser.parse_args()
    done = list(read_json_lines(arguments.out)) if arguments.out.exists() else []
    if not arguments.table:
        variants = arguments.variant or list(VARIANTS)
        wanted = [Job(name, seed, arguments.steps) for seed in range(arguments.seeds) for name in variants]
        known = {(row["variant"], row["seed"], row["steps"]) for row in done}
        jobs = [job for job in wanted if (job.variant, job.seed, job.steps) not in known]
        spawned = multiprocessing.get_context("spawn")
        with (
            JsonLinesWriter(arguments.out) as writer,
            ProcessPoolExecutor(arguments.processes, mp_context=spawned) as pool,
        ):
            for future in as_completed([pool.submit(run, job) for job in jobs]):
                row = future.result()
                writer.write(row)
                done = [*done, row]
                print(json.dumps(row), flush=True)
    print(this_machine().to_text())
    print(table(done, references()))


if __name__ == "__main__":
    main()
