"""What planners say about the steps of a plan: why a step stands there, what it gives, how likely it succeeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilisim.simulator.problem import Problem
from resilisim.tool_library import Tool

# Not "number 2 of 5": a plan from which a step was taken would tell so by its numbers.
REASON_REQUIRED = "an operation that the task asks for"


@dataclass(frozen=True, slots=True)
class Wording:
    """What only the planner can know about its choices.

    Attributes:
        left_out: Of dependencies that no earlier step runs, with a slot for their names.
        unexplained: Of a tool outside the list that no later step depends on.
    """

    left_out: str = "running {} first would not pay"
    unexplained: str = "but raises the chance that the task succeeds"


OPTIMAL = Wording()


def chance(problem: Problem, name: str, before: Sequence[str]) -> float:
    """Return the success probability of a tool's first execution when exactly `before` have run, all successfully."""
    missing = sum(dependency not in before for dependency in problem.library.dependencies(name))
    return problem.law.probability(problem.base(problem.library.index(name)), missing, 0, 0)


def reason(problem: Problem, tools: Sequence[str], place: int, wording: Wording = OPTIMAL) -> str:
    """Return one line on why a step stands in a plan.

    Args:
        problem: The task's numbers.
        tools: Tools of the plan's steps.
        place: Place of the step among them.
        wording: What the planner says of its own choices.
    """
    name, before = tools[place], tools[:place]
    if name not in problem.required_tools:
        return _reason_outside_list(problem, tools, place, wording)
    missing = [dependency for dependency in problem.library.dependencies(name) if dependency not in before]
    if not missing:
        return REASON_REQUIRED
    left_out = wording.left_out.format(" and ".join(missing))
    return f"{REASON_REQUIRED}; {left_out} (success probability {chance(problem, name, before):.3f} without)"


def _reason_outside_list(problem: Problem, tools: Sequence[str], place: int, wording: Wording) -> str:
    name = tools[place]
    helped: dict[str, list[str]] = {}
    for later in range(place + 1, len(tools)):
        if name in problem.library.dependencies(tools[later]):
            before = tools[:later]
            with_it = chance(problem, tools[later], before)
            without_it = chance(problem, tools[later], [tool for tool in before if tool != name])
            effect = f"success probability {with_it:.3f} with it, {without_it:.3f} without"
            helped.setdefault(effect, []).append(tools[later])
    clauses = [f"required by {' and '.join(dependents)} ({effect})" for effect, dependents in helped.items()]
    direct = {dependent for dependents in helped.values() for dependent in dependents}
    if direct and direct.isdisjoint(problem.required_tools):
        in_turn = [tool for tool in problem.required_tools if direct & set(problem.library.closure((tool,)))]
        if in_turn:
            clauses.append(f"a tool on which {' and '.join(in_turn)} in turn depends")
    return ", ".join(["not on the task's list", *(clauses or [wording.unexplained])])


def expected_outcome(tool: Tool) -> str:
    """Return one line on what a tool gives when it succeeds."""
    names = [value.name for value in tool.returns if value.name != "success"]
    return f"success, with {', '.join(names)}" if names else "success"
