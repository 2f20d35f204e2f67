"""Measures of agents beyond success: how evenly they do over models, recall of answers, and tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence

from resilisim.errors import InvalidInputError
from resilisim.evaluation.agent_sums import AgentSums


def saturation(accuracies: Sequence[float]) -> float:
    """Return 1 - (highest - mean accuracy) of one agent over models: 1 if all models do equally well with it.

    As in Molinari and Ciravegna (2026), "Evaluation Metrics".

    Args:
        accuracies: The agent's accuracy with each model, from 0 to 1.

    Returns:
        The saturation, or NaN for no model.

    Raises:
        InvalidInputError: An accuracy is no share.
    """
    shares = _shares(accuracies)
    return 1.0 - (max(shares) - statistics.fmean(shares)) if shares else math.nan


def combined_performance_score(accuracies: Sequence[float]) -> float:
    """Return the CPS of one agent: its saturation times its highest accuracy.

    As in Molinari and Ciravegna (2026), "Evaluation Metrics".

    Args:
        accuracies: The agent's accuracy with each model, from 0 to 1.

    Returns:
        The score, or NaN for no model.

    Raises:
        InvalidInputError: An accuracy is no share.
    """
    return saturation(accuracies) * max(accuracies) if accuracies else math.nan


def deviation_over_models(accuracies: Sequence[float]) -> float:
    """Return the sample standard deviation (one degree of freedom less) of one agent's accuracy over models.

    Molinari and Ciravegna (2026) do not say which deviation theirs is; their tables fit this one.

    Args:
        accuracies: The agent's accuracy with each model, from 0 to 1.

    Returns:
        The deviation, or NaN for fewer than two models.

    Raises:
        InvalidInputError: An accuracy is no share.
    """
    shares = _shares(accuracies)
    return statistics.stdev(shares) if len(shares) > 1 else math.nan


def recall(expected: Collection[str], covered: Collection[str]) -> float:
    """Return the share of the expected answers that a response covers.

    The measure of the KPI-Chain papers for questions with many answers (QAMPARI, QUEST). Whether a response covers an
    answer is for a judge to say: here answers are names that are equal or not.

    Args:
        expected: The expected answers; one that stands twice counts once.
        covered: Those that the response covers; others than expected ones change nothing.

    Returns:
        The recall, or NaN where nothing is expected.
    """
    wanted = set(expected)
    return len(wanted.intersection(covered)) / len(wanted) if wanted else math.nan


def tokens_per_call(sums: AgentSums) -> float:
    """Return tokens of prompts and replies per call of a model; NaN without calls."""
    return _divided(_tokens(sums), sums.total("calls"))


def tokens_per_task(sums: AgentSums) -> float:
    """Return tokens of prompts and replies per episode; NaN without episodes."""
    return _divided(_tokens(sums), sums.num_episodes)


def _tokens(sums: AgentSums) -> float:
    return sums.total("prompt_tokens") + sums.total("completion_tokens")


def _divided(amount: float, parts: float) -> float:
    return amount / parts if parts else math.nan


def _shares(accuracies: Sequence[float]) -> list[float]:
    for accuracy in accuracies:
        if not 0.0 <= accuracy <= 1.0:
            raise InvalidInputError(f"accuracy {accuracy!r}: expected a share from 0 to 1")
    return [float(accuracy) for accuracy in accuracies]
