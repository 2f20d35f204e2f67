"""ReAct: its loop branch by branch, the agent with its options, whole episodes."""

from __future__ import annotations

import asyncio
import json

import pytest

from resilisim.chat import ChatMessage, ScriptedChatModel, ToolCall
from resilisim.chat.scripted_models import ScriptedReply
from resilisim.envs.reply import CallResult
from resilisim.errors import InvalidInputError
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.agents.react import FINISH_TOOL, IGNORED, ReAct, react_loop
from tests.policies.llm import helpers
from tests.policies.llm.helpers import NONSENSE, READER, ScriptedToolbox, native, play_scripted, scripted, spec

SEARCH = spec("search", "query")
ADD = spec("add", first="integer", second="integer")
TASK = "What is {it}, ${it} and {step_1}? Action: finish[no]"


def play(script, search=(), add=(), specs=(SEARCH, ADD), is_native=False, **options):
    toolbox = ScriptedToolbox(specs, {"search": search, "add": add})
    return helpers.play(ReAct(models=ScriptedChatModel(script), **options), toolbox, TASK, native=is_native)


def steps(played):
    return [(step["action"], step["error"]) for step in played.structure["steps"]]


def test_thought_action_observation_until_finish():
    script = [
        'Thought: I look.\nAction: search {"query": "apples"}',
        'Thought: I add.\nAction: add {"first": 2, "second": 3}',
        ScriptedReply('Thought: Done.\nAction: finish {"answer": "5"}', role="agent"),
    ]
    played = play(script, ["two apples"], [CallResult("5", progress="9 turns left")])
    assert played.answer == "5"
    assert played.calls == [("search", {"query": "apples"}), ("add", {"first": 2, "second": 3})]
    assert [step["action"] for step in played.structure["steps"]] == ["search", "add", "finish"]
    assert played.messages(2)[1:] == (
        ChatMessage("user", TASK),  # braces in a task are never expanded
        ChatMessage("assistant", 'Thought: I look.\nAction: search {"query": "apples"}'),
        ChatMessage("user", "Observation: two apples"),
        ChatMessage("assistant", 'Thought: I add.\nAction: add {"first": 2, "second": 3}'),
        ChatMessage("user", "Observation: 5\n\n9 turns left"),
    )
    assert "- search(query: string): A tool of a test.\n" in played.system(0)
    assert "- finish(answer: string)" in played.system(0)
    assert {request.stop for request in played.model.requests} == {("\nObservation:",)}
    assert played.kinds == []
    invented = 'Action: search {"query": "a"}\nObservation: invented\nAction: finish {"answer": "invented"}'
    played = play([invented, ScriptedReply("Action: finish[real]", expect="Observation: real")], ["real"])
    assert (played.answer, "invented" in str(played.messages(1))) == ("real", False), "it leaves no trace"


def test_without_an_action_it_is_asked_for_once_more_alone():
    script = [
        "I wonder what to do.",
        ScriptedReply('search {"query": "a"}', expect="could not be used: the reply holds no action"),
        ScriptedReply("Action: finish[b]", expect="Observation: b"),
    ]
    played = play(script, ["b"])
    assert played.answer == "b"
    assert steps(played) == [("search", None), ("finish", None)]
    assert played.structure["steps"][0]["thought"] == "I wonder what to do."
    assert played.counters == {"malformed_replies": 1, "asked_for_action_alone": 1}
    assert played.run.transcript.events[0]["details"] == {"excerpt": "I wonder what to do."}
    assert len(played.messages(2)) == 4, "the question for the action alone does not stay in the conversation"


MORE_NONSENSE = {
    "markup": "&lt;tool_call&gt;" + "<a>" * 10_000,
    "only an observation": "Observation: done\nAction: finish[no]",
    "prose behind the label": "Action: let me think about it",
}


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("reply", [*NONSENSE.values(), *MORE_NONSENSE.values()], ids=[*NONSENSE, *MORE_NONSENSE])
def test_replies_without_an_action_use_up_a_step_and_are_told_what_there_is(reply, is_native):
    told = "These actions exist:\n- search(query: string)"
    played = play([reply, reply, ScriptedReply("Action: finish[late]", expect=told)], is_native=is_native)
    assert played.answer == "late"
    assert [action for action, _ in steps(played)] == [None, "finish"]
    assert played.calls == []
    assert played.kinds == ["malformed_reply", "malformed_reply", "invalid_action"]
    assert played.longest < 20_000
    assert all(message.content.encode() for message in played.messages(2))


