"""Measures of agents, on numbers that can be done by hand and on a published table."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.evaluation.agent_measures import (
    combined_performance_score,
    deviation_over_models,
    recall,
    saturation,
    tokens_per_call,
    tokens_per_task,
)
from resilisim.evaluation.agent_sums import AgentSums

MEASURES = (saturation, combined_performance_score, deviation_over_models)
shares = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_measures_over_models_by_hand():
    accuracies = [0.25, 0.5, 0.75]
    assert saturation(accuracies) == 0.75  # 1 - (0.75 - 0.5)
    assert combined_performance_score(accuracies) == 0.5625  # 0.75 * 0.75
    assert deviation_over_models(accuracies) == 0.25  # sqrt((0.0625 + 0 + 0.0625) / 2)


# Four models' accuracies, and what Molinari and Ciravegna (2026), Table 3, give for them: deviation and CPS, which are
# cut after two digits there. With the deviation of a population the first would be 0.15.
@pytest.mark.parametrize(
    ("accuracies", "deviation", "cps"),
    [
        ([0.53, 0.68, 0.26, 0.61], 0.18, 0.57),  # RP-ReAct, Yelp, easy
        ([0.87, 0.39, 0.04, 0.43], 0.34, 0.48),  # Reflexion, Yelp, easy
        ([0.89, 0.69, 0.48, 0.72], 0.16, 0.71),  # RP-ReAct, Airbnb, easy
    ],
)
def test_published_values(accuracies, deviation, cps):
    assert math.floor(100 * deviation_over_models(accuracies)) / 100 == deviation
    assert math.floor(100 * combined_performance_score(accuracies)) / 100 == cps


def test_one_model_and_none():
    assert saturation([0.4]) == 1.0
    assert combined_performance_score([0.4]) == 0.4
    assert math.isnan(deviation_over_models([0.4]))
    assert all(math.isnan(measure([])) for measure in MEASURES)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("wrong", [80.0, -0.1, math.nan, math.inf])
def test_what_is_no_share_is_refused(measure, wrong):
    with pytest.raises(InvalidInputError, match="expected a share from 0 to 1"):
        measure([0.5, wrong])


@given(shares)
def test_models_that_differ_lower_both_scores(accuracies):
    assert 0 <= saturation(accuracies) <= 1 + 1e-12
    assert combined_performance_score(accuracies) <= max(accuracies) + 1e-12
    equal = [max(accuracies)] * len(accuracies)
    assert saturation(equal) == pytest.approx(1.0)
    assert combined_performance_score(accuracies) <= combined_performance_score(equal) + 1e-12


@given(shares, st.randoms(use_true_random=False))
def test_the_order_of_models_does_not_matter(accuracies, random):
    shuffled = list(accuracies)
    random.shuffle(shuffled)
    for measure in MEASURES:
        assert measure(shuffled) == pytest.approx(measure(accuracies), nan_ok=True)


@pytest.mark.parametrize(
    ("expected", "covered", "share"),
    [
        (["a", "b", "c", "d"], ["b"], 0.25),
        (["a", "b"], ["b", "a", "z"], 1.0),
        (["a", "a", "b"], ["a", "a"], 0.5),
        ({"a"}, (), 0.0),
        (["a"], ["A"], 0.0),
    ],
)
def test_recall(expected, covered, share):
    assert recall(expected, covered) == share


def test_recall_of_nothing_is_no_number():
    assert math.isnan(recall([], ["a"]))


def test_tokens_per_call_and_per_task():
    sums = AgentSums("react", "baseline", num_episodes=4)
    assert math.isnan(tokens_per_call(sums))
    sums.components["planner"] = {"calls": 2, "prompt_tokens": 100, "completion_tokens": 20}
    sums.components["extractor"] = {"calls": 3, "prompt_tokens": 70, "completion_tokens": 10}
    assert tokens_per_call(sums) == 40.0
    assert tokens_per_task(sums) == 50.0
    assert math.isnan(tokens_per_task(AgentSums("react", "baseline")))
