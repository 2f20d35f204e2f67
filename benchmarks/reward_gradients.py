"""Policy gradients estimated from each reward, by agents from random to near the optimum: agreement and noise.

An agent calls one tool a step, drawn by a softmax over nine features of the tools that observations show. Its
parameters are a fixed direction times a strength: 0 is uniformly random. Every estimator sees the same episodes, and
its gradient of an episode is the sum over steps of the score (gradient of the logarithm of the call's probability)
times what was paid from that step on. `benchmarks.rewards` prints what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.workflow import WorkflowVectorEnv, columns
from resilisim.envs.workflow.actions import INVOKE_TOOL, RETRY_TOOL, action_index

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5)
NUM_ENVS = 4096
BATCH = 256  # episodes of a batch whose gradient is compared with the reference
BLOCK = 64  # episodes that resamples keep together
RESAMPLES = 2000
MAX_STEPS = 10
REFERENCE = "success, baseline"  # the success reward; its baseline changes only the noise

# Weight of each feature in the direction of all agents, made by hand.
DIRECTION = {
    "next required tool": 3.0,
    "later required tool": -1.0,
    "helper of the next required tool": 2.5,
    "helper of a later one": 0.0,
    "base chance of success": 2.0,
    "has succeeded": -4.0,
    "has failed": 0.5,
    "next required tool, dependencies missing": -2.0,
    "neither required nor helper": -2.0,
}
ESTIMATORS = (
    "success",
    "success, baseline",
    "value",
    "advantage",
    "success or value, critic",
    "advantage, critic",
    "advantage, each alone",
)

Array = NDArray[np.float64]


def features(tools: NDArray[np.uint8]) -> Array:
    """Return the features of each tool, float64 (num_envs, num_tools, 9), from the observation's `tools`."""
    column = np.moveaxis(tools, -1, 0).astype(np.float64)
    due, descendant = column[columns.DUE], column[columns.FIRST_DESCENDANT_DUE]
    succeeded = column[columns.STATUS] == columns.SUCCESS
    failed = column[columns.STATUS] > columns.SUCCESS
    missing = column[columns.NUM_NOT_EXECUTED] + column[columns.NUM_FAILED] > 0
    helper = (descendant > 0) & (due == 0) & ~succeeded
    shown = [
        due == 1,
        due > 1,
        helper & (descendant == 1),
        helper & (descendant > 1),
        column[columns.CLEAN_PROBABILITY] / columns.LARGEST,
        succeeded,
        failed,
        (due == 1) & missing,
        (due == 0) & ~helper & ~succeeded,
    ]
    return np.stack([feature.astype(np.float64) for feature in shown], axis=-1)


class Episodes(NamedTuple):
    """What some episodes of an agent came to; steps after the end are 0."""

    scores: Array  # (num_episodes, num_steps, num_features)
    values: Array  # (num_episodes, num_steps) rewards
    advantages: Array  # likewise
    outcome: Array  # (num_episodes,)

    @property
    def optimum(self) -> Array:
        """V* of the starts, (num_episodes,)."""
        return np.asarray(self.outcome - self.values.sum(axis=1))


class Player:
    """Plays agents on tasks of the test split, thousands of episodes at once."""

    def __init__(self) -> None:
        self._paid = {
            name: WorkflowVectorEnv(NUM_ENVS, tasks="test", reward=name, autoreset_mode="DISABLED", copy=False)
            for name in ("value", "advantage")
        }

    def play(self, strength: float, seeds: range) -> Episodes:
        """Play an agent once under each episode seed, a multiple of NUM_ENVS of them; tasks are drawn for them."""
        generator = np.random.default_rng([int(1000 * strength), seeds.start])
        theta = strength * np.array(list(DIRECTION.values()))
        starts = range(seeds.start, seeds.stop, NUM_ENVS)
        batches = [self._play_batch(theta, np.arange(start, start + NUM_ENVS), generator) for start in starts]
        return Episodes(*(np.concatenate(arrays) for arrays in zip(*batches, strict=True)))

    def _play_batch(self, theta: Array, seeds: NDArray[np.int64], generator: np.random.Generator) -> Episodes:
        envs = self._paid["value"]
        size, rows = len(envs.core.library), np.arange(NUM_ENVS)
        chosen = {"tasks": generator.integers(len(envs.core.tasks), size=NUM_ENVS), "seeds": seeds}
        for env in self._paid.values():
            observation, _ = env.reset(seed=0, options=chosen)
        running = np.ones(NUM_ENVS, dtype=np.bool_)
        scores = np.zeros((NUM_ENVS, MAX_STEPS, len(theta)))
        rewards = {name: np.zeros((NUM_ENVS, MAX_STEPS)) for name in self._paid}
        for number in range(MAX_STEPS):
            seen = features(observation["tools"])
            logits = seen @ theta
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances = weights / weights.sum(axis=1, keepdims=True)
            drawn = (chances.cumsum(axis=1) < generator.random(NUM_ENVS)[:, None]).sum(axis=1)
            tool = np.minimum(drawn, size - 1)
            score = seen[rows, tool] - np.einsum("et,etf->ef", chances, seen)
            scores[:, number] = score * running[:, None]
            invoke, retry = (action_index(kind, 0, size) + tool for kind in (INVOKE_TOOL, RETRY_TOOL))
            action = np.where(observation["action_mask"][rows, invoke] == 1, invoke, retry)
            for name, env in self._paid.items():
                observation, rewards[name][:, number], ended, _, _ = env.step(action)
            running &= ~ended
        outcome = envs.core.episodes["full_success"].astype(np.float64)
        return Episodes(scores, rewards["value"], rewards["advantage"], outcome)


