"""Plan-and-Execute's plans: references to results, and the forms of plans that are understood."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.policies.llm.agents.step_plan import MOST_STEPS, StepPlan, fill_in, read_step_plan, step_references_in
from resilisim.policies.llm.reply_reading import Unreadable
from tests.guards import no_endless_work
from tests.policies.llm.helpers import spec

NESTED = {"a": {"b": ["x", {"c": "{step_2}"}]}, "d": "no. {step_3} and {Step 4}", "e": 5}


UNDERSTOOD = [
    *("{steps_1}", "{ Steps 1 }", "{{step_1}}", "{{ step_1.output }}", "${step_1.result}", "{step1}"),
    *("{result_1}", "{Result 1}", "{results_1}", "{output_1}", "{result_of_step_1}", "{output of step 1}"),
    *("<step_1>", "<result_1>", "<output of step 1>", "$step_1", "$steps1", "$result_1", "{{outputs.step_1}}"),
    "{step_1.output.id}",
]
UNCLEAR = [
    *("{step_N}", "{step}", "{step_99999}", "{steps[0]}"),
    *("{{ steps[1].result }}", "{{ previous step }}", "{{ x.step_1 }}"),
]
OTHERS = [
    *("{output}", "{results}", "f'{result1:.2f}'", "{{ user.name }}", "{{ stepmother }}", "$5 for 1 result", "$1"),
    *("<steps>3</steps>", "<result>4</result>", "<step>", "a < step 1", "results[1]", "step 1", '{"step": 1}'),
    *("{it}", "{steps}", "step_1", "{stepwise 3}"),
]


@pytest.mark.parametrize("words", [*UNDERSTOOD, *UNCLEAR, *OTHERS])
def test_a_reference_is_understood_noticed_or_none(words):
    numbers = {1} if words in UNDERSTOOD else set()
    for value in (words, f"before {words} after", {"deep": [{"er": words}]}, {words: 1}):
        found = step_references_in(value)
        assert (found.numbers, found.unclear) == (numbers, (words,) if words in UNCLEAR else ())
    if words in UNCLEAR:
        assert fill_in({"a": words}, {"a": words})[1] == ["a: unresolved"]


def test_many_are_found_and_what_stands_in_the_data_is_none():
    assert step_references_in(NESTED).numbers == {2, 3, 4}
    assert not step_references_in([3, None])
    assert step_references_in({"a": "$step_1"}, ["it costs $step_10"])
    assert not step_references_in({"a": "$step_1"}, ["it costs $step_1."])


def test_only_what_holds_references_is_taken_from_the_model():
    resolved = {"a": {"b": ["changed", {"c": [1]}]}, "d": "no. y and z", "e": 6, "f": 7}
    filled, problems = fill_in(NESTED, resolved)
    assert filled == {"a": {"b": ["x", {"c": [1]}]}, "d": "no. y and z", "e": 5}
    assert problems == []


@pytest.mark.parametrize(
    ("resolved", "problems"),
    [
        ({}, ["a: missing", "d: missing"]),
        ({"a": {"b": ["x"]}, "d": "y"}, ["a.b[1]: missing"]),
        ({"a": {"b": ["x", {"c": None}]}, "d": " "}, ["a.b[1].c: empty", "d: empty"]),
        ({"a": {"b": ["x", {"c": "{step_2}"}]}, "d": "y {step_N}"}, ["a.b[1].c: unresolved", "d: unresolved"]),
        ({"a": {"b": ["x", {"c": {"deep": ["{step_2}"]}}]}, "d": "y"}, ["a.b[1].c: unresolved"]),
    ],
)
def test_what_is_wrong_with_a_resolution(resolved, problems):
    assert fill_in(NESTED, resolved)[1] == problems


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.just("{step_1}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=3), VALUES, max_size=3), st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
)
def test_no_reference_is_left_without_a_problem(given_arguments, resolved):
    filled, problems = fill_in(given_arguments, resolved)
    if not problems:
        assert not step_references_in(filled)
    if not step_references_in(given_arguments):
        assert (filled, problems) == (given_arguments, [])


TOOLS = (spec("fetch", "key"), spec("store", "place", what="object"))


def mappings(text: str, tools=TOOLS, taken=()) -> list[dict]:
    plan = read_step_plan(text, tools, taken)
    assert isinstance(plan, StepPlan), plan
    return [step.to_mapping() for step in plan.steps]


@pytest.mark.parametrize(
    "text",
    [
        '{"steps": ["Read it.", "Send it."]}',
        '<think>{"steps": ["No."]}</think>Here is the plan:\n```json\n{"plan": ["Read it.", "Send it."]}\n```',
        '["Read it.", "Send it."]',
        '[{"step": "Read it."}, {"step": "Send it."}]',
        '{"steps": [{"id": "step_1", "description": "Read it."}, {"id": "S2", "description": "Send it."}]}',
        '{"steps": [{"number": "1.", "task": "Read it."}, {"task": "Send it."}], "answer": null}',
        "1. Read it.\n2. Send it.",
        "Step 1: Read it.\nStep 2: Send it.",
        "The task says {it}. [First]\n1. Read it.\n2. Send it.",
    ],
)
def test_plans_in_words(text):
    assert mappings(text, ()) == [{"step": 1, "task": "Read it."}, {"step": 2, "task": "Send it."}]


def test_needs_in_many_forms():
    for needs in ([1, 2], ["1", "step_2"], "1, 2", "steps 1 and 2"):
        (step,) = mappings(json.dumps({"steps": [{"step": 3, "task": "t", "depends_on": needs}]}))
        assert step["needs"] == [1, 2]
    assert mappings("1. Read it (needs: none)\n2. Send it (needs: 1)", ()) == [
        {"step": 1, "task": "Read it", "needs": []},
        {"step": 2, "task": "Send it", "needs": [1]},
    ]


def test_numbered_lines_can_be_calls():
    text = '1. fetch {"key": "a"}\n2. store(place="b", what={"id": "{step_1}"}) (needs: 1)\n3. Say what was done'
    first, second, third = mappings(text)
    assert (first["tool"], first["arguments"]) == ("fetch", {"key": "a"})
    assert (second["tool"], second["arguments"]) == ("store", {"place": "b", "what": {"id": "{step_1}"}})
    assert second["needs"] == [1]
    assert "tool" not in third


def test_a_step_without_a_task_is_named_by_its_tool_and_a_tool_can_be_none():
    written = {"step": 1, "task": "Fetch {it}", "needs": [], "tool": "fetch", "arguments": {"key": "{step_0}"}}
    assert mappings(json.dumps({"steps": [written]})) == [written], "what the prompt asks for"
    (step,) = mappings('{"steps": [{"tool": "fetch", "args": "{\\"key\\": \\"a\\"}"}]}')
    assert step == {"step": 1, "task": "Call fetch", "tool": "fetch", "arguments": {"key": "a"}}
    for tool in (None, "", "none", "N/A"):
        assert "tool" not in mappings(json.dumps({"steps": [{"task": "t", "tool": tool}]}))[0]


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [
        ('{"steps": [{"task": "t", "tool": "fetch", "arguments": "{\'key\': "}]}', "{'key': "),
        ('{"steps": [{"task": "t", "tool": "fetch", "arguments": ["a"]}]}', "['a']"),
        ('1. fetch {"key": ', '{"key":'),
    ],
)
def test_arguments_that_cannot_be_read_are_kept_as_a_problem_of_their_step(text, excerpt):
    plan = read_step_plan(text, TOOLS)
    (step,) = plan.steps
    assert step.problem is not None
    assert step.problem.excerpt == excerpt
    assert step.tool == "fetch"


def test_a_plan_wins_over_an_answer_that_is_only_spoken_of():
    quoted = 'The output was {"answer": "7"}, which is no answer yet. Plan:\n'
    assert [step["task"] for step in mappings(quoted + "1. Do it\n2. Send it")] == ["Do it", "Send it"]
    assert [step["task"] for step in mappings(quoted + '{"steps": ["Do it"]}')] == ["Do it"]
    fenced = 'The output was\n```json\n{"answer": "7"}\n```\nSo:\n1. Do it'
    assert [step["task"] for step in mappings(fenced)] == ["Do it"]
    refused = read_step_plan('The output was {"answer": "7"}, which is no answer yet. Plan: 1. Do it', ())
    assert isinstance(refused, Unreadable), "neither the answer nor a plan that can be read"


@pytest.mark.parametrize(
    "text",
    [
        'So it is {"answer": "7"}.',
        '{"steps": [], "answer": 7}',
        "Final answer: 7",
        '{"answer": "7"}\n\nThat is all.',
        '```json\n{"answer": "7"}\n```\nThat is all.',
    ],
)
def test_an_answer_with_words_around_it_counts_where_there_are_no_steps(text):
    assert read_step_plan(text, ()) == StepPlan((), "7")
    assert [step["task"] for step in mappings(f"{text}\n1. Do it")] == ["Do it"]


@pytest.mark.parametrize("answer", ['{"answer": "7"}', '```json\n{"answer": "7"}\n```'])
def test_an_answer_that_ends_the_reply_wins_over_a_list_of_what_was_done(answer):
    assert read_step_plan(f"What was done:\n1. Fetching\n2. Storing\n\n{answer}\n", ()) == StepPlan((), "7")
    assert read_step_plan('{"steps": []}', ()) == StepPlan(())
    both = read_step_plan('{"steps": ["Go on."], "answer": "4"}', ())
    assert (both.answer, len(both.steps)) == ("4", 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("<think>1. Read it.", "empty"),
        ("I cannot plan this.", "no plan"),
        ('{"steps": [{"step": 1, "tool": "finish", "arguments": {"answer": "no"}}, {"st', "no JSON"),
        ('```json\n[{"task": "a", "arguments": {"answer": "no"}},\n```', "no JSON"),
        ('{"steps": [{"step": 1}]}', "neither a text nor an object"),
        ('{"steps": [{"step": 2, "task": "a"}, {"step": 2, "task": "b"}]}', "two steps have the number 2"),
        ('{"steps": [{"step": 3, "task": "a"}]}', "step 3 was done already: other steps have numbers above 3"),
        (json.dumps({"steps": ["a"] * (MOST_STEPS + 1)}), "51 steps"),
        ('{"steps": [{"step": 1, "task": "a", "arguments": ' + "[" * 100 + "]" * 100 + "}]}", "nested too deeply"),
    ],
)
def test_plans_that_are_refused(text, problem):
    refused = read_step_plan(text, TOOLS, {1, 3})
    assert isinstance(refused, Unreadable)
    assert problem in refused.problem


def test_steps_without_a_number_go_on_behind_those_that_were_done():
    assert [step["step"] for step in mappings('["a", "b"]', (), {1, 4})] == [5, 6]
    # A step of the present plan, not yet done, keeps its number.
    assert mappings('{"steps": [{"step": 2, "task": "a"}]}', (), {1, 3})[0]["step"] == 2


PIECES = ['{"steps": [', "[{", "1. a\n", "1. fetch {", "```json\n{", "<think>", "a ", "{{ step ", "{result_of"]


@pytest.mark.parametrize("piece", PIECES)
def test_reading_is_quick(piece):
    with no_endless_work(5.0):
        read_step_plan(piece * (250_000 // len(piece)), TOOLS)
        step_references_in(piece * 25_000)
