"""The table of similarities that ships with Workflow-v0, computed anew.

`python -m benchmarks.similarity_table` compares it with the shipped one; `--rebuild` writes it.
"""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path

from resilisim.envs.workflow.context import DATA_FILE, SimilarityTable, retrieved_scores
from resilisim.provenance import content_hash, package_versions
from resilisim.tasks.benchmark import BENCHMARK_SHA256, benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import DEFAULT_MODEL_PACKAGE

FILE = Path(str(resources.files("resilisim.envs.workflow").joinpath(DATA_FILE)))


def computed_table() -> SimilarityTable:
    """Compute the table of benchmark-v1, the default library and the default model."""
    library = default_library()
    scores = retrieved_scores(library, tuple(task.description for task in benchmark_tasks()))
    version = package_versions([DEFAULT_MODEL_PACKAGE])[DEFAULT_MODEL_PACKAGE]
    return SimilarityTable(BENCHMARK_SHA256, library.content_hash, f"{DEFAULT_MODEL_PACKAGE}=={version}", scores)


def main(arguments: list[str] | None = None) -> int:
    """Compare the shipped table with a computed one, or replace it; return 0 if they agree."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.similarity_table", description=__doc__)
    parser.add_argument("--rebuild", action="store_true", help="write the table anew")
    rebuild = parser.parse_args(arguments).rebuild
    data = computed_table().to_bytes()
    if rebuild:
        FILE.write_bytes(data)
    print(f"{len(data)} bytes, SHA-256 {content_hash(data)}")
    return 0 if FILE.read_bytes() == data else 1


if __name__ == "__main__":
    raise SystemExit(main())
