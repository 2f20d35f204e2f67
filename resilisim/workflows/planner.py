"""Planners: what makes a workflow for a task. Here the exact one; others obey the same protocol."""

from __future__ import annotations

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from resilisim.errors import (
    ExactLimitError,
    InvalidInputError,
    MissingExtraError,
    ResiliSimError,
    install_line,
    unknown_name,
)
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.optimum import is_plain_list, start_optimum
from resilisim.simulator.exact.plan_following import best_limits
from resilisim.simulator.goal import world_goal
from resilisim.simulator.law import BENCHMARK, Law
from resilisim.simulator.problem import Problem, build_problem, is_awaiting_closing, is_done, next_state, start_state
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows.steps import REASON_REQUIRED, SemanticMatch, chance, expected_outcome, reason, step_parameters
from resilisim.workflows.workflow import Step, Workflow
from resilisim.worlds.base import reference_calls

if TYPE_CHECKING:
    from resilisim.tool_library.retrieval import Retriever

PLANNER_NAMES = ("exact", "auto", "exact-path")
# A trained policy plans under this prefix and its folder. It stands on a higher floor and needs packages that not
# everybody has, so it is imported when it is made.
POLICY_PREFIX = "policy:"
POLICY_PLANNER = ("resilisim.policies.ppo.policy", "PolicyPlanner")
# What plans where the law cannot be solved.
FALLBACK = POLICY_PREFIX + "default"
PLANNER_FORMS = (*PLANNER_NAMES, POLICY_PREFIX + "DIR")
# Plans of that many required lists are kept by a planner, so that a stream of tasks needs constant memory.
KEPT_PLANS = 8192
NUM_ALTERNATIVES = 3

Key = TypeVar("Key", bound=Hashable)

# Names the tools most like a given one, the most similar first.
SimilarTools = Callable[[str], Sequence[str]]


class Planner(Protocol):
    """What makes workflows.

    Example:
        >>> from resilisim.workflows import Step, Workflow
        >>> class RequiredOrder:
        ...     name = "required-order"
        ...
        ...     def plan(self, task):
        ...         steps = tuple(Step(tool) for tool in task.required_tools)
        ...         return Workflow(task.instance_id, steps, self.name, 0.0)
    """

    @property
    def name(self) -> str:
        """What stands as `planner` in workflows, prompts and records."""
        ...

    def plan(self, task: Task) -> Workflow:
        """Return the workflow for a task."""
        ...


class KeepingPlanner(ABC, Generic[Key]):
    """What planners share that make steps once and fill them in for each task: they keep the latest plans."""

    def __init__(
        self,
        name: str,
        library: ToolLibrary | None,
        law: Law | None,
        rules: EndRules | None,
        similar: SimilarTools | None,
        match: SemanticMatch | None,
    ) -> None:
        self.name = name
        self.library = library if library is not None else default_library()
        self.law = law or BENCHMARK
        self.rules = rules or EndRules()
        self.similar = similar
        self.match = match
        self._keep()

    def _keep(self) -> None:
        self._kept = functools.lru_cache(maxsize=KEPT_PLANS)(self._make)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._keep()

    def plan(self, task: Task) -> Workflow:
        """Return the workflow for a task; what depends on neither its inputs nor its text is made once."""
        steps, value = self._kept(self._key(task))
        return Workflow(task.instance_id, fill_steps(steps, task, self.library, self.match), self.name, value)

    @abstractmethod
    def _key(self, task: Task) -> Key:
        """Return what the steps of a task's plan depend on."""

    @abstractmethod
    def _make(self, key: Key) -> tuple[tuple[Step, ...], float]:
        """Return steps without parameters, and the chance of success of following them to the letter."""


