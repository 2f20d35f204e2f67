"""Two policies compared on common luck, by four methods, of which the luck-adjusted paired one is the sharpest.

The luck of a call is a function of task, seed, tool and attempt, so two policies on the same task and seed meet the
same luck. Pairing removes what is common to both (the difficulty of the task, and luck as far as both called the same
tools); the control variate removes what luck is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilisim.errors import InvalidInputError
from resilisim.evaluation.comparing.control_variate import adjusted_terms
from resilisim.evaluation.comparing.differences import (
    INDEPENDENT,
    MCNEMAR,
    PAIRED,
    PAIRED_LUCK_ADJUSTED,
    Difference,
    clustered_difference,
    independent_difference,
    mcnemar_difference,
    no_surer,
    not_offered,
    paired_difference,
)
from resilisim.evaluation.comparing.episode_table import EpisodeTable
from resilisim.evaluation.comparing.pairing import NO_LUCK, Pairs, match_episodes
from resilisim.evaluation.statistics import CONFIDENCE_LEVEL, Estimate, FloatArray, clustered_mean, clustered_proportion


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two groups of episodes say about the difference between them.

    Attributes:
        label_a: What A is called.
        label_b: What B is called.
        prompt: Prompt type of both, or both with an arrow if they differ.
        differences: One `Difference` for each of `METHODS`, by name.
        success_a: Success rate of A in the matched episodes.
        success_b: Success rate of B.
        optimum: Mean V* of the matched episodes; NaN if either may try again in fresh episodes.
        ceiling_a: Mean of the ceilings that fit what A was told (`records.fitting_ceiling`); NaN likewise.
        ceiling_b: The same of B.
        beta_a: Mean of the betas that took off A's luck; NaN without luck adjustment.
        beta_b: The same of B.
        privileged: Whether A and B saw the state.
        num_without_partner: Episodes of A and of B that have no partner and do not count.
        pairs: The matched episodes.
        terms: (num_pairs,) luck-adjusted difference of each pair, or None where there is none.
    """

    label_a: str
    label_b: str
    prompt: str
    differences: Mapping[str, Difference]
    success_a: Estimate
    success_b: Estimate
    optimum: Estimate
    ceiling_a: Estimate
    ceiling_b: Estimate
    beta_a: float
    beta_b: float
    privileged: tuple[bool, bool]
    num_without_partner: tuple[int, int]
    pairs: Pairs = field(repr=False, compare=False)
    terms: FloatArray | None = field(repr=False, compare=False)

    @property
    def episodes(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    @property
    def best(self) -> Difference:
        """The difference to believe: the luck-adjusted one where there is one, else the paired one."""
        adjusted = self.differences[PAIRED_LUCK_ADJUSTED]
        return self.differences[PAIRED] if math.isnan(adjusted.difference) else adjusted

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        return {
            "a": self.label_a,
            "b": self.label_b,
            "prompt": self.prompt,
            "episodes": self.episodes,
            "num_tasks": self.pairs.num_tasks,
            "success_a": self.success_a.to_mapping(),
            "success_b": self.success_b.to_mapping(),
            "optimum": self.optimum.to_mapping(),
            "ceiling_a": self.ceiling_a.to_mapping(),
            "ceiling_b": self.ceiling_b.to_mapping(),
            "beta_a": None if math.isnan(self.beta_a) else self.beta_a,
            "beta_b": None if math.isnan(self.beta_b) else self.beta_b,
            "privileged": list(self.privileged),
            "episodes_without_partner": list(self.num_without_partner),
            "best": self.best.method,
            **{method: difference.to_mapping() for method, difference in self.differences.items()},
        }


def compare_tables(
    a: EpisodeTable,
    b: EpisodeTable,
    label_a: str | None = None,
    label_b: str | None = None,
    level: float = CONFIDENCE_LEVEL,
) -> Comparison:
    """Compare one policy under one prompt type with another, or with itself under another prompt type or in a new run.

    Args:
        a: Episodes of the one (`EpisodeTable.group`).
        b: Episodes of the other.
        label_a: What A is called; the name of its policy if omitted.
        label_b: What B is called; likewise.
        level: Confidence level of the intervals.

    Raises:
        InvalidInputError: One is empty or holds several policies or prompt types, the two have no episode in common,
            or were not played under one law.
    """
    (policy_a, prompt_a), (policy_b, prompt_b) = _only_group(a, "A"), _only_group(b, "B")
    pairs = match_episodes(a, b)
    prompt = prompt_a if prompt_a == prompt_b else f"{prompt_a} → {prompt_b}"
    privileged = (bool(a.privileged.any()), bool(b.privileged.any()))
    return compare_pairs(pairs, label_a or policy_a, label_b or policy_b, prompt, privileged, level)


def compare_pairs(
    pairs: Pairs,
    label_a: str,
    label_b: str,
    prompt: str,
    privileged: tuple[bool, bool] = (False, False),
    level: float = CONFIDENCE_LEVEL,
) -> Comparison:
    """Compare the two sides of matched episodes.

    Args:
        pairs: The episodes.
        label_a: What A is called.
        label_b: What B is called.
        prompt: Prompt type.
        privileged: Whether A and B saw the state.
        level: Confidence level of the intervals.
    """
    if pairs.tries_again:
        return _judge(pairs, None, (math.nan, math.nan), label_a, label_b, prompt, privileged, level)
    terms, betas = adjusted_terms(pairs)
    beta_a, beta_b = betas.mean(axis=0)
    return _judge(pairs, terms, (float(beta_a), float(beta_b)), label_a, label_b, prompt, privileged, level)


def pool_comparisons(
    comparisons: Sequence[Comparison], label_a: str, label_b: str, level: float = CONFIDENCE_LEVEL
) -> Comparison:
    """Put comparisons together: all their pairs count, clustered by task; luck is taken off in each of them apart.

    Args:
        comparisons: At least one.
        label_a: What A is called.
        label_b: What B is called.
        level: Confidence level of the intervals.
    """
    if len(comparisons) == 1:
        only = comparisons[0]
        return _judge(
            only.pairs, only.terms, (only.beta_a, only.beta_b), label_a, label_b, only.prompt, only.privileged, level
        )
    parts = [comparison.pairs for comparison in comparisons]
    tasks = sorted({task for part in parts for task in part.tasks})
    places = {task: place for place, task in enumerate(tasks)}
    pooled = Pairs(
        tasks=tuple(tasks),
        task=np.concatenate(
            [np.array([places[task] for task in part.tasks], dtype=np.int64)[part.task] for part in parts]
        ),
        seed=np.concatenate([part.seed for part in parts]),
        outcome_a=np.concatenate([part.outcome_a for part in parts]),
        outcome_b=np.concatenate([part.outcome_b for part in parts]),
        luck_a=np.concatenate([part.luck_a for part in parts]),
        luck_b=np.concatenate([part.luck_b for part in parts]),
        optimum=np.concatenate([part.optimum for part in parts]),
        ceiling_a=np.concatenate([part.ceiling_a for part in parts]),
        ceiling_b=np.concatenate([part.ceiling_b for part in parts]),
        tries_again=any(part.tries_again for part in parts),
        num_without_partner=(
            sum(part.num_without_partner[0] for part in parts),
            sum(part.num_without_partner[1] for part in parts),
        ),
    )
    each = [comparison.terms for comparison in comparisons if comparison.terms is not None]
    weights = np.array([len(part) for part in parts], dtype=np.float64) / len(pooled)
    betas = np.array([(comparison.beta_a, comparison.beta_b) for comparison in comparisons])
    beta_a, beta_b = weights @ betas
    return _judge(
        pooled,
        np.concatenate(each) if len(each) == len(comparisons) else None,
        (float(beta_a), float(beta_b)),
        label_a,
        label_b,
        ", ".join(dict.fromkeys(comparison.prompt for comparison in comparisons)),
        (any(c.privileged[0] for c in comparisons), any(c.privileged[1] for c in comparisons)),
        level,
    )


def _judge(
    pairs: Pairs,
    terms: FloatArray | None,
    betas: tuple[float, float],
    label_a: str,
    label_b: str,
    prompt: str,
    privileged: tuple[bool, bool],
    level: float,
) -> Comparison:
    counts = pairs.task_counts
    paired = paired_difference(pairs, level)
    if terms is None:
        adjusted = not_offered(PAIRED_LUCK_ADJUSTED, len(pairs), pairs.num_tasks, NO_LUCK)
        none = Estimate(math.nan, math.nan, math.nan, math.nan, pairs.num_tasks, len(pairs))
        optimum = ceiling_a = ceiling_b = none
    else:
        adjusted = no_surer(clustered_difference(PAIRED_LUCK_ADJUSTED, pairs, terms, level), paired)
        optimum, ceiling_a, ceiling_b = (
            clustered_mean(pairs.task_sums(values), counts, level)
            for values in (pairs.optimum, pairs.ceiling_a, pairs.ceiling_b)
        )
    return Comparison(
        label_a=label_a,
        label_b=label_b,
        prompt=prompt,
        differences={
            INDEPENDENT: independent_difference(pairs, level),
            PAIRED: paired,
            PAIRED_LUCK_ADJUSTED: adjusted,
            MCNEMAR: mcnemar_difference(pairs, level),
        },
        success_a=clustered_proportion(pairs.task_sums(pairs.outcome_a), counts, level),
        success_b=clustered_proportion(pairs.task_sums(pairs.outcome_b), counts, level),
        optimum=optimum,
        ceiling_a=ceiling_a,
        ceiling_b=ceiling_b,
        beta_a=betas[0],
        beta_b=betas[1],
        privileged=privileged,
        num_without_partner=pairs.num_without_partner,
        pairs=pairs,
        terms=terms,
    )


def _only_group(table: EpisodeTable, side: str) -> tuple[str, str]:
    groups = table.groups()
    if len(groups) != 1:
        found = ", ".join(f"{policy} under {prompt}" for policy, prompt in groups[:4]) or "no episode"
        raise InvalidInputError(f"{side} holds {found}: expected one policy under one prompt type (table.group)")
    return groups[0]
