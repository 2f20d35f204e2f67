"""Policies for the checks, beside the ones that ship: two honest ones, one that cheats, and a planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilisim.seeding import PURPOSE_SUCCESS, episode_key, tool_key, uniform_bits
from resilisim.simulator.problem import is_done, success_probability
from resilisim.simulator.state import NEXT_PLACE
from resilisim.simulator.tool_status import SUCCEEDED, success_threshold
from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.workflows import Step, Workflow

FINISH = "<finish/>"


class RequiredOrder:
    """Plans the required list as it stands, nothing added: the plan of the reference `plan_following`."""

    name = "required-order"

    def plan(self, task: Task) -> Workflow:
        """Return the required tools as a workflow."""
        library = default_library()
        steps = tuple(Step(tool=name, requires=tuple(library[name].dependencies)) for name in task.required_tools)
        return Workflow(task.instance_id, steps, self.name, 0.0)


class GivesUp:
    """Calls the required tools in order and stops at its first failure."""

    name = "gives-up"
    privileged = True

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begin with the first tool."""
        self._left = list(info["required_tools"])

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Return the next call, or stop."""
        execution = info.get("execution")
        if execution is not None and not execution["success"]:
            return None
        return f"<tool_call>{self._left.pop(0)}</tool_call>" if self._left else FINISH


class Switches:
    """After a failure it goes on with another tool, so what it does depends on its luck within the episode.

    It walks over the dependency closure, leaves out what would break the order, and gives up late in an episode with
    many failures: an agent may adapt in every way, and its luck must still be zero on average.
    """

    name = "switches"
    privileged = True

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begin at the first tool."""
        self._place = 0
        self._failures = 0

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Return the next call."""
        problem, state = info["problem"], info["state"]
        execution = info.get("execution")
        if execution is not None and not execution["success"]:
            self._failures += 1
            self._place += 1
        if is_done(problem, state):
            return FINISH
        if self._failures >= 4 and info["turns_left"] <= 3:
            return None
        names = problem.library.names
        allowed = [
            names[tool]
            for tool in problem.closure
            if names[tool] not in _succeeded(info) and not problem.place[tool] > state.counters[NEXT_PLACE]
        ]
        if not allowed:
            return FINISH
        return f"<tool_call>{allowed[self._place % len(allowed)]}</tool_call>"


class Peeks:
    """Computes its luck before it calls: the control, whose luck is not zero on average.

    It calls a tool that succeeds at once if there is one, in the order of the required list. No policy is told the
    seed; this one is by `cheat`, behind the environment's back.

    Args:
        salt: Salt of the luck that it peeks at.
    """

    name = "peeks"
    privileged = True

    def __init__(self, salt: str) -> None:
        self._salt = salt

    def cheat(self, seed: int, instance_id: str) -> None:
        """Compute the key of the next episode."""
        self._key = episode_key(self._salt, seed, instance_id)

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begin an episode."""

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Return the next call."""
        problem, state = info["problem"], info["state"]
        if is_done(problem, state):
            return FINISH
        names = problem.library.names
        next_required = problem.required[state.counters[NEXT_PLACE] % len(problem.required)]
        helpers = [tool for tool in problem.closure if problem.place[tool] < 0 and names[tool] not in _succeeded(info)]
        for tool in (next_required, *helpers):
            bits = uniform_bits(*tool_key(*self._key, names[tool]), state.executions[tool], PURPOSE_SUCCESS)
            if bits < success_threshold(success_probability(problem, state, tool)):
                return f"<tool_call>{names[tool]}</tool_call>"
        return f"<tool_call>{names[next_required]}</tool_call>"


def _succeeded(info: Mapping[str, Any]) -> set[str]:
    problem, state = info["problem"], info["state"]
    return {name for name, status in zip(problem.library.names, state.status, strict=True) if status == SUCCEEDED}
