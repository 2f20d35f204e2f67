"""Check: luck is taken off agents far from the optimum as well, without bias, with honest intervals, and never worse.

Agents play one task with 30, 60, 100 and 300 seeds, and 60 tasks with one seed, in experiments that are drawn from
worlds (`experiments`) and summarised as a run is. Of all intervals of a size, 93 to 97% have to hold the truth: fewer
are too narrow, more are too wide. What more than the luck by V* is worth is told beside what that alone is worth:
variances of the estimates divided by that of the raw rate, the tasks being given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.statistics.estimates import clustered_mean
from resilisim.statistics.luck_adjustment import NUM_FOLDS, NUM_MORE, fit_beta, moments_of
from verification.contest import distinct_tasks, play_contest
from verification.contestants import CONTESTANTS
from verification.experiments import Experiments, World, world_of
from verification.findings import Finding
from verification.statistics import at_least_rate, clustered_mean_is, not_below, within_rates, worst_of

FloatArray = NDArray[np.float64]
SOURCE = "SPEC 7, luck-adjusted score"
AGENTS = ("gives up", "impatient", "out of order", "plan follower", "optimum, noise 0.05")
SINGLE_TASKS, SINGLE_SEEDS = (0, 11, 38), 600  # three, five and four tools, in which every agent wins now and then
MANY_TASKS, MANY_SEEDS = 60, 20
SEEDS = (30, 60, 100, 300)
NUM_EXPERIMENTS = {1: 100, MANY_TASKS: 300}  # of each agent, by tasks
BAND = (0.93, 0.97)  # coverage of the intervals of 95% of each size
LEVEL = 0.93  # that of each agent alone keeps at least
LEAST_RATE = 0.05  # rarer successes than that leave nothing to be fitted


@dataclass(frozen=True, slots=True)
class Trial:
    """One agent in many experiments of one size; arrays have the shape (num_experiments,).

    Attributes:
        agent: Its name.
        size: Tasks and seeds.
        raw: Error of the raw rate.
        by_luck: Error with the luck by V* alone taken off.
        adjusted: Error of the luck-adjusted rate.
        covers: 1 where its interval holds the truth.
        careless: 1 where that of a fit to the episodes that are scored does.
    """

    agent: str
    size: tuple[int, int]
    raw: FloatArray
    by_luck: FloatArray
    adjusted: FloatArray
    covers: FloatArray
    careless: FloatArray


def jobs(shift: int) -> list[tuple[int, int]]:
    """Return the single task, or -1 for many, and the shift of every piece of work."""
    return [(-1, shift), *((task, shift) for task in SINGLE_TASKS)]


def work(job: tuple[int, int]) -> list[Trial]:
    """Play the agents, and repeat experiments with their episodes."""
    task, shift = job
    by_name = {one.name: one for one in CONTESTANTS}
    tasks = distinct_tasks(MANY_TASKS)
    single = task >= 0
    num_seeds = SINGLE_SEEDS if single else MANY_SEEDS
    salt = f"verification/fitted-luck/{shift}"
    contest = play_contest(
        [by_name[name] for name in AGENTS], tasks[task : task + 1] if single else tasks, num_seeds, salt
    )
    world, generator = world_of(contest), np.random.Generator(np.random.Philox([shift, task + 1]))
    sizes = [(1, seeds) for seeds in SEEDS] if single else [(MANY_TASKS, 1)]
    return [
        _trial(world, place, size, generator)
        for place in range(len(AGENTS))
        for size in sizes
        if LEAST_RATE < world.success(place) < 1.0 - LEAST_RATE
    ]


def _trial(world: World, place: int, size: tuple[int, int], generator: np.random.Generator) -> Trial:
    experiments, truth = Experiments(world, *size, generator), world.success(place)
    rows = []
    for _ in range(NUM_EXPERIMENTS[size[0]]):
        sample = experiments.sample()
        summary = experiments.summary(place, sample)
        outcome, luck = experiments.episodes(place, sample)
        more = world.more[place, sample.task, sample.seed].reshape(-1, NUM_MORE)
        optimum = world.optimum[sample.task]
        flat = [each.ravel() for each in (outcome, optimum, luck)]
        fold = experiments.folds
        by_luck = outcome.mean() - np.mean(
            [_beta(flat, fold.ravel() != one) * here for one, here in _parts(luck, fold)]
        )
        controls = np.column_stack([np.ones(outcome.size), flat[2], more])
        careless = flat[0] - controls[:, 1:] @ np.linalg.lstsq(controls, flat[0], rcond=None)[0][1:]
        own = clustered_mean(careless, np.ones(len(careless)))
        given = world.outcome[place].mean(axis=1)[sample.task].mean()  # the rate of the tasks that were drawn
        adjusted = summary.luck_adjusted
        covers, covers_careless = adjusted.low <= truth <= adjusted.high, own.low <= given <= own.high
        values = (summary.success.value, by_luck, adjusted.value)
        rows.append([*(value - given for value in values), covers, covers_careless])
    return Trial(AGENTS[place], size, *np.array(rows, dtype=np.float64).T)


def _parts(luck: FloatArray, fold: NDArray[np.int64]) -> list[tuple[int, FloatArray]]:
    """Return each fold with the luck of its episodes, and 0 for all others."""
    return [(one, np.where(fold == one, luck, 0.0) * NUM_FOLDS) for one in range(NUM_FOLDS)]


def _beta(episodes: Sequence[FloatArray], chosen: NDArray[np.bool_]) -> float:
    outcome, optimum, luck = (each[chosen] for each in episodes)
    return fit_beta(moments_of(outcome, optimum, luck))


def judge(pieces: Sequence[Sequence[Trial]]) -> list[Finding]:
    """Test bias, coverage and noise, and say what the adjustment is worth."""
    trials = [trial for piece in pieces for trial in piece]
    names = [f"{trial.agent}, {trial.size[0]} x {trial.size[1]}, {number}" for number, trial in enumerate(trials)]
    by_name = dict(zip(names, trials, strict=True))
    unbiased = worst_of({name: clustered_mean_is(trial.adjusted[:, None]) for name, trial in by_name.items()})
    covers = worst_of({name: at_least_rate(int(t.covers.sum()), len(t.covers), LEVEL) for name, t in by_name.items()})
    noisier = worst_of({name: not_below(_score(t.by_luck, t.adjusted)) for name, t in by_name.items()})
    careless = worst_of(
        {name: at_least_rate(int(t.careless.sum()), len(t.careless), LEVEL) for name, t in by_name.items()}
    )
    findings = [
        Finding("fitted luck: unbiased", SOURCE, unbiased.text, unbiased.p_value),
        Finding("fitted luck: 95% intervals cover", SOURCE, covers.text, covers.p_value),
        Finding("fitted luck: no noisier than luck by V* alone", SOURCE, noisier.text, noisier.p_value),
        Finding("control: fitted to what it scores", SOURCE, careless.text, careless.p_value, control=True),
    ]
    for size in [*((1, seeds) for seeds in SEEDS), (MANY_TASKS, 1)]:
        parts = []
        for agent in AGENTS:
            own = [trial for trial in trials if (trial.agent, trial.size) == (agent, size)]
            if own:
                raw, by_luck, adjusted = (sum(float(np.sum(t**2)) for t in each) for each in _errors(own))
                parts.append(f"{agent} {by_luck / raw:.3f} -> {adjusted / raw:.3f}")
                gave_up = agent == "gives up" and size == (1, 100)
                if gave_up:
                    text, holds = f"variance ratio {adjusted / raw:.3f}", adjusted <= 0.1 * raw
                    name = "an agent that gives up needs a tenth of the episodes (100 seeds of one task)"
                    findings.append(Finding(name, SOURCE, text, exact=holds))
        covers_of_size = np.concatenate([trial.covers for trial in trials if trial.size == size])
        covered = within_rates(int(covers_of_size.sum()), len(covers_of_size), *BAND)
        name = f"fitted luck: 93 to 97% of 95% intervals hold the truth, {size[0]} x {size[1]}, all agents"
        findings.append(Finding(name, SOURCE, f"{covered.text} of {len(covers_of_size):,}", covered.p_value))
        title = f"variance of luck-adjusted by that of raw, {size[0]} x {size[1]}, luck by V* -> fitted"
        findings.append(Finding(title, SOURCE, "; ".join(parts), exact=bool(parts)))
    return findings


def _errors(trials: Sequence[Trial]) -> tuple[list[FloatArray], list[FloatArray], list[FloatArray]]:
    return [t.raw for t in trials], [t.by_luck for t in trials], [t.adjusted for t in trials]


def _score(before: FloatArray, after: FloatArray) -> float:
    """Return the standard score of squares saved, of which a tenth more is let pass."""
    saved = 1.1 * before**2 - after**2
    spread = float(saved.std(ddof=1))
    return float(saved.mean()) / spread * len(saved) ** 0.5 if spread > 1e-12 else 0.0
