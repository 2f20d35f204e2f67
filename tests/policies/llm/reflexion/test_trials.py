"""How trials and episodes end: by the agent, by a limit, or by the environment."""

from __future__ import annotations

import pytest

from resilisim.policies.llm.agents.reflexion import Reflexion
from tests.policies.llm.playing import PARSER, READER, play_scripted, scripted
from tests.policies.llm.reflexion.test_agent import agent, evaluator, reflector

AGAIN = 'Action: tool_search {"query": "the same"}'


def test_a_whole_episode_with_fresh_trials():
    run_reader, run_parser = (f'Action: tool_call {{"name": "{tool}"}}' for tool in (READER, PARSER))
    model = scripted(
        *(agent(run_reader), agent("Action: finish[read]"), evaluator(False), reflector("Parse, too.")),
        *(agent(run_reader), agent(run_parser), agent("Action: finish[parsed]"), evaluator(True)),
    )
    record = play_scripted(Reflexion(models=model, trials="fresh"), max_turns=2)
    assert record["outcome"] == 1
    assert [step["tool"] for step in record["steps"]] == [READER, PARSER, None], "the last trial's episode"
    assert record["agent"]["restarts"] == 1
    assert record["agent"]["options"]["trials"] == "fresh", "by which results know what has no ceiling"


def test_a_fresh_trial_that_the_environment_ends_is_followed_by_the_next():
    run_reader, run_parser = (f'Action: tool_call {{"name": "{tool}"}}' for tool in (READER, PARSER))
    model = scripted(
        *[agent(AGAIN)] * 4,
        reflector("Do not search in circles.", "The episode has ended"),
        *(agent(run_reader, "Do not search"), agent(run_parser), agent("Action: finish[both]"), evaluator(True)),
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


def test_in_a_shared_episode_its_end_is_the_end():
    record = play_scripted(Reflexion(models=scripted(*[agent(AGAIN)] * 4)), prompt="baseline")
    assert (record["ended_by"], record["agent"]["ended_by"], record["agent"]["restarts"]) == ("loop", "environment", 0)
    assert len(record["agent"]["structure"]["trials"][0]["steps"]) == len(record["steps"]) == 4