@pytest.mark.parametrize(
    ("action", "problem", "kinds"),
    [
        ('search {"query": "cut o', "the arguments of search cannot be read", ["malformed_reply", "invalid_action"]),
        ('finish {"answer": "cut o', "the arguments of finish cannot be read", ["malformed_reply", "invalid_action"]),
        ('serch {"query": "a"}', "unknown tool 'serch'", ["invalid_action"]),
    ],
)
def test_a_named_action_that_cannot_be_done_uses_a_step_and_is_not_asked_for_again(action, problem, kinds):
    told = "These actions exist:\n- search(query: string)"
    played = play([f"Action: {action}", ScriptedReply("Action: finish[b]", expect=told)])
    assert played.answer == "b"
    assert problem in played.told(1)
    assert [name for name, _ in steps(played)] == [action.split()[0], "finish"]
    assert (played.structure["steps"][0]["arguments"] is None) is ("cut" in action)
    assert played.kinds == kinds
    assert played.counters["invalid_actions"] == 1


@pytest.mark.parametrize("style", ["full", "terse"])
def test_a_call_that_failed_is_a_valid_action_in_every_style(style):
    record = play_scripted(
        ReAct(scripted(f"<tool_call>{READER}</tool_call>", f"Action: {READER} {{}}", "<finish/>")),
        base=1e-9,
        prompt_style=style,
    )
    assert [step["success"] for step in record["steps"]] == [False, False, None]
    assert record["agent"]["counters"].get("invalid_actions", 0) == 0


def test_errors_of_tools_are_observations_also_of_tools_that_are_not_listed():
    # The environment takes calls by the names of tools that it has shown.
    failed = CallResult("search failed.\nError: TIMEOUT: late", "TIMEOUT: late", progress="3 turns left")
    script = [
        "Action: search[a]",
        ScriptedReply("Action: search[a]", expect="Error: TIMEOUT: late\n\n3 turns left"),
        ScriptedReply("Action: add {}", expect="Observation: Error: no words"),
        ScriptedReply("Action: finish[b]", expect="search failed."),
    ]
    played = play(script, [failed, CallResult("", "no words")], [failed], specs=[SEARCH])
    assert [error for _, error in steps(played)] == ["TIMEOUT: late", "no words", "TIMEOUT: late", None]
    assert played.kinds == []


def test_the_limit_of_steps_is_an_option_and_a_failure_of_the_agent():
    played = play(["Action: search[it]"] * 100, ["here"] * 100, steps="100")
    assert (played.answer, len(steps(played))) == (None, 100)
    assert played.failures == [("agent", "no finish within 100 steps")]
    assert ReAct(models=ScriptedChatModel([])).options.steps == 20
    with pytest.raises(InvalidInputError, match="steps"):
        ReAct(models=ScriptedChatModel([]), steps=0)


def loop(script, search=(), **more):
    model = ScriptedChatModel(script)
    tools = ScriptedToolbox([SEARCH], {"search": search})
    policy = ReAct(models=model)
    run = AgentRun(task="task", tools=tools, models=policy.models, options=policy.options)
    given = {"role": "executor", "system": "do it", "question": "?", "tools": tools, "steps": 20, **more}
    return asyncio.run(react_loop(run, **given)), model


def test_long_and_empty_observations():
    searches = ["Action: search[a]", "Action: search[b]", "Action: finish[c]"]
    played = play(searches, ["y" * 5000, " "], observation_chars=100)
    cut = "y" * 100 + "\n[cut: 4,900 more characters]"
    assert [step["observation"] for step in played.structure["steps"][:2]] == [cut, "(no output)"]


@pytest.mark.parametrize(
    ("arguments", "answer", "problem"),
    [
        ('{"answer": 4}', "4", None),
        ('{"answer": ["a"]}', '["a"]', None),
        ('{"result": "x"}', "x", None),
        ("{}", "", None),
        ('{"answer": null}', "", None),
        ('{"problem": "p"}', "p", "p"),
        ('{"answer": null, "problem": " no such key "}', "", "no such key"),
        ('{"answer": "4", "problem": "the rest is missing"}', "4", "the rest is missing"),
        ('{"answer": "4", "problem": "None."}', "4", None),
    ],
)
def test_answers_are_texts_and_what_is_missing_can_be_said_where_the_caller_wants_to_know(arguments, answer, problem):
    assert loop([f"Action: finish {arguments}"])[0].answer == answer
    result, _ = loop([f"Action: finish {arguments}"], may_fail=True)
    assert (result.answer, result.problem) == (answer if problem is None else None, problem)
    assert result.steps[-1].error == problem


