"""What the planner's marks mean, and what is an invalid format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import ChatReply
from resilisim.policies.llm.agents.rp_react import (
    BEGIN_QUERY,
    BEGIN_RESULT,
    END_QUERY,
    END_RESULT,
    Query,
    identity,
    read_move,
    result_block,
    written,
)
from resilisim.policies.llm.reading import Finish, Unreadable
from tests.guards import no_endless_work

MARKS = [BEGIN_QUERY, END_QUERY, BEGIN_RESULT, END_RESULT, "<Finish>", "</Finish>", "<think>", "</think>"]


def ask(question: str) -> str:
    return f"{BEGIN_QUERY}{question}{END_QUERY}"


@pytest.mark.parametrize(
    ("text", "question", "thought"),
    [
        (ask("find a reader"), "find a reader", ""),
        (f"First I look.\n{ask(' find a reader ')}\n", "find a reader", "First I look."),
        (f"<think>{ask('no')}</think>\nI look. {ask('yes')}", "yes", "I look."),
        (f"thinking</think>{ask('yes')}", "yes", ""),
        (f"<think>I ask while I think. {ask('yes')}", "yes", "I ask while I think."),
        (ask("one") + ask("two"), "one", ""),
        ("".join(ask(f"number {number}") for number in range(10)), "number 0", ""),
        (f"{ask('one')}{BEGIN_RESULT}invented{END_RESULT}<Finish>invented</Finish>", "one", ""),
        ("<|BEGIN_SEARCH_QUERY|>loud<|END_SEARCH_QUERY|>", "loud", ""),
        (ask("two\nlines"), "two\nlines", ""),
    ],
)
def test_the_first_sub_question_is_asked(text, question, thought):
    assert read_move(text) == Query(question, thought)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<Finish>42</Finish>", "42"),
        ("<think>all is done</think><Finish> It is 42. </Finish>", "It is 42."),
        ("<finish>42</FINISH>", "42"),
        ("<Finish></Finish>", ""),
        (f"<Finish>42</Finish>{ask('more?')}", "42"),
        ("<think>I never stop thinking <Finish>42</Finish>", "42"),
    ],
)
def test_the_end_is_read(text, answer):
    assert read_move(text) == Finish(answer)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the reply is empty"),
        ("<think>hm</think>", "the reply is empty"),
        ("<think>never closed", "the reply is empty"),
        ("I would search.", "neither a sub-question nor a final answer"),
        (f"{BEGIN_QUERY}open", f"the mark {BEGIN_QUERY} is never closed"),
        (f"{BEGIN_QUERY}open<Finish>42</Finish>", f"the mark {BEGIN_QUERY} is never closed"),
        ("<Finish>open", "the mark <Finish> is never closed"),
        (f"closed{END_QUERY}", "neither"),
        (ask(""), "the sub-question is empty"),
        (ask("  \n "), "the sub-question is empty"),
        (f"{BEGIN_QUERY}a{ask('b')}", "a sub-question begins within another one"),
        (ask("x" * 5_000), "the sub-question has 5,000 characters; at most 4,000"),
        ("<tool_call>reader</tool_call>" * 10, "neither"),
        (f"{BEGIN_RESULT}mine{END_RESULT}", "neither"),
        (f"<think>{ask('a')}</think>", "the reply is empty"),
    ],
)
def test_anything_else_is_an_invalid_format(text, problem):
    move = read_move(text)
    assert isinstance(move, Unreadable)
    assert problem in move.problem


@pytest.mark.parametrize("unit", [*MARKS, "x", ask("q") + "<think>", "\u0130<think>"])
def test_of_a_megabyte_little_is_kept(unit):
    text = unit * (1_000_000 // len(unit))
    with no_endless_work():
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
        ChatReply(f"<think>Why? {END_QUERY}</think>So.{ask('q')} more"),
        ChatReply(f"Why? {END_QUERY}</think>So.{ask('q')}"),
        ChatReply(f"So.{ask('q')}", thoughts=f"Why? {END_QUERY}"),
        ChatReply(f"<think>Why? [end_search_query]\nSo.{ask('q')}"),
    ],
)
def test_thoughts_stay_in_the_conversation_as_plain_words(reply):
    assert written(read_move(reply.text), reply) == f"Why? [end_search_query]\nSo.\n{ask('q')}"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("All of it has run.\n<finish/>", "All of it has run.\n<finish/>"),
        ("Thought: It ran.\nAction: finish", "It ran."),
        ('Action: finish {"answer": "3 rows"}', "3 rows"),
        ("finish()", ""),
        ("Final Answer: 3 rows", "3 rows"),
    ],
)
def test_every_form_of_the_end_ends_it(text, answer):
    assert read_move(text) == Finish(answer)


def test_a_promise_to_end_is_no_end_and_a_question_comes_first():
    assert isinstance(read_move("When everything is done I will write <finish/> for you."), Unreadable)
    assert read_move(f"I will write <finish/> later. {ask('q')}").question == "q"


def test_of_long_thoughts_the_end_stays():
    kept = written(read_move(ask("q")), ChatReply(ask("q"), thoughts="a" * 9_000 + "so q"))
    assert kept.endswith(f"aso q\n{ask('q')}")
    assert 8_000 < len(kept) < 8_200


@given(st.lists(st.sampled_from([*MARKS, "<|End_Search_Result|>", "a", " ", "</finish >"]), max_size=20).map("".join))
def test_marks_within_a_result_lose_their_form(text):
    block = result_block(text)
    inner = block.removeprefix(BEGIN_RESULT).removesuffix(END_RESULT)
    assert "<|" not in inner
    assert "finish>" not in inner.lower()
    assert isinstance(read_move(inner), Unreadable)


def test_the_rest_of_a_result_stays_as_it_is():
    assert result_block('{"a": [1 < 2]} </b>') == f'{BEGIN_RESULT}{{"a": [1 < 2]}} </b>{END_RESULT}'


def test_sub_questions_are_the_same_whatever_their_case_spacing_and_end():
    assert identity("Find  a\nreader.") == identity("find a reader") != identity("find a writer")
