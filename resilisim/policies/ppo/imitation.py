"""Warm start: before PPO begins, the network learns to do what the exact optimum does.

States are sampled by playing Workflow-v0 under the benchmark law with the optimum, some of its choices replaced by
random ones. In each state the target is every legal action whose tool has the highest Q*, in equal shares, and V* for
the value head. States in which nothing can succeed any more have no target action: every choice is as good there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resilisim.envs.workflow.actions import INVOKE_TOOL, RETRY_TOOL, action_index
from resilisim.envs.workflow.training import check_number, check_whole
from resilisim.errors import InvalidInputError
from resilisim.seeding import UNIFORM_BITS, hash_words, uniform_bits
from resilisim.simulator import EpisodeState, Problem, execution, success_probability
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.optimum import TIE_TOLERANCE
from resilisim.simulator.law import SUCCEEDED
from resilisim.simulator.state import is_awaiting_closing, is_done

# About a kilobyte each. Most states of a batch are the first few of some task, so even this much finds many again.
CACHED_STATES = 2**16
EXECUTING_TYPES = (INVOKE_TOOL, RETRY_TOOL)

# Purposes of the two draws for each environment and step.
_WHETHER_NOISE = 0
_WHICH_ACTION = 1

Observations = Mapping[str, NDArray[Any]]


class ExactVectorEnv(Protocol):
    """What sampling needs of a vectorised Workflow-v0 under the benchmark law."""

    num_envs: int

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment."""
        ...

    def step(self, actions: NDArray[np.int64], /) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Act in every environment; those that have ended begin anew by themselves, at once or at the next step."""
        ...

    def episode_state(self, index: int, /) -> EpisodeState:
        """Return the state of an environment's episode, the one that its latest observation shows."""
        ...

    def problem(self, index: int, /) -> Problem:
        """Return the problem that an environment plays; the same object for the same task."""
        ...


