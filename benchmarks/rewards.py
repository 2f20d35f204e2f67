"""The rewards success, value and advantage compared: how well gradients agree, how noisy they are, how fast PPO learns.

    nice python -m benchmarks.rewards --out runs/rewards

What stands in OUT/gradients.jsonl and OUT/training.jsonl is not measured again, so the command can be stopped and
called again. It prints the tables of docs/results/rewards.md and draws its two plots.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.measurement import REPOSITORY, this_machine
from benchmarks.reward_gradients import ESTIMATORS, STRENGTHS, Comparison, Player, compare, comparison_from
from resilisim.policies.ppo.config import TrainingConfig, load_config
from resilisim.policies.ppo.training import train, training_tasks
from resilisim.run_folder import JsonLinesWriter, read_json_lines
from resilisim.seeding import VALIDATION_SALT
from resilisim.simulator import Episode, build_problem
from resilisim.simulator.exact import known_probabilities, solve
from resilisim.simulator.state import outcome
from resilisim.tool_library import default_library

REWARDS = ("success", "value", "advantage")
SHOWN_STEPS = (50_000, 100_000, 200_000)
FIGURES = {
    "Cosine with the gradient of success, estimated from other episodes": ("agreement", ".2f"),
    "Variance of an episode's gradient / that of success": ("variance", ".2g"),
    "Mean cosine of a batch of 256 episodes with that gradient": ("batch", ".2f"),
}

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


def optimum_share() -> float:
    """Return the share of V* that the exact optimum itself reaches on the draws of the evaluations."""
    tasks = training_tasks(config_of(Job("success", 0, 1)), default_library())[1]
    problems = [build_problem(default_library(), task.required_tools) for task in tasks]
    won = 0
    for task, problem in zip(tasks, problems, strict=True):
        optimum = solve(problem)
        for seed in range(TRAINING["validation_episodes"]):
            episode = Episode(problem, task.instance_id, seed, VALIDATION_SALT)
            while episode.ended_by is None:
                episode.apply(optimum.best_action(episode.state))
            won += outcome(problem, episode.state)
    expected = sum(known_probabilities(problem) for problem in problems) * TRAINING["validation_episodes"]
    return float(won / expected)


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


def compare_missing(path: Path, episodes: int) -> list[Comparison]:
    """Compare the gradients of the agents that are not in a file yet, and return all of them."""
    done = [comparison_from(row) for row in read_json_lines(path)] if path.exists() else []
    known = {(one.strength, one.episodes) for one in done}
    missing = [strength for strength in STRENGTHS if (strength, episodes) not in known]
    player = Player() if missing else None
    with JsonLinesWriter(path) as writer:
        for strength in missing:
            done.append(compare(cast("Player", player), strength, episodes))
            writer.write(done[-1].to_mapping())
            print(f"compared gradients of the agent of strength {strength:g}", flush=True)
    return sorted(one for one in done if one.episodes == episodes)


def gradient_tables(rows: Sequence[Comparison]) -> str:
    """Return the check of the lemma and, for each figure, a Markdown table of agents x estimators."""
    lines = ["| strength | share of V* | sum of advantages - (success - V*) |", "|---|---|---|"]
    lines += [f"| {row.strength:g} | {row.share:.3f} | {row.lemma:+.4f} |" for row in rows]
    for title, (figure, form) in FIGURES.items():
        lines += [
            "",
            title,
            "",
            "| share of V* | " + " | ".join(ESTIMATORS) + " |",
            "|---" * (len(ESTIMATORS) + 1) + "|",
        ]
        for row in rows:
            cells = [f"{getattr(row, figure)[name]:{form}}" for name in ESTIMATORS]
            lines.append(f"| {row.share:.3f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


COLOURS = ("#666666", "#999999", "#1f77b4", "#d62728", "#17becf", "#ff7f0e", "#9467bd")


def plot_variance(rows: Sequence[Comparison], path: Path) -> None:
    """Draw the variance of each estimator beside that of success, by the quality of the agent."""
    figure, axes = _figure("share of V* that the agent reaches", "variance of its gradient / that of success")
    shares = [row.share for row in rows]
    for name, colour in zip(ESTIMATORS, COLOURS, strict=True):
        found = [row.variance[name] for row in rows]
        axes.plot(shares, [one.value for one in found], marker="o", markersize=3, color=colour, label=name)
        axes.fill_between(
            shares, [one.low for one in found], [one.high for one in found], color=colour, alpha=0.15, lw=0
        )
    axes.set_yscale("log")
    axes.legend(fontsize=8)
    _save(figure, path)


def plot_training(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the share of V* against the steps of training: the mean over the seeds, and least to most."""
    figure, axes = _figure("environment steps", "share of V* on validation tasks")
    for reward, colour in zip(REWARDS, (COLOURS[0], COLOURS[2], COLOURS[3]), strict=True):
        own = [row["shares"] for row in rows if row["reward"] == reward]
        steps = [number for number in map(int, own[0]) if all(str(number) in shares for shares in own)]
        shares = np.array([[one[str(number)] for number in steps] for one in own])
        axes.plot(steps, shares.mean(axis=0), color=colour, label=reward)
        axes.fill_between(steps, shares.min(axis=0), shares.max(axis=0), color=colour, alpha=0.15, lw=0)
    axes.set_ylim(0.5, 1.0)
    axes.legend(fontsize=8, loc="lower right")
    _save(figure, path)


def _figure(across: str, up: str) -> tuple[Any, Any]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "resilisim", "font.size": 9})
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=across, ylabel=up)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path}")


def main() -> None:
    """Measure what is missing, then print the tables and draw the plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of what was measured; what is there is kept")
    parser.add_argument("--episodes", type=int, default=65_536, help="episodes of an agent, and as many for reference")
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps of a training run")
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each reward, with the seeds 0, 1, ...")
    parser.add_argument("--images", type=Path, default=REPOSITORY / "docs" / "images", help="folder of the plots")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    compared = compare_missing(arguments.out / "gradients.jsonl", arguments.episodes)
    trained = train_missing(arguments.out / "training.jsonl", arguments.steps, arguments.seeds)
    print(this_machine().to_text())
    print(gradient_tables(compared))
    print(training_table(trained))
    print(f"the exact optimum on the draws of the evaluations: {optimum_share():.3f}")
    arguments.images.mkdir(parents=True, exist_ok=True)
    plot_variance(compared, arguments.images / "rewards_variance.svg")
    plot_training(trained, arguments.images / "rewards_training.svg")


if __name__ == "__main__":
    main()
