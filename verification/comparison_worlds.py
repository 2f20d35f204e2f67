"""What the estimators of comparisons say in replicated experiments of one world, against what is true there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.statistics.comparison import INDEPENDENT, MCNEMAR, PAIRED, PAIRED_LUCK_ADJUSTED, Difference
from resilisim.statistics.estimates import clustered_mean
from resilisim.statistics.power import power_of_test
from verification.experiments import Experiments, Sample, compared

FloatArray = NDArray[np.float64]

RAW, ADJUSTED = "success", "luck-adjusted success"
# The ways to be wrong that the controls are about.
WRONG_CLUSTER = "interval that takes episodes as independent"
BEST_BETA = "beta that makes the score highest"
BETA_1 = "luck-adjusted success with beta 1"
SIGNIFICANT = 0.05
BETAS = np.linspace(0.0, 2.0, 21)


class Key(NamedTuple):
    """What a row of numbers is about, one number for each experiment.

    Attributes:
        kind: "covers" (1 if the interval holds the truth), "error" (estimate minus truth), "level" (1 if no difference
            is rejected, though there is none), "power" (1 if it is rejected where there is one) or "foretold" (the
            chance of that, from the difference and the spread of its estimates).
        method: Method of the comparison, or what is estimated.
        about: The contestants.
    """

    kind: str
    method: str
    about: str


Results = dict[Key, FloatArray]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which contestants are looked at, by their places in the world.

    Attributes:
        names: Names of the contestants.
        single: Those whose scores are estimated.
        pairs: Those that are compared.
        told_apart: Those of them whose power is foretold.
        null_pairs: Pairs that change places by coin, so that neither is better.
        different_tasks: Pairs that are compared on different tasks, for the method that takes nothing as shared.
        num_tasks: Tasks of an experiment.
        num_seeds: Episodes of each task.
        num_experiments: Experiments of each kind.
    """

    names: Sequence[str]
    single: Sequence[str]
    pairs: Sequence[tuple[str, str]]
    told_apart: Sequence[tuple[str, str]]
    null_pairs: Sequence[tuple[str, str]]
    different_tasks: Sequence[tuple[str, str]]
    num_tasks: int
    num_seeds: int
    num_experiments: int


@dataclass(frozen=True)
class Measuring:
    """Repeats experiments in one world and writes down what came of them.

    Attributes:
        experiments: Where experiments are drawn from.
        plan: What to look at.
    """

    experiments: Experiments
    plan: Plan
    _rows: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))

    def measure(self) -> Results:
        """Do everything that the plan says; one array of shape (num_experiments,) for each key."""
        for _ in range(self.plan.num_experiments):
            sample = self.experiments.sample()
            for name in self.plan.single:
                self._scores(name, sample)
            for a, b in self.plan.pairs:
                self._difference(a, b, sample)
            for a, b in self.plan.different_tasks:
                self._on_different_tasks(a, b, sample)
            for a, b in self.plan.null_pairs:
                self._null(a, b, sample)
        results = {key: np.array(row) for key, row in self._rows.items()}
        return results | self._foretold(results)

    def _scores(self, name: str, sample: Sample) -> None:
        place = self.plan.names.index(name)
        truth = self.experiments.world.success(place)
        summary = self.experiments.summary(place, sample)
        for method, estimate in ((RAW, summary.success), (ADJUSTED, summary.luck_adjusted)):
            self._rows[Key("covers", method, name)].append(estimate.low <= truth <= estimate.high)
            self._rows[Key("error", method, name)].append(estimate.value - truth)
        self._rows[Key("error", BETA_1, name)].append(summary.luck_adjusted_beta_1.value - truth)
        outcome, luck = self.experiments.episodes(place, sample)
        careless = clustered_mean(outcome.ravel(), np.ones(outcome.size))
        self._rows[Key("covers", WRONG_CLUSTER, name)].append(careless.low <= truth <= careless.high)
        best = float(np.max(outcome.mean() - BETAS * luck.mean()))
        self._rows[Key("error", BEST_BETA, name)].append(best - truth)

    def _difference(self, a: str, b: str, sample: Sample) -> None:
        first, second = self.plan.names.index(a), self.plan.names.index(b)
        about = f"{a} - {b}"
        truth = self.experiments.world.success(first) - self.experiments.world.success(second)
        pairs = self.experiments.pairs(first, second, sample)
        differences = compared(pairs).differences
        for method in (PAIRED, PAIRED_LUCK_ADJUSTED):
            self._note(differences[method], truth, about)
            if (a, b) in self.plan.told_apart:
                self._rows[Key("power", method, about)].append(differences[method].p_value <= SIGNIFICANT)

    def _on_different_tasks(self, a: str, b: str, sample: Sample) -> None:
        first, second = self.plan.names.index(a), self.plan.names.index(b)
        truth = self.experiments.world.success(first) - self.experiments.world.success(second)
        pairs = self.experiments.pairs(first, second, sample, self.experiments.sample())
        self._note(compared(pairs).differences[INDEPENDENT], truth, f"{a} - {b}")

    def _note(self, found: Difference, truth: float, about: str) -> None:
        low, high = found.interval
        self._rows[Key("covers", found.method, about)].append(low <= truth <= high)
        self._rows[Key("error", found.method, about)].append(found.difference - truth)

    def _null(self, a: str, b: str, sample: Sample) -> None:
        pairs = self.experiments.pairs(self.plan.names.index(a), self.plan.names.index(b), sample)
        for by_task, unit in ((False, "episode"), (True, "task")):
            differences = compared(self.experiments.swapped(pairs, by_task)).differences
            for method in (PAIRED, PAIRED_LUCK_ADJUSTED, MCNEMAR):
                key = Key("level", method, f"{a} | {b}, swapped by {unit}")
                self._rows[key].append(differences[method].p_value <= SIGNIFICANT)

    def _foretold(self, results: Results) -> Results:
        """Return the chance to reject no difference, as `resilisim runs power` has it, with the spread seen."""
        chances = {}
        for key in [key for key in results if key.kind == "power"]:
            a, b = key.about.split(" - ")
            world, names = self.experiments.world, self.plan.names
            truth = world.success(names.index(a)) - world.success(names.index(b))
            spread = float(np.sqrt(np.mean(results[Key("error", key.method, key.about)] ** 2)))
            # The spread is that of a mean over tasks, so one task has num_tasks times its variance.
            num_tasks = self.plan.num_tasks
            chance = power_of_test(abs(truth), num_tasks * spread**2, num_tasks, SIGNIFICANT)
            chances[Key("foretold", key.method, key.about)] = np.full(self.plan.num_experiments, chance)
        return chances
