"""The embedding cache: shared, safe against kills, and never worth an error."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from resilisim.tool_library.retrieval import FILE_NAME, EmbeddingCache, default_cache_dir, text_key

WRITER = """
import sys, numpy as np
from pathlib import Path
from resilisim.tool_library.retrieval import EmbeddingCache, text_key
cache, name, batches = EmbeddingCache(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for batch in range(batches):
    vectors = {text_key(name, f"{batch}/{n}"): np.eye(1, 384, n % 384, dtype=np.float32)[0] for n in range(200)}
    cache.store(vectors)
    print(batch, flush=True)
"""


def unit(place, size=384):
    return np.eye(1, size, place, dtype=np.float32)[0]


def test_what_is_stored_is_loaded(tmp_path):
    cache = EmbeddingCache(tmp_path / "deep" / "folder")
    keys = [text_key("model", str(n)) for n in range(1300)]
    assert cache.load(keys) == {}
    assert not (tmp_path / "deep").exists(), "loading makes nothing"
    cache.store({key: unit(n % 384) for n, key in enumerate(keys)})
    loaded = EmbeddingCache(tmp_path / "deep" / "folder").load([*keys, text_key("model", "unknown")])
    assert set(loaded) == set(keys)
    np.testing.assert_array_equal(
        np.stack([loaded[key] for key in keys]), np.stack([unit(n % 384) for n in range(1300)])
    )


def test_keys_depend_on_model_and_text_without_running_together():
    assert len({text_key("a", "bc"), text_key("ab", "c"), text_key("", "abc"), text_key("abc", "")}) == 4
    assert text_key("a", "b") == text_key("a", "b")


@pytest.mark.parametrize("damage", [b"", b"not a database at all, but long enough to be looked at" * 40])
def test_a_damaged_file_is_replaced(tmp_path, damage):
    cache = EmbeddingCache(tmp_path)
    cache.path.write_bytes(damage)
    assert cache.load([b"k"]) == {}
    cache.path.write_bytes(damage)
    cache.store({b"k": unit(3)})
    np.testing.assert_array_equal(cache.load([b"k"])[b"k"], unit(3))


def test_a_file_cut_or_scribbled_in_the_middle_costs_only_time(tmp_path):
    cache = EmbeddingCache(tmp_path)
    keys = [text_key("model", str(n)) for n in range(500)]
    for damage in ("cut", "scribble"):
        cache.store({key: unit(n % 384) for n, key in enumerate(keys)})
        data = bytearray(cache.path.read_bytes())
        if damage == "cut":
            del data[len(data) // 2 :]
        else:
            data[5000 : len(data) // 2] = bytes(255 for _ in range(len(data) // 2 - 5000))
        cache.path.write_bytes(bytes(data))
        for key, vector in cache.load(keys).items():
            np.testing.assert_array_equal(vector, unit(keys.index(key) % 384))
        cache.store({key: unit(n % 384) for n, key in enumerate(keys)})
        cache.store({key: unit(n % 384) for n, key in enumerate(keys)})
        assert len(cache.load(keys)) == 500


@pytest.mark.parametrize("data", [b"", b"abc", b"\0" * 1536, np.full(384, np.nan, np.float32).tobytes(), "text", 7])
def test_a_damaged_row_counts_as_missing(tmp_path, data):
    cache = EmbeddingCache(tmp_path)
    cache.store({b"good": unit(1), b"bad": unit(2)})
    with sqlite3.connect(cache.path) as connection:
        connection.execute("UPDATE embeddings SET vector = ? WHERE key = ?", (data, b"bad"))
    connection.close()
    assert set(cache.load([b"good", b"bad"])) == {b"good"}


def test_places_that_cannot_be_written_are_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder" / FILE_NAME).mkdir(parents=True)
    for folder in (tmp_path / "file" / "below", tmp_path / "folder", Path("/proc/nowhere")):
        cache = EmbeddingCache(folder)
        cache.store({b"k": unit(0)})
        assert cache.load([b"k"]) == {}


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path, monkeypatch):
    cache = EmbeddingCache(tmp_path)
    cache.store({b"old": unit(0)})
    connect = sqlite3.connect

    def small_disk(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 20")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small_disk)
        cache.store({bytes([n]): unit(n) for n in range(200)})
    assert set(cache.load([b"old", *(bytes([n]) for n in range(200))])) == {b"old"}


def test_several_processes_write_at_once(tmp_path):
    names = ["a", "b", "c"]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name, "5"], stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    keys = [text_key(name, f"{batch}/{n}") for name in names for batch in range(5) for n in range(200)]
    assert len(EmbeddingCache(tmp_path).load(keys)) == len(keys)


def test_a_killed_writer_leaves_whole_batches(tmp_path):
    cache = EmbeddingCache(tmp_path)
    for attempt in range(3):
        name = f"killed {attempt}"
        command = [sys.executable, "-c", WRITER, str(tmp_path), name, "100000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.01 * attempt)
            os.kill(writer.pid, signal.SIGKILL)
            reported = [0, *map(int, writer.stdout.read().split())]
        counts = [
            len(cache.load([text_key(name, f"{batch}/{n}") for n in range(200)])) for batch in range(reported[-1] + 3)
        ]
        assert set(counts) <= {0, 200}
        assert counts[: reported[-1] + 1] == [200] * (reported[-1] + 1)
    cache.store({b"k": unit(5)})
    assert set(cache.load([b"k"])) == {b"k"}


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("RESILISIM_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "resilisim"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "resilisim"
    monkeypatch.setenv("RESILISIM_CACHE_DIR", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"
