"""Scripted policies from optimal to random: the material for checking comparisons.

A policy that draws numbers of its own draws them from a sequence that is named after the policy, the seed and the task.
So its episodes are functions of these three, they have nothing to do with the luck of the tools, and two policies of
different names never share their choices, though they meet the same luck.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from resilisim.policies.base import Policy
from resilisim.policies.registry import make_policy
from resilisim.policies.scripted import PlanFollower
from resilisim.seeding import Draws
from resilisim.simulator import build_problem
from resilisim.simulator.exact import plan_following
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.problem import is_done
from resilisim.simulator.tool_status import SUCCEEDED
from resilisim.tasks import Task
from resilisim.tool_library import default_library
from resilisim.workflows import ExactPlanner, PlannedStep
from resilisim.workflows.plan_value import follow_steps
from verification.policies import FINISH, GivesUp, Switches
from verification.score import chance_without_failure

# What the choices of policies are named after, beside the policy, the seed and the task.
CHOICES = "verification/contestants"


class NoisyOptimum:
    """Plays the exact optimum, but with a probability `noise` it calls another tool that has not succeeded.

    Once everything is done it finishes; with `noise` 1 it calls at random until then. Of two such policies with choices
    of one name, the one with less noise errs where the other does too, as long as they are in the same state.

    Args:
        noise: Probability of another call, at each message.
        choices: What its choices are named after.
    """

    name = "noisy-optimum"
    privileged = True

    def __init__(self, noise: float, choices: str) -> None:
        self._noise = noise
        self._choices = choices
        self._optimum = make_policy("exact-optimum")

    def begin(self, seed: int, instance_id: str) -> None:
        """Name the choices of the next episode; no policy is told its seed otherwise."""
        self._episode = (seed, instance_id)

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begin an episode."""

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Return the optimal message or another call."""
        problem, state = info["problem"], info["state"]
        if is_done(problem, state):
            return FINISH
        best = self._optimum.act(observation, info)
        draws = Draws(CHOICES, self._choices, *self._episode, info["turn"])
        if draws.uniform() >= self._noise:
            return best
        statuses = zip(problem.library.names, state.status, strict=True)
        calls = [f"<tool_call>{tool}</tool_call>" for tool, status in statuses if status != SUCCEEDED]
        return draws.choice([call for call in calls if call != best])


class OutOfOrder:
    """Calls the required tools by turns: after a failure it goes on with the next one, out of order."""

    name = "out-of-order"
    privileged = True

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Begin with the first tool."""
        self._left = list(info["required_tools"])

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Return the next call."""
        execution = info.get("execution")
        if execution is not None:
            called = self._left.pop(0)
            if not execution["success"]:
                self._left.insert(1, called)
        return f"<tool_call>{self._left[0]}</tool_call>" if self._left else FINISH


class Impatient(PlanFollower):
    """Follows the plan in its prompt and stops after a number of messages, done or not.

    Args:
        patience: How many messages it sends at most.
    """

    name = "impatient"

    def __init__(self, patience: int = 7) -> None:
        super().__init__()
        self._patience = patience

    def act(self, observation: str, info: Mapping[str, Any]) -> str | None:
        """Return the next message, or stop."""
        message = super().act(observation, info)
        return None if message is not None and info["turn"] >= self._patience and message != FINISH else message


class Searcher(PlanFollower):
    """Follows the plan in its prompt, but searches for the tool of each step before it first calls it.

    Args:
        searches: For how many steps it does so; all if None.
    """

    name = "searcher"

    def __init__(self, searches: int | None = None) -> None:
        super().__init__()
        self._searches = searches

    def reset(self, observation: str, info: Mapping[str, Any]) -> None:
        """Read the plan."""
        super().reset(observation, info)
        self._sought: set[str] = set()

    def _call(self, step: PlannedStep) -> str:
        if step.tool in self._sought or (self._searches is not None and len(self._sought) >= self._searches):
            return super()._call(step)
        self._sought.add(step.tool)
        return f"<tool_search>{step.tool.replace('_', ' ')}</tool_search>"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy under a prompt.

    Attributes:
        name: Its name.
        make: Makes the policy.
        prompt: The prompt type that it gets.
        planner: Whose plan is in the prompt: "exact", or "required-order" for the required list as it stands.
        reference: Its success probability in closed form, as a function of the task, if it has one.
    """

    name: str
    make: Callable[[], Policy]
    prompt: str = "optimal"
    planner: str = "exact"
    reference: Callable[[Task], float] | None = None


def optimum_of(task: Task) -> float:
    """Return V* of a task."""
    return start_optimum(build_problem(default_library(), task.required_tools))


def _obedience_of(task: Task) -> float:
    problem = build_problem(default_library(), task.required_tools)
    return follow_steps(problem, ExactPlanner().plan(task).steps, "lenient").success


def _plan_following_of(task: Task) -> float:
    return plan_following(build_problem(default_library(), task.required_tools))


def _noisy(noise: float, name: str, choices: str | None = None) -> Contestant:
    return Contestant(name, functools.partial(NoisyOptimum, noise, choices or name), "baseline")


CONTESTANTS: tuple[Contestant, ...] = (
    Contestant("optimum", lambda: make_policy("exact-optimum"), "baseline", reference=optimum_of),
    _noisy(0.05, "optimum, noise 0.05"),
    _noisy(0.1, "optimum, noise 0.1"),
    _noisy(0.1, "optimum, noise 0.1, twin"),
    _noisy(0.2, "optimum, noise 0.2"),
    _noisy(0.2, "optimum, noise 0.2, choices of 0.1", "optimum, noise 0.1"),
    _noisy(0.4, "optimum, noise 0.4"),
    Contestant("plan follower", lambda: make_policy("plan-follower"), reference=_obedience_of),
    Contestant("repairing follower", lambda: make_policy("repairing-follower")),
    Contestant(
        "required-order follower",
        lambda: make_policy("plan-follower"),
        planner="required-order",
        reference=_plan_following_of,
    ),
    Contestant(
        "required-order repairer", lambda: make_policy("repairing-follower", ask="never"), planner="required-order"
    ),
    Contestant("plan follower, one search", lambda: Searcher(1)),
    Contestant("searcher", Searcher),
    Contestant("impatient", Impatient),
    Contestant("gives up", GivesUp, "baseline", reference=chance_without_failure),
    Contestant("out of order", OutOfOrder, "baseline"),
    Contestant("switches", Switches, "baseline"),
    _noisy(1.0, "random"),
)
