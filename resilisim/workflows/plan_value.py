"""What a plan is worth: the exact chances of following it to the letter, and what each flaw costs (SPEC section 6)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.processes import answers_in_order
from resilisim.provenance import arguments_text
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.exact.plan_following import Obedience, obey_plan
from resilisim.simulator.goal import Goal
from resilisim.simulator.law import BENCHMARK, Law
from resilisim.simulator.problem import Problem, build_problem
from resilisim.statistics.estimates import NORMAL_95
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.parameters import accepts
from resilisim.tool_library.retrieval import default_retriever
from resilisim.workflows.argument_references import texts_of
from resilisim.workflows.executors import Executor, carried_out
from resilisim.workflows.flaws import SEVERITIES, Perturber
from resilisim.workflows.flaws.flaw import STRESSORS, tool_similarity
from resilisim.workflows.flaws.perturber import Program, with_clones
from resilisim.workflows.planner import resolve_planner
from resilisim.workflows.workflow import Step, Workflow

KEPT_RESULTS = 65536
_TASKS_PER_JOB = 20
TOLERANCE = 1e-12  # below it two probabilities are equal

FlawKey = tuple[str, str, str]  # flaw type, method, severity
# The plan without a flaw, as a row of the table.
SOUND_PLAN: FlawKey = ("none", "none", "none")
FLAW_KEYS: tuple[FlawKey, ...] = tuple(
    (flaw, method, severity) for flaw, methods in STRESSORS.items() for method in methods for severity in SEVERITIES
)


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
        return asdict(self)


def follow_steps(problem: Problem, steps: Sequence[Step], mode: str = "strict", data: Sequence[str] = ()) -> Obedience:
    """Return the chances of following a plan to the letter, limits of its steps and refused calls included.

    `mode` is how parameters of calls are checked. A step that cannot be done, because of what it refers to
    (`workflows.argument_references`), is passed over; the `data` are texts of the task, which refer to nothing.

    Raises:
        InvalidInputError: A tool is not in the library.
        ExactLimitError: Too many steps have limits.
    """
    steps = carried_out(steps, data=data)
    refused = [not accepts(problem.library[step.tool], step.parameters, mode) for step in steps]
    return obey_plan(problem, *_numbers(problem.library, steps, refused))


def _numbers(
    library: ToolLibrary, steps: Sequence[Step], refused: Sequence[bool]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int | None, int | None], ...]]:
    """Return tools, refused calls and limits as `obey_plan` takes them."""
    messages: dict[str, int] = {}  # as `simulator.messages.Message.signature` tells them apart
    refusals = []
    for step, is_refused in zip(steps, refused, strict=True):
        text = f"{step.tool} {arguments_text(step.parameters)}" if is_refused else ""
        refusals.append(1 + messages.setdefault(text, len(messages)) if is_refused else 0)
    tools = tuple(library.index(step.tool) for step in steps)
    return tools, tuple(refusals), tuple((step.max_tries, step.skip_from) for step in steps)


class CostCalculator:
    """Computes costs, of the default library under the benchmark's law and rules if nothing else is said.

    Equal plans for equal required lists are computed once.
    """

    def __init__(
        self, library: ToolLibrary | None = None, law: Law | None = None, rules: EndRules | None = None
    ) -> None:
        self.library = library if library is not None else default_library()
        self.law = law or BENCHMARK
        self.rules = rules or EndRules()
        self._ceiling = functools.lru_cache(maxsize=KEPT_RESULTS)(start_optimum)
        self._obeyed = functools.lru_cache(maxsize=KEPT_RESULTS)(obey_plan)
        self._refused: dict[int, tuple[Step, bool]] = {}

    def costs(
        self,
        required_tools: Sequence[str],
        steps: Sequence[Step],
        data: Sequence[str] = (),
        executor: Executor = "plan-follower",
    ) -> PlanCosts:
        """Return the costs of a plan for a task.

        An `executor` makes the calls of `carried_out`, each again until it succeeds or the step's limits say to go on.
        The `data` are texts of the task, in which nothing is a reference.
        """
        steps = carried_out(steps, executor, data)
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


def program_costs(
    library: ToolLibrary,
    reference: Sequence[Step],
    steps: Sequence[Step],
    law: Law | None = None,
    rules: EndRules | None = None,
) -> PlanCosts:
    """Return what a plan in a world is worth, measured by the task's reference solution.

    A step counts for a call of the reference if it has its tool and its parameters, references to earlier results as
    they are written; any other step is a call that the reference does not have.

    Args:
        library: The world's tool library.
        reference: The calls of the reference solution.
        steps: The plan.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.

    Returns:
        Obey: the chance of completing the reference solution by the plan. Coverage: the expected share of its calls
        that succeed in order. Deviate: V* of the reference solution.

    Raises:
        InvalidInputError: The law has parts.
    """
    law, rules = law or BENCHMARK, rules or EndRules()
    steps = carried_out(steps)
    names: list[str] = []  # of steps, each call of the reference under a name of its own
    own = Program.of(Workflow("", tuple(reference), "", 1.0), library).workflow.tools
    known: dict[str, str] = {}  # name of each call, by its words
    clones = dict(zip(own, (step.tool for step in reference), strict=True))
    done = 0  # calls of the reference that the plan has come to
    for step in steps:
        words = f"{step.tool} {arguments_text(step.parameters)}"
        if done < len(own) and (reference[done].tool, reference[done].parameters) == (step.tool, step.parameters):
            known[words] = own[done]
            done += 1
        elif words not in known:
            known[words] = f"{step.tool}.other{len(known)}"
            clones[known[words]] = step.tool
        names.append(known[words])
    is_refused = [
        name not in own and not accepts(library[step.tool], step.parameters, "strict")
        for name, step in zip(names, steps, strict=True)
    ]
    added = tuple((name, tool) for name, tool in clones.items() if name != tool)
    larger = with_clones(library, added)
    if law.parts:
        raise InvalidInputError(
            f"law {law.name!r:.100} has parts ({', '.join(law.parts)}), under which it is not known what a plan for a "
            "world costs: expected a law without"
        )
    if law.bases:
        law = replace(law, bases={**law.bases, **{name: law.bases[tool] for name, tool in added if tool in law.bases}})
    problem = build_problem(larger, own, law, rules, arguments_matter=True)
    renamed = [replace(step, tool=name) for step, name in zip(steps, names, strict=True)]
    obeyed = obey_plan(problem, *_numbers(larger, renamed, is_refused))
    program = tuple(step.tool for step in reference)
    plain = build_problem(
        library, Goal(tuple(dict.fromkeys(program)), program=program), law, rules, arguments_matter=True
    )
    return PlanCosts(obeyed.success, obeyed.coverage, start_optimum(plain))


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """The costs of one task's plan as it is, and with each flaw that it can carry, with the number of edits."""

    sound: PlanCosts
    flawed: dict[FlawKey, tuple[PlanCosts, int]]


