"""How good a policy is: Workflow-v0 episodes in which it sees every outcome before it chooses the next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.checkpoint import random_state, set_random_state
from resilisim.policies.ppo.exact_rates import exact_rates
from resilisim.policies.ppo.network import Network, WorkflowActor, torch_threads
from resilisim.policies.ppo.states.transition import Actor, ActsInStates, States, Transition
from resilisim.seeding import VALIDATION_SALT
from resilisim.simulator.exact.references import solve_all
from resilisim.simulator.law import Law
from resilisim.simulator.problem import build_problem
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary

TOLERANCE = 5e-3  # how much of a rate that is computed may stay unknown, where training is measured
NUM_ENVS = 2048  # episodes side by side: enough that the network, not Python, takes the time


@torch_threads(1)
def play_closed_loop(
    actor: Actor | ActsInStates,
    tasks: Sequence[Task],
    episodes: int,
    *,
    salt: str = VALIDATION_SALT,
    progress: Callable[[int], None] | None = None,
    options: WorkflowOptions | None = None,
    patterns: Mapping[tuple[str, ...], float] | None = None,
) -> NDArray[np.bool_]:
    """Play every task under the seeds 0, 1, ... (the same luck for every actor); return which were full successes.

    `progress` is called with the number of episodes that have just ended; `options` are those of the environment
    besides tasks and salt, which also shows mined `patterns` and filters by them. The result is bool (num_tasks,
    episodes).
    """
    if not tasks or episodes < 1:
        raise InvalidInputError(f"{len(tasks)} tasks with {episodes} episodes each: expected at least one of both")
    num_jobs = len(tasks) * episodes
    num_envs = min(NUM_ENVS, num_jobs)
    envs = WorkflowVectorEnv(
        num_envs,
        settings=options,
        autoreset_mode=AutoresetMode.DISABLED,
        copy=False,
        tasks=tuple(tasks),
        salt=salt,
    )
    envs.set_patterns(patterns or {})
    transition = Transition(tasks, options, patterns) if isinstance(actor, ActsInStates) else None
    success = np.zeros(num_jobs, dtype=np.bool_)
    for first in range(0, num_jobs, num_envs):
        jobs = np.arange(first, min(first + num_envs, num_jobs))
        numbers = np.resize(jobs, num_envs)
        episodes_to_play = {"tasks": numbers // episodes, "seeds": numbers % episodes}
        observation, _ = envs.reset(seed=0, options=episodes_to_play)
        running = np.arange(len(jobs))
        actions = np.zeros(num_envs, dtype=np.int64)
        while len(running):
            if transition is not None and isinstance(actor, ActsInStates):
                actions[running] = actor.act_in(transition, States.of(envs)[running])
            elif not isinstance(actor, ActsInStates):
                rows = {name: array[running] for name, array in observation.items()}
                actions[running] = actor.act(rows, rows["action_mask"].astype(np.bool_))
            observation, _, terminated, _, _ = envs.step(actions)
            running = running[~terminated[running]]
        success[jobs] = envs.core.episodes["full_success"][: len(jobs)]
        if progress is not None:
            progress(len(jobs))
    return success.reshape(len(tasks), episodes)


def optima_of(tasks: Sequence[Task], library: ToolLibrary, law: Law | None = None) -> list[float]:
    """Return V* of each task under the benchmark law, or another."""
    problems = [build_problem(library, task.required_tools, law) for task in tasks]
    values = solve_all(problems)
    return [values[problem].optimum for problem in problems]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The policy on the validation tasks, closed loop, most probable actions, under the law of `TrainingConfig.law`."""

    steps: int  # environment steps of training before it
    minutes: float  # of training before it
    success: float  # share of episodes with full success
    optimum: float  # mean V* of the tasks
    share: float  # success / optimum
    # With random libraries: the share on them, and on the validation tasks; they weigh the same in what stands above.
    shares: Mapping[str, float] = field(default_factory=dict)


class Validator:
    """Measures a network on validation tasks, always with the same luck, and touches nobody's random generators.

    The rate of a network that reads the state alone is computed if `is_computed`, else it is that of `episodes`
    episodes: lists of random libraries may have a hundred thousand states.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        episodes: int,
        options: WorkflowOptions,
        optima: Sequence[float] | None = None,
        is_computed: bool = True,
    ) -> None:
        self._tasks = tasks
        self._episodes = episodes
        self._options = options
        self._is_computed = is_computed
        if optima is None:
            optima = optima_of(tasks, options.resolved_library(), options.failure_model())
        self.optimum = float(np.mean(optima))

    def success(self, network: Network, patterns: Mapping[tuple[str, ...], float] | None = None) -> float:
        """Return the share of episodes with full success, given the patterns mined so far."""
        device = next(network.parameters()).device
        arrays, facts = random_state(device)
        was_training, was_autocast = network.training, network.autocast
        network.eval()
        network.autocast = False  # as the policy is played that is kept
        try:
            actor = WorkflowActor(network)
            if actor.reads_state_alone and self._is_computed:
                return float(np.mean(exact_rates(actor, self._tasks, options=self._options, tolerance=TOLERANCE).low))
            played = play_closed_loop(actor, self._tasks, self._episodes, options=self._options, patterns=patterns)
        finally:
            network.train(was_training)
            network.autocast = was_autocast
            set_random_state(arrays, facts, device)
        return float(np.mean(played.mean(axis=1)))
