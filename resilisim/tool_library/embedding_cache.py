"""Embeddings on disk, by content hash: shared by processes, safe against being killed, and never worth an error.

One SQLite file holds all models. Each call opens it anew, so the cache can be used across threads and forks; each
batch is one transaction, so a killed process leaves either the whole batch or nothing. Whatever goes wrong (a damaged
file, a full or read-only disk) costs the time of embedding again, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CACHE_DIR_VARIABLE = "RESILISIM_CACHE_DIR"
FILE_NAME = "embeddings-v1.sqlite3"

_LOCK_SECONDS = 30.0
_KEYS_PER_QUERY = 500  # below SQLite's oldest limit on variables, 999
_NORM_TOLERANCE = 1e-3  # unit rows in float32; a damaged row practically never has norm 1

FloatArray = NDArray[np.float32]


def default_cache_dir() -> Path:
    """Return the folder for caches: `$RESILISIM_CACHE_DIR`, else the user's cache folder by the platform's custom."""
    if chosen := os.environ.get(CACHE_DIR_VARIABLE):
        return Path(chosen)
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
    """Unit vectors by key, in one SQLite file.

    Args:
        folder: Folder of the file; made when the first vectors are stored.
    """

    def __init__(self, folder: Path) -> None:
        """Remember the folder; nothing is read or made yet."""
        self.path = Path(folder) / FILE_NAME

    def load(self, keys: Sequence[bytes]) -> dict[bytes, FloatArray]:
        """Return the vectors that are known among the keys; damaged ones are left out."""
        found: dict[bytes, FloatArray] = {}
        if not self.path.is_file():
            return found
        try:
            with self._connection() as connection:
                for first in range(0, len(keys), _KEYS_PER_QUERY):
                    some = keys[first : first + _KEYS_PER_QUERY]
                    places = ",".join("?" * len(some))
                    query = f"SELECT key, vector FROM embeddings WHERE key IN ({places})"
                    for key, data in connection.execute(query, some):
                        vector = _vector(data)
                        if vector is not None:
                            found[key] = vector
        except sqlite3.OperationalError:
            pass  # locked for long, unreadable, or gone in between
        except sqlite3.DatabaseError:
            self._discard()
        except OSError:
            pass
        return found

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
