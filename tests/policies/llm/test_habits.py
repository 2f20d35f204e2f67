"""What a competent model does out of habit costs no agent anything: agent x habit, against a real endpoint."""

from __future__ import annotations

import asyncio
import re

import pytest

import tests.doubles.habits
from resilisim.policies.llm.templates import shared_text
from resilisim.policies.registry import LLM_POLICIES
from tests.doubles.habit_models import FORM, CompetentModel
from tests.doubles.habits import all_pairs, environments, play_pairs, reference, some_tasks

CASES = list(zip(some_tasks(2), range(2), strict=True))  # one is reached after failures, in one they are too many


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.* refuses ")  # habits of endpoints, each told once
@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_every_habit_reaches_what_the_right_calls_reach(agent):
    env = environments()["text"]
    right = [reference(env, task, seed) for task, seed in CASES]
    assert any(one.outcome and not all(success for _, success in one.executions) for one in right), "too easy a draw"
    pairs = [pair for pair in all_pairs() if pair[0] == agent]
    plain = asyncio.run(play_pairs([(agent, "plain")], CASES))[agent, "plain"]
    assert all(one.does_as(other) for one, other in zip(plain, right, strict=True))
    # Forms of calls differ in nothing but the call, of which an episode has several; others meet one of the cases.
    in_forms = [pair for pair in pairs if pair[1].startswith(FORM)]
    others = [pair for pair in pairs if pair not in in_forms]
    astray = {}
    for number, of_case in enumerate(([*in_forms, *others[::2]], others[1::2])):
        played = asyncio.run(play_pairs(of_case, [CASES[number]]))
        assert len(played) == len(of_case) > 5
        for (_, habit), (found,) in played.items():
            # More steps in a plan are more calls of the model; no other habit needs one call more than the plain one.
            as_quickly = habit == "verbose" or found.calls == plain[number].calls
            if not (found.does_as(right[number]) and as_quickly):
                astray[habit] = found
    assert not astray, f"with the right calls: {right}"


@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_every_agent_is_told_the_same_facts_in_its_own_form(agent, monkeypatch):
    said = []

    class Listening(CompetentModel):
        def __call__(self, seen):
            said.append("\n".join(str(message["content"]) for message in seen.body["messages"]))
            return super().__call__(seen)

    monkeypatch.setattr(tests.doubles.habits, "CompetentModel", Listening)
    asyncio.run(play_pairs([(agent, "plain")], CASES[:1]))
    facts = [
        shared_text("parameters_strict"),
        "Tools fail at random. A call that has failed may be made again just as it was",
        "Turns left: 10.",
    ]
    assert all(fact in said[0] for fact in facts)
    assert any(re.search(r"Turns left: \d\.|\b\d turns? left", text) for text in said), "later, too"
    # Only the direct agent's model writes tags, so only it may be told of one.
    assert any("<finish/>" in text for text in said) is (agent == "direct")
    own = {
        "direct": "<finish/>",
        "react": "Action: finish",
        "reflexion": "Action: finish",
        "code-act": "finish(answer)",
    }
    hint = f"or finish with {own.get(agent, '')}"
    assert any(hint in text for text in said) is (agent in own)
