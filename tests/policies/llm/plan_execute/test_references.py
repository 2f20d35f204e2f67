"""References to results: where they are found, and how values take their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.policies.llm.agents.step_plan import fill_in, step_references_in
from tests.guards import no_endless_work

NESTED = {"a": {"b": ["x", {"c": "{step_2}"}]}, "d": "no. {step_3} and {Step 4}", "e": 5}


def test_they_are_found_at_any_depth_and_in_names():
    assert step_references_in(NESTED).numbers == {2, 3, 4}
    assert step_references_in({"{step_7}": 1}).numbers == {7}
    assert step_references_in("{step_2.output.id}").numbers == {2}
    assert not step_references_in({"a": "{it}", "b": "{steps}", "c": "step_1", "d": ["{stepwise 3}", 3, None]})


def test_what_looks_like_one_and_names_no_step_is_noticed():
    found = step_references_in({"a": ["{step_N}", "{step}", "{step_99999}"]})
    assert found.numbers == frozenset()
    assert sorted(found.unclear) == ["{step_99999}", "{step_N}", "{step}"]


@pytest.mark.parametrize(
    "words",
    [
        *("{steps_1}", "{ Steps 1 }", "{{step_1}}", "{{ step_1.output }}", "${step_1.result}", "{step1}"),
        *("{result_1}", "{Result 1}", "{results_1}", "{output_1}", "{result_of_step_1}", "{output of step 1}"),
        *("<step_1>", "<result_1>", "<output of step 1>", "$step_1", "$steps1", "$result_1", "{{outputs.step_1}}"),
    ],
)
def test_misspelt_ones_that_name_a_step_are_understood(words):
    for text in (words, f"before {words} after"):
        assert step_references_in(text).numbers == {1}
        assert step_references_in([text]).unclear == ()


def test_a_reference_that_begins_like_data_is_one() -> None:
    assert step_references_in({"a": "$step_1"}, ["it costs $step_10"])
    assert not step_references_in({"a": "$step_1"}, ["it costs $step_1."])


@pytest.mark.parametrize("words", ["{{ steps[1].result }}", "{steps[0]}", "{{ previous step }}", "{{ x.step_1 }}"])
def test_misspelt_ones_that_name_no_step_are_noticed(words):
    found = step_references_in({"a": words})
    assert (found.numbers, found.unclear) == (frozenset(), (words,))
    assert fill_in({"a": words}, {"a": words})[1] == ["a: unresolved"]


@pytest.mark.parametrize(
    "text",
    [
        *("{output}", "{results}", "f'{result1:.2f}'", "{{ user.name }}", "{{ stepmother }}", "$5 for 1 result", "$1"),
        *("<steps>3</steps>", "<result>4</result>", "<step>", "a < step 1", "results[1]", "step 1", '{"step": 1}'),
    ],
)
def test_other_braces_and_signs_are_left_alone(text):
    assert not step_references_in(text)


def test_looking_for_them_is_quick():
    with no_endless_work():
        for piece in ("{", "{{", "{ ", "<", "< ", "{{ step ", "<step ", "$step", "{result_of", "{{a"):
            step_references_in(piece * 100_000)


def test_only_what_holds_references_is_taken_from_the_model():
    resolved = {"a": {"b": ["changed", {"c": [1]}]}, "d": "no. y and z", "e": 6, "f": 7}
    filled, problems = fill_in(NESTED, resolved)
    assert filled == {"a": {"b": ["x", {"c": [1]}]}, "d": "no. y and z", "e": 5}
    assert problems == []


@pytest.mark.parametrize(
    ("resolved", "problems"),
    [
        ({}, ["a: missing", "d: missing"]),
        ({"a": 4, "d": "y"}, ["a: missing"]),
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
