"""Warm start: before PPO begins, the network learns to do what the exact optimum does.

States are sampled by playing Workflow-v0 with the optimum, some of its choices replaced by random ones; in random
libraries they are followed instead (`lessons`). In each state the target is every legal action whose tool has
the highest Q*, in equal shares, and V* for the value head. States in which nothing can succeed any more have no target
action: every choice is as good there.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as decode_arrays
from safetensors.numpy import save as encode_arrays
from torch import Tensor, nn

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.spaces import (
    INVOKE_TOOL,
    META_NO_OP,
    RETRY_TOOL,
    VALIDATE_OUTPUT,
    action_index,
    meta_action_index,
    num_tools_of,
)
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import ExactLimitError
from resilisim.policies.ppo.between_rollouts.learning_rate import scheduled
from resilisim.policies.ppo.checkpoint import optimizer_state, restore_optimizer
from resilisim.policies.ppo.network import READ
from resilisim.seeding import UNIFORM_BITS, hash_words, uniform_bits
from resilisim.simulator import Message, Problem, execution
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.values import TIE_TOLERANCE, Choices, Values
from resilisim.simulator.problem import is_awaiting_closing, is_done, success_probability
from resilisim.simulator.state import EpisodeState
from resilisim.simulator.tool_status import SUCCEEDED

# About a kilobyte each. Most states of a batch are the first few of some task, so even this much finds many again.
CACHED_STATES = 2**16
CACHED_CHOICES = 2**13  # these are larger: they hold what an agent knows of each tool
EXECUTING_TYPES = (INVOKE_TOOL, RETRY_TOOL)
T = TypeVar("T")

# Purposes of the two draws for each environment and step.
_WHETHER_NOISE = 0
_WHICH_ACTION = 1

LEARNING_RATE = 1e-3
MAX_GRADIENT_NORM = 0.5

# B states with what the optimum does in them: the observations of Workflow-v0, (B, ...), and beside them
# `targets`, float32 (B, num_actions), probabilities of the optimal actions, whose rows sum to 1, or to 0 if there are
# none; `values`, float32 (B,), V*.
Batch: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ImitationUpdate:
    """How well the network did on a batch, before it learnt from it."""

    divergence: float  # mean Kullback-Leibler divergence of the policy from the target, in nats; 0 is perfect
    agreement: float  # share of states whose most probable legal action is an optimal one
    value_error: float  # root mean squared error of the value head


@functools.lru_cache(maxsize=CACHED_STATES)
def tool_values(
    problem: Problem, status: tuple[int, ...], counters: tuple[int, ...]
) -> tuple[tuple[float, ...], float]:
    """Return Q* of executing each tool in a state, in the order of the library, and V*.

    No value depends on how often tools were executed: that only numbers the luck.
    """
    state = EpisodeState(status, counters, (0,) * len(status))
    optimum = solve(problem)
    return _of_each_tool(optimum, state, optimum.action_value), optimum.value(state)


@functools.lru_cache(maxsize=CACHED_STATES)
def best_tools(
    problem: Problem, status: tuple[int, ...], counters: tuple[int, ...], max_states: int
) -> tuple[tuple[bool, ...], float]:
    """Return which tools no other message is worth more than in a state, in the order of the library, and V*.

    Nothing is best where nothing can succeed any more. Unlike `tool_values` it searches no further than that takes.

    Raises:
        ExactLimitError: More states than `max_states` would have to be kept.
    """
    state = EpisodeState(status, counters, (0,) * len(status))
    optimum = solve(problem, max_states, may_bound=False)
    value = optimum.value(state)
    if value <= TIE_TOLERANCE:
        return (False,) * len(status), 0.0
    return _of_each_tool(optimum, state, optimum.is_best), value


def _of_each_tool(optimum: Values, state: EpisodeState, ask: Callable[[EpisodeState, Message], T]) -> tuple[T, ...]:
    """Return what is asked of executing each tool, once for all that only their chance of success tells apart."""
    problem = optimum.problem
    of_outsiders: dict[float, T] = {}
    answers = []
    for tool, name in enumerate(problem.library.names):
        if optimum.tells_apart(tool) or state.status[tool] == SUCCEEDED:
            answers.append(ask(state, execution(name)))
            continue
        chance = success_probability(problem, state, tool)
        if chance not in of_outsiders:
            of_outsiders[chance] = ask(state, execution(name))
        answers.append(of_outsiders[chance])
    return tuple(answers)


def collect_batch(
    vector_env: WorkflowVectorEnv,
    observations: Mapping[str, NDArray[Any]],
    steps: range,
    actor_noise: float,
    seed: int,
) -> tuple[Batch, Mapping[str, NDArray[Any]]]:
    """Play some steps with the optimum and noise, and return the states that were met, and the latest observations.

    The environments play with the plain reward, under any law but the training law. `actor_noise` is the share of steps
    at which a legal action is drawn instead of an optimal one; the steps' numbers and the seed decide that, and which
    of equals.
    """
    parts: list[Batch] = []
    for step in steps:
        part, is_choosing = label_states(vector_env, observations)
        actions = _choose(part, actor_noise, hash_words("imitation", seed, step))
        parts.append({name: array[is_choosing] for name, array in part.items()})
        observations = vector_env.step(actions)[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, observations


def imitation_batches(
    vector_env: WorkflowVectorEnv,
    *,
    num_batches: int,
    num_steps: int,
    actor_noise: float,
    seed: int,
) -> Iterator[Batch]:
    """Reset the environments and yield batches of `collect_batch`, one after the other."""
    observations: Mapping[str, NDArray[Any]] = vector_env.reset(seed=seed)[0]
    for first in range(0, num_batches * num_steps, num_steps):
        steps = range(first, first + num_steps)
        batch, observations = collect_batch(vector_env, observations, steps, actor_noise, seed)
        yield batch


class Imitation:
    """A network that learns from batches, one gradient step for each that has states.

    The network is called with the observations `tools` and `task` and returns [logits | value], float (B, A + 1); its
    mode (training or evaluation) stays. `value_weight` is that of the value head's squared error beside the
    cross-entropy: V* is the value under the plain reward without discounting, so for another reward it is 0. With a
    `rehearsal` it takes its gradient steps, and its learning rate falls to 0 along a half cosine. What it knows besides
    the weights of the network can be kept, so that it goes on to the bit.
    """

    def __init__(
        self,
        network: nn.Module,
        value_weight: float = 0.5,
        learning_rate: float = LEARNING_RATE,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        self.num_batches = 0
        self.num_updates = 0
        self.latest: ImitationUpdate | None = None
        self._network = network
        self._value_weight = value_weight
        self._learning_rate = learning_rate
        self._rehearsal = rehearsal
        # An optimiser of its own: moments of this loss would mislead PPO's first updates.
        self._optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
        self._kept: deque[Batch] = deque(maxlen=rehearsal.num_kept if rehearsal else 0)
        self._generator = np.random.default_rng(rehearsal.seed if rehearsal else 0)

    def learn(self, batch: Batch) -> Iterator[ImitationUpdate]:
        """Take the gradient steps of the batch that comes next, and yield how well the network did before each."""
        self.num_batches += 1
        if not len(batch["values"]):
            return
        if self._rehearsal is None:
            yield self._update([batch])
            return
        # As bytes: most of what a batch takes are its targets, and their shares follow from which there are.
        self._kept.append({**batch, "targets": batch["targets"] > 0})
        for _ in range(min(self._rehearsal.of_a_batch, self._rehearsal.num_updates - self.num_updates)):
            progress = self.num_updates / self._rehearsal.num_updates
            self._optimizer.param_groups[0]["lr"] = scheduled(self._learning_rate, "cosine", progress)
            yield self._update(self._rehearsal.mixture(self._kept, self._generator))

    def get_state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values of all that is known beside the weights of the network."""
        arrays = optimizer_state(self._optimizer)
        for number, batch in enumerate(self._kept):
            # A tenth of its size; so are all of them 30 MB.
            packed = zlib.compress(encode_arrays({name: np.ascontiguousarray(batch[name]) for name in batch}), 1)
            arrays[f"kept/{number}"] = np.frombuffer(packed, np.uint8)
        return arrays, {
            "num_batches": self.num_batches,
            "num_updates": self.num_updates,
            "latest": None if self.latest is None else astuple(self.latest),
            "generator": self._generator.bit_generator.state,
        }

    def set_state(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Go on where `get_state` was asked."""
        restore_optimizer(self._optimizer, arrays)
        packed = [arrays[f"kept/{number}"] for number in range(sum(name.startswith("kept/") for name in arrays))]
        self._kept.extend(decode_arrays(zlib.decompress(batch.tobytes())) for batch in packed)
        self.num_batches, self.num_updates = facts["num_batches"], facts["num_updates"]
        self.latest = None if facts["latest"] is None else ImitationUpdate(*facts["latest"])
        self._generator.bit_generator.state = facts["generator"]

    def _update(self, mixed: list[Batch]) -> ImitationUpdate:
        network, was_training = self._network, self._network.training
        device = next(network.parameters()).device
        network.train()
        try:
            losses, updates = zip(*(_loss(network, batch, self._value_weight, device) for batch in mixed), strict=True)
            self._optimizer.zero_grad()
            torch.autograd.backward(torch.stack(losses).mean())
            nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT_NORM)
            self._optimizer.step()
        finally:
            network.train(was_training)
        self.num_updates += 1
        self.latest = ImitationUpdate(*np.mean([astuple(update) for update in updates], axis=0).tolist())
        return self.latest


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Gradient steps on states of several libraries and laws at a time, those of earlier batches among them.

    A network that learns from one library after the other forgets, and its steps go to and fro.

    Attributes:
        num_updates: Gradient steps in all.
        of_a_batch: Gradient steps after each batch that comes; the latest batch takes part in each.
        num_mixed: Batches that take part in a step, as far as there are so many.
        num_states: States that are drawn of each.
        num_kept: The latest batches that are kept.
        seed: Of what is drawn.
    """

    num_updates: int
    of_a_batch: int = 8
    num_mixed: int = 6
    num_states: int = 256
    num_kept: int = 96
    seed: int = 0

    def mixture(self, kept: Sequence[Batch], generator: np.random.Generator) -> list[Batch]:
        """Return what a step learns from, states of the latest of the batches and of some others."""
        earlier = generator.choice(len(kept), min(self.num_mixed, len(kept)), replace=False).tolist()
        numbers = [len(kept) - 1, *(number for number in earlier if number != len(kept) - 1)][: self.num_mixed]
        return [self._some_of(kept[number], generator) for number in numbers]

    def _some_of(self, batch: Batch, generator: np.random.Generator) -> Batch:
        rows = generator.integers(len(batch["values"]), size=self.num_states)
        drawn = {name: array[rows] for name, array in batch.items()}
        share = drawn["targets"] / np.maximum(drawn["targets"].sum(axis=1, keepdims=True), 1)
        return {**drawn, "targets": share.astype(np.float32)}


def _loss(
    network: nn.Module, batch: Batch, value_weight: float, device: torch.device
) -> tuple[Tensor, ImitationUpdate]:
    tensors = {name: torch.as_tensor(array, device=device) for name, array in batch.items()}
    illegal, targets, values = tensors["action_mask"] == 0, tensors["targets"], tensors["values"]
    output: Tensor = network(**{name: tensors[name] for name in READ if name in tensors})
    log_probabilities = output[:, :-1].masked_fill(illegal, -torch.inf).log_softmax(dim=-1)
    # Illegal actions have target 0, and 0 times minus infinity is not a number.
    cross_entropy = -(targets * log_probabilities.masked_fill(illegal, 0.0)).sum(dim=-1)
    has_target = targets.sum(dim=-1) > 0.5
    num_targets = has_target.sum().clamp(min=1)
    policy_loss = cross_entropy.sum() / num_targets
    value_loss = (output[:, -1] - values).square().mean()
    with torch.no_grad():
        best = log_probabilities.argmax(dim=-1, keepdim=True)
        hits = (targets.gather(-1, best).squeeze(-1) > 0).sum()
        update = ImitationUpdate(
            divergence=float((cross_entropy.sum() + torch.special.xlogy(targets, targets).sum()) / num_targets),
            agreement=float(hits / num_targets),
            value_error=float(value_loss.sqrt()),
        )
    return policy_loss + value_weight * value_loss, update


def _is_choosing(problem: Problem, state: EpisodeState) -> bool:
    """Return whether a tool can still be executed and the task is not done."""
    return state.ended_by is None and not is_done(problem, state) and not is_awaiting_closing(problem, state)


@functools.lru_cache(maxsize=CACHED_CHOICES)
def _best_choices(problem: Problem, state: EpisodeState, max_states: int | None) -> Choices:
    return solve(problem, max_states, may_bound=max_states is None).best_choices(state)


def _label_under_parts(
    vector_env: WorkflowVectorEnv, observations: Mapping[str, NDArray[Any]], max_states: int | None
) -> tuple[Batch, NDArray[np.bool_]]:
    """Do what `label_states` does under a law with parts, where waiting and accepting are choices, too.

    Calls that another choice is surely as good as are no targets, nor is waiting where anything else is as good: most
    probable actions that never change end in episodes of nothing but waiting.
    """
    mask = np.array(observations["action_mask"], dtype=np.bool_)
    num_envs, num_actions = mask.shape
    num_tools = num_tools_of(num_actions)
    invoke, retry, accept = (action_index(kind, 0, num_tools) for kind in (INVOKE_TOOL, RETRY_TOOL, VALIDATE_OUTPUT))
    chances = observations["tool_parts"][:, :, spaces.PART_CHANCE]
    is_best = np.zeros((num_envs, num_actions), dtype=np.bool_)
    values = np.zeros(num_envs, dtype=np.float32)
    is_choosing = np.zeros(num_envs, dtype=np.bool_)
    for env, row in enumerate(is_best):
        problem, state = vector_env.problem(env), vector_env.episode_state(env)
        is_choosing[env] = state.ended_by is None
        if not is_choosing[env]:
            continue
        try:
            best = _best_choices(problem, replace(state, executions=(0,) * problem.num_tools), max_states)
        except ExactLimitError:
            is_choosing[env] = False
            continue
        values[env] = best.value
        tools = list(best.tools)
        for kind in best.outside:  # of equals those that are free, up and not known to fail
            chance = chances[env, kind]
            tools += np.array(kind)[chance == chance.max()].tolist()
        for tool in tools:
            # After a refused input, INVOKE_TOOL changes it.
            row[invoke + tool if mask[env, invoke + tool] else retry + tool] = True
        row[accept + num_tools] = best.finishes
        row[meta_action_index(META_NO_OP, num_tools)] = best.waits and not row.any()
    is_best &= mask
    targets = (is_best / np.maximum(is_best.sum(axis=1, keepdims=True), 1)).astype(np.float32)
    return {**observations, "targets": targets, "values": values}, is_choosing


def label_states(
    vector_env: WorkflowVectorEnv, observations: Mapping[str, NDArray[Any]], max_states: int | None = None
) -> tuple[Batch, NDArray[np.bool_]]:
    """Return all environments' states with targets, and which of them have something left to choose.

    With `max_states`, which is for environments without filters, states count as having nothing left whose values
    would take more states than these.
    """
    if vector_env.problem(0).dynamics.has_sections:
        return _label_under_parts(vector_env, observations, max_states)
    mask = np.array(observations["action_mask"], dtype=np.bool_)
    num_envs, num_actions = mask.shape
    num_tools = vector_env.problem(0).num_tools
    values = np.zeros(num_envs, dtype=np.float32)
    q_values = np.zeros((num_envs, num_tools))
    is_choosing = np.zeros(num_envs, dtype=np.bool_)
    for index in range(num_envs):
        problem, state = vector_env.problem(index), vector_env.episode_state(index)
        is_choosing[index] = _is_choosing(problem, state)
        if is_choosing[index] and max_states is None:
            q_values[index], values[index] = tool_values(problem, state.status, state.counters)
        elif is_choosing[index] and max_states is not None:
            try:
                q_values[index], values[index] = best_tools(problem, state.status, state.counters, max_states)
            except ExactLimitError:
                is_choosing[index] = False
    targets = np.zeros((num_envs, num_actions), dtype=np.float32)
    starts = [action_index(action_type, 0, num_tools) for action_type in EXECUTING_TYPES]
    legal = np.stack([mask[:, start : start + num_tools] for start in starts])  # (types, num_envs, num_tools)
    num_types = legal.sum(axis=0)
    allowed = np.where(num_types > 0, q_values, -1.0)
    best = allowed.max(axis=1, keepdims=True)
    is_best = (allowed >= best - TIE_TOLERANCE) & (best > TIE_TOLERANCE) & is_choosing[:, None]
    # Tools share equally, then the types that can execute a tool do: two ways to the same call do not count double.
    share = is_best / np.maximum(is_best.sum(axis=1, keepdims=True), 1) / np.maximum(num_types, 1)
    for start, is_legal in zip(starts, legal, strict=True):
        targets[:, start : start + num_tools] = share * is_legal
    return {**observations, "targets": targets, "values": values}, is_choosing


def _choose(batch: Batch, noise: float, key: tuple[int, int]) -> NDArray[np.int64]:
    """Draw an action for every state: an optimal one, or any legal one (a share `noise`, and without a target)."""
    count = np.arange(len(batch["values"]), dtype=np.int64)
    to_unit = 2.0**-UNIFORM_BITS
    is_noise = uniform_bits(*key, count, _WHETHER_NOISE) * to_unit < noise
    is_random = is_noise | (batch["targets"].sum(axis=1) < 0.5)
    weights = np.where(is_random[:, None], batch["action_mask"], batch["targets"].astype(np.float64))
    cumulative = weights.cumsum(axis=1)
    aim = uniform_bits(*key, count, _WHICH_ACTION) * to_unit * cumulative[:, -1]
    # The first action whose cumulative weight exceeds the aim; it has a weight of its own.
    actions: NDArray[np.int64] = (cumulative <= aim[:, None]).sum(axis=1, dtype=np.int64)
    return actions
