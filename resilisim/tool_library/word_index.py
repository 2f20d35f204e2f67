"""BM25 over the words of texts, for search without a model."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from resilisim.tool_library.embeddings import LONGEST_TEXT, FloatArray, quiet

_WORD = r"[^\W_]{2,}"  # names of tools fall into their words


class WordIndex:
    """BM25 over some texts, in Lucene's variant, whose scores are never negative, with the usual k1 and b."""

    def __init__(self, texts: Sequence[str]) -> None:
        with quiet():
            self._bm25 = _bm25s().BM25(method="lucene", k1=1.5, b=0.75)
            self._num_texts = len(texts)
            words = _words(texts)
            counts = Counter(word for some in words for word in set(some))
            self._weights = {word: self._weight(count) for word, count in counts.items()}
            if self._weights:
                self._bm25.index(words, show_progress=False)

    def shares(self, queries: Sequence[str]) -> FloatArray:
        """Return scores as shares of the highest that a query can have, (num_queries, num_texts)."""
        table = np.zeros((len(queries), self._num_texts), dtype=np.float32)
        for row, words in enumerate(_words(queries)):
            known = [word for word in words if word in self._weights]
            if known:
                limit = sum(self._weights.get(word, self._weight(0)) for word in words)
                table[row] = self._bm25.get_scores(known) / limit
        return table

    def _weight(self, count: int) -> float:
        """Return the inverse document frequency, as Lucene has it, of a word that so many texts hold."""
        return math.log(1.0 + (self._num_texts - count + 0.5) / (count + 0.5))


@lru_cache(maxsize=1)
def _bm25s() -> Any:
    """Import bm25s, as the other search's libraries only where something is searched for.

    It would start JAX where that is installed, for a function that nothing here calls, and JAX takes three quarters of
    a GPU's memory when it starts: from a model that is trained or played beside it.
    """
    there = {name: module for name, module in sys.modules.items() if name == "jax"}
    sys.modules["jax"] = None  # type: ignore[assignment] # how Python says that a module is not there
    try:
        import bm25s
    finally:
        del sys.modules["jax"]
        sys.modules.update(there)
    return bm25s


def _words(texts: Sequence[str]) -> list[list[str]]:
    """Return the stems of the words of each text that are no stop words."""
    words: list[list[str]] = _bm25s().tokenize(
        [text[:LONGEST_TEXT] for text in texts],
        token_pattern=_WORD,
        stopwords="english",
        stemmer=_stemmer(),
        return_ids=False,
        show_progress=False,
    )
    return words


class _Stemmer:
    """Stems words, each once: the stemmer is in Python, and words come again."""

    def __init__(self) -> None:
        # Not `stemmer("english")`, which takes another implementation, and perhaps version, where one is installed.
        from snowballstemmer.english_stemmer import EnglishStemmer

        self._stem = lru_cache(maxsize=65536)(EnglishStemmer().stemWord)

    def stemWords(self, words: Iterable[str]) -> list[str]:
        """Return the stems of words."""
        return list(map(self._stem, words))


@lru_cache(maxsize=1)
def _stemmer() -> _Stemmer:
    return _Stemmer()
