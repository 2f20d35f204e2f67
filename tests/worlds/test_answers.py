"""Scores of answers, against values worked out by hand from the published definitions."""

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.worlds.answers import (
    Overlap,
    answers_in,
    exact_match,
    list_overlap,
    loft_scores,
    normalized,
    number_in,
    number_match,
    token_overlap,
    turn_scores,
)

WORDS = st.sampled_from(["the", "a", "An", "ostrel", "Ostrel.", "vane", "VANE", "no", "yes", "1871", "-", "theatre"])
TEXTS = st.lists(WORDS, max_size=5).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Ivory Gate", "ivory gate"),
        ("A.B. a-the an", "ab athe"),  # punctuation goes before articles: "a-the" is one word by then
        ("  theatre\tof\nthe Anvil ", "theatre of anvil"),
        ("“Vane”", "“vane”"),  # only ASCII punctuation, as in the scripts
        ("$1,234.50", "123450"),
        ("the", ""),
        ("Caf\u00e9", "caf\u00e9"),
    ],
)
def test_normalisation_is_that_of_squad(text, expected):
    assert normalized(text) == expected
    assert normalized(normalized(text)) == expected


def test_loft_takes_accents_apart():
    assert normalized("Caf\u00e9", decomposed=True) == "cafe\u0301" == normalized("Cafe\u0301", decomposed=True)
    assert loft_scores("Caf\u00e9", ["cafe\u0301"]).em == 1.0
    assert not exact_match("Caf\u00e9", "cafe\u0301")


@pytest.mark.parametrize(
    ("answer", "right", "hotpotqa", "squad"),  # (f1, precision, recall)
    [
        ("the mayor of Ostrel", "Ostrel", (1 / 2, 1 / 3, 1.0), (1 / 2, 1 / 3, 1.0)),
        ("Ostrel", "Mayor of Ostrel!", (1 / 2, 1.0, 1 / 3), (1 / 2, 1.0, 1 / 3)),
        ("vane vane ostrel", "vane ostrel ostrel", (2 / 3, 2 / 3, 2 / 3), (2 / 3, 2 / 3, 2 / 3)),
        ("Yes.", "yes", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
        ("yes, in Ostrel", "yes", (0.0, 0.0, 0.0), (1 / 2, 1 / 3, 1.0)),
        ("no", "no one", (0.0, 0.0, 0.0), (2 / 3, 1.0, 1 / 2)),
        ("no answer", "noanswer", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
        ("", "the", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),  # SQuAD 2.0: two answers without a token agree
        ("", "Ostrel", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
        ("Vane", "Ostrel", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    ],
)
def test_f1_over_tokens(answer, right, hotpotqa, squad):
    assert token_overlap(answer, right) == Overlap(*(pytest.approx(value) for value in hotpotqa))
    assert token_overlap(answer, right, "squad") == Overlap(*(pytest.approx(value) for value in squad))


@given(TEXTS, TEXTS)
def test_f1_is_symmetric_and_one_where_the_match_is_exact(one, other):
    forth, back = token_overlap(one, other), token_overlap(other, one)
    assert math.isclose(forth.f1, back.f1)
    assert (forth.precision, forth.recall) == (back.recall, back.precision)
    if normalized(one) and exact_match(one, other):
        assert forth.f1 == 1.0


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_of_several_wordings_the_best_counts(answer, wordings):
    assert token_overlap(answer, wordings).f1 == max(token_overlap(answer, one).f1 for one in wordings)
    assert exact_match(answer, wordings) == any(exact_match(answer, one) for one in wordings)


def test_lists_are_scored_as_qampari_does():
    right = [["Ostrel", "City of Ostrel"], "Vane", "Mirren", "Dunmark"]
    assert list_overlap(["ostrel", "Vane", "Kell"], right) == Overlap(pytest.approx(4 / 7), 2 / 3, 1 / 2)
    assert list_overlap(["Ostrel", "City of Ostrel"], right).precision == 1 / 2  # the same answer in other words
    assert list_overlap(["Vane", "Vane"], right).precision == 1.0
    assert list_overlap([], right) == Overlap(0.0, 0.0, 0.0)
    assert list_overlap(["Dunmark", "Mirren", "the Vane", "Ostrel"], right) == Overlap(1.0, 1.0, 1.0)


@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS.filter(normalized), min_size=1, max_size=4))
def test_loft_pairs_answers_as_the_best_assignment_does(answers, right):
    found = loft_scores(answers, right)
    given_ones = [normalized(answer, decomposed=True) for answer in answers]
    wanted = [normalized(answer, decomposed=True) for answer in right]
    fits = any(
        all(one in two or two in one for one, two in zip(wanted, chosen, strict=True))
        for chosen in permutations(given_ones, len(wanted))
    )
    assert found.subspan_em == float(fits)
    assert found.em == float(bool(given_ones) and set(given_ones) == set(wanted))
    assert found.f1 == len(set(given_ones) & set(wanted)) / len(wanted)


def test_loft_scores_of_one_answer():
    found = loft_scores("It was in Ostrel", ["Vane", "Ostrel"])
    assert (found.em, found.subspan_em, found.f1) == (0.0, 1.0, pytest.approx(2 / 5))
    assert loft_scores("Ostr", ["Ostrel"]).subspan_em == 0.0  # the right one has to be inside the answer
    assert loft_scores("", ["Ostrel"]).f1 == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1871", 1871),
        ("in 1871.", 1871),
        ("-3.5 °C", -3.5),
        ("\u22122", -2),
        ("$1,234,567.25", 1234567.25),
        ("about 12 %", 12),
        (".5", 0.5),
        ("6.02e23", 6.02e23),
        ("3 or 4", None),
        ("3-4", None),
        ("12,5", None),
        ("v2x", None),
        ("seven", None),
        ("", None),
        ("7, that is 7.0", 7),
    ],
)
def test_numbers_are_read(text, number):
    assert number_in(text) == number


