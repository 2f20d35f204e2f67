"""Check (d): intervals, adjusted scores and tests of comparisons do what they promise, in thousands of experiments.

Each piece of work plays the contestants on tasks of its own and takes the result as a world (`experiments`), in which
it repeats experiments; every number of an experiment comes from the functions that `resilisim runs compare` and the
summary of a run use. What cannot be told in such a world, because luck is made mean zero there, is tested on the
episodes as they were played.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from resilisim.statistics.comparison import INDEPENDENT, MCNEMAR, PAIRED, PAIRED_LUCK_ADJUSTED, adjusted_terms
from verification.comparison_worlds import (
    ADJUSTED,
    BEST_BETA,
    BETA_1,
    RAW,
    SIGNIFICANT,
    WRONG_CLUSTER,
    Measuring,
    Plan,
    Results,
)
from verification.contest import Contest, distinct_tasks, joined, pairs_of, play_contest
from verification.contestants import CONTESTANTS, Contestant
from verification.experiments import Experiments, world_of
from verification.findings import Finding
from verification.policies import Peeks
from verification.statistics import TestResult, at_least_rate, at_most_rate, clustered_mean_is, not_below, worst_of

FloatArray = NDArray[np.float64]
SOURCE = "SPEC 7, luck-adjusted score"
NUM_WORLDS, TASKS_PER_WORLD, SEEDS_PER_WORLD = 8, 25, 20
LEVEL = 0.95
# Power is foretold as if the mean over an experiment's tasks were normal, which it is only nearly.
POWER_TOLERANCE = 0.05

PLAYING = (
    "optimum",
    "optimum, noise 0.1",
    "optimum, noise 0.1, twin",
    "optimum, noise 0.4",
    "plan follower",
    "repairing follower",
    "required-order follower",
    "required-order repairer",
    "searcher",
    "gives up",
    "out of order",
    "switches",
    "random",
)
PAIRS = (
    ("plan follower", "optimum"),
    ("plan follower", "repairing follower"),
    ("required-order follower", "required-order repairer"),
    ("optimum, noise 0.1", "optimum, noise 0.1, twin"),
    ("optimum", "optimum, noise 0.4"),
    ("plan follower", "searcher"),
    ("out of order", "switches"),
    ("gives up", "random"),
)
PLAN = Plan(
    names=PLAYING,
    single=(
        "optimum",
        "optimum, noise 0.4",
        "plan follower",
        "required-order repairer",
        "searcher",
        "gives up",
        "switches",
        "random",
    ),
    pairs=PAIRS,
    # Two that differ in one episode out of fifty are left out: the mean of so few differences is not nearly normal.
    told_apart=tuple(pair for pair in PAIRS if pair != ("plan follower", "repairing follower")),
    null_pairs=(("optimum, noise 0.1", "optimum, noise 0.1, twin"), ("plan follower", "searcher")),
    different_tasks=(("plan follower", "optimum"), ("out of order", "switches")),
    num_tasks=100,
    num_seeds=4,
    num_experiments=200,  # in each world
)
# Both have a closed form, so their difference has one.
KNOWN_PAIRS = (("plan follower", "optimum"), ("plan follower", "required-order follower"), ("optimum", "gives up"))
PEEKS = "peeks"


def contestants(salt: str) -> tuple[Contestant, ...]:
    """Return who plays: the contestants, and the one that cheats as the last."""
    by_name = {one.name: one for one in CONTESTANTS}
    cheat = Contestant(PEEKS, functools.partial(Peeks, salt), "baseline")
    return (*(by_name[name] for name in PLAYING), cheat)


def jobs(shift: int) -> list[tuple[int, int]]:
    """Return (world, shift) of every piece of work."""
    return [(world, shift) for world in range(NUM_WORLDS)]


def work(job: tuple[int, int]) -> tuple[Contest, Results]:
    """Play on the tasks of a world and repeat experiments in it."""
    world, shift = job
    salt = f"verification/comparison/{shift}"
    tasks = distinct_tasks(NUM_WORLDS * TASKS_PER_WORLD)[world * TASKS_PER_WORLD :][:TASKS_PER_WORLD]
    contest = play_contest(contestants(salt), tasks, SEEDS_PER_WORLD, salt)
    generator = np.random.Generator(np.random.Philox(key=[shift, world]))
    experiments = Experiments(world_of(contest), PLAN.num_tasks, PLAN.num_seeds, generator)
    return contest, Measuring(experiments, PLAN).measure()


def judge(pieces: Sequence[tuple[Contest, Results]]) -> list[Finding]:
    """Test what the experiments of all worlds say, and the episodes as they were played."""
    keys = list(pieces[0][1])
    results = {key: np.concatenate([piece[1][key] for piece in pieces]) for key in keys}
    contest = joined([piece[0] for piece in pieces])
    return [
        *_coverage(results),
        *_errors(results),
        *_noise(results),
        *_tests(results),
        *_played(contest),
    ]


def _by_contestants(
    results: Results, kind: str, method: str, test: Callable[[FloatArray], TestResult], only: str = ""
) -> TestResult:
    return worst_of(
        {
            key.about: test(row)
            for key, row in results.items()
            if key.kind == kind and key.method == method and only in key.about
        }
    )


def _covers(row: FloatArray) -> TestResult:
    return at_least_rate(int(row.sum()), len(row), LEVEL)


def _keeps_level(row: FloatArray) -> TestResult:
    return at_most_rate(int(row.sum()), len(row), SIGNIFICANT)


def _is_unbiased(row: FloatArray) -> TestResult:
    return clustered_mean_is(row[:, None])


def _coverage(results: Results) -> list[Finding]:
    findings = []
    for method in (RAW, ADJUSTED, INDEPENDENT, PAIRED, PAIRED_LUCK_ADJUSTED):
        found = _by_contestants(results, "covers", method, _covers)
        findings.append(Finding(f"95% intervals cover: {method}", SOURCE, found.text, found.p_value))
    found = _by_contestants(results, "covers", WRONG_CLUSTER, _covers)
    findings.append(Finding(f"control: {WRONG_CLUSTER}", SOURCE, found.text, found.p_value, control=True))
    return findings


def _errors(results: Results) -> list[Finding]:
    findings = []
    for method in (RAW, ADJUSTED, INDEPENDENT, PAIRED, PAIRED_LUCK_ADJUSTED):
        found = _by_contestants(results, "error", method, _is_unbiased)
        findings.append(Finding(f"unbiased: {method}", SOURCE, found.text, found.p_value))
    found = _by_contestants(results, "error", BEST_BETA, _is_unbiased)
    findings.append(Finding(f"control: {BEST_BETA}, unbiased", SOURCE, found.text, found.p_value, control=True))
    return findings


def _noise(results: Results) -> list[Finding]:
    def never_noisier(method: str, raw: str) -> TestResult:
        tests = {}
        for key, errors in results.items():
            if key.kind == "error" and key.method == method:
                of_raw = results[key._replace(method=raw)] ** 2
                tests[key.about] = _not_larger(errors**2, of_raw)
        return worst_of(tests)

    findings = []
    for method, raw, control in (
        (ADJUSTED, RAW, False),
        (PAIRED_LUCK_ADJUSTED, PAIRED, False),
        (BETA_1, RAW, True),
    ):
        found = never_noisier(method, raw)
        name = f"never noisier than {raw}: {method}"
        findings.append(
            Finding(f"control: {name}" if control else name, SOURCE, found.text, found.p_value, control=control)
        )
    return findings


def _not_larger(squares: FloatArray, of_raw: FloatArray) -> TestResult:
    """Test that squared errors are not larger on average than those of raw estimates, experiment by experiment."""
    saved = of_raw - squares
    spread = float(saved.std(ddof=1))
    score = float(saved.mean()) / spread * len(saved) ** 0.5 if spread > 0.0 else 0.0
    return TestResult(f"variance ratio {squares.mean() / of_raw.mean():.3f}", not_below(score).p_value)


def _tests(results: Results) -> list[Finding]:
    findings = []
    for method, only in ((PAIRED, ""), (PAIRED_LUCK_ADJUSTED, ""), (MCNEMAR, "swapped by episode")):
        found = _by_contestants(results, "level", method, _keeps_level, only)
        findings.append(Finding(f"keeps its level of 5%: {method}", SOURCE, found.text, found.p_value))
    found = _by_contestants(results, "level", MCNEMAR, _keeps_level, "swapped by task")
    name = "control: mcnemar keeps its level where tasks differ"
    findings.append(Finding(name, SOURCE, found.text, found.p_value, control=True))
    for method in (PAIRED, PAIRED_LUCK_ADJUSTED):
        tests = {}
        for key, rejected in results.items():
            if key.kind == "power" and key.method == method:
                foretold = float(results[key._replace(kind="foretold")].mean())
                result = at_least_rate(int(rejected.sum()), len(rejected), max(foretold - POWER_TOLERANCE, 0.0))
                tests[key.about] = TestResult(f"{result.text}, foretold {100.0 * foretold:.1f}%", result.p_value)
        found = worst_of(tests)
        findings.append(Finding(f"as powerful as foretold: {method}", SOURCE, found.text, found.p_value))
    return findings


def _played(contest: Contest) -> list[Finding]:
    """Test the luck-adjusted differences of the episodes as they were played, on the luck of the benchmark."""
    tasks = distinct_tasks(NUM_WORLDS * TASKS_PER_WORLD)
    names = [*PLAYING, PEEKS]
    references = {one.name: one.reference for one in CONTESTANTS if one.reference is not None}

    def terms(a: str, b: str) -> FloatArray:
        pairs = pairs_of(contest, names.index(a), names.index(b))
        return adjusted_terms(pairs)[0].reshape(contest.outcome.shape[1:])

    known = {}
    for a, b in KNOWN_PAIRS:
        expected = np.array([references[a](task) - references[b](task) for task in tasks])
        known[f"{a} - {b}"] = clustered_mean_is(terms(a, b), expected)
    found = worst_of(known)
    findings = [Finding("luck-adjusted differences = closed forms", SOURCE, found.text, found.p_value)]

    def shift_of(a: str, b: str) -> TestResult:
        raw = contest.outcome[names.index(a)] - contest.outcome[names.index(b)]
        return clustered_mean_is(raw - terms(a, b))

    found = worst_of({f"{a} - {b}": shift_of(a, b) for a, b in PAIRS})
    name = "luck-adjusted differences = raw ones on average"
    findings.append(Finding(name, SOURCE, found.text, found.p_value))
    found = shift_of(PEEKS, "optimum")
    findings.append(
        Finding(f"control: {name}, for a policy that peeks", SOURCE, found.text, found.p_value, control=True)
    )
    return findings
