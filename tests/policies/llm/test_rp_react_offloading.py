"""Long outputs: stored whole in variables that Python really reads, seen by their beginning."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat.types import estimated_tokens
from resilisim.policies.llm.agents.rp_react import first_tokens
from resilisim.policies.llm.tools import ToolResult
from tests.policies.llm.rp_react_scripts import act, ask, done, end, play

ROWS = {"rows": [{"n": number, "name": f"row {number}"} for number in range(200)]}
LONG = ToolResult(f"reader ran.\nOutput: {json.dumps(ROWS)}", value=ROWS, progress="5 turns left")
SHORT = ToolResult("reader ran.", value={"rows": []})
COUNT = "print(len(output_1['rows']), sum(row['n'] for row in output_1['rows']))"


def test_a_long_output_is_stored_whole_and_python_reads_it():
    played = play(
        [
            ask("Run reader."),
            act("tool_call", name="reader"),
            act("python", "All of it is in the variable output_1 (dict)", code=COUNT, variables=["output_1"]),
            done("200 rows, sum 19900", expect="Observation: 200 19900"),
            end("ok"),
        ],
        {"tool_call": [LONG]},
    )
    assert played.answer == "ok"
    shown = played.told(2)
    assert shown.startswith("Observation: " + LONG.text[:400])
    assert LONG.text[:401] not in shown
    assert "analyse it with Python code on output_1" in shown
    assert shown.endswith("5 turns left")
    (event,) = played.events("offload")
    assert event["text"] == "output_1"
    assert event["details"]["tokens"] == estimated_tokens(LONG.text)
    assert event["details"]["tool"] == "tool_call"
    assert played.run.structure["variables"][0]["name"] == "output_1"
    assert played.run.transcript.counters["python_runs"] == 1


def test_the_planner_gets_the_same_preview_name_and_warning():
    played = play(
        [ask("Run reader."), act("tool_call", name="reader"), done("It ran."), end("ok")], {"tool_call": [LONG]}
    )
    told = played.told(3)
    assert told.startswith("<|begin_search_result|>It ran.\n\n" + LONG.text[:400])
    assert "in the variable output_1 (dict)" in told
    assert "analyse it with Python code on output_1" in told
    assert "row 150" not in told


def test_variables_live_for_the_whole_task():
    played = play(
        [
            ask("Run reader."),
            act("tool_call", name="reader"),
            act("python", code="total = 7"),
            done("in output_1"),
            ask("Count the rows of output_1 with Python."),
            act("python", code=COUNT),
            act("python", "200 19900", code="total + len(output_1['rows'])"),
            done("207", expect="Observation: 207"),
            end("ok", expect="<|begin_search_result|>207<|end_search_result|>"),
        ],
        {"tool_call": [LONG]},
    )
    assert played.answer == "ok"
    assert "Stored outputs:\n- output_1 (dict, from tool_call)" in played.system(5)
    # The scratchpad is a new one all the same.
    assert len(played.model.requests[5].messages) == 2


def test_short_outputs_and_failures_are_not_stored():
    failure = ToolResult("reader failed. " + "words " * 500, "TIMEOUT: slow")
    played = play(
        [
            ask("Run reader."),
            act("tool_call", name="reader"),
            act("tool_call", "Observation: reader ran.", name="reader"),
            done("no", expect="words words"),
            end("ok"),
        ],
        {"tool_call": [SHORT, failure]},
    )
    assert played.events("offload") == []
    assert "variables" not in played.run.structure
    assert played.run.structure["subquestions"][0]["steps"][1]["error"] == "TIMEOUT: slow"


@pytest.mark.parametrize(
    ("options", "length", "shown"),
    [
        ({}, 4_000, None),
        ({}, 4_001, 400),
        ({"offload_tokens": 100}, 401, 400),
        ({"offload_tokens": 2, "preview_tokens": 1}, 9, 4),
    ],
)
def test_threshold_and_preview_are_in_tokens(options, length, shown):
    played = play(
        [ask("a"), act("tool_call", name="b"), done("c"), end("ok")], {"tool_call": ["x" * length]}, **options
    )
    assert len(played.events("offload")) == (shown is not None)
    assert f"{'x' * (shown or length)}\n" in played.told(2) + "\n"
    assert "x" * ((shown or length) + 1) not in played.told(2)


def test_what_the_library_says_stays_whole_also_for_later_questions():
    info = ToolResult("reader reads. " * 500 + "Dependencies (run these first): finder")
    found = ToolResult("1. reader: " + "z" * 5_000, value=[{"name": "reader"}])
    failure = ToolResult("reader failed. " + "words " * 900 + "the end", "TIMEOUT: slow")
    played = play(
        [
            ask("a"),
            act("tool_info", name="reader"),
            act("tool_search", "Dependencies (run these first): finder", query="b"),
            act("tool_call", "zzzz", name="reader"),
            done("c", "words the end"),
            end("ok"),
        ],
        {"tool_info": [info], "tool_search": [found], "tool_call": [failure]},
    )
    assert played.events("offload") == []


def test_earlier_answers_are_repeated_as_far_as_they_would_be_shown():
    info = ToolResult("reader reads. " * 200 + "Dependencies (run these first): finder")
    played = play(
        [ask("a"), act("tool_info", name="reader"), done("c"), ask("b"), done("d"), end("ok")], {"tool_info": [info]}
    )
    assert "Dependencies (run these first): finder" in played.system(4)


def test_only_the_listed_tools_are_stored():
    played = play(
        [ask("a"), act("tool_search", query="b"), act("tool_call", name="b"), act("reader"), done("c"), end("ok")],
        {"tool_call": [LONG], "tool_search": ["y" * 900], "reader": [LONG]},
        offload_tools="tool_call",
    )
    # A library's tool that is called by its own name is run by tool_call.
    assert [(event["text"], event["details"]["tool"]) for event in played.events("offload")] == [
        ("output_1", "tool_call"),
        ("output_2", "reader"),
    ]
    assert "y" * 900 in played.told(2)


def test_words_are_stored_as_text_where_there_is_no_value_or_words_say_more():
    search = ToolResult("1. reader: " + "z" * 500, value=[{"name": "reader"}])
    played = play(
        [
            ask("a"),
            act("tool_search", query="b"),
            act("python", "output_1 (str)", code="print(output_1[-5:], len(output_1))"),
            done("c", expect="zzzzz 511"),
            end("ok"),
        ],
        {"tool_search": [search]},
        offload_tools="tool_search",
        offload_tokens=100,
    )
    assert played.answer == "ok"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "python needs a text 'code'"),
        ({"code": "  "}, "python needs a text 'code'"),
        ({"code": 5}, "python needs a text 'code'"),
        ({"code": "1", "more": 2}, "takes 'code' and 'variables' and nothing else"),
        ({"code": "1", "variables": {"a": 1}}, "'variables' of python is a list of names"),
        ({"code": "1", "variables": [1]}, "'variables' of python is a list of names"),
        ({"code": "1", "variables": ["rows"]}, "there is no variable 'rows'; stored outputs: none yet"),
        ({"code": "1", "variables": "rows"}, "there is no variable 'rows'"),
    ],
)
def test_python_says_what_is_wrong_with_its_arguments(arguments, problem):
    played = play([ask("a"), act("python", **arguments), done("b", expect=problem), end("ok")])
    assert played.answer == "ok"
    assert "python_runs" not in played.run.transcript.counters


def test_python_shows_errors_cut_output_and_that_there_was_none():
    played = play(
        [
            ask("a"),
            act("python", code="1/0"),
            act("python", "ZeroDivisionError", code="print('x' * 5000)"),
            act("python", "[output cut: the first 2,000 of 5,001", code="x = 1"),
            done("b", expect="(no output)"),
            end("ok"),
        ]
    )
    steps = played.run.structure["subquestions"][0]["steps"]
    assert steps[0]["error"] == "ZeroDivisionError: division by zero"
    assert steps[2]["error"] is None


def test_after_a_kill_stored_outputs_are_there_again_and_the_rest_is_gone():
    played = play(
        [
            ask("a"),
            act("tool_call", name="reader"),
            act("python", code="mine = 1"),
            act("python", code="while True: pass"),
            act("python", "Put in again: output_1.", code=COUNT),
            act("python", "200 19900", code="mine"),
            done("b", expect="NameError"),
            end("ok"),
        ],
        {"tool_call": [LONG]},
        block_seconds=0.1,
    )
    assert played.answer == "ok"
    assert played.run.transcript.counters["sandbox_restarts"] == 1


def test_an_output_beyond_the_memory_is_an_error_of_python_only():
    huge = ToolResult("w" * 20_000_000)
    played = play(
        [
            ask("a"),
            act("tool_call", name="reader"),
            act("python", code="len(output_1)"),
            act("python", "output_1 does not fit into the sandbox", code="1 + 1"),
            done("b", expect="Observation: 2"),
            end("ok"),
        ],
        {"tool_call": [huge]},
        memory_mib=8,
    )
    assert played.answer == "ok"


@given(st.text(st.characters(codec="utf-8"), max_size=400), st.integers(1, 50))
def test_previews_are_beginnings_of_the_right_length(text, tokens):
    preview = first_tokens(text, tokens)
    assert text.startswith(preview)
    assert estimated_tokens(preview) <= tokens
    assert (preview == text) == (estimated_tokens(text) <= tokens)


def test_python_reaches_no_tool():
    played = play([ask("a"), act("python", code="tool_call('x')"), done("b", expect="NameError"), end("ok")])
    assert played.toolbox.calls == []
