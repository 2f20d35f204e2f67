"""Check: a gate turns red where nothing has changed in at most its stated share of builds, however often it looks.

Agents with dice of their own are played on a few tasks, and builds are drawn from their episodes (a small world, whose
truth is known: its seeds are all luck). A build compares two agents as `resilisim gate` does, after 1, 2, 4, 8 and 16
passes over the tasks, and stops at a verdict. Where nothing has changed, both are the same agent with other dice; else
the candidate gives up at the start of some episodes, as many as make it worse by 1, 3, 10 or 22 points; the margin is
then 0, so that only a verdict on the difference ends it.

Beside it stand rules as peers have them, as formulas: a build fails if the success rate of a number of runs has dropped
by more than some points, or if a test of two rates at 5% says that it is lower. They judge the very episodes that the
gate judges, and once more episodes of which each side has draws of its own, as peers have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.table.gate import DEFAULT_ALPHA, DEFAULT_MARGIN, ROOMS, luck_within, verdict_of
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
NORMAL_95 = 1.645  # quantile of the normal distribution
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
        drop: In how many the rate of `RUNS` runs had dropped by more than `DROP`; on the gate's episodes, and on others
            of which each side has draws of its own.
        tested: In how many a test of two rates at 5%, after each of `PEEKS` passes, has found the candidate worse; the
            same.
        tested_pairs: Pairs of the gate's episodes to that, `inf` where there was none; (num_builds,).
    """

    verdicts: dict[str, int]
    left: int
    pairs: FloatArray
    drop: tuple[int, int]
    tested: tuple[int, int]
    tested_pairs: FloatArray


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
    left = 0
    pairs, tested_pairs = np.full(number, np.inf), np.full(number, np.inf)
    drop, tested = [0, 0], [0, 0]
    quits = worse / float(world.outcome.mean())  # the share of episodes in which the candidate gives up at once
    passes = max(looks[-1], PEEKS)
    for build in range(number):
        task = np.tile(np.arange(NUM_TASKS), passes)
        seed = generator.integers(NUM_SEEDS, size=len(task))
        plays_on = generator.random(len(task)) >= quits
        side = generator.integers(2, size=len(task))  # which of both is the candidate, so that they are the same agent
        candidate, baseline = world.outcome[side, task, seed] * plays_on, world.outcome[1 - side, task, seed]
        outcome = candidate - baseline
        taken = world.taken[:, side, task, seed] * plays_on - world.taken[:, 1 - side, task, seed]
        left += _leaves(outcome, taken, task, looks, -worse)
        verdict, pairs[build] = _verdict(outcome, taken, task, looks, 0.0 if worse else DEFAULT_MARGIN)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        tested_pairs[build] = _tested_worse(baseline, candidate)
        own = _with_draws_of_its_own(world, quits, generator)
        drop = [drop[0] + _drops(baseline, candidate), drop[1] + _drops(baseline, own)]
        tested = [
            tested[0] + bool(np.isfinite(tested_pairs[build])),
            tested[1] + bool(np.isfinite(_tested_worse(baseline, own))),
        ]
    return Builds(verdicts, left, pairs, (drop[0], drop[1]), (tested[0], tested[1]), tested_pairs)


