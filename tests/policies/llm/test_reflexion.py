"""Reflexion, branch by branch, with a scripted model and scripted tools; how trials and episodes end."""

from __future__ import annotations

import json

import pytest

from resilisim.chat import ScriptedChatModel
from resilisim.chat.scripted_models import ScriptedReply
from resilisim.chat.types import ContextOverflowError
from resilisim.errors import InvalidInputError
from resilisim.policies.llm.agent_run import EpisodeEnded, EpisodeHooks
from resilisim.policies.llm.agents.reflexion import Reflexion
from tests.policies.llm import helpers
from tests.policies.llm.helpers import (
    NONSENSE,
    PARSER,
    READER,
    ScriptedToolbox,
    agent,
    play_scripted,
    reflector,
    scripted,
    spec,
)

TASK = "Fetch {it}, ${it}."
MALFORMED = {**NONSENSE, "invalid JSON": '{"success": tr', "no truth value": '{"success": "perhaps"}'}


def evaluator(success: object, reason: str = "because", expect: str = "") -> ScriptedReply:
    return ScriptedReply(json.dumps({"reason": reason, "success": success}), expect, "evaluator")


def play(script, fetch=(), turns_left=None, oracle=None, restart=False, **options):
    async def anew():
        return TASK

    tools = ScriptedToolbox([spec("fetch", "key")], {"fetch": fetch})
    hooks = EpisodeHooks(oracle=oracle, restart=anew if restart else None)
    policy = Reflexion(models=ScriptedChatModel(script), **options)
    return helpers.play(policy, tools, TASK, hooks=hooks, turns_left=turns_left)


def trials(played):
    return played.structure["trials"]


def failing(played):
    return [component for component, _ in played.failures]


RUN_READER, RUN_PARSER = (f'Action: tool_call {{"name": "{tool}"}}' for tool in (READER, PARSER))
FAILED_TRIAL = [agent("Action: finish[no]"), evaluator(False), reflector("Do it better.")]


def test_a_trial_that_is_accepted_ends_it():
    script = [
        agent('Action: fetch {"key": "a"}'),
        agent("Action: finish[got 41]", "Observation: 41"),
        evaluator(True, "all there", "Their answer:\ngot 41"),
    ]
    played = play(script, fetch=["41"])
    assert played.answer == "got 41"
    assert played.told(0) == TASK, "braces in a task are never expanded"
    assert 'Action: fetch {"key": "a"}\nObservation: 41' in played.told(2)
    assert [(trial["answer"], trial["success"]) for trial in trials(played)] == [("got 41", True)]
    assert played.events("verdict")[0]["details"] == {"trial": 1, "success": True, "by": "llm"}
    assert failing(played) == []
    script = [agent('Action: fetch {"key": "a"}'), agent("Action: finish[got it]"), evaluator(True, expect="[cut: ")]
    shown = play(script, fetch=["y" * 9_000], trajectory_chars=1_000).told(-1)
    assert ("Action: finish" in shown, len(shown) < 3_000) == (True, True), "of a long trial the end"


def test_a_reflection_stands_before_the_next_trial():
    script = [
        agent("Action: finish[first]"),
        evaluator(False, "nothing was fetched"),
        reflector("I did nothing.\n\n  I was hasty.\nI fetch a.\nA fourth line.", "nothing was fetched"),
        agent('Action: fetch {"key": "a"}', "After trial 1:\nI did nothing.\nI was hasty.\nI fetch a.\n\n"),
        agent("Action: finish[second]"),
        evaluator(True),
    ]
    played = play(script, fetch=["41"])
    assert played.answer == "second"
    assert "A fourth line." not in played.told(3)
    assert "stays done" in played.told(3)
    assert TASK in played.told(3)
    assert len(played.messages(3)) == 2, "the next trial begins with a conversation of its own"
    assert played.run.transcript.counters == {"reflections": 1}
    assert trials(played)[0]["reflection"] == "I did nothing.\nI was hasty.\nI fetch a."


def test_there_are_at_most_three_reflections_and_the_last_answer_is_kept():
    script = [*FAILED_TRIAL * 3, agent("Action: finish[last]", "After trial 3:")]
    played = play(script)
    assert played.answer == "last"
    assert len(trials(played)) == 4
    assert played.run.transcript.counters == {"reflections": 3}
    assert play([agent("Action: finish[only]")], reflections=0).answer == "only"