def test_native_calls():
    ignored = ("x3", "search", '{"query": "ignored"}')
    script = [
        native(("x1", "search", '{"query": "a"}'), text="<think>hm</think>I look."),
        native(("x2", "add", '{"first": 1, "second": 2}'), ignored),
        native(("x4", "finish", '{"answer": "3"}')),
    ]
    played = play(script, ["two"], ["3"], is_native=True)
    assert played.answer == "3"
    assert played.calls == [("search", {"query": "a"}), ("add", {"first": 1, "second": 2})]
    first = played.model.requests[0]
    assert [tool["function"]["name"] for tool in first.tools] == ["search", "add", FINISH_TOOL.name]
    assert first.stop == ()
    both = (ToolCall("x2", "add", '{"first": 1, "second": 2}'), ToolCall(*ignored))
    assert played.messages(2)[2:] == (
        ChatMessage("assistant", "I look.", tool_calls=(ToolCall("x1", "search", '{"query": "a"}'),)),
        ChatMessage("tool", "two", tool_call_id="x1"),
        ChatMessage("assistant", "", tool_calls=both),
        ChatMessage("tool", "3", tool_call_id="x2"),
        ChatMessage("tool", IGNORED, tool_call_id="x3"),
    )


def test_native_calls_that_are_broken_leave_a_conversation_that_endpoints_take():
    script = [
        native(("same", "search", '{"query": "cut'), ("same", "search", "{}")),
        native(("", "no such tool!", '{"a": 1}')),
        native(*((f"id{number}", "search", "[1]") for number in range(100))),
        native(("x", "finish", "null")),
    ]
    played = play(script, is_native=True)
    assert played.answer == ""
    assert [action for action, _ in steps(played)] == ["search", "no such tool!", "search", "finish"]
    assert played.kinds == ["malformed_reply", "invalid_action", "invalid_action", "malformed_reply", "invalid_action"]
    open_calls: list[str] = []
    for message in played.messages(-1)[2:]:
        if message.role == "assistant":
            assert not open_calls
            open_calls = [call.id for call in message.tool_calls]
            assert len(set(open_calls)) == len(open_calls) <= 8
            assert all(open_calls)
            for call in message.tool_calls:
                assert isinstance(json.loads(call.arguments), dict)
                assert call.name.replace("_", "").isalnum()
        else:
            assert message.tool_call_id == open_calls.pop(0)


def test_a_native_reply_without_calls_is_read_as_text():
    script = ["Action: search[a]", "well", native(("x", "search", '{"query": "b"}')), native(("y", "finish", "{}"))]
    played = play(script, ["1", "2"], is_native=True)
    assert played.answer == ""
    assert played.calls == [("search", {"query": "a"}), ("search", {"query": "b"})]
    assert "Call exactly one of the functions" in played.told(2)


def test_examples_are_an_option(tmp_path):
    (tmp_path / "mine.md").write_text("Like so: ${it}.", encoding="utf-8")
    for examples, shown in (("default", True), ("none", False), (str(tmp_path / "mine.md"), False)):
        text = play(["Action: finish[x]"], examples=examples).system(0)
        called = play([native(("a", "finish", "{}"))], is_native=True, examples=examples).system(0)
        assert ("greenhouse_reader" in text) is ("greenhouse_reader" in called) is shown
        assert called.endswith("Like so: ${it}.") is examples.endswith("mine.md")
        assert "Action:" not in called, "they are told in words: written actions would be no calls"
    (tmp_path / "mine.md").rename(tmp_path / "retry.md").write_text("Again! ${problem}", encoding="utf-8")
    assert play(["what?", "Action: finish[x]"], templates=tmp_path).told(1) == "Again! the reply holds no action"


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_nonsense_uses_no_turn_and_the_step_limit_ends_it(protocol):
    record = play_scripted(ReAct(models=scripted(*["what?"] * 6), steps=3), protocol=protocol)
    assert (record["ended_by"], record["agent"]["ended_by"]) == ("stopped", "gave_up")
    assert len(record["steps"]) == 1  # the agent's own stopping
    assert record["agent"]["first_failure"]["component"] == "agent"
    assert record["agent"]["counters"]["malformed_replies"] == 6


def test_the_step_in_which_the_environment_ends_it_is_there_too():
    model = scripted(*['Action: tool_search {"query": "x"}'] * 3)
    record = play_scripted(ReAct(models=model), max_turns=2)
    assert (record["ended_by"], record["agent"]["ended_by"]) == ("turns", "environment")
    taken = record["agent"]["structure"]["steps"]
    assert len(taken) == len(record["steps"]) == 3
    assert (taken[-1]["action"], taken[-1]["error"]) == ("tool_search", "the episode ended")
    assert "no turns are left" in taken[-1]["observation"]
