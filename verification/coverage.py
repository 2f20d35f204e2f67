"""Check (l): intervals hold success rates that are known exactly: on one task, over many, of rows and of differences.

Agents whose rates `explore` computes play benchmark tasks, and no episode is used twice: experiments are independent of
each other, luck is that of the benchmark, and what an interval has to hold is no estimate. (In the worlds of the checks
`comparison` and `fitted_luck` episodes are drawn with replacement, and their means are the truth.) Beside each of two
agents stands one that now and then gives up before its first call, by dice of its own: its rate is known as well, and
what luck leaves of its score is all in a few episodes, which a small sample may not hold.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.exploration import explore
from resilisim.policies.registry import make_policy
from resilisim.statistics.comparison import PAIRED, PAIRED_LUCK_ADJUSTED
from resilisim.statistics.estimates import clustered_mean
from verification.contest import Contest, distinct_tasks, joined, play_contest
from verification.contestants import Contestant
from verification.experiments import Experiments, Sample, World, compared
from verification.findings import Finding
from verification.policies import GivesUp
from verification.score import chance_without_failure
from verification.statistics import TestResult, at_least_rate, worst_of

FloatArray = NDArray[np.float64]
SOURCE = "SPEC 7, luck-adjusted score"
LEVEL = 0.93  # coverage that intervals of 95% keep at least

# The first three have rates that `explore` computes, state by state; the last has a closed form.
EXPLORED = ("exact-optimum", "plan-follower", "retry-backoff")
POLICIES = (*EXPLORED, "gives up")
SLIPS = {"exact-optimum": 0.02, "plan-follower": 0.02}  # chance to give up before the first call
AGENTS = (*POLICIES, *(f"{name}, slips" for name in SLIPS))
PAIRS = (
    ("plan-follower", "exact-optimum"),
    ("plan-follower, slips", "plan-follower"),
    ("plan-follower, slips", "retry-backoff"),
    ("exact-optimum, slips", "plan-follower, slips"),
    ("gives up", "plan-follower"),
)

SINGLE_TASKS, SINGLE_SEEDS = (0, 11, 38), 1200  # three, two and two tools
SINGLE_SIZES = {10: 60, 30: 40, 100: 12}  # seeds, and experiments on each task
MANY_TASKS, TASKS_OF_A_JOB, MANY_SEEDS = 100, 25, 20
MANY_SIZES = {(30, 1): 32, (10, 3): 16}  # tasks and seeds, and experiments
RUN_TASKS, RUN_SEEDS = 20, 20  # of a run of whose tasks each is a row

SCORE, SHARE, RATE = "luck-adjusted success", "share of V*", "success"
DIFFERENCES = {PAIRED: "paired difference", PAIRED_LUCK_ADJUSTED: "paired difference, luck-adjusted"}
T_INTERVAL = "t interval"
# Where intervals are made.
ONE, MANY, ROWS = "one task", "many tasks", "a task of many"


class Key(NamedTuple):
    """What intervals are of.

    Attributes:
        where: One of ONE, MANY and ROWS.
        what: What is estimated.
        about: The agents, and the size of the experiments.
    """

    where: str
    what: str
    about: str


Holds = dict[Key, list[bool]]  # of each experiment whether the interval holds the truth


class Played(NamedTuple):
    """Episodes on some tasks.

    Attributes:
        contest: Those of `POLICIES`.
        rates: (num_agents, num_tasks) success rate of each of `AGENTS` on each task, exactly.
        shift: Of all seeds.
    """

    contest: Contest
    rates: FloatArray
    shift: int


def jobs(shift: int) -> list[tuple[int, int]]:
    """Return what to play: a single task, or minus one minus the block of many, and the shift."""
    blocks = range(MANY_TASKS // TASKS_OF_A_JOB)
    return [*((task, shift) for task in SINGLE_TASKS), *((-1 - block, shift) for block in blocks)]


def work(job: tuple[int, int]) -> Played:
    """Play the policies on some tasks, and compute their rates."""
    place, shift = job
    tasks, num_seeds = distinct_tasks(MANY_TASKS)[place : place + 1], SINGLE_SEEDS
    if place < 0:
        first = (-1 - place) * TASKS_OF_A_JOB
        tasks, num_seeds = distinct_tasks(MANY_TASKS)[first : first + TASKS_OF_A_JOB], MANY_SEEDS
    contestants = [Contestant(name, functools.partial(make_policy, name)) for name in EXPLORED]
    contestants.append(Contestant("gives up", GivesUp))
    contest = play_contest(contestants, tasks, num_seeds, f"verification/coverage/{shift}")
    rows = explore(EXPLORED, tasks, "optimal", progress=False).rows
    found = {(row.policy, row.task): row.low for row in rows if row.is_exact}
    explored = [[found[name, task] for task in contest.task_ids] for name in EXPLORED]
    rates = np.array([*explored, [chance_without_failure(task) for task in tasks]])
    slipping = [(1.0 - chance) * rates[POLICIES.index(name)] for name, chance in SLIPS.items()]
    return Played(contest, np.concatenate([rates, slipping]), shift)


def judge(pieces: Sequence[Played]) -> list[Finding]:
    """Repeat experiments with the episodes, and test how many intervals hold the rates."""
    generator = np.random.Generator(np.random.Philox(key=pieces[0].shift))
    holds: Holds = defaultdict(list)
    for piece in pieces[: len(SINGLE_TASKS)]:
        _on_one_task(holds, _world(piece.contest, generator), piece.rates[:, 0], generator)
    several = pieces[len(SINGLE_TASKS) :]
    world = _world(joined([piece.contest for piece in several]), generator)
    rates = np.concatenate([piece.rates for piece in several], axis=1)
    _over_tasks(holds, world, rates, generator)
    _rows(holds, world, rates, generator)
    findings = []
    for where, what in dict.fromkeys((key.where, key.what) for key in holds):
        control = what.startswith(T_INTERVAL)
        found = worst_of({key.about: _covers(own) for key, own in holds.items() if key[:2] == (where, what)})
        name = f"control: {where}, {what}" if control else f"95% intervals hold exact rates: {where}, {what}"
        findings.append(Finding(name, SOURCE, found.text, found.p_value, control=control))
    return findings


def _covers(holds: Sequence[bool]) -> TestResult:
    return at_least_rate(sum(holds), len(holds), LEVEL)


def _world(contest: Contest, generator: np.random.Generator) -> World:
    """Return the episodes of all agents; one that gives up at once has neither success nor luck."""
    places = [*range(len(POLICIES)), *map(POLICIES.index, SLIPS)]
    chances = np.array([0.0] * len(POLICIES) + [*SLIPS.values()])
    plays_on = generator.random(contest.outcome[places].shape) >= chances[:, None, None]
    luck = contest.luck[places] * plays_on[..., None]
    return World(contest.outcome[places] * plays_on, luck[..., 0], luck[..., 1:], contest.optimum)


def _on_one_task(holds: Holds, world: World, rates: FloatArray, generator: np.random.Generator) -> None:
    optimum = float(world.optimum[0])
    for num_seeds, count in SINGLE_SIZES.items():
        experiments = Experiments(world, 1, num_seeds, generator)
        seeds = np.arange(count * num_seeds).reshape(count, 1, num_seeds)
        samples = [Sample(np.zeros((1, num_seeds), dtype=np.int64), each) for each in seeds]
        for number, sample in enumerate(samples):
            _scores(holds, experiments, sample, rates, optimum, ONE)
            _differences(holds, experiments, sample, sample, rates, ONE)
            if number % 2:  # the same on draws of its own
                _differences(holds, experiments, sample, samples[number - 1], rates, ONE, ", draws of its own")


def _over_tasks(holds: Holds, world: World, rates: FloatArray, generator: np.random.Generator) -> None:
    means, optimum = rates.mean(axis=1), float(world.optimum.mean())
    for (num_tasks, num_seeds), count in MANY_SIZES.items():
        experiments = Experiments(world, num_tasks, num_seeds, generator)
        for sample in _samples(num_tasks, num_seeds, count, generator):
            _scores(holds, experiments, sample, means, optimum, MANY)
            _differences(holds, experiments, sample, sample, means, MANY)


def _samples(num_tasks: int, num_seeds: int, count: int, generator: np.random.Generator) -> list[Sample]:
    """Return experiments whose tasks are drawn with replacement, and of whose episodes no two are one."""
    next_seed, samples = np.zeros(MANY_TASKS, dtype=np.int64), []
    for _ in range(count):
        tasks = generator.integers(MANY_TASKS, size=num_tasks)
        seeds = np.empty((num_tasks, num_seeds), dtype=np.int64)
        for row, task in zip(seeds, tasks, strict=True):
            row[:] = np.arange(next_seed[task], next_seed[task] + num_seeds)
            next_seed[task] += num_seeds
        samples.append(Sample(np.repeat(tasks[:, None], num_seeds, axis=1), seeds))
    return samples


def _rows(holds: Holds, world: World, rates: FloatArray, generator: np.random.Generator) -> None:
    """Look at each task of runs of several: what is taken off is fitted on all of them."""
    experiments = Experiments(world, RUN_TASKS, RUN_SEEDS, generator)
    seeds = np.tile(np.arange(RUN_SEEDS), (RUN_TASKS, 1))
    for first in range(0, MANY_TASKS, RUN_TASKS):
        tasks = np.arange(first, first + RUN_TASKS)
        sample = Sample(np.repeat(tasks[:, None], RUN_SEEDS, axis=1), seeds)
        for agent, name in enumerate(AGENTS):
            for place, task in enumerate(tasks):
                summary = experiments.summary(agent, sample, only=place)
                truth, optimum = rates[agent, task], world.optimum[task]
                for what, estimate, value in (
                    (RATE, summary.success, truth),
                    (SCORE, summary.luck_adjusted, truth),
                    (SHARE, summary.adjusted_share, truth / optimum),
                ):
                    _note(holds, Key(ROWS, what, name), (estimate.low, estimate.high), value)


def _scores(
    holds: Holds, experiments: Experiments, sample: Sample, rates: FloatArray, optimum: float, where: str
) -> None:
    size = " x ".join(map(str, sample.seed.shape))
    for agent, name in enumerate(AGENTS):
        summary, about = experiments.summary(agent, sample), f"{name}, {size}"
        score, share = summary.luck_adjusted, summary.adjusted_share
        _note(holds, Key(where, SCORE, about), (score.low, score.high), rates[agent])
        _note(holds, Key(where, SHARE, about), (share.low, share.high), rates[agent] / optimum)


def _differences(
    holds: Holds,
    experiments: Experiments,
    sample_a: Sample,
    sample_b: Sample,
    rates: FloatArray,
    where: str,
    how: str = "",
) -> None:
    size = " x ".join(map(str, sample_a.seed.shape))
    for a, b in PAIRS:
        first, second, about = AGENTS.index(a), AGENTS.index(b), f"{a} - {b}, {size}{how}"
        comparison, truth = compared(experiments.pairs(first, second, sample_a, sample_b)), rates[first] - rates[second]
        for method, what in DIFFERENCES.items():
            _note(holds, Key(where, what, about), comparison.differences[method].interval, truth)
        if where == ONE and comparison.terms is not None:
            plain = clustered_mean(comparison.terms, np.ones(len(comparison.terms)))
            _note(holds, Key(where, f"{T_INTERVAL} of a difference", about), (plain.low, plain.high), truth)


def _note(holds: Holds, key: Key, interval: tuple[float, float], truth: float) -> None:
    low, high = interval
    holds[key].append(bool(low - 1e-9 <= truth <= high + 1e-9))
