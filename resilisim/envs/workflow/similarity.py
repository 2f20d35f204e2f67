"""Similarity of tools and task descriptions: shipped for benchmark-v1, computed by retrieval for anything else.

The score of a tool for a task is the highest cosine similarity of the tool's text and a clause of the description, in
[-1, 1], rounded to 1e-3 (`workflows.semantic_match_by_retrieval`). For the tasks of benchmark-v1 with the default
library the scores by the default model ship as a table, so that an environment starts without loading a model. The
table is found by the description itself: a task whose description was rewritten keeps its id, but gets scores of its
own.

`python -m resilisim.envs.workflow.similarity` computes the table anew and compares; `--rebuild` writes it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError, MissingExtraError
from resilisim.provenance import canonical_json, content_hash, package_versions
from resilisim.tasks.benchmark import BENCHMARK_SHA256, benchmark_tasks
from resilisim.tasks.model import Task
from resilisim.tasks.wording import clauses
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.retrieval import DEFAULT_MODEL_PACKAGE, SCORE_DECIMALS, default_retriever
from resilisim.workflows.steps import SemanticMatch

# "auto": the shipped table, else retrieval with the default model. None: no retrieval, all scores 0.
SimilaritySource: TypeAlias = str | SemanticMatch | None

SCHEMA = "resilisim/similarity/v1"
DATA_FILE = "data/similarity-benchmark-v1.bin"
THOUSANDTHS = 10**SCORE_DECIMALS
_CLAUSES_AT_ONCE = 2048  # texts embedded in one call


@dataclass(frozen=True, slots=True, eq=False)
class SimilarityTable:
    """Scores of every tool of one library for every task of one benchmark.

    Attributes:
        benchmark: SHA-256 of the benchmark's bytes.
        library: Content hash of the library.
        model: Name and version of the model.
        scores: int16 (num_tasks, num_tools), thousandths, in the orders of benchmark and library.
    """

    benchmark: str
    library: str
    model: str
    scores: NDArray[np.int16]

    def to_bytes(self) -> bytes:
        """Return the file's bytes: one line of JSON, then the scores as little-endian int16, row by row."""
        payload = self.scores.astype("<i2").tobytes()
        header = {
            "schema": SCHEMA,
            "benchmark": self.benchmark,
            "library": self.library,
            "model": self.model,
            "shape": list(self.scores.shape),
            "sha256": content_hash(payload),
        }
        return canonical_json(header).encode() + b"\n" + payload

    @classmethod
    def from_bytes(cls, data: bytes) -> SimilarityTable:
        """Read what `to_bytes` wrote.

        Raises:
            AssertionError: The bytes are not those that were written.
        """
        line, _, payload = data.partition(b"\n")
        header = json.loads(line)
        if header["schema"] != SCHEMA or header["sha256"] != content_hash(payload):
            raise AssertionError(f"{DATA_FILE} is damaged: reinstall the package")
        scores = np.frombuffer(payload, dtype="<i2").reshape(header["shape"]).astype(np.int16)
        return cls(header["benchmark"], header["library"], header["model"], scores)


def resolve_similarity(
    similarity: SimilaritySource, library: ToolLibrary, tasks: Sequence[Task]
) -> NDArray[np.float32]:
    """Return the similarity of every tool to every task.

    Args:
        similarity: "auto" takes the shipped table where it holds, and retrieval with the default model elsewhere (all
            tasks at once, remembered); a function is called with each description and the names of the tools; None
            gives zeros.
        library: The tools.
        tasks: The tasks.

    Returns:
        float32 (num_tasks, num_tools) in [-1, 1].

    Raises:
        InvalidInputError: The argument is none of these, or the function gives something else than scores.
        MissingExtraError: Scores have to be computed and the extra `retrieval` is not installed.
    """
    if similarity is None:
        return np.zeros((len(tasks), len(library)), dtype=np.float32)
    if callable(similarity):
        rows = [_checked_scores(similarity(task.description, library.names), library, task) for task in tasks]
        return np.array(rows, dtype=np.float32).reshape(len(tasks), len(library))
    if similarity != "auto":
        expected = "expected 'auto', None or a function of a description and names of tools"
        raise InvalidInputError(f"similarity is {similarity!r}: {expected}")
    return _automatic_scores(library, tasks)


