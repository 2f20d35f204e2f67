"""Calls that only break a row of failures: which tools outside the closure are worth calling for it.

Calling a tool outside the closure can only help by succeeding, which resets the count of consecutive failures; without
that rule it never helps. There are three cases.

* Two tools without dependencies share the highest base of the library (the default library). Whatever the loop counter
  stands at, one of them is there with that probability, and no other such call is better: the pair is *neutral*.
* Reliabilities differ. The best two without dependencies, every outside tool with a higher base than the second, and
  what those depend on, *join* the arena with digits of their own, and the loop counter becomes part of the state. All
  other outside tools are dominated by one of the two.
* They differ and too many would join. Then the second best without dependencies serves as neutral, which is always
  possible and so gives a lower bound, and a tool with the highest base of all that is always there gives an upper
  bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilisim.simulator.problem import Problem

NO_TOOL = -1


@dataclass(frozen=True, slots=True)
class Breakers:
    """How rows of failures can be broken.

    Attributes:
        tools: Outside tools worth calling, the best first.
        joining: Outside tools that get digits of their own.
        neutral_base: Base index of a tool that may always be called for it; -1 if there is none.
        upper_base: Base index that no such call exceeds, if `neutral_base` is only a lower bound; else -1.
    """

    tools: tuple[int, ...] = ()
    joining: tuple[int, ...] = ()
    neutral_base: int = NO_TOOL
    upper_base: int = NO_TOOL


def exact_breakers(problem: Problem) -> Breakers:
    """Return the breakers that lose nothing."""
    if problem.rules.max_consecutive_failures == 0:
        return Breakers()
    outside, free = _outside(problem)
    if len(free) >= 2 and problem.base(free[1]) == max(problem.table.bases):
        return Breakers(tuple(free[:2]), (), problem.base_index[free[1]])
    second = problem.base(free[1]) if len(free) >= 2 else -1.0
    joining = {*free[:2], *(tool for tool in outside if problem.base(tool) > second)}
    pending = list(joining)
    while pending:
        for dependency in problem.dependencies[pending.pop()]:
            if dependency in outside and dependency not in joining:
                joining.add(dependency)
                pending.append(dependency)
    tools = tuple(sorted(joining, key=lambda tool: -problem.base(tool)))
    return Breakers(tools, tools)


def bounding_breakers(problem: Problem) -> Breakers:
    """Return breakers that need no digits and bound the optimum from both sides."""
    _, free = _outside(problem)
    neutral = problem.base_index[free[1]] if len(free) >= 2 else NO_TOOL
    return Breakers(tuple(free[:2]), (), neutral, len(problem.table.bases) - 1)


def _outside(problem: Problem) -> tuple[set[int], list[int]]:
    """Return the tools outside the closure, and those without dependencies among them, the most reliable first."""
    outside = set(range(problem.num_tools)).difference(problem.closure)
    free = sorted((tool for tool in outside if not problem.dependencies[tool]), key=lambda tool: -problem.base(tool))
    return outside, free
