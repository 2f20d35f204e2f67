"""What an episode is after: the tools that have to answer, in which order, and what must not happen twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from resilisim.errors import unknown_name
from resilisim.tasks import Task
from resilisim.worlds.base import reference_calls

Counts = Literal["answers", "effects"]


@dataclass(frozen=True, slots=True)
class Goal:
    """What must have happened for an episode to be a full success.

    Attributes:
        required: Names of the tools that have to answer, or to have run.
        ordered: Whether their first answers have to come in that order. Effects have none: an end state does not tell
            in which order it came about.
        once: Names of the tools that may run only once: one that runs again spoils the episode.
        counts: Whether "answers" are asked for, or "effects": that each tool has run with success, whether or not its
            answer came through (`LostAnswer`).
        program: Names of the tools that a reference solution calls, in order, each as often as it is called. Values are
            then those of completing it, and somebody else grades; none if nobody knows a solution. None if `required`
            says what has to happen.

    Example:
        >>> from resilisim import default_library
        >>> from resilisim.simulator import EndRules, Goal, Law, LostAnswer, build_problem
        >>> from resilisim.simulator.exact.optimum import start_optimum
        >>> rules = EndRules(max_turns=3, max_consecutive_failures=0, loop_length=0)
        >>> law, fetched = Law(lost_answer=LostAnswer(share=1.0)), ("network_fetcher",)
        >>> goals = [Goal(fetched, once=fetched, counts=counts) for counts in ("answers", "effects")]
        >>> [round(start_optimum(build_problem(default_library(), goal, law, rules)), 3) for goal in goals]
        [0.8, 1.0]
    """

    required: tuple[str, ...]
    ordered: bool = True
    once: tuple[str, ...] = ()
    counts: Counts = "answers"
    program: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Take the order from effects."""
        if self.counts not in get_args(Counts):
            raise unknown_name("counts", self.counts, get_args(Counts))
        if self.counts == "effects":
            object.__setattr__(self, "ordered", False)

    @classmethod
    def recorded(cls, required: Sequence[str], told: Mapping[str, Any]) -> Self:
        """Return the goal of a record, by its required tools and by what it says of the goal (`to_mapping`).

        Example:
            >>> from resilisim.simulator import Goal
            >>> goal = Goal(("network_fetcher",), once=("network_fetcher",), counts="effects")
            >>> Goal.recorded(goal.required, goal.to_mapping()) == goal, Goal(("network_fetcher",)).to_mapping()
            (True, {})
        """
        counts, once = told.get("counts", "answers"), tuple(told.get("once", ()))
        return cls(tuple(required), bool(told.get("ordered", True)), once, counts)

    def to_mapping(self) -> dict[str, Any]:
        """Return what records say of the goal besides the required tools: nothing of answers in their order."""
        if self.ordered and not self.once and self.counts == "answers":
            return {}
        return {"counts": self.counts, "ordered": self.ordered, "once": list(self.once)}


def world_goal(task: Task) -> Goal:
    """Return the goal of a world's task: its reference solution is to be completed, and its world grades.

    Example:
        >>> from resilisim.simulator.goal import world_goal
        >>> from resilisim.tasks import benchmark_tasks
        >>> world_goal(benchmark_tasks()[0]).program  # a task of no world
        ()
    """
    return Goal(task.required_tools, program=tuple(call.tool for call in reference_calls(task)))
