"""How often a policy of Workflow-v0 succeeds, computed: each state that it can reach is met once, with its probability.

A policy that is a function of what it is shown is a Markov chain. Its states are followed step by step, those of many
tasks together: the network chooses for each of them once, each result of the action leads on with the law's probability
(`transition`), and states that are the same in all that is read or counts are one. A state from which nobody can
succeed ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.network import torch_threads
from resilisim.policies.ppo.states.transition import Actor, ActsInStates, States, Transition, actions_in, merge_places
from resilisim.tasks import Task

NUM_TASKS = 24  # whose states are followed together
STATES_MEMORY = 2**29  # bytes that the states of one number of steps may take
TOLERANCE = 1e-9  # how wide a bracket may become for states that are not followed


@dataclass(frozen=True, slots=True)
class ExactRates:
    """Success rates that were computed.

    Attributes:
        low: (num_tasks,) the rate of each task is surely not below.
        high: (num_tasks,) nor above; both differ by the weight of states that were not followed.
        num_states: States that were met.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    num_states: int


@torch_threads(1)
def exact_rates(
    actor: Actor | ActsInStates,
    tasks: Sequence[Task],
    *,
    options: WorkflowOptions | None = None,
    patterns: Mapping[tuple[str, ...], float] | None = None,
    progress: Callable[[int], None] | None = None,
    tolerance: float = TOLERANCE,
    max_states: int | None = None,
) -> ExactRates:
    """Compute the success rates of what chooses actions by observations alone, under any law but the training law.

    Args:
        actor: What chooses; it is asked about each state once.
        tasks: The tasks.
        options: Those of the environment besides tasks.
        patterns: Mined patterns, which it also shows.
        progress: Called with the number of tasks that were just finished.
        tolerance: By how much `low` and `high` of a task may differ; the least likely states are not followed. They
            differ by more where there are more states than have room.
        max_states: States of one number of steps that are followed; as many as STATES_MEMORY has room for if None.

    Raises:
        InvalidInputError: There is no task, or the law is the training law, or one where what has run is in doubt.
    """
    if not tasks:
        raise InvalidInputError("no task was given: expected at least one")
    by_state = bool(getattr(actor, "reads_state_alone", False))
    transition = Transition(tasks, options, patterns, by_state=by_state)
    most_states = max(STATES_MEMORY // transition.state_size, 256)
    if max_states is not None:
        most_states = min(most_states, max_states)
    num_tasks = int(np.clip(most_states // 1024, 1, NUM_TASKS))
    low, open_weight, num_states = np.zeros(len(tasks)), np.zeros(len(tasks)), 0
    for first in range(0, len(tasks), num_tasks):
        batch = np.arange(first, min(first + num_tasks, len(tasks)))
        states, weights = transition.starts(batch), np.ones(len(batch))
        while len(weights):
            num_states += len(weights)
            states, weights = _step(transition, actor, states, weights, low, open_weight)
            keep = _likely(weights, transition.task_of(states), tolerance / transition.max_turns, most_states)
            np.add.at(open_weight, transition.task_of(states)[~keep], weights[~keep])
            states, weights = states[keep], weights[keep]
        if progress is not None:
            progress(len(batch))
    return ExactRates(low, np.minimum(low + open_weight, 1.0), num_states)


def _step(
    transition: Transition,
    actor: Actor | ActsInStates,
    states: States,
    weights: NDArray[np.float64],
    succeeded: NDArray[np.float64],
    dropped: NDArray[np.float64],
) -> tuple[States, NDArray[np.float64]]:
    """Let the actor act in every state, and return those that follow, each once, with their weights.

    By task, (num_tasks,), the weight that has succeeded is added, and that of which nothing is known.
    """
    following, shares = [], []
    for part in transition.parts(len(weights)):
        actions = actions_in(actor, transition, states[part])
        tasks, own = transition.task_of(states[part]), weights[part]
        reached = transition.after(states[part], actions)
        weight = own[reached.parents] * reached.chances
        np.add.at(succeeded, tasks[reached.parents], weight * reached.success)
        np.add.at(dropped, tasks, own * reached.left_out)
        following.append(reached.states[reached.is_open])
        shares.append(weight[reached.is_open])
    states, weights = States.joined(following), np.concatenate(shares)
    first, place = merge_places(transition, states)
    return states[first], np.bincount(place, weights, len(first)).astype(np.float64)


def _likely(
    weights: NDArray[np.float64], tasks: NDArray[np.int64], share: float, most_states: int
) -> NDArray[np.bool_]:
    """Return which states to follow: all but the least likely of each task, up to a share, and what has no room."""
    keep = np.ones(len(weights), dtype=np.bool_)
    if not len(weights):
        return keep
    order = np.lexsort((weights, tasks))
    ascending, of_task = weights[order], tasks[order]
    sums = np.cumsum(ascending)
    begins = np.searchsorted(of_task, of_task)  # where each task begins
    keep[order[sums - sums[begins] + ascending[begins] <= share]] = False
    if keep.sum() > most_states:
        keep &= weights > np.partition(weights[keep], -most_states)[-most_states]
    return keep