@dataclass(frozen=True, slots=True)
class OptimalTargets:
    """What the optimum does in a state.

    Attributes:
        probabilities: Tools with the highest Q*, in equal shares; empty where nothing is left to choose: the episode is
            over, or nothing can succeed any more.
        value: V*.
    """

    probabilities: Mapping[str, float]
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class ImitationBatch:
    """States with what the optimum does in them; B states, A actions.

    Attributes:
        observations: Arrays (B, ...) by name, as Workflow-v0 shows them.
        action_mask: bool (B, A), the legal actions.
        targets: float32 (B, A), probabilities of the optimal actions; rows sum to 1, or to 0 if there are none.
        values: float32 (B,), V*.
    """

    observations: dict[str, NDArray[Any]]
    action_mask: NDArray[np.bool_]
    targets: NDArray[np.float32]
    values: NDArray[np.float32]

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class ImitationConfig:
    """How the network is trained on batches.

    Attributes:
        learning_rate: Of Adam; constant.
        value_weight: Weight of the value head's squared error beside the cross-entropy. V* is the value under the plain
            reward without discounting; for another reward set 0.
        max_gradient_norm: Longer gradients are scaled down to it.
    """

    learning_rate: float = 1e-3
    value_weight: float = 0.5
    max_gradient_norm: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what cannot be trained with."""
        check_number("learning_rate", self.learning_rate, 0.0)
        check_number("value_weight", self.value_weight, 0.0)
        check_number("max_gradient_norm", self.max_gradient_norm, 0.0)


@dataclass(frozen=True, slots=True)
class ImitationUpdate:
    """How well the network did on a batch, before it learnt from it.

    Attributes:
        divergence: Mean Kullback-Leibler divergence of the policy from the target, in nats; 0 is perfect.
        agreement: Share of states whose most probable legal action is an optimal one.
        value_error: Root mean squared error of the value head.
    """

    divergence: float
    agreement: float
    value_error: float


def tool_values(problem: Problem, state: EpisodeState) -> tuple[tuple[float, ...], float]:
    """Return Q* of executing each tool in a state, in the order of the library, and V*.

    Raises:
        ExactLimitError: The problem is too large to be solved.
    """
    return _tool_values(problem, state.status, state.counters)


def optimal_targets(problem: Problem, state: EpisodeState) -> OptimalTargets:
    """Return what the optimum does in a state, all tools being allowed.

    Raises:
        ExactLimitError: The problem is too large to be solved.
    """
    values, value = tool_values(problem, state)
    best = max(values)
    if not _is_choosing(problem, state) or best <= TIE_TOLERANCE:
        return OptimalTargets({}, value)
    tools = [name for name, own in zip(problem.library.names, values, strict=True) if own >= best - TIE_TOLERANCE]
    return OptimalTargets(dict.fromkeys(tools, 1.0 / len(tools)), value)


def collect_imitation_batch(
    vector_env: ExactVectorEnv,
    observations: Observations,
    *,
    num_steps: int,
    actor_noise: float,
    seed: int,
    first_step: int = 0,
) -> tuple[ImitationBatch, Observations]:
    """Play some steps with the optimum and noise, and return the states that were met on the way.

    Args:
        vector_env: Environments under the benchmark law, with the plain reward.
        observations: Their latest observations.
        num_steps: Steps of each environment.
        actor_noise: Share of steps, in [0, 1], at which a legal action is drawn instead of an optimal one.
        seed: Decides the noise and the choice among equal actions, with the number of the step.
        first_step: Number of the first step; a later call that goes on should not repeat numbers.

    Returns:
        At most num_steps x num_envs states (those of ended episodes are left out), and the latest observations.
    """
    check_number("actor_noise", actor_noise, 0.0, 1.0)
    check_whole("num_steps", num_steps, 1)
    parts = []
    for step in range(first_step, first_step + num_steps):
        part, is_choosing = _label(vector_env, observations)
        actions = _choose(part, actor_noise, hash_words("imitation", seed, step))
        parts.append(_rows(part, is_choosing))
        observations = vector_env.step(actions)[0]
    return _joined(parts), observations


def imitation_batches(
    vector_env: ExactVectorEnv, *, num_batches: int, num_steps: int, actor_noise: float, seed: int
) -> Iterator[ImitationBatch]:
    """Reset the environments and yield batches of `collect_imitation_batch`, one after the other."""
    observations: Observations = vector_env.reset(seed=seed)[0]
    for number in range(num_batches):
        batch, observations = collect_imitation_batch(
            vector_env,
            observations,
            num_steps=num_steps,
            actor_noise=actor_noise,
            seed=seed,
            first_step=number * num_steps,
        )
        yield batch


def imitate(
    network: nn.Module,
    batches: Iterable[ImitationBatch],
    config: ImitationConfig | None = None,
    report: Callable[[ImitationUpdate], None] | None = None,
) -> list[ImitationUpdate]:
    """Train a network on batches, one gradient step for each.

    Args:
        network: Called with the observations `tools` and `task`; returns [logits | value], float (B, A + 1). Changed in
            place, and left in the mode (training or evaluation) in which it came.
        batches: States with targets; batches without states are passed over.
        config: How to train.
        report: Called after each step.

    Returns:
        How well the network did on each batch before it learnt from it.
    """
    settings = config or ImitationConfig()
    # An optimiser of its own: moments of this loss would mislead PPO's first updates.
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    device = next(network.parameters()).device
    was_training = network.training
    network.train()
    updates = []
    try:
        for batch in batches:
            if len(batch) == 0:
                continue
            loss, update = _loss(network, batch, settings.value_weight, device)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(network.parameters(), settings.max_gradient_norm)
            optimizer.step()
            updates.append(update)
            if report is not None:
                report(update)
    finally:
        network.train(was_training)
    return updates


def _loss(
    network: nn.Module, batch: ImitationBatch, value_weight: float, device: torch.device
) -> tuple[Tensor, ImitationUpdate]:
    tools, task = (torch.as_tensor(batch.observations[name], device=device) for name in ("tools", "task"))
    mask = torch.as_tensor(batch.action_mask, device=device)
    targets = torch.as_tensor(batch.targets, device=device)
    values = torch.as_tensor(batch.values, device=device)
    output: Tensor = network(tools, task)
    if output.shape != (len(batch), mask.shape[1] + 1):
        expected = (len(batch), mask.shape[1] + 1)
        raise InvalidInputError(f"the network returned shape {tuple(output.shape)}: expected {expected}")
    log_probabilities = output[:, :-1].masked_fill(~mask, -torch.inf).log_softmax(dim=-1)
    # Illegal actions have target 0, and 0 times minus infinity is not a number.
    cross_entropy = -(targets * log_probabilities.masked_fill(~mask, 0.0)).sum(dim=-1)
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


@functools.lru_cache(maxsize=CACHED_STATES)
def _tool_values(
    problem: Problem, status: tuple[int, ...], counters: tuple[int, ...]
) -> tuple[tuple[float, ...], float]:
    # No value depends on how often tools were executed: that only numbers the luck.
    state = EpisodeState(status, counters, (0,) * len(status))
    optimum = solve(problem)
    of_outsiders: dict[float, float] = {}
    values = []
    for tool, name in enumerate(problem.library.names):
        if tool in optimum.arena.slot or status[tool] == SUCCEEDED:
            values.append(optimum.action_value(state, execution(name)))
            continue
        # The table does not tell these tools apart, so only the chance of success matters.
        chance = success_probability(problem, state, tool)
        if chance not in of_outsiders:
            of_outsiders[chance] = optimum.action_value(state, execution(name))
        values.append(of_outsiders[chance])
    return tuple(values), optimum.value(state)


def _is_choosing(problem: Problem, state: EpisodeState) -> bool:
    """Return whether a tool can still be executed and the task is not done."""
    return state.ended_by is None and not is_done(problem, state) and not is_awaiting_closing(problem, state)


def _label(vector_env: ExactVectorEnv, observations: Observations) -> tuple[ImitationBatch, NDArray[np.bool_]]:
    """Return all environments' states with targets, and which of them have something left to choose."""
    mask = np.array(observations["action_mask"], dtype=np.bool_)
    num_envs, num_actions = mask.shape
    num_tools = vector_env.problem(0).num_tools
    values = np.zeros(num_envs, dtype=np.float32)
    q_values = np.zeros((num_envs, num_tools))
    is_choosing = np.zeros(num_envs, dtype=np.bool_)
    for index in range(num_envs):
        problem, state = vector_env.problem(index), vector_env.episode_state(index)
        is_choosing[index] = _is_choosing(problem, state)
        if is_choosing[index]:
            q_values[index], values[index] = tool_values(problem, state)
    targets = np.zeros((num_envs, num_actions), dtype=np.float32)
    starts = [action_index(action_type, 0, num_tools) for action_type in EXECUTING_TYPES]
    legal = np.stack([mask[:, start : start + num_tools] for start in starts])  # (types, num_envs, num_tools)
    num_types = legal.sum(axis=0)
    allowed = np.where(num_types > 0, q_values, -1.0)
    best = allowed.max(axis=1, keepdims=True)
    chosen = (allowed >= best - TIE_TOLERANCE) & (best > TIE_TOLERANCE) & is_choosing[:, None]
    # Tools share equally, then the types that can execute a tool do: two ways to the same call do not count double.
    share = chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1) / np.maximum(num_types, 1)
    for start, is_legal in zip(starts, legal, strict=True):
        targets[:, start : start + num_tools] = share * is_legal
    shown = {name: np.array(array) for name, array in observations.items()}
    return ImitationBatch(shown, mask, targets, values), is_choosing