def _bounds(outcome: FloatArray, taken: FloatArray, task: NDArray[np.int64], count: int) -> tuple[float, float]:
    measures = [Measure(outcome[:count], 1.0)]
    measures += [Measure(outcome[:count] - each[:count], 1.0 + room) for each, room in zip(taken, ROOMS, strict=True)]
    return mean_bounds(measures, task[:count], np.arange(count) // NUM_TASKS, DEFAULT_ALPHA)


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


def _with_draws_of_its_own(world: World, quits: float, generator: np.random.Generator) -> FloatArray:
    """Return the candidate's outcomes in `PEEKS` passes on seeds of its own."""
    task = np.tile(np.arange(NUM_TASKS), PEEKS)
    seed, side = generator.integers(NUM_SEEDS, size=len(task)), generator.integers(2, size=len(task))
    return world.outcome[side, task, seed] * (generator.random(len(task)) >= quits)


def _drops(baseline: FloatArray, candidate: FloatArray) -> bool:
    return float(candidate[:RUNS].mean()) < float(baseline[:RUNS].mean()) - DROP


def _tested_worse(baseline: FloatArray, candidate: FloatArray) -> float:
    """Return the pairs after which a one-sided test of two rates at 5%, after each of `PEEKS` passes, is red."""
    count = NUM_TASKS * np.arange(1, PEEKS + 1)
    rates = [np.cumsum(side[: count[-1]])[count - 1] / count for side in (baseline, candidate)]
    error = np.sqrt(sum(rate * (1.0 - rate) for rate in rates) / count)
    red = np.flatnonzero(rates[1] - rates[0] < -NORMAL_95 * error)
    return float(count[red[0]]) if len(red) else math.inf


def judge(pieces: Sequence[dict[float, Builds]]) -> list[Finding]:
    """Test the share of red builds, and say how many pairs it takes to see differences."""
    unchanged = [piece[0.0] for piece in pieces]
    total = NUM_BUILDS * len(pieces)

    def share(count: Callable[[Builds], int]) -> int:
        return sum(count(each) for each in unchanged)

    red = at_most_rate(share(lambda each: each.verdicts.get("worse", 0)), total, DEFAULT_ALPHA)
    outside = at_most_rate(share(lambda each: each.left), total, DEFAULT_ALPHA)
    own_drop, own_tested = share(lambda each: each.drop[1]), share(lambda each: each.tested[1])
    drop, tested = at_most_rate(own_drop, total, TRUE_LEVEL), at_most_rate(own_tested, total, TRUE_LEVEL)
    rules = "; ".join(
        [
            f"gate {_rate(share(lambda each: each.verdicts.get('worse', 0)), total)}",
            f"drop {_rate(share(lambda each: each.drop[0]), total)}, own draws {_rate(own_drop, total)}",
            f"tests {_rate(share(lambda each: each.tested[0]), total)}, own draws {_rate(own_tested, total)}",
        ]
    )
    findings = [
        Finding(f"gate: red where nothing has changed, {total:,} builds", SOURCE, f"{red.text}; {rules}", red.p_value),
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
        drops, tests = (
            [sum(count) for count in zip(*of_builds, strict=True)]
            for of_builds in ([each.drop for each in found], [each.tested for each in found])
        )
        text = f"red: gate {_rate(seen, number)}; drop {_rate(drops[0], number)}, own draws {_rate(drops[1], number)}; "
        text += f"tests {_rate(tests[0], number)}, own draws {_rate(tests[1], number)}; pairs " + ", ".join(
            f"{_pairs(each.pairs)}, by tests {_pairs(each.tested_pairs)}, where agents err in {noise:.0%}"
            for each, noise in zip(found, NOISES, strict=True)
        )
        name = f"gate: {100 * difference:g} points worse"
        if difference < 0.05:
            wrong = sum(each.verdicts.get("better", 0) for each in found)
            findings.append(Finding(name, SOURCE, text, at_most_rate(wrong, number, DEFAULT_ALPHA).p_value))
        else:
            result = at_least_rate(seen, number, LEAST_DETECTION)
            findings.append(Finding(name, SOURCE, text, result.p_value))
    return findings


def _rate(count: int, number: int) -> str:
    """Return a share of builds in percent, with its 95% interval (Clopper and Pearson)."""
    interval = stats.binomtest(count, number).proportion_ci(0.95)
    return f"{100 * count / number:.1f}% [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _pairs(pairs: FloatArray) -> str:
    """Return the median of pairs with its 95% interval, by the order of the builds, and what suffices in 4 of 5."""
    low, high = stats.binom.ppf([0.025, 0.975], len(pairs), 0.5).astype(int)
    ordered = np.sort(pairs)
    half, mostly = (float(np.quantile(pairs, share, method="higher")) for share in (0.5, 0.8))
    return f"{half:,.0f} [{ordered[low - 1]:,.0f}, {ordered[high]:,.0f}] (4 of 5: {mostly:,.0f})"