@lru_cache(maxsize=1)
def shipped_table() -> SimilarityTable:
    """Return the table that ships with the package.

    Raises:
        AssertionError: It is damaged, or belongs to another version of the benchmark.
    """
    table = SimilarityTable.from_bytes(resources.files("resilisim.envs.workflow").joinpath(DATA_FILE).read_bytes())
    if table.benchmark != BENCHMARK_SHA256:
        raise AssertionError(f"{DATA_FILE} belongs to another version of the benchmark: reinstall the package")
    return table


def computed_table() -> SimilarityTable:
    """Compute the table of benchmark-v1, the default library and the default model."""
    library = default_library()
    scores = _retrieved_scores(library, tuple(task.description for task in benchmark_tasks()))
    version = package_versions([DEFAULT_MODEL_PACKAGE])[DEFAULT_MODEL_PACKAGE]
    return SimilarityTable(BENCHMARK_SHA256, library.content_hash, f"{DEFAULT_MODEL_PACKAGE}=={version}", scores)


def _checked_scores(scores: Sequence[float], library: ToolLibrary, task: Task) -> NDArray[np.float64]:
    where = f"similarity function, task {task.instance_id!r}"
    try:
        row = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{where}: got {type(scores).__name__}, expected {len(library)} numbers") from None
    if row.shape != (len(library),):
        raise InvalidInputError(f"{where}: got scores of shape {row.shape}, expected ({len(library)},)")
    outside = row[~((row >= -1.0) & (row <= 1.0))]
    if len(outside):
        raise InvalidInputError(f"{where}: got the score {outside[0]}, expected a number in [-1, 1]")
    return row


def _automatic_scores(library: ToolLibrary, tasks: Sequence[Task]) -> NDArray[np.float32]:
    rows = _shipped_rows() if library.content_hash == shipped_table().library else {}
    thousandths = np.zeros((len(tasks), len(library)), dtype=np.int16)
    known = [place for place, task in enumerate(tasks) if task.description in rows]
    if known:
        thousandths[known] = shipped_table().scores[[rows[tasks[place].description] for place in known]]
    new = [place for place, task in enumerate(tasks) if task.description not in rows]
    if new:
        thousandths[new] = _retrieved_scores(library, tuple(tasks[place].description for place in new))
    scores: NDArray[np.float32] = (thousandths / THOUSANDTHS).astype(np.float32)
    return scores


@lru_cache(maxsize=1)
def _shipped_rows() -> Mapping[str, int]:
    return {task.description: row for row, task in enumerate(benchmark_tasks())}


@lru_cache(maxsize=8)
def _retrieved_scores(library: ToolLibrary, descriptions: tuple[str, ...]) -> NDArray[np.int16]:
    """Return the scores of `semantic_match_by_retrieval`, (num_descriptions, num_tools), in thousandths.

    All clauses are embedded together, each distinct one once, because embedding texts one by one takes ten times as
    long.
    """
    parts = [clauses(description) or [description] for description in descriptions]
    row_of = {clause: row for row, clause in enumerate(dict.fromkeys(clause for some in parts for clause in some))}
    distinct = list(row_of)
    retriever = default_retriever(library)
    try:
        of_clause = np.concatenate(
            [
                retriever.similarities(distinct[first : first + _CLAUSES_AT_ONCE])
                for first in range(0, len(distinct), _CLAUSES_AT_ONCE)
            ]
        )
    except MissingExtraError as error:
        raise MissingExtraError(f"{error}; or give similarity=None for an environment without retrieval") from error
    scores = np.zeros((len(descriptions), len(library)), dtype=np.int16)
    for place, some in enumerate(parts):
        best = of_clause[[row_of[clause] for clause in some]].max(axis=0)
        scores[place] = [round(round(float(score), SCORE_DECIMALS) * THOUSANDTHS) for score in best]
    scores.setflags(write=False)  # the same array is returned again
    return scores


def main(arguments: list[str] | None = None) -> int:
    """Compare the shipped table with a computed one, or replace it; return 0 if they agree."""
    parser = argparse.ArgumentParser(prog="python -m resilisim.envs.workflow.similarity", description=__doc__)
    parser.add_argument("--rebuild", action="store_true", help="write the table anew")
    rebuild = parser.parse_args(arguments).rebuild
    data = computed_table().to_bytes()
    file = Path(__file__).parent.joinpath(DATA_FILE)
    if rebuild:
        file.write_bytes(data)
    print(f"{len(data)} bytes, SHA-256 {content_hash(data)}")
    return 0 if file.read_bytes() == data else 1


if __name__ == "__main__":
    raise SystemExit(main())