def gradients_of(played: Episodes, others: Episodes) -> dict[str, Array]:
    """Return each estimator's gradient of each episode, (num_episodes, num_features); baselines come from others."""
    success = np.broadcast_to(played.outcome[:, None], played.values.shape)
    value, advantage = _from_here(played.values), _from_here(played.advantages)
    paid = {
        "success": success,
        "success, baseline": success - others.outcome.mean(),
        "value": value,
        "advantage": advantage,
        "success or value, critic": value - _critic(others, others.values, played),
        "advantage, critic": advantage - _critic(others, others.advantages, played),
        "advantage, each alone": played.advantages,
    }
    return {name: np.einsum("esf,es->ef", played.scores, paid[name]) for name in ESTIMATORS}


def _from_here(rewards: Array) -> Array:
    """Return the sums of rewards from each step on, of the same shape (num_episodes, num_steps)."""
    return np.asarray(rewards[:, ::-1].cumsum(axis=1)[:, ::-1])


def _optimum_of(played: Episodes) -> Array:
    """Return V* of the states in which steps were taken, (num_episodes, num_steps)."""
    return played.outcome[:, None] - _from_here(played.values)


def _critic(others: Episodes, rewards: Array, played: Episodes) -> Array:
    """Return what is to come from each step on, for each step number linear in V*, fitted to other episodes.

    With V* among its inputs it makes the same of success and of value, which differ by V*.
    """
    known, target, asked = _optimum_of(others), _from_here(rewards), _optimum_of(played)
    expected = np.zeros(asked.shape)
    for number in range(MAX_STEPS):
        acted = others.scores[:, number].any(axis=1)
        if np.count_nonzero(acted) > 1:
            inputs = np.stack([np.ones(np.count_nonzero(acted)), known[acted, number]], axis=1)
            fitted = np.linalg.lstsq(inputs, target[acted, number], rcond=None)[0]
            expected[:, number] = fitted[0] + fitted[1] * asked[:, number]
    return expected


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    def __format__(self, form: str) -> str:
        """Return it as tables show it, each number in a format."""
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"


class Comparison(NamedTuple):
    """How the estimators do for one agent; the last three by estimator."""

    strength: float
    episodes: int
    share: float  # of V*
    lemma: Interval  # mean sum of advantages - (success - mean V*): 0 by the performance difference lemma
    agreement: dict[str, Interval]  # cosine of the mean gradient with REFERENCE's over the other episodes
    variance: dict[str, Interval]  # trace of the covariance of an episode's gradient / that of success
    batch: dict[str, Interval]  # mean cosine of a batch's gradient with the reference

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return self._asdict()


def comparison_from(row: Mapping[str, Any]) -> Comparison:
    """Return what `to_mapping` has written."""
    figures = {
        name: {estimator: Interval(*found) for estimator, found in row[name].items()}
        for name in ("agreement", "variance", "batch")
    }
    return Comparison(**{**row, **figures, "lemma": Interval(*row["lemma"])})


def compare(player: Player, strength: float, episodes: int) -> Comparison:
    """Play an agent twice, so many episodes for the estimates and as many others for the reference."""
    half = -(-episodes // NUM_ENVS) * NUM_ENVS
    ours, others = player.play(strength, range(half)), player.play(strength, range(half, 2 * half))
    generator = np.random.default_rng(int(1000 * strength))
    blocks = half // BLOCK
    # Weights of the blocks: those of the sample itself, then those of the resamples.
    weights = generator.multinomial(blocks, np.full(blocks, 1.0 / blocks), size=(RESAMPLES, 2)) / blocks
    weights = np.concatenate([np.full((1, 2, blocks), 1.0 / blocks), weights])

    def means(values: Array, sample: int) -> Array:
        by_block: Array = values.reshape(blocks, BLOCK, -1).mean(axis=1)
        return np.asarray(weights[:, sample] @ by_block)

    reference = means(gradients_of(others, ours)[REFERENCE], 1)
    spread, agreement, batch = {}, {}, {}
    for name, gradients in gradients_of(ours, others).items():
        mean = means(gradients, 0)
        agreement[name] = _interval(_cosine(mean, reference))
        spread[name] = means((gradients**2).sum(axis=1), 0)[:, 0] - (mean**2).sum(axis=1)
        batches = gradients.reshape(-1, BATCH, gradients.shape[1]).mean(axis=1)
        cosines = _cosine(batches, reference[:1])
        error = 1.96 * cosines.std(ddof=1) / np.sqrt(len(cosines))
        batch[name] = Interval(cosines.mean(), cosines.mean() - error, cosines.mean() + error)
    lemma = means(ours.advantages.sum(axis=1) - (ours.outcome - ours.optimum), 0)[:, 0]
    return Comparison(
        strength,
        episodes,
        float(ours.outcome.mean() / ours.optimum.mean()),
        _interval(lemma),
        agreement,
        {name: _interval(values / spread["success"]) for name, values in spread.items()},
        batch,
    )


def _interval(values: Array) -> Interval:
    """Return the first value with the percentile interval of the others, its resamples."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return Interval(float(values[0]), float(low), float(high))


def _cosine(a: Array, b: Array) -> Array:
    """Return the cosines of vectors, (number, size) each."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / np.where(lengths > 0.0, lengths, 1.0))  # no gradient agrees with none
