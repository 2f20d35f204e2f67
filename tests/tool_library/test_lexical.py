"""Search by words: BM25 over the stems of words, for installs without a model."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from snowballstemmer.english_stemmer import EnglishStemmer

from resilisim.errors import InvalidInputError
from resilisim.tool_library import Tool, ToolLibrary, default_library
from resilisim.tool_library.retrieval import LexicalRetriever, TextIndex, default_retriever, tool_text

LIBRARY = default_library()
RETRIEVER = default_retriever(LIBRARY, "lexical")
CLAUSES = json.loads((Path(__file__).parent / "clauses.json").read_text(encoding="utf-8"))
K1, B = 1.5, 0.75


def bm25_shares(query: list[str], texts: list[list[str]]) -> list[float]:
    """Return the scores by the formula, words as they are given: Lucene's BM25 as a share of its limit."""

    def weight(word: str) -> float:
        count = sum(word in text for text in texts)
        return math.log(1 + (len(texts) - count + 0.5) / (count + 0.5))

    mean = sum(map(len, texts)) / len(texts)
    limit = sum(map(weight, query))
    return [
        sum(
            weight(word) * text.count(word) / (text.count(word) + K1 * (1 - B + B * len(text) / mean)) for word in query
        )
        / limit
        for text in texts
    ]


# Words that are stems of their own and no stop words, so that the formula needs neither.
WORDS = st.lists(st.sampled_from(["cat", "dog", "bird", "fish", "horn"]), min_size=1, max_size=6)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=6))
def test_scores_are_bm25_as_a_share_of_its_limit(query: list[str], texts: list[list[str]]) -> None:
    found = RETRIEVER.text_similarities(" ".join(query), [" ".join(text) for text in texts])
    assert found == pytest.approx(bm25_shares(query, texts), abs=1e-6)
    assert all(0 <= share < 1 for share in found)


def test_scores_of_the_default_library_follow_the_formula() -> None:
    texts = [stems_of(tool_text(tool)) for tool in LIBRARY]
    for query in ("parse the raw entries", "fetches pages over a network", "file_operations_reader"):
        expected = bm25_shares(stems_of(query), texts)
        assert RETRIEVER.similarities([query])[0] == pytest.approx(expected, abs=1e-6)


def stems_of(text: str) -> list[str]:
    """Return the stems of the words of a text, one letter at a time instead of by a pattern."""
    from bm25s.stopwords import STOPWORDS_EN

    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return EnglishStemmer().stemWords([word for word in words if len(word) > 1 and word not in STOPWORDS_EN])


@pytest.mark.parametrize("name", LIBRARY.names)
def test_a_tool_is_found_by_its_name_and_by_natural_clauses(name: str) -> None:
    for words in (name, name.replace("_", " ").upper()):
        assert RETRIEVER.search(words)[0].name == name
    missed = [clause for clause in CLAUSES[name] if name not in [hit.name for hit in RETRIEVER.search(clause)]]
    assert len(missed) <= len(CLAUSES[name]) // 3, missed


def test_other_forms_of_a_word_count_and_stop_words_do_not() -> None:
    assert RETRIEVER.search("validates")[0] == RETRIEVER.search("Validating!")[0]
    assert RETRIEVER.search("fetch") == RETRIEVER.search("it is to fetch by the")


@pytest.mark.parametrize(
    "query", ["", "the of it", "x", "\u65e5\u672c\u8a9e", "\ud800", "zyzzyva " * 50_000, "\0\n<b>"]
)
def test_what_no_tool_has_scores_0_and_the_librarys_order_decides(query: str) -> None:
    hits = RETRIEVER.search(query, 4)
    assert [(hit.name, hit.score) for hit in hits] == [(name, 0.0) for name in LIBRARY.names[:4]]


def test_words_that_no_tool_has_lower_every_score_alike() -> None:
    short, long = RETRIEVER.search("fetch pages"), RETRIEVER.search("fetch pages zyzzyva")
    assert [hit.name for hit in short] == [hit.name for hit in long]
    assert all(a.score > b.score > 0 for a, b in zip(short[:1], long[:1], strict=True))


def test_libraries_without_words_and_of_one_tool_can_be_searched() -> None:
    for tools in ([Tool("x", "."), Tool("y", "\u65e5")], [Tool("x_reader", "Reads.")]):
        library = ToolLibrary(tools)
        hits = LexicalRetriever(library).search("read it", 9)
        assert [hit.name for hit in hits] == list(library.names)
    assert hits[0].score > 0
    assert RETRIEVER.search_texts("read", []) == []
    assert len(RETRIEVER.similarities([])) == 0


def test_many_queries_give_what_one_at_a_time_gives() -> None:
    queries = ["read a file", "", "read a file", "aggregate the numbers"]
    assert LexicalRetriever(LIBRARY).search_many(queries, 3) == [RETRIEVER.search(query, 3) for query in queries]


def test_similar_tools_and_their_table_agree_on_what_is_near() -> None:
    table = RETRIEVER.tool_similarities()
    assert np.array_equal(table, table.T)
    assert ((table >= 0) & (table < 1)).all()
    assert (table.argmax(axis=1) == np.arange(len(LIBRARY))).all()
    similar = [hit.name for hit in RETRIEVER.similar_tools("data_processing_validator", 3)]
    assert "network_validator" in similar
    assert "data_processing_validator" not in similar


def test_one_retriever_per_content_travels_and_is_chosen_by_name() -> None:
    # Asked for anew: other tests may have searched so many libraries meanwhile that this one's retriever was let go.
    shared = default_retriever(LIBRARY, "lexical")
    assert default_retriever(ToolLibrary.from_json(LIBRARY.to_json()), "lexical") is shared
    assert default_retriever(LIBRARY, "semantic") is default_retriever(LIBRARY) is not shared
    twin = pickle.loads(pickle.dumps(RETRIEVER))
    assert twin.search("compress the archive") == RETRIEVER.search("compress the archive")
    with pytest.raises(InvalidInputError, match="unknown search 'lexcal': did you mean 'lexical'"):
        default_retriever(LIBRARY, "lexcal")


def test_an_index_of_texts_finds_what_a_search_through_them_finds() -> None:
    texts = ["A ferry to Ostrel.", "Kites fly over Ostrel.", "A ferry of kites.", "Nothing."]
    index = TextIndex(texts, "lexical")
    for query in ("kites", "the ferries to Ostrel", "", "unheard"):
        assert index.search(query, 4) == RETRIEVER.search_texts(query, texts)
        assert index.search(query, 2) == RETRIEVER.search_texts(query, texts)[:2]
    with pytest.raises(InvalidInputError, match="did you mean 'lexical'"):
        TextIndex(texts, "lexial")
    with pytest.raises(InvalidInputError, match="expected at least 1"):
        index.search("kites", 0)


@pytest.mark.parametrize("before", ["", "import jax, jax.lax"])
def test_searching_by_words_does_not_start_jax(tmp_path: Path, before: str) -> None:
    """Where JAX is installed it would take three quarters of a GPU's memory, and afterwards it is there as before."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('JAX is imported')", encoding="utf-8")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*given): print('JAX is started')", encoding="utf-8")
    lines = [
        before,
        "from resilisim.tool_library import default_library",
        "from resilisim.tool_library.retrieval import default_retriever",
        "print(default_retriever(default_library(), 'lexical').search('read a file', 1)[0].name)",
        "import jax",
    ]
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    found, imported = RETRIEVER.search("read a file", 1)[0].name, "JAX is imported"
    assert done.stdout.splitlines() == ([imported, found] if before else [found, imported])
