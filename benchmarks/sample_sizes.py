"""How many episodes it takes to see a difference of 3 points between two policies, by how they are compared.

    python -m benchmarks.sample_sizes --folder contest [--tasks 200] [--seeds 40] [--processes 2] [--json]

Scripted policies, from the optimum to random calls, play the same tasks and seeds in Conversation-v0; the variances of
their differences say how many episodes each method needs. What is played lies in the folder, so that the command can be
stopped and called again. Four ways to compare, all on the same tasks:

    usual       each policy has luck of its own, nothing is taken off
    common      both meet the same luck, episodes are paired
    adjusted    luck of their own, and each policy's luck is taken off its score
    both        the same luck, and the luck of both is taken off the difference: what `resilisim compare` believes
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.contest_files import SALT, contest_of
from resilisim.statistics import cross_fitted_betas, fold_of, tasks_needed
from resilisim.statistics.comparison import adjusted_terms
from resilisim.statistics.luck import NUM_FOLDS
from verification.contest import Contest, pairs_of
from verification.contestants import CONTESTANTS
from verification.experiments import fold_sums

FloatArray = NDArray[np.float64]
DIFFERENCE, POWER, LEVEL = 0.03, 0.8, 0.05
AIM = 1.0 / 8.0
METHODS = ("usual", "common", "adjusted", "both", "richer")
RESAMPLES = 2000
RIDGE = 1e-6  # keeps a regression on sums that are all zero solvable

# The pairs with the aim, then those that are only measured.
AIMED = (
    ("plan follower", "optimum"),
    ("repairing follower", "optimum"),
    ("plan follower", "repairing follower"),
    ("plan follower", "plan follower, one search"),
    ("plan follower", "required-order follower"),
    ("plan follower", "required-order repairer"),
    ("required-order follower", "required-order repairer"),
    ("plan follower", "optimum, noise 0.1"),
    ("optimum", "optimum, noise 0.05"),
    ("optimum", "optimum, noise 0.1"),
    ("optimum", "optimum, noise 0.2"),
    ("optimum", "optimum, noise 0.4"),
    ("optimum, noise 0.05", "optimum, noise 0.1"),
    ("optimum, noise 0.1", "optimum, noise 0.2"),
    ("optimum, noise 0.1", "optimum, noise 0.2, choices of 0.1"),
    ("optimum, noise 0.1", "optimum, noise 0.1, twin"),
)
OTHERS = (
    ("plan follower", "switches"),
    ("plan follower", "searcher"),
    ("plan follower", "impatient"),
    ("plan follower", "gives up"),
    ("plan follower", "out of order"),
    ("out of order", "gives up"),
    ("gives up", "random"),
    ("optimum", "random"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one pair of policies needs.

    Attributes:
        a: The one.
        b: The other.
        difference: Success rate of A minus that of B, luck-adjusted.
        between: Variance of the true difference between tasks.
        within: Variance of the difference of one pair of episodes within a task, by method.
        episodes: Episodes of each policy, one on each task, by method; tasks count as a sample, as they do in the
            intervals of `resilisim compare`.
        share: Episodes as a share of those of the usual way: value, lower and upper end of the 95 % interval.
        share_given_tasks: The same if nothing is to be said about other tasks than those played.
    """

    a: str
    b: str
    difference: float
    between: float
    within: Mapping[str, float]
    episodes: Mapping[str, int]
    share: Mapping[str, tuple[float, float, float]]
    share_given_tasks: Mapping[str, tuple[float, float, float]]


def row_of(contest: Contest, name_a: str, name_b: str) -> Row:
    """Measure one pair."""
    names = [one.name for one in CONTESTANTS]
    a, b = names.index(name_a), names.index(name_b)
    outcome_a, outcome_b = contest.outcome[a], contest.outcome[b]
    terms = adjusted_terms(pairs_of(contest, a, b))[0].reshape(outcome_a.shape)
    apart_a, apart_b = adjusted_scores(contest, a), adjusted_scores(contest, b)
    richer = without_weighted_luck(contest, a, b)
    # (num_tasks,) variance of one pair within each task, by method
    within = {
        "usual": _within(outcome_a) + _within(outcome_b),
        "common": _within(outcome_a - outcome_b),
        "adjusted": _within(apart_a) + _within(apart_b),
        "both": _within(terms),
        "richer": _within(richer),
    }
    num_tasks, num_seeds = terms.shape
    means = terms.mean(axis=1)
    everything = np.arange(num_tasks)[None, :]
    resampled = np.random.Generator(np.random.Philox(0)).integers(num_tasks, size=(RESAMPLES, num_tasks))
    between = {
        key: _between(means[chosen], within["both"][chosen], num_seeds)
        for key, chosen in (("all", everything), ("resampled", resampled))
    }
    mean_within = {method: values[everything].mean(axis=1) for method, values in within.items()}
    again_within = {method: values[resampled].mean(axis=1) for method, values in within.items()}
    totals = {method: float(values[0] + between["all"][0]) for method, values in mean_within.items()}
    return Row(
        a=name_a,
        b=name_b,
        difference=float(terms.mean()),
        between=float(between["all"][0]),
        within={method: float(values[0]) for method, values in mean_within.items()},
        episodes={method: tasks_needed(DIFFERENCE, total, POWER, LEVEL) for method, total in totals.items()},
        share={
            method: _share(
                mean_within[method] + between["all"],
                mean_within["usual"] + between["all"],
                again_within[method] + between["resampled"],
                again_within["usual"] + between["resampled"],
            )
            for method in METHODS
        },
        share_given_tasks={
            method: _share(mean_within[method], mean_within["usual"], again_within[method], again_within["usual"])
            for method in METHODS
        },
    )


