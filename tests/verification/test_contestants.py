"""The scripted policies that comparisons are checked with, and the arrays that their episodes become."""

from __future__ import annotations

import numpy as np
import pytest

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.table.controls import more_controls
from resilisim.seeding import Draws
from resilisim.statistics.comparison import adjusted_terms
from resilisim.workflows import ExactPlanner
from verification.contest import NUM_CONTROLS, distinct_tasks, joined, pairs_of, play_contest
from verification.contestants import CONTESTANTS, Impatient, NoisyOptimum, OutOfOrder, Searcher
from verification.score import find_by_words

TASKS = distinct_tasks(20)
BY_NAME = {one.name: one for one in CONTESTANTS}


def play(policy, task=TASKS[0], seed=0, prompt="optimal", **law):
    env = ConversationEnv(planner=ExactPlanner(), search=find_by_words, **law)
    if isinstance(policy, NoisyOptimum):
        policy.begin(seed, task.instance_id)
    return play_episode(env, policy, task, prompt, seed)


def messages(record):
    return [step["message"] for step in record["steps"]]


def calls(record):
    return [step["tool"] for step in record["steps"] if step["kind"] == "execute"]


def test_without_noise_it_is_the_optimum():
    for seed in range(4):
        expected = play(BY_NAME["optimum"].make(), seed=seed, prompt="baseline")
        assert messages(play(NoisyOptimum(0.0, "x"), seed=seed, prompt="baseline")) == messages(expected)


def test_choices_are_a_function_of_name_seed_and_task_and_not_of_luck():
    def first(choices, seed=0, task=TASKS[0], salt="a"):
        return messages(play(NoisyOptimum(1.0, choices), task, seed, "baseline", salt=salt))[0]

    assert first("x") == first("x") == first("x", salt="b")
    assert len({first("x", seed) for seed in range(6)}) > 1
    assert len({first(f"x{number}") for number in range(6)}) > 1
    assert len({first("x", task=task) for task in TASKS[:6]}) > 1


def test_of_two_with_the_same_choices_the_quieter_errs_only_where_the_other_does():
    little, much = NoisyOptimum(0.3, "x"), NoisyOptimum(0.6, "x")
    errors = [0, 0]
    for seed in range(40):
        optimal = messages(play(NoisyOptimum(0.0, "x"), seed=seed, prompt="baseline"))[0]
        first, second = (messages(play(policy, seed=seed, prompt="baseline"))[0] for policy in (little, much))
        errors[0] += first != optimal
        errors[1] += second != optimal
        if first != optimal:
            assert second == first
    assert 0 < errors[0] < errors[1]


@pytest.mark.parametrize("policy", [OutOfOrder(), Impatient(10), Searcher(1), NoisyOptimum(0.0, "x")])
def test_where_nothing_fails_they_succeed(policy):
    assert play(policy, base=1.0, not_executed=1.0, failed=1.0, history=1.0)["outcome"] == 1


def test_each_does_what_it_is_called_for():
    task = next(task for task in TASKS if len(task.required_tools) >= 3)
    a, b, *_ = task.required_tools
    assert calls(play(OutOfOrder(), task, base=1e-9))[:4] == [a, b, a, b]
    impatient = play(Impatient(3), base=1e-9)
    assert (len(impatient["steps"]), impatient["ended_by"]) == (4, "stopped")  # the last is the stop
    for policy, law, expected in (
        (Searcher(), {"base": 1.0, "not_executed": 1.0}, ["search", "execute", "search", "execute"]),
        (Searcher(1), {"base": 1e-9}, ["search", "execute", "execute", "execute"]),
    ):
        assert [step["kind"] for step in play(policy, **law)["steps"]][:4] == expected


def test_a_contest_holds_the_records():
    chosen = [BY_NAME["optimum, noise 0.2"], BY_NAME["required-order follower"]]
    whole = play_contest(chosen, TASKS[:2], 3, "salt")
    parts = joined([play_contest(chosen, [task], 3, "salt") for task in TASKS[:2]])
    np.testing.assert_array_equal(parts.luck, whole.luck)
    np.testing.assert_array_equal(parts.outcome, whole.outcome)
    assert parts.task_ids == whole.task_ids == tuple(task.instance_id for task in TASKS[:2])
    assert whole.luck.shape == (2, 2, 3, NUM_CONTROLS)
    pairs = pairs_of(whole, 0, 1)
    assert len(pairs) == 6
    assert list(pairs.outcome_b) == list(whole.outcome[1].ravel())
    assert adjusted_terms(pairs)[0].shape == (6,)


def test_controls_are_luck_and_draws_of_what_was_needed():
    draws = Draws("test of controls")
    for seed in range(5):
        record = play(NoisyOptimum(0.3, "x"), seed=draws.below(1000) + seed, prompt="baseline")
        sums, steps = more_controls(record), record["steps"]
        assert sums[0] == pytest.approx(sum(step["luck"] * step["value"] for step in steps))
        assert sums[3] == pytest.approx(sum(s["luck"] * s["value"] * (s["turn"] - 1) / 10 for s in steps))
        left, drawn = set(record["required_tools"]), 0.0
        for step in steps:
            if step["success"] is not None and step["tool"] in left and step["value"] > 0.0:
                drawn += step["success"] - step["success_probability"]
            left -= {step["tool"]} if step["success"] else set()
        assert sum(sums[4:]) == pytest.approx(drawn)