def test_a_trial_without_finish_has_failed_and_keeps_the_answer_before():
    script = [
        *FAILED_TRIAL,
        *[agent("Action: fetch[a]")] * 2,
        reflector("Finish!", "the trial ended without finish after 2 steps"),
        *[agent("Action: fetch[a]")] * 2,
    ]
    played = play(script, fetch=["1"] * 4, steps=2, reflections=2)
    assert played.answer == "no"
    assert failing(played) == []
    nothing = play([agent("Action: fetch[a]")], fetch=["1"], steps=1, reflections=0)
    assert nothing.answer is None
    assert failing(nothing) == ["agent"]
    assert Reflexion(models=ScriptedChatModel([])).options.steps == 20


@pytest.mark.parametrize("reply", MALFORMED.values(), ids=list(MALFORMED))
def test_a_verdict_that_cannot_be_read_is_asked_for_once_more_and_without_one_a_trial_is_not_accepted(reply):
    script = [agent("Action: finish[a]"), ScriptedReply(reply, role="evaluator")]
    played = play([*script, evaluator("True", expect="could not be used")])
    assert played.answer == "a"
    assert played.run.transcript.counters == {"unreadable_verdicts": 1}
    assert played.longest < 20_000
    missing = [script[-1], reflector("Go on."), agent("Action: finish[b]")]
    played = play([*script, *missing], reflections=1)
    assert (played.answer, failing(played)) == ("b", ["evaluator"])


@pytest.mark.parametrize("reply", ["", " \n\n", "<think>nothing but thoughts"])
def test_an_empty_reflection_is_a_failure_of_the_reflector_and_the_next_trial_begins_all_the_same(reply):
    played = play(
        [agent("Action: finish[a]"), evaluator(False), reflector(reply), agent("Action: finish[b]")], reflections=1
    )
    assert played.answer == "b"
    assert failing(played) == ["reflector"]
    assert played.told(-1) == TASK
    script = [agent("Action: finish[a]"), evaluator(False), reflector("x" * 10**6 + "\nso\n" * 50_000)]
    reflection = trials(play([*script, agent("Action: finish[b]")], reflections=1))[0]["reflection"]
    assert (len(reflection) < 2_000, reflection.count("\n")) == (True, 2), "a long one is cut"


def test_the_oracle_is_an_option_that_is_marked():
    truths = iter([False, True])
    script = [agent("Action: finish[a]"), reflector("Again.", "the task is not done"), agent("Action: finish[b]")]
    played = play(script, oracle=lambda answer: next(truths), evaluator="oracle")
    assert played.answer == "b"
    assert played.run.oracle_was_asked
    assert [event["details"]["by"] for event in played.events("verdict")] == ["oracle", "oracle"]
    played = play([agent("Action: fetch[a]")], fetch=["1"], steps=1, oracle=lambda answer: True, evaluator="oracle")
    assert played.answer == "", "it may accept a trial without an answer"
    unasked = play([agent("Action: finish[a]"), evaluator(True)], oracle=lambda answer: True)
    assert not unasked.run.oracle_was_asked, "the model judges unless the option says otherwise"


def test_what_nobody_offers_is_refused_before_the_model_is_asked():
    for options, word in (({"evaluator": "oracle"}, "oracle"), ({"trials": "fresh"}, "fresh")):
        with pytest.raises(InvalidInputError, match=word):
            play([], **options)
    with pytest.raises(InvalidInputError, match="did you mean 'fresh'"):
        play([], trials="frsh")


def test_fresh_episodes_are_an_option_that_is_marked():
    script = [*FAILED_TRIAL, agent("Action: finish[b]", "Everything starts anew"), evaluator(True)]
    played = play(script, restart=True, trials="fresh", turns_left=0)
    assert played.answer == "b"
    assert played.run.transcript.restarts == 1
    shared = play(FAILED_TRIAL[:1], restart=True, turns_left=0)
    assert shared.answer == "no"
    assert shared.run.transcript.restarts == 0


def test_an_answer_that_was_kept_back_is_not_lost_to_a_last_call():
    model = scripted(
        agent(RUN_READER),
        agent("Action: finish[read]"),
        evaluator(False),
        reflector("Do it again."),
        agent(RUN_READER),
        agent(RUN_READER, "0 turns left"),  # refused: it would only end the episode
    )
    record = play_scripted(Reflexion(models=model), max_turns=2)
    assert [step["kind"] for step in record["steps"]] == ["execute", "execute", "finish"]
    assert record["agent"]["answer"] == "read"
    assert record["agent"]["structure"]["trials"][1]["steps"][-1]["error"] == "no turns are left, so nothing was called"


def test_the_end_of_the_episode_leaves_a_record():
    script = [*FAILED_TRIAL, agent("Action: fetch[a]"), agent("Action: fetch[b]")]
    played = play(script, fetch=["1", EpisodeEnded()])
    assert played.answer is EpisodeEnded
    assert [len(trial["steps"]) for trial in trials(played)] == [1, 2]
    assert trials(played)[1]["steps"][-1]["error"] == "the episode ended"


