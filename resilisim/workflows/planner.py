"""Planners: what makes a workflow for a task. Here the exact one; others obey the same protocol."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from resilisim.errors import ExactLimitError, unknown_name
from resilisim.simulator.exact import solve
from resilisim.simulator.law import BenchmarkLaw
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.rules import EndRules
from resilisim.simulator.state import is_awaiting_closing, is_done, next_state, start_state
from resilisim.tasks import Task
from resilisim.tool_library import Tool, ToolLibrary, default_library
from resilisim.workflows.parameters import step_parameters
from resilisim.workflows.semantic_match import SemanticMatch
from resilisim.workflows.types import Step, Workflow

if TYPE_CHECKING:
    from resilisim.tool_library.retrieval import ToolRetriever

PLANNER_NAMES = ("exact", "auto")
# Plans of that many required lists are kept by a planner, so that a stream of tasks needs constant memory.
KEPT_PLANS = 8192
NUM_ALTERNATIVES = 3
# Not "number 2 of 5": a plan from which a step was taken would tell so by its numbers.
REASON_REQUIRED = "an operation that the task asks for"

# Names the tools most like a given one, the most similar first.
SimilarTools = Callable[[str], Sequence[str]]


class Planner(Protocol):
    """What makes workflows.

    A minimal planner, which runs the required tools in their order:

        class RequiredOrder:
            name = "required-order"

            def plan(self, task):
                steps = tuple(Step(tool) for tool in task.required_tools)
                return Workflow(task.instance_id, steps, self.name, 0.0)

    Attributes:
        name: What stands as `planner` in workflows, prompts and records.
    """

    @property
    def name(self) -> str:
        """What stands as `planner` in workflows, prompts and records."""
        ...

    def plan(self, task: Task) -> Workflow:
        """Return the workflow for a task."""
        ...


class ExactPlanner:
    """Plans by the exact optimum: the calls of an optimal policy along the path on which every call succeeds.

    Tools outside the required list are steps where running them first raises the chance of success; the step's reason
    says for which tool and by how much. Where no success is possible at all (fewer turns than required tools), the plan
    is the required list as it stands, with a predicted success probability of 0.

    Args:
        library: Tool library of the tasks; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
        similar: Names the alternatives of a tool; without it, steps have none and no model is loaded.
        match: Scores how well tools match a task's description; without it, steps have no semantic match.
    """

    name = "exact"

    def __init__(
        self,
        library: ToolLibrary | None = None,
        law: BenchmarkLaw | None = None,
        rules: EndRules | None = None,
        similar: SimilarTools | None = None,
        match: SemanticMatch | None = None,
    ) -> None:
        self.library = library if library is not None else default_library()
        self.law = law or BenchmarkLaw()
        self.rules = rules or EndRules()
        self.similar = similar
        self.match = match
        self._plans: OrderedDict[tuple[str, ...], tuple[tuple[Step, ...], float]] = OrderedDict()

    def plan(self, task: Task) -> Workflow:
        """Return the workflow for a task; what depends on neither its inputs nor its text is computed once per list.

        Raises:
            InvalidInputError: The required list does not fit the library.
            ExactLimitError: The task is too large to be solved exactly.
        """
        required = tuple(task.required_tools)
        if required in self._plans:
            self._plans.move_to_end(required)
        else:
            self._plans[required] = self._solve(required)
            if len(self._plans) > KEPT_PLANS:
                self._plans.popitem(last=False)
        steps, value = self._plans[required]
        matches = self._matches(task, steps)
        filled: list[Step] = []
        for place, (step, match) in enumerate(zip(steps, matches, strict=True)):
            before = steps[place - 1].tool if place else None
            parameters = step_parameters(self.library[step.tool], task.inputs, before)
            filled.append(replace(step, parameters=parameters, semantic_match=match))
        return Workflow(task.instance_id, tuple(filled), self.name, value)

    def _matches(self, task: Task, steps: Sequence[Step]) -> Sequence[float | None]:
        if self.match is None:
            return [None] * len(steps)
        return self.match(task.description, [step.tool for step in steps])

    def _solve(self, required: tuple[str, ...]) -> tuple[tuple[Step, ...], float]:
        problem = build_problem(self.library, required, self.law, self.rules)
        tools, value = all_success_path(problem)
        return tuple(self._step(problem, tools, place) for place in range(len(tools))), value

    def _step(self, problem: Problem, tools: tuple[str, ...], place: int) -> Step:
        name = tools[place]
        tool = self.library[name]
        return Step(
            tool=name,
            reason=_reason(problem, tools, place),
            requires=tuple(tool.dependencies),
            alternatives=tuple(self.similar(name)) if self.similar is not None else (),
            expected_outcome=expected_outcome(tool),
            confidence=_chance(problem, name, tools[:place]),
            chosen_by="semantics" if name in problem.required_tools else "policy",
        )


class AutoPlanner:
    """The default planner: exact where a task can be solved exactly, else whatever planner it was given for the rest.

    Args:
        exact: The exact planner.
        fallback: Plans what is too large to be solved; without it such a task raises `ExactLimitError`.
    """

    name = "auto"

    def __init__(self, exact: ExactPlanner, fallback: Planner | None = None) -> None:
        self.exact = exact
        self.fallback = fallback

    def plan(self, task: Task) -> Workflow:
        """Return the workflow for a task; its `planner` names the one that made it.

        Raises:
            InvalidInputError: The required list does not fit the library.
            ExactLimitError: The task is too large to be solved exactly, and there is no fallback.
        """
        if self.fallback is None:
            return self.exact.plan(task)
        try:
            return self.exact.plan(task)
        except ExactLimitError:
            return self.fallback.plan(task)


def resolve_planner(
    name: str,
    library: ToolLibrary | None = None,
    law: BenchmarkLaw | None = None,
    rules: EndRules | None = None,
    similar: SimilarTools | None = None,
    fallback: Planner | None = None,
    match: SemanticMatch | None = None,
) -> Planner:
    """Return the planner of that name.

    Args:
        name: "exact" or "auto".
        library: Tool library of the tasks; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
        similar: Names the alternatives of a tool, for instance `similar_by_retrieval(retriever)`.
        fallback: Under "auto", plans what cannot be solved exactly.
        match: Scores tools against a task's description, for instance `semantic_match_by_retrieval(retriever)`.

    Raises:
        InvalidInputError: There is no such planner.
    """
    if name not in PLANNER_NAMES:
        raise unknown_name("planner", name, PLANNER_NAMES)
    exact = ExactPlanner(library, law, rules, similar, match)
    return exact if name == "exact" else AutoPlanner(exact, fallback)


def similar_by_retrieval(retriever: ToolRetriever, count: int = NUM_ALTERNATIVES) -> SimilarTools:
    """Return a function that names the `count` tools whose texts are nearest to that of a tool."""
    known: dict[str, tuple[str, ...]] = {}

    def similar(name: str) -> tuple[str, ...]:
        if name not in known:
            known[name] = tuple(hit.name for hit in retriever.similar_tools(name, count))
        return known[name]

    return similar


def all_success_path(problem: Problem) -> tuple[tuple[str, ...], float]:
    """Return the tools that an optimal policy calls when every call succeeds, and V* of the start.

    Raises:
        ExactLimitError: The problem's table would be too large.
    """
    optimum = solve(problem)
    state = start_state(problem)
    value = optimum.value(state)
    if value == 0.0:
        return problem.required_tools, 0.0
    tools: list[str] = []
    while not is_done(problem, state) and not is_awaiting_closing(problem, state):
        message = optimum.best_action(state)
        tools.append(message.tool or "")
        state = next_state(problem, state, message, success=True)
    return tuple(tools), value


def _chance(problem: Problem, name: str, before: Sequence[str]) -> float:
    """Return the success probability of a tool's first execution when exactly `before` have run, all successfully."""
    missing = sum(dependency not in before for dependency in problem.library.dependencies(name))
    return problem.law.probability(problem.base(problem.library.index(name)), missing, 0, 0)