class ExactPlanner(KeepingPlanner[tuple[str, ...]]):
    """Plans so that the plan, followed to the letter, succeeds as often as it can; its value is exact.

    Tools outside the required list ("helpers") are steps where running them first raises the chance of success; the
    step's reason says for which tool and by how much. Each helper has limits (`Step.max_tries`, `Step.skip_from`) where
    trying on for too long would cost more than it brings. Helpers and limits are chosen by coordinate ascent
    (`plan_following.best_limits`) from two plans, of which the better one counts: the calls of an optimal policy along
    the path on which every call succeeds, and the same helpers next to the tools that need them, with all other
    dependencies to choose from. Where no success is possible at all (fewer turns than required tools), the plan is the
    required list as it stands, with a predicted success probability of 0. It also stands for the path if the list is
    too large to be solved.

    Args:
        library: Tool library of the tasks; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
        similar: Names the alternatives of a tool; without it, steps have none and no model is loaded.
        match: Scores how well tools match a task's description; without it, steps have no semantic match.
        limits: Whether to choose helpers and limits. If not, the plan is the path of the optimal policy as it stands,
            its predicted success probability is V* (which only a policy that looks at what happens can reach), and the
            planner's name is "exact-path".

    Example:
        >>> from resilisim import benchmark_tasks
        >>> from resilisim.workflows import ExactPlanner
        >>> plan = ExactPlanner().plan(benchmark_tasks()[2])
        >>> round(plan.predicted_success_probability, 6)
        0.909114
    """

    def __init__(
        self,
        library: ToolLibrary | None = None,
        law: Law | None = None,
        rules: EndRules | None = None,
        similar: SimilarTools | None = None,
        match: SemanticMatch | None = None,
        limits: bool = True,
    ) -> None:
        super().__init__("exact" if limits else "exact-path", library, law, rules, similar, match)
        self.limits = limits

    def _key(self, task: Task) -> tuple[str, ...]:
        return task.required_tools

    def _make(self, key: tuple[str, ...]) -> tuple[tuple[Step, ...], float]:
        problem = build_problem(self.library, key, self.law, self.rules)
        tools, value, highest = all_success_path(problem)
        limits: Sequence[tuple[int | None, int | None]] = [(None, None)] * len(tools)
        if self.limits and highest > 0.0:
            tools, limits, value = _limited_path(problem, [self.library.index(name) for name in tools])
        steps = [self._step(problem, tools, place) for place in range(len(tools))]
        return limited_steps(steps, limits), value

    def _step(self, problem: Problem, tools: tuple[str, ...], place: int) -> Step:
        name = tools[place]
        tool = self.library[name]
        return Step(
            tool=name,
            reason=reason(problem, tools, place),
            requires=tuple(tool.dependencies),
            alternatives=tuple(self.similar(name)) if self.similar is not None else (),
            expected_outcome=expected_outcome(tool),
            confidence=chance(problem, name, tools[:place]),
            chosen_by="semantics" if name in problem.required_tools else "policy",
        )


def _limited_path(
    problem: Problem, path: Sequence[int]
) -> tuple[tuple[str, ...], Sequence[tuple[int | None, int | None]], float]:
    """Return tools, limits and value of the better of two plans around a path (`ExactPlanner`)."""
    beside: list[int] = []

    def put(tool: int) -> None:
        if tool not in beside:
            for dependency in problem.dependencies[tool]:
                if problem.place[dependency] < 0:
                    put(dependency)
            beside.append(tool)

    for tool in problem.required:
        put(tool)
    starts = [(path, best_limits(problem, path))]
    if list(path) != beside:
        starts.append((beside, best_limits(problem, beside, [tool for tool in beside if tool not in path])))
    tools, limits = max(starts, key=lambda start: start[1].success)
    return tuple(problem.library.names[tools[place]] for place in limits.kept), limits.limits, limits.success


def limited_steps(steps: Sequence[Step], limits: Sequence[tuple[int | None, int | None]]) -> tuple[Step, ...]:
    """Return steps with the limits that `best_limits` gives."""
    return tuple(
        replace(step, max_tries=max_tries, skip_from=skip_from)
        for step, (max_tries, skip_from) in zip(steps, limits, strict=True)
    )


def fill_steps(
    steps: Sequence[Step], task: Task, library: ToolLibrary, match: SemanticMatch | None
) -> tuple[Step, ...]:
    """Return steps with what depends on the task's inputs and text: parameters and semantic match."""
    matches: Sequence[float | None] = [None] * len(steps)
    if match is not None:
        matches = match(task.description, [step.tool for step in steps])
    before = [None, *(step.tool for step in steps)]
    return tuple(
        replace(step, parameters=step_parameters(library[step.tool], task.inputs, tool_before), semantic_match=score)
        for step, tool_before, score in zip(steps, before[:-1], matches, strict=True)
    )


class ReferencePlanner:
    """Plans what the reference solution of a world's task does: its calls, with parameters, in order.

    A parameter "${name}" stands for the result that an earlier step keeps under that name. The predicted success
    probability is the chance of completing the solution within the turns, each call again until it goes through.

    Args:
        library: The world's tool library.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.

    Raises:
        InvalidInputError: A task holds no reference solution.
    """

    name = "reference"

    def __init__(self, library: ToolLibrary, law: Law | None = None, rules: EndRules | None = None) -> None:
        self.library = library
        self.law = law
        self.rules = rules

    def plan(self, task: Task) -> Workflow:
        """Return the workflow for a task."""
        calls = reference_calls(task)
        if not calls:
            raise InvalidInputError(f"task {task.instance_id} has no reference solution: expected one in its metadata")
        problem = build_problem(self.library, world_goal(task), self.law, self.rules, arguments_matter=True)
        tools = [call.tool for call in calls]
        steps = []
        for place, call in enumerate(calls):
            tool = self.library[call.tool]
            kept = "" if call.save is None else f", kept as {call.save}"
            steps.append(
                Step(
                    tool=call.tool,
                    parameters=dict(call.parameters),
                    reason=REASON_REQUIRED,
                    requires=tuple(tool.dependencies),
                    expected_outcome=expected_outcome(tool) + kept,
                    confidence=chance(problem, call.tool, tools[:place]),
                )
            )
        return Workflow(task.instance_id, tuple(steps), self.name, start_optimum(problem))


