"""What LLM agents used and where they gave up, on episodes whose sums can be done by hand."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from resilisim.evaluation.agent_sums import NOBODY, AgentSums, agent_table


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
    assert "kpi-chain (optimal): 9 of 15 replies cut off at the limit of tokens" in str(agent_table([sums]).caption)


def test_failed_episodes_are_put_down_to_the_first_component_to_give_up() -> None:
    assert sums_of(*EPISODES).first_failures == {"extractor": 1, "tool": 1, "max_llm_calls": 1}
    assert sums_of(record(0, 0), record(0, 0, "gave_up")).first_failures == {NOBODY: 2}  # wrong without noticing
    assert sums_of(record(0, 0, "environment")).first_failures == {"turns": 1}
    assert sums_of(record(1, 0, failing="tool")).first_failures == {}  # it recovered


def test_replans_of_all_of_those_that_finished_and_of_those_that_were_right() -> None:
    assert sums_of(*EPISODES).to_mapping()["replans"] == {
        "all": {"0": 2, "2": 2, "3": 1},
        "finished": {"0": 1, "2": 2},
        "right": {"0": 1, "2": 1},
    }


def test_one_unknown_price_makes_the_sum_unknown() -> None:
    priced = record(1, 0, components={"agent": usage(1, 10, 0.25)})
    unknown = record(1, 0, components={"agent": usage(1, 10, None)})
    assert sums_of(priced, priced).cost == 0.5
    assert sums_of(priced, unknown, priced).cost is None


def test_the_table_says_who_gave_up() -> None:
    out = Console(width=160)
    with out.capture() as captured:
        out.print(agent_table([sums_of(*EPISODES)]))
    text = captured.get()
    assert "extractor 33%, max_llm_calls 33%, tool 33%" in text
    assert "planner" in text
    assert "all 0: 2, 2: 2, 3: 1; finished 0: 1, 2: 2; right 0: 1, 2: 1" in text
