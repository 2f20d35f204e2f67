"""Conversations with mistakes on purpose, and ones that follow the plan where it costs next to nothing."""

import functools

import pytest

from resilisim import benchmark_tasks
from resilisim.datasets.conversations import ConversationSpec
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import REGRET_TOLERANCE
from resilisim.workflows.prompts import parse_steps
from tests.datasets import rollout_tools

source_of = functools.partial(rollout_tools.source_of, ConversationSpec)
TASKS = benchmark_tasks()[:120:15]


def turns_of(**options):
    source = source_of(prompts=("optimal",), seeds=3, **options)
    return [(record, turn) for task in TASKS for record in source.records(task) for turn in record["turns"]]


def test_a_share_of_the_steps_are_wrong_calls_and_all_others_are_best():
    share = 0.3
    turns = turns_of(explore=share)
    wrong = [turn for _, turn in turns if turn["regret"] > REGRET_TOLERANCE]
    open_turns = [turn for _, turn in turns if turn["value"] > 0.0]
    assert all(turn["kind"] == "execute" and turn["label"] for turn in wrong)
    # In states without a wrong call there is no mistake; five standard errors of a share of some hundred steps.
    assert abs(len(wrong) / len(open_turns) - share) < 5 * (share * (1 - share) / len(open_turns)) ** 0.5
    assert len({turn["label"] for turn in wrong}) >= 3
    recovered = [record for record, turn in turns if turn["regret"] > REGRET_TOLERANCE and record["success"]]
    assert len(recovered) > 5
    assert not any(turn["regret"] > REGRET_TOLERANCE for _, turn in turns_of())
    assert turns_of(explore=share) == turns


def test_the_plan_decides_between_calls_that_are_worth_nearly_the_same():
    margin = 0.002
    turns = turns_of(plan_margin=margin)
    assert all(turn["regret"] <= margin for _, turn in turns)
    in_order, exact = (
        sum(_first_places(record) == sorted(_first_places(record)) for record, turn in found if turn["turn"] == 1)
        for found in (turns, turns_of())
    )
    assert in_order > exact


def _first_places(record):
    """Return the places in the plan of the tools that are called, in the order of their first calls."""
    plan = [step.tool for step in parse_steps(record["messages"][0]["content"])]
    called = dict.fromkeys(turn["tool"] for turn in record["turns"] if turn["tool"] in plan)
    return [plan.index(tool) for tool in called]


def test_what_was_there_before_says_nothing_of_it_and_nobody_else_does_it():
    assert not {"explore", "plan_margin"} & ConversationSpec().arguments().keys()
    assert ConversationSpec(explore=0.1).arguments()["explore"] == 0.1
    for wrong in ({"explore": 0.1}, {"plan_margin": 0.1}):
        with pytest.raises(InvalidInputError, match="with 'plan-follower': expected 'exact-optimum'"):
            ConversationSpec(policy="plan-follower", **wrong)
    with pytest.raises(InvalidInputError, match="explore"):
        ConversationSpec(explore=1.5)
