"""Check: a gate turns red where nothing has changed in at most its stated share of builds, however often it looks.

Agents with dice of their own are played on a few tasks, and builds are drawn from their episodes (a small world, whose
truth is known: its seeds are all luck). A build compares two agents as `resilisim gate` does, after 1, 2, 4, 8 and 16
passes over the tasks, and stops at a verdict. Where nothing has changed, both are the same agent with other dice; else
the candidate gives up at the start of some episodes, as many as make it worse by 1, 3, 10 or 22 points; the margin is
then 0, so that only a verdict on the difference ends it.

Beside it stand rules as peers have them, as formulas: a build fails if the success rate of a number of runs has dropped
by more than some points, or if a test of two rates at 5% says that it is lower. Each side then has draws of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.table.gate import ALPHA, MARGIN, ROOMS, luck_within, verdict_of
from resilisim.statistics.sequential import Measure, mean_bounds
from resilisim.workflows import ExactPlanner
from verification.contest import distinct_tasks
from verification.contestants import NoisyOptimum
from verification.findings import Finding
from verification.score import find_by_words
from verification.statistics import at_least_rate, at_most_rate

FloatArray = NDArray[np.float64]
SOURCE = "decisions: gates and tests"
NOISES = (0.05, 0.3)  # share of messages in which an agent errs by its own dice
NUM_TASKS, NUM_SEEDS = 12, 30
NUM_BUILDS = 1_000  # of each agent: 2,000 in all
NUM_CHANGED = 60  # builds of each difference
DIFFERENCES = (0.01, 0.03, 0.10, 0.22)
LOOKS = (1, 2, 4, 8, 16)
MORE_LOOKS = (*LOOKS, 32, 64, 128, 256, 512, 1024)  # of those that look for a difference
TRUE_LEVEL = 0.05
DROP, RUNS = 0.05, 20  # "fails if the pass rate of 20 runs drops by more than 5 points"
PEEKS = 64  # passes, after each of which a test is made that is meant for one
LEAST_DETECTION = 0.8  # of 10 and of 22 points, in all passes
BROKEN = "control: a test of two rates at 5% after each of 64 passes"


@dataclass(frozen=True, slots=True)
class World:
    """Episodes of two agents of one kind; arrays of shape (num_tasks, num_seeds), one of each side.

    Attributes:
        outcome: 1 for a full success, else 0; (2, num_tasks, num_seeds).
        taken: What luck has added, in each of `ROOMS`; (num_rooms, 2, num_tasks, num_seeds), with mean zero on a task.
    """

    outcome: FloatArray
    taken: FloatArray


@dataclass(frozen=True, slots=True)
class Builds:
    """What became of builds.

    Attributes:
        verdicts: How many came to each verdict.
        left: In how many of them the true difference was outside of the bounds at any look.
        pairs: Pairs to the verdict, `inf` where there was none; (num_builds,).
        drop: In how many the rate of `RUNS` runs had dropped by more than `DROP`.
        tested: In how many a test of two rates at 5%, after each pass, has found the candidate worse.
    """

    verdicts: dict[str, int]
    left: int
    pairs: FloatArray
    drop: int
    tested: int


def jobs(shift: int) -> list[tuple[float, int]]:
    """Return (noise, shift) of every piece of work."""
    return [(noise, shift) for noise in NOISES]


def work(job: tuple[float, int]) -> dict[float, Builds]:
    """Play two agents and draw builds from their episodes; by how much worse the candidate is."""
    noise, shift = job
    world = _played(noise, f"verification/gate/{shift}")
    generator = np.random.Generator(np.random.Philox(key=[shift, int(100 * noise)]))
    builds = {0.0: _builds(world, 0.0, NUM_BUILDS, LOOKS, generator)}
    return builds | {each: _builds(world, each, NUM_CHANGED, MORE_LOOKS, generator) for each in DIFFERENCES}


def _played(noise: float, salt: str) -> World:
    env, tasks = ConversationEnv(salt=salt, planner=ExactPlanner(), search=find_by_words), distinct_tasks(NUM_TASKS)
    outcome = np.zeros((2, NUM_TASKS, NUM_SEEDS))
    taken = np.zeros((len(ROOMS), *outcome.shape))
    for side in range(2):
        policy = NoisyOptimum(noise, f"gate, {noise}, {side}")
        for place, task in enumerate(tasks):
            for seed in range(NUM_SEEDS):
                policy.begin(seed, task.instance_id)
                record = play_episode(env, policy, task, "optimal", seed)
                outcome[side, place, seed] = record["outcome"]
                taken[:, side, place, seed] = [luck_within(record, room) for room in ROOMS]
    return World(outcome, taken - taken.mean(axis=-1, keepdims=True))


def _builds(world: World, worse: float, number: int, looks: Sequence[int], generator: np.random.Generator) -> Builds:
    verdicts: dict[str, int] = {}
    left = drop = tested = 0
    pairs = np.full(number, np.inf)
    quits = worse / float(world.outcome.mean())  # the share of episodes in which the candidate gives up at once
    for build in range(number):
        passes = looks[-1]
        task = np.tile(np.arange(NUM_TASKS), passes)
        seed = generator.integers(NUM_SEEDS, size=len(task))
        plays_on = generator.random(len(task)) >= quits
        side = generator.integers(2, size=len(task))  # which of both is the candidate, so that they are the same agent
        outcome = world.outcome[side, task, seed] * plays_on - world.outcome[1 - side, task, seed]
        taken = world.taken[:, side, task, seed] * plays_on - world.taken[:, 1 - side, task, seed]
        left += _leaves(outcome, taken, task, looks, -worse)
        verdict, pairs[build] = _verdict(outcome, taken, task, looks, 0.0 if worse else MARGIN)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        drop += _drops(world, quits, generator)
        tested += _is_tested_worse(world, quits, generator)
    return Builds(verdicts, left, pairs, drop, tested)


def _bounds(outcome: FloatArray, taken: FloatArray, task: NDArray[np.int64], count: int) -> tuple[float, float]:
    measures = [Measure(outcome[:count], 1.0)]
    measures += [Measure(outcome[:count] - each[:count], 1.0 + room) for each, room in zip(taken, ROOMS, strict=True)]
    return mean_bounds(measures, task[:count], np.arange(count) // NUM_TASKS, ALPHA)


def _leaves(
    outcome: FloatArray, taken: FloatArray, task: NDArray[np.int64], looks: Sequence[int], truth: float
) -> bool:
    """Tell whether the true difference is outside of the bounds at a look; at the first three, for builds with many."""
    for passes in looks[:3]:
        low, high = _bounds(outcome, taken, task, passes * NUM_TASKS)
        if not low - 1e-6 <= truth <= high + 1e-6:
            return True
    return False


def _verdict(
    outcome: FloatArray, taken: FloatArray, task: NDArray[np.int64], looks: Sequence[int], margin: float
) -> tuple[str, float]:
    for passes in looks:
        verdict = verdict_of(*_bounds(outcome, taken, task, passes * NUM_TASKS), margin)
        if verdict != "undecided":
            return verdict, float(passes * NUM_TASKS)
    return "undecided", math.inf


def _runs(world: World, quits: float, count: int, generator: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return outcomes of both sides, each with draws of its own; (count, num_tasks) each."""
    sides = []
    for share in (0.0, quits):
        seed, side = (
            generator.integers(NUM_SEEDS, size=(count, NUM_TASKS)),
            generator.integers(2, size=(count, NUM_TASKS)),
        )
        plays_on = generator.random(seed.shape) >= share
        sides.append(world.outcome[side, np.arange(NUM_TASKS), seed] * plays_on)
    return sides[0], sides[1]