@pytest.mark.parametrize("overflow", [False, True])
def test_an_answer_that_was_kept_back_is_not_lost_to_a_limit(overflow):
    script = [agent(RUN_READER), *(agent("Action: finish[read]"), evaluator(False), reflector("Parse, too."))]
    last = [ContextOverflowError("too long", 400)] if overflow else []
    record = play_scripted(Reflexion(models=scripted(*script, *last), max_llm_calls=100 if overflow else 4))
    assert [step["kind"] for step in record["steps"]] == ["execute", "finish"]
    assert record["ended_by"] == "completion"
    part = record["agent"]
    assert (part["answer"], part["ended_by"]) == ("read", "context_overflow" if overflow else "max_llm_calls")
    assert [event["kind"] for event in part["events"]][-2:] == ["limit", "answer"]


def test_what_a_component_makes_good_is_no_failure():
    unreadable = [ScriptedReply("?", role="evaluator")] * 2
    finish = agent("Action: finish[a]")
    played = play([finish, *unreadable, reflector(""), finish, evaluator(True)])
    assert failing(played) == [], "the trial after it was accepted"
    played = play([finish, *unreadable, reflector(""), *FAILED_TRIAL, finish], reflections=2)
    assert failing(played) == [], "both did their part in the second trial"
    played = play([finish, evaluator(False), reflector(""), finish, *unreadable, reflector(""), finish], reflections=2)
    assert failing(played) == ["reflector", "evaluator"], "in the order in which they failed"
    played = play([finish, *unreadable, reflector("Go on."), agent("Action: fetch[a]")], fetch=[EpisodeEnded()])
    assert (played.answer, failing(played)) == (EpisodeEnded, ["evaluator"]), "also where the episode ends"


AGAIN = 'Action: tool_search {"query": "the same"}'


def test_a_whole_episode_with_fresh_trials():
    model = scripted(
        *(agent(RUN_READER), agent("Action: finish[read]"), evaluator(False), reflector("Parse, too.")),
        *(agent(RUN_READER), agent(RUN_PARSER), agent("Action: finish[parsed]"), evaluator(True)),
    )
    record = play_scripted(Reflexion(models=model, trials="fresh"), max_turns=2)
    assert record["outcome"] == 1
    assert [step["tool"] for step in record["steps"]] == [READER, PARSER, None], "the last trial's episode"
    assert record["agent"]["restarts"] == 1
    assert record["agent"]["options"]["trials"] == "fresh", "by which results know what has no ceiling"
    lengths = record["agent"]["options"]["observation_chars"], record["agent"]["options"]["trajectory_chars"]
    assert lengths == (20_000, 12_000), "as they were used"


def test_a_fresh_trial_that_the_environment_ends_is_followed_by_the_next():
    model = scripted(
        *[agent(AGAIN)] * 4,
        reflector("Do not search in circles.", "The episode has ended"),
        *(agent(RUN_READER, "Do not search"), agent(RUN_PARSER), agent("Action: finish[both]"), evaluator(True)),
    )
    record = play_scripted(Reflexion(models=model, trials="fresh"), prompt="baseline")
    assert [step["tool"] for step in record["steps"]] == [READER, PARSER, None]
    assert (record["outcome"], record["ended_by"]) == (1, "completion")
    part = record["agent"]
    assert (part["restarts"], part["answer"], part["ended_by"]) == (1, "both", "answer")
    assert [len(trial["steps"]) for trial in part["structure"]["trials"]] == [4, 3]
    assert part["first_failure"] is None


@pytest.mark.parametrize("calls", [100, 4])
def test_the_environment_ends_the_last_fresh_trial_and_no_answer_can_be_given(calls):
    script = [agent("Action: finish[early]"), evaluator(False), reflector("Go on.")]
    model = scripted(*script, *[agent(AGAIN)] * 4)
    if calls == 4:  # the limit is hit in the trial, and the answer is given in its episode
        model = scripted(*script, agent(AGAIN))
    record = play_scripted(
        Reflexion(models=model, trials="fresh", reflections=1, max_llm_calls=calls), prompt="baseline"
    )
    part = record["agent"]
    ended = ("completion", "max_llm_calls", "early") if calls == 4 else ("loop", "environment", None)
    assert (record["ended_by"], part["ended_by"], part["answer"]) == ended
    assert part["restarts"] == 1
    record = play_scripted(Reflexion(models=scripted(*[agent(AGAIN)] * 4)), prompt="baseline")
    part = record["agent"]
    assert (record["ended_by"], part["ended_by"], part["restarts"]) == ("loop", "environment", 0), (
        "a shared one's is it"
    )
    assert len(part["structure"]["trials"][0]["steps"]) == len(record["steps"]) == 4
