"""Playing Workflow-v0 episodes with a policy that sees every outcome before it chooses the next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from resilisim.envs.workflow.options import WorkflowKeywords
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.seeding import VALIDATION_SALT
from resilisim.tasks import Task

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
