"""What a plan is worth: the exact chances of following it to the letter, and what each flaw costs (SPEC section 6)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from resilisim.processes import answers_in_order
from resilisim.simulator.exact import known_probabilities
from resilisim.simulator.exact.plan_following import Obedience, obey_plan
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.problem import Problem, build_problem
from resilisim.statistics.estimates import NORMAL_95
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES, FlawRefusal, Perturber
from resilisim.workflows.model import Step
from resilisim.workflows.planner import resolve_planner

KEPT_RESULTS = 65536
TASKS_PER_JOB = 20
TOLERANCE = 1e-12  # below it two probabilities are equal

# The plan without a flaw, as a row of the table.
SOUND = ("none", "none", "none")


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """The chances that a plan leaves, with parameters in `strict` mode.

    Attributes:
        obey: Probability of full success when the plan is followed to the letter (`workflows.Step`) and
            completion is signalled after the last step.
        obey_coverage: Expected share of the required tools that succeed in order on that way (`Obedience.coverage`).
        deviate: V* of the task: what an agent can still reach that does not believe the plan.
    """

    obey: float
    obey_coverage: float
    deviate: float

    @property
    def price_of_obedience(self) -> float:
        """What obeying gives away: deviate - obey."""
        return self.deviate - self.obey

    def to_mapping(self) -> dict[str, float]:
        """Return the costs as they stand in records."""
        return {"obey": self.obey, "obey_coverage": self.obey_coverage, "deviate": self.deviate}


def follow_steps(problem: Problem, steps: Sequence[Step], mode: str = "strict") -> Obedience:
    """Return the chances of following a plan to the letter, limits of its steps and refused calls included.

    Args:
        problem: The task's numbers.
        steps: The steps of the plan.
        mode: How parameters of calls are checked.

    Raises:
        InvalidInputError: A tool is not in the library.
        ExactLimitError: Too many steps have limits.
    """
    refused = [not accepts(problem.library[step.tool], step.parameters, mode) for step in steps]
    return obey_plan(problem, *_numbers(problem.library, steps, refused))


def _numbers(
    library: ToolLibrary, steps: Sequence[Step], refused: Sequence[bool]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int | None, int | None], ...]]:
    """Return tools, refused calls and limits as `obey_plan` takes them."""
    messages: dict[str, int] = {}  # as `simulator.messages.Message.signature` tells them apart
    refusals = []
    for step, is_refused in zip(steps, refused, strict=True):
        text = f"{step.tool} {sorted(step.parameters.items(), key=str)}" if is_refused else ""
        refusals.append(1 + messages.setdefault(text, len(messages)) if is_refused else 0)
    tools = tuple(library.index(step.tool) for step in steps)
    return tools, tuple(refusals), tuple((step.max_tries, step.skip_from) for step in steps)


class CostCalculator:
    """Computes costs; equal plans for equal required lists are computed once.

    Args:
        library: Tool library of the plans; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
    """

    def __init__(
        self, library: ToolLibrary | None = None, law: BenchmarkLaw | None = None, rules: EndRules | None = None
    ) -> None:
        self.library = library if library is not None else default_library()
        self.law = law or BenchmarkLaw()
        self.rules = rules or EndRules()
        self._ceiling = functools.lru_cache(maxsize=KEPT_RESULTS)(known_probabilities)
        self._obeyed = functools.lru_cache(maxsize=KEPT_RESULTS)(obey_plan)
        self._refused: dict[int, tuple[Step, bool]] = {}

    def costs(self, required_tools: Sequence[str], steps: Sequence[Step]) -> PlanCosts:
        """Return the costs of a plan for a task.

        Args:
            required_tools: The task's required tools, in order.
            steps: The steps of the plan.

        Raises:
            InvalidInputError: A tool is not in the library.
            ExactLimitError: The task is too large to be solved exactly.
        """
        problem = build_problem(self.library, required_tools, self.law, self.rules)
        obeyed = self._obeyed(problem, *_numbers(self.library, steps, [self._is_refused(step) for step in steps]))
        return PlanCosts(obeyed.success, obeyed.coverage, self._ceiling(problem))

    def _is_refused(self, step: Step) -> bool:
        """Return whether a step's call is refused in strict mode; a step is checked once while it is in use."""
        known = self._refused.get(id(step))
        if known is not None and known[0] is step:
            return known[1]
        refused = not accepts(self.library[step.tool], step.parameters, "strict")
        self._refused[id(step)] = (step, refused)  # kept alive, so that its identity is not given to another one
        if len(self._refused) > KEPT_RESULTS:
            self._refused.pop(next(iter(self._refused)))
        return refused


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
    """Yield the costs of every flaw in the plan of each task, in the order of the tasks."""
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
