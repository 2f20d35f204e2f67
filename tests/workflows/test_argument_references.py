"""References by number: what is one, what it names, which steps cannot be done, and how a follower mends them."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.workflows import Step, Workflow
from resilisim.workflows.argument_references import (
    argument_references,
    by_number,
    mended_references,
    rewritten,
    step_reference,
    undone_steps,
)

READABLE = [
    ("result of step 2", [2]),
    ({"result_of": "step 2"}, [2]),
    ("from the result of step 2, in full", [2]),
    ("the result of step 1 and the result of step 12", [1, 12]),
    ({"rows": [{"result_of": "step 3"}, "result of step 4"], "limit": 5}, [3, 4]),
]
MALFORMED = [
    "result of step",
    "result of {step_2",
    "result of step 2]",
    "result of step_2",
    "Result of Step 2",
    {"result_of": "step"},
    {"result_of": None},
    {"result_of": ["step 2"]},
    {"result_of": 2},
    {"rows": [{"result_of": "{step_2"}]},
]
NO_REFERENCES = [
    "result of network_fetcher",
    "result of step_counter",
    "result of steps",
    "result of stepping",
    "result of network_fetcher as a scanned image",
    {"result_of": "network_fetcher"},
    {"result_of": "step_counter"},
    {"result_of": "step 2", "format": "a zip archive"},
    "the results, step 2",
    7,
    None,
    {},
]


@pytest.mark.parametrize(("value", "numbers"), READABLE)
def test_references_are_found_at_any_depth(value, numbers):
    found = argument_references(value)
    assert [reference.number for reference in found] == numbers
    assert [reference.is_whole for reference in found] == [value == step_reference(2, isinstance(value, dict))] * len(
        found
    )


@pytest.mark.parametrize("value", MALFORMED)
def test_what_begins_like_a_reference_is_one_that_names_nothing(value):
    assert [reference.number for reference in argument_references(value)] == [None]
    assert "which names no step" in undone_steps([None, {"data": value}])[1]


@pytest.mark.parametrize("value", NO_REFERENCES)
def test_names_of_tools_and_other_words_are_no_references_to_steps(value):
    assert argument_references(value) == []


def test_what_the_user_wrote_is_no_reference():
    assert argument_references("the result of step 2 of the survey", ["Look into the result of step 2 of it."]) == []
    assert undone_steps([{"source": "result of step 9"}], ['{"source": "result of step 9"}']) == {}


@pytest.mark.parametrize(
    ("parameters", "undone"),
    [
        ([{}, {"a": "result of step 1"}, {"a": "result of step 2"}], []),
        ([{}, {"a": "result of step 3"}, {}], [1]),  # later
        ([{}, {"a": "result of step 2"}, {}], [1]),  # itself
        ([{}, {"a": "result of step 0"}, None], [1]),
        ([{}, {"a": "result of step 4"}, {"a": "result of step 2"}], [1, 2]),  # and what needs it
        ([{}, {"a": 1, "b": ["result of step 4"]}, {"a": {"c": "result of step 2"}}], [1, 2]),
        ([{"a": "result of step"}, {}, {"a": "result of step 2"}], [0]),
    ],
)
def test_which_steps_cannot_be_done(parameters, undone):
    assert list(undone_steps(parameters)) == undone


VALUES = st.recursive(
    st.one_of(
        st.integers(-1, 9),
        st.text(alphabet=string.ascii_letters + " {}[]_0123456789", max_size=12),
        st.builds(
            "{}result of step {}{}".format, st.sampled_from(["", "x "]), st.integers(0, 6), st.sampled_from(["", "]"])
        ),
        st.builds(lambda number: {"result_of": f"step {number}"}, st.integers(0, 6)),
        st.builds(lambda word: {"result_of": word}, st.sampled_from([None, "step", "reader", 4])),
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
PARAMETERS = st.lists(st.none() | st.dictionaries(st.sampled_from(["data", "source"]), VALUES, max_size=2), max_size=5)


@given(parameters=PARAMETERS)
def test_a_step_is_done_where_all_that_it_refers_to_is_done_before_and_mending_leaves_nothing_undone(parameters):
    undone = undone_steps(parameters)
    for index, values in enumerate(parameters):
        numbers = [reference.number for value in (values or {}).values() for reference in argument_references(value)]
        is_done = all(number is not None and 1 <= number <= index and number - 1 not in undone for number in numbers)
        assert (index not in undone) == is_done
    mended = mended_references(parameters, [f"tool_{number}" for number in range(len(parameters))])
    assert undone_steps(mended) == {}
    for index, (before, after) in enumerate(zip(parameters, mended, strict=True)):
        assert (before is None) == (after is None)
        if index and before is not None:
            assert list(before) == list(after)  # the first step goes without, as nothing comes before it


@given(value=VALUES)
def test_rewriting_reaches_every_reference_and_nothing_else(value):
    written = []
    again = rewritten(value, lambda reference, as_object: written.append(reference.words) or "HERE")
    assert written == [reference.words for reference in argument_references(value)]
    assert argument_references(again) == []
    assert rewritten(value, lambda reference, as_object: "HERE", written) == value  # all of it is the user's


def test_a_plan_by_number_says_the_same_as_by_name():
    steps = (
        Step("reader"),
        Step("parser", {"data": {"result_of": "reader"}, "source": "result of writer"}),
        Step("writer", {"source": "result of parser", "name": "result of nobody"}),
    )
    parameters = [step.parameters for step in by_number(Workflow("t", steps, "mine", 0.5)).steps]
    assert parameters[1] == {"data": {"result_of": "step 1"}, "source": "result of writer"}  # which comes later
    assert parameters[2] == {"source": "result of step 2", "name": "result of nobody"}
    assert by_number(Workflow("t", steps[:1], "mine", 0.5)).steps == steps[:1]
