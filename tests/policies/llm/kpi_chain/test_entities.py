"""What is read of an output, and the test of a task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat.types import estimated_tokens
from resilisim.policies.llm.kpi_chain.entities import (
    EntitySpec,
    Finding,
    canonical_type,
    chunks_of,
    evaluate_kpi,
    merge_findings,
    read_extraction,
    read_reasoning,
    type_of,
)
from resilisim.policies.llm.kpi_chain.model_yaml import UnreadableReplyError
from tests.policies.llm.helpers import reasoning

NAME, YEAR, NAMES = (
    EntitySpec(name="name", type="string"),
    EntitySpec(name="year", type="number"),
    EntitySpec(name="names", type="array"),
)


@given(st.text(st.characters(codec="utf-8"), max_size=400) | st.text("ab \n", max_size=400), st.integers(1, 20))
def test_no_character_is_lost_and_every_piece_is_short_enough(text, max_tokens):
    pieces = chunks_of(text, max_tokens)
    assert "".join(pieces) == text
    assert all(estimated_tokens(piece) <= max_tokens for piece in pieces)
    assert len(pieces) == 1 or all(pieces)


def test_cuts_are_made_at_line_ends_then_at_spaces():
    assert chunks_of("aaa bbb\nccc ddd", 3) == ("aaa bbb\n", "ccc ddd")
    assert chunks_of("aaa bbb ccc", 2) == ("aaa bbb ", "ccc")
    assert chunks_of("it was. so it was", 3) == ("it was. ", "so it was")
    assert chunks_of(r"it was\nso it was", 3) == (r"it was\n", "so it was")
    assert chunks_of("a" * 9, 2) == ("a" * 8, "a")
    assert chunks_of("short", 3000) == ("short",)
    assert len(chunks_of("word " * 2400, 3000)) == 1, "12,000 bytes are 3,000 tokens"
    assert len(chunks_of("word " * 2401, 3000)) == 2


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("int", "number"),
        ("list[str]", "array"),
        ("array of strings", "array"),
        ("dict[str, int]", "dict"),
        ("text", "string"),
        ("string (optional)", "string"),
        ("banana", None),
    ],
)
def test_types_have_aliases(word, kind):
    assert canonical_type(word) == kind


def test_a_plain_number_is_the_text_of_an_entity_that_is_a_string():
    reply = "confidence_score: 1\nextracted_entities:\n  name: 0042\n  year: 1945"
    findings, _ = read_extraction(reply, [NAME, YEAR, EntitySpec(name="other", type="string")])
    assert [finding.value for finding in findings.values()] == ["0042", 1945, None]
    assert read_extraction(reply.replace("0042", "1.10"), [NAME])[0]["name"].value == "1.10"


@pytest.mark.parametrize(
    "reply",
    [
        "I see.\n```yaml\nconfidence_score: {name: 0.9, year: 0.4}\nextracted_entities: {name: Kim, year: 1999}\n```",
        "confidence_score: {name: 0.9, year: 0.4}\nextracted_entities: {name: Kim, year: 1999}",
        "confidence_scores: {name: 0.9, year: 0.4}\nextracted_entities: {name: Kim, year: 1999}",
        "extracted_entities:\n  name: {value: Kim, confidence: 0.9}\n  year: {value: 1999, confidence_score: 0.4}",
    ],
)
def test_confidences_for_each_entity(reply):
    assert read_extraction(reply, [NAME, YEAR])[0] == {"name": Finding("Kim", 0.9), "year": Finding(1999, 0.4)}


WORDS_FOR_NULL = ["null", "'null'", '"None"', "None", "~", "", "NULL", '" none "']


@pytest.mark.parametrize(
    "nothing", ["", "null", "{}", "{name: {value: null, confidence: 0.1}}", *(f"{{name: {n}}}" for n in WORDS_FOR_NULL)]
)
def test_nothing_extracted_is_a_valid_finding(nothing):
    reply = f"confidence_score: 0.1\nextracted_entities: {nothing}"
    assert read_extraction(reply, [NAME])[0] == {"name": Finding(None, 0.1)}


@pytest.mark.parametrize(
    ("read", "reply", "problem"),
    [
        (read_extraction, "", "empty"),
        (read_extraction, "confidence_score: 0.9", "'extracted_entities'"),
        (read_extraction, "extracted_entities: {name: Kim}", "'confidence_score' has to be a number"),
        (read_extraction, "confidence_score: high\nextracted_entities: {name: Kim}", "'high'"),
        (read_extraction, "confidence_score: 95\nextracted_entities: {name: Kim}", "from 0.0 to 1.0"),
        (read_extraction, "confidence_score: true\nextracted_entities: {name: Kim}", "from 0.0 to 1.0"),
        (read_extraction, "confidence_score: {}\nextracted_entities: {name: Kim}", "for 'name' it is 'None'"),
        (read_extraction, "confidence_score: 0.9\nextracted_entities: [Kim]", "has to be a mapping"),
        (read_reasoning, "It is Kim.", "no YAML with 'execution_result'"),
        (read_reasoning, "execution_result: Kim", "has to be a mapping"),
        (read_reasoning, "execution_result: {status: done, outputs: {name: Kim}}", "not 'done'"),
        (read_reasoning, "execution_result: {status: completed}", "'outputs' has to be a mapping"),
        (read_reasoning, f"{reasoning(name='a')}\n{reasoning(name='b')}", "not valid YAML|stands twice"),
    ],
)
def test_what_has_another_form(read, reply, problem):
    with pytest.raises(UnreadableReplyError, match=problem):
        read(reply, [NAME])


def pieces(entity: str, *found: tuple[object, float]) -> list[dict[str, Finding]]:
    return [{entity: Finding(value, confidence)} for value, confidence in found]


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 5), st.sampled_from([0.1, 0.5, 0.7, 0.9])), min_size=1, max_size=6)
)
def test_the_most_confident_non_null_candidate_wins_the_earliest_of_equals(found):
    merged = merge_findings([YEAR], pieces("year", *found), 0.7)["year"]
    values = [item for item in found if item[0] is not None]
    best = sorted(values or found, key=lambda item: -item[1])[0]
    assert (merged.value, merged.confidence) == best


def test_arrays_are_united_from_what_is_sure():
    found = pieces("names", (["a", "b"], 0.9), (["b", "c"], 0.7), (["d"], 0.69), (None, 0.99))
    assert merge_findings([NAMES], found, 0.7, unite_arrays=True)["names"] == Finding(["a", "b", "c"], 0.7)
    assert merge_findings([NAMES], found, 0.7)["names"] == Finding(["a", "b"], 0.9)
    single = pieces("names", (["a"], 0.6), (["b"], 0.5))
    assert merge_findings([NAMES], single, 0.7, unite_arrays=True)["names"] == Finding(["a"], 0.6)
    mixed = pieces("names", ([1, True], 0.9), ([1.5, 1], 0.9))
    assert merge_findings([NAMES], mixed, 0.7, unite_arrays=True)["names"].value == [1, True, 1.5]


TYPED = [("int", 5), ("list", ["a"]), ("object", {"a": 1}), ("bool", False), ("array", []), ("string", "")]
MISTYPED = [("number", "5"), ("number", True), ("list", "a"), ("string", ["a"])]


@pytest.mark.parametrize(("kind", "value"), [*TYPED, *MISTYPED])
def test_the_test_of_a_task_wants_each_entity_of_its_type(kind, value):
    wanted = EntitySpec(name="found", type=kind)
    entities, problems = evaluate_kpi([wanted], {"found": Finding(value, 0.9)}, 0.7)
    if (kind, value) in TYPED:
        assert (entities, problems) == ({"found": value}, [])
    else:
        assert problems == [f"entity 'found' is of type {type_of(value)}, expected {wanted.type} (confidence 0.9)"]


@pytest.mark.parametrize(
    ("confidences", "problem"),
    [
        ((0.7, 0.7, 0.1), None),
        ((None, None, None), None),  # the reasoner's need none
        ((0.69, 0.9, 0.9), "entity 'name' was found with confidence 0.69, below 0.7"),
        ((0.9, 0.4, 0.9), "entity 'year' was found with confidence 0.4, below 0.7"),
    ],
)
def test_the_test_of_a_task_wants_each_entity_with_a_confidence_of_at_least_theta(confidences, problem):
    expected = [NAME, YEAR, EntitySpec(name="note", type="string", required=False)]
    values = {"name": "Kim", "year": 1999, "note": None}
    found = {name: Finding(value, sure) for (name, value), sure in zip(values.items(), confidences, strict=True)}
    entities, problems = evaluate_kpi(expected, found, 0.7)
    assert problems == ([] if problem is None else [problem])
    assert problem or entities == {"name": "Kim", "year": 1999}, "an optional entity may be missing"
    assert evaluate_kpi(expected, {}, 0.7)[1] == ["entity 'name' was not found", "entity 'year' was not found"]


def test_justifications_before_the_reasoners_result_are_passed_over():
    read = read_reasoning(f"1. a: b: [c\n2. status: failed\n\n{reasoning(name='Kim', year=1999)}", [NAME, YEAR])
    assert (read.completed, read.steps) == (True, ("looked at the inputs",))
    assert read.findings == {"name": Finding("Kim"), "year": Finding(1999)}


@pytest.mark.parametrize(
    "reply",
    [
        "execution_result:\n  status: |\n    failed\n  outputs: {name: null}",
        "execution_result:\n  status: Failed\n  outputs:",
        "execution_result: {status: failed}",
        "execution_result: {status: failed}\nexecution_details: none",
        "execution_result: {status: failed}\nexecution_details: {reasoning_steps: none}",
    ],
)
def test_a_reasoner_may_fail_in_many_words(reply):
    read = read_reasoning(reply, [NAME])
    assert not read.completed
    assert read.steps == ()
