"""What each flaw costs over many tasks: the table by flaw, method and severity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from resilisim.processes import answers_in_order
from resilisim.statistics import NORMAL_95
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows.costs import CostCalculator, PlanCosts
from resilisim.workflows.perturbation import FLAW_METHODS, SEVERITIES, FlawRefusal, Perturber
from resilisim.workflows.planner import resolve_planner

TASKS_PER_JOB = 20
TOLERANCE = 1e-12  # below it two probabilities are equal

# The plan without a flaw, as a row of the table.
SOUND = ("none", "none", "none")


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """The costs of every flaw in one task's plan.

    Attributes:
        sound: Those of the plan as it was.
        flawed: (flaw type, method, severity) -> costs and number of edits, for the flaws that the plan can carry.
    """

    sound: PlanCosts
    flawed: dict[tuple[str, str, str], tuple[PlanCosts, int]]


@dataclass(frozen=True, slots=True)
class FlawCostRow:
    """Means over the tasks whose plans can carry a flaw.

    Attributes:
        flaw: Flaw type; "none" for the sound plans.
        method: Method.
        severity: Severity.
        num_tasks: Tasks that carry it.
        num_refused: Tasks that cannot.
        edits: Mean number of edits.
        obey: Mean chance of full success of an agent that obeys.
        obey_interval: Half the width of the 95 % interval of that mean over tasks.
        obey_coverage: Mean share of required tools that succeed in order.
        coverage_interval: Half the width of its 95 % interval.
        deviate: Mean V* of these tasks.
        price: Mean price of obedience, deviate - obey.
        sound_obey: Mean `obey` of the sound plans of these tasks.
        harmless: Share of these tasks whose `obey` the flaw leaves as it was.
    """

    flaw: str
    method: str
    severity: str
    num_tasks: int
    num_refused: int
    edits: float
    obey: float
    obey_interval: float
    obey_coverage: float
    coverage_interval: float
    deviate: float
    price: float
    sound_obey: float
    harmless: float

    def to_mapping(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


def flaw_cost_table(
    tasks: Sequence[Task],
    *,
    library: ToolLibrary | None = None,
    seed: int = 0,
    planner: str = "auto",
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[FlawCostRow]:
    """Compute the costs of every flaw, method and severity in the plan of every task.

    Args:
        tasks: The tasks.
        library: Their tool library; the default one if omitted.
        seed: Seed of the flaws.
        planner: Name of the planner.
        workers: Number of processes.
        progress: Called with the number of tasks done since the last call.

    Returns:
        The row of the sound plans, then one for each of the 42 flaws; means over no task are NaN, and so are intervals
        over fewer than two.
    """
    keys = [
        SOUND,
        *(
            (flaw, method, severity)
            for flaw, methods in FLAW_METHODS.items()
            for method in methods
            for severity in SEVERITIES
        ),
    ]
    totals = {key: _Totals() for key in keys}
    for costs in costs_of_tasks(tasks, library=library, seed=seed, planner=planner, workers=workers):
        for key in keys:
            flawed = (costs.sound, 0) if key == SOUND else costs.flawed.get(key)
            totals[key].add(costs.sound, flawed)
        if progress is not None:
            progress(1)
    return [_row(key, totals[key]) for key in keys]


def costs_of_tasks(
    tasks: Sequence[Task],
    *,
    library: ToolLibrary | None = None,
    seed: int = 0,
    planner: str = "auto",
    workers: int = 1,
) -> Iterator[TaskCosts]:
    """Yield the costs of every flaw in the plan of each task, in the order of the tasks.

    Args:
        tasks: The tasks.
        library: Their tool library; the default one if omitted.
        seed: Seed of the flaws.
        planner: Name of the planner.
        workers: Number of processes.
    """
    blocks = [tuple(tasks[start : start + TASKS_PER_JOB]) for start in range(0, len(tasks), TASKS_PER_JOB)]
    text = None if library is None or library == default_library() else library.to_json()
    for costs in answers_in_order(_Maker, (text, seed, planner), blocks, min(workers, len(blocks))):
        yield from costs


class _Maker:
    """Computes the costs of some tasks; made once in each process."""

    def __init__(self, setup: tuple[str | None, int, str]) -> None:
        library, self._seed, planner = setup
        chosen = default_library() if library is None else ToolLibrary.from_json(library, source="library")
        self._planner = resolve_planner(planner, chosen)
        self._perturber = Perturber(chosen)
        self._costs = CostCalculator(chosen)

    def __call__(self, job: tuple[int, tuple[Task, ...]]) -> Iterator[tuple[int, list[TaskCosts]]]:
        number, tasks = job
        yield number, [self._costs_of(task) for task in tasks]

    def _costs_of(self, task: Task) -> TaskCosts:
        sound = self._planner.plan(task)
        flawed = {}
        for flaw, methods in FLAW_METHODS.items():
            for method in methods:
                for severity in SEVERITIES:
                    found = self._perturber.perturb(sound, task.required_tools, flaw, severity, method, self._seed)
                    if not isinstance(found, FlawRefusal):
                        costs = self._costs.costs(task.required_tools, found.workflow.steps)
                        flawed[flaw, method, severity] = (costs, len(found.edits))
        return TaskCosts(self._costs.costs(task.required_tools, sound.steps), flawed)


class _Totals:
    """Sums over the tasks that carry a flaw."""

    def __init__(self) -> None:
        self.num_tasks = 0
        self.num_refused = 0
        self.num_harmless = 0
        self.edits = 0
        self.sound_obey = 0.0
        self.deviate = 0.0
        self.obey: list[float] = []
        self.coverage: list[float] = []

    def add(self, sound: PlanCosts, flawed: tuple[PlanCosts, int] | None) -> None:
        if flawed is None:
            self.num_refused += 1
            return
        costs, edits = flawed
        self.num_tasks += 1
        self.num_harmless += costs.obey >= sound.obey - TOLERANCE
        self.edits += edits
        self.sound_obey += sound.obey
        self.deviate += costs.deviate
        self.obey.append(costs.obey)
        self.coverage.append(costs.obey_coverage)


def _row(key: tuple[str, str, str], totals: _Totals) -> FlawCostRow:
    count = totals.num_tasks
    obey, deviate = _mean(totals.obey), totals.deviate / count if count else math.nan
    return FlawCostRow(
        *key,
        num_tasks=count,
        num_refused=totals.num_refused,
        edits=totals.edits / count if count else math.nan,
        obey=obey,
        obey_interval=_half_width(totals.obey),
        obey_coverage=_mean(totals.coverage),
        coverage_interval=_half_width(totals.coverage),
        deviate=deviate,
        price=deviate - obey,
        sound_obey=totals.sound_obey / count if count else math.nan,
        harmless=totals.num_harmless / count if count else math.nan,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _half_width(values: Sequence[float]) -> float:
    """Return half the width of the normal 95 % interval of a mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    mean = _mean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return NORMAL_95 * math.sqrt(variance / len(values))