@dataclass(frozen=True, slots=True)
class FlawCostRow:
    """Means over the tasks whose plans can carry a flaw; the sound plans are the flaw "none"."""

    flaw: str
    method: str
    severity: str
    num_tasks: int  # that carry it
    num_refused: int  # that cannot
    edits: float
    obey: float  # and `obey_coverage`, `deviate`: means of `PlanCosts`
    obey_interval: float  # half the width of the 95% interval of that mean over tasks
    obey_coverage: float
    coverage_interval: float
    deviate: float
    price: float  # deviate - obey
    sound_obey: float  # of the sound plans of these tasks
    harmless: float  # share of these tasks whose `obey` the flaw leaves as it was

    def to_mapping(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return asdict(self)


def flaw_cost_table(
    tasks: Sequence[Task],
    *,
    library: ToolLibrary | None = None,
    seed: int = 0,
    planner: str = "auto",
    search: str = "semantic",
    executor: Executor = "plan-follower",
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[FlawCostRow]:
    """Compute the costs of every flaw, method and severity, drawn with a seed, in the plan of every task.

    The plan is in the hands of an `executor` (`executors.carried_out`).

    Returns:
        The row of the sound plans, then one for each of `FLAW_KEYS`; means over no task are NaN, and so are intervals
        over fewer than two.
    """
    rows: dict[FlawKey, list[tuple[PlanCosts, PlanCosts, int]]] = {key: [] for key in (SOUND_PLAN, *FLAW_KEYS)}
    made: dict[str, Any] = {"library": library, "seed": seed, "planner": planner, "search": search}
    for costs in costs_of_tasks(tasks, **made, executor=executor, workers=workers):
        rows[SOUND_PLAN].append((costs.sound, costs.sound, 0))
        for key, (flawed, edits) in costs.flawed.items():
            rows[key].append((costs.sound, flawed, edits))
        if progress is not None:
            progress(1)
    return [_row(key, len(tasks), own) for key, own in rows.items()]


def costs_of_tasks(
    tasks: Sequence[Task],
    *,
    library: ToolLibrary | None = None,
    seed: int = 0,
    planner: str = "auto",
    search: str = "semantic",
    executor: Executor = "plan-follower",
    workers: int = 1,
) -> Iterator[TaskCosts]:
    """Yield the costs of every flaw in the plan of each task, in the order of the tasks."""
    setup = (library, seed, planner, search, executor)
    blocks = [tuple(tasks[start : start + _TASKS_PER_JOB]) for start in range(0, len(tasks), _TASKS_PER_JOB)]
    for costs in answers_in_order(_Maker, setup, blocks, min(workers, len(blocks))):
        yield from costs


class _Maker:
    """Computes the costs of some tasks; made once in each process."""

    def __init__(self, setup: tuple[ToolLibrary | None, int, str, str, Executor]) -> None:
        library, self._seed, planner, search, self._executor = setup
        self._planner = resolve_planner(planner, library)
        retriever = default_retriever(library or default_library(), search)
        self._perturber = Perturber(library, similarity=lambda: tool_similarity(retriever))
        self._costs = CostCalculator(library)

    def __call__(self, job: tuple[int, tuple[Task, ...]]) -> Iterator[tuple[int, list[TaskCosts]]]:
        number, tasks = job
        yield number, [self._costs_of(task) for task in tasks]

    def _costs_of(self, task: Task) -> TaskCosts:
        required, sound = task.required_tools, self._planner.plan(task)
        flawed = {}
        flaws = [(flaw, severity, method) for flaw, method, severity in FLAW_KEYS]
        for _, flawed_plan in self._perturber.carried(sound, required, flaws, self._seed):
            key = (flawed_plan.flaw.type, flawed_plan.flaw.method, flawed_plan.flaw.severity)
            costs = self._costs.costs(required, flawed_plan.workflow.steps, texts_of(task), self._executor)
            flawed[key] = (costs, len(flawed_plan.edits))
        return TaskCosts(self._costs.costs(required, sound.steps, texts_of(task), self._executor), flawed)


def _row(key: FlawKey, num_tasks: int, carried: Sequence[tuple[PlanCosts, PlanCosts, int]]) -> FlawCostRow:
    """Sum up the costs of the sound plans and of the flawed ones, with the edits, of the tasks that carry a flaw."""
    count = len(carried)
    obeyed = [flawed.obey for _, flawed, _ in carried]
    covered = [flawed.obey_coverage for _, flawed, _ in carried]
    obey, deviate = _mean(obeyed), _ratio(sum(flawed.deviate for _, flawed, _ in carried), count)
    return FlawCostRow(
        *key,
        num_tasks=count,
        num_refused=num_tasks - count,
        edits=_ratio(sum(edits for _, _, edits in carried), count),
        obey=obey,
        obey_interval=_half_width(obeyed),
        obey_coverage=_mean(covered),
        coverage_interval=_half_width(covered),
        deviate=deviate,
        price=deviate - obey,
        sound_obey=_ratio(sum(sound.obey for sound, _, _ in carried), count),
        harmless=_ratio(sum(flawed.obey >= sound.obey - TOLERANCE for sound, flawed, _ in carried), count),
    )


def _ratio(total: float, count: int) -> float:
    return total / count if count else math.nan


def _mean(values: Sequence[float]) -> float:
    return _ratio(math.fsum(values), len(values))


def _half_width(values: Sequence[float]) -> float:
    """Return half the width of the normal 95% interval of a mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    mean = _mean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return NORMAL_95 * math.sqrt(variance / len(values))