class AutoPlanner:
    """The default planner: exact where a task can be solved exactly, else another planner.

    Args:
        exact: The exact planner.
        fallback: Plans what is too large to be solved, or a function that makes such a planner when the first task of
            that kind comes; without it, or if the function raises a `ResiliSimError`, such a task raises
            `ExactLimitError`.
    """

    name = "auto"

    def __init__(self, exact: ExactPlanner, fallback: Planner | Callable[[], Planner] | None = None) -> None:
        self.exact = exact
        self._fallback = fallback

    def plan(self, task: Task) -> Workflow:
        """Return the workflow for a task; its `planner` names the one that made it.

        Raises:
            InvalidInputError: The required list does not fit the library.
            ExactLimitError: The task is too large to be solved exactly, and there is no fallback.
        """
        try:
            return self.exact.plan(task)
        except ExactLimitError as error:
            if self._fallback is None:
                raise
            if callable(self._fallback):
                try:
                    self._fallback = self._fallback()
                except ResiliSimError as missing:
                    raise ExactLimitError(f"{error}; a trained policy could plan it, but {missing}") from error
            return self._fallback.plan(task)


def resolve_planner(
    name: str,
    library: ToolLibrary | None = None,
    law: Law | None = None,
    rules: EndRules | None = None,
    similar: SimilarTools | None = None,
    fallback: Planner | None = None,
    match: SemanticMatch | None = None,
) -> Planner:
    """Return the planner of that name.

    Args:
        name: "exact"; "auto"; "exact-path", the path of the optimum without limits; "policy:DIR", the trained policy
            whose checkpoint lies in the folder DIR; or "policy:default", the trained policy that ships.
        library: Tool library of the tasks; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
        similar: Names the alternatives of a tool, for instance `similar_by_retrieval(retriever)`; without it an exact
            plan has none, and a trained policy names its next most probable calls.
        fallback: Under "auto", plans what cannot be solved exactly; "policy:default" if omitted.
        match: Scores tools against a task's description, for instance `semantic_match_by_retrieval(retriever)`.

    Raises:
        InvalidInputError: There is no such planner.
        MissingExtraError: It needs packages that are not installed.
    """
    options = (library, law, rules, similar, match)
    if name in ("exact", "exact-path"):
        return ExactPlanner(*options, limits=name == "exact")
    if name == "auto":
        return AutoPlanner(ExactPlanner(*options), fallback or functools.partial(_policy_planner, FALLBACK, options))
    return _policy_planner(name, options)


def _policy_planner(name: str, options: tuple[object, ...]) -> Planner:
    if not name.startswith(POLICY_PREFIX):
        raise unknown_name("planner", name, PLANNER_FORMS)
    if name == POLICY_PREFIX:
        raise InvalidInputError(f"planner {name!r} names no checkpoint: expected {PLANNER_FORMS[-1]} or {FALLBACK}")
    module, attribute = POLICY_PLANNER
    try:
        make = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        if str(error.name).partition(".")[0] == "resilisim":
            raise  # nothing that installing would mend
        cause = " ".join(str(error).split())
        raise MissingExtraError(f"planner {name!r} cannot be loaded ({cause}): {install_line('train')}") from error
    return cast("Planner", make(name.removeprefix(POLICY_PREFIX), *options))


def similar_by_retrieval(retriever: Retriever, count: int = NUM_ALTERNATIVES) -> SimilarTools:
    """Return a function that names the `count` tools whose texts are nearest to that of a tool."""
    return functools.cache(lambda name: tuple(hit.name for hit in retriever.similar_tools(name, count)))


def no_similar_tools(name: str) -> tuple[str, ...]:
    """Name no alternatives, also under planners that would otherwise think of some."""
    return ()


def all_success_path(problem: Problem) -> tuple[tuple[str, ...], float, float]:
    """Return the tools that an optimal policy calls when every call succeeds, V* of the start, and what bounds that.

    They are those of the list where nothing can succeed, and where V* of a list under a law without parts is only known
    between bounds: to compare what all calls are worth in each state would take minutes.
    """
    optimum = solve(problem)
    state = start_state(problem)
    value = optimum.value(state)
    highest = value + optimum.start_gap
    if value == 0.0 or (is_plain_list(problem) and value < highest):
        return problem.required_tools, value, highest
    tools: list[str] = []
    while not is_done(problem, state) and not is_awaiting_closing(problem, state):
        message = optimum.best_action(state)
        tools.append(message.tool or "")
        state = next_state(problem, state, message, success=True)
    return tuple(tools), value, highest
