"""What LLM agents used and where they gave up, on episodes whose sums can be done by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.evaluation.table.agents import (
    NOBODY,
    AgentSums,
    combined_performance_score,
    deviation_over_models,
    saturation,
)


def usage(calls: int, tokens: int, cost: float | None = 0.0) -> dict[str, Any]:
    return {
        "calls": calls,
        "prompt_tokens": tokens,
        "completion_tokens": tokens // 10,
        "is_estimate": False,
        "latency_seconds": calls * 0.5,
        "from_cache": 0,
        "cost": cost,
    }


def record(outcome: int, replans: int, ended_by: str = "answer", failing: str | None = None, **more: Any) -> Any:
    agent = {
        "protocol": "text",
        "components": {"planner": usage(2, 100), "extractor": usage(1, 50)},
        "first_failure": None if failing is None else {"component": failing},
        "ended_by": ended_by,
        "events": [{"kind": "malformed_reply"}, {"kind": "plan"}],
        "counters": {"replans": replans, "cut_replies": 3} if replans else {},
        **more,
    }
    return {"outcome": outcome, "ended_by": "turns", "agent": agent}


def sums_of(*records: Any) -> AgentSums:
    sums = AgentSums("kpi-chain", "optimal")
    for entry in records:
        sums.add(entry)
    return sums


EPISODES = (
    record(1, 0),
    record(1, 2),
    record(0, 2, failing="extractor"),
    record(0, 3, "gave_up", failing="tool"),
    record(0, 0, "max_llm_calls"),
)


def test_sums_of_components() -> None:
    sums = sums_of(*EPISODES)
    assert (sums.num_episodes, sums.num_right) == (5, 2)
    assert sums.components["planner"] == {
        "calls": 10,
        "prompt_tokens": 500,
        "completion_tokens": 50,
        "latency_seconds": 5.0,
        "from_cache": 0,
    }
    assert sums.total("calls") == 15
    assert sums.cost == 0.0
    assert (sums.malformed_replies, sums.cut_replies) == (5, 9)


def test_failed_episodes_are_put_down_to_the_first_component_to_give_up() -> None:
    assert sums_of(*EPISODES).first_failures == {"extractor": 1, "tool": 1, "max_llm_calls": 1}
    assert sums_of(record(0, 0), record(0, 0, "gave_up")).first_failures == {NOBODY: 2}  # wrong without noticing
    assert sums_of(record(0, 0, "environment")).first_failures == {"turns": 1}
    assert sums_of(record(1, 0, failing="tool")).first_failures == {}  # it recovered


def test_one_unknown_price_makes_the_sum_unknown() -> None:
    priced = record(1, 0, components={"agent": usage(1, 10, 0.25)})
    unknown = record(1, 0, components={"agent": usage(1, 10, None)})
    assert sums_of(priced, priced).cost == 0.5
    assert sums_of(priced, unknown, priced).cost is None


def test_json_says_how_often_agents_replanned() -> None:
    sums = sums_of(*EPISODES)
    assert sums.to_mapping()["replans"] == {
        "all": {"0": 2, "2": 2, "3": 1},
        "finished": {"0": 1, "2": 2},
        "right": {"0": 1, "2": 1},
    }


MEASURES = (saturation, combined_performance_score, deviation_over_models)
shares = st.lists(st.floats(0, 1), min_size=1, max_size=8)


# Four models' accuracies, and what Molinari and Ciravegna (2026), Table 3, give for them: deviation and CPS, which are
# cut after two digits there. With the deviation of a population the first would be 0.15.
@pytest.mark.parametrize(
    ("accuracies", "deviation", "cps"),
    [
        ([0.25, 0.5, 0.75], 0.25, 0.56),  # 0.75 * (1 - (0.75 - 0.5)), by hand
        ([0.53, 0.68, 0.26, 0.61], 0.18, 0.57),  # RP-ReAct, Yelp, easy
        ([0.87, 0.39, 0.04, 0.43], 0.34, 0.48),  # Reflexion, Yelp, easy
        ([0.89, 0.69, 0.48, 0.72], 0.16, 0.71),  # RP-ReAct, Airbnb, easy
    ],
)
def test_published_values(accuracies, deviation, cps):
    assert math.floor(100 * deviation_over_models(accuracies)) / 100 == deviation
    assert math.floor(100 * combined_performance_score(accuracies)) / 100 == cps


@given(shares, st.randoms(use_true_random=False))
def test_models_that_differ_lower_both_scores_in_any_order(accuracies, random):
    assert 0 <= saturation(accuracies) <= 1 + 1e-12
    equal = [max(accuracies)] * len(accuracies)
    assert saturation(equal) == pytest.approx(1.0)
    assert combined_performance_score(accuracies) <= combined_performance_score(equal) + 1e-12
    shuffled = list(accuracies)
    random.shuffle(shuffled)
    for measure in MEASURES:
        assert measure(shuffled) == pytest.approx(measure(accuracies), nan_ok=True)


def test_tokens_per_call_and_per_task():
    sums = AgentSums("react", "baseline", num_episodes=4)
    assert math.isnan(sums.tokens_per_call)
    sums.components["planner"] = {"calls": 2, "prompt_tokens": 100, "completion_tokens": 20}
    sums.components["extractor"] = {"calls": 3, "prompt_tokens": 70, "completion_tokens": 10}
    assert sums.tokens_per_call == 40.0
    assert sums.tokens_per_task == 50.0
    assert math.isnan(AgentSums("react", "baseline").tokens_per_task)
