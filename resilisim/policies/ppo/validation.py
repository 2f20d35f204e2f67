"""How good a policy is: Workflow-v0 episodes in which it sees every outcome before it chooses the next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from resilisim.envs.workflow.options import WorkflowKeywords
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.checkpoint import random_state, set_random_state
from resilisim.policies.ppo.network import Network, WorkflowActor
from resilisim.seeding import VALIDATION_SALT
from resilisim.simulator.exact import solve_all
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.problem import build_problem
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary

NUM_ENVS = 2048  # episodes side by side: enough that the network, not Python, takes the time


class Actor(Protocol):
    """What chooses actions for a batch of observations."""

    def act(
        self, observation: dict[str, NDArray[Any]], mask: NDArray[Any], deterministic: bool = True
    ) -> NDArray[np.int64]:
        """Return actions, (num_envs,), legal by `mask`, bool (num_envs, num_actions)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ClosedLoop:
    """How some episodes of each of some tasks came out.

    Attributes:
        full_success: bool (num_tasks, episodes).
        steps: int64 (num_tasks, episodes), steps that each episode took.
    """

    full_success: NDArray[np.bool_]
    steps: NDArray[np.int64]

    @property
    def success(self) -> NDArray[np.float64]:
        """Mean full success of each task, (num_tasks,)."""
        means: NDArray[np.float64] = self.full_success.mean(axis=1)
        return means


def play_closed_loop(
    actor: Actor,
    tasks: Sequence[Task],
    episodes: int,
    *,
    salt: str = VALIDATION_SALT,
    first_seed: int = 0,
    deterministic: bool = True,
    progress: Callable[[int], None] | None = None,
    options: WorkflowKeywords | None = None,
    patterns: Mapping[tuple[str, ...], float] | None = None,
) -> ClosedLoop:
    """Play every task under the seeds first_seed, first_seed + 1, ...: the same luck for every actor.

    Args:
        actor: Chooses the actions.
        tasks: The tasks.
        episodes: Episodes of each task.
        salt: Salt of the luck.
        first_seed: First episode seed.
        deterministic: Whether the actor takes its most probable action, rather than drawing one.
        progress: Called with the number of episodes that have just ended.
        options: Further options of the environment, such as `filters`; the benchmark law if they name no other.
        patterns: Mined patterns that the environment shows and filters by, if any.

    Raises:
        InvalidInputError: There is nothing to play, or an option is not valid.
    """
    if not tasks or episodes < 1:
        raise InvalidInputError(f"{len(tasks)} tasks with {episodes} episodes each: expected at least one of both")
    num_jobs = len(tasks) * episodes
    num_envs = min(NUM_ENVS, num_jobs)
    keywords = WorkflowKeywords(**(options or {}))
    keywords["tasks"] = tuple(tasks)
    keywords["salt"] = salt
    envs = WorkflowVectorEnv(num_envs, autoreset_mode=AutoresetMode.DISABLED, copy=False, **keywords)
    envs.set_patterns(patterns or {})
    success = np.zeros(num_jobs, dtype=np.bool_)
    steps = np.zeros(num_jobs, dtype=np.int64)
    for first in range(0, num_jobs, num_envs):
        jobs = np.arange(first, min(first + num_envs, num_jobs))
        _play(actor, envs, jobs, episodes, first_seed, deterministic)
        ended = envs.core.episodes[: len(jobs)]
        success[jobs] = ended["full_success"]
        steps[jobs] = ended["steps"]
        if progress is not None:
            progress(len(jobs))
    shape = (len(tasks), episodes)
    return ClosedLoop(success.reshape(shape), steps.reshape(shape))


def _play(
    actor: Actor,
    envs: WorkflowVectorEnv,
    jobs: NDArray[np.int64],
    episodes: int,
    first_seed: int,
    deterministic: bool,
) -> None:
    """Play one episode in each of the first `len(jobs)` environments to its end."""
    numbers = np.resize(jobs, envs.num_envs)
    seeds = first_seed + numbers % episodes
    observation, _ = envs.reset(seed=0, options={"tasks": numbers // episodes, "seeds": seeds})
    running = np.arange(len(jobs))
    actions = np.zeros(envs.num_envs, dtype=np.int64)
    while len(running):
        rows = {name: array[running] for name, array in observation.items()}
        actions[running] = actor.act(rows, rows["action_mask"].astype(np.bool_), deterministic)
        observation, _, terminated, _, _ = envs.step(actions)
        running = running[~terminated[running]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The policy on the validation tasks, closed loop under the benchmark law, most probable actions.

    Attributes:
        steps: Environment steps of training before it.
        minutes: Minutes of training before it.
        success: Share of episodes with full success.
        optimum: Mean V* of the tasks.
        share: success / optimum.
    """

    steps: int
    minutes: float
    success: float
    optimum: float
    share: float

    @classmethod
    def of(cls, steps: int, minutes: float, success: float, optimum: float) -> Evaluation:
        """Return the evaluation of a measured success rate."""
        return cls(steps, minutes, success, optimum, success / optimum)

    @classmethod
    def read(cls, mapping: Mapping[str, Any] | None) -> Evaluation | None:
        """Return what `dataclasses.asdict` turned into JSON values; None stays None."""
        return None if mapping is None else cls(**mapping)


class Validator:
    """Measures a network on validation tasks without touching anybody's random generators.

    Args:
        tasks: The tasks.
        episodes: Episodes of each; every evaluation has the same luck.
        library: Their tool library.
        required: Whether observations show the required tools.
        filters: Filters of the mask that the policy is trained with, and so played with.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        episodes: int,
        library: ToolLibrary,
        required: Literal["shown", "hidden"],
        filters: Sequence[str] = (),
    ) -> None:
        self._tasks = tasks
        self._episodes = episodes
        self._library = library
        self._required: Literal["shown", "hidden"] = required
        self._filters = tuple(filters)
        problems = [build_problem(library, task.required_tools, BenchmarkLaw(), EndRules()) for task in tasks]
        values = solve_all(problems)
        self.optimum = float(np.mean([values[problem].known_probabilities for problem in problems]))

    def success(self, network: Network, patterns: Mapping[tuple[str, ...], float] | None = None) -> float:
        """Return the share of episodes with full success, given the patterns mined so far."""
        arrays, facts = random_state()
        was_training = network.training
        network.eval()
        try:
            played = play_closed_loop(
                WorkflowActor(network),
                self._tasks,
                self._episodes,
                salt=VALIDATION_SALT,
                options={"library": self._library, "required": self._required, "filters": self._filters},
                patterns=patterns,
            )
        finally:
            network.train(was_training)
            set_random_state(arrays, facts)
        return float(np.mean(played.success))
