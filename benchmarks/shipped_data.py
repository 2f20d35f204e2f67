"""The data that ships with the package and can be computed anew: tasks, numbers of searches, similarities.

`python -m benchmarks.shipped_data NAME` compares; `--rebuild` writes. Other bytes are another version: the hash of the
benchmark stands in `resilisim.tasks.benchmark`, and its data is never written under the old name.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from resilisim.envs.workflow.context import SIMILARITY_SCHEMA, retrieved_scores, similarity_file
from resilisim.provenance import canonical_json, content_hash, package_versions
from resilisim.tasks.benchmark import BENCHMARK_SEED, BENCHMARK_VERSION, BENCHMARKS, benchmark_file, benchmark_tasks
from resilisim.tasks.generation import DEFAULT_COUNT, generate_tasks
from resilisim.tasks.searches import NOT_SHOWN, SEARCHES_SCHEMA, all_searches_needed, searches_file
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.embeddings import DEFAULT_MODEL_PACKAGE
from resilisim.tool_library.retrieval import default_retriever
from resilisim.worlds.pages.generated import PAGES_FILE, pages_lines
from resilisim.worlds.records.contents import Recipe
from resilisim.worlds.records.world import RECORDS_FILE, RECORDS_VERSION, records_lines


def benchmark_lines() -> bytes:
    """Generate the JSON Lines of the benchmark by its recipe."""
    return "".join(task.to_json() + "\n" for task in generate_tasks(BENCHMARK_SEED, DEFAULT_COUNT)).encode("utf-8")


def searches_table() -> bytes:
    """Compute the numbers of searches of the benchmark, the default library and the default model."""
    library = default_library()
    found = all_searches_needed(benchmark_tasks(), library, default_retriever(library).search_many)
    numbers = "".join(NOT_SHOWN if searches.fewest is None else str(searches.fewest) for searches in found)
    return _header(SEARCHES_SCHEMA, library, numbers.encode(), searches=numbers)


def similarity_table() -> bytes:
    """Compute the similarities of the benchmark, the default library and the default model: a header, then int16."""
    library = default_library()
    scores = retrieved_scores(library, tuple(task.description for task in benchmark_tasks()))
    payload = scores.astype("<i2").tobytes()
    return _header(SIMILARITY_SCHEMA, library, payload, shape=list(scores.shape)) + payload


def records_set() -> bytes:
    """Generate records-v1 by its recipe; every reference is executed."""
    return records_lines(Recipe(), RECORDS_VERSION)


def _header(schema: str, library: ToolLibrary, payload: bytes, **more: Any) -> bytes:
    """Return the line of JSON that says what the numbers in a payload were computed from."""
    header = {
        "schema": schema,
        "benchmark": BENCHMARKS[BENCHMARK_VERSION],
        "library": library.content_hash,
        "model": f"{DEFAULT_MODEL_PACKAGE}=={package_versions([DEFAULT_MODEL_PACKAGE])[DEFAULT_MODEL_PACKAGE]}",
        "sha256": content_hash(payload),
        **more,
    }
    return canonical_json(header).encode() + b"\n"


# Each with the file that holds it, and what computes it.
SHIPPED: Mapping[str, tuple[Path, Callable[[], bytes]]] = {
    "benchmark": (Path(str(resources.files("resilisim.tasks") / benchmark_file(BENCHMARK_VERSION))), benchmark_lines),
    "records": (Path(str(resources.files("resilisim.worlds.records") / RECORDS_FILE)), records_set),
    "searches": (Path(str(resources.files("resilisim.tasks") / searches_file(BENCHMARK_VERSION))), searches_table),
    "pages": (Path(str(resources.files("resilisim.worlds.pages") / PAGES_FILE)), pages_lines),
    "similarity": (
        Path(str(resources.files("resilisim.envs.workflow") / similarity_file(BENCHMARK_VERSION))),
        similarity_table,
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Compare what ships with what is computed, or replace it; return 0 if they agree."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shipped_data", description=__doc__)
    parser.add_argument("name", choices=SHIPPED)
    parser.add_argument("--rebuild", action="store_true", help="write the file anew")
    given = parser.parse_args(arguments)
    file, compute = SHIPPED[given.name]
    data = compute()
    is_packed = file.suffix == ".gz"
    if given.rebuild:
        file.write_bytes(gzip.compress(data, compresslevel=9, mtime=0) if is_packed else data)
    print(f"{len(data)} bytes, SHA-256 {content_hash(data)}")
    there = file.read_bytes()
    return 0 if (gzip.decompress(there) if is_packed and there else there) == data else 1


if __name__ == "__main__":
    raise SystemExit(main())
