"""What a competent model does out of habit costs no agent anything: agent x habit, against a real endpoint."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.habits import all_pairs, environments, play_pairs, reference, some_tasks
from resilisim.policies.registry import LLM_POLICIES

CASES = [(task, seed) for seed in range(2) for task in some_tasks(2)][:3]


@pytest.mark.filterwarnings("ignore:.* refuses '")  # habits of endpoints, each told once
@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_every_habit_reaches_what_the_right_calls_reach(agent):
    env = environments()["text"]
    right = [reference(env, task, seed) for task, seed in CASES]
    assert any(one.outcome and not all(success for _, success in one.executions) for one in right), "too easy a draw"
    pairs = [pair for pair in all_pairs() if pair[0] == agent]
    played = asyncio.run(play_pairs(pairs, CASES))
    plain = played[agent, "plain"]
    astray = {}
    for (_, habit), found in played.items():
        does_the_same = all(one.does_as(other) for one, other in zip(found, right, strict=True))
        # More steps in a plan are more calls of the model; no other habit needs one call more than the plain one.
        as_quickly = habit == "verbose" or [one.calls for one in found] == [one.calls for one in plain]
        if not (does_the_same and as_quickly):
            astray[habit] = found
    assert not astray, f"with the right calls: {right}"