def _choose(batch: ImitationBatch, noise: float, key: tuple[int, int]) -> NDArray[np.int64]:
    """Draw an action for every state: an optimal one, or any legal one (a share `noise`, and without a target)."""
    count = np.arange(len(batch), dtype=np.int64)
    to_unit = 2.0**-UNIFORM_BITS
    is_noise = uniform_bits(*key, count, _WHETHER_NOISE) * to_unit < noise
    is_random = is_noise | (batch.targets.sum(axis=1) < 0.5)
    weights = np.where(is_random[:, None], batch.action_mask, batch.targets.astype(np.float64))
    cumulative = weights.cumsum(axis=1)
    aim = uniform_bits(*key, count, _WHICH_ACTION) * to_unit * cumulative[:, -1]
    # The first action whose cumulative weight exceeds the aim; it has a weight of its own.
    actions: NDArray[np.int64] = (cumulative <= aim[:, None]).sum(axis=1, dtype=np.int64)
    return actions


def _rows(batch: ImitationBatch, rows: NDArray[np.bool_]) -> ImitationBatch:
    return ImitationBatch(
        {name: array[rows] for name, array in batch.observations.items()},
        batch.action_mask[rows],
        batch.targets[rows],
        batch.values[rows],
    )


def _joined(parts: list[ImitationBatch]) -> ImitationBatch:
    return ImitationBatch(
        {name: np.concatenate([part.observations[name] for part in parts]) for name in parts[0].observations},
        np.concatenate([part.action_mask for part in parts]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.values for part in parts]),
    )
