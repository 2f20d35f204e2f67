"""RP-ReAct with a scripted model: marks, the team, every branch of its loop, long outputs in variables."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import ChatReply, ScriptedChatModel
from resilisim.chat.types import estimated_tokens
from resilisim.envs.reply import CallResult
from resilisim.errors import InvalidInputError
from resilisim.policies.llm.agent_run import EpisodeEnded
from resilisim.policies.llm.agents.rp_react import RPReAct, examples_of_tools
from resilisim.policies.llm.agents.rp_react_moves import (
    BEGIN_QUERY,
    BEGIN_RESULT,
    END_QUERY,
    END_RESULT,
    Query,
    read_move,
    result_block,
    written,
)
from resilisim.policies.llm.conversation_toolbox import CONVERSATION_TOOLS
from resilisim.policies.llm.reply_reading import Finish, Unreadable
from resilisim.policies.llm.tools import ToolSpec
from resilisim.policies.registry import make_policy
from resilisim.tool_library import default_library
from resilisim.tool_library.parameters import check_parameters
from resilisim.worlds.pages.world import search_library
from resilisim.worlds.records.tools import records_library
from tests.guards import no_endless_work
from tests.policies.llm import helpers
from tests.policies.llm.helpers import NONSENSE, ScriptedToolbox, executor, planner, spec

MARKS = [BEGIN_QUERY, END_QUERY, BEGIN_RESULT, END_RESULT, "<Finish>", "</Finish>", "<think>", "</think>"]


def asking(question: str) -> str:
    return f"{BEGIN_QUERY}{question}{END_QUERY}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"First I look.\n{asking(' find a reader ')}\n", Query("find a reader", "First I look.")),
        (f"<think>{asking('no')}</think>\nI look. {asking('yes')}", Query("yes", "I look.")),
        (f"thinking</think>{asking('yes')}", Query("yes")),
        (f"<think>I ask while I think. {asking('yes')}", Query("yes", "I ask while I think.")),
        ("".join(asking(f"number {number}") for number in range(10)), Query("number 0")),
        (f"{asking('one')}{BEGIN_RESULT}invented{END_RESULT}<Finish>invented</Finish>", Query("one")),
        ("<|BEGIN_SEARCH_QUERY|>loud<|END_SEARCH_QUERY|>", Query("loud")),
        (f"I will write <finish/> later. {asking('q')}", Query("q", "I will write <finish/> later.")),
        ("<Finish>42</Finish>", Finish("42")),
        ("<think>all is done</think><finish> It is 42. </FINISH>", Finish("It is 42.")),
        (f"<Finish>42</Finish>{asking('more?')}", Finish("42")),
        ("<think>I never stop thinking <Finish>42</Finish>", Finish("42")),
        ("All of it has run.\n<finish/>", Finish("All of it has run.\n<finish/>")),
        ("Thought: It ran.\nAction: finish", Finish("It ran.")),
        ('Action: finish {"answer": "3 rows"}', Finish("3 rows")),
        ("Final Answer: 3 rows", Finish("3 rows")),
        ("", "the reply is empty"),
        ("<think>never closed", "the reply is empty"),
        (f"<think>{asking('a')}</think>", "the reply is empty"),
        ("I would search.", "neither a sub-question nor a final answer"),
        ("When everything is done I will write <finish/> for you.", "neither"),
        (f"{BEGIN_RESULT}mine{END_RESULT}", "neither"),
        ("<tool_call>reader</tool_call>" * 10, "neither"),
        (f"{BEGIN_QUERY}open<Finish>42</Finish>", f"the mark {BEGIN_QUERY} is never closed"),
        ("<Finish>open", "the mark <Finish> is never closed"),
        (asking("  \n "), "the sub-question is empty"),
        (f"{BEGIN_QUERY}a{asking('b')}", "a sub-question begins within another one"),
        (asking("x" * 5_000), "the sub-question has 5,000 characters; at most 4,000"),
    ],
)
def test_a_reply_is_the_first_question_the_end_or_an_invalid_format(text, expected):
    move = read_move(text)
    if isinstance(expected, str):
        assert isinstance(move, Unreadable)
        assert expected in move.problem
    else:
        assert move == expected


@pytest.mark.parametrize("unit", [*MARKS, "x", asking("q") + "<think>", "\u0130<think>"])
def test_of_a_long_text_little_is_kept(unit):
    text = unit * (250_000 // len(unit))
    with no_endless_work(5.0):
        assert len(written(read_move(text), ChatReply(text, thoughts=text))) < 15_000


@given(st.lists(st.sampled_from([*MARKS, "a", " ", "\n", "\ud800", "\u0130"]), max_size=25).map("".join))
def test_nothing_that_a_model_writes_raises(text):
    move = read_move(text)
    kept = written(move, ChatReply(text, thoughts=text))
    kept.encode()
    if isinstance(move, Query):
        assert move.question.strip() == move.question != ""
        again = read_move(kept)
        assert "think>" in kept or (isinstance(again, Query) and again.question == move.question)


@pytest.mark.parametrize(
    "reply",
    [
        ChatReply(f"<think>Why? {END_QUERY}</think>So.{asking('q')} more"),
        ChatReply(f"Why? {END_QUERY}</think>So.{asking('q')}"),
        ChatReply(f"So.{asking('q')}", thoughts=f"Why? {END_QUERY}"),
        ChatReply(f"<think>Why? [end_search_query]\nSo.{asking('q')}"),
    ],
)
def test_thoughts_stay_in_the_conversation_as_plain_words_and_of_long_ones_the_end(reply):
    assert written(read_move(reply.text), reply) == f"Why? [end_search_query]\nSo.\n{asking('q')}"
    kept = written(read_move(asking("q")), ChatReply(asking("q"), thoughts="a" * 9_000 + "so q"))
    assert kept.endswith(f"aso q\n{asking('q')}")
    assert 8_000 < len(kept) < 8_200


@given(st.lists(st.sampled_from([*MARKS, "<|End_Search_Result|>", "a", " ", "</finish >"]), max_size=20).map("".join))
def test_marks_within_a_result_lose_their_form(text):
    block = result_block(text)
    inner = block.removeprefix(BEGIN_RESULT).removesuffix(END_RESULT)
    assert "<|" not in inner
    assert "finish>" not in inner.lower()
    assert isinstance(read_move(inner), Unreadable)


TWO = "search:tool_search+tool_info;run:tool_call"


@pytest.mark.parametrize("text", ["", ";", "search", "search:", ":tool_search", "a b:x", "1a:x", "a:x;a:y", "a:+"])
def test_what_cannot_be_read_is_refused_when_the_policy_is_made(text):
    with pytest.raises(InvalidInputError, match="executors="):
        RPReAct(models=ScriptedChatModel([]), executors=text)


@pytest.mark.parametrize("options", [{"executors": "s:tool_serch"}, {"offload_tools": "tool_info+tool_serch"}])
def test_an_unknown_tool_is_refused_when_the_policy_is_made(options):
    (option,) = options
    with pytest.raises(InvalidInputError, match="did you mean 'tool_search'") as refusal:
        RPReAct(models=ScriptedChatModel([]), **options)
    assert f"option {option}" in str(refusal.value)
    with pytest.raises(InvalidInputError, match="did you mean 'tool_search'"):
        make_policy(f"rp-react[{option}={options[option]}]", models=ScriptedChatModel([]))


def test_tools_of_another_toolbox_can_be_named():
    model = ScriptedChatModel([])
    for no_tools in ("tool_search", 3, ["tool_search"]):
        with pytest.raises(InvalidInputError, match="tools="):
            RPReAct(models=model, tools=no_tools)
    options = {"executors": "a:load_db", "offload_tools": "load_db"}
    tools = [spec("load_db", "name")]
    assert RPReAct(models=model, tools=tools, **options).options.offload_tools == "load_db"
    with pytest.raises(InvalidInputError, match="unknown tool 'load_db'"):
        RPReAct(models=model, **options)
    offered = {"models": model, "library": default_library()}
    assert make_policy("rp-react[offload_tools=file_operations_reader]", offered=offered)
    with pytest.raises(InvalidInputError, match="did you mean 'file_operations_reader'"):
        make_policy("rp-react[offload_tools=file_operations_readr]", offered=offered)
    with pytest.raises(InvalidInputError, match=r"unknown tool 'tool_search'.*expected one of load_db"):
        RPReAct(models=model, tools=tools, executors="a:tool_search")


def ask(question, expect=""):
    return planner(f"<think>I wonder.</think>{asking(question)}", expect)


def end(answer, expect=""):
    return planner(f"<think>done</think><Finish>{answer}</Finish>", expect)


def act(name, expect="", /, **arguments):
    return executor(f"Thought: I act.\nAction: {name} {json.dumps(arguments)}", expect)


def done(answer, expect=""):
    return act("finish", expect, answer=answer)


def play(script, answers=None, specs=CONVERSATION_TOOLS, **options):
    policy = RPReAct(models=ScriptedChatModel(script), **options)
    return helpers.play(policy, ScriptedToolbox(specs, answers or {}), "Count the rows.")


def subquestions(played, field):
    return [asked[field] for asked in played.structure["subquestions"]]


def test_a_whole_task():
    played = play(
        [
            ask("Find a tool that reads rows.", "Count the rows."),
            act("tool_search", "Find a tool that reads rows.", query="read rows"),
            done("reader", "Observation: 1. reader"),
            ask("Run it.", "<|begin_search_result|>reader<|end_search_result|>"),
            act("tool_call", "Run it.", name="reader"),
            done("2 rows", "Observation: secret words"),
            end("There are 2 rows.", "<|begin_search_result|>2 rows<|end_search_result|>"),
        ],
        {"tool_search": ["1. reader"], "tool_call": ["secret words"]},
    )
    assert played.answer == "There are 2 rows."
    for words in ("- find tools for a need", "run Python code", "greenhouse", "at most 10 sub-questions"):
        assert words in played.system(0), "capabilities in plain English"
    assert "tool_search(" not in played.system(0)
    for signature in ("tool_search(query: string)", "tool_info(name: string)", "python(code: string"):
        assert f"Example of {signature}" in played.system(1)
    assert played.calls == [("tool_search", {"query": "read rows"}), ("tool_call", {"name": "reader"})]
    assert subquestions(played, "question") == ["Find a tool that reads rows.", "Run it."]
    assert subquestions(played, "result") == ["reader", "2 rows"]
    without = play([ask("a"), done("y" * 150_000), end("ok")], examples="none")
    assert "greenhouse" not in without.system(0) + without.system(1)
    assert len(without.told(2)) < 9_000, "a long answer does not fill the planner's conversation"
    assert all((request.temperature, request.top_p) == (0.6, 1.0) for request in played.model.requests)
    conversation = "\n".join(message.content for message in played.messages(-1))
    assert "secret" not in conversation, "the planner sees neither actions nor observations"
    assert "I wonder" in conversation, "its own thoughts stay, as in the paper's scratchpad"
    assert "(none)\n\n(end of the earlier questions)" in played.system(1)
    earlier = (
        'Question: Find a tool that reads rows.\nAction: tool_search {"query": "read rows"}\n  brought: 1. reader\n'
    )
    assert f"{earlier}Result: reader\n\n(end" in played.system(4)
    assert [message.content for message in played.messages(4)[1:]] == ["Run it."], "executors begin anew"


MORE_NONSENSE = ["<|begin_search_query|>open", "<Finish>open", asking(""), BEGIN_QUERY * 50_000]


@pytest.mark.parametrize("nonsense", [*NONSENSE.values(), *MORE_NONSENSE])
def test_an_invalid_format_is_told_and_uses_a_step(nonsense):
    script = [planner(nonsense), planner("?", "Invalid format: "), end("ok", "You have 1 more replies")]
    played = play(script, steps=3)
    assert played.answer == "ok"
    assert played.counters == {"malformed_replies": 2}
    assert played.longest < 20_000


def test_a_result_that_the_planner_invents_is_cut_off():
    invented = f"{asking('a')}{result_block('invented')}<Finish>invented</Finish>"
    played = play([planner(invented), done("real"), end("ok", result_block("real"))])
    assert played.answer == "ok"
    assert played.model.requests[0].stop == (BEGIN_RESULT,)
    assert all("invented" not in message.content for message in played.messages(-1))


def test_limits_are_those_of_the_paper_and_the_calls_suffice_for_them():
    options = RPReAct(models=ScriptedChatModel([])).options
    assert (options.steps, options.executor_steps, options.subquestions, options.preview_tokens) == (10, 10, 10, 100)
    assert (options.executors, options.offload_tools, options.offload_tokens) == ("all", "all", 1_000)
    assert (options.temperature, options.top_p, options.block_seconds, options.memory_mib) == (0.6, 1.0, 5.0, 64)
    assert options.max_llm_calls >= options.steps + options.subquestions * options.executor_steps * 2
    played = play([planner("?")] * 10)
    assert (played.answer, played.failures) == (None, [("planner", "no final answer within 10 steps")])


def test_a_sub_question_that_was_asked_or_is_one_too_many_is_refused():
    again = "refused: this is the same as sub-question 1, whose result you have"
    script = [ask("Run reader."), done("ran"), ask("run \n READER", "ran"), ask("other", again), done("b"), ask("more")]
    played = play([*script, end("ok", "refused: all 2 sub-questions are used")], subquestions=2)
    assert played.answer == "ok"
    assert played.counters == {"subquestions": 2, "refused_subquestions": 2}
    assert len(played.events("invalid_action")) == 2


NO_FINISH = [act("tool_search", query="x")] * 2
NO_FINISH_TEXT = "no finish within 2 steps"
SHORT = {"answers": {"tool_search": ["nothing"] * 2}, "executor_steps": 2}


def test_an_executor_without_an_answer_gives_an_empty_result():
    empty = play([ask("a"), done("  "), end("ok", "the executor failed")])
    assert empty.failures == [("executor", "finish with an empty answer")], "nothing made it good"
    nonsense = [line for text in [*NONSENSE.values(), "Action: tool_call {'a"] for line in [executor(text)] * 2]
    played = play([ask("a"), *nonsense[:-1], end("ok", "executor failed")], executor_steps=10)
    assert played.counters["malformed_replies"] == 19, "it uses its own steps"
    played = play([ask("a"), *NO_FINISH, ask("b", "executor failed"), done("b"), end("ok")], **SHORT)
    assert played.answer == "ok"
    assert played.told(3).startswith("<|begin_search_result|><|end_search_result|>\nThere is no result")
    assert subquestions(played, "result") == ["", "b"]
    assert len(subquestions(played, "steps")[0]) == 2
    assert played.failures == [], "the second sub-question made it good"
    assert [event["text"] for event in played.events("warning")] == [NO_FINISH_TEXT]
    assert "Result: (the executor failed)" in played.system(4)
    assert "If nothing stands between the marks of a result, the executor failed" in played.system(0)


@pytest.mark.parametrize(
    ("script", "failures"),
    [
        ([ask("a"), *NO_FINISH, ask("b"), done("fine"), planner("?")], ["planner"]),
        ([ask("a"), *NO_FINISH, ask("b"), done(""), planner("?")], ["executor", "planner"]),
        ([ask("a"), *NO_FINISH, end("ok")], ["executor"]),  # whether the answer is right is judged elsewhere
    ],
)
def test_the_end_is_put_down_to_the_first_failure_that_no_later_sub_question_made_good(script, failures):
    texts = {"planner": "no final answer within 3 steps", "executor": NO_FINISH_TEXT}
    assert play(script, steps=3, **SHORT).failures == [(component, texts[component]) for component in failures]


@pytest.mark.parametrize("repaired", [False, True])
def test_an_episode_that_ends_from_outside_leaves_its_structure_and_is_put_down_to_an_open_failure(repaired):
    repair = [ask("b"), done("fine")] if repaired else []
    script = [ask("a"), *NO_FINISH, *repair, ask("c"), act("tool_call", name="x"), act("tool_call", name="y")]
    answers = {"tool_search": ["nothing"] * 2, "tool_call": ["ran", EpisodeEnded()]}
    played = play(script, answers, executor_steps=2)
    assert played.answer is EpisodeEnded
    assert played.failures == ([] if repaired else [("executor", NO_FINISH_TEXT)])
    assert subquestions(played, "result")[-1] is None
    assert [step["observation"] for step in subquestions(played, "steps")[-1]] == ["ran", ""]


def test_several_executors_are_addressed_by_name():
    played = play(
        [
            ask("find a reader"),
            ask("search: find a reader", "does not begin with the name of an executor"),
            act("tool_call", "find a reader", name="reader"),
            act("reader", "has no tool 'tool_call'"),
            act("tool_search", "has no tool 'reader'", query="read"),
            done("reader", "1. reader"),
            ask("run: find a reader"),  # the same words to somebody else are another sub-question
            act("tool_search", query="x"),
            act("tool_call", "has no tool 'tool_search'", name="reader"),
            act("reader", "ran", source="x"),
            done("ran", "unknown tool 'reader'"),
            ask("paint: it"),
            ask("run:  ", "there is no executor 'paint', only search, run"),
            end("ok", "the sub-question is empty behind the executor's name"),
        ],
        {"tool_search": ["1. reader"], "tool_call": ["ran"]},
        executors=TWO,
    )
    assert played.answer == "ok"
    assert [name for name, _ in played.calls] == ["tool_search", "tool_call", "reader"]
    assert subquestions(played, "executor") == ["search", "run"]
    assert "Executor `search`:\n- find tools for a need" in played.system(0)
    assert "Begin each sub-question with the name" in played.system(0)
    assert "tool_call(" not in played.system(2)


ROWS = {"rows": [{"n": number, "name": f"row {number}"} for number in range(200)]}
LONG = CallResult(f"reader ran.\nOutput: {json.dumps(ROWS)}", data=ROWS, progress="5 turns left")
COUNT = "print(len(output_1['rows']), sum(row['n'] for row in output_1['rows']))"
RUN = [ask("Run reader."), act("tool_call", name="reader")]


def test_a_long_output_is_stored_whole_for_the_whole_task_and_python_reads_it():
    script = [
        *RUN,
        act("python", "All of it is in the variable output_1 (dict)", code=COUNT, variables=["output_1"]),
        act("python", "Observation: 200 19900", code="total = 7"),
        done("It ran."),
        ask("Count the rows of output_1 with Python."),
        act("python", code="print(total + len(output_1['rows']))"),
        done("207", "Observation: 207"),
        end("ok"),
    ]
    played = play(script, {"tool_call": [LONG]})
    shown, told = played.told(2), played.told(5)
    assert shown.startswith("Observation: " + LONG.text[:400])
    assert shown.endswith("5 turns left")
    assert told.startswith("<|begin_search_result|>It ran.\n\n" + LONG.text[:400])
    assert "in the variable output_1 (dict)" in told
    for text in (shown, told):  # the planner gets the same preview, name and warning
        assert LONG.text[:401] not in text
        assert "analyse it with Python code on output_1" in text
    (event,) = played.events("offload")
    assert event["text"] == "output_1"
    assert event["details"] == {"tool": "tool_call", "tokens": estimated_tokens(LONG.text)}
    assert played.structure["variables"][0]["name"] == "output_1"
    assert played.counters["python_runs"] == 3
    spared = estimated_tokens(LONG.text) - estimated_tokens(told.partition("\n\n")[2].partition("<|end")[0])
    assert played.counters["tokens_saved"] == 3 * spared > 0, "in the three calls that came after it"
    assert "Stored outputs:\n- output_1 (dict, from tool_call)" in played.system(6)
    assert len(played.messages(6)) == 2, "the scratchpad is a new one all the same"


def test_only_python_sees_what_is_stored_and_a_tool_that_runs_code_itself_is_told_apart_from_it():
    schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    specs = (*CONVERSATION_TOOLS, ToolSpec("Interpreter", "Runs code.", schema))
    script = [
        *RUN,
        act("Interpreter", code="print(len(output_1['rows']))"),
        act("Interpreter", "Interpreter cannot see the variable output_1: run this code with python", code="output_10"),
        done("It ran.", "Observation: 10"),
        end("ok"),
    ]
    played = play(script, {"tool_call": [LONG], "Interpreter": ["10"]}, specs)
    assert played.calls[1:] == [("Interpreter", {"code": "output_10"})]
    assert "hold long outputs. Interpreter cannot see them." in played.system(1)
    assert "cannot see them" not in play([ask("a"), done("b"), end("ok")], specs=CONVERSATION_TOOLS).system(1)


@pytest.mark.parametrize(
    ("options", "length", "shown"),
    [({}, 4_000, None), ({}, 4_001, 400), ({"offload_tokens": 2, "preview_tokens": 1}, 9, 4)],
)
def test_threshold_and_preview_are_in_tokens(options, length, shown):
    played = play([*RUN, done("c"), end("ok")], {"tool_call": ["x" * length]}, **options)
    assert len(played.events("offload")) == (shown is not None)
    assert f"{'x' * (shown or length)}\n" in played.told(2) + "\n"
    assert "x" * ((shown or length) + 1) not in played.told(2)


def test_failures_and_what_the_library_says_stay_whole_also_for_later_questions():
    info = CallResult("reader reads. " * 200 + "Dependencies (run these first): finder")
    found = CallResult("1. reader: " + "z" * 5_000, data=[{"name": "reader"}])
    failure = CallResult("reader failed. " + "words " * 900 + "the end", "TIMEOUT: slow")
    script = [
        ask("a"),
        act("tool_info", name="reader"),
        act("tool_search", "Dependencies (run these first): finder", query="b"),
        act("tool_call", "zzzz", name="reader"),
        *(done("c", "words the end"), ask("b"), done("d"), end("ok")),
    ]
    played = play(script, {"tool_info": [info], "tool_search": [found], "tool_call": [failure]})
    assert played.events("offload") == []
    assert "variables" not in played.structure
    assert subquestions(played, "steps")[0][2]["error"] == "TIMEOUT: slow"
    assert "Dependencies (run these first): finder" in played.system(6), "as far as they would be shown"


def test_only_the_listed_tools_are_stored_and_as_text_where_words_say_more():
    search = CallResult("1. reader: " + "z" * 500, data=[{"name": "reader"}])
    reading = act("python", "output_1 (str)", code="print(output_1[-5:], len(output_1))")
    script = [ask("a"), act("tool_search", query="b"), reading, done("c", "zzzzz 511"), end("ok")]
    assert play(script, {"tool_search": [search]}, offload_tools="tool_search", offload_tokens=100).answer == "ok"
    script = [ask("a"), act("tool_search", query="b"), act("tool_call", name="b"), act("reader"), done("c"), end("ok")]
    answers = {"tool_call": [LONG], "tool_search": ["y" * 900], "reader": [LONG]}
    played = play(script, answers, offload_tools="tool_call")
    # A library's tool that is called by its own name is run by tool_call.
    stored = [(event["text"], event["details"]["tool"]) for event in played.events("offload")]
    assert stored == [("output_1", "tool_call"), ("output_2", "reader")]
    of_library = {"library": default_library(), "offload_tools": "file_operations_reader"}
    ran = act("tool_call", name="file_operations_reader")
    assert play([ask("a"), ran, done("c"), end("ok")], {"tool_call": [LONG]}, **of_library).events("offload")
    of_library["offload_tools"] = "file_operations_writer"
    assert not play([ask("a"), ran, done("c"), end("ok")], {"tool_call": [LONG]}, **of_library).events("offload")
    assert "y" * 900 in played.told(2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "python needs a text 'code'"),
        ({"code": "1", "more": 2}, "takes 'code' and 'variables' and nothing else"),
        ({"code": "1", "variables": {"a": 1}}, "'variables' of python is a list of names"),
        ({"code": "1", "variables": ["rows"]}, "there is no variable 'rows'; stored outputs: none yet"),
    ],
)
def test_python_says_what_is_wrong_with_its_arguments(arguments, problem):
    played = play([ask("a"), act("python", **arguments), done("b", problem), end("ok")])
    assert played.answer == "ok"
    assert "python_runs" not in played.counters


def test_python_shows_errors_cut_output_and_that_there_was_none_and_reaches_no_tool():
    script = [
        ask("a"),
        act("python", code="1/0"),
        act("python", "ZeroDivisionError", code="print('x' * 5000)"),
        act("python", "[output cut: the first 2,000 of 5,001", code="x = 1"),
        act("python", "(no output)", code="tool_call('x')"),
        done("b", "NameError"),
        end("ok"),
    ]
    played = play(script)
    errors = [step["error"] for step in subquestions(played, "steps")[0]]
    assert (errors[0], errors[2]) == ("ZeroDivisionError: division by zero", None)
    assert played.calls == []


def test_after_a_kill_stored_outputs_are_there_again_and_the_rest_is_gone():
    script = [
        *RUN,
        act("python", code="mine = 1"),
        act("python", code="while True: pass"),
        act("python", "Put in again: output_1.", code=COUNT),
        act("python", "200 19900", code="mine"),
        done("b", "NameError"),
        end("ok"),
    ]
    played = play(script, {"tool_call": [LONG]}, block_seconds=0.3)
    assert (played.answer, played.counters["sandbox_restarts"]) == ("ok", 1)
    script = [
        *(*RUN, act("python", code="len(output_1)")),
        act("python", "output_1 does not fit into the sandbox", code="1 + 1"),
        *(done("b", "Observation: 2"), end("ok")),
    ]
    assert play(script, {"tool_call": [CallResult("w" * 20_000_000)]}, memory_mib=8).answer == "ok"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, ["reader", "python"]),
        ({"tool_examples": "none"}, []),
        ({"examples": "none"}, []),
        ({"examples": "none", "tool_examples": "all"}, ["reader", "python"]),
        ({"tool_examples": "python"}, ["python"]),
        ({"tool_examples": "reader+python"}, ["reader", "python"]),
    ],
)
def test_the_executor_is_shown_an_example_of_each_of_its_tools_that_has_one(options, shown, tmp_path):
    (tmp_path / "tool_examples.md").write_text(
        "Example of reader(source: string)\n\nAction: reader\n\nExample of lister()\n\nExample of python(code: text)\n"
    )
    tools = (spec("reader"), spec("writer"))
    policy = RPReAct(ScriptedChatModel([]), tools=tools, templates=str(tmp_path), **options)
    text = policy.prompts.texts["tool_examples"]
    specs = [*tools, ToolSpec("python", "Runs code.", {})]
    listed = examples_of_tools(text, specs, policy.options)
    assert [example.partition("(")[0] for example in listed] == [f"Example of {name}" for name in shown]
    assert all("Action: reader" in example for example in listed if "reader" in example)


def test_examples_ship_for_every_tool_of_the_worlds_of_the_papers_with_its_parameters():
    policy = RPReAct(ScriptedChatModel([]))
    for world_tool in (*records_library(), *search_library()):
        of_tool = ToolSpec(world_tool.name, world_tool.description, {})
        (example,) = examples_of_tools(policy.prompts.texts["tool_examples"], [of_tool], policy.options)
        signature = example.partition("\n")[0]
        assert all(
            f"{each.name}{'' if each.required else '?'}: {each.type}" in signature for each in world_tool.parameters
        )
        call = re.search(rf"Action: {world_tool.name} (\{{.*\}})", example)
        assert call is not None
        assert not check_parameters(world_tool, json.loads(call[1]), "strict")


def test_an_example_of_a_tool_that_does_not_exist_is_refused():
    with pytest.raises(InvalidInputError, match="option tool_examples"):
        RPReAct(ScriptedChatModel([]), tools=[spec("reader")], tool_examples="raeder")
