"""How often a policy of Workflow-v0 succeeds, computed: each state that it can reach is met once, with its probability.

A policy that is a function of what it is shown is a Markov chain under a law without parts. Its states are followed
step by step, those of many tasks together: the network chooses for each of them once, each result of the call that is
made leads on with the law's probability, and states that are the same in all that is shown or counts are one. A state
from which nobody can succeed ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from resilisim.envs.workflow.batch_loops import LEAVE_ENDED
from resilisim.envs.workflow.options import WorkflowOptions
from resilisim.envs.workflow.records import Int, Records, World
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    RETRY_TOOL,
    STATUS_DEPENDENCY_FAILED,
    STATUS_FAILED,
    STATUS_SUCCESS,
    STATUS_TIMEOUT,
)
from resilisim.envs.workflow.step import Outcome
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.network import torch_threads
from resilisim.policies.ppo.validation import Actor
from resilisim.simulator.compiled import kernel
from resilisim.simulator.rulebook.rules import FAILURE, SUCCESS, clean_probability, law_probability
from resilisim.simulator.state import NEXT_PLACE, SPOILT, TURNS_USED
from resilisim.tasks import Task

NUM_ENVS = 2048  # states that are stepped and shown to the network at once
NUM_TASKS = 24  # whose states are followed together
NEGLIGIBLE = 1e-10  # states less likely than this are not followed, and widen the bracket

# What a call can bring: its result, its ticks, the status that is shown.
OUTCOMES: tuple[Outcome, ...] = (
    (SUCCESS, 0, STATUS_SUCCESS),
    (FAILURE, 0, STATUS_DEPENDENCY_FAILED),
    (FAILURE, 0, STATUS_TIMEOUT),
    (FAILURE, 0, STATUS_FAILED),
)


@kernel
def write_chances(
    tools: Int, episodes: Records, timeouts: NDArray[np.float64], worlds: Records, chances: NDArray[np.float64]
) -> None:
    """Write how likely each of OUTCOMES is when episodes execute tools, (num_rows, 4); -1 executes none.

    `timeouts`, (num_tools,), are the shares of failures for no reason of dependencies that show a TIMEOUT.
    """
    world = worlds[0]
    for row in range(len(tools)):
        tool = tools[row]
        if tool < 0:
            chances[row, 0], chances[row, 1], chances[row, 2], chances[row, 3] = 1.0, 0.0, 0.0, 0.0
            continue
        episode = episodes[row]
        won = law_probability(world.rules, world.tables, episode.status, episode.counters, tool)
        clean = clean_probability(world.rules, world.tables, episode.counters, tool)
        chances[row, 0] = won
        chances[row, 1] = clean - won
        chances[row, 2] = (1.0 - clean) * timeouts[tool]
        chances[row, 3] = (1.0 - clean) * (1.0 - timeouts[tool])


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
    actor: Actor,
    tasks: Sequence[Task],
    *,
    options: WorkflowOptions | None = None,
    patterns: Mapping[tuple[str, ...], float] | None = None,
    progress: Callable[[int], None] | None = None,
    negligible: float = NEGLIGIBLE,
) -> ExactRates:
    """Compute the success rates of what chooses actions by observations alone, under a law without parts.

    Args:
        actor: What chooses; it is asked about each state once.
        tasks: The tasks.
        options: Those of the environment besides tasks.
        patterns: Mined patterns, which it also shows.
        progress: Called with the number of tasks that were just finished.
        negligible: Weight below which a state is not followed.

    Raises:
        InvalidInputError: There is no task, or the law has parts or is the training law.
    """
    if not tasks:
        raise InvalidInputError("no task was given: expected at least one")
    envs = WorkflowVectorEnv(
        NUM_ENVS, settings=options, autoreset_mode=AutoresetMode.DISABLED, copy=False, threads=1, tasks=tuple(tasks)
    )
    envs.set_patterns(patterns or {})
    if envs.core.has_sections or envs.core.worlds["training_law"][0]:
        raise InvalidInputError("the law has parts, or is the training law: expected a plain one, else play episodes")
    low, open_weight, num_states = np.zeros(len(tasks)), np.zeros(len(tasks)), 0
    for first in range(0, len(tasks), NUM_TASKS):
        batch = np.arange(first, min(first + NUM_TASKS, len(tasks)))
        chain = _Chain(envs, batch)
        while len(chain.weights):
            num_states += len(chain.weights)
            succeeded, dropped = chain.step(actor, negligible)
            low += succeeded
            open_weight += dropped
        if progress is not None:
            progress(len(batch))
    return ExactRates(low, np.minimum(low + open_weight, 1.0), num_states)


class _Chain:
    """The states of some tasks after one number of steps, each with its probability.

    Attributes:
        states: (num_states, size) the bytes of the episodes' records.
        weights: (num_states,) their probabilities.
    """

    def __init__(self, envs: WorkflowVectorEnv, tasks: NDArray[np.int64]) -> None:
        self._core = core = envs.core
        self._kind = core.episodes.dtype
        numbers = np.resize(tasks, NUM_ENVS)
        envs.reset(seed=0, options={"tasks": numbers, "seeds": np.zeros(NUM_ENVS, dtype=np.int64)})
        self._stage = core.episodes.view(np.uint8).reshape(NUM_ENVS, -1)  # where states are stepped
        self.states = self._stage[: len(tasks)].copy()
        self.weights = np.ones(len(tasks))
        world = core.worlds[0]
        self._timeouts = _timeout_shares(world, len(core.library))
        self._max_turns = int(world.rules.max_turns)
        fields: Mapping[str, Any] = self._kind.fields or {}
        self._key_size = int(fields["seed"][1])  # what is shown, what counts, and the task
        words = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (self._key_size // 8, 2), dtype=np.int64)
        self._mixing = words | 1
        self._rewards, self._ended = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, dtype=np.uint8)

    def _records(self, states: NDArray[np.uint8]) -> Records:
        return states.reshape(-1).view(self._kind)

    def step(self, actor: Actor, negligible: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Let the actor act in every state; return the weight that has succeeded, and what is not followed, by task."""
        succeeded, dropped = (np.zeros(len(self._core.tasks)) for _ in range(2))
        states, weights = [], []
        for start in range(0, len(self.weights), NUM_ENVS):
            part = slice(start, start + NUM_ENVS)
            for after, weight in self._after(actor, self.states[part], self.weights[part]):
                records = self._records(after)
                task, ended = records["task"], records["needs_reset"] != 0
                np.add.at(succeeded, task[ended], weight[ended] * records["full_success"][ended])
                goes_on = ~ended & self._is_open(records)
                is_small = goes_on & (weight < negligible)
                np.add.at(dropped, task[is_small], weight[is_small])
                goes_on &= ~is_small
                states.append(after[goes_on])
                weights.append(weight[goes_on])
        self._merge(np.concatenate(states), np.concatenate(weights))
        return succeeded, dropped

    def _after(
        self, actor: Actor, states: NDArray[np.uint8], weights: NDArray[np.float64]
    ) -> list[tuple[NDArray[np.uint8], NDArray[np.float64]]]:
        """Return the states that follow from some, and their probabilities, for each result of the calls made."""
        core, number = self._core, len(states)
        self._stage[:number] = states
        shown = core.converted({name: array[:number] for name, array in core.observation.items()})
        mask = shown["action_mask"].astype(np.bool_)
        actions = np.asarray(actor.act(shown, mask), dtype=np.int64)
        world = core.worlds[0]
        executes = mask[np.arange(number), actions] & np.isin(world.action_type[actions], (INVOKE_TOOL, RETRY_TOOL))
        tools = np.where(executes, world.action_tool[actions], -1).astype(np.int64)
        chances = np.empty((number, len(OUTCOMES)))
        write_chances(tools, core.episodes[:number], self._timeouts, core.worlds, chances)
        reached = []
        for place, outcome in enumerate(OUTCOMES):
            rows = np.flatnonzero(chances[:, place] > 0.0)
            if not len(rows):
                continue
            self._stage[: len(rows)] = states[rows]
            core.step(
                actions[rows],
                outcome,
                LEAVE_ENDED,
                np.zeros(1, dtype=np.int64),
                self._rewards[: len(rows)],
                self._ended[: len(rows)],
                slice(len(rows)),
            )
            reached.append((self._stage[: len(rows)].copy(), weights[rows] * chances[rows, place]))
        return reached

    def _is_open(self, records: Records) -> NDArray[np.bool_]:
        """Return in which states success is not out of reach."""
        counters = records["counters"]
        missing = self._core.records["num_required"][records["task"]] - counters[:, NEXT_PLACE]
        open_: NDArray[np.bool_] = (counters[:, SPOILT] == 0) & (missing <= self._max_turns - counters[:, TURNS_USED])
        return open_

    def _merge(self, states: NDArray[np.uint8], weights: NDArray[np.float64]) -> None:
        """Take states as the present ones, each once."""
        if not len(states):
            self.states, self.weights = states, weights
            return
        words = np.ascontiguousarray(states[:, : self._key_size]).view(np.int64)
        with np.errstate(over="ignore"):
            hashes = words @ self._mixing  # (num_states, 2): 128 bits, by which states are told apart
        _, first, place = np.unique(hashes, axis=0, return_index=True, return_inverse=True)
        self.states = states[first]
        self.weights = np.bincount(place.reshape(-1), weights, len(first)).astype(np.float64)


def _timeout_shares(world: World, num_tools: int) -> NDArray[np.float64]:
    """Return which share of a tool's failures shows a TIMEOUT, (num_tools,)."""
    weighed = world.timeout_below - world.timeout_from
    plain = np.where(world.timeout_error >= 0, 1.0 / np.maximum(world.num_errors, 1), 0.0)
    shares: NDArray[np.float64] = np.where(world.weighs_errors != 0, weighed, plain)[:num_tools].astype(np.float64)
    return shares
