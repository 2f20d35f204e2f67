"""Clauses, and whether every phrasing leads retrieval to its tool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.tasks.scene import domains
from resilisim.tasks.wording import (
    GENERAL_ITEMS,
    SEARCH_SIZE,
    PhraseBook,
    clauses,
    made_phrases,
    plain_phrases,
    solving_clauses,
    vocabulary,
    vocabulary_clauses,
)
from resilisim.tool_library.library import ToolLibrary, default_library
from resilisim.tool_library.retrieval import ToolHit, ToolRetriever, default_retriever
from resilisim.tool_library.tool import Tool

LIBRARY = default_library()
ITEMS = (*(artefact.items for domain in domains() for artefact in domain.artefacts), GENERAL_ITEMS)


class WordSearcher:
    """Finds a tool exactly where its name stands in the query."""

    def search_many(self, queries: Sequence[str], k: int = 5) -> list[list[ToolHit]]:
        return [[ToolHit(name, 1.0) for name in ("a", "b", "c") if name in query.split()][:k] for query in queries]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Read it. Write it.", ["Read it", "Write it"]),
        ("Read data/x_1.csv now! Then stop?", ["Read data/x_1.csv now", "Then stop"]),
        (
            "Steps:\n1. Read it.\n2) Parse it\n- Write it\n* Log it",
            ["Steps:", "Read it", "Parse it", "Write it", "Log it"],
        ),
        ("Read it; parse it;write it.", ["Read it", "parse it", "write it"]),
        ("Read it, then write it", ["Read it", "write it"]),
        ("Version 2.5 of https://api.x.example/v1. Done", ["Version 2.5 of https://api.x.example/v1", "Done"]),
        ("1. Read it. 2. Write it.", ["Read it", "Write it"]),
        ("", []),
        (" \n;. ", []),
    ],
)
def test_clauses(text: str, expected: list[str]) -> None:
    assert clauses(text) == expected


@given(st.text(max_size=200))
def test_clauses_of_any_text_are_clean(text: str) -> None:
    for clause in clauses(text):
        assert clause
        assert clause == clause.strip()
        assert "\n" not in clause
        assert ";" not in clause
        assert clause[-1] not in ".!?"


def test_solving_clauses_are_the_earliest_in_rising_order() -> None:
    text = "Talk about b. Do a. Talk about b and a. Do c."
    assert solving_clauses(text, ["a", "b", "c"], WordSearcher()) == [1, 2, 3]
    assert solving_clauses(text, ["b", "a", "c"], WordSearcher()) == [0, 1, 3]
    assert solving_clauses(text, ["c", "a"], WordSearcher()) is None
    assert solving_clauses("a and b", ["a", "b"], WordSearcher()) is None, "each tool needs a clause of its own"
    assert solving_clauses(text, [], WordSearcher()) == []


def test_the_vocabulary_has_phrasings_for_every_tool_and_no_clause_falls_apart() -> None:
    assert set(vocabulary()) == set(LIBRARY.names)
    every = [phrase for phrases in vocabulary().values() for phrase in phrases]
    assert len(set(every)) == len(every)
    for name, phrases in vocabulary().items():
        assert len(phrases) >= 4
        for phrase in phrases:
            assert phrase.count("{items}") == 1, phrase
            assert not set(phrase) & set(",;.:\n"), phrase
            assert phrase[0].isupper(), phrase
        for items in ITEMS:
            assert len(set(vocabulary_clauses(name, items))) >= 2
    assert len(vocabulary_clauses("data_processing_parser", GENERAL_ITEMS)) == 5
    assert vocabulary_clauses("unknown", GENERAL_ITEMS) == ()


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_every_phrasing_of_every_artefact_leads_to_its_tool(step: int) -> None:
    """The whole pool from which the benchmark's clauses are drawn: each has its tool among the first five, for certain.

    Here on every seventh artefact, among the long tests on each. The margin is the tool's lead over the best tool that
    must stay behind it; twenty times what rounding could blur.
    """
    pool = [
        (name, clause)
        for name in LIBRARY.names
        for items in (*ITEMS[::step], GENERAL_ITEMS)
        for clause in vocabulary_clauses(name, items)
    ]
    assert len(pool) > 2500 // step
    scores = default_retriever(LIBRARY).similarities([clause for _, clause in pool]).astype(np.float64)
    own_place = np.array([LIBRARY.index(name) for name, _ in pool])
    own = scores[np.arange(len(pool)), own_place]
    scores[np.arange(len(pool)), own_place] = -np.inf
    margin = own - np.sort(scores, axis=1)[:, -SEARCH_SIZE]
    worst = int(np.argmin(margin))
    assert margin[worst] > 0.02, (pool[worst], float(margin[worst]))


def test_the_model_does_not_see_letter_case() -> None:
    """Clauses between semicolons start in lower case: what holds for the pool holds for them."""
    rows = default_retriever(LIBRARY).embed(["Parse the raw entries", "parse the raw entries"])
    assert np.allclose(rows[0], rows[1], atol=1e-6)


@pytest.fixture(scope="module")
def kitchen() -> ToolLibrary:
    """A library that shares nothing with the default one; two of its tools cannot be told apart by their texts."""
    texts = {
        "bread.kneader": "Kneads dough, slowly: flour, water and yeast; until it is smooth. Cleans itself.",
        "oven_heater": "Heats the oven to a given temperature.",
        "cake_froster": "Covers cakes with icing.",
        "soup_stirrer": "Stirs soup so that nothing burns.",
        "knife_sharpener": "Sharpens knives on a wet stone.",
        "dish_washer": "Washes dishes and dries them.",
        "wine_chiller": "Cools bottles of wine before dinner.",
    }
    return ToolLibrary([Tool(name, text) for name, text in texts.items()])


def test_tools_of_other_libraries_get_phrasings_that_lead_to_them(kitchen: ToolLibrary) -> None:
    retriever = default_retriever(kitchen)
    book = PhraseBook(retriever, checked=False)
    for tool in kitchen:
        phrases = book.phrases(tool, "berth bookings")
        assert phrases
        for phrase in phrases:
            assert clauses(phrase) == [phrase], "one clause"
            assert "," not in phrase
            assert tool.name in [hit.name for hit in retriever.search(phrase, SEARCH_SIZE)]


def test_made_phrases_name_tool_and_items() -> None:
    tool = Tool("bread.kneader_2", "Kneads dough, slowly: flour; water. Cleans itself.")
    for phrase in made_phrases(tool, "wedding cakes"):
        assert "bread kneader 2" in phrase
        assert "wedding cakes" in phrase
    assert plain_phrases(tool)[1] == "Use the bread kneader 2 as it kneads dough slowly flour"


def test_a_lead_within_rounding_does_not_count(kitchen: ToolLibrary) -> None:
    class Close(ToolRetriever):
        lead = 0.0

        def search_many(self, queries: Sequence[str], k: int = 5) -> list[list[ToolHit]]:
            others = [ToolHit(f"other_{place}", 0.6) for place in range(4)]
            return [[*others, ToolHit("oven_heater", 0.5 + self.lead), ToolHit("other_5", 0.5)] for _ in queries]

    retriever = Close(kitchen)
    assert not PhraseBook(retriever, checked=False).phrases(kitchen["oven_heater"], "entries")
    retriever.lead = 0.01
    assert PhraseBook(retriever, checked=False).phrases(kitchen["oven_heater"], "entries")