def test_numbers_match_within_the_larger_tolerance():
    assert number_match("100.4", 100, absolute=0.5)
    assert not number_match("100.6", 100, absolute=0.5)
    assert number_match("100.6", 100, relative=0.01, absolute=0.5)
    assert number_match("-100", -100)
    assert not number_match("9" * 400, 1.0)
    assert not number_match("none", 0)
    with pytest.raises(InvalidInputError, match=r"absolute tolerance is -1: expected a number|at least 0"):
        number_match("1", 1, absolute=-1)


@pytest.mark.parametrize(
    "text",
    [
        '["Ostrel", "Vane", "Lake Mirren"]',
        "Ostrel, Vane and Lake Mirren",
        "Ostrel, Vane, and Lake Mirren",
        "Ostrel; Vane; Lake Mirren;",
        "1. Ostrel\n2) Vane\n\n(3) Lake Mirren",
        "- Ostrel\n* Vane\n• Lake Mirren",
    ],
)
def test_lists_are_read_however_they_are_written(text):
    assert answers_in(text) == ("Ostrel", "Vane", "Lake Mirren")


@given(st.text(max_size=80))
def test_any_text_can_be_read(text):
    assert all(answers_in(text))
    number_in(text)


def test_what_is_no_list_is_one_answer():
    assert answers_in("") == ()
    assert answers_in("Sandover") == ("Sandover",)
    assert answers_in("[1871, broken") == ("[1871", "broken")
    assert answers_in("[1871, true]") == ("1871", "true")


def test_conversations_are_scored_by_turn():
    scores = turn_scores(["Ostrel", "in 1871"], ["Ostrel", "1871", ["Vane", "Old Vane"]])
    assert [turn.f1 for turn in scores] == [1.0, pytest.approx(2 / 3), 0.0]
    assert len(turn_scores(["a", "b", "c"], ["Ostrel"])) == 1
