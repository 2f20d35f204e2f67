"""What an episode is after: the tools that have to answer, in which order, and what must not happen twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resilisim.tasks import Task
from resilisim.worlds.base import reference_calls

Fail = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Goal:
    """What must have happened for an episode to be a full success.

    Attributes:
        required: Names of the tools that have to answer.
        ordered: Whether their first answers have to come in that order.
        once: Names of the tools that may run only once: one that runs again spoils the episode.
        fail: Whether drawn failures come "before" the tool runs, or "after" it ran, when its answer is lost. What
            refuses a call (a limit, an outage, an input or access that is denied) comes before it in any case.
        program: Names of the tools that a reference solution calls, in order, each as often as it is called. Values are
            then those of completing it, and somebody else grades; none if nobody knows a solution. None if `required`
            says what has to happen.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import EndRules, Goal, build_problem
        >>> from resilisim.simulator.exact.optimum import start_optimum
        >>> rules = EndRules(max_turns=3, max_consecutive_failures=0, loop_length=0)
        >>> goals = [Goal(("network_fetcher",), once=("network_fetcher",), fail=fail) for fail in ("before", "after")]
        >>> [round(start_optimum(build_problem(default_library(), goal, rules=rules)), 3) for goal in goals]
        [0.98, 0.8]
    """

    required: tuple[str, ...]
    ordered: bool = True
    once: tuple[str, ...] = ()
    fail: Fail = "before"
    program: tuple[str, ...] | None = None


def world_goal(task: Task) -> Goal:
    """Return the goal of a world's task: its reference solution is to be completed, and its world grades.

    Example:
        >>> from resilisim.simulator.goal import world_goal
        >>> from resilisim.tasks import benchmark_tasks
        >>> world_goal(benchmark_tasks()[0]).program  # a task of no world
        ()
    """
    return Goal(task.required_tools, program=tuple(call.tool for call in reference_calls(task)))
