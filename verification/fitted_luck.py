"""Check: luck is taken off agents far from the optimum as well, without bias, with honest intervals, and never worse.

Agents play one task with 30, 60, 100 and 300 seeds, and 60 tasks with one seed, in experiments that are drawn from
worlds (`experiments`) and summarised as a run is. Of the intervals of each agent, at least 93% have to hold the truth.
On one task they have room for rare mistakes that no seed has shown, so more may, but on average they have to be
narrower than those of the raw rate; over many tasks, of all together, not more than 97%. What more than the luck by V*
is worth is told beside what that alone is worth: variances of the estimates divided by that of the raw rate, the tasks
being given.
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
from verification.statistics import TestResult, at_least_rate, clustered_mean_is, not_below, within_rates, worst_of

FloatArray = NDArray[np.float64]
SOURCE = "SPEC 7, luck-adjusted score"
AGENTS = ("gives up", "impatient", "out of order", "plan follower", "optimum, noise 0.05")
SINGLE_TASKS, SINGLE_SEEDS = (0, 11, 38), 600  # three, two and two tools, with which every agent wins now and then
MANY_TASKS, MANY_SEEDS = 60, 20
SEEDS = (30, 60, 100, 300)
NUM_EXPERIMENTS = {1: 100, MANY_TASKS: 300}  # of each agent, by tasks
LEVEL = 0.93  # coverage that intervals of 95% of each agent keep at least
BAND = (LEVEL, 0.97)  # that of all agents together over many tasks
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
        roomless: 1 where a t interval does, with the luck by V* alone taken off.
        careless: 1 where that of a fit to the episodes that are scored does.
        width: Width of the interval of the luck-adjusted rate.
        raw_width: That of the raw rate's.
    """

    agent: str
    size: tuple[int, int]
    raw: FloatArray
    by_luck: FloatArray
    adjusted: FloatArray
    covers: FloatArray
    roomless: FloatArray
    careless: FloatArray
    width: FloatArray
    raw_width: FloatArray


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
        if LEAST_RATE < world.success(place) < 1.0
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
        betas = np.array([_beta(flat, fold.ravel() != one) for one in range(NUM_FOLDS)])
        by_luck = clustered_mean(flat[0] - betas[fold.ravel()] * flat[2], np.ones(outcome.size))
        controls = np.column_stack([np.ones(outcome.size), flat[2], more])
        careless = flat[0] - controls[:, 1:] @ np.linalg.lstsq(controls, flat[0], rcond=None)[0][1:]
        own = clustered_mean(careless, np.ones(len(careless)))
        given = world.outcome[place].mean(axis=1)[sample.task].mean()  # the rate of the tasks that were drawn
        adjusted = summary.luck_adjusted
        holds = (adjusted.low <= truth <= adjusted.high, by_luck.low <= truth <= by_luck.high)
        widths = (each.high - each.low for each in (adjusted, summary.success))
        values = (summary.success.value, by_luck.value, adjusted.value)
        rows.append([*(value - given for value in values), *holds, own.low <= given <= own.high, *widths])
    return Trial(AGENTS[place], size, *np.array(rows, dtype=np.float64).T)


def _beta(episodes: Sequence[FloatArray], chosen: NDArray[np.bool_]) -> float:
    outcome, optimum, luck = (each[chosen] for each in episodes)
    return fit_beta(moments_of(outcome, optimum, luck))


def judge(pieces: Sequence[Sequence[Trial]]) -> list[Finding]:
    """Test bias, coverage and noise, and say what the adjustment is worth."""
    trials = [trial for piece in pieces for trial in piece]
    names = [f"{trial.agent}, {trial.size[0]} x {trial.size[1]}, {number}" for number, trial in enumerate(trials)]
    by_name = dict(zip(names, trials, strict=True))
    unbiased = worst_of({name: clustered_mean_is(trial.adjusted[:, None]) for name, trial in by_name.items()})
    covers = worst_of({name: _at_least(trial.covers) for name, trial in by_name.items()})
    roomless = worst_of({name: _at_least(trial.roomless) for name, trial in by_name.items()})
    noisier = worst_of({name: not_below(_score(t.by_luck, t.adjusted)) for name, t in by_name.items()})
    careless = worst_of({name: _at_least(trial.careless) for name, trial in by_name.items()})
    findings = [
        Finding("fitted luck: unbiased", SOURCE, unbiased.text, unbiased.p_value),
        Finding("fitted luck: 95% intervals cover", SOURCE, covers.text, covers.p_value),
        Finding("fitted luck: no noisier than luck by V* alone", SOURCE, noisier.text, noisier.p_value),
        Finding("control: no room for rare mistakes", SOURCE, roomless.text, roomless.p_value, control=True),
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
        of_size = {name: trial for name, trial in by_name.items() if trial.size == size}
        covers_of_size = np.concatenate([trial.covers for trial in of_size.values()])
        covered = within_rates(int(covers_of_size.sum()), len(covers_of_size), *BAND)
        if size[0] > 1:
            name = f"fitted luck: 93 to 97% of 95% intervals hold the truth, {size[0]} x {size[1]}, all agents"
            findings.append(Finding(name, SOURCE, f"{covered.text} of {len(covers_of_size):,}", covered.p_value))
        shares = {name: float(trial.width.mean() / trial.raw_width.mean()) for name, trial in of_size.items()}
        widest, share = max(shares, key=lambda name: shares[name]), float(np.mean(list(shares.values())))
        text = f"{covered.text} hold the truth; width by that of raw ones {share:.2f}, {shares[widest]:.2f} of {widest}"
        name = f"fitted luck: intervals are narrower than raw ones, {size[0]} x {size[1]}"
        findings.append(Finding(name, SOURCE, text, exact=share < 1.0))
        title = f"variance of luck-adjusted by that of raw, {size[0]} x {size[1]}, luck by V* -> fitted"
        findings.append(Finding(title, SOURCE, "; ".join(parts), exact=bool(parts)))
    return findings


def _at_least(holds: FloatArray) -> TestResult:
    return at_least_rate(int(holds.sum()), len(holds), LEVEL)


def _errors(trials: Sequence[Trial]) -> tuple[list[FloatArray], list[FloatArray], list[FloatArray]]:
    return [t.raw for t in trials], [t.by_luck for t in trials], [t.adjusted for t in trials]


def _score(before: FloatArray, after: FloatArray) -> float:
    """Return the standard score of squares saved, of which a tenth more is let pass."""
    saved = 1.1 * before**2 - after**2
    spread = float(saved.std(ddof=1))
    return float(saved.mean()) / spread * len(saved) ** 0.5 if spread > 1e-12 else 0.0