def adjusted_scores(contest: Contest, place: int) -> FloatArray:
    """Return outcome - beta L of every episode of a contestant, beta as in the summary of a run."""
    outcome, luck = contest.outcome[place], contest.luck[place, :, :, 0]
    folds = np.array([fold_of(task) for task in contest.task_ids])
    optimum = np.broadcast_to(contest.optimum[:, None], outcome.shape)
    betas = np.array(cross_fitted_betas(fold_sums(outcome, luck, optimum, folds)))[folds]
    adjusted: FloatArray = outcome - betas[:, None] * luck
    return adjusted


def without_weighted_luck(contest: Contest, a: int, b: int) -> FloatArray:
    """Return the difference less its regression on all weighted sums of luck, fitted on other folds of tasks."""
    difference = contest.outcome[a] - contest.outcome[b]  # (num_tasks, num_seeds)
    numbers = np.concatenate([contest.luck[a], contest.luck[b]], axis=2)  # (num_tasks, num_seeds, 2 x NUM_WEIGHTS)
    folds = np.array([fold_of(task) for task in contest.task_ids])
    rest: FloatArray = np.empty_like(difference)
    for fold in range(NUM_FOLDS):
        own, others = folds == fold, folds != fold
        centred = (numbers[others] - numbers[others].mean(axis=1, keepdims=True)).reshape(-1, numbers.shape[2])
        wanted = (difference[others] - difference[others].mean(axis=1, keepdims=True)).ravel()
        squares = centred.T @ centred + RIDGE * np.eye(numbers.shape[2])
        rest[own] = difference[own] - numbers[own] @ np.linalg.solve(squares, centred.T @ wanted)
    return rest


def _within(values: FloatArray) -> FloatArray:
    return np.asarray(values.var(axis=1, ddof=1), dtype=np.float64)


def _between(means: FloatArray, within: FloatArray, num_seeds: int) -> FloatArray:
    """Return the variance between tasks behind their means; one for each row of tasks."""
    found: FloatArray = np.maximum(means.var(axis=1, ddof=1) - within.mean(axis=1) / num_seeds, 0.0)
    return found


def _share(part: FloatArray, whole: FloatArray, parts: FloatArray, wholes: FloatArray) -> tuple[float, float, float]:
    low, high = np.quantile(parts / wholes, [0.025, 0.975])
    return float(part[0] / whole[0]), float(low), float(high)


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| A | B | A - B, points | usual | common draws | luck out | both | both / usual | on given tasks | aim 1/8 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        needed = " | ".join(f"{row.episodes[method]:,}" for method in METHODS[:4])
        aim = "" if (row.a, row.b) not in AIMED else "reached" if row.share["both"][0] <= AIM else "missed"
        lines.append(
            f"| {row.a} | {row.b} | {100 * row.difference:+.1f} | {needed} | {_fraction(row.share['both'])} | "
            f"{_fraction(row.share_given_tasks['both'])} | {aim} |"
        )
    return "\n".join(lines)


def parts_table(rows: list[Row]) -> str:
    """Return what each method leaves of the variance within tasks, as a Markdown table."""
    lines = [
        "| A | B | between tasks | usual | common draws | luck out | both | richer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shares = " | ".join(f"{row.share_given_tasks[method][0]:.3f}" for method in METHODS[1:])
        lines.append(f"| {row.a} | {row.b} | {row.between:.4f} | {row.within['usual']:.3f} | {shares} |")
    return "\n".join(lines)


def _fraction(share: tuple[float, float, float]) -> str:
    value, low, high = (1.0 / part for part in share)
    digits = 0 if value >= 10 else 1
    return f"1/{value:.{digits}f} [1/{high:.{digits}f}, 1/{low:.{digits}f}]"


def main() -> None:
    """Play what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the episodes are kept; a temporary one if omitted")
    parser.add_argument("--tasks", type=int, default=200, help="tasks, all with different required lists (200)")
    parser.add_argument("--seeds", type=int, default=40, help="seeds 0, 1, ... of each task (40)")
    parser.add_argument("--processes", type=int, default=2, help="processes that play (2)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder if given.folder is not None else Path(temporary)
        contest = contest_of(given.tasks, given.seeds, folder, given.processes)
    rows = [row_of(contest, a, b) for a, b in (*AIMED, *OTHERS)]
    if given.json:
        print(
            json.dumps(
                {"salt": SALT, "tasks": given.tasks, "seeds": given.seeds, "rows": [*map(asdict, rows)]}, indent=1
            )
        )
        return
    print(f"{contest.outcome.size:,} episodes: {given.tasks} tasks, seeds 0 to {given.seeds - 1}, salt {SALT!r}\n")
    print(table(rows))
    print()
    print(parts_table(rows))


if __name__ == "__main__":
    main()