def _drops(world: World, quits: float, generator: np.random.Generator) -> bool:
    baseline, candidate = _runs(world, quits, math.ceil(RUNS / NUM_TASKS), generator)
    return float(candidate.ravel()[:RUNS].mean()) < float(baseline.ravel()[:RUNS].mean()) - DROP


def _is_tested_worse(world: World, quits: float, generator: np.random.Generator) -> bool:
    """Tell whether a one-sided test of two rates at 5%, after each of `PEEKS` passes, finds the candidate worse."""
    baseline, candidate = (runs.sum(axis=1).cumsum() for runs in _runs(world, quits, PEEKS, generator))
    count = NUM_TASKS * np.arange(1, PEEKS + 1)
    rates = baseline / count, candidate / count
    error = np.sqrt(sum(rate * (1.0 - rate) for rate in rates) / count)
    return bool(np.any(rates[1] - rates[0] < -1.645 * error))


def judge(pieces: Sequence[dict[float, Builds]]) -> list[Finding]:
    """Test the share of red builds, and say how many pairs it takes to see differences."""
    unchanged = [piece[0.0] for piece in pieces]
    total = NUM_BUILDS * len(pieces)

    def share(count: Callable[[Builds], int]) -> int:
        return sum(count(each) for each in unchanged)

    red = at_most_rate(share(lambda each: each.verdicts.get("worse", 0)), total, ALPHA)
    outside = at_most_rate(share(lambda each: each.left), total, ALPHA)
    drop = at_most_rate(share(lambda each: each.drop), total, TRUE_LEVEL)
    tested = at_most_rate(share(lambda each: each.tested), total, TRUE_LEVEL)
    findings = [
        Finding(f"gate: red where nothing has changed, {total:,} builds", SOURCE, red.text, red.p_value),
        Finding("gate: the true difference leaves its bounds", SOURCE, outside.text, outside.p_value),
        Finding(
            f"control: a drop of {100 * DROP:g} points in {RUNS} runs", SOURCE, drop.text, drop.p_value, control=True
        ),
        Finding(f"{BROKEN}", SOURCE, tested.text, tested.p_value, control=True),
    ]
    for difference in DIFFERENCES:
        found = [piece[difference] for piece in pieces]
        seen = sum(each.verdicts.get("worse", 0) for each in found)
        number = NUM_CHANGED * len(pieces)
        shares = [
            100 * sum(count) / number for count in zip(*((each.drop, each.tested) for each in found), strict=True)
        ]
        text = f"{100 * seen / number:.0f}% red (by the drop {shares[0]:.0f}%, by the tests {shares[1]:.0f}%); pairs "
        text += ", ".join(
            f"{_pairs(each.pairs)} where agents err in {noise:.0%}" for each, noise in zip(found, NOISES, strict=True)
        )
        name = f"gate: {100 * difference:g} points worse"
        if difference < 0.05:
            wrong = sum(each.verdicts.get("better", 0) for each in found)
            findings.append(Finding(name, SOURCE, text, at_most_rate(wrong, number, ALPHA).p_value))
        else:
            result = at_least_rate(seen, number, LEAST_DETECTION)
            findings.append(Finding(name, SOURCE, text, result.p_value))
    return findings


def _pairs(pairs: FloatArray) -> str:
    """Return pairs to a verdict, every second time and four times in five."""
    half, mostly = (float(np.quantile(pairs, share, method="higher")) for share in (0.5, 0.8))
    return f"{half:,.0f} ({mostly:,.0f})"