def _reason(problem: Problem, tools: tuple[str, ...], place: int) -> str:
    name, before = tools[place], tools[:place]
    required = problem.required_tools
    missing = [dependency for dependency in problem.library.dependencies(name) if dependency not in before]
    if name not in required:
        return _reason_outside_list(problem, tools, place)
    text = REASON_REQUIRED
    if missing:
        chance = _chance(problem, name, before)
        text += f"; running {' and '.join(missing)} first would not pay (success probability {chance:.3f} without)"
    return text


def _reason_outside_list(problem: Problem, tools: tuple[str, ...], place: int) -> str:
    name = tools[place]
    helped: dict[str, list[str]] = {}
    for later in range(place + 1, len(tools)):
        if name in problem.library.dependencies(tools[later]):
            before = tools[:later]
            with_it = _chance(problem, tools[later], before)
            without_it = _chance(problem, tools[later], [tool for tool in before if tool != name])
            effect = f"success probability {with_it:.3f} with it, {without_it:.3f} without"
            helped.setdefault(effect, []).append(tools[later])
    clauses = [f"required by {' and '.join(dependents)} ({effect})" for effect, dependents in helped.items()]
    direct = {dependent for dependents in helped.values() for dependent in dependents}
    if direct and direct.isdisjoint(problem.required_tools):
        in_turn = [tool for tool in problem.required_tools if direct & set(problem.library.closure((tool,)))]
        clauses.append(f"a tool on which {' and '.join(in_turn)} in turn depends")
    return ", ".join(["not on the task's list", *(clauses or ["but raises the chance that the task succeeds"])])


def expected_outcome(tool: Tool) -> str:
    """Return one line on what a tool gives when it succeeds."""
    names = [value.name for value in tool.returns if value.name != "success"]
    return f"success, with {', '.join(names)}" if names else "success"
